"""A declared queue: what is on its ledgers goes to its consumers, in order, each to one of them.

It is the same queue whether its messages are in the log or in memory only; the ledgers know that.
A queue with priorities has a ledger for each, and the highest that has something is served first.

Nothing is delivered from within a call: whoever changes something wakes the queue, and it has its
turn at the end of the tick (`run`), with all that came in between.

Invariant: a message is ready, or out with one consumer, or done. Who gets it is told after that.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from onelog.core.cursors.unpacking import ColdError
from onelog.core.durable.durability import WhenSafe
from onelog.core.queues.arguments import QueueLimits
from onelog.core.queues.consumers import Consumer, OnBodies, RoundRobin, shares
from onelog.core.queues.dead_letters import Reason
from onelog.core.queues.declared import Declaration
from onelog.core.queues.deliveries import (
    POSITION,
    STORED_MS,
    Delivery,
    expiration_ms,
    facts_of,
)
from onelog.core.queues.ledger import POSITION_BITS, Handout, Ledger
from onelog.core.queues.memory_source import MemorySource
from onelog.core.queues.selecting import Passed, PassedOver, wants
from onelog.errors import NotMasterError, StoreError
from onelog.message import NewMessage, NewRun

if TYPE_CHECKING:
    from onelog.core.queues.queues import WorkQueues

log = logging.getLogger(__name__)

TURN_MAX, TURN_BYTES_MAX = 256, 256 << 10
"""Messages that a queue delivers before others have their turn."""
CHOICES_MAX = 512
"""How often consumers are asked in one turn whether they want a message."""
UNACKED_MAX = 200_000
"""Messages of a queue that may be out: what a consumer that never acknowledges can cost."""
SOME_MAX = 5_000
"""Messages of which an end is told before others have their turn; the rest follow."""
MESSAGE_BYTES = 300
"""What a message in memory costs beside its payload."""
_TROUBLE_MS = 1_000
_LEVEL_MASK = (1 << POSITION_BITS) - 1

UNWRITTEN = (StoreError, NotMasterError)
"""Why something cannot be written now, and is tried again."""


class WorkQueue:
    """One declared queue."""

    __slots__ = (
        "__weakref__ _accounted _works _cold_ok _coming _coming_bytes _is_busy _is_head_known "
        "_is_reading _may_expire _only _top_first _turn_ms acked arguments "
        "auto_delete delivered due_ms durable exclusive expires_ms had_consumers is_deleted "
        "is_pending ledgers limits name own_limits owner passed published redelivered round_robin "
        "topic used_ms vhost"
    ).split()

    def __init__(
        self,
        works: "WorkQueues",
        declared: Declaration,
        limits: QueueLimits,
    ) -> None:
        self._works = works
        self.vhost, self.name, self.durable, self.exclusive, self.auto_delete = declared[:5]
        self.topic = declared.topic
        self.limits = self.own_limits = limits
        self.arguments = dict(declared.arguments)
        self.owner = declared.owner if declared.exclusive else None
        self.round_robin = RoundRobin(single=limits.single_active)
        self.passed = PassedOver()
        self.ledgers: list[Ledger] = []
        self._only: Ledger | None = None
        self._top_first: list[Ledger] = []
        self.is_pending = self.is_deleted = False
        self._is_busy = self._is_reading = self._is_head_known = self._cold_ok = False
        self._coming = self._coming_bytes = self._accounted = 0
        self._turn_ms = works.clock.now_ms()
        self.due_ms: int | None = None
        """When it has a turn because a message expires."""
        self.expires_ms = limits.expires_ms
        self.used_ms = self._turn_ms
        self.had_consumers = False
        self.published = self.delivered = self.acked = self.redelivered = 0
        self._may_expire = limits.message_ttl_ms is not None

    def set_limits(self, limits: QueueLimits) -> None:
        """Let these count, which are its own or have what policies add to them."""
        self.limits = limits
        self._may_expire |= limits.message_ttl_ms is not None
        self._is_head_known = False
        if limits.expires_ms != self.expires_ms:
            self.expires_ms = limits.expires_ms
            self.used()
        for ledger in self.ledgers:
            ledger.counts_times = limits.delivery_limit is not None

    def attach(self, ledgers: Sequence[Ledger]) -> None:
        """Use these ledgers; of several, the last is that of the highest priority."""
        self.ledgers = list(ledgers)
        self._only = self.ledgers[0] if len(ledgers) == 1 else None
        self._top_first = self.ledgers[::-1]
        for level, ledger in enumerate(ledgers):
            ledger.counts_times = self.limits.delivery_limit is not None
            if self.round_robin.all:
                ledger.source.want()
            if len(ledgers) > 1:
                ledger.number(level)
            if ledger.ready:
                self._may_expire = True  # Nobody knows what is in them.

    # -- what is told of it --------------------------------------------------------------------

    @property
    def label(self) -> str:
        """What people call it."""
        return f"queue '{self.name}' in vhost '{self.vhost}'"

    @property
    def kind(self) -> str:
        """Its type: classic, quorum or stream."""
        return self.limits.kind

    @property
    def is_stream(self) -> bool:
        """Whether it is read by position, and never consumed."""
        return self.limits.kind == "stream"

    @property
    def is_durable(self) -> bool:
        """Whether it is there after a restart."""
        return bool(self.topic)

    @property
    def levels(self) -> int:
        """Its highest priority."""
        return self.limits.priorities

    @property
    def ready(self) -> int:
        """How many messages wait for a consumer."""
        if self._only is not None:
            return self._only.ready
        return sum(ledger.ready for ledger in self.ledgers)

    @property
    def unacked(self) -> int:
        if self._only is not None:
            return len(self._only.out)
        return sum(len(ledger.out) for ledger in self.ledgers)

    @property
    def ready_bytes(self) -> int:
        """The payload of those that wait."""
        return sum(ledger.ready_bytes for ledger in self.ledgers)

    @property
    def unacked_bytes(self) -> int:
        """The payload of those that are out."""
        return sum(ledger.unacked_bytes for ledger in self.ledgers)

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        return tuple(self.round_robin.all)

    def live_from(self, queue_id: int = 0) -> int:
        """The first offset of a queue of its topic that is not done."""
        for ledger in self.ledgers:
            if ledger.in_log and ledger.queue_id == queue_id:
                return ledger.cursor
        return 0

    # -- taking in -----------------------------------------------------------------------------

    @property
    def is_limited(self) -> bool:
        """Whether it has to be asked before it gets a message."""
        limits = self.limits
        if limits.overflow != "drop-head" and limits.is_bounded:
            return True
        return not self.topic and self._works.memory_is_full

    def admits(self, body: bytes, form: int) -> bool:
        """Whether it takes a message; then the message counts, until it has come."""
        if not self.topic and self._works.memory_is_full:
            return False
        limits = self.limits
        if limits.overflow == "drop-head" or not limits.is_bounded:
            return True
        size = facts_of(body, form)[0]
        if self._is_full(size):
            self._works.settle(self)
            self._coming = self._coming_bytes = 0
            if self._is_full(size):
                if limits.overflow == "reject-publish-dlx":
                    self._works.refused(self, body, form)
                return False
        if self.topic:
            self._coming += 1
            self._coming_bytes += size
        return True

    def _is_full(self, size: int) -> bool:
        length_max, bytes_max = self.limits.length_max, self.limits.bytes_max
        return (length_max is not None and self.ready + self._coming >= length_max) or (
            bytes_max is not None and self.ready_bytes + self._coming_bytes + size > bytes_max
        )

    def put(self, body: bytes, form: int, priority: int) -> None:
        """Of a queue in memory: take a message."""
        size, expires = facts_of(body, form)
        if expires:
            self._may_expire = True
        if not self.is_pending:
            self._turn_ms = self._works.clock.now_ms()
            self._works.pend(self)
        ledger = self._only
        if ledger is None:
            ledger = self.ledgers[min(priority, len(self.ledgers) - 1)]
        ledger.source.put(body, form, self._turn_ms, size)  # type: ignore[union-attr]
        ledger.ready_bytes += size
        self.published += 1
        self._came(size + MESSAGE_BYTES)

    def put_all(self, bodies: Sequence[bytes], form: int) -> None:
        """`put` for messages that are alike but for their payload, which has one length."""
        only = self._only
        if only is None or not isinstance(only.source, MemorySource):
            for body in bodies:
                self.put(body, form, 0)
            return
        size, expires = facts_of(bodies[0], form)
        if expires:
            self._may_expire = True
        if not self.is_pending:
            self._turn_ms = self._works.clock.now_ms()
            self._works.pend(self)
        count = len(bodies)
        only.source.put_all(bodies, form, self._turn_ms, size)
        only.ready_bytes += size * count
        self.published += count
        self._came((size + MESSAGE_BYTES) * count)

    def _came(self, cost: int) -> None:
        """At once, not with the next turn: who sends too much has to be stopped in time."""
        self._accounted += cost
        self._works.stored(self, cost)

    def entered(self, ledger: Ledger, messages: Sequence[NewMessage | NewRun], offset: int) -> None:
        """Of a queue in the log: messages were appended, with their entries from `offset` on."""
        if not self.is_pending:
            self._turn_ms = self._works.clock.now_ms()
            self._works.pend(self)
        count, expires = ledger.entered(messages, offset, self._turn_ms)
        self.published += count
        self._may_expire |= expires
        self._coming = self._coming_bytes = 0

    # -- its turn ------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something may be delivered: have a turn."""
        if not self.is_pending:
            self._works.pend(self)

    def run(self) -> bool:
        """Deliver what can be delivered, and drop what is too much or too old.

        True if there is more, for another turn.
        """
        if self.is_deleted or self._is_busy:
            return False
        self._is_busy = True  # Until it is done, or a worker has read what is cold.
        more = False
        try:
            if self.round_robin.all:
                more = self._deliver()
            if not self.is_deleted:
                more |= self._trim()
                if self._may_expire and not more:
                    more = self._expire()
            self._cold_ok = False
        except ColdError as cold:
            self._read_first(cold.ranges)
        except UNWRITTEN as error:
            log.error("%s has to wait: %s", self.label, error)
            self._works.later(_TROUBLE_MS, self.wake)
        finally:
            self._is_busy = self._is_reading
        if not self.topic:
            self._account()
        return more and not self.is_deleted

    def _read_first(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._is_reading = True

        def go_on() -> None:
            self._is_reading = self._is_busy = False
            self._cold_ok = True
            self.wake()

        self._works.warm(ranges, go_on)

    def _account(self) -> None:
        if not self.topic:
            cost = self.ready_bytes + self.unacked_bytes
            cost += MESSAGE_BYTES * (self.ready + self.unacked)
            if cost != self._accounted:
                self._works.stored(self, cost - self._accounted)
                self._accounted = cost

    def _deliver(self) -> bool:
        budget, round_robin = TURN_MAX, self.round_robin
        if round_robin.selects or self.passed:
            return self._deliver_chosen()
        while budget > 0 and not self.is_deleted:
            takers = round_robin.takers()
            if not takers:
                return False
            on_bodies = takers[0].on_bodies
            if on_bodies is not None and self._pass_on(takers, on_bodies, budget):
                return self.ready > 0
            room = min(budget, UNACKED_MAX - self.unacked)
            if len(takers) > 1 and any(each.window and each.window.limit for each in takers):
                # What one of them takes, others of its channel cannot have: one by one.
                takers, room = takers[:1], min(room, 1)
            if len(takers) == 1:
                room = min(room, takers[0].room)
            else:
                room = min(room, sum(min(each.room, budget) for each in takers))
            ledger, found = self._take(room)
            if not found:
                return False
            budget -= len(found)
            if self._may_expire:
                found = self._without_expired(ledger, found)
                if not found:
                    continue
            if len(takers) == 1:
                round_robin.served(takers[0])
                self._give(takers[0], ledger, found)
            else:
                dealt, last = shares(takers, found)
                round_robin.served(last)
                for consumer, some in dealt:
                    self._give(consumer, ledger, some)
            if not self.ready:
                return False
        return self.ready > 0

    def _pass_on(self, takers: list[Consumer], on_bodies: OnBodies, count: int) -> bool:
        """Give new messages to a consumer that acknowledges nothing, if there are any."""
        consumer, ledger = takers[0], self._only
        if len(takers) > 1 or self._may_expire or ledger is None:
            return False
        bodies, forms = ledger.pass_on(count, TURN_BYTES_MAX)
        if bodies:
            self._is_head_known = False
            if len(self.round_robin.all) > 1:
                self.round_robin.served(consumer)
            self.acked += len(bodies)
            self.delivered += len(bodies)
            if ledger.in_log and not ledger.is_dirty:
                self._works.changed(ledger)
            try:
                on_bodies(consumer, bodies, forms)
            except Exception:
                self._cannot_deliver_to(consumer)
        return bool(bodies)

    def _cannot_deliver_to(self, consumer: Consumer) -> None:
        log.exception("%s cannot deliver to a consumer, which is cancelled", self.label)
        self._works.gone_by(self, consumer)

    def _deliver_chosen(self) -> bool:
        """The same, where some consumers want some messages only."""
        passed, round_robin, now_ms = self.passed, self.round_robin, self._works.clock.now_ms()
        for each, taker in passed.offers():
            if taker.room > 0 and taker.is_open:
                self._hand_on(each, taker, now_ms)
        budget = min(TURN_MAX, max(1, CHOICES_MAX // max(1, len(round_robin.all))))
        while budget > 0 and not self.is_deleted and round_robin.takers():
            ledger, found = self._take(min(budget, passed.room, UNACKED_MAX - self.unacked))
            if not found:
                return False
            budget -= len(found)
            if self._may_expire:
                found = self._without_expired(ledger, found)
            for delivery in found:
                wanting = [each for each in round_robin.in_turn() if wants(each, delivery)]
                consumer = next((each for each in wanting if each.room > 0), None)
                if consumer is not None:
                    round_robin.served(consumer)
                    self._give(consumer, ledger, [delivery])
                else:
                    each = Passed(ledger, delivery, now_ms, wanting)
                    ledger.hold([delivery], each.handout)
                    passed.add(each)
        return self.ready > 0 and passed.room > 0 and bool(round_robin.takers())

    def _hand_on(self, passed: Passed, consumer: Consumer, now_ms: int) -> None:
        """Give a message to a consumer that was passed over before."""
        self.passed.remove(passed)
        delivery = passed.delivery
        due_ms = self._due_ms(delivery)
        if due_ms is not None and due_ms <= now_ms:
            self._bury_held([delivery[POSITION]], "expired")
            return
        passed.handout.consumer, passed.handout.given_ms = consumer, now_ms
        consumer.given(1)
        if consumer.no_ack:
            self.ack([delivery[POSITION]])
        self.delivered += 1
        consumer.on_deliver(consumer, [delivery])

    def _take(self, count: int, bytes_max: int = TURN_BYTES_MAX) -> tuple[Ledger, list[Delivery]]:
        """The next messages, all of one ledger."""
        self._is_head_known = False
        ledger = self._only
        if ledger is not None:
            return ledger, ledger.take(count, bytes_max, cold_ok=self._cold_ok) if count > 0 else []
        if count > 0:
            for ledger in self._top_first:
                if ledger.ready:
                    found = ledger.take(count, bytes_max, cold_ok=self._cold_ok)
                    if found:
                        return ledger, found
        return self.ledgers[0], []

    def _give(self, consumer: Consumer, ledger: Ledger, found: list[Delivery]) -> None:
        if consumer.no_ack:
            ledger.finish(found)
            self.acked += len(found)
        else:
            ledger.hold(found, Handout(consumer, self._works.clock.now_ms()))
            consumer.given(len(found))
        if ledger.in_log:
            self._works.changed(ledger)
        self.delivered += len(found)
        try:
            consumer.on_deliver(consumer, found)
        except Exception:
            self._cannot_deliver_to(consumer)
            self.requeue([each[POSITION] for each in found])

    # -- ends of messages ----------------------------------------------------------------------

    def ledger_of(self, position: int) -> Ledger:
        """The ledger that a place is on."""
        if self._only is not None:
            return self._only
        return self.ledgers[min(position & _LEVEL_MASK, len(self.ledgers) - 1)]

    def ack(self, positions: Sequence[int]) -> None:
        """Messages are done. Those that are not out are none of it."""
        if len(positions) > SOME_MAX:
            self._works.later(0, partial(self.ack, positions[SOME_MAX:]))
            positions = positions[:SOME_MAX]
        only = self._only
        if only is not None:
            self._done(only, only.release(positions))
        else:
            by_ledger: dict[int, list[int]] = {}
            for position in positions:
                by_ledger.setdefault(position & _LEVEL_MASK, []).append(position)
            for some in by_ledger.values():
                ledger = self.ledger_of(some[0])
                self._done(ledger, ledger.release(some))
        self._freed()

    def _done(self, ledger: Ledger, released: dict[Handout, int]) -> None:
        for handout, count in released.items():
            self.acked += count
            if handout.consumer is not None:
                handout.consumer.took_back(count)
        if released and ledger.in_log:
            self._works.changed(ledger)

    def _freed(self) -> None:
        """There may be room for more."""
        self._account()
        if not self.is_pending and self.round_robin.all and (self.ready or self.passed):
            self._works.pend(self)

    def requeue(self, positions: Sequence[int], *, counted: bool = True) -> None:
        """Messages may be had again, from where they were; those that came too often are dead."""
        if len(positions) > SOME_MAX:
            self._works.later(0, partial(self.requeue, positions[SOME_MAX:], counted=counted))
            positions = positions[:SOME_MAX]
        dead: list[int] = []
        limit = self.limits.delivery_limit
        self._is_head_known = False
        for position in positions:
            ledger = self.ledger_of(position)
            if limit is not None and counted and ledger.times_of(position) + 1 > limit:
                dead.append(position)
                continue
            back = ledger.put_back(position, counted=counted)
            if back is None:
                continue
            if back.consumer is not None:
                back.consumer.took_back(1)
            self.redelivered += 1
            self._may_expire = True  # It may say so itself; nobody has looked at it since.
            if ledger.in_log and counted:
                self._works.changed(ledger)
        if dead:
            self._bury_held(dead, "delivery_limit")
        self.wake()  # Also without a consumer: there may be too many messages now.

    def reject(self, positions: Sequence[int]) -> None:
        """Messages are useless: they go to the dead letters, if there are any."""
        self._bury_held(list(positions), "rejected")

    def _bury_held(self, positions: list[int], reason: Reason, *, cold_ok: bool = False) -> None:
        """End messages that are out, some at a time; what cannot be written is tried again."""
        if self.is_deleted:
            return
        if self.limits.dead_letter_exchange is None:
            self.ack(positions)
            return
        if not positions:
            return
        some = positions[:TURN_MAX]
        ledger = self.ledger_of(some[0])
        some = [each for each in some if self.ledger_of(each) is ledger]
        again = partial(self._bury_held, positions, reason)
        try:
            found = ledger.held(some, cold_ok=cold_ok)
            if found:
                self._works.bury(self, ledger, found, reason)
        except ColdError as cold:
            self._works.warm(cold.ranges, partial(again, cold_ok=True))
            return
        except UNWRITTEN as error:
            log.error("dead letters of %s have to wait: %s", self.label, error)
            self._works.later(_TROUBLE_MS, again)
            return
        self.ack(some)
        done = set(some)
        left = [each for each in positions[:TURN_MAX] if each not in done] + positions[TURN_MAX:]
        if left:
            self._works.later(0, partial(self._bury_held, left, reason))

    def _drop(self, ledger: Ledger, found: list[Delivery], reason: Reason) -> None:
        """End messages that were taken from a ledger."""
        if not found:
            return
        if self.limits.dead_letter_exchange is not None:
            try:
                self._works.bury(self, ledger, found, reason)
            except UNWRITTEN:
                ledger.give_back(found, counted=False)
                raise
        ledger.finish(found)
        if ledger.in_log:
            self._works.changed(ledger)

    def _trim(self) -> bool:
        """Drop messages at the head that are too many; True if there are more of them."""
        limits = self.limits
        if limits.length_max is limits.bytes_max is None or limits.overflow != "drop-head":
            return False
        for _ in range(TURN_MAX):
            too_many = 0 if limits.length_max is None else self.ready - limits.length_max
            too_much = limits.bytes_max is not None and self.ready_bytes > limits.bytes_max
            if too_many <= 0 and not too_much:
                return False
            ledger, found = self._take(min(max(1, too_many), TURN_MAX))
            if not found:
                return False
            self._drop(ledger, found, "maxlen")
            if too_many > TURN_MAX:
                return True
        return True

    # -- time ----------------------------------------------------------------------------------

    def _due_ms(self, delivery: Delivery) -> int | None:
        """When a message expires; None if it never does."""
        own_ms = expiration_ms(delivery[2], delivery[3])
        ttl_ms = self.limits.message_ttl_ms
        if own_ms is None:
            return None if ttl_ms is None else delivery[STORED_MS] + ttl_ms
        return delivery[STORED_MS] + (own_ms if ttl_ms is None else min(own_ms, ttl_ms))

    def _without_expired(self, ledger: Ledger, found: list[Delivery]) -> list[Delivery]:
        """Those of the messages that were taken that are still good; the others are dropped.

        What expires at once, but finds a consumer at once, is good.
        """
        now_ms = self._works.clock.now_ms()
        late = [
            each
            for each in found
            if (due_ms := self._due_ms(each)) is not None
            and due_ms <= now_ms
            and (due_ms > each[STORED_MS] or now_ms > self._turn_ms)
        ]
        if not late:
            return found
        gone = {each[POSITION] for each in late}
        good = [each for each in found if each[POSITION] not in gone]
        try:
            self._drop(ledger, late, "expired")
        except UNWRITTEN:
            ledger.give_back(good, counted=False)
            raise
        return good

    def _expire(self) -> bool:
        """Drop what is too old at the head, and know when to look again.

        True if there is more of it.
        """
        now_ms = self._works.clock.now_ms()
        if self._is_head_known and self.due_ms is not None and self.due_ms > now_ms:
            return False
        next_ms: int | None = None
        is_empty = True
        for ledger in self.ledgers:
            late: list[Delivery] = []
            while (head := ledger.peek(cold_ok=self._cold_ok)) is not None:
                due_ms = self._due_ms(head)
                if due_ms is None or due_ms > now_ms:
                    is_empty = False
                    if due_ms is not None:
                        next_ms = due_ms if next_ms is None else min(next_ms, due_ms)
                    break
                if len(late) >= TURN_MAX:
                    self._drop(ledger, late, "expired")
                    return True
                late += ledger.take(1, 1)
            self._drop(ledger, late, "expired")
            if not self.round_robin.all:
                ledger.source.cool()
        if is_empty and self.limits.message_ttl_ms is None:
            self._may_expire = False
        self._works.expire_at(self, next_ms)
        self._is_head_known = True
        return False

    def overdue(self, now_ms: int, default_ms: int) -> Iterator[Consumer]:
        """Consumers that have had a message for too long."""
        timeout_ms = self.limits.consumer_timeout_ms
        timeout_ms = default_ms if timeout_ms is None else timeout_ms
        if not timeout_ms:
            return
        notified = set()
        for ledger in self.ledgers:
            for handout in ledger.handouts():
                if handout.given_ms + timeout_ms > now_ms:
                    break
                consumer = handout.consumer
                if consumer is not None and consumer.is_open and consumer not in notified:
                    notified.add(consumer)
                    yield consumer

    def set_expires(self, expires_ms: int | None) -> None:
        """Let it end after so long without use; None: never."""
        self.expires_ms = expires_ms
        self.used()
        self._works.watch_use(self)

    def used(self) -> None:
        """Somebody uses it."""
        self.used_ms = self._works.clock.now_ms()

    # -- for the part it belongs to ------------------------------------------------------------

    def get(self) -> tuple[Ledger, Delivery] | None:
        """The next message for somebody who asks for one; `ColdError` if it is on disk only."""
        if self.passed:
            self.requeue(self.passed.taken(), counted=False)
        while True:
            ledger, found = self._take(1)
            self._cold_ok = False
            if not found:
                return None
            if self._may_expire:
                found = self._without_expired(ledger, found)
            if found:
                return ledger, found[0]

    def read_cold_next(self) -> None:
        """What has to be read from disk was read: the next look may touch it."""
        self._cold_ok = True

    def got(self, ledger: Ledger, delivery: Delivery, *, no_ack: bool) -> None:
        """A message that `get` gave is out, or done."""
        if no_ack:
            ledger.finish([delivery])
            self.acked += 1
        else:
            ledger.hold([delivery], Handout(None, self._works.clock.now_ms()))
        if ledger.in_log:
            self._works.changed(ledger)
        self.delivered += 1
        self._account()

    def add(self, consumer: Consumer) -> None:
        if self.limits.single_active:
            consumer.is_active = not self.round_robin.all
        self.round_robin.add(consumer)
        self.passed.came(consumer)
        self.had_consumers = True
        for ledger in self.ledgers:
            ledger.source.want()
        self.wake()

    def remove(self, consumer: Consumer) -> bool:
        """A consumer less; what it has stays out. False if it was none."""
        if not self.round_robin.remove(consumer):
            return False
        consumer.close()
        self.passed.went(consumer)
        if not self.round_robin.all:
            if self.passed:
                self.requeue(self.passed.taken(), counted=False)
            self.used()
            for ledger in self.ledgers:
                ledger.source.cool()
        self.wake()
        return True

    def purge(self) -> int:
        """Drop what is ready; how many messages that were."""
        count = len(self.passed)
        if self.passed:
            self.ack(self.passed.taken())
        for ledger in self.ledgers:
            count += ledger.purge()
            if ledger.in_log:
                self._works.changed(ledger)
        self._account()
        return count

    def when_recorded(self, callback: WhenSafe) -> None:
        """Call back once what was said of its messages so far is in the log, as safe as any."""
        if self.topic:
            self._works.when_recorded(self, callback)
        else:
            callback(None)

    def browse(self, skip: int = 0, count: int = 100) -> list[Delivery]:
        """Messages that are ready, from one on, without taking them; it may wait for the disk."""
        found = [each.delivery for each in self.passed][skip : skip + count]
        skip -= len(self.passed)
        for ledger in self._top_first:
            if len(found) >= count:
                break
            found += ledger.browse(max(0, skip), count - len(found))
            skip -= ledger.ready
        return found

    def end(self) -> None:
        self.is_deleted = True
        self.passed.taken()
        if not self.topic:
            for ledger in self.ledgers:
                ledger.clear()
            self._account()
