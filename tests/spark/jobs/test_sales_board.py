"""The live sales board, on a real Spark and a real broker."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onelog.spark.jobs import topics
from onelog.spark.jobs.queries import Ran, run
from onelog_examples import sales_board
from tests.commands.running import run as onelog
from tests.spark.jobs.stored import bodies, link, messages
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def order(number: int, category: str, amount: float, second: int) -> bytes:
    fields = {
        "order_id": str(number),
        "category": category,
        "amount": amount,
        "ordered_at": f"2024-05-01T10:00:{second:02d}Z",
    }
    return json.dumps(fields).encode()


def count(spark: "SparkSession", cluster: ThreadedCluster, folder: Path) -> Ran:
    query = sales_board.start(spark, link(cluster), "orders", folder, result_topic="sales")
    return run(query)


def board(folder: Path) -> dict[tuple[int, str], tuple[int, Decimal]]:
    return {
        (cell.window_start.second, cell.category): (cell.orders, cell.revenue)
        for cell in sales_board.read(folder)
    }


@pytest.fixture
def batches_with_orders_only(spark: "SparkSession") -> Iterator[None]:
    """Spark runs no batches that only clean up, so that the last batch is one with orders."""
    name = "spark.sql.streaming.noDataMicroBatches.enabled"
    spark.conf.set(name, "false")
    yield
    spark.conf.unset(name)


@pytest.mark.usefixtures("batches_with_orders_only")
def test_each_order_counts_once_in_its_window_also_after_a_crash(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.topic("orders", 2)
    cluster.topic("sales", 1)
    cluster.send("orders", [order(1, "books", 10.25, 1), order(2, "toys", 5, 11)])
    cluster.send("orders", [order(3, "books", 0.5, 9)], queue=1)
    assert sales_board.read(tmp_path) == []
    assert count(spark, cluster, tmp_path).rows == 3
    assert board(tmp_path) == {
        (0, "books"): (2, Decimal("10.75")),
        (10, "toys"): (1, Decimal(5)),
    }
    assert len(bodies(cluster, "sales")) == 2

    # As if the driver had died when everything was written, before Spark took note of it.
    cluster.send("orders", [order(4, "books", 1, 2)])
    count(spark, cluster, tmp_path)
    commits = tmp_path / sales_board.CHECKPOINT / "commits"
    assert sorted(path.name for path in commits.glob("[0-9]*")) == ["0", "1"]
    for path in [commits / "1", commits / ".1.crc"]:
        path.unlink(missing_ok=True)
    page = tmp_path / "board.html"
    ended = onelog(
        "job",
        "sales-board",
        "orders",
        "--folder",
        str(tmp_path),
        "--result-topic",
        "sales",
        "--page",
        str(page),
        "-n",
        cluster.nameserver,
    )
    assert ended.code == 0, ended.err
    assert next(line.split() for line in ended.out.splitlines() if "books" in line)[3] == "3"
    assert "4 orders, 16.75" in page.read_text()
    assert (commits / "1").exists()
    assert board(tmp_path)[0, "books"] == (3, Decimal("11.75"))
    results = [json.loads(bytes(each.body)) for each in messages(cluster, "sales")[2:]]
    # Nothing is said twice; and what is said last of a key is what holds.
    assert [(each["category"], each["orders"], each["revenue"]) for each in results] == [
        ("books", 3, 11.75)
    ]
    assert messages(cluster, "sales")[-1].keys == ["2024-05-01T10:00:00/books"]
    sales_board.tidy(tmp_path / sales_board.TABLE)
    assert board(tmp_path)[10, "toys"] == (1, Decimal(5))


def test_what_is_no_order_or_from_the_future_counts_when_it_was_stored(
    spark: "SparkSession", cluster: ThreadedCluster
) -> None:
    cluster.topic("orders", 1)
    future = order(1, "books", 7, 0).replace(b"2024-", b"2999-")
    bad = [b"no order", b'{"category": "toys"}', b'{"amount": 5}', b"\xff\x00"]
    cluster.send("orders", [future, *bad, b'{"category": "toys", "amount": 1, "ordered_at": "?"}'])
    read = topics.read(spark, link(cluster), "orders", ["body", "store_time"])
    rows = sales_board.board(read, window_seconds=86_400, late_seconds=60).collect()
    found: dict[str, int] = {}
    for row in rows:
        assert 2024 < row["window_start"].year < 2999
        found[row["category"]] = found.get(row["category"], 0) + row["orders"]
    assert found == {"books": 1, "toys": 1, sales_board.UNREADABLE: 4}
