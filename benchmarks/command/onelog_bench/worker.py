"""A process of `onelog bench`: does one job, and says what came of it.

Run as `python -m onelog_bench.worker`. The processes tell each other JSON lines:

    bench -> worker   a `Job`
    worker -> bench   `Said` with `ready`, once it is connected and warm
    bench -> worker   a line, when all are ready
    worker -> bench   `Said` with the `outcome`; or, at any time, with an `error`

`Latencies` counts many durations in little room, in steps of about one percent: step i holds
durations from 2**(i/64) to 2**((i+1)/64) nanoseconds, and a percentile is the upper end of its
step.

Invariants: durations up to `NANOSECONDS_MAX` are known to 1.1 percent, and what several processes
counted can be added.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import numpy as np

from onelog.client import AsyncProducer, AsyncPushConsumer, ClientOptions, Message, ReceivedMessage
from onelog.commands.link import client_options
from onelog.errors import OnelogError

STAMP_BYTES = 16
"""By which a message is known that comes back."""

STEPS_PER_DOUBLING = 64
NANOSECONDS_MAX = 2**40
"""18 minutes; what takes longer is counted as this."""
_STEPS = 40 * STEPS_PER_DOUBLING + 1
_LOOSE_MAX = 65_536
PERCENTILES = (50.0, 90.0, 99.0, 99.9)

JOIN_SECONDS_MAX = 30.0
QUIET_SECONDS = 1.0
"""A consumer that has heard nothing for so long has heard everything."""
HEARD_SECONDS_MAX = 10.0
FAILED_PAUSE_SECONDS = 0.1
PROBE_SECONDS = 0.2

_clock = time.monotonic_ns


class Plan(msgspec.Struct, frozen=True):
    """What to measure."""

    mode: str
    seconds: float
    size: int
    concurrency: int
    processes: int
    batch_size: int
    backlog: int
    queues: int
    topic: str | None


class Job(msgspec.Struct, frozen=True):
    """What one worker does."""

    plan: Plan
    client: dict[str, Any]
    """The options of the command line about clients."""
    topic: str
    group: str
    number: int
    """Which of the workers this is."""


class Outcome(msgspec.Struct):
    """What one worker measured. Times are nanoseconds of the monotonic clock of the machine."""

    messages: int = 0
    failed: int = 0
    error: str | None = None
    """The first of the failures."""
    began_ns: int = 0
    ended_ns: int = 0
    cpu_seconds: float = 0.0
    latencies: dict[int, int] = {}
    """How many there are in each step of `Latencies`."""


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a worker."""

    ready: bool = False
    error: str | None = None
    outcome: Outcome | None = None


class Latencies:
    """Durations, counted."""

    def __init__(self) -> None:
        self._counts = np.zeros(_STEPS, np.int64)
        self._loose: list[int] = []

    def add(self, nanoseconds: int) -> None:
        """Count one."""
        self._loose.append(nanoseconds)
        if len(self._loose) >= _LOOSE_MAX:
            self._sort_in()

    def counts(self) -> dict[int, int]:
        """How many there are in each step that has any."""
        self._sort_in()
        return {int(step): int(self._counts[step]) for step in np.flatnonzero(self._counts)}

    def include(self, counts: Mapping[int, int]) -> None:
        """Count what another one has counted."""
        for step, count in counts.items():
            self._counts[step] += count

    def percentile_ms(self, percent: float) -> float:
        """So many percent of them took no longer; in milliseconds."""
        self._sort_in()
        below = np.cumsum(self._counts)
        assert below[-1] > 0
        step = int(np.searchsorted(below, max(1.0, below[-1] * percent / 100)))
        return float(2.0 ** ((step + 1) / STEPS_PER_DOUBLING)) / 1e6

    def document(self) -> dict[str, float] | None:
        """The usual percentiles in milliseconds; None if nothing was counted."""
        if not self.counts():
            return None
        named = {**{f"p{percent:g}": percent for percent in PERCENTILES}, "max": 100.0}
        return {name: round(self.percentile_ms(percent), 4) for name, percent in named.items()}

    def _sort_in(self) -> None:
        if self._loose:
            sizes = np.clip(np.array(self._loose, np.float64), 1, NANOSECONDS_MAX)
            steps = (np.log2(sizes) * STEPS_PER_DOUBLING).astype(np.int64)
            self._counts += np.bincount(steps, minlength=_STEPS)
            self._loose.clear()


