"""When Kafka's groups were used last: positions of one that nobody uses are forgotten after a time.

A group that RocketMQ's clients use, too, is theirs: its positions are kept for ever, as all of
theirs.

    table     "group_uses": {group: milliseconds of the last use; -1 if RocketMQ's clients use it}

Times are written down once in a while only: a group is forgotten a little late, never early.

Invariant: a group that is not in the table was never used by a Kafka client.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from onelog.clock import Clock
from onelog.core.catalog.groups import GroupConfig, Groups
from onelog.core.durable.tables import Tables, in_parts

_SHARED = -1
_COMING_BACK_MS = 600_000
"""After a start, consumers have that long to come back, however long the broker was away."""
_STEP_MS = 3_600_000
_STEPS_MIN = 4
"""Times are this exact: to the hour, or to a part of the time that a group is kept."""


class GroupUses:
    """The table of Kafka's groups, and when each was used."""

    name = "group_uses"

    def __init__(self, tables: Tables, groups: Groups, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock
        self._opened_ms = clock.now_ms()
        self._uses: dict[str, int] = {}
        self._to_look_at: Iterator[str] = iter(())
        self.retention_ms = 0
        """How long a group is kept that nobody uses; 0 is for ever."""
        groups.on_change.append(self._group_changed)

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._uses.pop(key, None)
        else:
            self._uses[key] = int(value)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every group; some at a time."""
        return map(dict, in_parts(self._uses))

    @property
    def any(self) -> bool:
        """Whether a Kafka client ever used a group."""
        return bool(self._uses)

    def known(self, group: str) -> None:
        """The group is Kafka's; if nothing is known of its use, that is now."""
        if group not in self._uses:
            self.used(group)

    def used(self, group: str, *, ours: bool = True) -> None:
        """A Kafka client uses the group now; `ours`: before this, only such clients did, if any."""
        last_ms, now_ms = self._uses.get(group), self._clock.now_ms()
        if last_ms is None:
            self._write(group, now_ms if ours else _SHARED)
        elif last_ms != _SHARED and now_ms - last_ms >= self._step_ms:
            self._write(group, now_ms)

    @property
    def _step_ms(self) -> int:
        return min(_STEP_MS, self.retention_ms // _STEPS_MIN or _STEP_MS)

    def share(self, group: str) -> None:
        """RocketMQ's clients use the group."""
        if self._uses.get(group, _SHARED) != _SHARED:
            self._write(group, _SHARED)

    def next(self, count: int) -> list[str]:
        """Some more groups to look at; none if all were, and the next call begins anew."""
        some = list(islice(self._to_look_at, count))
        if not some:
            self._to_look_at = iter(list(self._uses))
        return some

    def is_over(self, group: str) -> bool:
        """Whether it is so long ago that the group was used that it is to be forgotten."""
        last_ms, now_ms = self._uses.get(group, _SHARED), self._clock.now_ms()
        if last_ms == _SHARED or now_ms - self._opened_ms < min(_COMING_BACK_MS, self.retention_ms):
            return False
        return now_ms - last_ms > self.retention_ms > 0

    def _write(self, group: str, value: int | None) -> None:
        self._tables.write([(self.name, group, value)])

    def _group_changed(self, name: str, config: GroupConfig | None) -> None:
        if config is None and name in self._uses:
            self._write(name, None)
