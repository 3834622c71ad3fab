"""Kafka's transactions as Spark reads them: open, aborted, begun meanwhile; and what is no loss."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from onelog.client.message import Queue
from onelog.errors import DataLossError, TransactionOpenError
from onelog.spark.brokers import connect
from onelog.spark.columns.schema import spark_schema
from onelog.spark.columns.tables import Table
from onelog.spark.options import ReadOptions, read_options
from onelog.spark.read.batch import OnelogReader
from onelog.spark.read.offsets import Json, Offsets, QueueRange
from onelog.spark.read.stream import OnelogStreamReader
from tests.gateways.kafka.live import SECONDS, address, produce
from tests.spark.conftest import StartCluster
from tests.spark.threaded_cluster import ThreadedCluster

TABLE = Table(spark_schema(["offset", "body"]))
ORDERS = Queue("orders", "broker-a", 0)


@pytest.fixture
def orders(start_cluster: StartCluster) -> ThreadedCluster:
    """Topic orders has one queue, with two messages of no transaction."""
    cluster = start_cluster(kafka__port=-1)
    cluster.topic("orders", 1)
    send(cluster, b"first", b"second")
    return cluster


@pytest.fixture(params=["cluster", "store"])
def place(request: pytest.FixtureRequest, orders: ThreadedCluster) -> dict[str, str]:
    """The same topic on its broker, and in the broker's files."""
    if request.param == "store":
        return {"store": str(orders.store_folder())}
    return {"nameserver": orders.nameserver, "retryTimeoutMs": "0"}


def send(cluster: ThreadedCluster, *values: bytes | None) -> None:
    produce(address(cluster.broker()), "orders", [*values])


@contextlib.contextmanager
def transaction(cluster: ThreadedCluster, *values: bytes, name: str = "tx") -> Iterator[Producer]:
    """Messages in a transaction that stays open."""
    at = address(cluster.broker())
    # On a machine that has much else to do, Spark takes longer than the usual minute.
    patience = {"transaction.timeout.ms": 600_000}
    producer = Producer({"bootstrap.servers": at, "transactional.id": name, **patience})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    for value in values:
        producer.produce("orders", value, partition=0)
    assert producer.flush(SECONDS) == 0
    yield producer


def options(place: dict[str, str], **more: str) -> ReadOptions:
    return read_options({**place, "subscribe": "orders", **more})


def bodies(place: dict[str, str], **more: str) -> list[bytes]:
    """What a batch query reads, in the order of offsets."""
    reader = OnelogReader(options(place, **more), TABLE)
    return in_order(batch for part in reader.partitions() for batch in reader.read(part))


def in_order(batches: Iterable[pa.RecordBatch]) -> list[bytes]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [row["body"] for row in sorted(rows, key=lambda row: int(row["offset"]))]


def stream(place: dict[str, str], **more: str) -> OnelogStreamReader:
    return OnelogStreamReader(options(place, startingOffsets="earliest", **more), TABLE)


def batch_of(reading: OnelogStreamReader, start: Json) -> tuple[list[bytes], Json]:
    """What the next batch reads, and where it ends."""
    end = reading.latestOffset(start, ReadAllAvailable())
    parts = reading.partitions(start, end)
    return in_order(batch for part in parts for batch in reading.read(part)), end


def test_a_batch_ends_before_a_transaction_that_is_open(
    orders: ThreadedCluster, place: dict[str, str]
) -> None:
    with transaction(orders, b"paid", b"sent") as producer:
        send(orders, b"behind")
        assert bodies(place) == [b"first", b"second"]
        assert bodies(place, failOnDataLoss="false") == [b"first", b"second"]
        producer.commit_transaction(SECONDS)
    assert bodies(place) == [b"first", b"second", b"paid", b"sent", b"behind"]


def test_a_stream_waits_for_the_end_of_a_transaction_and_misses_nothing(
    orders: ThreadedCluster, place: dict[str, str]
) -> None:
    reading = stream(place, failOnDataLoss="false")
    start = reading.initialOffset()
    with transaction(orders, b"paid") as producer:
        send(orders, b"behind")
        found, start = batch_of(reading, start)
        assert found == [b"first", b"second"]
        assert batch_of(reading, start) == ([], start)
        producer.commit_transaction(SECONDS)
    assert batch_of(reading, start)[0] == [b"paid", b"behind"]


def test_messages_of_an_aborted_transaction_are_a_gap_and_no_loss(
    orders: ThreadedCluster, place: dict[str, str]
) -> None:
    with transaction(orders, b"never", b"ever") as producer:
        producer.abort_transaction(SECONDS)
    assert bodies(place) == [b"first", b"second"]
    send(orders, b"last")
    assert bodies(place) == [b"first", b"second", b"last"]
    reading = stream(place)
    assert batch_of(reading, reading.initialOffset())[0] == [b"first", b"second", b"last"]


