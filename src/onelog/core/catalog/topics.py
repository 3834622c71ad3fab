"""Topics: which there are, how many queues they have, and who may use them how.

Topics that the broker itself needs are added on each start (`settings`); no files come with them.

Topics have texts beside their settings, for as long as they live:

table     "placements", "schemas": {topic: text}, "kafka_settings": {what they are of: text}
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from onelog.config import BrokerConfig
from onelog.core.catalog.names import Naming
from onelog.core.catalog.settings import Settings
from onelog.core.durable.tables import (
    LEASES_TOPIC,
    STAGED_TOPIC,
    Change,
    Tables,
    Versions,
    in_parts,
)
from onelog.errors import (
    InvalidTopicError,
    SystemTopicError,
    TopicNotFoundError,
    TopicPermissionError,
)
from onelog.message import QUEUE_ID_MAX
from onelog.names import (
    CHECKED_OUT_TOPIC,
    COMPACTED_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    OWN_PREFIX,
    SCHEDULE_TOPIC,
    TABLES_TOPIC,
    TIMER_TOPIC,
    VIEW_TOPICS,
    check_name,
)

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
PERM_READ_WRITE = PERM_READ | PERM_WRITE
_PERM_MAX = 15
_FOR_EVER_MS = 36_500 * 86_400_000

OWN_TOPICS = frozenset((TABLES_TOPIC, LEASES_TOPIC, STAGED_TOPIC, COMPACTED_TOPIC))
WAITING_TOPICS = frozenset(
    (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECKED_OUT_TOPIC)
)
"""Where messages wait for something; only the broker writes there."""

CLEANUP_POLICY = "kafka.cleanup.policy"
"""The attribute that says what becomes of old messages: compact, delete, or both; else delete.
RocketMQ's own, "cleanup.policy", is COMPACTION or DELETE."""
COMPACT, DELETE = "compact", "delete"
MAX_MESSAGE_BYTES = "max.message.bytes"
"""The attribute that says how large a batch of Kafka's producers may be, whatever the broker's own
limit for messages is."""

FilterType = Literal["SINGLE_TAG", "MULTI_TAG"]


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings. `perm` is a sum of PERM bits; the defaults are RocketMQ's."""

    name: str
    read_queues: int = 16
    write_queues: int = 16
    perm: int = PERM_READ_WRITE
    filter_type: FilterType = "SINGLE_TAG"
    order: bool = False
    sys_flag: int = 0
    attributes: dict[str, str] = field(default_factory=dict)
    created_ms: int = field(default=0, compare=False)
    """When it came into being; a topic that is made again has another time. 0: nobody knows."""

    @property
    def readable(self) -> bool:
        """Whether consumers may pull."""
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        """Whether producers may send."""
        return bool(self.perm & PERM_WRITE)

    @property
    def cleanup(self) -> tuple[str, ...]:
        """What becomes of old messages: nothing, if it is empty."""
        named = self.attributes.get(CLEANUP_POLICY)
        if named is None:
            return (COMPACT if self.attributes.get("cleanup.policy") == "COMPACTION" else DELETE,)
        return tuple(named.split(",")) if named else ()

    @property
    def retention_ms(self) -> int | None:
        """The topic's own retention time, if it has one.

        That is "reserve.time", in hours, or Kafka's "retention.ms", of which -1 is for ever; so is
        an empty cleanup policy.
        """
        if not self.cleanup:
            return _FOR_EVER_MS
        found = None
        hours = self.attributes.get("reserve.time", "")
        if hours.isdecimal() and int(hours) > 0:
            found = int(hours) * 3_600_000
        time_ms = self.attributes.get("retention.ms", "")
        if time_ms == "-1":
            found = _FOR_EVER_MS
        elif time_ms.isdecimal() and int(time_ms) > 0:
            found = min(int(time_ms), _FOR_EVER_MS)
        return found

    @property
    def queues(self) -> int:
        """How many queues there may be messages in."""
        return max(self.read_queues, self.write_queues)


