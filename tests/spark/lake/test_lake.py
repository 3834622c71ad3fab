"""Topics as lake tables, kept fresh by a real Spark."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from onelog.errors import ConfigError
from onelog.spark import lake
from onelog.spark.jobs.queries import Ran
from onelog.spark.lake import tables as lake_tables
from onelog.spark.lake.tables import Form
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


def sync(
    spark: "SparkSession",
    cluster: ThreadedCluster,
    folder: Path,
    *topics: str,
    form: Form = "delta",
    **options: str,
) -> Ran:
    given = {"nameserver": cluster.nameserver, **options}
    return lake.sync(topics, folder, spark=spark, options=given, form=form)


def numbers(spark: "SparkSession", table: Path) -> list[int]:
    return sorted(int(row.body) for row in lake.read(spark, table).select("body").collect())


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_table_follows_its_topic_also_without_its_checkpoint(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path, form: Form
) -> None:
    cluster.topic("orders", 2)
    cluster.fill("orders", 100)
    folder = tmp_path / "lake"
    assert sync(spark, cluster, folder, "orders", form=form, maxOffsetsPerTrigger="30").rows == 100
    assert numbers(spark, folder / "orders") == list(range(100))
    assert sync(spark, cluster, folder, "orders", form=form).rows == 0
    cluster.send("orders", [b"100"])
    assert sync(spark, cluster, folder, "orders", form=form).rows == 1
    shutil.rmtree(folder / lake.CHECKPOINTS)
    cluster.send("orders", [b"101"], queue=1)
    assert sync(spark, cluster, folder, "orders", form=form).rows == 1
    assert numbers(spark, folder / "orders") == list(range(102))
    assert "_incarnation" not in lake.read(spark, folder / "orders").columns
    if form == "delta":
        made = DeltaTable(folder / "orders").transaction_version("onelog-last orders broker-a")
        assert made


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_topic_may_be_synced_together_with_others_and_alone(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path, form: Form
) -> None:
    for topic in ("orders", "payments"):
        cluster.topic(topic, 2)
        cluster.fill(topic, 10)
    assert sync(spark, cluster, tmp_path, "orders", "payments", form=form).rows == 20
    cluster.send("orders", [b"10", b"11"])
    assert sync(spark, cluster, tmp_path, "orders", form=form).rows == 2
    cluster.send("payments", [b"10"])
    sync(spark, cluster, tmp_path, "orders", "payments", form=form)
    cluster.send("orders", [b"12"])
    for topics in (["payments", "orders"], ["orders"]):
        sync(spark, cluster, tmp_path, *topics, form=form)
    assert numbers(spark, tmp_path / "orders") == list(range(13))
    assert numbers(spark, tmp_path / "payments") == list(range(11))


def test_dead_letters_are_there_once_also_without_the_checkpoint(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.topic("orders", 1)
    cluster.send("orders", [b'{"amount": 5}', b"no json", b"neither"])
    sync(spark, cluster, tmp_path, "orders", decode="json", schema="amount bigint")
    shutil.rmtree(tmp_path / lake.CHECKPOINTS)
    cluster.send("orders", [b"nor this"])
    sync(spark, cluster, tmp_path, "orders", decode="json", schema="amount bigint")
    letters = DeltaTable(tmp_path / "orders.dead_letters").to_pandas()
    assert sorted(letters["body"]) == [b"neither", b"no json", b"nor this"]


def test_decoded_bodies_are_columns_and_the_others_dead_letters(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.topic("orders", 1)
    cluster.send("orders", [b'{"amount": 5}', b"no json", b'{"amount": 7}'])
    cluster.topic("payments", 1)
    cluster.send("payments", [b'{"amount": 1}'])
    done = sync(
        spark, cluster, tmp_path, "orders", "payments", decode="json", schema="amount bigint"
    )
    assert done.rows == 4
    orders = DeltaTable(tmp_path / "orders").to_pandas()
    assert sorted(orders["amount"]) == [5, 7]
    letters = DeltaTable(tmp_path / "orders.dead_letters").to_pandas()
    assert letters["body"].tolist() == [b"no json"]
    assert letters["reason"].iloc[0]
    assert len(DeltaTable(tmp_path / "payments").to_pandas()) == 1


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_fields_that_change_their_types_are_dead_letters_and_no_value_changes(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path, form: Form
) -> None:
    cluster.topic("orders", 1)
    first = b'{"amount": 1, "item": {"n": 1}, "list": [1], "big": 1, "paid": true, "day": null}'
    cluster.send("orders", [first])
    sync(spark, cluster, tmp_path, "orders", form=form, decode="json")
    good = b'{"amount": 2, "item": {"n": 2, "new": "x"}, "day": {"y": 2026}, "late": 1.5}'
    bad = [
        b'{"amount": 1.5}',
        b'{"item": {"n": 0.5}}',
        b'{"list": [1, 2.5]}',
        b'{"amount": "7"}',
        b'{"big": 123456789012345678901234567890}',
        b'{"paid": 1}',
        b'{"item": "text"}',
    ]
    cluster.send("orders", [good, *bad])
    sync(spark, cluster, tmp_path, "orders", form=form, decode="json")
    letters = lake.read(spark, tmp_path / "orders.dead_letters").collect()
    assert sorted(bytes(row.body) for row in letters) == sorted(bad)
    assert all(row.reason for row in letters)

    def found() -> list[tuple[object, ...]]:
        rows = lake.read(spark, tmp_path / "orders").orderBy("offset").collect()
        return [
            (
                row.amount,
                row["item"].n,
                row["item"].new,
                row.list,
                row.big,
                row.paid,
                row.day,
                row.late,
            )
            for row in rows
        ]

    expected = [
        (1, 1, None, [1], 1, True, None, None),
        (2, 2, "x", None, None, None, '{"y":2026}', 1.5),
    ]
    assert found() == expected
    if form == "delta":
        assert lake_tables.compact(tmp_path / "orders") == 2
        assert found() == expected


def test_mistakes_are_named(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no topic is named"):
        sync(spark, cluster, tmp_path)
    with pytest.raises(ConfigError, match="nowhere"):
        sync(spark, cluster, tmp_path, "nowhere")
    with pytest.raises(ConfigError, match="no lake table"):
        lake.read(spark, tmp_path / "nothing")
