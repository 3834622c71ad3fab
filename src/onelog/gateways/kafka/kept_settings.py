"""Settings of brokers and of clients' metrics (KIP-714), as Kafka's tools change them.

They are kept in a table of the broker (`broker.kafka_settings`); in a cluster all agree on them.

    broker/         of all brokers
    broker/N        of broker N; goes before the other
    metrics/NAME    a subscription of clients' metrics

What a broker has as a setting of its own is changed by that at once, and again after each start.
What else Kafka can change while it runs is kept and told, and nothing follows from it; but what
promises a protection that would not be there (TLS, SASL, limits of connections) is refused.
"""

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from onelog.config import Config
from onelog.config_sources import SETTINGS, load, value_of
from onelog.errors import ConfigError, InvalidRequestError
from onelog.gateways import GatewayContext
from onelog.gateways.kafka.cluster.view import CONFIG_KEY, Proposal
from onelog.gateways.kafka.configs import (
    BROKER_SOURCE,
    CLUSTER_SOURCE,
    DEFAULT_SOURCE,
    TOPIC_CONFIGS,
    ConfigType,
    Shown,
    TopicSetting,
    canonical,
    one_of,
    shown_broker_configs,
    whole,
)
from onelog.wire.kafka.schema import Fields

if TYPE_CHECKING:
    from onelog.gateways.kafka.session import KafkaSession

log = logging.getLogger(__name__)

BROKERS, METRICS = "broker/", "metrics/"
_BROKER_SOURCE, _METRICS_SOURCE = 2, 7
"""Set for one broker; set for a subscription."""
_FOR_EVER_MS = str(36_500 * 86_400_000)
OWN = {
    "auto.create.topics.enable": "broker.auto_create_topics",
    "group.consumer.heartbeat.interval.ms": "kafka.heartbeat_ms",
    "group.initial.rebalance.delay.ms": "kafka.initial_rebalance_delay_ms",
    "group.min.session.timeout.ms": "kafka.session_min_ms",
    "group.share.record.lock.duration.ms": "kafka.share_lock_ms",
    "log.retention.ms": "store.retention_ms",
    "message.max.bytes": "kafka.message_bytes_max",
    "min.insync.replicas": "kafka.in_sync_min",
    "num.partitions": "kafka.topic_partitions",
    "offsets.retention.minutes": "kafka.offsets_retention_minutes",
}
"""What we call what Kafka calls so."""
_OF_TOPICS = {
    "compression.gzip.level": "",
    "compression.lz4.level": "",
    "compression.type": "",
    "compression.zstd.level": "",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleanup.policy": "cleanup.policy",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.local.retention.bytes": "local.retention.bytes",
    "log.local.retention.ms": "local.retention.ms",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.preallocate": "preallocate",
    "log.retention.bytes": "retention.bytes",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.bytes": "segment.bytes",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "unclean.leader.election.enable": "",
}
"""Defaults of settings of topics; the same name if none is given."""
_LONG_MAX = str((1 << 63) - 1)
_NUMBERS = {
    "background.threads": "10",
    "follower.replication.throttled.rate": _LONG_MAX,
    "group.consumer.assignment.interval.ms": "1000",
    "group.coordinator.cached.buffer.max.bytes": "1048588",
    "group.share.assignment.interval.ms": "1000",
    "group.streams.assignment.interval.ms": "1000",
    "leader.replication.throttled.rate": _LONG_MAX,
    "log.cleaner.backoff.ms": "15000",
    "log.cleaner.dedupe.buffer.size": "134217728",
    "log.cleaner.io.buffer.size": "524288",
    "log.cleaner.threads": "1",
    "num.io.threads": "8",
    "num.network.threads": "3",
    "num.recovery.threads.per.data.dir": "2",
    "num.replica.fetchers": "1",
    "producer.id.expiration.ms": "86400000",
    "remote.fetch.max.wait.ms": "500",
    "remote.list.offsets.request.timeout.ms": "30000",
    "remote.log.index.file.cache.total.size.bytes": "1073741824",
    "remote.log.manager.copier.thread.pool.size": "10",
    "remote.log.manager.copy.max.bytes.per.second": _LONG_MAX,
    "remote.log.manager.expiration.thread.pool.size": "10",
    "remote.log.manager.fetch.max.bytes.per.second": _LONG_MAX,
    "remote.log.manager.follower.thread.pool.size": "2",
    "remote.log.reader.threads": "10",
    "replica.alter.log.dirs.io.max.bytes.per.second": _LONG_MAX,
    "share.coordinator.cached.buffer.max.bytes": "1048588",
}
_AT_LEAST_ONE = {
    "background.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "producer.id.expiration.ms",
    "remote.log.reader.threads",
}
_SWITCHES = {
    "follower.fetch.last.tiered.offset.enable": "false",
    "transaction.partition.verification.enable": "true",
}
KEPT: dict[str, TopicSetting] = {
    **{name: TOPIC_CONFIGS[topic or name] for name, topic in _OF_TOPICS.items()},
    **{
        name: TopicSetting(each, ConfigType.LONG, whole(int(name in _AT_LEAST_ONE)))
        for name, each in _NUMBERS.items()
    },
    **{
        name: TopicSetting(each, ConfigType.BOOL, one_of("true", "false"))
        for name, each in _SWITCHES.items()
    },
}
"""Kafka's other settings that can change while a broker runs."""
METRICS_CONFIGS: dict[str, TopicSetting] = {
    "interval.ms": TopicSetting("300000", ConfigType.INT, whole(100, 3_600_000)),
    "match": TopicSetting("", ConfigType.LIST, lambda value: _is_match(value)),
    "metrics": TopicSetting("", ConfigType.LIST, lambda _: True),
}
_PATTERN_MAX = 1_000
_MATCHED = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


