"""The synchronous push consumer: the same, with threads, signals and a program's end."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Unpack

import pytest

from onelog.client.consumer.listening import AnyListener
from onelog.client.consumer.push.consumer import PushConsumer
from onelog.client.message import ReceivedMessage
from onelog.client.options import ConsumerOptions
from onelog.errors import ConfigError, NameserversUnreachableError, WrongLoopError
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.watching import bodies
from tests.waiting import eventually

QUICK_RETRIES = " ".join(["1s"] * 18)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path, store__delay_levels=QUICK_RETRIES) as running:
        await running.create_topic("orders", 4)
        yield running


async def send(cluster: LiveCluster, start: int, stop: int) -> None:
    for number in range(start, stop):
        await cluster.send("orders", b"%d" % number, number % 4)


class Heard:
    """A listener that remembers what it got, and in which threads."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.numbers: list[int] = []
        self.threads: Counter[str] = Counter()
        self.seconds = seconds

    def __call__(self, message: ReceivedMessage) -> None:
        if self.seconds:
            time.sleep(self.seconds)
        self.threads[threading.current_thread().name] += 1
        self.numbers.append(int(message.body))


@contextlib.asynccontextmanager
async def consuming(
    cluster: LiveCluster, listener: AnyListener, **options: Unpack[ConsumerOptions]
) -> AsyncIterator[PushConsumer]:
    """A started consumer. Its calls block, and the cluster lives on this thread's loop."""
    options["nameserver"] = cluster.addresses
    options.setdefault("start", "first")
    consumer = PushConsumer("billing", **options)
    consumer.subscribe("orders", listener=listener)
    await asyncio.to_thread(consumer.start)
    try:
        yield consumer
    finally:
        await asyncio.to_thread(consumer.close)


async def test_messages_are_heard_in_threads_and_done_with(cluster: LiveCluster) -> None:
    heard = Heard()
    await send(cluster, 0, 300)
    async with consuming(cluster, heard) as consumer:
        await eventually(lambda: len(heard.numbers) == 300, "all are heard")

        async def nothing_left() -> bool:
            return set((await asyncio.to_thread(consumer.lag)).values()) == {0}

        await eventually(nothing_left, "all are done with")
        await asyncio.to_thread(consumer.commit)
        assert len(consumer.assigned) == 4
    assert sorted(heard.numbers) == list(range(300))
    assert threading.main_thread().name not in heard.threads
    assert cluster.brokers[0].core.offsets.get("billing", "orders", 0) == 75


async def test_slow_listeners_run_side_by_side(cluster: LiveCluster) -> None:
    running = threading.Semaphore(0)
    together = threading.Barrier(8)

    def listener(message: ReceivedMessage) -> None:
        together.wait(30)  # Goes on when eight are here at the same time.
        running.release()

    await send(cluster, 0, 16)
    async with consuming(cluster, listener, threads=8):
        assert await asyncio.to_thread(lambda: all(running.acquire(timeout=30) for _ in range(16)))


async def test_a_listener_that_raises_gets_the_message_again_and_then_it_is_a_dead_letter(
    cluster: LiveCluster,
) -> None:
    tries: list[tuple[int, int]] = []

    def listener(message: ReceivedMessage) -> None:
        tries.append((int(message.body), message.delivery_attempt))
        if int(message.body) == 2:
            raise ValueError("cannot bill")

    await send(cluster, 0, 4)
    async with consuming(cluster, listener, retries_max=1):

        async def is_dead() -> bool:
            return await bodies(cluster, "%DLQ%billing", 1) == [b"2"]

        await eventually(is_dead, "it is a dead letter")
    assert sorted(tries) == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 1)]


async def test_a_blocked_listener_loses_its_message_to_another_thread(
    cluster: LiveCluster,
) -> None:
    hold = threading.Event()
    attempts: list[int] = []

    def listener(message: ReceivedMessage) -> None:
        attempts.append(message.delivery_attempt)
        if message.delivery_attempt == 1:
            hold.wait(30)

    await send(cluster, 0, 1)
    async with consuming(cluster, listener, consume_timeout=0.2):
        await eventually(lambda: attempts == [1, 2], "it came again")
        hold.set()


async def test_in_order_each_queue_is_heard_in_its_order(cluster: LiveCluster) -> None:
    heard: dict[int, list[int]] = {queue: [] for queue in range(4)}

    def listener(message: ReceivedMessage) -> None:
        heard[message.queue.queue_id].append(int(message.body))

    await send(cluster, 0, 200)
    async with consuming(cluster, listener, orderly=True, threads=3):
        await eventually(lambda: sum(map(len, heard.values())) == 200, "all are heard")
    assert heard == {queue: list(range(queue, 200, 4)) for queue in range(4)}


