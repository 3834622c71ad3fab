"""Batch reads: the planning with a real broker, the whole with Spark."""

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, InputPartition, LessThan

from onelog.core.access import SELF
from onelog.errors import ConfigError, DataLossError
from onelog.message import NewMessage, NewRun, SysFlag, encode_properties
from onelog.record.inner_batch import encode_batch
from onelog.spark.columns.schema import ALL, spark_schema
from onelog.spark.columns.tables import Table
from onelog.spark.options import read_options
from onelog.spark.read.batch import OnelogPruningReader, OnelogReader
from tests.spark.conftest import StartCluster
from tests.spark.threaded_cluster import ThreadedCluster


def reader(cluster: ThreadedCluster, **options: str) -> OnelogPruningReader:
    given = {"nameserver": cluster.nameserver, "retryTimeoutMs": "0"}
    if "store" in options:
        given = {}
    given = {"subscribe": "orders", **given, **options}
    schema = spark_schema(["queue", "offset", "body", "tags"])
    return OnelogPruningReader(read_options(given), Table(schema))


def rows(reading: OnelogReader) -> list[tuple[int, int]]:
    """Queue and offset of each row, in the order of the tasks."""
    return [
        (row["queue"], row["offset"])
        for part in reading.partitions()
        for batch in reading.read(part)
        for row in batch.to_pylist()
    ]


def both(*offsets: int) -> list[tuple[int, int]]:
    return [(queue, offset) for queue in (0, 1) for offset in offsets]


@pytest.fixture
def orders(cluster: ThreadedCluster) -> ThreadedCluster:
    """Topic orders has two queues with 50 messages each."""
    cluster.topic("orders", 2)
    cluster.fill("orders", 100)
    return cluster


@pytest.fixture(params=["cluster", "store"])
def place(request: pytest.FixtureRequest, orders: ThreadedCluster) -> dict[str, str]:
    """The same topic on its broker, and in the broker's files."""
    return {"store": str(orders.store_folder())} if request.param == "store" else {}


# -- planning ------------------------------------------------------------------------------------


def test_everything_is_read_once(orders: ThreadedCluster, place: dict[str, str]) -> None:
    assert sorted(rows(reader(orders, **place))) == both(*range(50))


def test_a_range_of_offsets_is_read(orders: ThreadedCluster, place: dict[str, str]) -> None:
    found = reader(
        orders,
        startingOffsets='{"orders": {"0": 10, "1": -2}}',
        endingOffsets='{"orders": {"0": 12, "1": 3}}',
        **place,
    )
    assert sorted(rows(found)) == [(0, 10), (0, 11), (1, 0), (1, 1), (1, 2)]


def test_a_span_of_time_is_read(orders: ThreadedCluster, place: dict[str, str]) -> None:
    time.sleep(0.01)
    middle = time.time_ns() // 1_000_000
    orders.fill("orders", 10)
    late = reader(orders, startingTimestamp=str(middle), **place)
    assert sorted(rows(late)) == both(*range(50, 55))
    iso = datetime.fromtimestamp(middle / 1000, UTC).isoformat()
    assert sorted(rows(reader(orders, endingTimestamp=iso, **place))) == both(*range(50))
    assert rows(reader(orders, startingOffsets="-1h", endingTimestamp="-30m", **place)) == []
    assert len(rows(reader(orders, startingOffsets="-1h", **place))) == 110


def test_tasks_are_as_many_as_asked_for(orders: ThreadedCluster, place: dict[str, str]) -> None:
    assert len(reader(orders, **place).partitions()) == 1
    by_queue = {**place, "splitBy": "queue"} if place else {}
    many = reader(orders, minPartitions="7", **by_queue)
    assert len(many.partitions()) >= 7
    assert sorted(rows(many)) == both(*range(50))
    small = reader(orders, maxRecordsPerPartition="20", **place)
    assert len(small.partitions()) == 6
    assert sorted(rows(small)) == both(*range(50))


def test_a_plan_without_partitions_reads_nothing(orders: ThreadedCluster) -> None:
    orders.topic("empty", 1)
    found = reader(orders, subscribe="empty")
    assert found.partitions() == []
    assert list(found.read(InputPartition(None))) == []


def test_tags_are_exact(orders: ThreadedCluster, place: dict[str, str]) -> None:
    # "Aa" and "BB" have the same hash, which is all that a queue's entries know of them.
    for tag in ("Aa", "BB", "other"):
        orders.send("orders", [b"x"], TAGS=tag)
    assert rows(reader(orders, tags="BB", **place)) == [(0, 51)]
    assert rows(reader(orders, tags="BB || other", **place)) == [(0, 51), (0, 52)]


