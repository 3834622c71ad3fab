"""The client-sends suite: what the SDK's producers reach against OneLog in another process.

One `onelog up`, one topic, bodies of 128 bytes. The CPU time is the client's; the broker's is in
the note. Both share the machine with whatever else runs on it, so where the rates differ between
runs, the CPU times say more.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

import uvloop

from benchmarks.process_usage import cpu_seconds
from benchmarks.table import Options, Row, at_least
from benchmarks.timing import Rate, Stopwatch, best
from onelog.client import AsyncProducer, Message, Producer, Receipt
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.remoting_probe import create_topic

TOPIC = "sends"
QUEUES = 8
FUTURES_MAX = 1_000
"""Futures that one thread has at a time; more would only wait, and some too long."""
BODY = bytes(128)
ON_THE_WAY = 256
THREADS = 16
BATCH = 32
ASYNC_RATE_MIN = 60_000
THREADS_RATE_MIN = 15_000


def run(options: Options) -> list[Row]:
    """Measure."""
    scale = 1 if options.quick else 10
    with OnelogPeer(options.folder, may_stall=True) as peer:
        create_topic(peer.broker_address, TOPIC, QUEUES)
        suite = _Suite(peer, options.announce)
        return [
            suite.asynchronous(
                "asyncio, 256 on the way", 10_000 * scale, ON_THE_WAY, _send, ASYNC_RATE_MIN
            ),
            suite.asynchronous("asyncio, one at a time", 1_000 * scale, 1, _send),
            suite.asynchronous("asyncio, one-way", 10_000 * scale, 16, _send_oneway),
            suite.asynchronous(
                "asyncio, batches of 32", 20_000 * scale, 8, _send_batch, each=BATCH
            ),
            suite.synchronous("16 threads", 4_000 * scale, THREADS, THREADS_RATE_MIN),
            suite.synchronous("one thread", 1_000 * scale, 1),
            suite.futures("one thread, futures", 10_000 * scale),
        ]


class _Suite:
    """Measurements against one broker."""

    def __init__(self, peer: OnelogPeer, announce: Callable[[str], None]) -> None:
        self._peer = peer
        self._announce = announce

    def asynchronous(
        self,
        name: str,
        count: int,
        tasks: int,
        send: Callable[[AsyncProducer], Awaitable[object]],
        required: float | None = None,
        each: int = 1,
    ) -> Row:
        async def main() -> float:
            async with AsyncProducer("bench", nameserver=self._peer.nameservers) as producer:
                for _ in range(QUEUES):
                    await send(producer)
                left = count // each

                async def go_on() -> None:
                    nonlocal left
                    while left > 0:
                        left -= 1
                        await send(producer)

                with Stopwatch() as watch:
                    await asyncio.gather(*(go_on() for _ in range(tasks)))
                walls.append(watch.wall_s)
                return watch.cpu_s

        walls: list[float] = []
        return self._row(name, count, lambda: (uvloop.run(main()), walls.pop()), required)

    def synchronous(
        self, name: str, count: int, threads: int, required: float | None = None
    ) -> Row:
        def main() -> tuple[float, float]:
            with Producer("bench", nameserver=self._peer.nameservers) as producer:
                for _ in range(QUEUES):
                    producer.send(Message(TOPIC, BODY))

                def go_on() -> None:
                    for _ in range(count // threads):
                        producer.send(Message(TOPIC, BODY))

                workers = [threading.Thread(target=go_on) for _ in range(threads)]
                with Stopwatch() as watch:
                    for worker in workers:
                        worker.start()
                    for worker in workers:
                        worker.join()
                return watch.cpu_s, watch.wall_s

        return self._row(name, count, main, required)

    def futures(self, name: str, count: int) -> Row:
        def main() -> tuple[float, float]:
            with Producer("bench", nameserver=self._peer.nameservers) as producer:
                producer.send(Message(TOPIC, BODY))
                with Stopwatch() as watch:
                    sent: deque[Future[Receipt]] = deque()
                    for _ in range(count):
                        if len(sent) >= FUTURES_MAX:
                            sent.popleft().result()
                        sent.append(producer.send_async(Message(TOPIC, BODY)))
                    for each in sent:
                        each.result()
                return watch.cpu_s, watch.wall_s

        return self._row(name, count, main)

    def _row(
        self,
        name: str,
        count: int,
        measure: Callable[[], tuple[float, float]],
        required: float | None = None,
    ) -> Row:
        self._announce(name)
        broker_us: list[float] = []

        def once() -> Rate:
            before = cpu_seconds(self._peer.broker_pids)
            cpu_s, wall_s = measure()
            broker_us.append((cpu_seconds(self._peer.broker_pids) - before) / count * 1e6)
            return Rate(count, wall_s, cpu_s)

        rate = best(once)
        note = f"broker {min(broker_us):.1f} CPU us each"
        if required is None:
            return Row(name, rate.per_second, "msg/s", cpu_us=rate.cpu_us, note=note)
        return at_least(name, rate.per_second, "msg/s", required, rate.cpu_us, note)


async def _send(producer: AsyncProducer) -> None:
    await producer.send(Message(TOPIC, BODY))


async def _send_oneway(producer: AsyncProducer) -> None:
    await producer.send_oneway(Message(TOPIC, BODY))


async def _send_batch(producer: AsyncProducer) -> None:
    await producer.send_batch([Message(TOPIC, BODY) for _ in range(BATCH)])
