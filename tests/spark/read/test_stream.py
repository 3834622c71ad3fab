"""Streams: offsets from batch to batch, limits, what was lost; with a real broker, and Spark."""

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

from onelog.client.message import Queue
from onelog.errors import ConfigError, DataLossError
from onelog.spark.brokers import connect
from onelog.spark.columns.schema import spark_schema
from onelog.spark.columns.tables import Table
from onelog.spark.options import read_options
from onelog.spark.read.offsets import Json, Offsets
from onelog.spark.read.stream import OnelogStreamReader
from tests.spark.threaded_cluster import ThreadedCluster

NUMBERS = "topic string, queue int, offset long, body binary"


def reader(cluster: ThreadedCluster, **options: str) -> OnelogStreamReader:
    given = {"nameserver": cluster.nameserver, "subscribe": "orders", "retryTimeoutMs": "0"}
    table = Table(spark_schema(["offset", "body"]))
    return OnelogStreamReader(read_options({**given, **options}), table)


def positions(offset: Json) -> dict[str, int]:
    return offset["offsets"].get("orders", {})


def rows(stream: OnelogStreamReader, start: Json, end: Json) -> list[int]:
    """The offsets that a batch reads."""
    parts = stream.partitions(start, end)
    return [int(o) for part in parts for b in stream.read(part) for o in b["offset"].to_pylist()]


@pytest.fixture
def orders(cluster: ThreadedCluster) -> ThreadedCluster:
    """Topic orders has two queues with 50 messages each."""
    cluster.topic("orders", 2)
    cluster.fill("orders", 100)
    return cluster


# -- offsets -------------------------------------------------------------------------------------


def test_a_stream_begins_with_the_latest_unless_told_otherwise(orders: ThreadedCluster) -> None:
    assert positions(reader(orders).initialOffset()) == {"broker-a:0": 50, "broker-a:1": 50}
    early = reader(orders, startingOffsets="earliest")
    assert positions(early.initialOffset()) == {"broker-a:0": 0, "broker-a:1": 0}


def test_the_beginning_stays_where_it_was_said_to_be(orders: ThreadedCluster) -> None:
    stream = reader(orders)
    first = stream.initialOffset()
    orders.fill("orders", 10)
    assert stream.initialOffset() == first


def test_without_anything_new_the_start_is_returned(orders: ThreadedCluster) -> None:
    stream = reader(orders)
    start = stream.initialOffset()
    assert json.dumps(stream.latestOffset(start, ReadAllAvailable())) == json.dumps(start)


def test_a_batch_goes_to_what_is_there_and_reads_it_once(orders: ThreadedCluster) -> None:
    stream = reader(orders)
    start = stream.initialOffset()
    orders.fill("orders", 10)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert positions(end) == {"broker-a:0": 55, "broker-a:1": 55}
    assert sorted(rows(stream, start, end)) == sorted([*range(50, 55)] * 2)
    again = reader(orders)
    assert sorted(rows(again, start, end)) == sorted([*range(50, 55)] * 2)


def test_limits_hold_and_every_queue_moves(orders: ThreadedCluster) -> None:
    orders.send("orders", [b"x"] * 900)
    stream = reader(orders, startingOffsets="earliest", maxOffsetsPerTrigger="100")
    assert stream.getDefaultReadLimit() == ReadMaxRows(100)
    start, batches = stream.initialOffset(), 0
    while (end := stream.latestOffset(start, ReadMaxRows(100))) != start:
        assert 0 < len(rows(stream, start, end)) <= 100
        before, after = positions(start), positions(end)
        if before["broker-a:1"] < 50:
            assert after["broker-a:1"] > before["broker-a:1"]
        start, batches = end, batches + 1
    assert positions(start) == {"broker-a:0": 950, "broker-a:1": 50}
    assert batches == 10


