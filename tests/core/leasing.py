"""A group that leases messages in a world that tests move by hand."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onelog.core.catalog.groups import GroupConfig
from onelog.core.durable.waiting import ANY_QUEUE
from onelog.core.filters.tags import subscribe
from onelog.core.leases.leases import Taken
from onelog.core.leases.pop import PopRequest
from onelog.core.leases.queue import Fate
from onelog.core.leases.supply import Terms
from onelog.errors import OnelogError
from onelog.message import Message
from onelog.record.decode import decode_messages
from tests.core.world import World

GROUP = "readers"
TOPIC = "orders"
LEASE_MS = 10_000
TICK_MS = 100
"""How much later than agreed a message may come back."""


@dataclass(frozen=True)
class Leased:
    """A message that is out, and what it is acknowledged with."""

    topic: str
    queue_id: int
    offset: int
    handle: int
    times: int
    message: Message

    @property
    def body(self) -> bytes:
        return bytes(self.message.body)


@dataclass
class Reader:
    """A member of a group."""

    world: World
    group: str = GROUP
    topic: str = TOPIC
    answers: list[OnelogError | None] = field(default_factory=list)
    """What `when_recorded` said about everything this reader did."""

    @property
    def leases(self) -> Any:
        return self.world.broker.leases

    def request(self, count_max: int = 32, queue_id: int = ANY_QUEUE, **terms: Any) -> PopRequest:
        tags, predicate = terms.pop("tags", None), terms.pop("predicate", None)
        if tags is not None or predicate is not None:
            wanted = subscribe(self.topic, tags or "*")
            terms["subscription"] = replace(wanted, predicate=predicate)
        agreed = Terms(terms.pop("invisible_ms", LEASE_MS), **terms)
        return PopRequest(self.group, self.topic, queue_id, count_max, agreed)

    def pop(self, count_max: int = 32, queue_id: int = ANY_QUEUE, **terms: Any) -> list[Leased]:
        """Lease messages of the topic and its retry topic, and end the tick."""
        popped = self.world.broker.pop.pop(self.request(count_max, queue_id, **terms))
        self.end_tick()
        return [each for part in popped.parts for each in self._leased(part, popped.stamp)]

    def take(self, count_max: int = 32, queue_id: int = 0, **terms: Any) -> list[Leased]:
        """Lease messages of one queue, and end the tick."""
        stamp = self.leases.stamp()
        agreed = self.request(**terms).terms
        part = self.leases.take(self.group, self.topic, queue_id, count_max, agreed, stamp)
        self.end_tick()
        return self._leased(part, stamp)

    def _leased(self, part: Taken, handle: int) -> list[Leased]:
        messages = [each for record in part.records for each in decode_messages(record)]
        return [
            Leased(part.topic, part.queue_id, offset, handle, times, message)
            for offset, times, message in zip(part.offsets, part.times, messages, strict=True)
        ]

    def ack(self, *leased: Leased) -> None:
        """Acknowledge messages, and end the tick."""
        for each in leased:
            self.leases.acknowledge(self.group, each.topic, each.queue_id, each.offset, each.handle)
        self.end_tick()

    def change(self, leased: Leased, invisible_ms: int) -> Leased:
        """Agree on another time, and end the tick."""
        handle = self.leases.change(
            self.group, leased.topic, leased.queue_id, leased.offset, leased.handle, invisible_ms
        )
        self.end_tick()
        return Leased(
            leased.topic, leased.queue_id, leased.offset, handle, leased.times, leased.message
        )

    def end_tick(self) -> None:
        self.leases.when_recorded(self.answers.append)
        self.world.end_tick()

    def cursor(self, queue_id: int = 0, topic: str = "") -> int | None:
        return self.world.broker.offsets.get(self.group, topic or self.topic, queue_id)


def reading(folder: Path, queues: int = 1, retry_times_max: int = 16, **how: Any) -> Reader:
    """A topic, a group, and a member of it."""
    world = World(folder / "store", **how)
    world.topic(TOPIC, queues)
    world.broker.groups.put(GroupConfig(GROUP, retry_times_max=retry_times_max))
    return Reader(world)


def bodies(leased: list[Leased]) -> list[bytes]:
    return [each.body for each in leased]


ORDERED = Fate.ORDERED
STAY = Fate.STAY
