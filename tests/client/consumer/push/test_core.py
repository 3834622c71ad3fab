"""What both faces of the push consumer share: popping, failures of brokers, loops and processes."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from onelog.client.consumer import fetching as fetching_module
from onelog.client.consumer.listening import RetryLater
from onelog.client.consumer.push.consumer import AsyncPushConsumer, PushConsumer
from onelog.client.message import Queue, ReceivedMessage
from onelog.errors import WrongLoopError
from onelog.net.peer import Peer
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.watching import bodies
from tests.gateways.remoting.live import Client
from tests.ports import free_port
from tests.waiting import eventually


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path, store__delay_levels=" ".join(["1s"] * 18)) as running:
        await running.create_topic("orders", 2)
        yield running


async def test_popping_instead_of_pulling(cluster: LiveCluster) -> None:
    heard: list[tuple[bytes, int]] = []

    async def listener(message: ReceivedMessage) -> None:
        heard.append((message.body, message.delivery_attempt))
        if message.body == b"3":
            raise RetryLater(delay_level=-1)

    consumer = AsyncPushConsumer("billing", nameserver=cluster.addresses, pop=True, start="first")
    async with consumer:
        consumer.subscribe("orders", listener=listener)
        await consumer.start()
        for number in range(50):
            await cluster.send("orders", b"%d" % number, number % 2)
        await eventually(lambda: len(heard) == 50, "all are heard")

        async def is_dead() -> bool:
            return await bodies(cluster, "%DLQ%billing", 1) == [b"3"]

        await eventually(is_dead, "it is a dead letter")
        assert set((await consumer.lag()).values()) == {0}
    assert sorted(heard) == sorted((b"%d" % number, 1) for number in range(50))


async def test_popping_in_threads(cluster: LiveCluster) -> None:
    heard: list[bytes] = []
    consumer = PushConsumer("billing", nameserver=cluster.addresses, pop=True, start="first")
    consumer.subscribe("orders", listener=lambda message: heard.append(message.body))
    await asyncio.to_thread(consumer.start)
    for number in range(50):
        await cluster.send("orders", b"%d" % number, number % 2)
    await eventually(lambda: len(heard) == 50, "all are heard")
    await asyncio.to_thread(consumer.close)
    assert sorted(heard) == sorted(b"%d" % number for number in range(50))


async def test_a_strategy_that_raises_is_told_at_the_start_and_survived_later(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    broken = True

    def strategy(
        group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]
    ) -> list[Queue]:
        if broken:
            raise ZeroDivisionError("nobody there")
        return [*queues, *queues]

    def consumer() -> AsyncPushConsumer:
        made = AsyncPushConsumer("billing", nameserver=cluster.addresses, allocation=strategy)
        made.subscribe("orders", listener=lambda message: None)
        return made

    with pytest.raises(ZeroDivisionError):
        await consumer().start()
    broken = False
    async with consumer() as running:
        await running.start()
        assert len(running.assigned) == 2
        broken = True
        fetching = running._fetching
        assert fetching is not None
        fetching.rebalance()
        await eventually(lambda: "nobody there" in caplog.text, "it is logged")
        assert len(running.assigned) == 2


@contextlib.asynccontextmanager
async def broker_process(
    folder: Path, nameserver: int, broker: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A name server and a broker in a process of their own, once they listen."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "onelog",
        "up",
        "--data",
        str(folder),
        "--nameserver-port",
        str(nameserver),
        "--broker-port",
        str(broker),
        "--set",
        "store.segment_bytes=1048576",
        "--set",
        "store.disk_refuse_percent=99",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        for port in (nameserver, broker):
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection("127.0.0.1", port)
                        writer.close()
                        break
                    await asyncio.sleep(0.05)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_broker_that_is_killed_and_comes_back_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching_module, "RETRY_SECONDS", 0.1)
    ports = free_port(), free_port()
    heard: list[int] = []
    consumer = AsyncPushConsumer("billing", nameserver=f"127.0.0.1:{ports[0]}", start="first")
    consumer.subscribe("orders", listener=lambda message: heard.append(int(message.body)))

    async def send(start: int, stop: int) -> None:
        peer = await Peer.connect("127.0.0.1", ports[1])
        for number in range(start, stop):
            answer = await Client(peer, []).send("orders", b"%d" % number, e=number % 4)
            assert answer.code == 0, answer.remark
        await peer.close()

    async with consumer:
        async with broker_process(tmp_path, *ports) as process:
            await send(0, 100)
            await consumer.start()
            await eventually(lambda: len(heard) == 100, "all are heard")
            process.send_signal(signal.SIGKILL)
            await process.wait()
        async with broker_process(tmp_path, *ports):
            await send(100, 200)
            await eventually(lambda: len(set(heard)) == 200, "it goes on by itself", 40)
            await consumer.close()
    # The consumer knew where it was, whatever the broker had forgotten.
    assert sorted(heard) == list(range(200))


def test_a_loop_that_is_closed_early_leaves_nothing_that_hangs(tmp_path: Path) -> None:
    async def forget() -> AsyncPushConsumer:
        async with live_cluster(tmp_path) as cluster:
            await cluster.create_topic("orders", 1)
            consumer = AsyncPushConsumer("billing", nameserver=cluster.addresses)
            consumer.subscribe("orders", listener=lambda message: None)
            await consumer.start()
            for peer in consumer.instance.nodes._peers.values():
                peer.connection.abort()  # So that no socket is forgotten.
            await asyncio.sleep(0.05)
            return consumer

    consumer = asyncio.run(forget())
    asyncio.run(consumer.close())


async def test_a_consumer_cannot_be_closed_on_another_loop(cluster: LiveCluster) -> None:
    consumer = AsyncPushConsumer("billing", nameserver=cluster.addresses)
    async with consumer:
        consumer.subscribe("orders", listener=lambda message: None)
        await consumer.start()
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(lambda: asyncio.run(consumer.close()))


FORKING = """
import os, sys, threading
from onelog.client.consumer.push.consumer import PushConsumer
from onelog.errors import ForkedError

def consumer():
    made = PushConsumer("billing-" + str(os.getpid()), nameserver=sys.argv[1], start="first")
    heard = threading.Event()
    made.subscribe("orders", listener=lambda message: heard.set())
    made.start()
    assert heard.wait(30)
    return made

mine = consumer()
child = os.fork()
if child == 0:
    for wrong in (mine.start, mine.commit, mine.lag):
        try:
            wrong()
        except ForkedError:
            continue
        os._exit(3)
    mine.close()
    consumer().close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
mine.commit()
mine.close()
print("well", flush=True)
"""


async def test_after_a_fork_the_child_needs_its_own_and_the_parent_goes_on(
    cluster: LiveCluster,
) -> None:
    await cluster.send("orders", b"1")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        FORKING,
        cluster.addresses,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    async with asyncio.timeout(60):
        out, errors = await process.communicate()
    assert (process.returncode, out) == (0, b"well\n"), errors.decode()