class Topics(Settings[TopicConfig]):
    """The table of topics."""

    name = "topics"
    what = "topic"
    kind = TopicConfig

    def __init__(
        self, tables: Tables, versions: Versions, naming: Naming, config: BrokerConfig
    ) -> None:
        super().__init__(tables, versions, naming, naming.system_topics(config))
        self.auto_create = config.auto_create_topics
        self.system_names = naming.reserved_topics.union(self._system)
        self.unsendable = OWN_TOPICS | WAITING_TOPICS | VIEW_TOPICS | naming.unsendable_topics
        """Topics that clients may not send to."""

    def reconfigure(self, config: BrokerConfig) -> None:
        """The configuration changed: system topics that nobody touched follow it."""
        self.auto_create = config.auto_create_topics
        before = self._system
        self._system = {each.name: each for each in self.naming.system_topics(config)}
        gone = sorted(before.keys() - self._system.keys())
        changed = [name for name, each in self._system.items() if before.get(name) != each]
        for name in (*gone, *changed):
            if name in before and self._known.get(name) == before[name]:
                del self._known[name]
        self.add_system()
        if (changed or gone) and not self.follows:
            self._tables.write([self._versions.next(self.name)])
            for name in (*changed, *gone):
                self._tell(name)

    def require(self, name: str) -> TopicConfig:
        """The topic's settings, or `TopicNotFoundError`."""
        config = self._known.get(name)
        if config is None:
            raise TopicNotFoundError(f"topic[{name}] not exist, apply first please!")
        return config

    def retention_ms(self) -> dict[str, int]:
        """The topics that have a retention time of their own, and do not keep by key instead."""
        return {
            config.name: own_ms
            for config in self.all()
            if config.attributes
            and config.cleanup != (COMPACT,)
            and (own_ms := config.retention_ms) is not None
        }

    def retention_bytes(self) -> dict[str, int]:
        """The topics whose queues have a size of their own, and delete by that."""
        return {
            config.name: int(size)
            for config in self.all()
            if config.attributes
            and DELETE in config.cleanup
            and (size := config.attributes.get("retention.bytes", "")).isdecimal()
        }

    def is_system(self, name: str) -> bool:
        """Whether the topic is the broker's own."""
        return name in self.system_names or name.startswith(
            (OWN_PREFIX, self.naming.reserved_prefix)
        )

    def put(self, config: TopicConfig) -> None:
        """Create the topic, or change its settings. Nothing happens if it has them already."""
        check_name(config.name)
        if self.is_system(config.name):
            raise SystemTopicError(f"the topic[{config.name}] is conflict with system topic")
        self._check_settings(config)
        self._put(config)

    @staticmethod
    def _check_settings(config: TopicConfig) -> None:
        for count in (config.read_queues, config.write_queues):
            if not 0 <= count <= QUEUE_ID_MAX + 1:
                raise InvalidTopicError(
                    f"topic {config.name!r} cannot have {count} queues; 0 to {QUEUE_ID_MAX + 1} can"
                )
        if not 0 <= config.perm <= _PERM_MAX:
            raise InvalidTopicError(
                f"topic {config.name!r}: {config.perm} is no sum of the permissions 1, 2, 4 and 8"
            )

    def _put(self, config: TopicConfig) -> None:
        if config.name in VIEW_TOPICS:
            raise SystemTopicError(f"topic {config.name} is Kafka's own: nobody can make it here")
        known = self._known.get(config.name)
        created_ms = config.created_ms
        if not created_ms:
            created_ms = self._versions.now_ms() if known is None else known.created_ms
        if known is None or known != config or known.created_ms != created_ms:
            self._record(replace(config, created_ms=created_ms))

    def delete(self, name: str, also: list[Change]) -> None:
        """Forget the topic, and make the changes `also` that follow from it, in one record."""
        if self.is_system(name):
            raise SystemTopicError(f"the topic[{name}] is conflict with system topic")
        self.require(name)
        self._forget(name, also)

    def create_for_send(
        self, name: str, default_topic: str, queues: int, sys_flag: int = 0
    ) -> TopicConfig:
        """The topic, created on its first message if the default topic lets others inherit."""
        config = self._known.get(name)
        if config is not None:
            return config
        check_name(name)
        if name in self.unsendable:
            raise TopicPermissionError(f"sending message to topic[{name}] is forbidden")
        default = self._known.get(default_topic)
        if default is not None and default.perm & PERM_INHERIT and self._may_create(default_topic):
            count = max(0, min(queues, default.write_queues))
            perm = default.perm & ~PERM_INHERIT
            config = TopicConfig(name, count, count, perm, default.filter_type, False, sys_flag)
        elif self.naming.is_retry(name):
            config = TopicConfig(name, 1, 1, sys_flag=sys_flag)
        else:
            return self.require(name)
        self._put(config)
        return config

    def _may_create(self, default_topic: str) -> bool:
        return self.auto_create or default_topic != self.naming.default_topic

    def ensure(self, config: TopicConfig) -> TopicConfig:
        """The topic as it is, or created with these settings; for the broker's own needs.

        An existing topic becomes ordered if that is asked for (a group's retry topic, when a member
        subscribes to an ordered topic), and stays so: members that differ must not turn it back and
        forth with each heartbeat.
        """
        found = self._known.get(config.name)
        if self.follows:
            return found or config
        if found is None:
            check_name(config.name)
            self._put(config)
            return config
        if config.order and not found.order:
            found = replace(found, order=True)
            self._put(found)
        return found


class Texts:
    """One table of texts by name."""

    def __init__(self, name: str, tables: Tables) -> None:
        self.name = name
        self._tables = tables
        self._known: dict[str, str] = {}
        self.on_change: list[Callable[[str], None]] = []
        """Called with a name whose text was put or taken away."""

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._known.pop(key, None)
        else:
            self._known[key] = msgspec.convert(value, str)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every text; some at a time."""
        return map(dict, in_parts(self._known))

    def get(self, name: str) -> str | None:
        """The text of a name, if it has one."""
        return self._known.get(name)

    def all(self) -> dict[str, str]:
        """Every text, by name."""
        return dict(self._known)

    def put(self, name: str, text: str | None) -> None:
        """Give a name a text, or take it away."""
        if self._known.get(name) != text:
            self._tables.write([(self.name, name, text)])
            for listener in self.on_change:
                listener(name)


class TopicTexts(Texts):
    """A table of texts of topics."""

    def __init__(self, name: str, tables: Tables, topics: Topics) -> None:
        super().__init__(name, tables)
        topics.on_change.append(self._topic_changed)

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        if config is None:
            self.put(name, None)
