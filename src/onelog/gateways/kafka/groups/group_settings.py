"""Settings of groups, under Kafka's names. They are attributes of the group.

share.auto.offset.reset          where a share group begins: latest, or earliest
share.isolation.level            read_uncommitted, or read_committed
share.record.lock.duration.ms    how long a member has a message to itself
"""

from collections.abc import Mapping
from dataclasses import replace

from onelog.config import KafkaConfig
from onelog.core.catalog.groups import GroupConfig
from onelog.core.leases.sharing import Terms
from onelog.errors import ConfigError
from onelog.gateways.kafka.configs import DEFAULT_SOURCE, Shown
from onelog.gateways.kafka.session import KafkaSession

GROUP = 32
"""Kafka's number for settings of groups."""
_GROUP_SOURCE = 8
_STRING, _INT = 2, 3
LOCK_MS_MIN, LOCK_MS_MAX = 1_000, 3_600_000
RESET, ISOLATION, LOCK_MS = (
    "share.auto.offset.reset", "share.isolation.level", "share.record.lock.duration.ms",
)  # fmt: skip
GROUP_CONFIGS: dict[str, tuple[str, ...]] = {
    RESET: ("latest", "earliest"),
    ISOLATION: ("read_uncommitted", "read_committed"),
    LOCK_MS: (),
}
"""What each can be, the default first; that of a time is in the configuration."""


def terms_of(group: GroupConfig | None, config: KafkaConfig) -> Terms:
    """How a share group wants its messages."""
    given = {} if group is None else group.attributes
    lock = given.get(LOCK_MS, "")  # Other protocols' tools set attributes, too: to anything.
    lock_ms = int(lock) if _is_accepted(LOCK_MS, lock) else config.share_lock_ms
    return Terms(lock_ms, given.get(ISOLATION) == "read_committed", given.get(RESET) == "earliest")


def shown_group_configs(group: GroupConfig | None, config: KafkaConfig) -> list[Shown]:
    """Every setting of a group."""
    given = {} if group is None else group.attributes
    lock_ms = (str(config.share_lock_ms),)
    defaults = {name: (words or lock_ms)[0] for name, words in GROUP_CONFIGS.items()}
    return [
        Shown(
            name,
            given.get(name, default),
            _GROUP_SOURCE if name in given else DEFAULT_SOURCE,
            _INT if name == LOCK_MS else _STRING,
            default,
        )
        for name, default in defaults.items()
    ]


def _is_accepted(name: str, value: str) -> bool:
    if name != LOCK_MS:
        return value in GROUP_CONFIGS[name]
    return value.isdecimal() and len(value) < 10 and LOCK_MS_MIN <= int(value) <= LOCK_MS_MAX


def alter_group(
    session: KafkaSession, name: str, wanted: Mapping[str, str | None], is_trial: bool
) -> None:
    """Change settings of a group, None for a default; it is made if there is none."""
    for key, value in wanted.items():
        if key not in GROUP_CONFIGS:
            raise ConfigError(f"groups have no setting {key!r} here")
        if value is not None and not _is_accepted(key, value):
            raise ConfigError(f"{key} = {value!r:.80} is not accepted here")
    if is_trial:
        return
    group = session.broker.group(session.principal, name)
    kept = {key: value for key, value in group.attributes.items() if key not in wanted}
    given = {key: value for key, value in wanted.items() if value is not None}
    session.broker.admin.update_group(session.principal, replace(group, attributes=kept | given))
