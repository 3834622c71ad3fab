"""A broker and its name server inside the user's process, for tests and small tools.

    with onelog.embedded() as mq:               async with onelog.embedded() as mq:
        mq.producer("app").send(...)                await mq.producer("app").send(...)

It is the same broker as ever, on another kind of connection: clients of this process reach it
through memory, without a socket. Only with a `port` do others reach it, too. With `with` it runs on
the background loop of the SDK, with `async with` on the running loop; clients may run on any loop.

Invariant: when the block ends, nothing of it is left: no thread, no port, and no file, unless the
folder was given.
"""

import asyncio
import contextlib
import fcntl
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from onelog.client.admin.admin import Admin, AsyncAdmin
from onelog.client.admin.topics import TopicChange
from onelog.client.connection import background
from onelog.client.consumer.pull.consumer import (
    AsyncPullConsumer,
    PullConsumer,
    PullConsumerOptions,
)
from onelog.client.consumer.push.consumer import AsyncPushConsumer, PushConsumer
from onelog.client.options import ConsumerOptions, ProducerOptions
from onelog.client.producer.producer import AsyncProducer, Producer
from onelog.config import Value
from onelog.config_sources import load
from onelog.gateways.direct import Direct
from onelog.gateways.remoting.gateway import RemotingGateway
from onelog.nameserver.server import serve_nameserver
from onelog.net.capacity import make_capacity
from onelog.net.connection import Limits
from onelog.net.listener import Listener
from onelog.net.memory import MemoryListener, host_address, host_name
from onelog.server import BrokerServer

NAMESERVER_PORT = 9876
BROKER_PORT = 10911
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_BYTES_MIN = 256 << 20
"""Containers often have 64 MiB of it, which is not enough."""
FOLDER_PREFIX = "onelog-embedded-"
STALE_SECONDS = 60

SMALL: dict[str, Value] = {
    "store.segment_bytes": 64 << 20,
    "store.queue_file_entries": 10_000,
    "store.index_slots": 20_000,
    "store.index_entries": 80_000,
}
"""Files of a store that lives in memory: what is not used costs nothing, what is opened little."""
ALWAYS: dict[str, Value] = {
    "store.disk_clean_percent": 97,
    "store.disk_force_percent": 98,
    "store.disk_refuse_percent": 99,
    "broker.vip_port": 0,
    "kafka.port": 0,
    "kafka.initial_rebalance_delay_ms": 0,
    "http.port": 0,
    "amqp.port": 0,
    "stomp.port": 0,
    "mqtt.port": 0,
    "grpc.port": 0,
}

_Found = tuple[str, Path, str, str, tuple[str, int] | None, int]
"""The fields of a `_BrokerFolder`."""
_numbers: set[int] = set()
_numbers_lock = threading.Lock()


class Embedding:
    """A broker that is not started yet: `with` and `async with` do that."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        port: int | None,
        settings: Mapping[str, Value],
        protocols: Sequence[str] = (),
    ) -> None:
        self._folder = None if folder is None else Path(folder).expanduser()
        # Clients of other protocols come through sockets only.
        self._port = 0 if protocols and port is None else port
        settings = {**{f"{name}__port": -1 for name in protocols}, **settings}
        self._settings = {key.replace("__", ".", 1): value for key, value in settings.items()}
        self._running: list[contextlib.AsyncExitStack] = []

    def __enter__(self) -> "EmbeddedBroker":
        return EmbeddedBroker(*background.run(self._start()))

    def __exit__(self, *raised: object) -> None:
        background.run(self._stop())

    async def __aenter__(self) -> "AsyncEmbeddedBroker":
        return AsyncEmbeddedBroker(*await self._start())

    async def __aexit__(self, *raised: object) -> None:
        await self._stop()

    async def _start(self) -> _Found:
        stack = contextlib.AsyncExitStack()
        broker = await stack.enter_async_context(_running(self._folder, self._port, self._settings))
        self._running.append(stack)
        return broker

    async def _stop(self) -> None:
        await self._running.pop().aclose()


@dataclass(eq=False, repr=False)
class _BrokerFolder:
    """Where a running broker is found."""

    nameserver: str
    """The name server's address, for clients of this process; those of others need a port."""
    folder: Path
    """What it keeps: the folder `store`, and the name server's file."""
    bootstrap_servers: str
    """Where Kafka's clients begin; empty, if it has no port for them."""
    amqp_url: str
    """Where RabbitMQ's clients connect to; empty, if it has no port for them."""
    stomp_address: tuple[str, int] | None
    """Host and port of STOMP's clients; None, if it has none for them."""
    mqtt_port: int
    """Of MQTT's clients, on 127.0.0.1; 0, if it has no port for them."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.nameserver}>"


class EmbeddedBroker(_BrokerFolder):
    """A running broker, and synchronous clients of it."""

    def admin(self) -> Admin:
        """An administrator, to be used with `with`."""
        return Admin.connect(self.nameserver)

    def producer(self, group: str, **options: Unpack[ProducerOptions]) -> Producer:
        """A producer, to be used with `with`."""
        options["nameserver"] = self.nameserver
        return Producer(group, **options)

    def push_consumer(self, group: str, **options: Unpack[ConsumerOptions]) -> PushConsumer:
        """A push consumer, to be used with `with`."""
        options["nameserver"] = self.nameserver
        return PushConsumer(group, **options)

    def pull_consumer(self, group: str, **options: Unpack[PullConsumerOptions]) -> PullConsumer:
        """A pull consumer, to be used with `with`."""
        options["nameserver"] = self.nameserver
        return PullConsumer(group, **options)

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create a topic; without this, its first message does."""
        background.run(_create_topic(self.nameserver, topic, queues))


