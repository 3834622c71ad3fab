"""What grows with a cluster: a name server of a thousand brokers, a client of many queues, and
what each further copy of a message costs.

The name server is a process of its own. Each topic is on `COPIES` brokers. Brokers register over
connections of their own as RocketMQ's do: all their topics, every 30 s. The client is the Python
SDK: one consumer that reads all queues of a broker with `QUEUES` of them.
"""

import asyncio
import contextlib
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import uvloop

from benchmarks.process_usage import anonymous_bytes, cpu_seconds
from benchmarks.table import Options, Row, under
from onelog.client.consumer.push.consumer import AsyncPushConsumer
from onelog.client.message import Message, Queue, ReceivedMessage
from onelog.client.producer.producer import AsyncProducer
from onelog.message import NewMessage, encode_properties
from onelog.net.peer import Peer
from onelog.store.message_store import MessageStore
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicTable,
    encode_registration,
)
from tests.e2e.onelog_peer import COMMAND, OnelogPeer
from tests.e2e.processes import free_ports, spawn, stop, wait_until
from tests.e2e.remoting_probe import create_topic, is_answering
from tests.waiting import eventually

BROKERS, TOPICS, COPIES = 1_000, 100_000, 10
QUESTIONS = 20_000
LOST = 100
TOPIC_QUEUES, QUEUES = 1_000, 10_000
REGISTER_S = 30
TIMEOUT_MS = 60_000
PATIENCE_S = 600.0
FOLLOWED = 400_000
RAW_BYTES = 256 << 10


