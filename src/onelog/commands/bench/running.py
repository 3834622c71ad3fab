"""Running `onelog bench`: a topic, the processes that use it, and the sum of what they measured.

Invariant: whatever ends it, no process is left, and no topic or group that was made for it.
"""

import asyncio
import contextlib
import sys
import time
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from rich.table import Table

from onelog.client import AsyncProducer, Message
from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.topics import TopicChange
from onelog.client.connection.instance import wrapped
from onelog.client.connection.nodes import at_once
from onelog.commands.bench import Mode
from onelog.commands.bench.worker import STAMP_BYTES, Job, Latencies, Outcome, Plan, Said
from onelog.commands.clients import ClientSession, progress_bar
from onelog.commands.link import administrator
from onelog.commands.session import EXIT_FAILED, complain
from onelog.commands.terminal import show_count
from onelog.errors import InvalidRequestError, OnelogError

WORKER = "onelog.commands.bench.worker"
FILL_BYTES_MAX = 256 << 10
FILL_TASKS = 8
LOOK_SECONDS = 0.2
END_SECONDS_MAX = 60.0
"""How long a worker may take to come to its end after its time is over."""
SETTLE_SECONDS_MAX = 5.0
LINE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Result:
    """What the workers measured, together."""

    mode: str
    topic: str
    size: int
    outcomes: list[Outcome]
    stored: int | None
    """Messages that are in the topic now and were not before; None if nobody can know."""
    latencies: Latencies = field(init=False)

    def __post_init__(self) -> None:
        latencies = Latencies()
        for outcome in self.outcomes:
            latencies.include(Latencies(outcome.latencies))
        object.__setattr__(self, "latencies", latencies)

    @property
    def messages(self) -> int:
        """All that was sent, or heard."""
        return sum(outcome.messages for outcome in self.outcomes)

    @property
    def failed(self) -> int:
        """Requests, or round trips, that came to nothing."""
        return sum(outcome.failed for outcome in self.outcomes)

    @property
    def error(self) -> str | None:
        """The first failure."""
        return next((each.error for each in self.outcomes if each.error is not None), None)

    @property
    def seconds(self) -> float:
        """From the first beginning to the last end."""
        busy = [outcome for outcome in self.outcomes if outcome.messages]
        if not busy:
            return 0.0
        first_ns = min(outcome.began_ns for outcome in busy)
        return (max(outcome.ended_ns for outcome in busy) - first_ns) / 1e9

    @property
    def per_second(self) -> float:
        """Messages."""
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def client_cpu_us(self) -> float | None:
        """CPU time of the clients for one message."""
        cpu_s = sum(outcome.cpu_seconds for outcome in self.outcomes)
        return cpu_s / self.messages * 1e6 if self.messages else None


def document(result: Result) -> dict[str, Any]:
    """For programs; latencies are in milliseconds."""
    cpu_us = result.client_cpu_us
    return {
        "mode": result.mode,
        "topic": result.topic,
        "processes": len(result.outcomes),
        "size": result.size,
        "messages": result.messages,
        "failed": result.failed,
        "error": result.error,
        "stored": result.stored,
        "seconds": round(result.seconds, 3),
        "per_second": round(result.per_second, 1),
        "mib_per_second": round(result.per_second * result.size / (1 << 20), 3),
        "client_cpu_us": None if cpu_us is None else round(cpu_us, 2),
        "latency_ms": result.latencies.document(),
    }


def result_table(result: Result) -> Table:
    """For people."""
    made = Table.grid(padding=(0, 2))
    count = len(result.outcomes)
    processes = "one process" if count == 1 else f"{count} processes"
    per_second = result.per_second
    rows = {
        result.mode: f"{show_count(result.messages)} messages of {show_count(result.size)} bytes "
        f"in {result.seconds:.2f} s by {processes}",
        "throughput": f"{show_count(round(per_second))} messages/s, "
        f"{per_second * result.size / (1 << 20):.1f} MiB/s",
    }
    latencies = result.latencies.document()
    if latencies is not None:
        rows["latency"] = ", ".join(f"{name} {ms:.3g} ms" for name, ms in latencies.items())
    if result.client_cpu_us is not None:
        rows["clients' CPU"] = f"{result.client_cpu_us:.1f} us a message"
    if result.stored is not None:
        rows["stored"] = f"{show_count(result.stored)} messages"
    if result.failed:
        rows["failed"] = show_count(result.failed)
    for name, value in rows.items():
        made.add_row(name, value)
    return made


def run(session: ClientSession, plan: Plan) -> None:
    """Measure, and show the result."""
    if plan.mode == Mode.ROUNDTRIP.value and plan.size < STAMP_BYTES:
        raise InvalidRequestError(f"--mode roundtrip needs bodies of {STAMP_BYTES} bytes or more")
    result = asyncio.run(_Bench(session, plan).measure())
    session.show(document(result), result_table(result))
    if result.failed:
        complain(f"{show_count(result.failed)} failed, the first of them: {result.error}")
        session.exit_code = EXIT_FAILED


