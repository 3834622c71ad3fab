"""The client-pushes suite: what the SDK's push consumers reach against OneLog in another process.

One `onelog up`, one topic of eight queues that is full of messages with bodies of 128 bytes, and a
listener that does nothing but count. Every measurement is a group of its own that starts at the
beginning. The CPU time is the client's; the broker's is in the note.
"""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable
from typing import Unpack

import uvloop

from benchmarks.process_usage import cpu_seconds
from benchmarks.table import Options, Row, at_least
from benchmarks.timing import Rate, Stopwatch, best
from onelog.client import (
    AsyncProducer,
    AsyncPushConsumer,
    ConsumerOptions,
    Message,
    PushConsumer,
    Queue,
    ReceivedMessage,
)
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.remoting_probe import create_topic

TOPIC = "pushes"
QUEUES = 8
BODY = bytes(128)
BATCH = 250
RATE_MIN = 80_000
PATIENCE_SECONDS = 120.0

Counting = Callable[[Callable[[int], None]], Callable[..., object]]
"""Makes a listener that tells how many messages it got."""


def run(options: Options) -> list[Row]:
    """Measure."""
    count = 40_000 if options.quick else 400_000
    with OnelogPeer(options.folder, may_stall=True) as peer:
        create_topic(peer.broker_address, TOPIC, QUEUES)
        options.announce("filling the queues")
        uvloop.run(_fill(peer, count))
        suite = _Suite(peer, count, options.announce)
        return [
            suite.asynchronous("asyncio, coroutine functions", _coroutine, RATE_MIN),
            suite.asynchronous("asyncio, plain functions", _function),
            suite.asynchronous("asyncio, batches of 32", _batch, batch_size=32),
            suite.asynchronous("asyncio, in order", _coroutine, orderly=True),
            suite.asynchronous("asyncio, pop", _coroutine, pop=True),
            suite.synchronous("20 threads", _function, RATE_MIN),
            suite.synchronous("20 threads, in order", _function, orderly=True),
        ]


class _Suite:
    """Measurements against one broker."""

    def __init__(self, peer: OnelogPeer, count: int, announce: Callable[[str], None]) -> None:
        self._peer = peer
        self._count = count
        self._announce = announce
        self._groups = itertools.count(1)

    def asynchronous(
        self,
        name: str,
        listener: Counting,
        required: float | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Row:
        async def main() -> Stopwatch:
            left, done = self._count, asyncio.Event()

            def got(number: int) -> None:
                nonlocal left
                left -= number
                if left <= 0:
                    done.set()

            consumer = AsyncPushConsumer(self._group(), **self._told(options))
            async with consumer, asyncio.timeout(PATIENCE_SECONDS):
                consumer.subscribe(TOPIC, listener=listener(got))
                with Stopwatch() as watch:
                    await consumer.start()
                    await done.wait()
            return watch

        return self._row(name, lambda: uvloop.run(main()), required)

    def synchronous(
        self,
        name: str,
        listener: Counting,
        required: float | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Row:
        def main() -> Stopwatch:
            numbers, done = itertools.count(1), threading.Event()

            def got(number: int) -> None:
                if next(numbers) == self._count:
                    done.set()

            with PushConsumer(self._group(), **self._told(options)) as consumer:
                consumer.subscribe(TOPIC, listener=listener(got))
                with Stopwatch() as watch:
                    consumer.start()
                    assert done.wait(PATIENCE_SECONDS)
            return watch

        return self._row(name, main, required)

    def _group(self) -> str:
        return f"bench-{next(self._groups)}"

    def _told(self, options: ConsumerOptions) -> ConsumerOptions:
        return {**options, "nameserver": self._peer.nameservers, "start": "first"}

    def _row(
        self, name: str, measure: Callable[[], Stopwatch], required: float | None = None
    ) -> Row:
        self._announce(name)
        broker_us: list[float] = []

        def once() -> Rate:
            before = cpu_seconds(self._peer.broker_pids)
            watch = measure()
            used = cpu_seconds(self._peer.broker_pids) - before
            broker_us.append(used / self._count * 1e6)
            return Rate(self._count, watch.wall_s, watch.cpu_s)

        rate = best(once)
        note = f"broker {min(broker_us):.1f} CPU us each"
        if required is None:
            return Row(name, rate.per_second, "msg/s", cpu_us=rate.cpu_us, note=note)
        return at_least(name, rate.per_second, "msg/s", required, rate.cpu_us, note)


def _coroutine(got: Callable[[int], None]) -> Callable[[ReceivedMessage], Awaitable[None]]:
    async def listener(message: ReceivedMessage) -> None:
        got(1)

    return listener


def _function(got: Callable[[int], None]) -> Callable[[ReceivedMessage], None]:
    return lambda message: got(1)


def _batch(got: Callable[[int], None]) -> Callable[[list[ReceivedMessage]], None]:
    return lambda batch: got(len(batch))


async def _fill(peer: OnelogPeer, count: int) -> None:
    async with AsyncProducer("bench", nameserver=peer.nameservers) as producer:
        for number in range(count // BATCH):
            queue = Queue(TOPIC, peer.broker_name, number % QUEUES)
            await producer.send_batch([Message(TOPIC, BODY) for _ in range(BATCH)], queue=queue)
