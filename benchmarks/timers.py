"""The timers suite: scheduling a million messages, and delivering them in time.

First the timers by themselves, in this process: what scheduling costs without sockets. Then one
OneLog, as `onelog up` starts it, and a client of few instructions that keeps so many sends on the
way. A million messages are scheduled over the next hour, as fast as they are taken, and plain
messages just as fast beside that; then, with those in the wheel, as many as fall due at 10,000 a
second for a while, among plain sends. Lateness is from the time that a message asks for to the time
at which it was stored in its topic. At last the broker is killed and started again.
"""

import asyncio
import itertools
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop

from benchmarks.process_usage import anonymous_bytes, cpu_seconds
from benchmarks.table import Options, Row, at_least, under
from benchmarks.timing import Rate, Stopwatch, prepared_input
from onelog.clock import ManualClock
from onelog.config import BrokerConfig
from onelog.core.access import SELF
from onelog.core.assembly import Assembly
from onelog.core.catalog.topics import TopicConfig
from onelog.core.durable.storage import Runtime
from onelog.core.schedule.timers import COLLECT_MS
from onelog.message import NewMessage, decode_properties
from onelog.net.peer import Peer
from onelog.record.decode import decode_messages
from onelog.rocketmq.profile import NAMING
from onelog.rocketmq.sent_properties import intent_of
from onelog.store.message_store import MessageStore
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Serialize
from onelog.wire.remoting.frame import encode_request
from tests.core.world import ManualTimer
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.remoting_probe import create_topic

