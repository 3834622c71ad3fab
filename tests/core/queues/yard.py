"""Declared queues in a world that tests move by hand, and what their consumers got."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from onelog.core.access import SELF
from onelog.core.queues.consumers import Consumer, Window
from onelog.core.queues.deliveries import POSITION, TIMES, Delivery
from onelog.core.queues.queue import WorkQueue
from onelog.core.queues.queues import WorkQueues
from onelog.errors import OnelogError
from onelog.record.forms import amqp
from onelog.record.forms.amqp_fields import encode_properties, headers_of
from tests.core.replicas import Follower, Master
from tests.core.world import World


def body_of(delivery: Delivery) -> bytes:
    return bytes(amqp.read(delivery[2]).body)


def headers_in(delivery: Delivery) -> dict[str, Any]:
    return headers_of(amqp.read(delivery[2]).properties)


def numbered(count: int, first: int = 0) -> Sequence[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@dataclass(eq=False)
class Taker:
    """A consumer, as its gateway has it: what it was given."""

    got: list[Delivery] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    passed_on: int = 0
    """How many of them came as bodies only."""
    cancelled: str = ""
    consumer: Consumer = None  # type: ignore[assignment]

    def deliver(self, consumer: Consumer, found: list[Delivery]) -> None:
        self.got += found
        self.batches.append(len(found))

    def take_bodies(
        self, consumer: Consumer, bodies: Sequence[bytes], forms: Sequence[int]
    ) -> None:
        found = zip(bodies, forms, strict=True)
        self.got += [(-1, 0, body, form, 0, len(body)) for body, form in found]
        self.batches.append(len(bodies))
        self.passed_on += len(bodies)

    def cancel(self, consumer: Consumer, reason: str) -> None:
        self.cancelled = reason

    @property
    def bodies(self) -> list[bytes]:
        return [body_of(each) for each in self.got]

    @property
    def places(self) -> list[int]:
        return [each[POSITION] for each in self.got]

    @property
    def redelivered(self) -> list[int]:
        return [int(each[TIMES] > 0) for each in self.got]


class Yards(World):
    """What tests do with declared queues, in any world."""

    @cached_property
    def confirmed(self) -> list[tuple[Any, OnelogError | None]]:
        """What publishers were told, and by which token."""
        return []

    @property
    def works(self) -> WorkQueues:
        return self.broker.queues.declared

    def queue(self, name: str = "q", *, durable: bool = True, **settings: Any) -> WorkQueue:
        return self.works.declare(SELF, "/", name, durable=durable, **settings)

    def find(self, name: str = "q") -> WorkQueue:
        return self.works.find(SELF, "/", name)

    def put(self, *bodies: bytes, key: str = "q", exchange: str = "", **properties: Any) -> None:
        raw = encode_properties(properties)
        for body in bodies:
            self.broker.publish.routing.publish(
                SELF,
                "/",
                exchange,
                key,
                raw,
                body,
                lambda token, where, error: self.confirmed.append((token, error)),
                body,
            )

    def settle(self) -> None:
        """Let the loop go round until nothing is left to do."""
        while self.soon:
            self.end_tick()

    def put_all(self, *bodies: bytes, key: str = "q", **how: Any) -> None:
        """Publish, and let it arrive."""
        self.put(*bodies, key=key, **how)
        self.settle()

    def consume(self, name: str = "q", *, window: Window | None = None, **settings: Any) -> Taker:
        taker = Taker()
        taker.consumer = self.works.consume(
            SELF,
            "/",
            name,
            taker.deliver,
            taker.cancel,
            window=window,
            on_bodies=taker.take_bodies,
            **settings,
        )
        self.settle()
        return taker

    def get(self, name: str = "q", **how: Any) -> Delivery | None:
        found: list[Delivery | None] = []

        def got(
            token: Any,
            delivery: Delivery | None,
            queue: WorkQueue,
            left: int,
            error: OnelogError | None,
        ) -> None:
            assert error is None
            found.append(delivery)

        self.works.get(SELF, "/", name, got, **how)
        return found[0]

    def drain(self, name: str = "q") -> list[bytes]:
        """Everything that is ready, taken and done."""
        found = []
        while (delivery := self.get(name, no_ack=True)) is not None:
            found.append(body_of(delivery))
        return found

    def record(self) -> None:
        """Let what changed reach the log."""
        self.advance(10)
        self.settle()

    def counts(self, name: str = "q") -> tuple[int, int]:
        queue = self.find(name)
        return queue.ready, queue.unacked


class Yard(Yards):
    """A broker with declared queues."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)


class MasterYard(Yards, Master):
    """One with replicas that have to confirm what it writes."""


class FollowerYard(Yards, Follower):
    """One that is sent the log of another."""