def _is_match(value: str) -> bool:
    """Whether it is a list such as client_id=app-.*,client_software_name=librdkafka."""
    for each in value.split(",") if value.strip() else ():
        name, _, pattern = each.strip().partition("=")
        try:
            re.compile(pattern)
        except re.error:
            return False
        if name not in _MATCHED or not pattern or len(pattern) > _PATTERN_MAX:
            return False
    return True


class KeptSettings:
    """What was set of this broker, and what follows from that."""

    def __init__(self, context: GatewayContext, node_id: int) -> None:
        self._context = context
        self._node_id = node_id
        self._configured: Config = context.loaded.config
        """Without what Kafka's tools changed."""
        self._texts = context.broker.admin.kafka_settings
        self._texts.on_change.append(self._apply)

    def given(self, key: str) -> dict[str, str]:
        text = self._texts.get(key)
        return {} if text is None else msgspec.json.decode(text, type=dict[str, str])

    def metrics(self) -> list[str]:
        """The names of all subscriptions of clients' metrics."""
        return sorted(key[len(METRICS) :] for key in self._texts.all() if key.startswith(METRICS))

    def apply(self) -> None:
        """Have the broker as it was set, after a start."""
        given = self.given(BROKERS) | self.given(BROKERS + str(self._node_id))
        config = self._context.loaded.config
        changes = {}
        for name, key in OWN.items():
            value = value_of(self._configured, key)
            wanted = _ours(name, given[name]) if name in given else str(value).lower()
            if wanted != str(value_of(config, key)).lower():
                changes[key] = wanted
        if changes:
            log.info("settings are changed as Kafka's tools said: %s", changes)
            try:
                self._context.reconfigure(changes, lambda _: None)
            except ConfigError as error:
                log.error("settings %s stay as they are: %s", [*changes], error)

    def _apply(self, key: str) -> None:
        if key.startswith(BROKERS):
            self.apply()

    def shown(self, name: str) -> list[Shown]:
        """The settings of a broker; of all brokers together, those that were set."""
        common, own = self.given(BROKERS), self.given(BROKERS + name)
        shown = []
        if not name:
            for key, value in sorted(common.items()):
                shown.append(Shown(key, value, CLUSTER_SOURCE, _kind(key), value))
            return shown
        for each in shown_broker_configs(self._context.loaded.config):
            source = _source(each.name, own, common)
            shown.append(
                each._replace(source=source or BROKER_SOURCE, read_only=each.name not in OWN)
            )
        known = {each.name for each in shown}
        for key, (default, kind, _) in sorted(KEPT.items()):
            if key not in known:
                value = own.get(key, common.get(key, default))
                source = _source(key, own, common) or DEFAULT_SOURCE
                shown.append(Shown(key, value, source, kind, default))
        return shown

    def shown_metrics(self, name: str) -> list[Shown]:
        if not name:
            raise InvalidRequestError("a subscription of clients' metrics has a name")
        given = self.given(METRICS + name)
        return [
            Shown(
                key,
                given.get(key, default),
                _METRICS_SOURCE if given else DEFAULT_SOURCE,
                kind,
                default,
            )
            for key, (default, kind, _) in METRICS_CONFIGS.items()
        ]


