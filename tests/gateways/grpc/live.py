"""A real broker with its gRPC port, and RocketMQ's own clients for it, in threads of their own."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import rocketmq
from rocketmq.v5.exception.client_exception import IllegalStateException

from onelog.config import Value
from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.server import BrokerServer
from tests.gateways.remoting.live import broker

SECONDS = 30.0
"""The longest that a client waits for anything, on a machine that is busy."""

_Found = TypeVar("_Found")


@contextlib.asynccontextmanager
async def grpc_broker(folder: Path, **settings: Value) -> AsyncIterator[BrokerServer]:
    """A broker with gRPC on a free port; settings as `grpc__poll_min_ms=4`."""
    usual: dict[str, Value] = {
        "grpc__port": -1,
        "grpc__poll_min_ms": 100,
        "grpc__invisible_min_ms": 100,
        "store__body_bytes_max": 2 << 20,
        "store__segment_bytes": 16 << 20,
        "store__queue_file_entries": 10_000,
    }
    async with broker(folder, **{**usual, **settings}) as server:
        yield server


def address(server: BrokerServer) -> str:
    """Where clients begin."""
    return f"127.0.0.1:{server.config.grpc.port}"


def make_topic(server: BrokerServer, name: str, kind: str = "NORMAL", queues: int = 4) -> str:
    """A topic for messages of a type."""
    attributes = {"message.type": kind} if kind else {}
    config = TopicConfig(name, queues, queues, attributes=attributes)
    server.broker.topics.create(SELF, config)
    return name


def make_group(server: BrokerServer, name: str, **settings: Any) -> str:
    """A consumer group."""
    server.broker.groups.put(SELF, GroupConfig(name, **settings))
    return name


async def in_thread(act: Callable[..., _Found], *arguments: Any) -> _Found:
    """What blocks, beside the broker."""
    async with asyncio.timeout(120):
        return await asyncio.to_thread(act, *arguments)


def configuration(at: str, namespace: str = "") -> rocketmq.ClientConfiguration:
    """How clients connect."""
    credentials = rocketmq.Credentials()
    return rocketmq.ClientConfiguration(at, credentials, namespace, request_timeout=20)


def message(
    topic: str,
    body: bytes,
    *,
    tag: str = "",
    group: str = "",
    key: str = "",
    delay_s: float = 0,
    **properties: str,
) -> rocketmq.Message:
    """A message to send."""
    made = rocketmq.Message()
    made.topic, made.body = topic, body
    if tag:
        made.tag = tag
    if key:
        made.keys = key
    if group:
        made.message_group = group
    if delay_s:
        made.delivery_timestamp = int(time.time() + delay_s)
    for name, value in properties.items():
        made.add_property(name, value)
    return made


def _started(make: Callable[[], Any]) -> Any:
    """A client that has started.

    Now and then the official one does not: it looks for an event loop in a thread that has none,
    before anything is sent. Then another one is made.
    """
    for _ in range(2):
        made = make()
        try:
            made.startup()
        except (AttributeError, IllegalStateException):
            continue
        return made
    made = make()
    made.startup()
    return made


@contextlib.contextmanager
def producer(at: str, *topics: str, **options: Any) -> Iterator[rocketmq.Producer]:
    """A producer of those topics."""
    given = configuration(at, options.pop("namespace", ""))
    made = _started(lambda: rocketmq.Producer(given, topics, **options))
    try:
        yield made
    finally:
        made.shutdown()


@contextlib.contextmanager
def simple_consumer(
    at: str, group: str, topic: str, tags: str = "*", **options: Any
) -> Iterator[rocketmq.SimpleConsumer]:
    """A consumer that is asked for messages."""
    given = configuration(at, options.pop("namespace", ""))
    wanted = {topic: rocketmq.FilterExpression(tags)}
    made = _started(
        lambda: rocketmq.SimpleConsumer(given, group, wanted, await_duration=1, **options)
    )
    try:
        yield made
    finally:
        made.shutdown()


class Listener(rocketmq.MessageListener):  # type: ignore[misc]
    """Remembers what it got."""

    def __init__(self, count: int, fail_times: int = 0) -> None:
        self.got: list[rocketmq.Message] = []
        self.enough = threading.Event()
        self.failing = fail_times
        self._count = count
        self._lock = threading.Lock()

    def consume(self, message: rocketmq.Message) -> rocketmq.ConsumeResult:
        """One message."""
        with self._lock:
            if self.failing:
                self.failing -= 1
                return rocketmq.ConsumeResult.FAILURE
            self.got.append(message)
            if len(self.got) >= self._count:
                self.enough.set()
        return rocketmq.ConsumeResult.SUCCESS

    @property
    def bodies(self) -> list[bytes]:
        """What was in them."""
        return [bytes(each.body) for each in self.got]


@contextlib.contextmanager
def push_consumer(at: str, group: str, topic: str, listener: Listener) -> Iterator[Any]:
    """A consumer that calls a listener."""
    wanted = {topic: rocketmq.FilterExpression("*")}
    made = _started(lambda: rocketmq.PushConsumer(configuration(at), group, listener, wanted))
    try:
        yield made
    finally:
        made.shutdown()


def receive(
    consumer: rocketmq.SimpleConsumer, count: int, invisible_s: int = 20, seconds: float = SECONDS
) -> list[rocketmq.Message]:
    """So many messages, or those that came in time."""
    found: list[rocketmq.Message] = []
    until = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < until:
        found += consumer.receive(min(32, count - len(found)), invisible_s) or []
    return found