QUEUES = 8
BODY_BYTES = 128
CONNECTIONS = 4
ON_THE_WAY_MAX = 64
"""Sends of one connection that may wait for their answer."""
HOUR_MS = 3_600_000
LEAD_MS = 4_000
DELIVERIES_PER_SECOND = 10_000
PLAIN_PER_SECOND = 2_000
MIB = 1 << 20
_DUE_MARK = "1234567890123"
_KEY_MARK = "KKKKKKKKKKKK"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    far_count: int
    near_seconds: int

    @property
    def near_count(self) -> int:
        """Messages that fall due while we watch."""
        return self.near_seconds * DELIVERIES_PER_SECOND


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What scheduling took."""

    count: int
    wall_s: float
    broker_cpu_s: float
    anonymous_bytes: int


def run(options: Options) -> list[Row]:
    """The suite."""
    plan = Plan(100_000, 5) if options.quick else Plan(1_000_000, 20)
    options.announce("scheduling in the core")
    core = schedule_in_core(options.folder / "core", plan.far_count // 5)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return [in_core(core), *runner.run(measure(options, plan))]


async def measure(options: Options, plan: Plan) -> list[Row]:
    """Every row."""
    with OnelogPeer(options.folder / "onelog", may_stall=True) as peer:
        for topic in ("far", "near", "plain"):
            create_topic(peer.broker_address, topic, QUEUES)
        options.announce(f"scheduling {plan.far_count:,} messages over the next hour")
        far = await schedule(peer, plan.far_count)
        options.announce("plain sends, for comparison")
        plain_per_s = await plain_rate(peer.broker_address, plan.far_count // 5)
        options.announce(f"{DELIVERIES_PER_SECOND:,} deliveries a second for {plan.near_seconds} s")
        lateness_ms, cores = await deliver(peer, plan)
        memory = anonymous_bytes(peer.broker_pids)
        options.announce("killing the broker and starting it again")
        restart_s = await asyncio.to_thread(restart, peer)
        measured = rows(far, plain_per_s, lateness_ms, cores, memory)
        return [*measured, restarted(plan, restart_s)]


# -- scheduling ------------------------------------------------------------------------------------


async def schedule(peer: OnelogPeer, count: int) -> Scheduling:
    """Schedule messages over the next hour, as fast as they are taken."""
    rng = random.Random(1)
    begin_ms = now_ms() + 60_000
    before_cpu = cpu_seconds(peer.broker_pids)
    before_bytes = anonymous_bytes(peer.broker_pids)
    dues = (begin_ms + rng.randrange(HOUR_MS) for _ in range(count))
    begin = time.perf_counter()
    await send_all(peer.broker_address, "far", dues)
    wall_s = time.perf_counter() - begin
    return Scheduling(
        count,
        wall_s,
        cpu_seconds(peer.broker_pids) - before_cpu,
        anonymous_bytes(peer.broker_pids) - before_bytes,
    )


async def plain_rate(address: str, count: int) -> float:
    """What the same client reaches with messages that do not wait."""
    begin = time.perf_counter()
    await send_all(address, "plain", itertools.repeat(now_ms(), count))
    return count / (time.perf_counter() - begin)


def schedule_in_core(folder: Path, count: int) -> Rate:
    """Schedule messages in lists of 500, without a network; the wheel included."""
    rng = random.Random(3)
    clock = ManualClock()
    timer = ManualTimer(clock)
    soon: list[Callable[[], None]] = []
    with ThreadPoolExecutor(1) as pool, MessageStore.open(folder, clock=clock) as store:
        core = Assembly(
            BrokerConfig(),
            store,
            Runtime(
                clock=clock,
                schedule=timer.schedule,
                call_soon=soon.append,
                post=soon.append,
                random=rng,
                offload=lambda work: void(pool.submit(work)),
            ),
            naming=NAMING,
        )
        core.open()
        core.broker.topics.create(SELF, TopicConfig("far", QUEUES, QUEUES))
        begin_ms = clock.now_ms() + 60_000
        messages = [
            NewMessage("far", number % QUEUES, b"x" * BODY_BYTES, _properties(number, due_ms))
            for number in range(count)
            if (due_ms := begin_ms + rng.randrange(HOUR_MS))
        ]
        with prepared_input(), Stopwatch() as watch:
            for at in range(0, count, 500):
                for message in messages[at : at + 500]:
                    intent = intent_of(message.properties, clock)
                    core.broker.publish.send(SELF, message, _ignore, None, intent)
                while soon:
                    soon.pop()()
                timer.advance(COLLECT_MS)
        assert core.timers.wheel.end == count
        core.close()
    return Rate(count, watch.wall_s, watch.cpu_s)


def _properties(number: int, due_ms: int) -> bytes:
    return b"TIMER_DELIVER_MS\x01%d\x02UNIQ_KEY\x017F0000010A2B%020X\x02" % (due_ms, number)


def _ignore(token: object, appended: object, error: object) -> None:
    assert error is None


def void(_: object) -> None:
    """Take what nobody needs."""


async def send_all(address: str, topic: str, dues: Iterator[int]) -> None:
    """Send a message for each due time, over a few connections."""
    async with asyncio.TaskGroup() as group:
        frames = _frames(topic, dues)
        for _ in range(CONNECTIONS):
            group.create_task(_send(address, frames))


async def _send(address: str, frames: Iterator[bytes]) -> None:
    loop = asyncio.get_running_loop()
    sender = _Sender(frames)
    host, port = address.rsplit(":", 1)
    transport, _ = await loop.create_connection(lambda: sender, host, int(port))
    try:
        await sender.done
    finally:
        transport.close()


class _Sender(asyncio.Protocol):
    """Keeps `ON_THE_WAY_MAX` sends on the way, and counts answers without looking inside."""

    def __init__(self, frames: Iterator[bytes]) -> None:
        self._frames = frames
        self._waiting = 0
        self._rest = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._fill()

    def _fill(self) -> None:
        more = list(itertools.islice(self._frames, ON_THE_WAY_MAX - self._waiting))
        if more:
            self._waiting += len(more)
            self._transport.write(b"".join(more))
        elif not self._waiting and not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Count the answers."""
        data = self._rest + data
        at = 0
        while at + 10 <= len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            code = int.from_bytes(data[at + 8 : at + 10], "big")
            if code != ResponseCode.SUCCESS and not self.done.done():
                self.done.set_exception(ConnectionError(f"a send was refused with code {code}"))
            self._waiting -= 1
            at = end
        self._rest = data[at:]
        if self._waiting <= ON_THE_WAY_MAX // 2:
            self._fill()

    def connection_lost(self, error: Exception | None) -> None:
        """The broker is gone."""
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the broker closed the connection"))


def _frames(topic: str, dues: Iterator[int]) -> Iterator[bytes]:
    """Requests as RocketMQ's benchmark client sends them, made from one for each queue."""
    makers = [_template(topic, queue_id) for queue_id in range(QUEUES)]
    for number, due_ms in enumerate(dues):
        before, between, after = makers[number % QUEUES]
        yield b"%b%d%b%012X%b" % (before, due_ms, between, number, after)


def _template(topic: str, queue_id: int) -> tuple[bytes, bytes, bytes]:
    timed = "" if topic == "plain" else f"TIMER_DELIVER_MS\x01{_DUE_MARK}\x02"
    own = timed or f"KEYS\x01{_DUE_MARK}\x02"
    ext = {
        "a": "bench",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": str(now_ms()),
        "h": "0",
        "j": "0",
        "k": "false",
        "m": "false",
        "i": f"{own}WAIT\x01true\x02UNIQ_KEY\x01{topic:_<8}7F0000010A2B{_KEY_MARK}\x02",
    }
    frame = b"".join(
        encode_request(
            RequestCode.SEND_MESSAGE_V2, 1, ext, b"x" * BODY_BYTES, serialize=Serialize.COMPACT
        )
    )
    before, _, rest = frame.partition(_DUE_MARK.encode())
    between, _, after = rest.partition(_KEY_MARK.encode())
    return before, between, after


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


