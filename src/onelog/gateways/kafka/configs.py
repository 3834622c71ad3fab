"""Settings of topics and of the broker, under Kafka's names: which there are, and what they mean.

A topic's settings are attributes of the topic, under their Kafka names. Most of Kafka's settings
mean nothing here: they are taken, kept and told, so that tools that set them work, and nothing
follows from them. Those that mean something have a check.

    max.message.bytes         the largest batch that a producer may send
    message.timestamp.type    CreateTime, or LogAppendTime: batches get the time of their arrival
    retention.ms              messages may go at that age; -1 for never, while the disk has room
    retention.bytes           what a partition keeps at least; older messages are hidden
    min.insync.replicas       how many must have all messages for a producer with acks=all
    cleanup.policy            delete, compact, both or none; an attribute of another name, because
                              RocketMQ has one of that name
    min.compaction.lag.ms, max.compaction.lag.ms, segment.ms, delete.retention.ms and
    min.cleanable.dirty.ratio say when a topic is compacted: see `core.compaction.compactor`
    compression.*             nothing: batches stay as their producers compressed them
"""

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple

from onelog.config import Config, KafkaConfig
from onelog.config_sources import value_of
from onelog.core.catalog import topics
from onelog.core.catalog.topics import COMPACT, DELETE, MAX_MESSAGE_BYTES, TopicConfig
from onelog.errors import ConfigError
from onelog.gateways import GatewayContext

CLEANUP_POLICY = "cleanup.policy"
TIMESTAMP_TYPE = "message.timestamp.type"
RETENTION_MS = "retention.ms"
IN_SYNC_MIN = "min.insync.replicas"
APPEND_TIME = "LogAppendTime"
MESSAGE_BYTES_MAX = 1_048_588
"""Kafka's default."""

TOPIC_SOURCE, CLUSTER_SOURCE, BROKER_SOURCE, DEFAULT_SOURCE = 1, 3, 4, 5
"""Where a value comes from: set for the topic, or all brokers; the broker's own; a default."""


class ConfigType(IntEnum):
    """Kafka's numbers for types of settings."""

    BOOL = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


_BOOL, _STRING, _INT, _LONG, _DOUBLE, _LIST = ConfigType


class TopicSetting(NamedTuple):
    """What is known of one setting."""

    default: str
    kind: int
    check: Callable[[str], bool]


_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_INT_MAX, _LONG_MAX = (1 << 31) - 1, (1 << 63) - 1


def whole(least: int, most: int = _LONG_MAX) -> Callable[[str], bool]:
    """A check: a whole number between these."""

    def check(value: str) -> bool:
        return _WHOLE.fullmatch(value) is not None and least <= int(value) <= most

    return check


def _int(least: int) -> Callable[[str], bool]:
    return whole(least, _INT_MAX)


def one_of(*words: str) -> Callable[[str], bool]:
    """A check: one of these words."""
    return lambda value: value in words


def _words(*words: str) -> Callable[[str], bool]:
    return lambda value: not value or all(each.strip() in words for each in value.split(","))


_throttled = re.compile(r"\*?|\d+:\d+(,\d+:\d+)*").fullmatch


