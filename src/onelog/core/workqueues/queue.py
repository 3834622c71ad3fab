"""A declared queue: what is on its shelves goes to its consumers, in order, each to one of them.

It is the same queue whether its messages are in the log or in memory only; the shelves know that.
A queue with priorities has a shelf for each, and the highest that has something is served first.

Nothing is delivered from within a call: whoever changes something wakes the queue, and it has its
turn at the end of the tick (`run`), with all that came in between.

Invariant: a message is ready, or out with one consumer, or done. Who gets it is told after that.
"""

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from onelog.core.cursors.unpacking import ColdError
from onelog.core.durable.durability import WhenSafe
from onelog.core.workqueues.arguments import Terms
from onelog.core.workqueues.consumers import Consumer, OnBodies, Rota, shares
from onelog.core.workqueues.dead_letters import Reason
from onelog.core.workqueues.deliveries import (
    PLACE,
    STORED_MS,
    Delivery,
    expiration_ms,
    facts_of,
)
from onelog.core.workqueues.log_shelf import LogShelf
from onelog.core.workqueues.memory_shelf import Handover, MemoryShelf
from onelog.core.workqueues.selecting import Passed, PassedOver, wants
from onelog.core.workqueues.surroundings import Surroundings
from onelog.errors import NotMasterError, StoreError
from onelog.message import NewMessage, NewRun

log = logging.getLogger(__name__)

TURN_MAX, TURN_BYTES_MAX = 256, 256 << 10
"""Messages that a queue delivers before others have their turn."""
UNACKED_MAX = 200_000
"""Messages of a queue that may be out: what a consumer that never acknowledges can cost."""
SOME_MAX = 5_000
"""Messages of which an end is told before others have their turn; the rest follow."""
MESSAGE_BYTES = 300
"""What a message in memory costs beside its payload."""
_TROUBLE_MS = 1_000
_LEVEL_MASK = 0xFFFF
_PLACE_BITS = 16

Shelf = LogShelf | MemoryShelf
UNWRITTEN = (StoreError, NotMasterError)
"""Why something cannot be written now, and is tried again."""


