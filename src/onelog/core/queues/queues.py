"""The door to declared queues: declaring, consuming, getting, and what time does to them.

It is a part of the door of the broker: who asks is the first argument, and whether they may is
decided here. Queues are named to `access` as topics are: see `routing.names`.

    arguments     what a queue may be declared with
    declared      which durable ones there are
    queue         one of them: its ledgers, its consumers, its turn
    ledger        what is next, in flight, returned and done of it
    log_source    where its messages are: in the log
    memory_source or in memory
    recording     what is recorded of that
    dead_letters  what becomes of those that nobody wanted

Invariant: a queue that `find` finds can be routed to; one that is deleted has no consumers.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from onelog.config import BrokerConfig
from onelog.core.access import SELF, Access, Action, Principal
from onelog.core.catalog.topic_catalog import TopicCatalog
from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.cursors.reading import QueueReader
from onelog.core.cursors.unpacking import ColdError
from onelog.core.durable.deadlines import Deadlines
from onelog.core.durable.durability import WhenSafe
from onelog.core.durable.storage import Storage
from onelog.core.durable.waiting import Key
from onelog.core.queues.arguments import check_same
from onelog.core.queues.consumers import Consumer, ConsumerOptions, OnCancel, OnDeliver
from onelog.core.queues.dead_letters import Reason, dead_letter_of
from onelog.core.queues.declared import Declaration, DeclaredQueues
from onelog.core.queues.deliveries import POSITION, Delivery
from onelog.core.queues.delivery_loop import DeliveryLoop
from onelog.core.queues.ledger import Ledger
from onelog.core.queues.log_source import LogReader, content_of
from onelog.core.queues.memory_source import MemorySource
from onelog.core.queues.policies import Policies, Policy
from onelog.core.queues.queue import WorkQueue
from onelog.core.queues.recording import LedgerRecords
from onelog.core.routing.names import named_for_access, queue_of, topic_of
from onelog.core.routing.routing import Routing
from onelog.core.routing.targets import DeadLetter
from onelog.core.transactions.staged import Alongside
from onelog.errors import (
    AccessRefusedError,
    BrokerBusyError,
    MessageError,
    OnelogError,
    PreconditionFailedError,
    QueueNotFoundError,
    ReadOnlyQueueError,
    ResourceLockedError,
)
from onelog.message import NewMessage
from onelog.names import check_name, join_key

log = logging.getLogger(__name__)

QUEUES_MAX = 200_000
_SEEN_AT_ONCE = 1_000
_BEHIND_BYTES = 3 << 19
"""What queues may have to deliver before nothing more is read for them."""
_TROUBLE_MS, _HEAD_TICK_MS = 1_000, 10

OnGot = Callable[[Any, Delivery | None, WorkQueue, int, OnelogError | None], None]
"""Called with a token, the message, its queue, how many are left there, and what went wrong."""
OnDeleted = Callable[[WorkQueue, str], None]
Acks = Iterable[tuple[WorkQueue, Sequence[int]]]
"""Queues, and the places of messages that are done."""
_PRINTABLE = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "_")


@dataclass(eq=False)
class WorkQueues:
    """All declared queues of one broker."""

    _access: Access
    _storage: Storage
    _lease_storage: Storage
    _topics: Topics
    _catalog: TopicCatalog
    _routing: Routing
    _reader: QueueReader
    _config: Callable[[], BrokerConfig]

    def __post_init__(self) -> None:
        storage, runtime = self._storage, self._storage.runtime
        self._store, self._writer, self._tables = storage.store, storage.writer, storage.tables
        self.clock, self._schedule = runtime.clock, runtime.schedule
        self._call_soon = runtime.call_soon
        self.declared = DeclaredQueues()
        self.policies = Policies(
            self._access, self._tables, self._policies_changed, self._check_policy
        )
        self.ledgers = LedgerRecords(self._lease_storage)
        self._log_reader = LogReader(self._store, self._reader)
        self._queues: dict[tuple[str, str], WorkQueue] = {}
        self._owned: dict[Hashable, dict[WorkQueue, None]] = {}
        self._consumers: dict[Hashable, dict[Consumer, None]] = {}
        self._of_topic: dict[str, WorkQueue] = {}
        self._delivery_loop = DeliveryLoop(self._call_soon, self._catalog.counters, runtime.seconds)
        self.pend = self._delivery_loop.pend
        self._unseen: list[WorkQueue] = []
        self.memory_bytes = 0
        self.memory_is_full = self.memory_is_high = False
        self.on_alarm: list[Callable[[], None]] = []
        """Called when `memory_is_high` has changed: who can let publishers wait should do that."""
        self._heads: Deadlines[WorkQueue] = Deadlines(
            self.clock, self._schedule, self._heads_due, _HEAD_TICK_MS, 256
        )
        self._ends: Deadlines[WorkQueue] = Deadlines(self.clock, self._schedule, self._unused)
        self.on_declared: list[Callable[[WorkQueue], None]] = []
        self.on_deleted: list[OnDeleted] = []
        """Called with a queue that is gone, and why."""
        self._topics.on_change.append(self._topic_changed)
        self._routing.on_vhost_deleted.append(self._vhost_deleted)
        self._routing.follow_policies(self.policies.alternate)

    # -- life ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Everything is remembered: make the queues that are to be there.

        What waits in one that cannot be made, for it or its topic cannot be read, is kept for it.
        """
        for vhost in self._routing.vhosts(SELF):
            self._routing.policies_changed(vhost.name)
        for each in self.declared.all():
            queue = WorkQueue(self, each, each.limits())
            try:
                self._ensure_topic(queue)
                self._routing.add_queue(each.vhost, queue, is_shared=each.is_shared)
            except OnelogError as error:
                log.error("%s is left out: %s", queue.label, error)
                continue
            self._install(queue)
        kept = {id(ledger) for queue in self._queues.values() for ledger in queue.ledgers}
        lost = [
            ledger
            for ledger in self.ledgers.known.values()
            if id(ledger) not in kept and not self._is_aside(ledger.topic)
        ]
        if lost:
            self.ledgers.forget(lost)

    def close(self) -> None:
        """Record what is still to be recorded, and let nothing expire any more."""
        self.stop()
        self.ledgers.flush()

    def stop(self) -> None:
        """Let nothing happen by itself any more."""
        self._heads.close()
        self._ends.close()

    def _ensure_topic(self, queue: WorkQueue) -> int:
        """See to it that a durable queue's topic is there; how many queues that has."""
        needed = queue.levels + 1
        found = self._topics.get(queue.topic)
        if found is None:
            if self._topics.is_there(queue.topic):
                raise PreconditionFailedError(
                    f"{queue.label} has a topic whose settings cannot be read: make those anew"
                )
            if self._store.queue_table.by_topic.get(queue.topic):
                self._writer.delete_topic(queue.topic)  # What a crash has left of one before.
            found = self._topics.ensure(TopicConfig(queue.topic, needed, needed))
        return max(needed, found.queues)

    def _is_aside(self, topic: str) -> bool:
        """Whether there is a queue with this topic of which something cannot be read."""
        key = join_key(*queue_of(topic))
        is_topic_aside = self._topics.is_there(topic) and self._topics.get(topic) is None
        return is_topic_aside or self._tables.is_aside(self.declared.name, key)

    def _install(self, queue: WorkQueue) -> None:
        """Give a queue its ledgers, and make it known."""
        queue.set_limits(self.policies.limits(queue, queue.own_limits))
        ledgers: list[Ledger] = []
        if queue.topic and not queue.is_stream:
            for queue_id in range(self._ensure_topic(queue)):
                ledger = self.ledgers.get(queue.topic, queue_id)
                if ledger.attach(self._log_reader):
                    self.ledgers.record_soon(ledger)
                ledgers.append(ledger)
                self._writer.watch((queue.topic, queue_id), partial(queue.entered, ledger))
        elif not queue.topic:
            for _ in range(queue.levels + 1):
                ledger = Ledger()
                ledger.source = MemorySource()
                ledgers.append(ledger)
        queue.attach(ledgers)
        self._queues[queue.vhost, queue.name] = queue
        if queue.topic:
            self._of_topic[queue.topic] = queue
        if queue.exclusive:
            self._owned.setdefault(queue.owner, {})[queue] = None
        self.watch_use(queue)
        self.pend(queue)

    # -- declaring -----------------------------------------------------------------------------

    def _check(self, principal: Principal, action: Action, vhost: str, name: str) -> None:
        if not self._access.is_open:
            self._access.check(principal, action, ("queue", named_for_access(vhost, name)))

    def declare(
        self,
        principal: Principal,
        vhost: str,
        name: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        owner: Hashable = None,
    ) -> WorkQueue:
        """The queue of that name, made if it is not there; it has to be one like this.

        An exclusive queue is its owner's, and ends with it; without a name it gets one.
        """
        self._check(principal, "create", vhost, name or "amq.gen-")
        arguments = arguments or {}
        wanted = Declaration(vhost, name, durable, exclusive, auto_delete, arguments, owner)
        self._routing.check_dead_letters(principal, vhost, name or "amq.gen-", arguments)
        found = self._queues.get((vhost, name))
        if found is not None:
            self._check_like(found, wanted)
            found.used()
            self.settle(found)
            return found
        if not name:
            if arguments.get("x-queue-type", "classic") != "classic":
                raise PreconditionFailedError(
                    "Cannot declare a server-named queue for type "
                    f"rabbit_{arguments['x-queue-type']}_queue"
                )
            name = f"amq.gen-{self._storage.runtime.new_id()}"
            wanted = wanted._replace(name=name)
        check_name(name.translate(_PRINTABLE), "queue", PreconditionFailedError)
        limits = wanted.limits()
        if len(self._queues) >= QUEUES_MAX:
            raise BrokerBusyError(f"there are {len(self._queues)} queues, which is the limit")
        topic = topic_of(vhost, name)
        if self._topics.get(topic) is not None:
            # Also one in memory gets what publishers mean for the topic.
            self._access.check(principal, "consume", ("topic", topic))
            wanted = wanted._replace(is_shared=bool(wanted.topic))
        queue = WorkQueue(self, wanted, limits)
        self._routing.add_queue(vhost, queue, is_shared=wanted.is_shared)
        try:
            if queue.topic:
                self._ensure_topic(queue)
                self._tables.write([self.declared.change(wanted)])
            self._install(queue)
        except BaseException:
            self._routing.remove_queue(vhost, name)
            raise
        for listener in self.on_declared:
            listener(queue)
        return queue

    def _check_like(self, queue: WorkQueue, wanted: Declaration) -> None:
        self._check_owner(queue, wanted.owner, wanted.exclusive)
        for what, mine, its in (
            ("durable", wanted.durable, queue.durable),
            ("auto_delete", wanted.auto_delete, queue.auto_delete),
        ):
            if mine != its:
                raise PreconditionFailedError(
                    f"inequivalent arg '{what}' for {queue.label}: received "
                    f"'{str(mine).lower()}' but current is '{str(its).lower()}'"
                )
        check_same(queue.label, wanted.arguments, queue.arguments)

    def _check_owner(
        self, queue: WorkQueue, owner: Hashable, exclusive: bool | None = None
    ) -> None:
        is_like = exclusive is None or exclusive == queue.exclusive
        if not is_like or (queue.exclusive and queue.owner != owner):
            raise ResourceLockedError(
                f"cannot obtain exclusive access to locked {queue.label}. It could be "
                "originally declared on another connection or the exclusive property value does "
                "not match that of the original declaration."
            )

    def _find(self, vhost: str, name: str, owner: Hashable) -> WorkQueue:
        queue = self._queues.get((vhost, name))
        if queue is None:
            raise QueueNotFoundError(f"no queue '{name}' in vhost '{vhost}'")
        self._check_owner(queue, owner)
        return queue

    def find(
        self, principal: Principal, vhost: str, name: str, owner: Hashable = None
    ) -> WorkQueue:
        """The queue of that name, with all that was published to it so far."""
        self._check(principal, "describe", vhost, name)
        queue = self._find(vhost, name, owner)
        queue.used()
        self.settle(queue)
        return queue

    def queues(self, principal: Principal, vhost: str | None = None) -> list[WorkQueue]:
        """All queues, or those of a vhost, in the order of declaration."""
        found = [each for each in self._queues.values() if vhost in (None, each.vhost)]
        if self._access.is_open:
            return found
        may = partial(self._access.may, principal, "describe")
        return [each for each in found if may(("queue", named_for_access(each.vhost, each.name)))]

    def __len__(self) -> int:
        return len(self._queues)

    def has(self, vhost: str, name: str) -> bool:
        """Whether there is such a queue; to be told only who may know."""
        return (vhost, name) in self._queues

    def delete(
        self,
        principal: Principal,
        vhost: str,
        name: str,
        *,
        if_unused: bool = False,
        if_empty: bool = False,
        owner: Hashable = None,
    ) -> int:
        """Delete a queue; how many messages waited in it. There need not be one."""
        self._check(principal, "delete", vhost, name)
        queue = self._queues.get((vhost, name))
        if queue is None:
            return 0
        self._check_owner(queue, owner)
        self.settle(queue)
        if if_unused and queue.round_robin.all:
            raise PreconditionFailedError(f"{queue.label} in use")
        if if_empty and queue.ready:
            raise PreconditionFailedError(f"{queue.label} not empty")
        count = queue.ready
        self._delete(queue, "deleted")
        return count

    def _delete(self, queue: WorkQueue, reason: str, *, has_topic: bool = True) -> None:
        if queue.topic:
            self._forget_topic(queue, has_topic)
        del self._queues[queue.vhost, queue.name]
        self._routing.remove_queue(queue.vhost, queue.name)
        owned = self._owned.get(queue.owner)
        if owned is not None:
            owned.pop(queue, None)
            if not owned:
                del self._owned[queue.owner]
        self._delivery_loop.pending.pop(queue, None)
        queue.end()
        self.expire_at(queue, None)
        for consumer in queue.consumers:
            queue.round_robin.remove(consumer)
            self._close_consumer(consumer)
            consumer.cancelled(reason)
        for listener in self.on_deleted:
            listener(queue, reason)

    def _forget_topic(self, queue: WorkQueue, has_topic: bool) -> None:
        """A durable queue goes: so do its topic, and what is known of it. An error changes nothing.

        Whoever hears that the topic is gone must not find the queue any more.
        """
        del self._of_topic[queue.topic]
        removal = self.declared.removal(queue.vhost, queue.name)
        try:
            if has_topic and self._topics.get(queue.topic) is not None:
                self._catalog.delete(SELF, queue.topic, [removal])
            else:
                self._tables.write([removal])
        except OnelogError:
            if self.declared.has(queue.vhost, queue.name):
                self._of_topic[queue.topic] = queue
                raise
            log.exception("the messages of %s are still there", queue.label)
        for ledger in queue.ledgers:
            self._writer.watch((ledger.topic, ledger.queue_id), None)
        self.ledgers.forget(queue.ledgers)

    def purge(self, principal: Principal, vhost: str, name: str, owner: Hashable = None) -> int:
        """Drop the messages of a queue that wait in it; how many these were."""
        self._check(principal, "consume", vhost, name)
        queue = self._find(vhost, name, owner)
        self._check_consumable(queue)
        self.settle(queue)
        return queue.purge()

    def leaving(self, owner: Hashable) -> Iterator[None]:
        """A connection is closed: its consumers and its exclusive queues go with it, one by one."""
        yield from map(self.cancel, list(self._consumers.get(owner, ())))
        for queue in list(self._owned.get(owner, ())):
            self._delete(queue, "exclusive")
            yield

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        queue = self._of_topic.get(name)
        if queue is None:
            return
        if config is None:
            self._delete(queue, "deleted", has_topic=False)
        elif not queue.is_stream and config.queues > len(queue.ledgers):
            log.info("%s has %d queues now", queue.label, config.queues)
            self._more_ledgers(queue, config.queues)

    def _more_ledgers(self, queue: WorkQueue, count: int) -> None:
        """Somebody has given the topic more queues: those belong to the queue, too."""
        if len(queue.ledgers) == 1 and (queue.unacked or queue.consumers):
            return  # Its places would have other names; after a restart it has them.
        ledgers: list[Ledger] = list(queue.ledgers)
        for queue_id in range(len(ledgers), count):
            ledger = self.ledgers.get(queue.topic, queue_id)
            ledger.attach(self._log_reader)
            ledgers.append(ledger)
            self._writer.watch((queue.topic, queue_id), partial(queue.entered, ledger))
        queue.attach(ledgers)

    def _check_policy(self, principal: Principal, policy: Policy) -> None:
        """They must be allowed what a policy does to queues, as if they declared these so."""
        arguments = {f"x-{name}": value for name, value in policy.definition.items()}
        for queue in self.policies.matching(policy, self._queues.values()):
            self._routing.check_dead_letters(principal, queue.vhost, queue.name, arguments)

    def _policies_changed(self, vhost: str) -> None:
        self._routing.policies_changed(vhost)
        for queue in [each for each in self._queues.values() if each.vhost == vhost]:
            limits = self.policies.limits(queue, queue.own_limits)
            if limits != queue.limits:
                queue.set_limits(limits)
                self._routing.queue_changed(vhost, queue.name)
                self.watch_use(queue)
                self.pend(queue)

    def _vhost_deleted(self, vhost: str) -> None:
        self.policies.vhost_deleted(vhost)
        for queue in [each for each in self._queues.values() if each.vhost == vhost]:
            self._delete(queue, "vhost")

    # -- consuming -----------------------------------------------------------------------------

    @staticmethod
    def _check_consumable(queue: WorkQueue) -> None:
        if queue.is_stream:
            raise ReadOnlyQueueError(
                f"{queue.label} is a stream: it is read by position, and keeps its messages"
            )

    def consume(
        self,
        principal: Principal,
        vhost: str,
        name: str,
        on_deliver: OnDeliver,
        on_cancel: OnCancel,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """Have the messages of a queue delivered, from the end of this tick on.

        Of all of them, or of those that it `wants`: the others are for others.
        """
        self._check(principal, "consume", vhost, name)
        owner = options.get("owner")
        queue = self._find(vhost, name, owner)
        self._check_consumable(queue)
        others = queue.round_robin.all
        if others and (options.get("exclusive") or others[0].exclusive):
            raise AccessRefusedError(f"{queue.label} in exclusive use")
        consumer = Consumer(queue, on_deliver, on_cancel, **options)
        if owner is not None:
            self._consumers.setdefault(owner, {})[consumer] = None
        queue.add(consumer)
        queue.used()
        return consumer

    def cancel(self, consumer: Consumer) -> None:
        """Deliver nothing more to a consumer. What it has is still to be acknowledged."""
        queue = consumer.queue
        self._close_consumer(consumer)
        if queue.remove(consumer) and queue.auto_delete and not queue.round_robin.all:
            self._delete(queue, "auto-delete")

    def _close_consumer(self, consumer: Consumer) -> None:
        consumer.close()
        mine = self._consumers.get(consumer.owner)
        if mine is not None:
            mine.pop(consumer, None)
            if not mine:
                del self._consumers[consumer.owner]

    def get(
        self,
        principal: Principal,
        vhost: str,
        name: str,
        on_got: OnGot,
        token: Any = None,
        *,
        no_ack: bool = False,
        owner: Hashable = None,
    ) -> None:
        """One message of a queue, if there is one: told at once, or when a worker has read it."""
        self._check(principal, "consume", vhost, name)
        queue = self._find(vhost, name, owner)
        self._check_consumable(queue)
        if queue.limits.single_active:
            raise ResourceLockedError(
                f"cannot obtain access to locked {queue.label}. basic.get operations are not "
                "supported by queues with single active consumer"
            )
        queue.used()
        self.settle(queue)
        self._get(queue, no_ack, on_got, token)

    def _get(self, queue: WorkQueue, no_ack: bool, on_got: OnGot, token: Any) -> None:
        if queue.is_deleted:
            gone = QueueNotFoundError(f"no queue '{queue.name}' in vhost '{queue.vhost}'")
            on_got(token, None, queue, 0, gone)
            return
        try:
            got = queue.get()
        except ColdError as cold:

            def again() -> None:
                queue.read_cold_next()
                self._get(queue, no_ack, on_got, token)

            self.warm(cold.ranges, again)
            return
        except OnelogError as error:
            on_got(token, None, queue, 0, error)
            return
        if got is None:
            on_got(token, None, queue, 0, None)
            return
        ledger, delivery = got
        queue.got(ledger, delivery, no_ack=no_ack)
        on_got(token, delivery, queue, queue.ready, None)

    # -- turns ---------------------------------------------------------------------------------

    def is_behind(self) -> bool:
        """Whether queues that wait for their turn have a lot to deliver."""
        at_hand = self._log_reader.hot_bytes + self.memory_bytes
        return at_hand > _BEHIND_BYTES and bool(
            self._delivery_loop.pending or self._writer.messages
        )

    def settle(self, queue: WorkQueue) -> None:
        """Append what is on its way to the log, and deliver what a queue has for its consumers."""
        if self._writer.messages:
            self._writer.write_now(())
        if queue.is_pending:
            self._delivery_loop.run(queue)

    def confirmed(self, touched: set[Key] | None) -> None:
        """Replicas have confirmed what was written to these queues of topics, or to many."""
        if touched is None:
            for queue in self._of_topic.values():
                queue.wake()
            return
        for topic, _ in touched:
            if (found := self._of_topic.get(topic)) is not None:
                found.wake()

    # -- what queues ask for -------------------------------------------------------------------

    def changed(self, ledger: Ledger) -> None:
        """Record what changed on a ledger, soon."""
        self.ledgers.record_soon(ledger)

    def when_recorded(self, queue: WorkQueue, callback: WhenSafe) -> None:
        """Call back once what changed so far is in the log, as safe as configured."""
        self.ledgers.when_safe(callback)

    def warm(self, ranges: Sequence[tuple[int, int]], then: Callable[[], None]) -> None:
        """Have a worker read from disk, and go on."""
        self._storage.cold_reads.prepare(self._reader, ranges, then)

    def later(self, wait_ms: int, then: Callable[[], None]) -> None:
        """Call back after a while."""
        self._schedule(wait_ms, then)

    def stored(self, queue: WorkQueue, bytes_more: int) -> None:
        """A queue in memory takes so many bytes more, or less."""
        self.memory_bytes += bytes_more
        share = self.memory_bytes * 100 // max(1, self._config().memory_queue_bytes_max)
        if (share >= 80 - 10 * self.memory_is_high) != self.memory_is_high:
            self.memory_is_high = not self.memory_is_high
            for notify in self.on_alarm:
                if self.memory_is_high:
                    notify()  # What publishers have sent meanwhile would find no room.
                else:
                    self._call_soon(notify)
        if (share >= 100 - 10 * self.memory_is_full) != self.memory_is_full:
            is_full = self.memory_is_full = not self.memory_is_full
            log.warning(
                "queues in memory have %d MiB, and %s",
                self.memory_bytes >> 20,
                "take no more messages" if is_full else "take messages again",
            )
            for each in self._queues.values():
                if not each.topic:
                    self._routing.queue_changed(each.vhost, each.name)

    def gone_by(self, queue: WorkQueue, consumer: Consumer) -> None:
        """A consumer cannot be delivered to."""
        self.cancel(consumer)
        consumer.cancelled("error")

    # -- dead letters --------------------------------------------------------------------------

    def bury(
        self, queue: WorkQueue, ledger: Ledger, found: Sequence[Delivery], reason: Reason
    ) -> None:
        """Send messages to the dead letters, and record that they are done, in one append."""
        try:
            self._bury(queue, ledger, found, reason)
        except MessageError as error:
            if len(found) > 1:
                for each in found:
                    self.bury(queue, ledger, [each], reason)
                return
            log.error("a message of %s is no dead letter: %s", queue.label, error)

    def _bury(
        self, queue: WorkQueue, ledger: Ledger, found: Sequence[Delivery], reason: Reason
    ) -> None:
        dead_letters = self._dead_letters(queue, found, reason)
        records: list[NewMessage] = []
        if ledger.in_log:
            records = self.ledgers.records({ledger: [each[POSITION] for each in found]})
        self._routing.deliver(dead_letters, records)
        if ledger.in_log:
            ledger.recorded()

    def _dead_letters(
        self, queue: WorkQueue, found: Sequence[Delivery], reason: Reason
    ) -> list[DeadLetter]:
        limits, now_ms = queue.limits, self.clock.now_ms()
        exchange = limits.dead_letter_exchange
        assert exchange is not None
        contents = (content_of(each, queue.name) for each in found)
        return [
            dead_letter_of(
                content, queue.vhost, queue.name, reason, exchange, limits.dead_letter_key, now_ms
            )
            for content in contents
            if content is not None
        ]

    def refused(self, queue: WorkQueue, body: bytes, form: int) -> None:
        """Send a message to the dead letters that a queue does not take."""
        if queue.limits.dead_letter_exchange is not None:
            refused = (0, 0, body, form, self.clock.now_ms(), 0)
            self._routing.deliver(self._dead_letters(queue, [refused], "maxlen"), [])

    # -- time ----------------------------------------------------------------------------------

    def expire_at(self, queue: WorkQueue, due_ms: int | None) -> None:
        """Give a queue a turn at that time."""
        if queue.due_ms != due_ms:
            if queue.due_ms is not None:
                self._heads.remove(queue, queue.due_ms)
            queue.due_ms = due_ms
            if due_ms is not None:
                self._heads.add(queue, due_ms)

    def _heads_due(self, due: list[WorkQueue]) -> None:
        for queue in due:
            queue.due_ms = None
            if not queue.is_deleted:
                queue.wake()

    def watch_use(self, queue: WorkQueue) -> None:
        """Delete a queue when nobody has used it for so long as it says."""
        if queue.expires_ms is not None:
            self._ends.add(queue, queue.used_ms + queue.expires_ms)

    def _unused(self, due: list[WorkQueue]) -> None:
        now_ms = self.clock.now_ms()
        for queue in due:
            if queue.is_deleted or queue.expires_ms is None:
                continue
            if queue.round_robin.all:
                queue.used()
            if queue.used_ms + queue.expires_ms > now_ms:
                self.watch_use(queue)
                continue
            try:
                self._delete(queue, "expired")
            except OnelogError as error:
                log.error("%s is not deleted yet: %s", queue.label, error)
                self._ends.add(queue, now_ms + _TROUBLE_MS)

    def acks_alongside(self, acks: Callable[[], Acks], written: Callable[[], None]) -> Alongside:
        """Acknowledgements for the append of a commit (`Routing.commit`).

        `acks` tells of queues and the places that are done; `written` has to acknowledge them.
        """
        return Alongside(lambda: self._ack_records(acks()), written)

    def _ack_records(self, acks: Acks) -> list[NewMessage]:
        positions: dict[Ledger, list[int]] = {}
        for queue, some in acks:
            if not queue.is_deleted:
                for position in some:
                    ledger = queue.ledger_of(position)
                    if ledger.in_log:
                        positions.setdefault(ledger, []).append(position)
        return self.ledgers.records(positions)

    # -- from time to time ---------------------------------------------------------------------

    def look_after(self) -> bool:
        """End what takes too long, and record what has grown; True if there is more to look at."""
        if not self._unseen:
            self._unseen = list(self._queues.values())
        some, self._unseen = self._unseen[-_SEEN_AT_ONCE:], self._unseen[:-_SEEN_AT_ONCE]
        now_ms, default_ms = self.clock.now_ms(), self._config().consumer_timeout_ms
        for queue in some:
            for consumer in list(queue.overdue(now_ms, default_ms)):
                log.warning("a consumer of %s has not acknowledged in time", queue.label)
                self.cancel(consumer)
                consumer.cancelled("timeout")
            for ledger in queue.ledgers:
                if ledger.wants_record:
                    self.ledgers.record_soon(ledger)
            if queue.round_robin.all and queue.ready:
                queue.wake()  # A transaction of Kafka's may have ended, of which nobody tells.
        return bool(self._unseen)

    # -- for retention -------------------------------------------------------------------------

    def queue_of_topic(self, topic: str) -> WorkQueue | None:
        """The declared queue that a topic is, if it is one."""
        return self._of_topic.get(topic)

    def live_from(self, topic: str, queue_id: int = 0) -> int | None:
        """The first offset of a queue of a topic that is not done; None if it is nobody's."""
        queue = self._of_topic.get(topic)
        return None if queue is None or queue.is_stream else queue.live_from(queue_id)

    def durable_queues(self) -> Iterator[tuple[str, int, int]]:
        """Every queue of a topic that belongs to a declared one, and its first offset not done."""
        for ledger in list(self.ledgers.known.values()):
            yield ledger.topic, ledger.queue_id, ledger.cursor