async def test_what_is_in_hand_is_finished_at_the_end(cluster: LiveCluster) -> None:
    heard, again = Heard(seconds=0.005), Heard()
    await send(cluster, 0, 300)
    async with consuming(cluster, heard):
        await eventually(lambda: len(heard.numbers) > 20, "it works")
    finished = list(heard.numbers)
    async with consuming(cluster, again):
        await eventually(lambda: len(again.numbers) + len(finished) >= 300, "the rest")
    assert sorted(finished + again.numbers) == list(range(300))


async def test_run_ends_when_a_listener_stops_it(cluster: LiveCluster) -> None:
    consumer = PushConsumer("billing", nameserver=cluster.addresses, start="first")
    heard: list[bytes] = []

    @consumer.subscribe("orders")
    def bill(message: ReceivedMessage) -> None:
        heard.append(message.body)
        consumer.stop()

    await send(cluster, 0, 1)
    async with asyncio.timeout(30):
        await asyncio.to_thread(consumer.run)
    assert heard == [b"0"]
    assert cluster.brokers[0].core.offsets.get("billing", "orders", 0) == 1


async def test_subscribing_while_it_runs(cluster: LiveCluster) -> None:
    heard = Heard()
    async with consuming(cluster, Heard()) as consumer:
        await cluster.create_topic("refunds", 1)
        await asyncio.to_thread(lambda: consumer.subscribe("refunds", listener=heard))
        await cluster.send("refunds", b"7")
        await eventually(lambda: heard.numbers == [7], "the new topic is heard")


async def test_a_listener_cannot_close_its_own_consumer(cluster: LiveCluster) -> None:
    errors: list[BaseException] = []

    def listener(message: ReceivedMessage) -> None:
        try:
            consumer.close()
        except WrongLoopError as error:
            errors.append(error)

    async with consuming(cluster, listener) as consumer:
        await send(cluster, 0, 1)
        await eventually(lambda: len(errors) == 1, "it is told so")


def test_coroutine_functions_are_refused() -> None:
    consumer = PushConsumer("billing")

    async def listener(message: ReceivedMessage) -> None: ...

    with pytest.raises(TypeError, match="AsyncPushConsumer"):
        consumer.subscribe("orders", listener=listener)
    consumer.close()


def test_errors_of_the_start_come_out_of_run_and_nothing_is_left_behind() -> None:
    with PushConsumer("billing") as consumer, pytest.raises(ConfigError, match="subscribed to"):
        consumer.run()
    with PushConsumer("billing", nameserver="127.0.0.1:1", timeout=0.5) as consumer:
        consumer.subscribe("orders", listener=lambda message: None)
        with pytest.raises(NameserversUnreachableError):
            consumer.run()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


PROGRAM = """
import sys, time
from onelog.client.consumer.push.consumer import PushConsumer

seconds = float(sys.argv[2])
with PushConsumer("billing", nameserver=sys.argv[1], start="first", threads=2) as consumer:

    @consumer.subscribe("orders")
    def bill(message):
        print("begun", message.body.decode(), flush=True)
        time.sleep(seconds)
        print("done", message.body.decode(), flush=True)

    if seconds > 60:
        core_close = consumer._core.close

        def close(_):
            print("closing", flush=True)
            return core_close(seconds)

        consumer._core.close = close
    consumer.run()
print("the end", flush=True)
"""


@contextlib.asynccontextmanager
async def program(
    cluster: LiveCluster, seconds: float
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        cluster.addresses,
        str(seconds),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(60):
        read = (await process.stdout.readline()).decode().strip()
    assert read, (await process.communicate())[1].decode()
    return read


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_a_program_after_what_is_in_hand(
    cluster: LiveCluster, number: signal.Signals
) -> None:
    await send(cluster, 0, 1)
    async with program(cluster, 0.5) as process:
        assert await line(process) == "begun 0"
        process.send_signal(number)
        assert await line(process) == "done 0"
        assert await line(process) == "the end"
        async with asyncio.timeout(30):
            _, errors = await process.communicate()
        assert (process.returncode, errors.decode()) == (0, "")
    assert cluster.brokers[0].core.offsets.get("billing", "orders", 0) == 1
    assert cluster.brokers[0].core.members.group("billing") is None


async def test_a_second_ctrl_c_does_not_wait_for_listeners(cluster: LiveCluster) -> None:
    await send(cluster, 0, 1)
    async with program(cluster, 600) as process:
        assert await line(process) == "begun 0"
        process.send_signal(signal.SIGINT)
        assert await line(process) == "closing"
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            _, errors = await process.communicate()
        assert "KeyboardInterrupt" in errors.decode()
    assert cluster.brokers[0].core.offsets.get("billing", "orders", 0) in (None, 0)
