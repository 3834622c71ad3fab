"""A name server and brokers on a thread of their own, while the test waits for Spark."""

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.topics import TopicChange
from onelog.config import Value
from onelog.config_sources import load
from onelog.message import NewMessage, encode_properties
from onelog.nameserver.server import NameServer
from onelog.net.tls import client_context
from onelog.server import BrokerServer, running_broker, running_nameserver
from tests.gateways.remoting.live import PATIENCE_MS, SMALL
from tests.ports import free_port

T = TypeVar("T")
S = TypeVar("S")
WAIT_SECONDS = 60


@dataclass
class _Running:
    server: Any
    stop: asyncio.Event
    task: "asyncio.Task[None]"


@dataclass
class ThreadedCluster:
    """Settings as `broker__name="x"`."""

    folder: Path
    brokers_count: int = 1
    settings: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._brokers: list[_Running | None] = []
        self._ports: dict[int, int] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        given = {key.replace("__", "."): value for key, value in self.settings.items()}
        tls = {key: value for key, value in given.items() if key.startswith("tls.")}
        loaded = load(
            overrides={
                "nameserver.port": 0,
                "nameserver.kv_path": str(self.folder / "kv.json"),
                **tls,
            }
        )
        self._nameserver = self.run(self._start(running_nameserver(loaded)))
        for number in range(self.brokers_count):
            self._brokers.append(None)
            self.start_broker(number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in range(len(self._brokers)):
            self.stop_broker(number)
        self.run(self._stop(self._nameserver))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine where the servers are."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_SECONDS)

    @staticmethod
    async def _start(context: AbstractAsyncContextManager[S]) -> _Running:
        started: asyncio.Future[S] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()

        async def serve() -> None:
            try:
                async with context as server:
                    started.set_result(server)
                    await stop.wait()
            except BaseException as error:
                if started.done():
                    raise
                started.set_exception(error)

        task = asyncio.ensure_future(serve())
        return _Running(await started, stop, task)

    @staticmethod
    async def _stop(running: _Running) -> None:
        running.stop.set()
        await running.task

    # -- servers -------------------------------------------------------------------------------

    @property
    def nameserver(self) -> str:
        server: NameServer = self._nameserver.server
        host, port = server.address
        return f"{host}:{port}"

    def broker(self, number: int = 0) -> BrokerServer:
        running = self._brokers[number]
        assert running is not None
        server: BrokerServer = running.server
        return server

    def store_folder(self, number: int = 0) -> Path:
        return self.folder / f"store-{number}"

    def start_broker(self, number: int = 0) -> None:
        """Start a broker, where it was before if it was there before."""
        if number not in self._ports:
            self._ports[number] = free_port()
        overrides: dict[str, Value] = {
            **SMALL,
            "broker.name": f"broker-{'abc'[number]}",
            "broker.nameservers": self.nameserver,
            "broker.store_path": str(self.store_folder(number)),
            "broker.port": self._ports[number],
            **{key.replace("__", "."): value for key, value in self.settings.items()},
        }
        self._brokers[number] = self.run(self._start(running_broker(load(overrides=overrides))))

    def stop_broker(self, number: int = 0) -> None:
        running, self._brokers[number] = self._brokers[number], None
        if running is not None:
            self.run(self._stop(running))

    def _tls(self) -> ssl.SSLContext | None:
        return client_context() if "tls__cert_path" in self.settings else None

    # -- topics --------------------------------------------------------------------------------

    def topic(self, name: str, queues: int = 2, broker: int | None = None) -> None:
        async def create() -> None:
            async with AsyncAdmin.connect(
                self.nameserver, tls=self._tls(), timeout_ms=PATIENCE_MS
            ) as admin:
                change = TopicChange(read_queues=queues, write_queues=queues)
                named = None if broker is None else f"broker-{'abc'[broker]}"
                cluster = "DefaultCluster" if broker is None else None
                await admin.topics.create(name, change, cluster=cluster, broker=named)

        self.run(create())

    def delete_topic(self, name: str) -> None:
        async def delete() -> None:
            async with AsyncAdmin.connect(self.nameserver, timeout_ms=PATIENCE_MS) as admin:
                await admin.topics.delete(name)

        self.run(delete())

    def send(
        self,
        topic: str,
        bodies: Sequence[bytes],
        queue: int = 0,
        broker: int = 0,
        **properties: str,
    ) -> None:
        """Put messages into one queue, as if they had been sent."""
        encoded = encode_properties(properties)
        messages = [NewMessage(topic, queue, body, encoded) for body in bodies]

        async def append() -> None:
            self.broker(broker).core.store.append(messages)

        self.run(append())

    def fill(self, topic: str, count: int, queues: int = 2, broker: int = 0) -> None:
        """Messages with their own numbers as bodies, to one queue after the other."""
        for queue in range(queues):
            bodies = [b"%d" % number for number in range(queue, count, queues)]
            self.send(topic, bodies, queue, broker)