def _source(name: str, own: Mapping[str, str], common: Mapping[str, str]) -> int | None:
    return _BROKER_SOURCE if name in own else CLUSTER_SOURCE if name in common else None


def _kind(name: str) -> int:
    if name in KEPT:
        return KEPT[name].kind
    return ConfigType.BOOL if SETTINGS[OWN[name]].kind is bool else ConfigType.LONG


def _ours(name: str, value: str) -> str:
    """A value as our setting has it."""
    return _FOR_EVER_MS if (name, value) == ("log.retention.ms", "-1") else value


def alter_broker(
    session: "KafkaSession",
    name: str,
    wanted: Mapping[str, str | None],
    is_trial: bool,
    result: Fields,
) -> None:
    """Change settings of a broker, or ("") of all; None for a default."""
    session.broker.users.check(session.principal, "alter", ("broker", "settings"))
    if name not in ("", str(session.gateway.cluster.node_id)):
        node_id = session.gateway.cluster.node_id
        raise InvalidRequestError(f"this is not broker {name!r}, but {node_id}")
    given = {}
    for key, value in wanted.items():
        if value is None:
            continue
        if key not in OWN and key not in KEPT:
            raise InvalidRequestError(f"{key} cannot be changed while the broker runs")
        value = canonical(value, _kind(key))
        try:
            if key in OWN:
                load(overrides={OWN[key]: _ours(key, value)})
            elif not KEPT[key].check(value):
                raise ConfigError("it is not what Kafka takes")
        except ConfigError as error:
            raise InvalidRequestError(f"{key} = {value!r:.80} is not accepted: {error}") from None
        given[key] = value
    _keep(session, BROKERS + name, wanted, given, is_trial, result)


def alter_metrics(
    session: "KafkaSession",
    name: str,
    wanted: Mapping[str, str | None],
    is_trial: bool,
    result: Fields,
) -> None:
    """Change a subscription of clients' metrics; without settings it is gone."""
    session.broker.users.check(session.principal, "alter", ("broker", "settings"))
    if not name:
        raise InvalidRequestError("a subscription of clients' metrics has a name")
    given = {}
    for key, value in wanted.items():
        if key not in METRICS_CONFIGS:
            raise InvalidRequestError(f"subscriptions of metrics have no setting {key!r}")
        if value is not None:
            given[key] = value = canonical(value, METRICS_CONFIGS[key].kind)
            if not METRICS_CONFIGS[key].check(value):
                error = InvalidRequestError if value.isdecimal() else ConfigError
                raise error(f"{key} = {value!r:.80} is not accepted")
    _keep(session, METRICS + name, wanted, given, is_trial, result)


def _keep(
    session: "KafkaSession",
    key: str,
    wanted: Mapping[str, str | None],
    given: Mapping[str, str],
    is_trial: bool,
    result: Fields,
) -> None:
    kept = {
        name: value
        for name, value in session.gateway.kept_settings.given(key).items()
        if name not in wanted
    }
    kept |= given
    text = msgspec.json.encode(kept).decode() if kept else ""
    if is_trial:
        return
    if session.gateway.cluster.is_alone:
        session.broker.admin.kafka_settings.put(key, text or None)
    else:
        session.gateway.cluster.proposals.append(Proposal(CONFIG_KEY + key, text, result))
