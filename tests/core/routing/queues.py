"""Queues as tests have them: some in the log, some in memory, some that refuse."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onelog.core.access import SELF, Principal
from onelog.core.catalog.topics import TopicConfig
from onelog.core.routing.names import topic_of
from onelog.errors import OnelogError
from onelog.record.forms import amqp
from onelog.record.forms.amqp_fields import NO_PROPERTIES, encode_properties
from tests.core.world import World

GUEST = Principal("guest", "amqp")


@dataclass(eq=False)
class Queue:
    """One that keeps what it is given, if it is in memory."""

    name: str
    topic: str = ""
    is_durable: bool = False
    levels: int = 0
    is_limited: bool = False
    room: int = 0
    kept: list[tuple[bytes, int, int]] = field(default_factory=list)

    def put_all(self, bodies: Sequence[bytes], form: int) -> None:
        for body in bodies:
            self.put(body, form, 0)

    def admits(self, body: bytes, form: int) -> bool:
        self.room -= 1
        return self.room >= 0

    def put(self, body: bytes, form: int, priority: int) -> None:
        self.kept.append((body, form, priority))

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(amqp.read(body).body) for body, _, _ in self.kept]


@dataclass
class Routed:
    """A world with queues, and what was told of messages that were published there."""

    world: World
    queues: dict[tuple[str, str], Queue] = field(default_factory=dict)
    told: list[tuple[Any, OnelogError | None]] = field(default_factory=list)

    @property
    def routing(self) -> Any:
        return self.world.broker.publish.routing

    def queue(self, name: str, vhost: str = "/", **settings: Any) -> Queue:
        """A durable queue, in the log."""
        topic = topic_of(vhost, name)
        levels = settings.get("levels", 0)
        self.world.core.topics.ensure(TopicConfig(topic, levels + 1, levels + 1))
        return self.add(vhost, Queue(name, topic, True, **settings))

    def memory_queue(self, name: str, vhost: str = "/", **settings: Any) -> Queue:
        return self.add(vhost, Queue(name, **settings))

    def add(self, vhost: str, queue: Queue) -> Queue:
        self.queues[vhost, queue.name] = queue
        self.routing.add_queue(vhost, queue)
        return queue

    def bind(self, source: str, queue: str, key: str = "", **arguments: Any) -> None:
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        self.routing.bind(SELF, "/", source, "queue", queue, key, named)

    def publish(
        self, exchange: str, key: str, body: bytes = b"x", vhost: str = "/", **properties: Any
    ) -> int:
        raw = encode_properties(properties) if properties else NO_PROPERTIES
        count = self.routing.publish(GUEST, vhost, exchange, key, raw, body, self.on_stored, body)
        self.world.end_tick()
        return int(count)

    def on_stored(self, token: Any, where: Any, error: OnelogError | None) -> None:
        self.told.append((token, error))

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        found = self.world.messages(topic, queue_id)
        return [bytes(amqp.read(message.body).body) for message in found]

    def restart(self) -> None:
        """A clean restart; the durable queues are there again."""
        self.world.restart()
        self.come_back()

    def come_back(self) -> None:
        for (vhost, _), queue in self.queues.items():
            if queue.is_durable:
                self.routing.add_queue(vhost, queue)
