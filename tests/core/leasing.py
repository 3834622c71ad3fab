"""A group that leases messages in a world that tests move by hand."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.core.cursors.pending_reads import Missing
from onelog.core.durable.waiting import ANY_QUEUE
from onelog.core.filters.tags import subscribe
from onelog.core.queues.lease_ledger import IN_ORDER, IN_PLACE
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.core.queues.leases import LeasedPart
from onelog.core.queues.lending import Leased
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
class Holding:
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
        return self.world.core.leases

    def request(self, count_max: int = 32, queue_id: int = ANY_QUEUE, **terms: Any) -> LeaseRequest:
        """What POP asks for; `policy` may be another one."""
        tags, predicate = terms.pop("tags", None), terms.pop("predicate", None)
        if tags is not None or predicate is not None:
            wanted = subscribe(self.topic, tags or "*")
            terms["subscription"] = replace(wanted, predicate=predicate)
        policy = terms.pop("policy", self.world.pop.policy)
        request = self.world.pop.request(
            self.group,
            self.topic,
            queue_id,
            count_max,
            terms.pop("invisible_ms", LEASE_MS),
            ordered=policy.in_order,
            **terms,
        )
        return request._replace(policy=policy)

    def ask(self, request: LeaseRequest, wait_ms: int = 0, owner: Any = None) -> list[Leased]:
        """What the request was answered with; for one that is held, what it will be."""
        answers: list[Leased] = []

        failures: list[OnelogError] = []

        def on_leased(token: Any, leased: Leased | OnelogError) -> None:
            if isinstance(leased, OnelogError):
                failures.append(leased)
            else:
                answers.append(leased)

        self.world.broker.queues.lease(SELF, request, wait_ms, on_leased, owner)
        if failures:
            raise failures[0]
        return answers

    def pop(self, count_max: int = 32, queue_id: int = ANY_QUEUE, **terms: Any) -> list[Holding]:
        """Lease messages of the topic and its retry topic, and end the tick."""
        answers = self.ask(self.request(count_max, queue_id, **terms))
        self.end_tick()
        return [
            each
            for answer in answers
            for part in answer.parts
            for each in self._leased(part, answer.handle)
        ]

    def take(self, count_max: int = 32, queue_id: int = 0, **terms: Any) -> list[Holding]:
        """Lease messages of one queue, and end the tick."""
        stamp = self.leases.stamp()
        request = self.request(**terms)
        part = self.leases.take(request, self.topic, queue_id, count_max, 256 << 10, stamp)
        self.end_tick()
        return [] if isinstance(part, Missing) else self._leased(part, stamp)

    def _leased(self, part: LeasedPart, handle: int) -> list[Holding]:
        messages = [each for record in part.records for each in decode_messages(record)]
        return [
            Holding(part.topic, part.queue_id, offset, handle, times, message)
            for offset, times, message in zip(part.offsets, part.times, messages, strict=True)
        ]

    def ack(self, *leased: Holding) -> None:
        """Acknowledge messages, and end the tick."""
        for each in leased:
            self.leases.acknowledge(self.group, each.topic, each.queue_id, each.offset, each.handle)
        self.end_tick()

    def change(self, leased: Holding, invisible_ms: int) -> Holding:
        """Agree on another time, and end the tick."""
        handle = self.leases.extend(
            self.group, leased.topic, leased.queue_id, leased.offset, leased.handle, invisible_ms
        )
        self.end_tick()
        return Holding(
            leased.topic, leased.queue_id, leased.offset, handle, leased.times, leased.message
        )

    def release(self, leased: Holding, **how: Any) -> None:
        """Give a message back, and end the tick."""
        self.leases.release(
            self.group, leased.topic, leased.queue_id, leased.offset, leased.handle, **how
        )
        self.end_tick()

    def reject(self, leased: Holding) -> None:
        """Give a message up, and end the tick."""
        self.leases.reject(self.group, leased.topic, leased.queue_id, leased.offset, leased.handle)
        self.end_tick()

    def end_tick(self) -> None:
        self.leases.when_recorded(self.answers.append)
        self.world.end_tick()

    def cursor(self, queue_id: int = 0, topic: str = "") -> int | None:
        return self.world.core.offsets.get(self.group, topic or self.topic, queue_id)


def reading(folder: Path, queues: int = 1, retry_times_max: int = 16, **how: Any) -> Reader:
    """A topic, a group, and a member of it."""
    world = World(folder / "store", **how)
    world.topic(TOPIC, queues)
    world.core.groups.put(GroupConfig(GROUP, retry_times_max=retry_times_max))
    return Reader(world)


def bodies(leased: list[Holding]) -> list[bytes]:
    return [each.body for each in leased]


ORDERED = IN_ORDER
STAY = IN_PLACE