# -- delivering ------------------------------------------------------------------------------------


async def deliver(peer: OnelogPeer, plan: Plan) -> tuple[list[int], float]:
    """Lateness of each message that fell due, and how many cores the broker used meanwhile."""
    # So many are scheduled while they still have to wait.
    lead_ms = LEAD_MS + plan.near_count // 20
    begin_ms = now_ms() + lead_ms
    span_ms = plan.near_seconds * 1_000
    rng = random.Random(2)
    dues = (begin_ms + rng.randrange(span_ms) for _ in range(plan.near_count))
    await send_all(peer.broker_address, "near", dues)
    await asyncio.sleep((begin_ms - now_ms()) / 1_000)
    before = cpu_seconds(peer.broker_pids)
    await plain_sends(peer.broker_address, begin_ms + span_ms)
    cores = (cpu_seconds(peer.broker_pids) - before) / plan.near_seconds
    await asyncio.sleep(1)
    return await lateness(peer.broker_address, plan.near_count), cores


async def plain_sends(address: str, end_ms: int) -> None:
    """Other messages, at their own pace."""
    part = PLAIN_PER_SECOND // 20
    while now_ms() < end_ms:
        began = time.perf_counter()
        await send_all(address, "plain", iter([now_ms()] * part))
        await asyncio.sleep(max(0.0, 0.05 - (time.perf_counter() - began)))


async def lateness(address: str, count: int) -> list[int]:
    """Of every message in the topic: when it was stored, against when it was due."""
    host, port = address.rsplit(":", 1)
    peer = await Peer.connect(host, int(port))
    late_ms: list[int] = []
    try:
        for queue_id in range(QUEUES):
            offset = 0
            while found := await _pull(peer, queue_id, offset):
                late_ms += [late for _, late in found]
                offset = found[-1][0] + 1
    finally:
        await peer.close()
    if len(late_ms) != count:
        raise ConnectionError(f"{len(late_ms):,} of {count:,} messages were delivered")
    if min(late_ms) < 0:
        raise ConnectionError(f"a message was delivered {-min(late_ms)} ms before its time")
    return late_ms


async def _pull(peer: Peer, queue_id: int, offset: int) -> list[tuple[int, int]]:
    answer = await peer.ask(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": "TOOLS_CONSUMER",
            "topic": "near",
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        },
    )
    if answer.code != ResponseCode.SUCCESS:
        return []
    return [
        (
            int(each.queue_offset),
            each.store_ms - int(decode_properties(each.properties)["TIMER_OUT_MS"]),
        )
        for each in decode_messages(memoryview(bytes(answer.body)))
    ]


def restart(peer: OnelogPeer) -> float:
    """Kill the broker; how long it takes until it is there again."""
    begin = time.perf_counter()
    peer.restart(signal.SIGKILL)
    peer.wait_until_ready(timeout_s=120)
    return time.perf_counter() - begin


# -- the table -------------------------------------------------------------------------------------


def in_core(rate: Rate) -> Row:
    """The row about scheduling without sockets."""
    return at_least(
        f"schedule {rate.count:,} messages in the core",
        rate.per_second,
        "msg/s",
        50_000,
        rate.cpu_us,
        f"{BODY_BYTES} B, in lists of 500",
    )


def rows(
    far: Scheduling, plain_per_s: float, lateness_ms: list[int], cores: float, memory: int
) -> list[Row]:
    """What was measured, against what issue 5 asks for."""
    ordered = sorted(lateness_ms)
    at_99 = float(ordered[len(ordered) * 99 // 100])
    rate = f"{DELIVERIES_PER_SECOND:,} deliveries/s"
    median = statistics.median(ordered)
    note = f"median {median:.0f} ms, worst {ordered[-1]} ms; {cores:.2f} cores"
    return [
        at_least(
            f"schedule {far.count:,} messages over an hour",
            far.count / far.wall_s,
            "msg/s",
            50_000,
            far.broker_cpu_s / far.count * 1e6,
            f"{BODY_BYTES} B, {CONNECTIONS} connections with {ON_THE_WAY_MAX} on the way; plain "
            f"messages: {plain_per_s:,.0f}/s",
        ),
        under(
            f"memory for {far.count:,} scheduled messages",
            far.anonymous_bytes / MIB,
            "MiB",
            200,
            note=f"anonymous, after scheduling; {memory / MIB:.0f} MiB in all at the end",
        ),
        under(f"99 % lateness at {rate}", max(at_99, 0.1), "ms", 50, note=note),
        under(f"median lateness at {rate}", max(median, 0.1), "ms", 20),
    ]


def restarted(plan: Plan, seconds: float) -> Row:
    """The row about a restart, which only informs."""
    return Row(
        f"kill -9 with {plan.far_count:,} scheduled, until it serves again",
        seconds,
        "s",
        less_is_better=True,
    )
