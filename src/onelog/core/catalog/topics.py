"""Topics: which there are, how many queues they have, and who may use them how.

Settings are a durable table. Topics that the broker itself needs are added on each start, in memory
only, where nobody has given them settings of their own; no files come with them.

Invariant: what `get` answers is recorded in the log or follows from the configuration.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from onelog.core.durable.tables import (
    LEASES_TOPIC,
    STAGED_TOPIC,
    TABLES_TOPIC,
    Change,
    DataVersion,
    Tables,
    Versions,
    in_parts,
    joined,
)
from onelog.errors import (
    InvalidTopicError,
    SystemTopicError,
    TopicNotFoundError,
    TopicPermissionError,
)
from onelog.message import QUEUE_ID_MAX, SCHEDULE_TOPIC

log = logging.getLogger(__name__)

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
PERM_READ_WRITE = PERM_READ | PERM_WRITE
_PERM_MAX = 15

DEFAULT_TOPIC = "TBW102"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECKED_OUT_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SYSTEM_PREFIX = "rmq_sys_"
TIMER_TOPIC = f"{SYSTEM_PREFIX}wheel_timer"
RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"

UNSENDABLE_TOPICS = frozenset(
    (
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECKED_OUT_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TABLES_TOPIC,
        LEASES_TOPIC,
        STAGED_TOPIC,
        TIMER_TOPIC,
    )
)
"""Topics that clients may not send to: only the broker writes them."""

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_NAME_MAX = 127
_DERIVED_NAME_MAX = 255
"""For retry and dead-letter topics, whose names contain a group's."""

FilterType = Literal["SINGLE_TAG", "MULTI_TAG"]
TopicListener = Callable[[str, "TopicConfig | None"], None]


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
    def queues(self) -> int:
        """How many queues there may be messages in."""
        return max(self.read_queues, self.write_queues)


def retry_topic(group: str) -> str:
    """Where a group's failed messages wait for their next delivery."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Where a group's messages end that failed too often."""
    return DEAD_LETTER_PREFIX + group


def check_name(name: str) -> None:
    """`InvalidTopicError` unless clients may call a topic so."""
    if not name.strip():
        raise InvalidTopicError("the specified topic is blank")
    if not _NAME.fullmatch(name):
        raise InvalidTopicError(
            f"the specified topic {name!r} contains illegal characters, allowing only "
            "^[%|a-zA-Z0-9_-]+$"
        )
    derived = name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    limit = _DERIVED_NAME_MAX if derived else _NAME_MAX
    if len(name) > limit:
        raise InvalidTopicError(
            f"the specified topic {name[:40]!r}... has {len(name)} characters, is longer than "
            f"topic max length {limit}"
        )


def system_topics(
    cluster: str, broker: str, queues: int, auto_create: bool, trace: bool = True
) -> list[TopicConfig]:
    """The topics RocketMQ has from the start. `queues` is what auto-created topics get at most.

    RocketMQ has the topic of traces only if it is told to (traceTopicEnable), although it tells its
    clients to trace; here it is there as long as clients are told so.
    """
    everything = PERM_READ_WRITE | PERM_INHERIT
    found = [
        TopicConfig(SELF_TEST_TOPIC, 1, 1),
        TopicConfig(BENCHMARK_TOPIC, 1024, 1024),
        TopicConfig(cluster, 16, 16, everything),
        TopicConfig(broker, 1, 1, everything),
        TopicConfig(OFFSET_MOVED_TOPIC, 1, 1),
        TopicConfig(SCHEDULE_TOPIC, 18, 18),
        TopicConfig(f"{cluster}_REPLY_TOPIC", 1, 1),
        TopicConfig(f"{SYSTEM_PREFIX}REVIVE_LOG_{cluster}", 8, 8),
        TopicConfig(f"{SYSTEM_PREFIX}SYNC_BROKER_MEMBER_{broker}", 1, 1, PERM_INHERIT),
        TopicConfig(HALF_TOPIC, 1, 1),
        TopicConfig(OP_HALF_TOPIC, 1, 1),
        TopicConfig(TIMER_TOPIC, 1, 1),
    ]
    if trace:
        found.append(TopicConfig(TRACE_TOPIC, 1, 1))
    if auto_create:
        found.append(TopicConfig(DEFAULT_TOPIC, queues, queues, everything))
    return found


def alter_attributes(
    current: Mapping[str, str], changes: Mapping[str, str | None]
) -> dict[str, str]:
    """The attributes after `changes`, in which None takes one away."""
    altered = {name: value for name, value in current.items() if name not in changes}
    altered.update({name: value for name, value in changes.items() if value is not None})
    return altered


