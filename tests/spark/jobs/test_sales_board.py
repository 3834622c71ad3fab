"""The live sales board, on a real Spark and a real broker."""

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from onelog.spark.jobs import sales_board
from onelog.spark.jobs.queries import Ran, run
from tests.commands.running import run as onelog
from tests.spark.jobs.stored import bodies, link, messages
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def order(number: int, category: str, amount: float, second: int) -> bytes:
    fields = {
        "order_id": str(number), "category": category, "amount": amount,
        "ordered_at": f"2026-05-01T10:00:{second:02d}Z",
    }  # fmt: skip
    return json.dumps(fields).encode()


def count(spark: "SparkSession", cluster: ThreadedCluster, folder: Path) -> Ran:
    query = sales_board.start(spark, link(cluster), "orders", folder, result_topic="sales")
    return run(query)


def board(folder: Path) -> dict[tuple[int, str], tuple[int, Decimal]]:
    return {
        (cell.window_start.second, cell.category): (cell.orders, cell.revenue)
        for cell in sales_board.read(folder)
    }


def test_each_order_counts_once_in_its_window_also_after_a_crash(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.topic("orders", 2)
    cluster.topic("sales", 1)
    cluster.send("orders", [order(1, "books", 10.25, 1), order(2, "toys", 5, 11)])
    cluster.send("orders", [order(3, "books", 0.5, 9), b"no order"], queue=1)
    assert sales_board.read(tmp_path) == []
    assert count(spark, cluster, tmp_path).rows == 4
    found = board(tmp_path)
    unreadable = next(key for key in found if key[1] == sales_board.UNREADABLE)
    assert found.pop(unreadable) == (1, Decimal(0))
    assert found == {(0, "books"): (2, Decimal("10.75")), (10, "toys"): (1, Decimal(5))}
    published = len(bodies(cluster, "sales"))
    assert published == 3

    # As if the driver had died when everything was written, before Spark took note of it.
    cluster.send("orders", [order(4, "books", 1, 2)])
    count(spark, cluster, tmp_path)
    commits = tmp_path / sales_board.CHECKPOINT / "commits"
    for path in [commits / "1", commits / ".1.crc"]:
        path.unlink(missing_ok=True)
    page = tmp_path / "board.html"
    ended = onelog(
        "job", "sales-board", "orders", "--folder", str(tmp_path), "--result-topic", "sales",
        "--page", str(page), "-n", cluster.nameserver,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert next(line.split() for line in ended.out.splitlines() if "books" in line)[3] == "3"
    assert "5 orders, 16.75" in page.read_text()
    assert board(tmp_path)[0, "books"] == (3, Decimal("11.75"))
    results = [json.loads(bytes(each.body)) for each in messages(cluster, "sales")[published:]]
    # Nothing is said twice; and what is said last of a key is what holds.
    assert [(each["category"], each["orders"], each["revenue"]) for each in results] == [
        ("books", 3, 11.75)
    ]
    assert messages(cluster, "sales")[-1].keys == ["2026-05-01T10:00:00/books"]
    sales_board.tidy(tmp_path / sales_board.TABLE)
    assert board(tmp_path)[10, "toys"] == (1, Decimal(5))