def test_messages_without_a_body_are_rows(orders: ThreadedCluster, place: dict[str, str]) -> None:
    async def publish() -> None:
        broker = orders.broker().broker
        run = NewRun("orders", 0, [(0, b"", b""), (0, b"y", b"")], b"y")
        broker.publish.send(SELF, NewMessage("orders", 0, b""), lambda token, where, error: None)
        broker.publish.send(SELF, run, lambda token, where, error: None)

    orders.run(publish())
    found = reader(orders, startingOffsets='{"orders": {"0": 50, "1": -1}}', **place)
    (part,) = found.partitions()
    assert [body for batch in found.read(part) for body in batch["body"].to_pylist()] == [
        b"",
        b"",
        b"y",
    ]


def test_inner_batches_are_taken_apart(orders: ThreadedCluster, place: dict[str, str]) -> None:
    parts = [(0, b"part %d" % number, b"") for number in range(3)]
    record = NewMessage(
        "orders",
        0,
        encode_batch(parts),
        inner_count=3,
        sys_flag=SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP,
    )

    async def append() -> None:
        orders.broker().core.store.append([record])

    orders.run(append())
    orders.send("orders", [b"after"])
    found = reader(orders, startingOffsets='{"orders": {"0": 51, "1": -1}}', **place)
    bodies = [
        body
        for part in found.partitions()
        for batch in found.read(part)
        for body in batch["body"].to_pylist()
    ]
    assert sorted(bodies) == [b"after", b"part 1", b"part 2"]


def test_filters_spare_the_broker_work(orders: ThreadedCluster) -> None:
    pruning = reader(orders)
    filters = [EqualTo(("queue",), 1), LessThan(("offset",), 5)]
    assert list(pruning.pushFilters(filters)) == filters
    before = orders.broker().core.stats.totals.get_count
    assert rows(pruning) == [(1, offset) for offset in range(5)]
    assert orders.broker().core.stats.totals.get_count - before == 5


def test_filters_on_tags_meet_the_option(orders: ThreadedCluster, place: dict[str, str]) -> None:
    orders.send("orders", [b"x"], TAGS="a")
    orders.send("orders", [b"x"], TAGS="b")
    pruning = reader(orders, tags="a", **place)
    pruning.pushFilters([EqualTo(("tags",), "b")])
    assert rows(pruning) == []
    pruning.pushFilters([EqualTo(("tags",), "a")])
    assert rows(pruning) == [(0, 50)]


def test_offsets_that_are_deleted_are_refused(orders: ThreadedCluster) -> None:
    text = '{"orders": {"0": 99, "1": 0}}'
    with pytest.raises(DataLossError, match="option startingOffsets: offset 99"):
        reader(orders, startingOffsets=text).partitions()
    assert len(rows(reader(orders, startingOffsets=text, failOnDataLoss="false"))) == 50


def test_what_makes_no_sense_in_a_batch_is_refused(orders: ThreadedCluster) -> None:
    with pytest.raises(ConfigError, match=r"startingOffsets.*latest"):
        reader(orders, startingOffsets="latest")
    with pytest.raises(ConfigError, match="commitOffsets is for streams"):
        reader(orders, group="g", commitOffsets="true")


# -- with Spark ----------------------------------------------------------------------------------


def frame(spark: SparkSession, cluster: ThreadedCluster, **options: str) -> DataFrame:
    place = {} if "store" in options else {"nameserver": cluster.nameserver}
    given = {"subscribe": "orders", "retryTimeoutMs": "0", **place, **options}
    if "store" in options:
        del given["retryTimeoutMs"]
    return spark.read.format("onelog").options(**given).load()


def test_a_message_has_all_its_columns(spark: SparkSession, orders: ThreadedCluster) -> None:
    orders.topic("all", 1)
    properties = encode_properties(
        {"KEYS": "k1 k2", "TAGS": "t", "UNIQ_KEY": "ID7", "colour": "red"}
    )
    message = NewMessage("all", 0, b"body", properties, flag=3, born_ms=1_793_530_800_250)

    async def append() -> None:
        orders.broker().core.store.append([message])

    orders.run(append())
    places: list[dict[str, str]] = [{}, {"store": str(orders.store_folder())}]
    for place in places:
        found = frame(spark, orders, subscribe="all", **place)
        assert found.columns == list(ALL)
        (row,) = found.collect()
        assert (row.topic, row.queue, row.offset, row.flag) == ("all", 0, 0, 3)
        assert (row.key, row.tags, bytes(row.body), row.message_id) == (
            "k1 k2",
            "t",
            b"body",
            "ID7",
        )
        assert row.properties["colour"] == "red"
        assert row.born_time.astimezone(UTC) == datetime(2026, 11, 1, 11, 0, 0, 250_000, UTC)
        assert row.broker == ("" if place else "broker-a")