def _ratio(value: str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False


TOPIC_CONFIGS: dict[str, TopicSetting] = {
    CLEANUP_POLICY: TopicSetting("delete", _LIST, _words(COMPACT, DELETE)),
    "compression.type": TopicSetting(
        "producer",
        _STRING,
        one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    ),
    "compression.gzip.level": TopicSetting(
        "-1", _INT, lambda value: whole(1, 9)(value) or value == "-1"
    ),
    "compression.lz4.level": TopicSetting("9", _INT, whole(1, 17)),
    "compression.zstd.level": TopicSetting("3", _INT, whole(-(1 << 17), 22)),
    "delete.retention.ms": TopicSetting("86400000", _LONG, whole(0)),
    "file.delete.delay.ms": TopicSetting("60000", _LONG, whole(0)),
    "flush.messages": TopicSetting("9223372036854775807", _LONG, whole(1)),
    "flush.ms": TopicSetting("9223372036854775807", _LONG, whole(0)),
    "follower.replication.throttled.replicas": TopicSetting(
        "", _LIST, lambda value: _throttled(value) is not None
    ),
    "index.interval.bytes": TopicSetting("4096", _INT, _int(0)),
    "leader.replication.throttled.replicas": TopicSetting(
        "", _LIST, lambda value: _throttled(value) is not None
    ),
    "local.retention.bytes": TopicSetting("-2", _LONG, whole(-2)),
    "local.retention.ms": TopicSetting("-2", _LONG, whole(-2)),
    "max.compaction.lag.ms": TopicSetting("9223372036854775807", _LONG, whole(1)),
    MAX_MESSAGE_BYTES: TopicSetting(str(MESSAGE_BYTES_MAX), _INT, _int(0)),
    "message.timestamp.after.max.ms": TopicSetting("3600000", _LONG, whole(0)),
    "message.timestamp.before.max.ms": TopicSetting("9223372036854775807", _LONG, whole(0)),
    TIMESTAMP_TYPE: TopicSetting("CreateTime", _STRING, one_of("CreateTime", APPEND_TIME)),
    "min.cleanable.dirty.ratio": TopicSetting("0.5", _DOUBLE, _ratio),
    "min.compaction.lag.ms": TopicSetting("0", _LONG, whole(0)),
    IN_SYNC_MIN: TopicSetting("1", _INT, _int(1)),
    "preallocate": TopicSetting("false", _BOOL, one_of("true", "false")),
    "remote.log.copy.disable": TopicSetting("false", _BOOL, one_of("true", "false")),
    "remote.log.delete.on.disable": TopicSetting("false", _BOOL, one_of("true", "false")),
    "remote.storage.enable": TopicSetting("false", _BOOL, one_of("false")),
    "retention.bytes": TopicSetting("-1", _LONG, whole(-_LONG_MAX)),
    RETENTION_MS: TopicSetting("604800000", _LONG, whole(-1)),
    "segment.bytes": TopicSetting("1073741824", _INT, _int(1 << 20)),
    "segment.index.bytes": TopicSetting("10485760", _INT, _int(4)),
    "segment.jitter.ms": TopicSetting("0", _LONG, whole(0)),
    "segment.ms": TopicSetting("604800000", _LONG, whole(1)),
    "unclean.leader.election.enable": TopicSetting("false", _BOOL, one_of("true", "false")),
}
"""Kafka's settings of topics. Those with one word only are what this broker does in any case."""


OF_BROKER = {
    RETENTION_MS: "store.retention_ms",
    MAX_MESSAGE_BYTES: "kafka.message_bytes_max",
    IN_SYNC_MIN: "kafka.in_sync_min",
}
"""Settings whose defaults are settings of the broker."""


class Shown(NamedTuple):
    """A setting as it is told."""

    name: str
    value: str
    source: int
    kind: int
    default: str
    read_only: bool = False


def check_configs(given: Mapping[str, str | None]) -> dict[str, str]:
    """The attributes that a topic gets for these settings, or `ConfigError`."""
    attributes = {}
    for name, value in given.items():
        known = TOPIC_CONFIGS.get(name)
        if known is None:
            raise ConfigError(f"Kafka's topics have no setting {name!r}")
        if value is None:
            raise ConfigError(f"{name} is set to nothing (null): leave it out for its default")
        value = canonical(value, known.kind)
        if not known.check(value):
            raise ConfigError(f"{name} = {value!r:.80} is not accepted here")
        if name == CLEANUP_POLICY:
            value = ",".join(dict.fromkeys(word.strip() for word in value.split(",")))
        attributes[attribute(name)] = value
    return attributes


def canonical(value: str, kind: int) -> str:
    """The value as it is kept: Kafka takes blanks around it, a plus, and TRUE."""
    value = value.strip()
    if kind == _BOOL:
        return value.lower()
    return str(int(value)) if _WHOLE.fullmatch(value) else value


def attribute(name: str) -> str:
    """The attribute of a topic that has a setting."""
    return topics.CLEANUP_POLICY if name == CLEANUP_POLICY else name


def shown_configs(topic: TopicConfig, config: Config) -> list[Shown]:
    """Every setting of a topic."""
    shown = []
    for name, (default, kind, _) in TOPIC_CONFIGS.items():
        if name in OF_BROKER:
            default = str(value_of(config, OF_BROKER[name]))
        value = topic.attributes.get(attribute(name))
        # Kafka sets that one for the whole cluster when it begins, from 4.1 on.
        default_source = CLUSTER_SOURCE if name == IN_SYNC_MIN else DEFAULT_SOURCE
        source = default_source if value is None else TOPIC_SOURCE
        shown.append(Shown(name, default if value is None else value, source, kind, default))
    return shown


def shown_broker_configs(config: Config) -> list[Shown]:
    """Settings of the broker that Kafka's tools ask for, under Kafka's names."""
    own, kafka = config.broker, config.kafka
    shown = [
        ("advertised.listeners", f"PLAINTEXT://{own.client_host}:{kafka.port}", _STRING),
        ("auto.create.topics.enable", str(own.auto_create_topics).lower(), _BOOL),
        ("broker.id", "0", _INT),
        ("default.replication.factor", str(config.replication.replicas), _INT),
        ("group.consumer.heartbeat.interval.ms", str(kafka.heartbeat_ms), _INT),
        ("group.initial.rebalance.delay.ms", str(kafka.initial_rebalance_delay_ms), _INT),
        ("group.min.session.timeout.ms", str(kafka.session_min_ms), _INT),
        ("group.share.record.lock.duration.ms", str(kafka.share_lock_ms), _INT),
        ("log.dirs", own.store_path, _STRING),
        ("log.retention.ms", str(config.store.retention_ms), _LONG),
        ("message.max.bytes", str(kafka.message_bytes_max), _INT),
        (IN_SYNC_MIN, str(kafka.in_sync_min), _INT),
        ("offsets.retention.minutes", str(kafka.offsets_retention_minutes), _INT),
        ("num.partitions", str(kafka.topic_partitions), _INT),
        ("socket.request.max.bytes", str(own.frame_bytes_max), _INT),
    ]
    return [Shown(name, value, BROKER_SOURCE, kind, value, True) for name, value, kind in shown]


def message_bytes_max(config: TopicConfig, kafka: KafkaConfig) -> int:
    """The largest batch that a producer may send to the topic."""
    value = config.attributes.get(MAX_MESSAGE_BYTES)
    return kafka.message_bytes_max if value is None else int(value)


def in_sync_min(config: TopicConfig, kafka: KafkaConfig) -> int:
    """How many replicas must be in sync for a producer that waits for them all."""
    return int(config.attributes.get(IN_SYNC_MIN, kafka.in_sync_min))


class ProduceTarget(NamedTuple):
    """What a topic's settings say to its producers, looked up once."""

    topic: TopicConfig
    partitions: int
    """Those that are queues of the same number; 0 in a cluster, where placements say which."""
    message_bytes_max: int
    in_sync_min: int
    needs_keys: bool
    """Whether messages without a key would be lost."""
    appends_time: bool


class ProduceTargets(dict[str, ProduceTarget]):
    """Those that were produced to, by name, until something of theirs changes."""

    def __init__(self, context: GatewayContext) -> None:
        super().__init__()
        self._context = context
        context.broker.topics.on_change.append(self._topic_changed)

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        self.pop(name, None)

    def add(self, topic: TopicConfig) -> ProduceTarget:
        """Remember a topic, whose name is one for Kafka's clients."""
        kafka = self._context.loaded.config.kafka
        target = self[topic.name] = ProduceTarget(
            topic,
            topic.queues if kafka.node_id < 0 else 0,
            message_bytes_max(topic, kafka),
            in_sync_min(topic, kafka),
            bool(topic.attributes) and COMPACT in topic.cleanup,
            topic.attributes.get(TIMESTAMP_TYPE) == APPEND_TIME,
        )
        return target
