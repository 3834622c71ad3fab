"""Topics, as clients see them: what there is, how it is changed, where queues end, what they hold.

Each method says who asks, and asks whether they may. What goes to the disk is for a worker.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from onelog.core.access import Principal, not_permitted
from onelog.core.catalog.topics import TopicConfig
from onelog.core.durable.tables import Change, DataVersion
from onelog.errors import NotPermittedError, OffsetOutOfRangeError
from onelog.message import Message
from onelog.names import LIGHT_QUEUE_PREFIX, OWN_PREFIX

if TYPE_CHECKING:
    from onelog.core.assembly import Assembly
    from onelog.core.cursors.times import Dated


class QueueStats(NamedTuple):
    """What a queue holds; `last_ms` is when its last message was stored, 0 if there is none."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_ms: int


class TopicStats(NamedTuple):
    """What a topic holds, and how fast it grows."""

    topic: str
    queues: list[QueueStats]
    put_per_second: float


class TopicCatalog:
    """`Broker.topics`."""

    def __init__(self, core: "Assembly") -> None:
        self._access = core.access
        self._broker_name = core.config.name
        self._naming = core.naming
        self._topics = core.topics
        self._offsets = core.offsets
        self._starts = core.starts
        self._store = core.store
        self._writer = core.writer
        self._stats = self.counters = core.stats
        self._durability = core.durability
        self._compaction = core.compaction
        self.placements = core.placements
        self.schemas = core.schemas
        """What the bodies of topics are, for who looks at them."""
        self.retained = core.retained
        self.mqtt_forwarding = core.mqtt_forwarding
        self.on_change = core.topics.on_change
        """Called with a topic that was created, changed or deleted (then with None)."""

    def require(self, principal: Principal, name: str) -> TopicConfig:
        """A topic's settings, or `TopicNotFoundError`."""
        if not self._access.is_open:
            self._access.check(principal, "describe", ("topic", name))
        return self._topics.require(name)

    def find(self, principal: Principal, name: str) -> TopicConfig | None:
        """A topic's settings, if it exists."""
        if not self._access.is_open:
            self._access.check(principal, "describe", ("topic", name))
        return self._topics.get(name)

    def consumed(self, principal: Principal, group: str, topic: str) -> TopicConfig:
        """The settings of a topic that a group consumes; its retry topic is its own."""
        if not self._access.is_open or topic.startswith(OWN_PREFIX):
            self._access.check_consumer(principal, group, topic, self._naming)
        return self._topics.require(topic)

    def all(self, principal: Principal) -> tuple[DataVersion, list[TopicConfig]]:
        """Every topic, in the order of creation, and the version of the whole set."""
        self._access.check(principal, "describe", ("broker", self._broker_name))
        return self._topics.version, self._access.seen(principal, "topic", self._topics.all())

    def is_system(self, topic: str) -> bool:
        """Whether a name is one of the broker's own."""
        return self._topics.is_system(topic)

    def system_names(self, principal: Principal) -> list[str]:
        """The topics that are the broker's own, also those that are created on demand only."""
        self._access.check(principal, "describe", ("broker", self._broker_name))
        topics = self._topics
        names = {config.name for config in topics.all() if topics.is_system(config.name)}
        return sorted(topics.system_names | names)

    def unused(self, principal: Principal) -> list[str]:
        """The topics that do not exist any more, but have queues.

        The broker's own topics, and light queues, have queues without having settings.
        """
        self._access.check(principal, "describe", ("broker", "names"))
        kept = (OWN_PREFIX, self._topics.naming.reserved_prefix, LIGHT_QUEUE_PREFIX)
        return [
            topic
            for topic in sorted(self._store.queue_table.by_topic)
            if self._topics.get(topic) is None and not topic.startswith(kept)
        ]

    def stats(self, principal: Principal, topic: str) -> TopicStats:
        """Every queue of a topic, the empty ones too."""
        self._access.check(principal, "describe", ("topic", topic))
        config = self._topics.require(topic)
        queues = []
        for queue_id in range(config.queues):
            end = self._store.max_offset(topic, queue_id)
            last_ms = self.store_time(topic, queue_id, end - 1)
            queues.append(
                QueueStats(queue_id, self._store.min_offset(topic, queue_id), end, last_ms)
            )
        return TopicStats(topic, queues, self._stats.put_rate(topic))

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored; 0 if there is none."""
        if offset < 0:
            return 0
        return self._store.store_time(topic, queue_id, offset) or 0

    # -- changing ---------------------------------------------------------------------------------

    def create(self, principal: Principal, config: TopicConfig) -> None:
        """Create a topic, or change its settings."""
        self._access.check(principal, "create", ("topic", config.name))
        self._topics.put(config)

    def create_for_send(
        self, principal: Principal, topic: str, default_topic: str, queues: int, sys_flag: int = 0
    ) -> TopicConfig:
        """The topic of a message that could not be sent for want of it, made if that is allowed."""
        self._access.check(principal, "create", ("topic", topic))
        return self._topics.create_for_send(topic, default_topic, queues, sys_flag)

    def delete(self, principal: Principal, topic: str, also: Sequence[Change] = ()) -> None:
        """Forget a topic, every group's position in it, and its queues; and make these changes."""
        self._access.check(principal, "delete", ("topic", topic))
        self._topics.delete(topic, [*self._offsets.removal(topic=topic), *also])
        self._writer.delete_topic(topic)
        self._stats.forget(topic)

    def delete_queues(self, principal: Principal, topic: str) -> None:
        """Remove the queues of a topic that does not exist any more."""
        self._access.check(principal, "delete", ("topic", topic))
        self._writer.delete_topic(topic)

    def delete_before(self, principal: Principal, topic: str, queue_id: int, offset: int) -> int:
        """Delete the first messages of a queue, -1 for all; where it begins then."""
        self._access.check(principal, "delete", ("topic", topic))
        return self._starts.delete_before(topic, queue_id, offset)

    # -- queues -----------------------------------------------------------------------------------

    def min_offset(self, principal: Principal, topic: str, queue_id: int) -> int:
        if not self._access.is_open:
            self._access.check(principal, "describe", ("topic", topic))
        return self._store.min_offset(topic, queue_id)

    def max_offset(
        self, principal: Principal, topic: str, queue_id: int, *, rough: bool = False
    ) -> int:
        """Where a queue ends; `rough`: where it ended a moment ago will do."""
        self._access.check(principal, "describe", ("topic", topic))
        if not rough:
            self._durability.require_current()
        return self._store.max_offset(topic, queue_id)

    def offset_by_time(
        self, principal: Principal, topic: str, queue_id: int, time_ms: int, upper: bool = False
    ) -> int:
        """Where in a queue a time is; for a worker to ask."""
        self._access.check(principal, "describe", ("topic", topic))
        self._durability.require_current()
        found = self._store.offset_by_time(topic, queue_id, time_ms, upper)
        left = self._compaction.compacted.get((topic, queue_id))
        # What is left was stored again since: a time before its end is where the queue begins.
        if left is not None and found <= left.end:
            return self._store.min_offset(topic, queue_id)
        return found

    def first_offset_behind(
        self, principal: Principal, topic: str, queue_id: int, log_offset: int
    ) -> int:
        """The first message of a queue that lies there in the log or behind; or the queue's end."""
        self._access.check(principal, "describe", ("topic", topic))
        low = int(self._store.min_offset(topic, queue_id))
        high = int(self._store.max_offset(topic, queue_id))
        while low < high:
            middle = (low + high) // 2
            entry = self._store.entry_at(topic, queue_id, middle)
            if entry is None or entry[0] < log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def first_message_since(
        self, principal: Principal, topic: str, queue_id: int, time_ms: int
    ) -> "Dated | None":
        """The first message of a queue that was made then or later; for a worker to ask."""
        from onelog.core.cursors import times  # What reads other forms, few need.

        self._access.check(principal, "describe", ("topic", topic))
        left = self._compaction.compacted.get((topic, queue_id))
        return times.first_since(self._store, topic, queue_id, time_ms, left)

    def latest_message(self, principal: Principal, topic: str, queue_id: int) -> "Dated | None":
        """The message of a queue that was made last; for a worker to ask."""
        from onelog.core.cursors import times

        self._access.check(principal, "describe", ("topic", topic))
        left = self._compaction.compacted.get((topic, queue_id))
        return times.latest(self._store, topic, queue_id, left)

    def earliest_time(self, principal: Principal, topic: str, queue_id: int) -> int:
        """When the oldest message of a queue was stored; -1 if it has none."""
        self._access.check(principal, "describe", ("topic", topic))
        start = self._store.min_offset(topic, queue_id)
        stored_ms = self._store.store_time(topic, queue_id, start)
        return -1 if stored_ms is None else stored_ms

    def require_current(self) -> None:
        """`NotMasterError` if what is known here of positions may be old."""
        self._durability.require_current()

    # -- messages ---------------------------------------------------------------------------------

    def find_by_key(
        self, principal: Principal, topic: str, key: str, begin_ms: int, end_ms: int, count_max: int
    ) -> list[Message]:
        """Messages with a key or unique key that were stored in a time, newest first."""
        self._access.check(principal, "consume", ("topic", topic))
        found = self._store.find_by_key(topic, key, begin_ms, end_ms, count_max)
        return [self._store.message_at(at) for at in found]

    def message_at(self, principal: Principal, log_offset: int) -> Message:
        """The message whose record starts at a log offset."""
        return self.seen_message(principal, log_offset)

    def message_by_id(self, principal: Principal, message_id: str) -> Message:
        """The message with an offset message id."""
        return self.seen_message(principal, self._store.message_by_id(message_id).log_offset)

    def is_warm(self, log_offset: int) -> bool:
        """Whether the record at a log offset, if there is one, can be read without waiting."""
        return self._store.is_record_warm(log_offset)

    def seen_message(
        self, principal: Principal, log_offset: int, group: str | None = None
    ) -> Message:
        """The same, if they may consume it; they are not told which topic it would be of."""
        message = self._confirmed_message(log_offset)
        try:
            self._access.check_consumer(principal, group, message.topic, self._naming)
        except NotPermittedError as error:
            address = f"what is at log offset {log_offset}"
            # A name for it here would keep it, and all that it knows, until the collector comes.
            raise not_permitted(principal, "consume", error.kind, address) from None
        return message

    def _confirmed_message(self, log_offset: int) -> Message:
        """What replicas have not confirmed is nobody's to see: it may come to nothing."""
        if log_offset >= self._store.confirmed:
            raise OffsetOutOfRangeError(f"no message is at log offset {log_offset}")
        return self._store.message_at(log_offset)
