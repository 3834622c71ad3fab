"""The broker: the only door for gateways, with every verb that they have, over one store.

The parts do what is asked; here it is decided whether who asks may have it. Whatever is done for a
peer, or told to one, has `principal` as its first argument. No method blocks, none is a coroutine:
an answer that has to wait is given later, by a callback.
"""

import logging
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onelog.core.access import Principal
from onelog.core.catalog.topics import TopicConfig
from onelog.core.cursors.fetch import Cursor, Limits, OnFetched, ViewReader
from onelog.core.cursors.forms import named_by
from onelog.core.cursors.unpacking import ColdError
from onelog.core.durable.durability import WhenSafe
from onelog.core.durable.waiting import OnEnd, Wait
from onelog.core.durable.writer import OnStored
from onelog.core.filters.tags import Subscription
from onelog.core.looking import Queries
from onelog.core.membership.assignment import RequestMode
from onelog.core.membership.locks import Queue
from onelog.core.membership.members import PULLED_MS, Client, ConsumerData, LiveGroup
from onelog.core.publish import Intent
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.core.queues.lending import OnLeased
from onelog.core.transactions.half import NOT_OPEN
from onelog.core.transactions.in_place import Stamp
from onelog.core.transactions.prepared_batches import OnCommitted
from onelog.errors import (
    GroupNotFoundError,
    GroupPermissionError,
    InvalidGroupError,
    InvalidQueueError,
    OffsetOutOfRangeError,
    OnelogError,
    SubscriptionNotFoundError,
    SubscriptionOutdatedError,
    TransactionNotFoundError,
)
from onelog.message import Appended, Message, NewMessage, NewRun
from onelog.record.forms.neutral import Neutral
from onelog.store.outcomes import Aborted
from onelog.store.reader import Fetched

if TYPE_CHECKING:
    from onelog.core.transactions.transactional_ids import InPlaceTransaction

log = logging.getLogger(__name__)

_UNGUESSABLE = re.compile(r"(spark-batch-)?[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}")
"""Names of queries that are random: Spark's own."""
UNIT_SUBSCRIBED_FLAG = 2
"""The sys flag of the retry topic of a group in unit mode."""


