"""A set of brokers as processes, with an etcd of its own, under load."""

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from onelog.client import AsyncProducer, AsyncPullConsumer, Message
from onelog.errors import OnelogError, RegistryError
from onelog.nameserver.server import NameServer
from onelog.replication.administration import ReplicaSet
from onelog.replication.registry import View
from tests.commands.running import Ended, run_beside
from tests.ports import free_port

NAME = "broker-a"
SMALL = ["--set", "store.segment_bytes=4194304", "--set", "store.index_slots=1000"]
SMALL += ["--set", "store.index_entries=4000", "--set", "store.disk_force_percent=99"]
SMALL += ["--set", "store.disk_clean_percent=98", "--set", "store.disk_refuse_percent=99"]
for _section in ("kafka", "http", "amqp", "stomp", "mqtt", "grpc"):
    SMALL += ["--set", f"{_section}.port=0"]


class RealEtcd:
    """An etcd process on ports of its own."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("etcd")
        if program is None:
            pytest.skip("no etcd on this machine (Debian: apt-get install etcd-server)")
        self._program = program
        self._folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, again perhaps; it may take a moment until it answers."""
        client, peer = f"http://{self.address}", f"http://127.0.0.1:{self.port + 1}"
        self.process = subprocess.Popen(
            [
                *(self._program, "--name", "judge", "--data-dir", str(self._folder)),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"judge={peer}", "--log-level", "error"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def lose_all(self) -> None:
        """Begin anew, with nothing."""
        self.stop()
        shutil.rmtree(self._folder)
        self.start()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass
class LiveSet:
    """Processes, one per node."""

    folder: Path
    etcd: RealEtcd
    nameserver: NameServer
    ack: str = "majority"
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)
    acknowledged: list[str] = field(default_factory=list)
    refused: str = ""
    """Why the last message was not taken that was not."""

    def __post_init__(self) -> None:
        self.replicas = ReplicaSet(self.etcd.address, "DefaultCluster", NAME)

    @property
    def nameservers(self) -> str:
        host, port = self.nameserver.address
        return f"{host}:{port}"

    def start(self, number: int) -> None:
        port = self.ports.setdefault(number, free_port())
        with (self.folder / f"{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "onelog", "broker", "--name", NAME),
                    *("--id", str(number), "--etcd", self.etcd.address, "--replicas", "3"),
                    *("--ack", self.ack, "--port", str(port), "-n", self.nameservers),
                    *("--data", str(self.folder / f"store-{number}"), "-v", *SMALL),
                ],
                stdout=log,
                stderr=log,
            )

    def signal(self, number: int, what: signal.Signals) -> None:
        self.processes[number].send_signal(what)

    def end(self, number: int) -> None:
        self.processes[number].wait(60)

    async def view(self) -> View:
        try:
            return await self.replicas.view()
        except RegistryError:
            return View()

    async def eventually(self, holds: Callable[[View], bool], what: str) -> View:
        try:
            async with asyncio.timeout(90):
                while not holds(view := await self.view()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                return view
        except TimeoutError:
            logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
            raise AssertionError(f"{what}: {await self.view()}; {self.refused}\n{logs}") from None

    async def master(self) -> int:
        view = await self.eventually(
            lambda view: view.master is not None, "there should be a master"
        )
        assert view.master is not None
        return view.master.id

    async def another_master_than(self, old: int) -> None:
        await self.eventually(
            lambda view: view.master is not None and view.master.id != old,
            "another node should be master",
        )

    async def in_sync(self, *numbers: int) -> None:
        await self.eventually(
            lambda view: view.state is not None and view.state.in_sync == numbers,
            f"{numbers} should be in sync",
        )

    async def keep_sending(self) -> None:
        """Send one by one, and remember what was acknowledged. Ends when it is cancelled."""
        async with AsyncProducer("senders", nameserver=self.nameservers) as producer:
            number = 0
            while True:
                body = f"message {number}"
                number += 1
                try:
                    await producer.send(Message("orders", body.encode()), timeout=2)
                except OnelogError as error:
                    self.refused = str(error)
                    await asyncio.sleep(0.05)
                else:
                    self.acknowledged.append(body)
                await asyncio.sleep(0.001)

    async def sends(self) -> None:
        """Return when something more has been acknowledged."""
        enough = len(self.acknowledged) + 10
        await self.eventually(
            lambda _: len(self.acknowledged) >= enough, "messages should be taken"
        )

    async def read_all(self, wanted: list[str] | None = None) -> list[str]:
        """Messages, until what is wanted (or was acknowledged) is among them, or none come."""
        found: list[str] = []
        missing = set(self.acknowledged if wanted is None else wanted)
        async with AsyncPullConsumer(
            f"readers-{time.monotonic_ns()}", nameserver=self.nameservers, start="first"
        ) as consumer:
            consumer.subscribe("orders")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(60):
                    async for message in consumer:
                        found.append(message.body.decode())
                        missing.discard(found[-1])
                        if not missing:
                            break
        return found

    async def onelog(self, *words: str) -> Ended:
        return await run_beside(*words, "-n", self.nameservers)


@contextlib.asynccontextmanager
async def sending(live: LiveSet) -> AsyncIterator[None]:
    task = asyncio.create_task(live.keep_sending())
    await live.sends()
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
