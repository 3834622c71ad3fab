"""Consumer groups: what is set for each. Who is in them is `members`; how far they are, `offsets`.

Settings are a durable table. Groups that a protocol's own tools use exist from the
start, in memory.

Invariant: what `get` answers is recorded in the log or follows from the configuration.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from onelog.config import BrokerConfig
from onelog.core.catalog.names import Naming
from onelog.core.durable.tables import Change, DataVersion, Tables, Versions, in_parts, joined
from onelog.core.redelivery.policy import parse_policy
from onelog.errors import GroupNotFoundError, InvalidGroupError
from onelog.names import check_name

log = logging.getLogger(__name__)

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


GroupListener = Callable[[str, GroupConfig | None], None]


class Groups:
    """The table of consumer groups."""

    name = "groups"

    def __init__(
        self, tables: Tables, versions: Versions, naming: Naming, config: BrokerConfig
    ) -> None:
        self._tables = tables
        self._versions = versions
        self._naming = naming
        self.auto_create = config.auto_create_groups
        self._groups: dict[str, GroupConfig] = {}
        self._system = {name: GroupConfig(name) for name in naming.system_groups}
        self.on_change: list[GroupListener] = []
        """Called after a group was created, changed or deleted (then with None)."""

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._groups.pop(key, None)
        else:
            self._groups[key] = msgspec.convert(value, GroupConfig)

    def entries(self) -> dict[str, Any]:
        """Every group but the system's, unless those were given settings of their own."""
        return joined(self.parts())

    def parts(self) -> Iterator[dict[str, Any]]:
        """The same, some at a time."""
        for part in in_parts(self._groups):
            yield {
                name: msgspec.to_builtins(config)
                for name, config in part
                if self._system.get(name) != config
            }

    def add_system_groups(self) -> None:
        """What every start adds to the recorded groups."""
        for name, config in self._system.items():
            self._groups.setdefault(name, config)

    @property
    def version(self) -> DataVersion:
        """The version of the whole set."""
        return self._versions[self.name]

    def get(self, name: str) -> GroupConfig | None:
        """The group's settings, if it exists."""
        return self._groups.get(name)

    def all(self) -> list[GroupConfig]:
        """Every group, in the order of creation."""
        return list(self._groups.values())

    def is_system(self, name: str) -> bool:
        """Whether the group is the broker's or RocketMQ's tools' own."""
        naming = self._naming
        return (
            name in self._system
            or name in naming.reserved_groups
            or name.startswith(naming.reserved_group_prefix)
        )

    def require(self, name: str) -> GroupConfig:
        """The group's settings; created on first use where that is allowed."""
        config = self._groups.get(name)
        if config is not None:
            return config
        if self.auto_create or self.is_system(name):
            config = GroupConfig(name)
            self.put(config)
            return config
        raise GroupNotFoundError(f"subscription group [{name}] does not exist")

    def put(self, config: GroupConfig) -> None:
        """Create the group, or change its settings. Nothing happens if it has them already."""
        if self._groups.get(config.name) == config:
            return
        check_name(config.name, "group", InvalidGroupError)
        _check_settings(config)
        change = (self.name, config.name, msgspec.to_builtins(config))
        self._tables.write([change, self._versions.next(self.name)])
        self._tell(config.name)

    def delete(self, name: str, also: list[Change]) -> None:
        """Forget the group, and make the changes `also` that follow from it, in one record."""
        if name not in self._groups:
            raise GroupNotFoundError(f"subscription group [{name}] does not exist")
        self._tables.write([(self.name, name, None), *also, self._versions.next(self.name)])
        self._tell(name)

    def _tell(self, name: str) -> None:
        config = self._groups.get(name)
        log.info("consumer group %s: %s", name, config or "deleted")
        for listener in self.on_change:
            listener(name, config)