def run(options: Options) -> list[Row]:
    """The suite."""
    share = 20 if options.quick else 1
    rows = []
    with _nameserver(options.folder) as (address, pid):
        registry = _Registry(address, pid, BROKERS // share, TOPICS // share)
        rows += uvloop.run(registry.measure(options.announce, QUESTIONS // share))
    options.announce("a follower")
    rows += _follower(options.folder, FOLLOWED // share)
    with OnelogPeer(options.folder / "client", may_stall=True) as peer:
        rows += uvloop.run(_client(options.announce, peer, QUEUES // share))
    return rows


@contextlib.contextmanager
def _nameserver(folder: Path) -> Iterator[tuple[tuple[str, int], int]]:
    port = free_ports()[0]
    child = spawn(
        [str(COMMAND), "nameserver", "--port", str(port)],
        folder / "nameserver.log",
        {"HOME": str(folder)},
    )
    try:
        wait_until(lambda: is_answering(f"127.0.0.1:{port}"), "the name server")
        yield ("127.0.0.1", port), child.pid
    finally:
        stop(child)


class _Registry:
    """The brokers of a large cluster, as their name server sees them."""

    def __init__(self, address: tuple[str, int], pid: int, brokers: int, topics: int) -> None:
        self._address, self._pid = address, pid
        self._brokers, self._topics = brokers, topics
        self._peers: list[Peer] = []

    async def measure(self, announce: Callable[[str], None], questions: int) -> list[Row]:
        what = f"{self._brokers:,} brokers, {self._topics:,} topics on {COPIES} each"
        announce("brokers join")
        empty = anonymous_bytes([self._pid])
        joined = await self._timed(self._register_all)
        memory = (anonymous_bytes([self._pid]) - empty) / 2**20
        announce("brokers register again")
        again = await self._timed(self._register_all)
        body = len(_registration(0, self._brokers, self._topics))
        announce("clients ask for routes")
        rate, cpu, waits, size = await self._routes(questions)
        announce("brokers are lost")
        held = await self._lose(min(LOST, self._brokers // 2))
        for peer in self._peers:
            await peer.close()
        each = again[1] / self._brokers
        return [
            Row(f"all join: {what}", joined[0], "s", cpu_us=joined[1] / self._brokers * 1e6),
            under(
                "all register again, every 30 s",
                each * self._brokers / REGISTER_S * 100,
                "% of a core",
                25,
                cpu_us=each * 1e6,
                note=f"{body * self._brokers / REGISTER_S / 1e6:.1f} MB/s, {body:,} bytes each",
            ),
            under("memory", memory, "MiB", 512),
            Row(
                "routes, 64 on the way",
                rate,
                "/s",
                cpu_us=cpu * 1e6,
                note=f"{size:,} bytes each",
            ),
            under(
                "a route, one at a time, 99 % within",
                statistics.quantiles(waits, n=100)[98] * 1e3,
                "ms",
                20,
                note=f"median {statistics.median(waits) * 1e3:.2f} ms",
            ),
            under(f"a route while {LOST} brokers are lost at once, slowest", held * 1e3, "ms", 500),
        ]

    async def _timed(self, work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
        """How long it took, and the CPU time that it took of the name server."""
        cpu, began = cpu_seconds([self._pid]), time.perf_counter()
        await work()
        return time.perf_counter() - began, cpu_seconds([self._pid]) - cpu

    async def _register_all(self) -> None:
        for number in range(self._brokers):
            if number == len(self._peers):
                self._peers.append(await Peer.connect(*self._address, timeout_ms=TIMEOUT_MS))
            ext = {
                "brokerName": f"broker-{number}",
                "clusterName": "large",
                "brokerId": "0",
                "brokerAddr": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:10911",
                "haServerAddr": "10.0.0.1:10912",
                "compressed": "false",
                "bodyCrc32": "0",
            }
            body = _registration(number, self._brokers, self._topics)
            code = RequestCode.REGISTER_BROKER
            answer = await self._peers[number].ask(code, ext, body, TIMEOUT_MS)
            assert answer.code == 0, answer.remark

    async def _ask(self, peer: Peer, topic: int) -> int:
        ext = {"topic": f"topic-{topic:06}", "acceptStandardJsonOnly": "true"}
        answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, b"", TIMEOUT_MS)
        assert answer.code == 0, answer.remark
        return len(answer.body)

    async def _routes(self, questions: int) -> tuple[float, float, list[float], int]:
        peer = await Peer.connect(*self._address)
        chosen = random.Random(1).choices(range(self._topics), k=questions)
        left = iter(chosen)

        async def ask_on() -> None:
            for topic in left:
                await self._ask(peer, topic)

        async def ask_all() -> None:
            await asyncio.gather(*(ask_on() for _ in range(64)))

        seconds, cpu = await self._timed(ask_all)
        waits = []
        for topic in chosen[: max(200, questions // 10)]:
            began = time.perf_counter()
            size = await self._ask(peer, topic)
            waits.append(time.perf_counter() - began)
        await peer.close()
        return questions / seconds, cpu / questions, waits, size

    async def _lose(self, count: int) -> float:
        """Cut off so many brokers; the longest that somebody waited for a route meanwhile."""
        peer = await Peer.connect(*self._address)
        slowest, until = 0.0, time.perf_counter() + 3
        for lost in self._peers[:count]:
            lost.connection.abort()
        topic = self._brokers // COPIES - 1  # Of those that stay.
        while time.perf_counter() < until:
            began = time.perf_counter()
            await self._ask(peer, topic)
            slowest = max(slowest, time.perf_counter() - began)
        await peer.close()
        return slowest


def _registration(number: int, brokers: int, topics: int) -> bytes:
    """All topics of a broker: every so manieth."""
    groups = brokers // COPIES
    names = [f"topic-{topic:06}" for topic in range(number % groups, topics, groups)]
    table = TopicTable(
        data_version=DataVersion(counter=1, timestamp=number),
        topic_config_table={
            name: TopicConfig(topic_name=name, read_queue_nums=8, write_queue_nums=8)
            for name in names
        },
    )
    return encode_registration(RegisterBrokerBody(topic_config_serialize_wrapper=table))


# A follower.


def _follower(folder: Path, count: int) -> list[Row]:
    """What a message costs those who have it after its master."""
    properties = encode_properties(
        {
            "UNIQ_KEY": "C0000202284B00000000000000000001",
            "CLUSTER": "DefaultCluster",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "WAIT": "true",
        }
    )
    messages = [
        NewMessage("orders", number % 4, bytes(128), properties, born_ms=1) for number in range(64)
    ]
    master = MessageStore.open(folder / "master")
    for _ in range(count // len(messages)):
        master.append(messages)
    stored = count // len(messages) * len(messages)
    slave = MessageStore.open(folder / "slave", gated=True)
    at, wrote, entered = 0, 0.0, 0.0
    while at < master.log_end:
        began = time.process_time()
        data = master.tail.read_raw(at, RAW_BYTES)
        slave.tail.append_raw(at, data)
        wrote -= began - time.process_time()
        at += len(data)
        began = time.process_time()
        slave.tail.confirm(slave.tail.raw_end)
        entered -= began - time.process_time()
    size = master.log_end / stored
    for store in (master, slave):
        store.close()
    return [
        Row(
            "a follower: a message of 128 bytes",
            stored / (wrote + entered),
            "msg/s",
            cpu_us=(wrote + entered) / stored * 1e6,
            note=f"{wrote / stored * 1e6:.2f} us to write {size:.0f} bytes of log, "
            f"{entered / stored * 1e6:.2f} us for queues and index",
        )
    ]


# A client.


async def _client(announce: Callable[[str], None], peer: OnelogPeer, queues: int) -> list[Row]:
    per_topic = min(TOPIC_QUEUES, queues)
    topics = [f"wide-{number}" for number in range(queues // per_topic)]
    for topic in topics:
        create_topic(peer.broker_address, topic, per_topic)
    announce(f"a consumer of {queues:,} queues")
    before = anonymous_bytes([os.getpid()])
    async with _consuming(peer, topics) as (consumer, heard):
        began = time.perf_counter()
        await consumer.start()
        await eventually(lambda: len(consumer.assigned) >= queues, "all queues", PATIENCE_S)
        started = time.perf_counter() - began
        announce("idle")
        await asyncio.sleep(5)
        memory = (anonymous_bytes([os.getpid()]) - before) / 2**20
        seconds = 10.0
        ours, theirs = time.process_time(), cpu_seconds(peer.broker_pids)
        await asyncio.sleep(seconds)
        idle = (time.process_time() - ours) / seconds
        serving = (cpu_seconds(peer.broker_pids) - theirs) / seconds
        announce("one message to each queue")
        async with AsyncProducer("bench", nameserver=peer.nameservers) as producer:
            began = time.perf_counter()
            for topic in topics:
                await asyncio.gather(
                    *(
                        producer.send(
                            Message(topic, bytes(128)), queue=Queue(topic, peer.broker_name, number)
                        )
                        for number in range(per_topic)
                    )
                )
            await eventually(lambda: len(heard) >= queues, "all messages", PATIENCE_S)
            taken = time.perf_counter() - began
    return [
        Row(f"a consumer of {queues:,} queues: until all are read", started, "s"),
        under("its memory", memory, "MiB", 512),
        under("its CPU, idle", idle * 100, "% of a core", 20, note=f"broker {serving * 100:.1f} %"),
        Row("one message to each queue and to the listener", queues / taken, "msg/s"),
    ]


@contextlib.asynccontextmanager
async def _consuming(
    peer: OnelogPeer, topics: list[str]
) -> AsyncIterator[tuple[AsyncPushConsumer, list[int]]]:
    heard: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        heard.append(message.offset)

    async with AsyncPushConsumer("g", nameserver=peer.nameservers, start="first") as consumer:
        for topic in topics:
            consumer.subscribe(topic, listener=listen)
        yield consumer, heard
