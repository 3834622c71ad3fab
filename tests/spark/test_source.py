"""The data source as Spark finds it."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pyspark_onelog
from onelog.spark.source import OnelogDataSource
from tests.spark.threaded_cluster import ThreadedCluster


@pytest.fixture
def orders(cluster: ThreadedCluster) -> ThreadedCluster:
    cluster.topic("orders", 2)
    cluster.fill("orders", 20)
    return cluster


def test_spark_finds_the_source_by_the_name_of_its_module() -> None:
    assert pyspark_onelog.DefaultSource is OnelogDataSource
    assert OnelogDataSource.name() == "onelog"


def test_the_look_up_of_sources_needs_nothing_but_pyspark() -> None:
    # Spark imports all such modules to find any source: one that fails breaks all of them.
    code = (
        "import sys\n"
        "for name in ('pyarrow', 'pandas', 'numpy', 'deltalake', 'msgspec'):\n"
        "    sys.modules[name] = None\n"
        "import pyspark_onelog\n"
        "print(pyspark_onelog.DefaultSource.name())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240
    )
    assert ran.stdout.strip() == "onelog", ran.stderr


def test_a_topic_is_a_view_in_sql(spark: SparkSession, orders: ThreadedCluster) -> None:
    options = f"nameserver '{orders.nameserver}', topic 'orders', columns 'queue,offset'"
    spark.sql(f"create or replace temporary view orders_view using onelog options ({options})")
    found = spark.sql("select queue, count(*) c from orders_view group by queue order by queue")
    assert [tuple(row) for row in found.collect()] == [(0, 10), (1, 10)]
    assert spark.sql("select * from orders_view where queue = 1 and offset < 3").count() == 3
    assert spark.table("orders_view").count() == 20


def test_a_table_of_the_catalog_needs_its_options_in_the_query(
    spark: SparkSession, orders: ThreadedCluster
) -> None:
    options = f"nameserver '{orders.nameserver}', topic 'orders', columns 'queue,offset'"
    spark.sql(f"create table orders_table using onelog options ({options})")
    try:
        # Spark keeps the options, and does not tell the source.
        with pytest.raises(PySparkException, match="create temporary view"):
            spark.table("orders_table").collect()
        said = f"`nameserver`='{orders.nameserver}', `topic`='orders'"
        found = spark.sql(f"select max(offset) m from orders_table with ({said})")
        assert found.collect()[0].m == 9
    finally:
        spark.sql("drop table orders_table")


def test_a_load_by_path_is_told_how_topics_are_named(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="option path is unknown: topics are named with"):
        spark.read.format("onelog").load("orders").collect()


def test_messages_cannot_be_overwritten(
    spark: SparkSession, orders: ThreadedCluster, tmp_path: Path
) -> None:
    rows = spark.sql("select 'x' as body")
    writing = rows.write.format("onelog").options(nameserver=orders.nameserver, topic="orders")
    with pytest.raises(PySparkException, match="messages cannot be overwritten"):
        writing.mode("overwrite").save()
