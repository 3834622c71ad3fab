"""What being watched costs: a scrape of many queues, and the counters on the send path.

The scrape is of a broker with 10,000 queues and 1,000 groups, by HTTP. What the counters cost is
measured at the broker's door, where it shows: they are taken out and put back in turns, a slice of
sends each. What a send costs is measured from socket to socket, as `in_process` does. Beside that
there is what counting takes by itself, the quickest of many runs, against the cheapest slice: that
holds on a busy machine, too.
"""

import asyncio
import statistics
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvloop

from benchmarks.in_process import ON_THE_WAY, QUEUES, Client, Kind, sends
from benchmarks.table import Options, Row, under
from onelog.config import Value
from onelog.config_sources import load
from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.core.durable.writer import Writer
from onelog.message import Appended, LogOffset, NewMessage, QueueOffset
from onelog.metrics import Histogram
from onelog.server import BrokerServer, running_broker

QUEUES_PER_TOPIC = 10
GROUPS = 1_000
SLICE = 20_000
BODY = bytes(128)


def run(options: Options) -> list[Row]:
    """Both."""
    return uvloop.run(_measured(options))


async def _measured(options: Options) -> list[Row]:
    settings: dict[str, Value] = {
        "broker.store_path": str(options.folder / "store"),
        "broker.port": 0,
        "broker.vip_port": 0,
        "broker.nameservers": "",
        "http.port": -1,
        "store.disk_clean_percent": 97,
        "store.disk_force_percent": 98,
        "store.disk_refuse_percent": 99,
        **dict.fromkeys(("kafka.port", "amqp.port", "stomp.port", "mqtt.port", "grpc.port"), 0),
    }
    async with running_broker(load(overrides=settings)) as server:
        options.announce("the counters on the send path")
        share, ns, best_us = await _share(server, 4 if options.quick else 20)
        alone_us = _counting_us(server)
        options.announce("scraping 10,000 queues")
        seconds, size = await _scraped(server, 1_000 if options.quick else 10_000)
    counted = f"paired slices of {SLICE:,} sends, the median: {ns:.0f} ns of each"
    scraped = f"CPU time, best of 5; {size >> 10} KiB, in steps of 5 ms"
    return [
        under("counters, of the send path's CPU time", share * 100, "%", 1.0, note=counted),
        under(
            "counting by itself",
            alone_us / best_us * 100,
            "%",
            1.0,
            best_us,
            f"{alone_us * 1_000:.0f} ns of {best_us:.2f} us, the cheapest slice",
        ),
        under("scrape of 10,000 queues", seconds * 1_000, "ms", 200, note=scraped),
    ]


def _counting_us(server: BrokerServer) -> float:
    """What counting takes for each of the messages of a tick."""
    writer, histogram = server.core.writer, Histogram()
    messages = [NewMessage("watched", queue % QUEUES, BODY) for queue in range(ON_THE_WAY)]
    places = [Appended(LogOffset(0), QueueOffset(0), 200) for _ in messages]
    counted = server.core.writer._stats.totals.put_count

    def once() -> None:
        writer.account(messages, places, 200 * ON_THE_WAY)
        histogram.observe(0.001)

    best = min(timeit.repeat(once, number=50, repeat=200)) / 50 / ON_THE_WAY * 1e6
    server.core.writer._stats.totals.put_count = counted
    return best


async def _share(server: BrokerServer, rounds: int) -> tuple[float, float, float]:
    """How much of a send's CPU time is counting, that time in ns, and what a send costs at best."""
    for name in ("watched", "sends"):
        server.broker.topics.create(SELF, TopicConfig(name, QUEUES, QUEUES))
    address = ("127.0.0.1", server.config.broker.port)
    _, client = await asyncio.get_running_loop().create_connection(Client, *address)
    whole = Kind(sends(), ON_THE_WAY, lambda window: client.ask(window, ON_THE_WAY))
    await whole.slice(SLICE)
    await _send(server)
    differences, costs = [], []
    for _ in range(rounds):
        with_counters = await _send(server)
        with _uncounted():
            without = await _send(server)
        differences.append((with_counters + await _send(server)) / 2 - without)
        costs.append((await whole.slice(SLICE))["cpu_us"])
    lost = statistics.median(differences)
    return max(0.0, lost * 1e6 / statistics.median(costs)), lost * 1e9, min(costs)


@contextmanager
def _uncounted() -> Iterator[None]:
    account, observe = Writer.account, Histogram.observe

    def waking_only(self: Writer, messages: object, appended: object, size: object = None) -> None:
        for told in self.stored:
            told(messages, appended)  # type: ignore[arg-type]

    Writer.account = waking_only  # type: ignore[method-assign]
    Histogram.observe = lambda *_: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Writer.account, Histogram.observe = account, observe  # type: ignore[method-assign]


async def _send(server: BrokerServer) -> float:
    """CPU seconds of one message, from the broker's door to its answer, 64 at a time."""
    broker = server.broker
    messages = [NewMessage("watched", queue % QUEUES, BODY) for queue in range(ON_THE_WAY)]
    loop = asyncio.get_running_loop()
    began = time.process_time()
    for _ in range(SLICE // ON_THE_WAY):
        done = loop.create_future()
        left = ON_THE_WAY

        def stored(*_told: object, done: asyncio.Future[None] = done) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set_result(None)

        for message in messages:
            broker.publish.send(SELF, message, stored)
        await done
    return (time.process_time() - began) / SLICE


async def _scraped(server: BrokerServer, queues: int) -> tuple[float, int]:
    broker = server.broker
    for number in range(queues // QUEUES_PER_TOPIC):
        topic = TopicConfig(f"topic-{number}", QUEUES_PER_TOPIC, QUEUES_PER_TOPIC)
        broker.topics.create(SELF, topic)
    for number in range(GROUPS):
        broker.groups.require(SELF, f"group-{number}")
        name = f"topic-{number % (queues // QUEUES_PER_TOPIC)}"
        for queue in range(QUEUES_PER_TOPIC):
            broker.cursors.commit(SELF, f"group-{number}", name, queue, 0)
    await asyncio.sleep(0.1)
    at = f"http://127.0.0.1:{server.config.http.port}"
    times, size = [], 0
    async with httpx.AsyncClient(base_url=at, timeout=60) as client:
        for _ in range(6):
            began = time.process_time()  # Of client and broker: holds on a busy machine, too.
            answer = await client.get("/metrics")
            times.append(time.process_time() - began)
            assert answer.status_code == 200
            size = len(answer.content)
    return min(times[1:]), size
