"""The synchronous pull consumer, called from threads beside the loop of the brokers."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Unpack

import pytest

from onelog.client import Queue, ReceivedMessage
from onelog.client.connection import background
from onelog.client.consumer.pull.consumer import PullConsumer, PullConsumerOptions
from onelog.errors import (
    ClientClosedError,
    ForkedError,
    OffsetOutOfRangeError,
    WrongLoopError,
)
from tests.client.live_cluster import LiveCluster, live_cluster

FIRST, SECOND = Queue("orders", "broker-a", 0), Queue("orders", "broker-a", 1)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        await running.create_topic("orders", queues=2)
        yield running


def consumer(address: str, **options: Unpack[PullConsumerOptions]) -> PullConsumer:
    given: PullConsumerOptions = {"nameserver": address, "start": "first", **options}
    return PullConsumer("readers", **given)


def polled(reading: PullConsumer, count: int) -> list[bytes]:
    """The bodies of so many messages, in as many polls as it takes."""
    messages: list[ReceivedMessage] = []
    deadline = time.monotonic() + 60
    while len(messages) < count and time.monotonic() < deadline:
        messages += reading.poll(1.0, count=count - len(messages))
    return [message.body for message in messages]


async def send(cluster: LiveCluster, count: int) -> list[bytes]:
    sent = [b"%d" % number for number in range(count)]
    for body in sent:
        await cluster.send("orders", body)
    return sent


async def test_messages_are_polled_and_the_next_consumer_goes_on(cluster: LiveCluster) -> None:
    sent = await send(cluster, 6)

    def read() -> None:
        with consumer(cluster.addresses) as reading:
            reading.subscribe("orders")
            assert polled(reading, 4) == sent[:4]
            assert reading.assigned == (FIRST, SECOND)
            assert reading.group == "readers"
            assert reading.client_id
        with consumer(cluster.addresses) as reading:
            reading.subscribe("orders")
            for expected, message in zip(sent[4:], reading, strict=False):
                assert message.body == expected

    await asyncio.to_thread(read)


async def test_everything_that_moves_a_consumer_moves_it(cluster: LiveCluster) -> None:
    sent = await send(cluster, 6)

    def read() -> None:
        with consumer(cluster.addresses, auto_commit=False) as reading:
            assert reading.queues("orders") == (FIRST, SECOND)
            reading.assign([FIRST, SECOND])
            reading.seek(FIRST, 5)
            assert polled(reading, 1) == sent[5:]
            reading.seek_to_begin(FIRST)
            assert reading.position(FIRST) == 0
            reading.seek_to_end()
            assert reading.position(FIRST) == 6
            reading.seek_to_time(datetime.now(UTC) - timedelta(hours=1), FIRST)
            assert polled(reading, 2) == sent[:2]
            assert reading.lag() == {FIRST: 4, SECOND: 0}
            reading.commit()
            assert reading.committed(FIRST) == 2
            reading.commit({FIRST: 3})
            assert reading.committed(FIRST) == 3
            assert reading.begin_offsets(FIRST) == {FIRST: 0}
            assert reading.end_offsets(FIRST) == {FIRST: 6}
            assert reading.offsets_for_time(datetime.now(UTC), FIRST) == {FIRST: 6}
            reading.pause(FIRST)
            assert reading.paused == (FIRST,)
            assert reading.poll(0.05) == []
            reading.resume()
            assert polled(reading, 4) == sent[2:]
            with pytest.raises(OffsetOutOfRangeError):
                reading.seek(FIRST, 7)

    await asyncio.to_thread(read)


async def test_an_error_leaves_the_last_poll_for_the_next_consumer(cluster: LiveCluster) -> None:
    sent = await send(cluster, 3)

    def fail() -> None:
        with consumer(cluster.addresses) as reading:
            reading.assign([FIRST])
            assert len(reading.poll(20, count=2)) == 2
            assert len(reading.poll(20, count=1)) == 1
            raise ZeroDivisionError

    def read() -> None:
        with pytest.raises(ZeroDivisionError):
            fail()
        with consumer(cluster.addresses) as reading:
            reading.assign([FIRST])
            assert polled(reading, 1) == sent[2:]

    await asyncio.to_thread(read)


async def test_threads_may_share_a_consumer(cluster: LiveCluster) -> None:
    sent = await send(cluster, 40)
    found: list[bytes] = []

    def read(reading: PullConsumer) -> None:
        while len(found) < len(sent):
            found.extend(message.body for message in reading.poll(0.2, count=3))

    def run() -> None:
        with consumer(cluster.addresses) as reading:
            reading.subscribe("orders")
            threads = [threading.Thread(target=read, args=(reading,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            reading.unsubscribe("orders")

    await asyncio.to_thread(run)
    assert sorted(found) == sorted(sent)


async def test_a_consumer_that_is_not_open_says_so(cluster: LiveCluster) -> None:
    def run() -> None:
        reading = consumer(cluster.addresses)
        reading.subscribe("orders")
        with pytest.raises(ClientClosedError, match="not started"):
            reading.poll()
        reading.start()
        reading.start()
        assert reading.poll(0) == []
        reading.close()
        reading.close()
        with pytest.raises(ClientClosedError, match="make a new one"):
            reading.poll()
        with pytest.raises(ClientClosedError, match="make a new one"):
            reading.start()
        with pytest.raises(ClientClosedError, match="make a new one"):
            reading.subscribe("orders")

    await asyncio.to_thread(run)


async def test_a_call_on_the_background_loop_itself_is_refused(cluster: LiveCluster) -> None:
    def run() -> None:
        async def poll() -> None:
            with pytest.raises(WrongLoopError):
                reading.poll()

        with consumer(cluster.addresses) as reading:
            reading.subscribe("orders")
            background.run(poll())

    await asyncio.to_thread(run)


def test_ctrl_c_ends_a_poll() -> None:
    with consumer("127.0.0.1:9", timeout=0.2) as reading:
        reading.subscribe("orders")
        me = threading.get_ident()
        timer = threading.Timer(0.2, lambda: signal.pthread_kill(me, signal.SIGINT))

        def poll() -> None:
            timer.start()
            reading.poll(60)

        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            poll()
        assert time.monotonic() - began < 30
        timer.join()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_consumer_of_the_parent_is_refused_after_a_fork() -> None:
    with consumer("127.0.0.1:9", timeout=0.2) as reading:
        reading.subscribe("orders")
        child = os.fork()
        if child == 0:
            try:
                reading.poll(0)
            except ForkedError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