def test_a_transaction_that_begins_between_planning_and_reading_changes_nothing(
    orders: ThreadedCluster, place: dict[str, str]
) -> None:
    reader = OnelogReader(options(place), TABLE)
    parts = reader.partitions()
    with transaction(orders, b"late"):
        found = in_order(batch for part in parts for batch in reader.read(part))
    assert found == [b"first", b"second"]


def test_an_end_in_an_open_transaction_is_an_error_that_advises_to_skip_nothing(
    orders: ThreadedCluster, place: dict[str, str]
) -> None:
    name = "0" if "store" in place else "broker-a:0"
    with transaction(orders, b"paid"):
        for fail in ("true", "false"):
            with pytest.raises(TransactionOpenError, match="up to 2 all is decided") as caught:
                bodies(place, endingOffsets=f'{{"orders": {{"{name}": 3}}}}', failOnDataLoss=fail)
            assert "failOnDataLoss" not in str(caught.value)


def test_a_checkpoint_behind_an_open_transaction_is_no_loss(
    orders: ThreadedCluster, place: dict[str, str]
) -> None:
    """Earlier versions planned batches up to there, and groups of Kafka may be anywhere."""
    name = "" if "store" in place else "broker-a"
    with transaction(orders, b"paid") as producer:
        send(orders, b"behind")
        reading = stream(place)
        start = Offsets({Queue("orders", name, 0): 4}).to_json()
        assert batch_of(reading, start) == ([], start)
        producer.commit_transaction(SECONDS)
    send(orders, b"last")
    assert batch_of(reading, start)[0][-1:] == [b"last"]


def test_a_range_in_an_open_transaction_is_waited_for_and_then_told_as_what_it_is(
    orders: ThreadedCluster,
) -> None:
    """As a batch that an earlier version wrote into its checkpoint."""
    link = options({"nameserver": orders.nameserver, "retryTimeoutMs": "300"}).link
    assert link is not None
    with transaction(orders, b"paid") as producer:
        for fail in (True, False):
            with pytest.raises(TransactionOpenError, match="nothing is lost") as caught:
                list(connect(link).read(QueueRange(ORDERS, 0, 4), fail_on_data_loss=fail))
            assert "failOnDataLoss" not in str(caught.value)
        producer.commit_transaction(SECONDS)
    pulls = list(connect(link).read(QueueRange(ORDERS, 0, 4)))
    assert b"paid" in b"".join(pulls)


def test_what_retention_took_is_still_a_loss(orders: ThreadedCluster) -> None:
    async def hide() -> None:
        queue = orders.broker().core.store.queue_table.find("orders", 0)
        assert queue is not None
        queue.start = 1

    reading = stream({"nameserver": orders.nameserver, "retryTimeoutMs": "0"})
    start = reading.initialOffset()
    orders.run(hide())
    with transaction(orders, b"paid"), pytest.raises(DataLossError, match="begins at 1 now"):
        reading.latestOffset(start, ReadAllAvailable())


def test_the_gaps_of_a_compacted_topic_are_no_loss(start_cluster: StartCluster) -> None:
    cluster = start_cluster(kafka__port=-1, broker__compaction_interval_ms=20)
    at = address(cluster.broker())
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "1",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "1",
    }
    admin = AdminClient({"bootstrap.servers": at})
    made = admin.create_topics([NewTopic("orders", 1, 1, config=config)])
    made["orders"].result(SECONDS)
    producer = Producer({"bootstrap.servers": at})
    for number in range(20):
        producer.produce("orders", b"%d" % number, b"key", partition=0)
        producer.flush(SECONDS)
    producer.produce("orders", None, b"key", partition=0)
    producer.produce("orders", b"other", b"other", partition=0)
    producer.flush(SECONDS)
    remains = cluster.broker().core.compaction.compacted
    deadline = time.monotonic() + SECONDS
    while (left := remains.get(("orders", 0))) is None or left.messages > 1:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    given = {"nameserver": cluster.nameserver, "retryTimeoutMs": "0"}
    assert bodies(given)[-1:] == [b"other"]
    assert (
        bodies(given, startingOffsets='{"orders": {"0": 5}}', endingOffsets='{"orders": {"0": 9}}')
        == []
    )


def test_spark_reads_what_is_decided_while_a_transaction_is_open(
    spark: SparkSession, orders: ThreadedCluster, tmp_path: Path
) -> None:
    given = {"nameserver": orders.nameserver, "subscribe": "orders"}
    with transaction(orders, b"paid") as producer:
        send(orders, b"behind")
        assert spark.read.format("onelog").options(**given).load().count() == 2

        def run() -> int:
            query = (
                spark.readStream.format("onelog")
                .options(**given, startingOffsets="earliest")
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            return sum(int(each.numInputRows) for each in query.recentProgress)

        assert run() == 2
        producer.commit_transaction(SECONDS)
    assert run() == 2
