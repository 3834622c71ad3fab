"""Settings of groups, under Kafka's names. They are attributes of the group.

share.auto.offset.reset            where a share group begins: latest, or earliest
share.isolation.level              read_uncommitted, or read_committed
share.record.lock.duration.ms      how long a member has a message to itself
share.delivery.count.limit         how often a message is delivered at most
share.partition.max.record.locks   how far it may have read beyond what it is done with
"""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from onelog.config import KafkaConfig
from onelog.core.catalog.groups import GroupConfig
from onelog.core.queues.lease_ledger import SHARED
from onelog.core.queues.sharing import ShareLimits
from onelog.errors import ConfigError
from onelog.gateways.kafka.cluster.view import GROUP_KEY, Proposal
from onelog.gateways.kafka.configs import DEFAULT_SOURCE, Shown
from onelog.gateways.kafka.session import KafkaSession
from onelog.wire.kafka.schema import Fields

GROUP = 32
"""Kafka's number for settings of groups."""
_GROUP_SOURCE = 8
_STRING, _INT = 2, 3
RESET, ISOLATION = "share.auto.offset.reset", "share.isolation.level"
LOCK_MS, DELIVERIES = "share.record.lock.duration.ms", "share.delivery.count.limit"
WINDOW = "share.partition.max.record.locks"
GROUP_CONFIGS: dict[str, tuple[str, str] | range] = {
    RESET: ("latest", "earliest"),
    ISOLATION: ("read_uncommitted", "read_committed"),
    LOCK_MS: range(1_000, 3_600_001),
    DELIVERIES: range(min(SHARED), max(SHARED) + 1),
    WINDOW: range(100, 10_001),
}
"""What each can be; of words, the first is the default."""


def limits_of(group: GroupConfig | None, config: KafkaConfig) -> ShareLimits:
    """How a share group wants its messages."""
    usual = ShareLimits(config.share_lock_ms)
    if group is None or not group.attributes:
        return usual
    # Other protocols' tools set attributes, too: to anything.
    given = {
        name: value
        for name, value in group.attributes.items()
        if name in GROUP_CONFIGS and _is_accepted(name, value)
    }
    return ShareLimits(
        int(given.get(LOCK_MS, usual.lock_ms)),
        given.get(ISOLATION) == "read_committed",
        given.get(RESET) == "earliest",
        int(given.get(DELIVERIES, usual.deliveries_max)),
        int(given.get(WINDOW, usual.window_max)),
    )


def shown_group_configs(group: GroupConfig | None, config: KafkaConfig) -> list[Shown]:
    """Every setting of a group."""
    given = {} if group is None else group.attributes
    usual = limits_of(None, config)
    numbers = {LOCK_MS: usual.lock_ms, DELIVERIES: usual.deliveries_max, WINDOW: usual.window_max}
    shown = []
    for name, allowed in GROUP_CONFIGS.items():
        default = str(numbers[name]) if isinstance(allowed, range) else allowed[0]
        source = _GROUP_SOURCE if name in given else DEFAULT_SOURCE
        kind = _INT if isinstance(allowed, range) else _STRING
        shown.append(Shown(name, given.get(name, default), source, kind, default))
    return shown


def _is_accepted(name: str, value: str) -> bool:
    allowed = GROUP_CONFIGS[name]
    if isinstance(allowed, range):
        return value.isdecimal() and len(value) < 10 and int(value) in allowed
    return value in allowed


def alter_group(
    session: KafkaSession,
    name: str,
    wanted: Mapping[str, str | None],
    is_trial: bool,
    result: Fields,
) -> None:
    """Change settings of a group, None for a default; it is made if there is none."""
    for key, value in wanted.items():
        if key not in GROUP_CONFIGS:
            raise ConfigError(f"groups have no setting {key!r} here")
        if value is not None and not _is_accepted(key, value):
            raise ConfigError(f"{key} = {value!r:.80} is not accepted here")
    if is_trial:
        return
    group = session.broker.groups.require(session.principal, name)
    kept = {key: value for key, value in group.attributes.items() if key not in wanted}
    given = {key: value for key, value in wanted.items() if value is not None}
    cluster = session.gateway.cluster
    if not cluster.is_alone:
        known = {key: value for key, value in (kept | given).items() if key in GROUP_CONFIGS}
        text = msgspec.json.encode(known).decode()
        cluster.proposals.append(Proposal(GROUP_KEY + name, text, result))
        return
    session.broker.groups.put(session.principal, replace(group, attributes=kept | given))
