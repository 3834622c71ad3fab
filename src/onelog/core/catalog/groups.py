"""Consumer groups: what is set for each. Who is in them is `members`; how far they are, `offsets`.

Groups that a protocol's own tools use exist from the start, in memory (`settings`).
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from onelog.config import BrokerConfig
from onelog.core.catalog.names import Naming
from onelog.core.catalog.settings import Settings
from onelog.core.durable.tables import Change, Tables, Versions
from onelog.core.queues.retry_policy import parse_policy
from onelog.errors import GroupNotFoundError, InvalidGroupError
from onelog.names import check_name

RETRY_QUEUES_MAX = 1_024
RETRY_TIMES_MAX = 1_000_000
POLICY_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A consumer group's settings; the defaults are RocketMQ's."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queues: int = 1
    retry_times_max: int = 16
    retry_policy: dict[str, Any] | None = None
    broker_id: int = 0
    slow_broker_id: int = 1
    notify_members: bool = True
    sys_flag: int = 0
    consume_timeout_minutes: int = 15
    attributes: dict[str, str] = field(default_factory=dict)


def _check_settings(config: GroupConfig) -> None:
    """`InvalidGroupError` for numbers and policies that no broker should act upon."""
    for what, value, most in (
        ("retryQueueNums", config.retry_queues, RETRY_QUEUES_MAX),
        ("retryMaxTimes", config.retry_times_max, RETRY_TIMES_MAX),
    ):
        if not -1 <= value <= most:
            raise InvalidGroupError(f"group {config.name}: {what} {value} is outside -1..{most}")
    parse_policy(config.retry_policy)
    policy_bytes = len(msgspec.json.encode(config.retry_policy))
    if policy_bytes > POLICY_BYTES_MAX:
        raise InvalidGroupError(
            f"group {config.name}: a groupRetryPolicy of {policy_bytes} bytes; the limit is "
            f"{POLICY_BYTES_MAX}"
        )


class Groups(Settings[GroupConfig]):
    """The table of consumer groups."""

    name = "groups"
    what = "consumer group"
    kind = GroupConfig

    def __init__(
        self, tables: Tables, versions: Versions, naming: Naming, config: BrokerConfig
    ) -> None:
        super().__init__(tables, versions, naming, map(GroupConfig, naming.system_groups))
        self.auto_create = config.auto_create_groups

    def is_system(self, name: str) -> bool:
        """Whether the group is the broker's or RocketMQ's tools' own."""
        naming = self.naming
        return (
            name in self._system
            or name in naming.reserved_groups
            or name.startswith(naming.reserved_group_prefix)
        )

    def require(self, name: str) -> GroupConfig:
        """The group's settings; created on first use where that is allowed."""
        config = self._known.get(name)
        if config is not None:
            return config
        if self.auto_create or self.is_system(name):
            config = GroupConfig(name)
            if not self.follows:
                self.put(config)
            return config
        raise GroupNotFoundError(f"subscription group [{name}] does not exist")

    def put(self, config: GroupConfig) -> None:
        """Create the group, or change its settings. Nothing happens if it has them already."""
        if self._known.get(config.name) == config:
            return
        check_name(config.name, "group", InvalidGroupError)
        _check_settings(config)
        self._record(config)

    def delete(self, name: str, also: list[Change]) -> None:
        """Forget the group, and make the changes `also` that follow from it, in one record."""
        if name not in self._known:
            raise GroupNotFoundError(f"subscription group [{name}] does not exist")
        self._forget(name, also)
