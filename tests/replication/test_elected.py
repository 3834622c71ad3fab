"""Real brokers and a real etcd on loopback: plugs are pulled, and nothing acknowledged is lost."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from onelog.client import AsyncProducer, AsyncPullConsumer, Message
from onelog.config import Value, load
from onelog.errors import OnelogError, RegistryError
from onelog.nameserver.server import NameServer
from onelog.replication.administration import ReplicaSet
from onelog.replication.registry import View
from onelog.server import running_nameserver
from tests.commands.running import Ended, run_beside
from tests.ports import free_port
from tests.replication.conftest import RealEtcd

NAME = "broker-a"
SMALL = ["--set", "store.segment_bytes=4194304", "--set", "store.index_slots=1000"]
SMALL += ["--set", "store.index_entries=4000", "--set", "store.disk_force_percent=99"]
SMALL += ["--set", "store.disk_clean_percent=98", "--set", "store.disk_refuse_percent=99"]
for _section in ("kafka", "http", "amqp", "stomp", "mqtt", "grpc"):
    SMALL += ["--set", f"{_section}.port=0"]


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


@pytest.fixture
async def live(tmp_path: Path, real_etcd: RealEtcd) -> AsyncIterator[LiveSet]:
    settings: dict[str, Value] = {
        "nameserver.port": 0,
        "nameserver.kv_path": str(tmp_path / "kv.json"),
    }
    async with running_nameserver(load(overrides=settings)) as nameserver:
        live = LiveSet(tmp_path, real_etcd, nameserver)
        try:
            for number in range(3):
                live.start(number)
            await live.in_sync(0, 1, 2)
            yield live
        finally:
            for process in live.processes.values():
                process.kill()
                process.wait()
            await live.replicas.close()


async def test_another_node_goes_on_when_the_master_is_killed(live: LiveSet) -> None:
    async with sending(live):
        for _ in range(2):
            master = await live.master()
            live.signal(master, signal.SIGKILL)
            live.end(master)
            began = time.monotonic()
            await live.another_master_than(master)
            assert time.monotonic() - began < 10  # 3.5 s where nothing else runs.
            await live.sends()
            live.start(master)
            await live.in_sync(0, 1, 2)
        await live.sends()
    assert set(live.acknowledged) <= set(await live.read_all())


async def test_a_master_that_is_stopped_for_a_while_is_no_master_when_it_wakes(
    live: LiveSet,
) -> None:
    async with sending(live):
        master = await live.master()
        live.signal(master, signal.SIGSTOP)
        await live.another_master_than(master)
        await live.sends()
        live.signal(master, signal.SIGCONT)
        await live.in_sync(0, 1, 2)
        assert await live.master() != master
        await live.sends()
    assert set(live.acknowledged) <= set(await live.read_all())


async def test_without_etcd_writes_end_with_the_lease_and_reads_go_on(live: LiveSet) -> None:
    async with sending(live):
        live.etcd.stop()

        def is_fenced() -> bool:
            return "cannot prove its lease" in (live.folder / "0.log").read_text()

        async with asyncio.timeout(60):
            while not is_fenced():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        before = list(live.acknowledged)
        # A follower does not know of the last ones that they are confirmed; a new master will.
        read = await live.read_all(before[: len(before) // 2])
        assert set(before[: len(before) // 2]) <= set(read)
        assert live.acknowledged == before
        live.etcd.start()
        await live.sends()
    assert set(live.acknowledged) <= set(await live.read_all())


async def test_what_people_ask_of_a_set_is_done(live: LiveSet) -> None:
    async with sending(live):
        ended = await live.onelog("cluster", "promote", "2")
        assert (ended.code, ended.err) == (0, "")
        assert "node 2 is the master of epoch 2" in ended.out
        await live.sends()
        ended = await live.onelog("cluster", "demote", "--json")
        assert ended.document["epoch"] == 3
        assert ended.document["master"] != 2
        assert ended.document["seconds"] < 2
        await live.sends()
        ended = await live.onelog("cluster", "promote", "7")
        assert (ended.code, ended.err) == (2, "onelog: node 7 is not in sync\n")

        master = await live.master()
        ended = await live.onelog("cluster", "drain", str(master))
        assert (ended.code, ended.err) == (0, "")
        assert f"node {master} can be stopped" in ended.out
        live.signal(master, signal.SIGTERM)
        live.end(master)
        await live.sends()

        live.start(master)
        await live.in_sync(0, 1, 2)  # It is counted only if it is there.
        live.start(3)
        ended = await live.onelog("cluster", "join", "3", "--json")
        assert ended.document["replicas"] == 4
        await live.in_sync(0, 1, 2, 3)
        await live.sends()
        shown = await live.onelog("cluster", "status")
        assert "in sync 0, 1, 2, 3 of 4" in shown.out
        brokers = (await live.onelog("cluster", "status", "--json")).document
        assert [each["replica"]["role"] for each in brokers].count("master") == 1
        assert {each["replica"]["node"] for each in brokers} == {0, 1, 2, 3}
    assert set(live.acknowledged) <= set(await live.read_all())


async def test_nodes_can_be_restarted_one_after_the_other_under_load(live: LiveSet) -> None:
    async with sending(live):
        for number in (2, 1, 0):
            live.signal(number, signal.SIGTERM)
            live.end(number)
            assert live.processes[number].returncode == 0
            await live.sends()
            live.start(number)
            await live.in_sync(0, 1, 2)
    assert set(live.acknowledged) <= set(await live.read_all())
