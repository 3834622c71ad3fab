"""Who of a group consumes which queues: the six ways of RocketMQ's Java client.

A strategy is asked by every member for itself, with the same sorted queues and client ids, and has
to be the same everywhere in the group, Java members included: so the shares here are those of the
Java classes to the last queue. `strategy_name` is what RocketMQ calls a strategy, for brokers that
are asked to share out the queues.

Invariant: for all members of one list of client ids, the shares of `average`, `circle`,
`ByConsistentHash` and `ByNearbyRoom` are disjoint and together are all queues. A client that is not
in the list gets nothing.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from onelog.client.message import Queue

AllocationStrategy = Callable[[str, str, Sequence[Queue], Sequence[str]], list[Queue]]
"""Called with the group, this member's client id, all queues of a topic, all client ids."""

VIRTUAL_NODES = 10


def average(
    group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]
) -> list[Queue]:
    """Neighbouring queues, the same number for everybody; the first members get one more."""
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, more = divmod(len(queues), len(client_ids))
    start = index * share + min(index, more)
    return list(queues[start : start + share + (index < more)])


def circle(
    group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]
) -> list[Queue]:
    """The queues dealt out like cards."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


@dataclass(frozen=True)
class ByConfig:
    """Always these queues, whoever else there is. That all queues are read is the user's care."""

    queues: tuple[Queue, ...]

    def __call__(
        self, group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]
    ) -> list[Queue]:
        wanted = frozenset(self.queues)
        return [queue for queue in queues if queue in wanted]


@dataclass(frozen=True)
class ByRoom:
    """The queues of brokers whose names begin with one of these rooms: `room@broker`."""

    rooms: Collection[str]

    def __call__(
        self, group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]
    ) -> list[Queue]:
        if client_id not in client_ids:
            return []
        inside = [queue for queue in queues if _room(queue.broker) in self.rooms]
        index = client_ids.index(client_id)
        share = len(inside) // len(client_ids)
        # The queues that are left over go to the first members, after everybody had the same.
        return (
            inside[index * share : (index + 1) * share]
            + inside[len(client_ids) * share :][index : index + 1]
        )


def _room(broker: str) -> str | None:
    parts = broker.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


@dataclass(frozen=True)
class ByConsistentHash:
    """A ring of hashes: when members come and go, few queues change hands."""

    virtual_nodes: int = VIRTUAL_NODES

    def __post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise ValueError(f"a ring needs 1 point per member at least, not {self.virtual_nodes}")

    def __call__(
        self, group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]
    ) -> list[Queue]:
        if client_id not in client_ids:
            return []
        ring = {
            _point(f"{member}-{number}"): member
            for member in client_ids
            for number in range(self.virtual_nodes)
        }
        points = sorted(ring)

        def owner(queue: Queue) -> str:
            at = bisect_left(points, _point(_java_text(queue)))
            return ring[points[at % len(points)]]

        return [queue for queue in queues if owner(queue) == client_id]


def _point(text: str) -> int:
    digest = hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _java_text(queue: Queue) -> str:
    """`MessageQueue.toString()`, which is what the Java client hashes."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
    )


@dataclass(frozen=True)
class ByNearbyRoom:
    """The queues of a room for the members in that room; those of an empty room for everybody."""

    broker_room: Callable[[Queue], str]
    client_room: Callable[[str], str]
    within: AllocationStrategy = average

    def __call__(
        self, group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]
    ) -> list[Queue]:
        if client_id not in client_ids:
            return []
        queues_by_room: dict[str, list[Queue]] = {}
        for queue in queues:
            room = _named(self.broker_room(queue), f"queue {queue}")
            queues_by_room.setdefault(room, []).append(queue)
        members_by_room: dict[str, list[str]] = {}
        for member in client_ids:
            room = _named(self.client_room(member), f"client {member}")
            members_by_room.setdefault(room, []).append(member)
        here = self.client_room(client_id)
        mine = self.within(group, client_id, queues_by_room.pop(here, []), members_by_room[here])
        for room in sorted(queues_by_room.keys() - members_by_room.keys()):
            mine += self.within(group, client_id, queues_by_room[room], client_ids)
        return mine


def _named(room: str, whose: str) -> str:
    if not room:
        raise ValueError(f"no machine room is named for {whose}")
    return room


def strategy_name(strategy: AllocationStrategy) -> str:
    """What RocketMQ calls a strategy; brokers know `AVG` and `AVG_BY_CIRCLE`."""
    if strategy is average:
        return "AVG"
    if strategy is circle:
        return "AVG_BY_CIRCLE"
    if isinstance(strategy, ByNearbyRoom):
        return f"MACHINE_ROOM_NEARBY-{strategy_name(strategy.within)}"
    names = {ByConfig: "CONFIG", ByRoom: "MACHINE_ROOM", ByConsistentHash: "CONSISTENT_HASH"}
    return names.get(type(strategy), "CUSTOM")