class Work:
    """What a worker counts while it works."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.options: ClientOptions = client_options(job.client)
        self.outcome = Outcome()
        self.latencies = Latencies()

    async def repeat(self, step: Callable[[], Awaitable[int]], *, timed: bool = True) -> None:
        """Do one thing again and again, in many tasks, until the time is over."""
        outcome = self.outcome
        outcome.began_ns = _clock()
        deadline_ns = outcome.began_ns + round(self.job.plan.seconds * 1e9)

        async def go_on() -> None:
            while (began_ns := _clock()) < deadline_ns:
                try:
                    count = await step()
                except (OnelogError, TimeoutError) as error:
                    outcome.failed += 1
                    outcome.error = outcome.error or f"{type(error).__name__}: {error}"
                    await asyncio.sleep(FAILED_PAUSE_SECONDS)
                else:
                    if timed:
                        self.latencies.add(_clock() - began_ns)
                    outcome.messages += count

        await asyncio.gather(*(go_on() for _ in range(self.job.plan.concurrency)))
        outcome.ended_ns = _clock()


Measured = Callable[[], Awaitable[None]]
"""What is measured, when everything is ready for it."""


@contextlib.asynccontextmanager
async def sending(work: Work) -> AsyncIterator[Measured]:
    """Messages one by one, one-way, or in batches."""
    job = work.job
    topic, body = job.topic, bytes(job.plan.size)
    async with AsyncProducer(job.group, **work.options) as producer:

        async def send() -> int:
            await producer.send(Message(topic, body))
            return 1

        async def send_oneway() -> int:
            await producer.send_oneway(Message(topic, body))
            return 1

        async def send_batch() -> int:
            await producer.send_batch([Message(topic, body) for _ in range(job.plan.batch_size)])
            return job.plan.batch_size

        step = {"send": send, "oneway": send_oneway, "batch": send_batch}[job.plan.mode]
        for _ in await producer.queues(topic):
            await send()
        # That a one-way message was handed over says nothing about how long it takes.
        yield lambda: work.repeat(step, timed=job.plan.mode != "oneway")


@contextlib.asynccontextmanager
async def consuming(work: Work) -> AsyncIterator[Measured]:
    """What is in the topic already."""
    job, outcome = work.job, work.outcome

    def hear(message: ReceivedMessage) -> None:
        outcome.ended_ns = _clock()
        if not outcome.messages:
            outcome.began_ns = outcome.ended_ns
        outcome.messages += 1

    async with AsyncPushConsumer(
        job.group, **work.options, start="first", concurrency=job.plan.concurrency
    ) as consumer:
        consumer.subscribe(job.topic, listener=hear)

        async def run() -> None:
            began_ns = _clock()
            deadline_ns = began_ns + round(job.plan.seconds * 1e9)
            await consumer.start()
            while _clock() < deadline_ns:
                await asyncio.sleep(0.05)
                # A member that has no queues, because there are more of them, hears nothing.
                if outcome.messages or consumer.assigned:
                    last_ns = max(outcome.ended_ns, began_ns)
                    if _clock() - last_ns > QUIET_SECONDS * 1e9:
                        return

        yield run


@contextlib.asynccontextmanager
async def echoing(work: Work) -> AsyncIterator[Measured]:
    """Messages that a consumer of this process waits for."""
    job = work.job
    waiting: dict[bytes, asyncio.Future[None]] = {}
    numbers = iter(range(2**63))

    def hear(message: ReceivedMessage) -> None:
        heard = waiting.pop(message.body[:STAMP_BYTES], None)
        if heard is not None and not heard.done():
            heard.set_result(None)

    def stamped() -> tuple[bytes, asyncio.Future[None]]:
        stamp = job.number.to_bytes(8) + next(numbers).to_bytes(8)
        heard = waiting[stamp] = asyncio.get_running_loop().create_future()
        return stamp.ljust(job.plan.size, b"\0"), heard

    async with (
        AsyncProducer(job.group, **work.options) as producer,
        AsyncPushConsumer(
            f"{job.group}-{job.number}", **work.options, concurrency=job.plan.concurrency
        ) as consumer,
    ):
        consumer.subscribe(job.topic, listener=hear)
        await consumer.start()

        async def there_and_back() -> int:
            body, heard = stamped()
            async with asyncio.timeout(HEARD_SECONDS_MAX):
                await producer.send(Message(job.topic, body))
                await heard
            return 1

        async with asyncio.timeout(JOIN_SECONDS_MAX):
            for queue in await producer.queues(job.topic):
                is_heard = False
                while not is_heard:
                    body, heard = stamped()
                    await producer.send(Message(job.topic, body), queue=queue)
                    is_heard = bool((await asyncio.wait([heard], timeout=PROBE_SECONDS))[0])
        waiting.clear()
        yield lambda: work.repeat(there_and_back)


MODES: dict[str, Callable[[Work], AbstractAsyncContextManager[Measured]]] = {
    "send": sending,
    "oneway": sending,
    "batch": sending,
    "consume": consuming,
    "roundtrip": echoing,
}


async def work_on(job: Job, say: Callable[[Said], None], told: Callable[[], object]) -> None:
    """Do a job: get ready, say so, do it when told, and say what came of it."""
    work = Work(job)
    try:
        async with MODES[job.plan.mode](work) as run:
            say(Said(ready=True))
            await asyncio.to_thread(told)
            cpu_before = time.process_time()
            await run()
            work.outcome.cpu_seconds = time.process_time() - cpu_before
            work.outcome.latencies = work.latencies.counts()
            say(Said(outcome=work.outcome))
    except TimeoutError:
        say(Said(error=f"the consumer got no queues, or no messages, in {JOIN_SECONDS_MAX:g} s"))
    except OnelogError as error:
        say(Said(error=str(error)))


def main() -> None:
    """Do the job that stdin describes."""
    import uvloop

    def say(said: Said) -> None:
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
        sys.stdout.flush()

    job = msgspec.json.decode(sys.stdin.readline(), type=Job)
    uvloop.run(work_on(job, say, sys.stdin.readline))


if __name__ == "__main__":
    main()