class WorkQueue:
    """One declared queue."""

    __slots__ = (
        "__weakref__", "_accounted", "_cold_ok", "_coming", "_coming_bytes", "_is_busy",
        "_is_head_known", "_is_reading", "_may_expire", "_next_place", "_only", "_surroundings",
        "_top_first", "_turn_ms", "acked", "arguments", "auto_delete", "delivered", "due_ms",
        "durable", "exclusive", "expires_ms", "had_consumers", "is_deleted", "is_pending", "name",
        "own_terms", "owner", "passed", "published", "redelivered", "rota", "shelves", "terms",
        "topic", "used_ms", "vhost",
    )  # fmt: skip

    def __init__(
        self,
        surroundings: Surroundings,
        vhost: str,
        name: str,
        topic: str,
        terms: Terms,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        owner: Hashable = None,
    ) -> None:
        self._surroundings = surroundings
        self.vhost = vhost
        self.name = name
        self.topic = topic
        self.terms = self.own_terms = terms
        self.durable = durable
        self.exclusive = exclusive
        self.auto_delete = auto_delete
        self.arguments = dict(arguments or {})
        self.owner = owner if exclusive else None
        self.rota = Rota(single=terms.single_active)
        self.passed = PassedOver()
        self.shelves: list[Shelf] = []
        self._only: Shelf | None = None
        self._top_first: list[Shelf] = []
        self.is_pending = self.is_deleted = False
        self._is_busy = self._is_reading = self._is_head_known = self._cold_ok = False
        self._next_place = self._coming = self._coming_bytes = self._accounted = 0
        self._turn_ms = surroundings.clock.now_ms()
        self.due_ms: int | None = None
        """When it has a turn because a message expires."""
        self.expires_ms = terms.expires_ms
        self.used_ms = self._turn_ms
        self.had_consumers = False
        self.published = self.delivered = self.acked = self.redelivered = 0
        self._may_expire = terms.message_ttl_ms is not None

    def set_terms(self, terms: Terms) -> None:
        """Let these count, which are its own or have what policies add to them."""
        self.terms = terms
        self._may_expire |= terms.message_ttl_ms is not None
        self._is_head_known = False
        if terms.expires_ms != self.expires_ms:
            self.expires_ms = terms.expires_ms
            self.used()
        for shelf in self.shelves:
            if isinstance(shelf, LogShelf):
                shelf.counts_times = terms.delivery_limit is not None

    def furnish(self, shelves: Sequence[Shelf]) -> None:
        """Use these shelves; of several, the last is that of the highest priority."""
        self.shelves = list(shelves)
        self._only = self.shelves[0] if len(shelves) == 1 else None
        self._top_first = self.shelves[::-1]
        for shelf in shelves:
            if isinstance(shelf, LogShelf):
                shelf.counts_times = self.terms.delivery_limit is not None
                shelf.is_wanted = bool(self.rota.all)
                if len(shelves) > 1:
                    shelf.number()
                if shelf.supply is not None and shelf.ready:
                    self._may_expire = True  # Nobody knows what is in them.

    # -- what is told of it --------------------------------------------------------------------

    @property
    def place_name(self) -> str:
        """What people call it."""
        return f"queue '{self.name}' in vhost '{self.vhost}'"

    @property
    def kind(self) -> str:
        """Its type: classic, quorum or stream."""
        return self.terms.kind

    @property
    def is_stream(self) -> bool:
        """Whether it is read by position, and never consumed."""
        return self.terms.kind == "stream"

    @property
    def is_durable(self) -> bool:
        """Whether it is there after a restart."""
        return bool(self.topic)

    @property
    def levels(self) -> int:
        """Its highest priority."""
        return self.terms.priorities

    @property
    def skip_transient(self) -> bool:
        """Whether messages that need not survive a restart are not for this queue."""
        return self.terms.skip_transient

    @property
    def ready(self) -> int:
        """How many messages wait for a consumer."""
        if self._only is not None:
            return self._only.ready
        return sum(shelf.ready for shelf in self.shelves)

    @property
    def unacked(self) -> int:
        """How many are out."""
        if self._only is not None:
            return len(self._only.out)
        return sum(len(shelf.out) for shelf in self.shelves)

    @property
    def ready_bytes(self) -> int:
        """The payload of those that wait."""
        return sum(shelf.ready_bytes for shelf in self.shelves)

    @property
    def unacked_bytes(self) -> int:
        """The payload of those that are out."""
        return sum(shelf.unacked_bytes for shelf in self.shelves)

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """Who consumes it."""
        return tuple(self.rota.all)

    def live_from(self, queue_id: int = 0) -> int:
        """The first offset of a queue of its topic that is not done."""
        for shelf in self.shelves:
            if isinstance(shelf, LogShelf) and shelf.queue_id == queue_id:
                return shelf.cursor
        return 0

    # -- taking in -----------------------------------------------------------------------------

    @property
    def is_limited(self) -> bool:
        """Whether it has to be asked before it gets a message."""
        terms = self.terms
        if terms.overflow != "drop-head" and terms.is_bounded:
            return True
        return not self.topic and self._surroundings.memory_is_full

    def admits(self, body: bytes, form: int) -> bool:
        """Whether it takes a message; then the message counts, until it has come."""
        if not self.topic and self._surroundings.memory_is_full:
            return False
        terms = self.terms
        if terms.overflow == "drop-head" or not terms.is_bounded:
            return True
        size = facts_of(body, form)[0]
        if self._is_full(size):
            self._surroundings.settle(self)
            self._coming = self._coming_bytes = 0
            if self._is_full(size):
                if terms.overflow == "reject-publish-dlx":
                    self._surroundings.refused(self, body, form)
                return False
        if self.topic:
            self._coming += 1
            self._coming_bytes += size
        return True

    def _is_full(self, size: int) -> bool:
        length_max, bytes_max = self.terms.length_max, self.terms.bytes_max
        return (length_max is not None and self.ready + self._coming >= length_max) or (
            bytes_max is not None and self.ready_bytes + self._coming_bytes + size > bytes_max
        )

    def put(self, body: bytes, form: int, priority: int) -> None:
        """Of a queue in memory: take a message."""
        size, expires = facts_of(body, form)
        if expires:
            self._may_expire = True
        if not self.is_pending:
            self._turn_ms = self._surroundings.clock.now_ms()
            self._surroundings.pend(self)
        place = self._next_place
        self._next_place = place + 1
        shelf = self._only
        if shelf is None:
            level = min(priority, len(self.shelves) - 1)
            place, shelf = place << _PLACE_BITS | level, self.shelves[level]
        shelf.put(place, body, form, self._turn_ms, size)  # type: ignore[union-attr]
        self.published += 1
        self._came(size + MESSAGE_BYTES)

    def put_all(self, bodies: Sequence[bytes], form: int) -> None:
        """`put` for messages that are alike but for their payload, which has one length."""
        if self._only is None or not isinstance(self._only, MemoryShelf):
            for body in bodies:
                self.put(body, form, 0)
            return
        size, expires = facts_of(bodies[0], form)
        if expires:
            self._may_expire = True
        if not self.is_pending:
            self._turn_ms = self._surroundings.clock.now_ms()
            self._surroundings.pend(self)
        count = len(bodies)
        self._only.put_all(self._next_place, bodies, form, self._turn_ms, size)
        self._next_place += count
        self.published += count
        self._came((size + MESSAGE_BYTES) * count)

    def _came(self, cost: int) -> None:
        """At once, not with the next turn: who sends too much has to be stopped in time."""
        self._accounted += cost
        self._surroundings.stored(self, cost)

    def entered(
        self, shelf: LogShelf, messages: Sequence[NewMessage | NewRun], offset: int
    ) -> None:
        """Of a queue in the log: messages were appended, with their entries from `offset` on."""
        if not self.is_pending:
            self._turn_ms = self._surroundings.clock.now_ms()
            self._surroundings.pend(self)
        count, expires = shelf.entered(messages, offset, self._turn_ms)
        self.published += count
        self._may_expire |= expires
        self._coming = self._coming_bytes = 0

    # -- its turn ------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something may be delivered: have a turn."""
        if not self.is_pending:
            self._surroundings.pend(self)

    def run(self) -> bool:
        """Deliver what can be delivered, and drop what is too much or too old.

        True if there is more, for another turn.
        """
        if self.is_deleted or self._is_busy:
            return False
        self._is_busy = True  # Until it is done, or a worker has read what is cold.
        more = False
        try:
            if self.rota.all:
                more = self._deliver()
            if not self.is_deleted:
                more |= self._trim()
                if self._may_expire and not more:
                    more = self._expire()
            self._cold_ok = False
        except ColdError as cold:
            self._read_first(cold.ranges)
        except UNWRITTEN as error:
            log.error("%s has to wait: %s", self.place_name, error)
            self._surroundings.later(_TROUBLE_MS, self.wake)
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

        self._surroundings.warm(ranges, go_on)

    def _account(self) -> None:
        if not self.topic:
            cost = self.ready_bytes + self.unacked_bytes
            cost += MESSAGE_BYTES * (self.ready + self.unacked)
            if cost != self._accounted:
                self._surroundings.stored(self, cost - self._accounted)
                self._accounted = cost

    def _deliver(self) -> bool:
        budget, rota = TURN_MAX, self.rota
        if rota.selects or self.passed:
            return self._deliver_chosen()
        while budget > 0 and not self.is_deleted:
            takers = rota.takers()
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
            shelf, found = self._take(room)
            if not found:
                return False
            budget -= len(found)
            if self._may_expire:
                found = self._without_expired(shelf, found)
                if not found:
                    continue
            if len(takers) == 1:
                rota.served(takers[0])
                self._give(takers[0], shelf, found)
            else:
                dealt, last = shares(takers, found)
                rota.served(last)
                for consumer, some in dealt:
                    self._give(consumer, shelf, some)
            if not self.ready:
                return False
        return self.ready > 0

    def _pass_on(self, takers: list[Consumer], on_bodies: OnBodies, count: int) -> bool:
        """Give new messages to a consumer that acknowledges nothing, if there are any."""
        consumer, shelf = takers[0], self._only
        if len(takers) > 1 or self._may_expire or shelf is None:
            return False
        bodies, forms = shelf.pass_on(count, TURN_BYTES_MAX)
        if bodies:
            self._is_head_known = False
            if len(self.rota.all) > 1:
                self.rota.served(consumer)
            self.acked += len(bodies)
            self.delivered += len(bodies)
            if isinstance(shelf, LogShelf) and not shelf.is_dirty:
                self._surroundings.changed(shelf)
            try:
                on_bodies(consumer, bodies, forms)
            except Exception:
                self._cannot_deliver_to(consumer)
        return bool(bodies)

    def _cannot_deliver_to(self, consumer: Consumer) -> None:
        log.exception("%s cannot deliver to a consumer, which is cancelled", self.place_name)
        self._surroundings.gone_by(self, consumer)

    def _deliver_chosen(self) -> bool:
        """The same, where some consumers want some messages only."""
        passed, rota, now_ms = self.passed, self.rota, self._surroundings.clock.now_ms()
        for each, taker in passed.offers():
            if taker.room > 0 and taker.is_open:
                self._hand_on(each, taker, now_ms)
        budget = TURN_MAX
        while budget > 0 and not self.is_deleted and rota.takers():
            shelf, found = self._take(min(budget, passed.room, UNACKED_MAX - self.unacked))
            if not found:
                return False
            budget -= len(found)
            if self._may_expire:
                found = self._without_expired(shelf, found)
            for delivery in found:
                wanting = [each for each in rota.in_turn() if wants(each, delivery)]
                consumer = next((each for each in wanting if each.room > 0), None)
                if consumer is not None:
                    rota.served(consumer)
                    self._give(consumer, shelf, [delivery])
                else:
                    each = Passed(shelf, delivery, now_ms, wanting)
                    shelf.hold([delivery], each.handover)
                    passed.add(each)
        return self.ready > 0 and passed.room > 0 and bool(rota.takers())

    def _hand_on(self, passed: Passed, consumer: Consumer, now_ms: int) -> None:
        """Give a message to a consumer that was passed over before."""
        self.passed.remove(passed)
        delivery = passed.delivery
        due_ms = self._due_ms(delivery)
        if due_ms is not None and due_ms <= now_ms:
            self._bury_held([delivery[PLACE]], "expired")
            return
        passed.handover.consumer, passed.handover.given_ms = consumer, now_ms
        consumer.given(1)
        if consumer.no_ack:
            self.ack([delivery[PLACE]])
        self.delivered += 1
        consumer.on_deliver(consumer, [delivery])

    def _take(self, count: int, bytes_max: int = TURN_BYTES_MAX) -> tuple[Shelf, list[Delivery]]:
        """The next messages, all of one shelf."""
        self._is_head_known = False
        shelf = self._only
        if shelf is not None:
            return shelf, shelf.take(count, bytes_max, cold_ok=self._cold_ok) if count > 0 else []
        if count > 0:
            for shelf in self._top_first:
                if shelf.ready:
                    found = shelf.take(count, bytes_max, cold_ok=self._cold_ok)
                    if found:
                        return shelf, found
        return self.shelves[0], []

    def _give(self, consumer: Consumer, shelf: Shelf, found: list[Delivery]) -> None:
        if consumer.no_ack:
            shelf.finish(found)
            self.acked += len(found)
        else:
            shelf.hold(found, Handover(consumer, self._surroundings.clock.now_ms()))
            consumer.given(len(found))
        if shelf.in_log:
            self._surroundings.changed(shelf)  # type: ignore[arg-type]
        self.delivered += len(found)
        try:
            consumer.on_deliver(consumer, found)
        except Exception:
            self._cannot_deliver_to(consumer)
            self.requeue([each[PLACE] for each in found])

    # -- ends of messages ----------------------------------------------------------------------

    def shelf_of(self, place: int) -> Shelf:
        """The shelf that a place is on."""
        if self._only is not None:
            return self._only
        return self.shelves[min(place & _LEVEL_MASK, len(self.shelves) - 1)]

    def ack(self, places: Sequence[int]) -> None:
        """Messages are done. Those that are not out are none of it."""
        if len(places) > SOME_MAX:
            self._surroundings.later(0, partial(self.ack, places[SOME_MAX:]))
            places = places[:SOME_MAX]
        only = self._only
        if only is not None:
            self._done(only, only.release(places))
        else:
            by_shelf: dict[int, list[int]] = {}
            for place in places:
                by_shelf.setdefault(place & _LEVEL_MASK, []).append(place)
            for some in by_shelf.values():
                shelf = self.shelf_of(some[0])
                self._done(shelf, shelf.release(some))
        self._freed()

    def _done(self, shelf: Shelf, released: dict[Handover, int]) -> None:
        for handover, count in released.items():
            self.acked += count
            if handover.consumer is not None:
                handover.consumer.took_back(count)
        if released and shelf.in_log:
            self._surroundings.changed(shelf)  # type: ignore[arg-type]

    def _freed(self) -> None:
        """There may be room for more."""
        self._account()
        if not self.is_pending and self.rota.all and (self.ready or self.passed):
            self._surroundings.pend(self)

    def requeue(self, places: Sequence[int], *, counted: bool = True) -> None:
        """Messages may be had again, from where they were; those that came too often are dead."""
        if len(places) > SOME_MAX:
            self._surroundings.later(0, partial(self.requeue, places[SOME_MAX:], counted=counted))
            places = places[:SOME_MAX]
        dead: list[int] = []
        limit = self.terms.delivery_limit
        self._is_head_known = False
        for place in places:
            shelf = self.shelf_of(place)
            if limit is not None and counted and self._times(shelf, place) + 1 > limit:
                dead.append(place)
                continue
            back = shelf.put_back(place, counted=counted)
            if back is None:
                continue
            if back[0].consumer is not None:
                back[0].consumer.took_back(1)
            self.redelivered += 1
            self._may_expire = True  # It may say so itself; nobody has looked at it since.
            if shelf.in_log and counted:
                self._surroundings.changed(shelf)  # type: ignore[arg-type]
        if dead:
            self._bury_held(dead, "delivery_limit")
        self.wake()  # Also without a consumer: there may be too many messages now.

    def _times(self, shelf: Shelf, place: int) -> int:
        if isinstance(shelf, LogShelf):
            return shelf.times_of(place)
        held = shelf.held([place])
        return held[0][1] if held else 0

    def reject(self, places: Sequence[int]) -> None:
        """Messages are useless: they go to the dead letters, if there are any."""
        self._bury_held(list(places), "rejected")

    def _bury_held(self, places: list[int], reason: Reason, *, cold_ok: bool = False) -> None:
        """End messages that are out, some at a time; what cannot be written is tried again."""
        if self.is_deleted:
            return
        if self.terms.dead_letter_exchange is None:
            self.ack(places)
            return
        while places:
            some = places[:TURN_MAX]
            shelf = self.shelf_of(some[0])
            some = [each for each in some if self.shelf_of(each) is shelf]
            again = partial(self._bury_held, places, reason)
            try:
                found = shelf.held(some, cold_ok=cold_ok)
                if found:
                    self._surroundings.bury(self, shelf, found, reason)
            except ColdError as cold:
                self._surroundings.warm(cold.ranges, partial(again, cold_ok=True))
                return
            except UNWRITTEN as error:
                log.error("dead letters of %s have to wait: %s", self.place_name, error)
                self._surroundings.later(_TROUBLE_MS, again)
                return
            self.ack(some)
            done = set(some)
            places = [each for each in places if each not in done]

    def _drop(self, shelf: Shelf, found: list[Delivery], reason: Reason) -> None:
        """End messages that were taken from a shelf."""
        if not found:
            return
        if self.terms.dead_letter_exchange is not None:
            try:
                self._surroundings.bury(self, shelf, found, reason)
            except UNWRITTEN:
                shelf.give_back(found, counted=False)
                raise
        shelf.finish(found)
        if shelf.in_log:
            self._surroundings.changed(shelf)  # type: ignore[arg-type]

    def _trim(self) -> bool:
        """Drop messages at the head that are too many; True if there are more of them."""
        terms = self.terms
        if terms.length_max is terms.bytes_max is None or terms.overflow != "drop-head":
            return False
        for _ in range(TURN_MAX):
            too_many = 0 if terms.length_max is None else self.ready - terms.length_max
            too_much = terms.bytes_max is not None and self.ready_bytes > terms.bytes_max
            if too_many <= 0 and not too_much:
                return False
            shelf, found = self._take(min(max(1, too_many), TURN_MAX))
            if not found:
                return False
            self._drop(shelf, found, "maxlen")
            if too_many > TURN_MAX:
                return True
        return True

    # -- time ----------------------------------------------------------------------------------

    def _due_ms(self, delivery: Delivery) -> int | None:
        """When a message expires; None if it never does."""
        own_ms = expiration_ms(delivery[2], delivery[3])
        ttl_ms = self.terms.message_ttl_ms
        if own_ms is None:
            return None if ttl_ms is None else delivery[STORED_MS] + ttl_ms
        return delivery[STORED_MS] + (own_ms if ttl_ms is None else min(own_ms, ttl_ms))

    def _without_expired(self, shelf: Shelf, found: list[Delivery]) -> list[Delivery]:
        """Those of the messages that were taken that are still good; the others are dropped.

        What expires at once, but finds a consumer at once, is good.
        """
        now_ms = self._surroundings.clock.now_ms()
        late = [
            each for each in found
            if (due_ms := self._due_ms(each)) is not None
            and due_ms <= now_ms and (due_ms > each[STORED_MS] or now_ms > self._turn_ms)
        ]  # fmt: skip
        if not late:
            return found
        gone = {each[PLACE] for each in late}
        good = [each for each in found if each[PLACE] not in gone]
        try:
            self._drop(shelf, late, "expired")
        except UNWRITTEN:
            shelf.give_back(good, counted=False)
            raise
        return good

    def _expire(self) -> bool:
        """Drop what is too old at the head, and know when to look again.

        True if there is more of it.
        """
        now_ms = self._surroundings.clock.now_ms()
        if self._is_head_known and self.due_ms is not None and self.due_ms > now_ms:
            return False
        next_ms: int | None = None
        is_empty = True
        for shelf in self.shelves:
            late: list[Delivery] = []
            while (head := shelf.peek(cold_ok=self._cold_ok)) is not None:
                due_ms = self._due_ms(head)
                if due_ms is None or due_ms > now_ms:
                    is_empty = False
                    if due_ms is not None:
                        next_ms = due_ms if next_ms is None else min(next_ms, due_ms)
                    break
                if len(late) >= TURN_MAX:
                    self._drop(shelf, late, "expired")
                    return True
                late += shelf.take(1, 1)
            self._drop(shelf, late, "expired")
            if not self.rota.all:
                shelf.cool()
        if is_empty and self.terms.message_ttl_ms is None:
            self._may_expire = False
        self._surroundings.expire_at(self, next_ms)
        self._is_head_known = True
        return False

    def overdue(self, now_ms: int, default_ms: int) -> Iterator[Consumer]:
        """Consumers that have had a message for too long."""
        timeout_ms = self.terms.consumer_timeout_ms
        timeout_ms = default_ms if timeout_ms is None else timeout_ms
        if not timeout_ms:
            return
        told = set()
        for shelf in self.shelves:
            for handover in shelf.handovers():
                if handover.given_ms + timeout_ms > now_ms:
                    break
                consumer = handover.consumer
                if consumer is not None and consumer.is_open and consumer not in told:
                    told.add(consumer)
                    yield consumer

    def set_expires(self, expires_ms: int | None) -> None:
        """Let it end after so long without use; None: never."""
        self.expires_ms = expires_ms
        self.used()
        self._surroundings.watch_use(self)

    def used(self) -> None:
        """Somebody uses it."""
        self.used_ms = self._surroundings.clock.now_ms()

    # -- for the part it belongs to ------------------------------------------------------------

    def get(self) -> tuple[Shelf, Delivery] | None:
        """The next message for somebody who asks for one; `ColdError` if it is on disk only."""
        if self.passed:
            self.requeue(self.passed.taken(), counted=False)
        while True:
            shelf, found = self._take(1)
            self._cold_ok = False
            if not found:
                return None
            if self._may_expire:
                found = self._without_expired(shelf, found)
            if found:
                return shelf, found[0]

    def read_cold_next(self) -> None:
        """What has to be read from disk was read: the next look may touch it."""
        self._cold_ok = True

    def got(self, shelf: Shelf, delivery: Delivery, *, no_ack: bool) -> None:
        """A message that `get` gave is out, or done."""
        if no_ack:
            shelf.finish([delivery])
            self.acked += 1
        else:
            shelf.hold([delivery], Handover(None, self._surroundings.clock.now_ms()))
        if shelf.in_log:
            self._surroundings.changed(shelf)  # type: ignore[arg-type]
        self.delivered += 1
        self._account()

    def add(self, consumer: Consumer) -> None:
        """One more consumer."""
        if self.terms.single_active:
            consumer.is_active = not self.rota.all
        self.rota.add(consumer)
        self.passed.came(consumer)
        self.had_consumers = True
        for shelf in self.shelves:
            if isinstance(shelf, LogShelf):
                shelf.is_wanted = True
        self.wake()

    def remove(self, consumer: Consumer) -> bool:
        """A consumer less; what it has stays out. False if it was none."""
        if not self.rota.remove(consumer):
            return False
        consumer.close()
        self.passed.went(consumer)
        if not self.rota.all:
            if self.passed:
                self.requeue(self.passed.taken(), counted=False)
            self.used()
            for shelf in self.shelves:
                shelf.cool()
        self.wake()
        return True

    def purge(self) -> int:
        """Drop what is ready; how many messages that were."""
        count = len(self.passed)
        if self.passed:
            self.ack(self.passed.taken())
        for shelf in self.shelves:
            count += shelf.purge()
            if isinstance(shelf, LogShelf):
                self._surroundings.changed(shelf)
        self._account()
        return count

    def when_recorded(self, callback: WhenSafe) -> None:
        """Call back once what was said of its messages so far is in the log, as safe as any."""
        if self.topic:
            self._surroundings.when_recorded(self, callback)
        else:
            callback(None)

    def browse(self, skip: int = 0, count: int = 100) -> list[Delivery]:
        """Messages that are ready, from one on, without taking them; it may wait for the disk."""
        found = [each.delivery for each in self.passed][skip : skip + count]
        skip -= len(self.passed)
        for shelf in self._top_first:
            if len(found) >= count:
                break
            found += shelf.browse(max(0, skip), count - len(found))
            skip -= shelf.ready
        return found

    def end(self) -> None:
        """It is deleted."""
        self.is_deleted = True
        self.passed.taken()
        if not self.topic:
            for shelf in self.shelves:
                shelf.purge()
                shelf.out.clear()
                shelf.unacked_bytes = 0
            self._account()
