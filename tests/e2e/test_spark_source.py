"""The Spark source reads RocketMQ's own brokers, which know none of our fields."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.topics import TopicChange
from onelog.client.connection.address import parse_address
from onelog.client.message import Queue
from onelog.message import encode_properties
from onelog.net.peer import Peer
from onelog.spark.brokers import connect, disconnect
from onelog.spark.columns.schema import spark_schema
from onelog.spark.columns.tables import Table
from onelog.spark.options import ReadOptions, read_options
from onelog.spark.read.batch import OnelogReader
from onelog.spark.read.stream import OnelogStreamReader
from onelog.wire.remoting.codes import RequestCode
from tests.e2e.rocketmq_peer import RocketmqPeer

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]

TABLE = Table(spark_schema(["queue", "offset", "key", "tags", "body", "store_time"]))
SEND_MS = 20_000


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[RocketmqPeer]:
    """A broker of RocketMQ with 200 messages in each of two queues."""
    with RocketmqPeer(tmp_path) as peer:
        asyncio.run(fill(peer))
        yield peer
        disconnect()


async def fill(peer: RocketmqPeer) -> None:
    async with AsyncAdmin.connect(peer.nameservers, timeout_ms=SEND_MS) as admin:
        await admin.topics.create("orders", TopicChange(read_queues=2, write_queues=2))
    address = parse_address(peer.broker_address)
    connected = await Peer.connect(address.host, address.port)
    for number in range(400):
        properties = encode_properties({"TAGS": "ab"[number % 4 // 2], "KEYS": f"k{number}"})
        ext = {
            "a": "group",
            "b": "orders",
            "c": "TBW102",
            "d": "4",
            "e": str(number % 2),
            "f": "0",
            "g": "1",
            "h": "0",
            "i": properties.decode(),
            "j": "0",
            "k": "false",
        }
        answer = await connected.ask(
            RequestCode.SEND_MESSAGE_V2, ext, b"%d" % number, timeout_ms=SEND_MS
        )
        assert answer.code == 0, answer.remark
    await connected.close()


def options(peer: RocketmqPeer, **given: str) -> ReadOptions:
    place = {"nameserver": peer.nameservers, "requestTimeoutMs": str(SEND_MS)}
    return read_options({"subscribe": "orders", **place, **given})


def rows(peer: RocketmqPeer, **given: str) -> list[dict[str, object]]:
    reading = OnelogReader(options(peer, **given), TABLE)
    parts = reading.partitions()
    return [row for part in parts for batch in reading.read(part) for row in batch.to_pylist()]


def test_a_batch_reads_everything_or_what_it_is_told(orders: RocketmqPeer) -> None:
    found = rows(orders)
    assert sorted(int(str(row["key"]).removeprefix("k")) for row in found) == list(range(400))
    assert all(row["body"] == str(row["key"])[1:].encode() for row in found)
    assert len(rows(orders, tags="a")) == 200
    assert len(rows(orders, startingOffsets='{"orders": {"0": 150, "1": -1}}')) == 50
    assert len(rows(orders, startingOffsets="-1h")) == 400
    assert rows(orders, endingTimestamp="1000") == []


def test_a_stream_goes_in_steps_and_commits(orders: RocketmqPeer) -> None:
    told = options(
        orders,
        startingOffsets="earliest",
        maxBytesPerTrigger="20000",
        group="spark",
        commitOffsets="true",
    )
    stream = OnelogStreamReader(told, TABLE)
    start, steps, seen = stream.initialOffset(), 0, 0
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        parts = stream.partitions(start, end)
        seen += sum(batch.num_rows for part in parts for batch in stream.read(part))
        start, steps = end, steps + 1
    assert seen == 400
    assert steps > 1
    assert told.link is not None
    queues = [Queue("orders", "broker-a", number) for number in (0, 1)]
    assert connect(told.link).group_positions("spark", queues) == dict.fromkeys(queues, 200)