def test_bytes_are_limited_about(orders: ThreadedCluster) -> None:
    stream = reader(orders, startingOffsets="earliest", maxBytesPerTrigger="3000")
    assert stream.getDefaultReadLimit() == ReadMaxBytes(3_000)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxBytes(3_000))
    assert 10 < len(rows(stream, start, end)) < 60
    both = reader(
        orders, startingOffsets="earliest", maxBytesPerTrigger="3000", maxOffsetsPerTrigger="5"
    )
    start = both.initialOffset()
    assert len(rows(both, start, both.latestOffset(start, both.getDefaultReadLimit()))) == 5


def test_a_single_trigger_takes_everything(orders: ThreadedCluster) -> None:
    stream = reader(orders, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert positions(end) == {"broker-a:0": 50, "broker-a:1": 50}


def test_what_comes_after_the_start_of_available_now_does_not_count(
    orders: ThreadedCluster,
) -> None:
    stream = reader(orders, startingOffsets="earliest")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    orders.fill("orders", 10)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert positions(end) == {"broker-a:0": 50, "broker-a:1": 50}
    assert stream.latestOffset(end, ReadAllAvailable()) == end


def test_queues_that_come_later_are_read_from_their_beginning(orders: ThreadedCluster) -> None:
    stream = OnelogStreamReader(
        read_options({"nameserver": orders.nameserver, "subscribePattern": "orders.*"}),
        Table(spark_schema(["offset"])),
    )
    start = stream.initialOffset()
    orders.topic("orders-more", 1)
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    orders.send("orders-more", [b"x"] * 3)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end["offsets"]["orders-more"] == {"broker-a:0": 3}
    assert rows(stream, start, end) == [0, 1, 2]


def test_before_4_2_the_source_keeps_the_limit_by_itself(orders: ThreadedCluster) -> None:
    stream = reader(orders, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    start = stream.initialOffset()
    seen = []
    while (end := stream.latestOffset()) != start:
        seen.append(len(rows(stream, start, end)))
        start = end
    assert seen == [30, 30, 30, 10]
    restarted = reader(orders, maxOffsetsPerTrigger="30")
    assert positions(restarted.latestOffset()) == {"broker-a:0": 50, "broker-a:1": 50}


def test_the_latest_offsets_are_reported_for_the_progress(orders: ThreadedCluster) -> None:
    stream = reader(orders, startingOffsets="earliest")
    assert stream.reportLatestOffset() is None
    stream.latestOffset(stream.initialOffset(), ReadMaxRows(1))
    latest = stream.reportLatestOffset()
    assert latest is not None
    assert positions(latest) == {"broker-a:0": 50, "broker-a:1": 50}


def test_progress_says_how_far_behind_the_query_is_and_what_it_reads(
    orders: ThreadedCluster,
) -> None:
    stream = reader(orders, startingOffsets="earliest")
    start = stream.initialOffset()
    time.sleep(0.05)
    middle = stream.latestOffset(start, ReadMaxRows(30))
    report = stream.reportLatestOffset()
    assert report is not None
    assert report["description"] == f"onelog: topic orders at {orders.nameserver}"
    lag = report["metrics"]
    assert lag["messagesBehind"] == 70
    assert 30 <= lag["maxMessagesBehind"] <= 40
    assert 0.05 <= lag["secondsBehind"] < 600
    assert lag["topics"] == {"orders": {k: v for k, v in lag.items() if k != "topics"}}
    stream.latestOffset(middle, ReadAllAvailable())
    report = stream.reportLatestOffset()
    assert report is not None
    none = {"messagesBehind": 0, "maxMessagesBehind": 0, "secondsBehind": 0.0}
    assert report["metrics"] == {**none, "topics": {"orders": none}}


def test_lag_is_told_of_files_and_by_topic(orders: ThreadedCluster) -> None:
    orders.topic("bills", 1)
    orders.send("bills", [b"x"] * 3)
    given = {"store": str(orders.store_folder()), "subscribePattern": "orders|bills"}
    options = read_options({**given, "startingOffsets": "earliest"})
    stream = OnelogStreamReader(options, Table(spark_schema(["offset"])))
    stream.latestOffset(stream.initialOffset(), ReadMaxRows(3))
    report = stream.reportLatestOffset()
    assert report is not None
    assert report["description"] == f"onelog: topics orders|bills in {orders.store_folder()}"
    topics = report["metrics"]["topics"]
    assert topics["bills"]["messagesBehind"] + topics["orders"]["messagesBehind"] == 100
    assert topics["bills"]["messagesBehind"] == 2
    assert report["metrics"]["secondsBehind"] > 0


# -- losses --------------------------------------------------------------------------------------


def make_again(cluster: ThreadedCluster, messages: int) -> None:
    cluster.delete_topic("orders")
    cluster.topic("orders", 2)
    cluster.fill("orders", messages)


def test_a_topic_that_was_made_again_is_noticed_however_far_it_grew(
    orders: ThreadedCluster,
) -> None:
    stream = reader(orders)
    start = stream.initialOffset()
    make_again(orders, 500)
    with pytest.raises(DataLossError, match="topic orders was deleted and made again"):
        stream.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLossError, match="failOnDataLoss=false"):
        reader(orders).latestOffset(start, ReadAllAvailable())


def test_a_topic_that_was_made_again_is_read_from_its_beginning_if_that_is_accepted(
    orders: ThreadedCluster,
) -> None:
    stream = reader(orders, failOnDataLoss="false")
    start = stream.initialOffset()
    make_again(orders, 20)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert positions(end) == {"broker-a:0": 10, "broker-a:1": 10}
    assert sorted(rows(stream, start, end)) == sorted([*range(10)] * 2)
    assert stream.latestOffset(end, ReadAllAvailable()) == end


def test_a_batch_of_the_old_topic_is_not_run_on_the_new_one(orders: ThreadedCluster) -> None:
    stream = reader(orders, startingOffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    make_again(orders, 500)
    with pytest.raises(DataLossError, match="made again"):
        reader(orders).partitions(start, end)
    assert rows(reader(orders, failOnDataLoss="false"), start, end) == []


def hide_first(cluster: ThreadedCluster, offset: int) -> None:
    async def hide() -> None:
        queue = cluster.broker().core.store.queue_table.find("orders", 0)
        assert queue is not None
        queue.start = offset

    cluster.run(hide())


def test_messages_that_retention_took_are_missed(orders: ThreadedCluster) -> None:
    start = reader(orders, startingOffsets="earliest").initialOffset()
    hide_first(orders, 40)
    with pytest.raises(DataLossError, match="begins at 40 now: 0 to 39 are deleted"):
        reader(orders).latestOffset(start, ReadAllAvailable())
    tolerant = reader(orders, failOnDataLoss="false")
    end = tolerant.latestOffset(start, ReadAllAvailable())
    assert sorted(rows(tolerant, start, end)) == sorted([*range(40, 50), *range(50)])


def test_a_queue_that_lost_its_end_goes_on_where_it_ends_if_that_is_accepted(
    orders: ThreadedCluster,
) -> None:
    far = Offsets({Queue("orders", "broker-a", 0): 70, Queue("orders", "broker-a", 1): 50})
    known = reader(orders).initialOffset()["incarnations"]
    start = {**far.to_json(), "incarnations": known}
    with pytest.raises(DataLossError, match="ends at 50, and the query was at 70"):
        reader(orders).latestOffset(start, ReadAllAvailable())
    tolerant = reader(orders, failOnDataLoss="false")
    back = tolerant.latestOffset(start, ReadAllAvailable())
    assert positions(back) == {"broker-a:0": 50, "broker-a:1": 50}
    assert rows(tolerant, start, back) == []
    orders.fill("orders", 4)
    end = tolerant.latestOffset(back, ReadAllAvailable())
    assert sorted(rows(tolerant, back, end)) == [50, 50, 51, 51]


def test_a_topic_that_is_gone_stops_the_query_unless_that_is_accepted(
    orders: ThreadedCluster,
) -> None:
    start = reader(orders).initialOffset()
    orders.delete_topic("orders")
    with pytest.raises(DataLossError, match="queue broker-a:0 of orders is gone"):
        reader(orders).latestOffset(start, ReadAllAvailable())
    tolerant = reader(orders, failOnDataLoss="false")
    assert tolerant.latestOffset(start, ReadAllAvailable()) == start


def test_offsets_of_another_source_are_refused(orders: ThreadedCluster) -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        reader(orders).latestOffset({"orders": {"0": {"x": 5}}}, ReadAllAvailable())


def test_a_stream_has_no_end(orders: ThreadedCluster) -> None:
    with pytest.raises(ConfigError, match="availableNow"):
        reader(orders, endingOffsets="latest")


# -- with Spark ----------------------------------------------------------------------------------


def stream_of(spark: SparkSession, place: Mapping[str, str], **options: str) -> DataFrame:
    given = {"subscribe": "orders", "startingOffsets": "earliest", **place, **options}
    return spark.readStream.format("onelog").schema(NUMBERS).options(**given).load()


def run(rows: DataFrame, folder: Path) -> StreamingQuery:
    """Everything that is there, appended to a table."""
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    query.awaitTermination()
    return query


def table(spark: SparkSession, folder: Path) -> list[tuple[int, int]]:
    found = spark.read.parquet(str(folder / "table")).collect()
    return sorted((row.queue, row.offset) for row in found)


@pytest.mark.parametrize("kind", ["cluster", "store"])
def test_a_query_goes_on_where_it_stopped(
    spark: SparkSession, orders: ThreadedCluster, tmp_path: Path, kind: str
) -> None:
    place = {"nameserver": orders.nameserver}
    if kind == "store":
        place = {"store": str(orders.store_folder())}
    limit = {"maxOffsetsPerTrigger": "60"}
    first = run(stream_of(spark, place, **limit), tmp_path)
    assert [each.numInputRows for each in first.recentProgress if each.numInputRows] == [60, 40]
    assert table(spark, tmp_path) == [(q, n) for q in (0, 1) for n in range(50)]
    orders.fill("orders", 10)
    second = run(stream_of(spark, place, **limit), tmp_path)
    assert sum(each.numInputRows for each in second.recentProgress) == 10
    assert table(spark, tmp_path) == [(q, n) for q in (0, 1) for n in range(55)]


def test_a_group_follows_the_query_to_its_end(
    spark: SparkSession, orders: ThreadedCluster, tmp_path: Path
) -> None:
    rows = stream_of(
        spark,
        {"nameserver": orders.nameserver},
        group="spark",
        commitOffsets="true",
        maxOffsetsPerTrigger="60",
    )
    run(rows, tmp_path)
    link = read_options({"nameserver": orders.nameserver, "subscribe": "orders"}).link
    assert link is not None
    queues = [Queue("orders", "broker-a", number) for number in (0, 1)]
    found = connect(link).group_positions("spark", queues)
    assert found == dict.fromkeys(queues, 50)
    later = reader(orders, startingOffsets="group", group="spark").initialOffset()
    assert positions(later) == {"broker-a:0": 50, "broker-a:1": 50}


def test_a_broker_that_goes_down_midway_fails_the_query_with_advice(
    spark: SparkSession, orders: ThreadedCluster, tmp_path: Path
) -> None:
    rows = stream_of(spark, {"nameserver": orders.nameserver}, retryTimeoutMs="300")
    query = (
        rows.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    orders.stop_broker()
    with pytest.raises(Exception, match="orders"):
        query.awaitTermination(300)
    assert not query.isActive
    orders.start_broker()
    orders.fill("orders", 10)
    again = run(stream_of(spark, {"nameserver": orders.nameserver}), tmp_path)
    assert sum(each.numInputRows for each in again.recentProgress) == 10
