"""What there is and where: topics, groups, the ends of queues, and single messages.

Every question says who asks. Nothing here changes anything but `delete_before`.
"""

from typing import TYPE_CHECKING

from onelog.core.access import Principal, not_permitted
from onelog.core.assembly import Assembly
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.routing.names import named_for_access
from onelog.core.transactions.in_place import Producer
from onelog.errors import NotPermittedError, OffsetOutOfRangeError
from onelog.message import Message
from onelog.names import OWN_PREFIX

if TYPE_CHECKING:
    from onelog.core.cursors.times import Dated
    from onelog.core.queues.retention_holds import RetentionHold


class Queries(Assembly):
    """The part of a broker that is asked."""

    def _check_consumer(self, principal: Principal, group: str | None, topic: str) -> None:
        """They must be allowed the group, and the topic; a group's retry topic is its own."""
        if self._guarded or topic.startswith(OWN_PREFIX):
            if group is not None:
                self.access.check(principal, "consume", ("group", group))
            if group is None or topic != self.naming.retry_topic(group):
                self.access.check(principal, "consume", ("topic", topic))

    def topic(self, principal: Principal, name: str) -> TopicConfig:
        """A topic's settings, or `TopicNotFoundError`."""
        if self._guarded:
            self.access.check(principal, "describe", ("topic", name))
        return self.topics.require(name)

    def consumed_topic(self, principal: Principal, group: str, topic: str) -> TopicConfig:
        """The settings of a topic that a group consumes; its retry topic is its own."""
        self._check_consumer(principal, group, topic)
        return self.topics.require(topic)

    def find_topic(self, principal: Principal, name: str) -> TopicConfig | None:
        """A topic's settings, if it exists."""
        if self._guarded:
            self.access.check(principal, "describe", ("topic", name))
        return self.topics.get(name)

    def group(self, principal: Principal, name: str) -> GroupConfig:
        """A consumer group's settings; created on first use where that is allowed."""
        self.access.check(principal, "describe", ("group", name))
        return self.groups.require(name)

    def find_group(self, principal: Principal, name: str) -> GroupConfig | None:
        """A consumer group's settings, if it exists."""
        if self._guarded:
            self.access.check(principal, "describe", ("group", name))
        return self.groups.get(name)

    def min_offset(self, principal: Principal, topic: str, queue_id: int) -> int:
        self.access.check(principal, "describe", ("topic", topic))
        return self.store.min_offset(topic, queue_id)

    def delete_before(self, principal: Principal, topic: str, queue_id: int, offset: int) -> int:
        """Delete the first messages of a queue, -1 for all; where it begins then."""
        self.access.check(principal, "delete", ("topic", topic))
        return self.starts.delete_before(topic, queue_id, offset)

    def producers_of(
        self, principal: Principal, topic: str, queue_id: int
    ) -> list[tuple[int, Producer, int]]:
        """Who numbers batches in a queue, and where their transactions begin, -1 if none does."""
        self.access.check(principal, "describe", ("topic", topic))
        return self.batch_producers.of(topic, queue_id)

    def require_current(self) -> None:
        """`NotMasterError` if what is known here of positions may be old."""
        self.durability.require_current()

    def first_offset_behind(
        self, principal: Principal, topic: str, queue_id: int, log_offset: int
    ) -> int:
        """The first message of a queue that lies there in the log or behind; or the queue's end."""
        self.access.check(principal, "describe", ("topic", topic))
        low = int(self.store.min_offset(topic, queue_id))
        high = int(self.store.max_offset(topic, queue_id))
        while low < high:
            middle = (low + high) // 2
            entry = self.store.entry_at(topic, queue_id, middle)
            if entry is None or entry[0] < log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def max_offset(
        self, principal: Principal, topic: str, queue_id: int, *, rough: bool = False
    ) -> int:
        """Where a queue ends; `rough`: where it ended a moment ago will do."""
        self.access.check(principal, "describe", ("topic", topic))
        if not rough:
            self.durability.require_current()
        return self.store.max_offset(topic, queue_id)

    def offset_by_time(
        self, principal: Principal, topic: str, queue_id: int, time_ms: int, upper: bool = False
    ) -> int:
        """Where in a queue a time is; for a worker to ask."""
        self.access.check(principal, "describe", ("topic", topic))
        self.durability.require_current()
        found = self.store.offset_by_time(topic, queue_id, time_ms, upper)
        left = self.compaction.compacted.get((topic, queue_id))
        # What is left was stored again since: a time before its end is where the queue begins.
        if left is not None and found <= left.end:
            return self.store.min_offset(topic, queue_id)
        return found

    def first_message_since(
        self, principal: Principal, topic: str, queue_id: int, time_ms: int
    ) -> "Dated | None":
        """The first message of a queue that was made then or later; for a worker to ask."""
        from onelog.core.cursors import times  # What reads other forms, few need.

        self.access.check(principal, "describe", ("topic", topic))
        left = self.compaction.compacted.get((topic, queue_id))
        return times.first_since(self.store, topic, queue_id, time_ms, left)

    def latest_message(self, principal: Principal, topic: str, queue_id: int) -> "Dated | None":
        """The message of a queue that was made last; for a worker to ask."""
        from onelog.core.cursors import times

        self.access.check(principal, "describe", ("topic", topic))
        left = self.compaction.compacted.get((topic, queue_id))
        return times.latest(self.store, topic, queue_id, left)

    def earliest_time(self, principal: Principal, topic: str, queue_id: int) -> int:
        """When the oldest message of a queue was stored; -1 if it has none."""
        self.access.check(principal, "describe", ("topic", topic))
        start = self.store.min_offset(topic, queue_id)
        stored_ms = self.store.store_time(topic, queue_id, start)
        return -1 if stored_ms is None else stored_ms

    def find_by_key(
        self, principal: Principal, topic: str, key: str, begin_ms: int, end_ms: int, count_max: int
    ) -> list[Message]:
        """Messages with a key or unique key that were stored in a time, newest first."""
        self.access.check(principal, "consume", ("topic", topic))
        found = self.store.find_by_key(topic, key, begin_ms, end_ms, count_max)
        return [self.store.message_at(at) for at in found]

    def message_at(self, principal: Principal, log_offset: int) -> Message:
        """The message whose record starts at a log offset."""
        return self._seen_message(principal, log_offset)

    def _seen_message(
        self, principal: Principal, log_offset: int, group: str | None = None
    ) -> Message:
        """The same, if they may consume it; they are not told which topic it would be of."""
        message = self._confirmed_message(log_offset)
        try:
            self._check_consumer(principal, group, message.topic)
        except NotPermittedError as error:
            address = f"what is at log offset {log_offset}"
            # A name for it here would keep it, and all that it knows, until the collector comes.
            raise not_permitted(principal, "consume", error.kind, address) from None
        return message

    def _confirmed_message(self, log_offset: int) -> Message:
        """What replicas have not confirmed is nobody's to see: it may come to nothing."""
        if log_offset >= self.store.confirmed:
            raise OffsetOutOfRangeError(f"no message is at log offset {log_offset}")
        return self.store.message_at(log_offset)

    def message_by_id(self, principal: Principal, message_id: str) -> Message:
        """The message with an offset message id."""
        return self._seen_message(principal, self.store.message_by_id(message_id).log_offset)

    def is_warm(self, log_offset: int) -> bool:
        """Whether the record at a log offset, if there is one, can be read without waiting."""
        return self.store.is_record_warm(log_offset)

    def log_holds(self, principal: Principal) -> "list[RetentionHold]":
        """The declared queues that the log has to be kept for, however old it is."""
        self.access.check(principal, "describe", ("broker", self.config.name))
        holds = self.retention_holds.holds()
        may = self.access.may
        return [
            pin
            for pin in holds
            if may(principal, "describe", ("queue", named_for_access(pin.vhost, pin.queue)))
        ]

    @property
    def is_follower(self) -> bool:
        """Whether another broker writes the log."""
        return self.follows

    @property
    def log_end(self) -> int:
        return self.store.log_end

    @property
    def last_append_ms(self) -> int:
        """When the last message was stored."""
        return self.store.last_append_ms