def test_columns_are_chosen_by_option_or_schema(
    spark: SparkSession, orders: ThreadedCluster
) -> None:
    assert frame(spark, orders, columns="offset, queue").columns == ["offset", "queue"]
    chosen = (
        spark.read.format("onelog")
        .schema("body binary, offset bigint")
        .options(nameserver=orders.nameserver, subscribe="orders")
        .load()
    )
    assert chosen.filter("offset = 7").count() == 2


def test_filters_spare_reading_if_asked_to(spark: SparkSession, orders: ThreadedCluster) -> None:
    totals = orders.broker().core.stats.totals
    before = totals.get_count
    condition = "queue = 1 and offset >= 5 and offset < 9"
    assert frame(spark, orders, pushdown="true").filter(condition).count() == 4
    assert totals.get_count - before == 4
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert frame(spark, orders, pushdown="true").filter(condition).count() == 4
        assert totals.get_count - before == 104
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_frame_can_be_filtered_again_and_again(
    spark: SparkSession, orders: ThreadedCluster
) -> None:
    # With pushdown, Spark would give the rows of the first query to the second.
    found = frame(spark, orders)
    assert found.filter("queue = 1 and offset < 5").count() == 5
    assert found.count() == 100
    left, right = found.filter("queue = 0").alias("l"), found.filter("queue = 1").alias("r")
    assert left.join(right, "offset").count() == 50


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "nothing"}, "option subscribe: topic 'nothing' does not exist"),
        ({"subscribePattern": "a("}, "exclude each other"),
        ({"colums": "offset"}, "option colums is unknown: did you mean columns?"),
        ({"columns": "offset,colour"}, "there is no column 'colour'"),
        ({"startingOffsets": '{"orders": {"0": 99, "1": 0}}'}, "offset 99 of queue broker-a:0"),
        ({"nameserver": "127.0.0.1:1"}, "option nameserver, which is 127.0.0.1:1"),
        ({"store": "/nowhere"}, "option store"),
    ],
)
def test_mistakes_reach_the_user_by_name(
    spark: SparkSession, orders: ThreadedCluster, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        frame(spark, orders, **options).collect()
    assert said in str(caught.value)


def test_a_schema_that_messages_do_not_have_is_refused(
    spark: SparkSession, orders: ThreadedCluster
) -> None:
    reading = spark.read.format("onelog").options(nameserver=orders.nameserver, subscribe="orders")
    with pytest.raises(PySparkException, match="the column offset is bigint, and not string"):
        reading.schema("offset string").load().collect()
    with pytest.raises(PySparkException, match="there is no column 'price'"):
        reading.schema("price int").load().collect()


def test_a_broker_that_is_down_at_the_start_is_an_error_with_advice(
    spark: SparkSession, start_cluster: StartCluster
) -> None:
    cluster = start_cluster()
    cluster.topic("orders", 1)
    cluster.fill("orders", 10, queues=1)
    found = frame(spark, cluster)
    cluster.stop_broker()
    with pytest.raises(PySparkException, match="orders"):
        found.collect()


def test_bodies_become_columns(spark: SparkSession, orders: ThreadedCluster) -> None:
    orders.topic("json", 1)
    orders.send("json", [b'{"id": 1, "price": 2.5}', b"{]", b'{"id": 3, "more": true}'])
    places: list[dict[str, str]] = [{}, {"store": str(orders.store_folder())}]
    for place in places:
        inferred = frame(spark, orders, subscribe="json", decode="json", columns="offset", **place)
        assert inferred.columns == ["offset", "id", "price", "more", "_error"]
        found = inferred.orderBy("offset").collect()
        assert [(row.id, row.price, row.more) for row in found] == [
            (1, 2.5, None),
            (None, None, None),
            (3, None, True),
        ]
        assert [row._error is None for row in found] == [True, False, True]
    strict = frame(
        spark, orders, subscribe="json", decode="json", schema="id long", mode="failfast"
    )
    with pytest.raises(PySparkException, match="json"):
        strict.collect()


def test_a_copy_of_a_store_is_read_without_a_broker(
    spark: SparkSession, orders: ThreadedCluster, tmp_path: Path
) -> None:
    orders.stop_broker()
    shutil.copytree(orders.store_folder(), tmp_path / "copy")
    found = frame(spark, orders, store=str(tmp_path / "copy"), columns="queue,offset")
    assert sorted((row.queue, row.offset) for row in found.collect()) == both(*range(50))