class Broker(Queries):
    """One broker. Gateways use its methods, `admin`, `hooks` and `config`; parts are its own."""

    # -- for who runs it -----------------------------------------------------------------------

    def join_cluster(
        self,
        node_id: int,
        require_coordinator: Callable[[str], None],
        partitions: Callable[[TopicConfig], int],
        tell_others: "Callable[[InPlaceTransaction], bool]",
    ) -> None:
        """Other brokers look after some groups and transactional ids, and have a part in what is
        shared out, and in transactions: how to know of that, and to tell them of an end."""
        self.coordinator.guard, self.coordinator.count = require_coordinator, partitions
        self.in_place.guard, self.in_place.tell_others = require_coordinator, tell_others
        self.batch_producers.first_id = node_id << 40

    def forget_groups_after(self, retention_ms: int) -> None:
        """How long positions of Kafka groups without members are kept."""
        self.coordinator.uses.retention_ms = retention_ms

    def take_batches_of(self, bytes_max: int) -> None:
        """How large batches of Kafka's producers may be, in topics that say nothing else."""
        self.publisher.batch_bytes_max = bytes_max

    def serve_view(self, topic: str, read: ViewReader) -> None:
        """Have fetches from a topic that nobody has answered by its gateway."""
        self.fetches.views[topic] = read

    def tell_arrival(self, topic: str, queue_id: int) -> None:
        """There is something new in a view."""
        self.waiting.arrived(topic, queue_id)

    def writes_refused(self) -> str:
        """Why nothing can be published for now; empty if it can."""
        refusal = self.store.refusal
        return "" if refusal is None else str(refusal)

    # -- sending -------------------------------------------------------------------------------

    def publish(
        self,
        principal: Principal,
        message: NewMessage,
        on_stored: OnStored,
        token: Any = None,
        intent: Intent | None = None,
    ) -> None:
        """Store a message with this tick's others; see `Publisher.publish`."""
        if self._guarded:
            senders = self._senders
            if principal is not senders.last or message[0] not in senders.scopes:
                self._check_sender(principal, message[0])
        self.publisher.publish(message, on_stored, token, intent)

    def _check_sender(self, principal: Principal, topic: str) -> None:
        """They must be allowed to send there; that they are, is known from then on."""
        if not self._senders.turn_to(principal, topic):
            self.access.check(principal, "publish", ("topic", topic))
            self._senders.remember(principal, topic)

    def publish_many(
        self, principal: Principal, run: NewRun, on_stored: OnStored, token: Any = None
    ) -> None:
        """Store messages of one queue side by side; see `Publisher.publish_many`."""
        if self._guarded:
            self._check_sender(principal, run.topic)
        self.publisher.publish_many(run, on_stored, token)

    def publish_batch(
        self,
        principal: Principal,
        message: NewMessage,
        stamp: Stamp | None,
        on_stored: OnStored,
        token: Any = None,
    ) -> None:
        """Store a batch of another form than RocketMQ's; see `BatchProducers.publish`."""
        if self._guarded:
            self._check_sender(principal, message.topic)
        self.batch_producers.publish(message, stamp, on_stored, token)

    def require_replicas(self, principal: Principal, needed: int) -> None:
        """`ReplicasMissingError` if there are too few for a message that has to be confirmed."""
        self.durability.require_replicas(needed)

    def new_producer_id(self, principal: Principal) -> int:
        """An id for a producer that numbers its batches."""
        self.access.check(principal, "publish", ("broker", self.config.name))
        return self.batch_producers.new_id()

    def publish_now(self, principal: Principal, message: NewMessage) -> Appended | None:
        """Store a plain message at once; None if that cannot be done for it, or not now.

        It is to be accounted for (`account`) in the same tick.
        """
        if self._guarded:
            self._check_sender(principal, message.topic)
        return self.writer.write_alone(message) if self.publisher.is_plain(message) else None

    def account(self, stored: Sequence[NewMessage], appended: Sequence[Appended]) -> None:
        """Count what `publish_now` stored, and tell those who wait for it."""
        self.writer.account(stored, appended)

    def admit(self, principal: Principal, message: NewMessage) -> NewMessage:
        """The message as `publish` would store it, or what is wrong with it."""
        self.access.check(principal, "publish", ("topic", message.topic))
        return self.publisher.admitted(message)

    def check_sizes(self, body_bytes: int, properties_bytes: int) -> None:
        """`MessageTooLargeError` or `PropertiesTooLargeError` if a message may not be so large."""
        self.publisher.check_sizes(body_bytes, properties_bytes)

    def create_topic_for_send(
        self, principal: Principal, topic: str, default_topic: str, queues: int, sys_flag: int = 0
    ) -> TopicConfig:
        """The topic of a message that could not be sent for want of it, made if that is allowed."""
        self.access.check(principal, "create", ("topic", topic))
        return self.topics.create_for_send(topic, default_topic, queues, sys_flag)

    def send_back(
        self,
        principal: Principal,
        group: str,
        log_offset: int,
        delay_level: int,
        on_stored: OnStored,
        token: Any = None,
        *,
        retries_max: int | None = None,
        unit_mode: bool = False,
        unique_key: str = "",
    ) -> None:
        """Deliver a message to the group again later, or put it with the dead letters.

        Where a record holds many messages of another form, the unique key says which.
        """
        self.access.check(principal, "consume", ("group", group))
        self.groups.require(group)
        record = self._seen_message(principal, log_offset, group)
        try:
            message = named_by(record, unique_key, self.reader.unpacking)
        except ColdError as cold:
            later = partial(
                self._send_back_again,
                principal,
                group,
                log_offset,
                delay_level,
                on_stored,
                token,
                retries_max=retries_max,
                unit_mode=unit_mode,
                unique_key=unique_key,
            )
            self.prepare(cold, later)
            return
        sys_flag = UNIT_SUBSCRIBED_FLAG if unit_mode else 0
        again = self.retry.again(message, group, delay_level, retries_max, sys_flag)
        if again is None:
            on_stored(token, None, None)
            return
        self.writer.put(self.publisher.postponed(*again), on_stored, token)
        self.stats.sent_back.add((message.topic, group), 1, message.size)

    def _send_back_again(
        self,
        principal: Principal,
        group: str,
        log_offset: int,
        delay_level: int,
        on_stored: OnStored,
        token: Any,
        **terms: Any,
    ) -> None:
        """`send_back` of what is unpacked now; what goes wrong is told."""
        try:
            self.send_back(principal, group, log_offset, delay_level, on_stored, token, **terms)
        except OnelogError as error:
            on_stored(token, None, error)

    def find_scheduled(self, principal: Principal, topic: str, unique_key: str) -> list[Message]:
        """Timed messages with a unique key that were meant for a topic; for a worker to ask."""
        self.access.check(principal, "publish", ("topic", topic))
        return self.timers.find_scheduled(unique_key)

    def recall(
        self,
        principal: Principal,
        topic: str,
        unique_key: str,
        on_stored: OnStored,
        token: Any = None,
        *,
        group: str = "",
    ) -> bool:
        """Take a timed message back; `RecallError` if it is due, False if none is scheduled."""
        self.access.check(principal, "publish", ("topic", topic))
        return self.timers.recall(topic, unique_key, on_stored, token, group=group)

    # -- transactions --------------------------------------------------------------------------

    def commit_half(
        self,
        principal: Principal,
        group: str,
        half_offset: int,
        log_offset: int,
        on_stored: OnStored,
        token: Any = None,
        *,
        checked: bool = False,
        intent_of: Callable[[NewMessage], Intent | None] = lambda message: None,
    ) -> None:
        """Deliver a half message, with the intent that is told then; see `Transactions.commit`."""
        self._check_half(principal, group, half_offset, log_offset)

        def becomes(message: NewMessage) -> NewMessage:
            intent = intent_of(message)
            return message if intent is None else self.publisher.postponed(message, intent)

        self.transactions.commit(
            group, half_offset, log_offset, on_stored, token, checked=checked, becomes=becomes
        )

    def roll_back_half(
        self,
        principal: Principal,
        group: str,
        half_offset: int,
        log_offset: int,
        on_stored: OnStored,
        token: Any = None,
        *,
        checked: bool = False,
    ) -> None:
        """Forget a half message; see `Transactions.roll_back`."""
        self._check_half(principal, group, half_offset, log_offset)
        self.transactions.roll_back(
            group, half_offset, log_offset, on_stored, token, checked=checked
        )

    def _check_half(
        self, principal: Principal, group: str, half_offset: int, log_offset: int
    ) -> None:
        """They must be allowed to send where the half message goes; else there is none for them."""
        self.access.check(principal, "publish", ("group", group))
        if self._guarded:
            topic = self.transactions.topic_of(half_offset, log_offset)
            if topic is not None and not self.access.may(principal, "publish", ("topic", topic)):
                raise TransactionNotFoundError(NOT_OPEN.format(half_offset))

    def begin(self, principal: Principal, owner: Hashable, name: str = "") -> None:
        """Begin a staged transaction of an owner; see `StagedTransactions`."""
        self.access.check(principal, "publish", ("broker", self.config.name))
        self.staged.begin(owner, name)

    def stage(
        self, principal: Principal, owner: Hashable, name: str, messages: Sequence[NewMessage]
    ) -> None:
        """Add messages to a staged transaction."""
        for topic in {message.topic for message in messages}:
            self.access.check(principal, "publish", ("topic", topic))
        self.staged.stage(owner, name, messages)

    def commit(
        self,
        principal: Principal,
        owner: Hashable,
        name: str,
        on_committed: OnStored,
        token: Any = None,
    ) -> None:
        """Store all that a transaction has staged."""
        self.access.check(principal, "publish", ("broker", self.config.name))
        self.staged.commit(owner, name, on_committed, token)

    def abort(self, principal: Principal, owner: Hashable, name: str = "") -> None:
        """Forget all that a transaction has staged."""
        self.access.check(principal, "publish", ("broker", self.config.name))
        self.staged.abort(owner, name)

    def stage_batch(
        self,
        principal: Principal,
        query: str,
        batch: int,
        attempt: str,
        run: NewRun,
        on_stored: OnStored,
        token: Any = None,
        *,
        one_off: bool = False,
    ) -> None:
        """Store a part of a batch that a query prepares; see `PreparedBatches.stage`."""
        self.access.check(principal, "publish", ("topic", run.topic))
        self._check_query(principal, query)
        self.prepared_batches.stage(query, batch, attempt, run, on_stored, token, one_off=one_off)

    def commit_batch(
        self,
        principal: Principal,
        query: str,
        batch: int,
        parts: Sequence[int],
        on_committed: OnCommitted,
        token: Any = None,
        *,
        note: str = "",
        one_off: bool = False,
    ) -> None:
        """Deliver a prepared batch; see `PreparedBatches.commit`."""
        self._check_query(principal, query)
        self.prepared_batches.commit(
            query, batch, parts, on_committed, token, note=note, one_off=one_off
        )

    def last_batch(self, principal: Principal, query: str) -> tuple[int | None, str]:
        """The last batch that a query has committed, if any, and what it noted with it."""
        self._check_query(principal, query)
        return self.prepared_batches.last_batch(query), self.prepared_batches.note(query)

    def _check_query(self, principal: Principal, query: str) -> None:
        """Batches are of a query as transactions are of a transactional id: who numbers them can
        make those of others too late. A name that nobody can guess is nobody else's."""
        self.access.check(principal, "publish", ("broker", self.config.name))
        if not _UNGUESSABLE.fullmatch(query):
            self.access.check(principal, "publish", ("transaction", query))

    # -- fetching ------------------------------------------------------------------------------

    def subscription(
        self,
        principal: Principal,
        group: str,
        topic: str,
        channel: Hashable = None,
        version: int = 0,
    ) -> Subscription:
        """What a consumer's pull is filtered by; it must be at least as young as the consumer's."""
        self._check_consumer(principal, group, topic)
        config = self.groups.require(group)
        self.topics.require(topic)
        found = self.members.subscription(group, topic, channel)
        if found is None:
            raise SubscriptionNotFoundError(
                f"the consumer's subscription not exist: group {group}, topic {topic}"
            )
        if found.version < version:
            raise SubscriptionOutdatedError("the consumer's subscription not latest")
        live = self.members.group(group)
        broadcasts = live is not None and live.message_model == "BROADCASTING"
        if broadcasts and not config.consume_broadcast_enable:
            raise GroupPermissionError(
                f"the consumer group[{group}] can not consume by broadcast way"
            )
        return found

    def fetch(
        self,
        principal: Principal,
        cursors: Sequence[Cursor],
        limits: Limits,
        wait_ms: int,
        on_fetched: OnFetched,
        owner: Hashable = None,
        token: Any = None,
    ) -> None:
        """The next messages at some cursors, now or when there are enough; see `Fetches.fetch`."""
        if self._guarded:
            for cursor in cursors:
                self._check_consumer(principal, cursor.group, cursor.topic)
        if owner is not None and cursors:
            group, topic, queue_id = cursors[0][:3]
            if group is not None and self.members.pulled(group, topic, queue_id, owner):
                wait_ms = min(wait_ms, PULLED_MS)
        self.fetches.fetch(cursors, limits, wait_ms, on_fetched, owner, token)

    def suggested_broker(
        self, principal: Principal, group: str, fetched: Fetched, far_bytes: int
    ) -> int:
        """The id of that broker of the set which a group should read from next."""
        if self._guarded:
            self.access.check(principal, "consume", ("group", group))
        return self.fetches.suggested_broker(group, fetched, far_bytes)

    def messages_in(self, record: Message, begin: int = 0) -> Iterator[tuple[int, Neutral]]:
        """The messages in a record that was fetched as stored; see `Unpacking.messages`."""
        return self.reader.unpacking.messages(record, begin)

    @property
    def messages_passed_over(self) -> int:
        """How many messages readers of other protocols did not get, because they are none."""
        return self.reader.unpacking.passed_over

    def prepare(self, cold: ColdError, then: Callable[[], None]) -> None:
        """Have a worker do what a `ColdError` says, and go on."""
        self.cold_reads.prepare(self.reader, cold.ranges, then)

    def in_line(self, find: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Have a worker look into what takes memory unpacked; see `Warming.in_line`."""
        self.cold_reads.in_line(find, then)

    def settled(
        self, principal: Principal, topic: str, queue_id: int, begin: int, end: int
    ) -> tuple[int, list[Aborted]]:
        """Up to where transactions in a queue have ended, and which of them failed in a stretch."""
        if self._guarded:
            self.access.check(principal, "consume", ("topic", topic))
        producers = self.batch_producers
        stable = producers.stable_end(topic, queue_id, self.store.max_offset(topic, queue_id))
        left = self.compaction.compacted.get((topic, queue_id))
        if left is not None:
            begin = max(begin, left.end)  # What was compacted is of no transaction.
        return stable, producers.aborted_between(topic, queue_id, begin, end)

    def stable_ends(self, principal: Principal, topic: str) -> dict[int, int]:
        """Of each queue with a transaction that has not ended, where the first one begins."""
        if self._guarded:
            self.access.check(principal, "describe", ("topic", topic))
        found = {}
        for queue_id in range(self.topics.require(topic).queues):
            end = int(self.store.max_offset(topic, queue_id))
            stable = self.batch_producers.stable_end(topic, queue_id, end)
            if stable < end:
                found[queue_id] = stable
        return found

    def may_follow(
        self, principal: Principal, group: str, topic: str, queue_id: int, offset: int
    ) -> bool:
        """Whether the next message to come to a queue, at `offset`, may be handed to the group."""
        self._check_consumer(principal, group, topic)
        config, settings = self.groups.get(group), self.topics.get(topic)
        return (
            config is not None
            and config.consume_enable
            and settings is not None
            and settings.readable
            and 0 <= queue_id < settings.read_queues
            and not self.offsets.is_reset(group, topic, queue_id)
            and self.store.max_offset(topic, queue_id) == offset
        )

    def followed(self, group: str, topic: str, queue_id: int, next_offset: int, size: int) -> None:
        """Count a message that somebody who follows a queue was given."""
        self.stats.got(group, topic, 1, size)
        self.offsets.pulled(group, topic, queue_id, next_offset)

    def watch(
        self,
        principal: Principal,
        topic: str,
        queue_id: int,
        wait_ms: int,
        woken: OnEnd,
        ready: Callable[[], bool],
    ) -> Wait | None:
        """Wait until something has come to a queue and `ready` agrees, or the time is up.

        The answer is for `unwatch`; None if too many wait already.
        """
        if self._guarded:
            self.access.check(principal, "consume", ("topic", topic))
        return self.waiting.wait(((topic, queue_id),), wait_ms, woken, ready=ready)

    def unwatch(self, wait: Wait) -> None:
        self.waiting.cancel(wait)

    # -- leasing -------------------------------------------------------------------------------

    def lease(
        self,
        principal: Principal,
        request: LeaseRequest,
        wait_ms: int,
        on_leased: OnLeased,
        owner: Hashable = None,
        token: Any = None,
    ) -> None:
        """Messages of some queues for a while, now or when there are some; see `Lending.lease`."""
        self._require_served()
        if self._guarded:
            self._check_lease(principal, request)
        self.lending.lease(request, wait_ms, on_leased, owner, token)

    def delete_light_queue(self, principal: Principal, name: str) -> None:
        """Forget a light queue, and every group's position and leases in it."""
        self.access.check(principal, "delete", ("topic", name))
        self.tables.write(self.offsets.removal(topic=name))
        self.leases.forget_topic(name)
        self.writer.delete_topic(name)
        self.stats.forget(name)

    def _require_served(self) -> None:
        """`NotMasterError` if a master is there who looks after groups."""
        if self._for_master is not None:
            raise self._for_master

    def _check_lease(self, principal: Principal, request: LeaseRequest) -> None:
        """They must be allowed the group, and all topics but those where it tries again."""
        group, topics = request.group, {topic for topic, _ in request.keys}
        self.access.check(principal, "consume", ("group", group))
        for topic in topics - {self.naming.lease_retry_topic(group, topic) for topic in topics}:
            self._check_consumer(principal, group, topic)

    def unread(self, principal: Principal, request: LeaseRequest) -> tuple[list[Cursor], int]:
        """Where the messages begin that a request would be given next, and how many there are."""
        self._check_lease(principal, request)
        store, leases = self.store, self.leases
        cursors = []
        left = 0
        for topic, queue_id in request.places():
            left += leases.available(request, topic, queue_id)
            start, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            offset = max(start, min(leases.position(request.group, topic, queue_id), end))
            cursors.append(Cursor(None, topic, queue_id, offset))
        return cursors, left

    def held(self, principal: Principal, group: str, topic: str, queue_id: int) -> int:
        """How many requests of a group for a queue, or for all queues, are held."""
        self._check_consumer(principal, group, topic)
        return self.lending.held(group, topic, queue_id)

    def acknowledge(
        self, principal: Principal, group: str, topic: str, queue_id: int, offset: int, handle: int
    ) -> None:
        """A leased message is done; `LeaseNotFoundError` if it is not out under that handle."""
        self._require_served()
        if self._guarded:
            self.access.check(principal, "consume", ("group", group))
        self.leases.acknowledge(group, topic, queue_id, offset, handle)

    def acknowledge_some(
        self,
        principal: Principal,
        group: str,
        topic: str,
        queue_id: int,
        offsets: Iterable[int],
        handle: int,
    ) -> int:
        """Those messages are done that are out under that handle; how many these were."""
        self._require_served()
        if self._guarded:
            self.access.check(principal, "consume", ("group", group))
        return self.leases.acknowledge_some(group, topic, queue_id, offsets, handle)

    def extend(
        self,
        principal: Principal,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        handle: int,
        invisible_ms: int,
    ) -> int:
        """Lease a message for another time from now on, under the handle that is the answer."""
        self._require_served()
        self.access.check(principal, "consume", ("group", group))
        return self.leases.extend(group, topic, queue_id, offset, handle, invisible_ms)

    def release(
        self,
        principal: Principal,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        handle: int,
        *,
        after_ms: int = 0,
        to_back: bool = False,
    ) -> None:
        """Give a message back, for now or for later; see `Leases.release`."""
        self._require_served()
        self.access.check(principal, "consume", ("group", group))
        self.leases.release(
            group, topic, queue_id, offset, handle, after_ms=after_ms, to_back=to_back
        )

    def reject(
        self, principal: Principal, group: str, topic: str, queue_id: int, offset: int, handle: int
    ) -> None:
        """A message is useless: it goes where its policy sends such."""
        self._require_served()
        self.access.check(principal, "consume", ("group", group))
        self.leases.reject(group, topic, queue_id, offset, handle)

    def when_leases_safe(self, callback: WhenSafe) -> None:
        """Call back once what was said about leases so far is as safe as configured."""
        self.leases.when_safe(callback)

    # -- positions -----------------------------------------------------------------------------

    def commit_offset(
        self, principal: Principal, group: str, topic: str, queue_id: int, offset: int
    ) -> None:
        """A group has consumed everything below `offset`. It must exist; a commit makes none."""
        self._require_served()
        self._check_consumer(principal, group, topic)
        if self.groups.get(group) is None:
            raise GroupNotFoundError(f"Group {group} not exist!")
        settings = self.topics.require(topic)
        if not 0 <= queue_id < settings.queues:
            raise InvalidQueueError(f"queueId[{queue_id}] is illegal, topic:[{topic}]")
        if offset < 0:
            raise OffsetOutOfRangeError(f"offset {offset} cannot be committed")
        self.offsets.commit(group, topic, queue_id, offset)

    def query_offset(
        self,
        principal: Principal,
        group: str,
        topic: str,
        queue_id: int,
        *,
        zero_if_missing: bool = True,
    ) -> int | None:
        """Where a starting consumer goes on; None if it has to decide that itself."""
        self._check_consumer(principal, group, topic)
        self.durability.require_current()
        return self.offsets.query(group, topic, queue_id, zero_if_missing=zero_if_missing)

    # -- clients -------------------------------------------------------------------------------

    def heartbeat(
        self,
        principal: Principal,
        client: Client,
        consumers: Sequence[ConsumerData],
        producer_groups: Sequence[str],
    ) -> bool:
        """A client is alive, in these groups. True if a consumer group changed by that."""
        self._check_member(principal, [data.group for data in consumers], producer_groups)
        changed = False
        for data in consumers:
            try:
                group = self.groups.require(data.group)
            except (GroupNotFoundError, InvalidGroupError) as error:
                log.warning("heartbeat of %r: %s", client.client_id, error)
                continue
            ordered = any(self._is_ordered(sub.topic) for sub in data.subscriptions)
            sys_flag = UNIT_SUBSCRIBED_FLAG if data.unit_mode else 0
            queues = group.retry_queues
            retry = self.naming.retry_topic(group.name)
            self.topics.ensure(TopicConfig(retry, queues, queues, order=ordered, sys_flag=sys_flag))
            changed |= self.members.consumer_seen(client, data, notify=group.notify_members)
        for name in producer_groups:
            self.members.producer_seen(client, name)
        return changed

    def _check_member(
        self, principal: Principal, consumer_groups: Iterable[str], producer_groups: Iterable[str]
    ) -> None:
        for group in consumer_groups:
            self.access.check(principal, "consume", ("group", group))
        for group in producer_groups:
            self.access.check(principal, "publish", ("group", group))

    def _is_ordered(self, topic: str) -> bool:
        config = self.topics.get(topic)
        return config is not None and config.order

    def refresh_membership(self, principal: Principal, client: Client, group: str) -> bool:
        """A client is alive, as it was; False if the consumer group does not know it."""
        self.access.check(principal, "consume", ("group", group))
        return self.members.refresh_consumer(client, group)

    def unregister(
        self,
        principal: Principal,
        channel: Hashable,
        consumer_group: str | None,
        producer_group: str | None,
    ) -> None:
        """A client leaves its groups."""
        self._check_member(
            principal, filter(None, [consumer_group]), filter(None, [producer_group])
        )
        if consumer_group:
            group = self.groups.get(consumer_group)
            notify = group is None or group.notify_members
            self.members.consumer_left(channel, consumer_group, notify=notify)
        if producer_group:
            self.members.producer_left(channel, producer_group)

    def channel_closed(self, channel: Hashable) -> None:
        """A connection is gone, and with it everything that hung on it."""
        self.pending_reads.owner_gone(channel)
        self.staged.owner_gone(channel)
        self.routing.owner_gone(channel)
        self.workqueues.owner_gone(channel)
        self.members.channel_closed(channel)

    def live_group(self, principal: Principal, group: str) -> LiveGroup | None:
        """A group's live members and how they consume; None if there are none."""
        self.access.check(principal, "describe", ("group", group))
        return self.members.group(group)

    def find_client(self, principal: Principal, client_id: str) -> Client | None:
        """A live client by its id: a producer, or one that is only known to consume."""
        self.access.check(principal, "describe", ("broker", self.config.name))
        member = self.members.producer_by_id(client_id)
        for group in self.members.live_groups():
            member = member or group.find(client_id)
        return None if member is None else member.client

    def lock(
        self, principal: Principal, group: str, client_id: str, queues: Iterable[Queue]
    ) -> list[Queue]:
        """Give queues to one member of a group for itself; those that it has then."""
        self._require_served()
        self.access.check(principal, "consume", ("group", group))
        return self.locks.lock(group, client_id, queues)

    def unlock(
        self, principal: Principal, group: str, client_id: str, queues: Iterable[Queue]
    ) -> None:
        """Take queues back from a member."""
        self.access.check(principal, "consume", ("group", group))
        self.locks.unlock(group, client_id, queues)

    def request_mode(self, principal: Principal, group: str, topic: str) -> RequestMode:
        """How a group shall consume a topic."""
        self.access.check(principal, "consume", ("group", group))
        return self.request_modes.of(group, topic)
