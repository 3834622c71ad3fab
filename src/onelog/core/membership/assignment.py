"""Who of a group consumes which queues, where the broker decides that.

Members that leave the sharing to the broker ask it again and again; each answer is worked out from
the members and queues of the moment, so there is nothing to keep but how a group wants to consume a
topic: by cursors (PULL), each queue with one member; or by leases (POP), each queue with many.

    table entry   key "topic@group"; value {"mode": "PULL" | "POP", "share": n}

Invariant: all members, asking at the same time, are told queues that together are all queues.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from onelog.config import BrokerConfig
from onelog.core.catalog.groups import Groups
from onelog.core.catalog.topics import Topics
from onelog.core.durable.tables import Tables
from onelog.errors import TopicPermissionError
from onelog.names import join_key, split_key

Mode = Literal["PULL", "POP"]
Queue = TypeVar("Queue")
Strategy = Callable[[Sequence[Any], int, int], list[Any]]
"""The queues of the member with this number, of so many."""


@dataclass(frozen=True, slots=True)
class RequestMode:
    """How a group consumes a topic. `share` is how many other members' queues each takes from,
    too; none or less, or nearly all of the members, means that everyone takes from every queue."""

    mode: Mode = "PULL"
    share: int = 0


@dataclass(eq=False)
class RequestModes:
    """The table of groups that do not consume by the default, which is the broker's to set."""

    name = "request_modes"

    _tables: Tables
    _topics: Topics
    _groups: Groups
    _config: Callable[[], BrokerConfig] = BrokerConfig

    def __post_init__(self) -> None:
        self._modes: dict[tuple[str, str], RequestMode] = {}

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        topic, group = split_key(key)
        if value is None:
            self._modes.pop((group, topic), None)
        else:
            self._modes[group, topic] = msgspec.convert(value, RequestMode)

    def parts(self) -> list[dict[str, Any]]:
        """Every mode that was set."""
        modes = self._modes.items()
        return [
            {join_key(topic, group): msgspec.to_builtins(mode) for (group, topic), mode in modes}
        ]

    def set(self, group: str, topic: str, mode: RequestMode) -> None:
        """From now on the group, which is made if using it would make it, consumes so."""
        if self._topics.naming.is_retry(topic):
            raise TopicPermissionError("retry topic is not allowed to set mode")
        self._topics.require(topic)
        self._groups.require(group)
        if self._modes.get((group, topic)) != mode:
            key = join_key(topic, group)
            self._tables.write([(self.name, key, msgspec.to_builtins(mode))])

    def of(self, group: str, topic: str) -> RequestMode:
        """How the group consumes the topic. Of a retry topic, where messages wait, it pulls."""
        found = self._modes.get((group, topic))
        if found is not None:
            return found
        config = self._config()
        if config.default_request_mode == "pull" or self._topics.naming.is_retry(topic):
            return RequestMode()
        return RequestMode("POP", config.default_pop_share)

    def all(self) -> dict[tuple[str, str], RequestMode]:
        """Every mode that was set, by topic and group."""
        return {(topic, group): mode for (group, topic), mode in self._modes.items()}


def average(queues: Sequence[Queue], member: int, members: int) -> list[Queue]:
    """A run of neighbouring queues; the first members get one more where it does not come out."""
    size, extra = divmod(len(queues), members)
    begin = member * size + min(member, extra)
    return list(queues[begin : begin + size + (member < extra)])


def circle(queues: Sequence[Queue], member: int, members: int) -> list[Queue]:
    """Every so-manyth queue, as cards are dealt."""
    return list(queues[member::members])


STRATEGIES: dict[str, Strategy] = {"AVG": average, "AVG_BY_CIRCLE": circle}


def shared(
    queues: Sequence[Queue], member: int, members: int, strategy: Strategy, share: int
) -> list[Queue] | None:
    """The queues that a member takes from by leases; None means all of them, as one."""
    if share <= 0 or share >= members - 1:
        return None
    if members > len(queues):
        return [queues[member % len(queues)]] if queues else []
    found: dict[Queue, None] = {}
    for other in range(share + 1):
        found.update(dict.fromkeys(strategy(queues, (member + other) % members, members)))
    return list(found)