class _Bench:
    def __init__(self, session: ClientSession, plan: Plan) -> None:
        self._session = session
        self._plan = plan
        self._name = f"onelog-bench-{uuid.uuid4().hex[:12]}"
        self._topic = plan.topic or self._name

    async def measure(self) -> Result:
        plan = self._plan
        async with administrator(self._session.given) as admin, self._tidied(admin):
            if plan.topic is None:
                change = TopicChange(read_queues=plan.queues, write_queues=plan.queues)
                await admin.topics.create(self._wrap(self._topic), change)
            if plan.mode == Mode.CONSUME.value:
                await self._fill()
            async with contextlib.AsyncExitStack() as stack:
                workers = [
                    await stack.enter_async_context(_worker(self._job(number)))
                    for number in range(plan.processes)
                ]
                await at_once(_hear, workers)
                before = await self._stored(admin)
                outcomes = await self._work(workers)
            stored = None
            # What others send to their topic meanwhile cannot be told from what we send.
            if plan.topic is None and plan.mode != Mode.CONSUME.value:
                stored = await self._settled(admin) - before
            return Result(plan.mode, self._topic, plan.size, outcomes, stored)

    def _wrap(self, name: str) -> str:
        return wrapped(self._session.options.get("namespace", ""), name)

    @contextlib.asynccontextmanager
    async def _tidied(self, admin: AsyncAdmin) -> AsyncIterator[None]:
        """Leaves nothing behind but a topic that was there before."""
        try:
            yield
        finally:
            with contextlib.suppress(OnelogError):
                for group in (await admin.groups.names()).answers:
                    if group.startswith(self._wrap(self._name)):
                        await admin.groups.delete(group)
            if self._plan.topic is None:
                with contextlib.suppress(OnelogError):
                    await admin.topics.delete(self._wrap(self._topic))

    # The topic.

    async def _fill(self) -> None:
        plan = self._plan
        left = plan.backlog
        each_max = max(1, min(1_000, FILL_BYTES_MAX // (plan.size + 100)))
        body = bytes(plan.size)
        async with AsyncProducer(self._name, **self._session.options) as producer:

            async def go_on() -> None:
                nonlocal left
                while left > 0:
                    count = min(left, each_max)
                    left -= count
                    await producer.send_batch([Message(self._topic, body) for _ in range(count)])

            with progress_bar("filling", plan.backlog) as progress:
                filling = asyncio.gather(*(go_on() for _ in range(FILL_TASKS)))
                while not filling.done():
                    await asyncio.wait([filling], timeout=LOOK_SECONDS)
                    progress.update(progress.task_ids[0], completed=plan.backlog - left)
                await filling

    async def _stored(self, admin: AsyncAdmin) -> int:
        """How many messages the topic ever got."""
        status = await admin.topics.status(self._wrap(self._topic))
        return sum(queue.max_offset for queue in status.queues)

    async def _settled(self, admin: AsyncAdmin) -> int:
        """The same once nothing comes any more: one-way messages may still be on their way."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        count = await self._stored(admin)
        while time.monotonic() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
            now = await self._stored(admin)
            if now == count:
                break
            count = now
        return count

    # The workers.

    async def _work(self, workers: list[Process]) -> list[Outcome]:
        """Have the workers begin, and wait for what they say in the end."""
        plan = self._plan
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(b"go\n")
        showing = asyncio.create_task(_show_time(plan.mode, plan.seconds))
        try:
            async with asyncio.timeout(plan.seconds + END_SECONDS_MAX):
                last = await at_once(_hear, workers)
        except TimeoutError:
            raise OnelogError(f"a worker did not end in {END_SECONDS_MAX:g} s") from None
        finally:
            showing.cancel()
        return [said.outcome for said in last if said.outcome is not None]

    def _job(self, number: int) -> Job:
        return Job(self._plan, self._session.given, self._topic, self._name, number)


@contextlib.asynccontextmanager
async def _worker(job: Job) -> AsyncIterator[Process]:
    """A process that has its job, for as long as the block lasts."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", WORKER),
        stdin=PIPE,
        stdout=PIPE,
        limit=LINE_BYTES_MAX,
        # Ctrl-C goes to all processes of a terminal's group; this one ends its workers itself.
        start_new_session=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        yield process
        # It says good-bye to the brokers yet.
        async with asyncio.timeout(END_SECONDS_MAX):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _show_time(what: str, seconds: float) -> None:
    began = time.monotonic()
    with progress_bar(what, seconds) as progress:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            passed = time.monotonic() - began
            progress.update(progress.task_ids[0], completed=min(passed, seconds))


async def _hear(worker: Process) -> Said:
    """The next that a worker says; `OnelogError` if that is an error, or nothing."""
    assert worker.stdout is not None
    line = await worker.stdout.readline()
    if not line:
        raise OnelogError(f"a worker ended early (exit code {await worker.wait()}): see above")
    said = msgspec.json.decode(line, type=Said)
    if said.error is not None:
        raise OnelogError(said.error)
    return said
