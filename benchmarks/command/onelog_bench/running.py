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
from typing import Any

import msgspec
from rich.table import Table

from onelog.client import AsyncProducer, Message
from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.topics import TopicChange
from onelog.client.connection.instance import wrapped
from onelog.client.connection.nodes import at_once
from onelog.commands.clients import ClientSession
from onelog.commands.link import administrator
from onelog.commands.session import EXIT_FAILED, complain
from onelog.commands.terminal import progress_bar, show_count
from onelog.errors import InvalidRequestError, OnelogError
from onelog_bench.worker import STAMP_BYTES, Job, Latencies, Outcome, Plan, Said

WORKER = "onelog_bench.worker"
FILL_BYTES_MAX = 256 << 10
FILL_TASKS = 8
LOOK_SECONDS = 0.2
END_SECONDS_MAX = 60.0
"""How long a worker may take to come to its end after its time is over."""
SETTLE_SECONDS_MAX = 5.0
LINE_BYTES_MAX = 1 << 20


def summary(plan: Plan, topic: str, outcomes: list[Outcome], stored: int | None) -> dict[str, Any]:
    """What the workers measured, together; latencies are in milliseconds.

    `stored`: messages that are in the topic now and were not before; None if nobody can know.
    """
    messages = sum(each.messages for each in outcomes)
    busy = [each for each in outcomes if each.messages]
    # From the first beginning to the last end.
    began_ns = min((each.began_ns for each in busy), default=0)
    seconds = (max((each.ended_ns for each in busy), default=0) - began_ns) / 1e9
    per_second = messages / seconds if seconds else 0.0
    cpu_us = sum(each.cpu_seconds for each in outcomes) * 1e6
    latencies = Latencies()
    for each in outcomes:
        latencies.include(each.latencies)
    return {
        "mode": plan.mode,
        "topic": topic,
        "processes": len(outcomes),
        "size": plan.size,
        "messages": messages,
        "failed": sum(each.failed for each in outcomes),
        "error": next((each.error for each in outcomes if each.error is not None), None),
        "stored": stored,
        "seconds": round(seconds, 3),
        "per_second": round(per_second, 1),
        "mib_per_second": round(per_second * plan.size / (1 << 20), 3),
        "client_cpu_us": round(cpu_us / messages, 2) if messages else None,
        "latency_ms": latencies.document(),
    }


def summary_table(found: dict[str, Any]) -> Table:
    """The same for people."""
    count = found["processes"]
    processes = "one process" if count == 1 else f"{count} processes"
    rows = {
        found["mode"]: f"{show_count(found['messages'])} messages of {show_count(found['size'])} "
        f"bytes in {found['seconds']:.2f} s by {processes}",
        "throughput": f"{show_count(round(found['per_second']))} messages/s, "
        f"{found['mib_per_second']:.1f} MiB/s",
    }
    if found["latency_ms"] is not None:
        latencies = found["latency_ms"].items()
        rows["latency"] = ", ".join(f"{name} {ms:.3g} ms" for name, ms in latencies)
    if found["client_cpu_us"] is not None:
        rows["clients' CPU"] = f"{found['client_cpu_us']:.1f} us a message"
    if found["stored"] is not None:
        rows["stored"] = f"{show_count(found['stored'])} messages"
    if found["failed"]:
        rows["failed"] = show_count(found["failed"])
    made = Table.grid(padding=(0, 2))
    for row in rows.items():
        made.add_row(*row)
    return made


def run(session: ClientSession, plan: Plan) -> None:
    """Measure, and show the result."""
    if plan.mode == "roundtrip" and plan.size < STAMP_BYTES:
        raise InvalidRequestError(f"--mode roundtrip needs bodies of {STAMP_BYTES} bytes or more")
    found = asyncio.run(_Bench(session, plan).measure())
    session.show(found, summary_table(found))
    if found["failed"]:
        complain(f"{show_count(found['failed'])} failed, the first of them: {found['error']}")
        session.exit_code = EXIT_FAILED


class _Bench:
    def __init__(self, session: ClientSession, plan: Plan) -> None:
        self._session = session
        self._plan = plan
        self._name = f"onelog-bench-{uuid.uuid4().hex[:12]}"
        self._topic = plan.topic or self._name

    async def measure(self) -> dict[str, Any]:
        plan = self._plan
        async with administrator(self._session.given) as admin, self._tidied(admin):
            if plan.topic is None:
                change = TopicChange(read_queues=plan.queues, write_queues=plan.queues)
                await admin.topics.create(self._wrap(self._topic), change)
            if plan.mode == "consume":
                await self._fill()
            async with contextlib.AsyncExitStack() as stack:
                workers = []
                for number in range(plan.processes):
                    job = Job(plan, self._session.given, self._topic, self._name, number)
                    workers.append(await stack.enter_async_context(_worker(job)))
                await at_once(_hear, workers)
                before = await self._stored(admin)
                outcomes = await self._work(workers)
            stored = None
            # What others send to their topic meanwhile cannot be told from what we send.
            if plan.topic is None and plan.mode != "consume":
                stored = await self._settled(admin) - before
            return summary(plan, self._topic, outcomes, stored)

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
                    progress(plan.backlog - left)
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
            progress(min(passed, seconds))


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
