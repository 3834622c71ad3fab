"""The way in: what clients send is checked, and goes to the parts that store it.

Each method says who asks, and asks whether they may.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onelog.core.access import Principal
from onelog.core.cursors.forms import named_by
from onelog.core.cursors.unpacking import ColdError
from onelog.core.durable.durability import WhenSafe
from onelog.core.durable.writer import OnStored
from onelog.core.membership.group_membership import UNIT_SUBSCRIBED_FLAG
from onelog.core.publish import Intent
from onelog.core.transactions.in_place import Stamp
from onelog.errors import OnelogError
from onelog.message import Appended, Message, NewMessage, NewRun

if TYPE_CHECKING:
    from onelog.core.assembly import Assembly
    from onelog.core.catalog.topic_catalog import TopicCatalog


class Sending:
    """`Broker.publish`."""

    def __init__(self, core: "Assembly", topics: "TopicCatalog") -> None:
        self._access = core.access
        self._senders = core.access.senders
        self._broker_name = core.config.name
        self._publisher = core.publisher
        self._batch_producers = core.batch_producers
        self._durability = core.durability
        self._writer = core.writer
        self._timers = core.timers
        self._retry = core.retry
        self._groups = core.groups
        self._reader = core.reader
        self._cold_reads = core.cold_reads
        self._store = core.store
        self._stats = core.stats
        self._seen_message = topics.seen_message
        self.routing = core.routing
        self.schedules = core.schedules
        self.on_stored = core.writer.stored
        """Called with everything that was stored, and where."""

    def send(
        self,
        principal: Principal,
        message: NewMessage,
        on_stored: OnStored,
        token: Any = None,
        intent: Intent | None = None,
    ) -> None:
        """Store a message with this tick's others; see `Publisher.publish`."""
        if not self._access.is_open:
            senders = self._senders
            if principal is not senders.last or message[0] not in senders.scopes:
                self._check_sender(principal, message[0])
        self._publisher.publish(message, on_stored, token, intent)

    def _check_sender(self, principal: Principal, topic: str) -> None:
        """They must be allowed to send there; that they are, is known from then on."""
        if not self._senders.turn_to(principal, topic):
            self._access.check(principal, "publish", ("topic", topic))
            self._senders.remember(principal, topic)

    def send_run(
        self, principal: Principal, run: NewRun, on_stored: OnStored, token: Any = None
    ) -> None:
        """Store messages of one queue side by side; see `Publisher.publish_many`."""
        if not self._access.is_open:
            self._check_sender(principal, run.topic)
        self._publisher.publish_many(run, on_stored, token)

    def send_batch(
        self,
        principal: Principal,
        message: NewMessage,
        stamp: Stamp | None,
        on_stored: OnStored,
        token: Any = None,
    ) -> None:
        """Store a batch of another form than RocketMQ's; see `BatchProducers.publish`."""
        if not self._access.is_open:
            self._check_sender(principal, message.topic)
        self._batch_producers.publish(message, stamp, on_stored, token)

    def send_now(self, principal: Principal, message: NewMessage) -> Appended | None:
        """Store a plain message at once; None if that cannot be done for it, or not now.

        It is to be accounted for (`account`) in the same tick.
        """
        if not self._access.is_open:
            self._check_sender(principal, message.topic)
        return self._writer.write_alone(message) if self._publisher.is_plain(message) else None

    def account(self, stored: Sequence[NewMessage], appended: Sequence[Appended]) -> None:
        """Count what `publish_now` stored, and tell those who wait for it."""
        self._writer.account(stored, appended)

    def admit(self, principal: Principal, message: NewMessage) -> NewMessage:
        """The message as `publish` would store it, or what is wrong with it."""
        self._access.check(principal, "publish", ("topic", message.topic))
        return self._publisher.admitted(message)

    def check_sizes(self, body_bytes: int, properties_bytes: int) -> None:
        """`MessageTooLargeError` or `PropertiesTooLargeError` if a message may not be so large."""
        self._publisher.check_sizes(body_bytes, properties_bytes)

    def require_replicas(self, principal: Principal, needed: int) -> None:
        """`ReplicasMissingError` if there are too few for a message that has to be confirmed."""
        self._durability.require_replicas(needed)

    def new_producer_id(self, principal: Principal) -> int:
        """An id for a producer that numbers its batches."""
        self._access.check(principal, "publish", ("broker", self._broker_name))
        return self._batch_producers.new_id()

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
        self._access.check(principal, "consume", ("group", group))
        self._groups.require(group)
        record = self._seen_message(principal, log_offset, group)
        try:
            message = named_by(record, unique_key, self._reader.unpacking)
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
            self._cold_reads.prepare(self._reader, cold.ranges, later)
            return
        sys_flag = UNIT_SUBSCRIBED_FLAG if unit_mode else 0
        again = self._retry.again(message, group, delay_level, retries_max, sys_flag)
        if again is None:
            on_stored(token, None, None)
            return
        self._writer.put(self._publisher.postponed(*again), on_stored, token)
        self._stats.sent_back.add((message.topic, group), 1, message.size)

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
        self._access.check(principal, "publish", ("topic", topic))
        return self._timers.find_scheduled(unique_key)

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
        self._access.check(principal, "publish", ("topic", topic))
        return self._timers.recall(topic, unique_key, on_stored, token, group=group)

    def when_durable(self, callback: WhenSafe) -> None:
        """Call back once everything written so far is as safe as configured."""
        self._durability.when_safe(self._store.log_end, callback)

    def set_batch_bytes_max(self, bytes_max: int) -> None:
        """How large batches of Kafka's producers may be, in topics that say nothing else."""
        self._publisher.batch_bytes_max = bytes_max

    def refusal(self) -> str:
        """Why nothing can be published for now; empty if it can."""
        refusal = self._store.refusal
        return "" if refusal is None else str(refusal)
