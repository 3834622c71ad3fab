"""A million messages, half of them sent by the SDK and half by the official Java client.

Both write into one topic at the same time and add up what they send: how many messages, the bytes
of their bodies, and the first 40 bits of the MD5 of body, key and tags. Whatever way Spark reads
the topic, it must come to the same sums, in which neither order nor the sender matters.
"""

import hashlib
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from onelog.client import Message, Producer, Queue
from tests.e2e.java_clients import run_scenario
from tests.e2e.java_toolchain import JavaMissingError
from tests.e2e.processes import wait_until
from tests.spark.fire import QUEUES, Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MESSAGES = 1_000_000
HALF = MESSAGES // 2
SINGLE_SENDS = 2_000
BATCH_MESSAGES = 100
ROWS_PER_TRIGGER = 80_000
BATCHES_BEFORE_THE_STOP = 4
SEND_SECONDS, STREAM_SECONDS = 900, 600
JAVA_CLIENT = "5.5.0"
TOPIC = "million"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_000)]


class Sums(NamedTuple):
    """What messages add up to."""

    messages: int
    body_bytes: int
    hash: int

    def plus(self, other: "Sums") -> "Sums":
        """Both together."""
        return Sums(*(mine + its for mine, its in zip(self, other, strict=True)))


class Written(NamedTuple):
    """A cluster with the topic, and what was sent to it."""

    cluster: Cluster
    sums: Sums


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """The topic, written once for all tests."""
    folder = tmp_path_factory.mktemp("million")
    with Cluster(folder) as cluster, ThreadPoolExecutor(2) as both:
        cluster.create(TOPIC)
        java = both.submit(send_by_java, folder, cluster)
        own = both.submit(send_by_sdk, cluster)
        try:
            sums = own.result().plus(java.result())
        except JavaMissingError as missing:
            pytest.skip(str(missing))
        assert sums.messages == MESSAGES
        yield Written(cluster, sums)


def send_by_java(folder: Path, cluster: Cluster) -> Sums:
    """The second half of the numbers."""
    done = run_scenario(
        folder,
        JAVA_CLIENT,
        "bulk",
        cluster.nameservers,
        SEND_SECONDS,
        topic=TOPIC,
        first=HALF,
        messages=HALF,
        batch=BATCH_MESSAGES,
    )[-1]
    return Sums(done["messages"], done["body_bytes"], done["hash"])


def send_by_sdk(cluster: Cluster) -> Sums:
    """The first half: some one by one, the others in batches."""
    chance = random.Random(HALF)
    messages = [
        Message(
            TOPIC,
            b"%d %b" % (number, chance.randbytes(chance.randrange(200))),
            keys=[f"k{number}"],
            tags=f"t{number % 5}",
        )
        for number in range(HALF)
    ]
    with Producer("million", nameserver=cluster.nameservers) as producer:
        for message in messages[:SINGLE_SENDS]:
            producer.send(message)
        for first in range(SINGLE_SENDS, HALF, BATCH_MESSAGES):
            some = messages[first : first + BATCH_MESSAGES]
            number = first // BATCH_MESSAGES % QUEUES
            producer.send_batch(some, queue=Queue(TOPIC, cluster.broker.broker_name, number))
    parts = (b"\0".join((m.body, m.keys[0].encode(), (m.tags or "").encode())) for m in messages)
    hashes = (hashlib.md5(part, usedforsecurity=False).digest()[:5] for part in parts)
    return Sums(
        len(messages),
        sum(len(message.body) for message in messages),
        sum(int.from_bytes(each, "big") for each in hashes),
    )


def sums_of(rows: "DataFrame") -> Sums:
    """The same sums, by Spark."""
    text = "concat(body, X'00', cast(key as binary), X'00', cast(tags as binary))"
    row = rows.selectExpr(
        "count(*)",
        "sum(length(body))",
        f"sum(cast(conv(substring(md5({text}), 1, 10), 16, 10) as bigint))",
    ).collect()[0]
    return Sums(*row)


def test_a_batch_over_the_network_reads_each_message_once(
    spark: "SparkSession", written: Written
) -> None:
    reader = spark.read.format("onelog").options(nameserver=written.cluster.nameservers)
    assert sums_of(reader.options(subscribe=TOPIC).load()) == written.sums


@pytest.mark.parametrize("split_by", ["bytes", "queue"])
def test_the_store_of_the_running_broker_has_each_message_once(
    spark: "SparkSession", written: Written, split_by: str
) -> None:
    reader = spark.read.format("onelog").options(store=str(written.cluster.store))
    rows = reader.options(subscribe=TOPIC, splitBy=split_by, minPartitions="7").load()
    assert sums_of(rows) == written.sums


def test_a_stream_that_is_stopped_halfway_and_started_again_delivers_each_message_once(
    spark: "SparkSession", written: Written, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    query = start_copy(spark, written.cluster, tmp_path)
    wait_until(lambda: batches(query) >= BATCHES_BEFORE_THE_STOP, "batches", STREAM_SECONDS)
    query.stop()
    before = spark.read.parquet(str(table)).count()
    assert 0 < before < MESSAGES
    assert start_copy(spark, written.cluster, tmp_path).awaitTermination(STREAM_SECONDS)
    assert sums_of(spark.read.parquet(str(table))) == written.sums


def start_copy(spark: "SparkSession", cluster: Cluster, folder: Path) -> "StreamingQuery":
    """A stream from the topic to Parquet files, to the end of what there is."""
    rows = (
        spark.readStream.format("onelog")
        .options(nameserver=cluster.nameservers, subscribe=TOPIC, startingOffsets="earliest")
        .options(columns="body,key,tags", maxOffsetsPerTrigger=str(ROWS_PER_TRIGGER))
        .load()
    )
    writer = rows.writeStream.format("parquet").option("path", str(folder / "table"))
    checkpoint = str(folder / "checkpoint")
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def batches(query: "StreamingQuery") -> int:
    """How many batches are through."""
    failure = query.exception()
    assert failure is None, failure
    return len(query.recentProgress)