class AsyncEmbeddedBroker(_BrokerFolder):
    """A running broker, and asyncio clients of it."""

    def admin(self) -> AsyncAdmin:
        """An administrator, to be used with `async with`."""
        return AsyncAdmin.connect(self.nameserver)

    def producer(self, group: str, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """A producer, to be used with `async with`."""
        options["nameserver"] = self.nameserver
        return AsyncProducer(group, **options)

    def push_consumer(self, group: str, **options: Unpack[ConsumerOptions]) -> AsyncPushConsumer:
        """A push consumer, to be used with `async with`."""
        options["nameserver"] = self.nameserver
        return AsyncPushConsumer(group, **options)

    def pull_consumer(
        self, group: str, **options: Unpack[PullConsumerOptions]
    ) -> AsyncPullConsumer:
        """A pull consumer, to be used with `async with`."""
        options["nameserver"] = self.nameserver
        return AsyncPullConsumer(group, **options)

    async def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create a topic; without this, its first message does."""
        await _create_topic(self.nameserver, topic, queues)


@contextlib.asynccontextmanager
async def _running(
    folder: Path | None, port: int | None, settings: Mapping[str, Value]
) -> AsyncIterator[_Found]:
    """A name server and a broker that know each other: what a `_BrokerFolder` says of them."""
    async with contextlib.AsyncExitStack() as stack:
        number = _take_number()
        stack.callback(_numbers.discard, number)
        if folder is None:
            settings = {**SMALL, **settings}
            folder = await asyncio.to_thread(_make_folder)
            stack.push_async_callback(asyncio.to_thread, shutil.rmtree, folder, ignore_errors=True)
        listening: tuple[type[Listener], ...] = (MemoryListener,)
        addresses: dict[str, Value] = {
            "nameserver.host": host_name(number),
            "nameserver.port": NAMESERVER_PORT,
            "broker.host": host_address(number),
            "broker.port": BROKER_PORT,
        }
        if port is not None:
            listening = (Listener, MemoryListener)
            addresses |= dict.fromkeys(("nameserver.host", "broker.host"), "127.0.0.1")
            addresses |= {"nameserver.port": port, "broker.port": 0}
        given = {
            **ALWAYS,
            **addresses,
            "nameserver.kv_path": str(folder / "kvConfig.json"),
            "broker.store_path": str(folder / "store"),
            **settings,
        }
        config = load(overrides=given).config
        capacity = make_capacity(config.net)
        nameserver = await serve_nameserver(
            config.nameserver,
            tls=config.tls,
            limits=Limits(capacity=capacity),
            listening=listening,
        )
        stack.push_async_callback(nameserver.close)
        address = ":".join(map(str, nameserver.address))
        loaded = load(overrides={**given, "broker.nameservers": address})
        broker = BrokerServer(loaded, listening, capacity)
        await broker.start()
        stack.push_async_callback(broker.close)
        gateway = broker.gateways["broker"]
        assert isinstance(gateway, RemotingGateway)
        direct = Direct(broker.broker, gateway, asyncio.get_running_loop().call_soon)
        for listener in broker.listeners:
            if isinstance(listener, MemoryListener):
                listener.make_line = direct.line
        config = broker.config
        kafka, amqp, stomp = config.kafka, config.amqp, config.stomp
        yield (
            address,
            folder,
            f"127.0.0.1:{kafka.port}" if kafka.port else "",
            f"amqp://guest:guest@127.0.0.1:{amqp.port}/" if amqp.port else "",
            ("127.0.0.1", stomp.port) if stomp.port else None,
            config.mqtt.port,
        )


async def _create_topic(nameserver: str, topic: str, queues: int) -> None:
    async with AsyncAdmin.connect(nameserver) as admin:
        await admin.topics.create(topic, TopicChange(read_queues=queues, write_queues=queues))


def _take_number() -> int:
    """The smallest number that no running broker of this process has.

    A folder that is opened again by one broker at a time thus keeps its address, which is part of
    the ids of the messages in it.
    """
    with _numbers_lock:
        number = next(each for each in itertools.count(1) if each not in _numbers)
        _numbers.add(number)
        return number


def _make_folder() -> Path:
    """A private folder in memory, where there is such a thing."""
    parent = Path(tempfile.gettempdir())
    if os.access(SHARED_MEMORY, os.W_OK) and _is_roomy(SHARED_MEMORY):
        parent = SHARED_MEMORY
    _remove_stale(parent)
    return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))


def _is_roomy(folder: Path) -> bool:
    return shutil.disk_usage(folder).free >= SHARED_MEMORY_BYTES_MIN


def _remove_stale(parent: Path) -> None:
    """Remove what processes that were killed left behind: nobody holds the lock of such a store."""
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < STALE_SECONDS:
                continue
            with (folder / "store" / "lock").open("rb+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
