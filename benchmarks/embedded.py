"""The embedded suite: a broker in the user's own process, from a send to the listener.

Hand-over is from the call of `send` to the first line of the listener, one message at a time. All
of it is on one event loop; in between the loop comes to rest, so that nothing else is measured.
With threads, a message crosses twice: into the background loop, and out of it to a worker.
"""

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TypeVar

import uvloop

import onelog
from benchmarks.table import Options, Row, under
from benchmarks.timing import ROUNDS, Rate, Stopwatch
from onelog.client import Message, ReceivedMessage

BODY = bytes(128)
HAND_OVER_US_MAX = 30.0
REST_ROUNDS = 8
"""Rounds of the loop until everything that a message left to do is done."""
ON_THE_WAY = 256

T = TypeVar("T")


def run(options: Options) -> list[Row]:
    """Measure."""
    count = 2_000 if options.quick else 20_000
    options.announce("hand-over on one loop")
    own, plain = (
        min((_on(loop, lambda: _hand_over(count)) for _ in range(ROUNDS)), key=statistics.median)
        for loop in (uvloop.new_event_loop, asyncio.new_event_loop)
    )
    options.announce("hand-over between threads")
    threads = min(
        (_hand_over_in_threads(count // 10) for _ in range(ROUNDS)), key=statistics.median
    )
    options.announce("many at a time")
    rate = max(
        (_on(uvloop.new_event_loop, lambda: _throughput(count)) for _ in range(ROUNDS)),
        key=lambda each: each.per_second,
    )
    options.announce("starting and stopping")
    start_ms = statistics.median(_start_ms() for _ in range(20))
    return [
        under(
            "hand-over on one loop (uvloop), median",
            statistics.median(own),
            "us",
            HAND_OVER_US_MAX,
            note=f"99 % within {statistics.quantiles(own, n=100)[98]:.0f} us",
        ),
        Row(
            "hand-over on one loop (asyncio's), median",
            statistics.median(plain),
            "us",
            less_is_better=True,
        ),
        Row(
            "hand-over between threads, median",
            statistics.median(threads),
            "us",
            less_is_better=True,
        ),
        Row(
            "sent and consumed, 256 on the way",
            rate.per_second,
            "msg/s",
            cpu_us=rate.cpu_us,
            note="producer, broker and consumer on one loop",
        ),
        Row("start and stop of a broker, median", start_ms, "ms", less_is_better=True),
    ]


def _on(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    measure: Callable[[], Coroutine[object, object, T]],
) -> T:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(measure())


async def _hand_over(count: int) -> list[float]:
    """Microseconds from send to listener."""
    took: list[float] = []
    sent_ns = 0
    async with onelog.embedded() as mq:
        await mq.create_topic("bench", 1)
        async with mq.push_consumer("bench", start="first") as consumer:

            @consumer.subscribe("bench")
            async def listen(message: ReceivedMessage) -> None:
                took.append((time.perf_counter_ns() - sent_ns) / 1000)

            await consumer.start()
            async with mq.producer("bench") as producer:
                for number in range(count + count // 10):
                    message = Message("bench", BODY)
                    for _ in range(REST_ROUNDS):
                        await asyncio.sleep(0)
                    sent_ns = time.perf_counter_ns()
                    await producer.send(message)
                    while len(took) <= number:  # noqa: ASYNC110 - an event would cost time too.
                        await asyncio.sleep(0)
    return took[count // 10 :]


def _hand_over_in_threads(count: int) -> list[float]:
    took: list[float] = []
    sent_ns = 0
    arrived = threading.Semaphore(0)
    with onelog.embedded() as mq:
        mq.create_topic("bench", 1)
        with mq.push_consumer("bench", start="first") as consumer:

            @consumer.subscribe("bench")
            def listen(message: ReceivedMessage) -> None:
                took.append((time.perf_counter_ns() - sent_ns) / 1000)
                arrived.release()

            consumer.start()
            with mq.producer("bench") as producer:
                for _ in range(count + count // 10):
                    message = Message("bench", BODY)
                    sent_ns = time.perf_counter_ns()
                    producer.send(message)
                    arrived.acquire()
    return took[count // 10 :]


async def _throughput(count: int) -> Rate:
    got = 0
    async with onelog.embedded() as mq:
        await mq.create_topic("bench", 1)
        async with mq.push_consumer("bench", start="first") as consumer:
            done = asyncio.Event()

            @consumer.subscribe("bench")
            def listen(message: ReceivedMessage) -> None:
                nonlocal got
                got += 1
                if got == count:
                    done.set()

            await consumer.start()
            async with mq.producer("bench") as producer:
                left = iter(range(count))

                async def send() -> None:
                    for _ in left:
                        await producer.send(Message("bench", BODY))

                with Stopwatch() as watch:
                    await asyncio.gather(*(send() for _ in range(ON_THE_WAY)))
                    await done.wait()
    return Rate(count, watch.wall_s, watch.cpu_s)


def _start_ms() -> float:
    with Stopwatch() as watch, onelog.embedded():
        pass
    return watch.wall_s * 1000