class Topics:
    """The table of topics."""

    name = "topics"

    def __init__(
        self,
        tables: Tables,
        versions: Versions,
        system: list[TopicConfig],
        *,
        auto_create: bool = True,
    ) -> None:
        self._tables = tables
        self._versions = versions
        self._system = system
        self.auto_create = auto_create
        self._topics: dict[str, TopicConfig] = {}
        self.system_names = frozenset(
            [config.name for config in system] + [DEFAULT_TOPIC, TRACE_TOPIC, CHECKED_OUT_TOPIC]
        )
        self.on_change: list[TopicListener] = []
        """Called after a topic was created, changed or deleted (then with None)."""

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._topics.pop(key, None)
        else:
            self._topics[key] = msgspec.convert(value, TopicConfig)

    def entries(self) -> dict[str, Any]:
        """Every topic but the system's, unless those were given settings of their own."""
        return joined(self.parts())

    def parts(self) -> Iterator[dict[str, Any]]:
        """The same, some at a time."""
        untouched = {config.name: config for config in self._system}
        for part in in_parts(self._topics):
            yield {
                name: msgspec.to_builtins(config)
                for name, config in part
                if untouched.get(name) != config
            }

    def add_system_topics(self) -> None:
        """What every start adds to the recorded topics."""
        for config in self._system:
            self._topics.setdefault(config.name, config)

    def replace_system_topics(self, system: list[TopicConfig]) -> None:
        """The configuration changed: system topics that nobody touched follow it."""
        for config in self._system:
            if self._topics.get(config.name) == config and config not in system:
                del self._topics[config.name]
        changed = [config for config in system if config not in self._system]
        gone = {config.name for config in self._system} - {config.name for config in system}
        self._system = system
        self.add_system_topics()
        if changed or gone:
            self._tables.write([self._versions.next(self.name)])
            for name in [config.name for config in changed] + sorted(gone):
                self._tell(name)

    @property
    def version(self) -> DataVersion:
        """The version of the whole set, as name servers compare it."""
        return self._versions[self.name]

    def get(self, name: str) -> TopicConfig | None:
        """The topic's settings, if it exists."""
        return self._topics.get(name)

    def require(self, name: str) -> TopicConfig:
        """The topic's settings, or `TopicNotFoundError`."""
        config = self._topics.get(name)
        if config is None:
            raise TopicNotFoundError(f"topic[{name}] not exist, apply first please!")
        return config

    def __len__(self) -> int:
        return len(self._topics)

    def all(self) -> list[TopicConfig]:
        """Every topic, in the order of creation."""
        return list(self._topics.values())

    def retention_ms(self) -> dict[str, int]:
        """The topics that have a retention time of their own ("reserve.time", in hours)."""
        hours = {
            config.name: config.attributes.get("reserve.time", "")
            for config in self.all()
            if config.attributes
        }
        return {
            name: int(value) * 3_600_000
            for name, value in hours.items()
            if value.isdecimal() and int(value) > 0
        }

    def is_system(self, name: str) -> bool:
        """Whether the topic is the broker's own."""
        own = name in (TABLES_TOPIC, LEASES_TOPIC, STAGED_TOPIC)
        return own or name in self.system_names or name.startswith(SYSTEM_PREFIX)

    def put(self, config: TopicConfig) -> None:
        """Create the topic, or change its settings. Nothing happens if it has them already."""
        check_name(config.name)
        if self.is_system(config.name):
            raise SystemTopicError(f"the topic[{config.name}] is conflict with system topic")
        self._check_settings(config)
        self._record(config)

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

    def _record(self, config: TopicConfig) -> None:
        known = self._topics.get(config.name)
        if known == config:
            return
        created_ms = self._versions.now_ms() if known is None else known.created_ms
        config = replace(config, created_ms=created_ms)
        change = (self.name, config.name, msgspec.to_builtins(config))
        self._tables.write([change, self._versions.next(self.name)])
        self._tell(config.name)

    def delete(self, name: str, also: list[Change]) -> None:
        """Forget the topic, and make the changes `also` that follow from it, in one record."""
        if self.is_system(name):
            raise SystemTopicError(f"the topic[{name}] is conflict with system topic")
        self.require(name)
        self._tables.write([(self.name, name, None), *also, self._versions.next(self.name)])
        self._tell(name)

    def _tell(self, name: str) -> None:
        config = self._topics.get(name)
        log.info("topic %s: %s", name, config or "deleted")
        for listener in self.on_change:
            listener(name, config)

    def create_for_send(
        self, name: str, default_topic: str, queues: int, sys_flag: int = 0
    ) -> TopicConfig:
        """The topic, created on its first message if the default topic lets others inherit."""
        config = self._topics.get(name)
        if config is not None:
            return config
        check_name(name)
        if name in UNSENDABLE_TOPICS:
            raise TopicPermissionError(f"sending message to topic[{name}] is forbidden")
        default = self._topics.get(default_topic)
        if default is not None and default.perm & PERM_INHERIT and self._may_create(default_topic):
            count = max(0, min(queues, default.write_queues))
            perm = default.perm & ~PERM_INHERIT
            config = TopicConfig(name, count, count, perm, default.filter_type, False, sys_flag)
        elif name.startswith(RETRY_PREFIX):
            config = TopicConfig(name, 1, 1, sys_flag=sys_flag)
        else:
            return self.require(name)
        self._record(config)
        return config

    def _may_create(self, default_topic: str) -> bool:
        return self.auto_create or default_topic != DEFAULT_TOPIC

    def ensure(self, config: TopicConfig) -> TopicConfig:
        """The topic as it is, or created with these settings; for the broker's own needs.

        An existing topic becomes ordered if that is asked for (a group's retry topic, when a member
        subscribes to an ordered topic), and stays so: members that differ must not turn it back and
        forth with each heartbeat.
        """
        found = self._topics.get(config.name)
        if found is None:
            check_name(config.name)
            self._record(config)
            return config
        if config.order and not found.order:
            found = replace(found, order=True)
            self._record(found)
        return found
