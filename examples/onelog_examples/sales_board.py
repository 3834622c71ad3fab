"""A live sales board: revenue and orders per category and window of time, from a topic of orders.

An order is JSON: {"order_id": "A7", "category": "books", "amount": 12.5, "ordered_at": "2026-..."};
without a time of its own, or with one that is yet to come, it counts when its message was stored:
one wrong clock must not make all other orders look late. What is no order counts under
`UNREADABLE`, so that nobody wonders where it went. Results go to a table in the board's folder, and
to a topic if one is named: there, the last message of a key (window and category) is what holds.

Invariant: each order counts once, also after a crash. The table is updated by key and so may be
told a result twice; the topic takes each batch once.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import functions as f

from onelog.spark.folders import local_folder
from onelog.spark.jobs import topics
from onelog.spark.jobs.queries import triggered
from onelog.spark.jobs.topics import Link

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ORDER = "order_id string, category string, amount decimal(18,2), ordered_at timestamp"
UNREADABLE = "(unreadable)"
TABLE = "board"
CHECKPOINT = "_checkpoint"
TIDY_BATCHES = 100
"""After so many batches, files that the table does not need any more are deleted."""
_KEPT_HOURS = 24


@dataclass(frozen=True, slots=True)
class Cell:
    """What one category sold in one window."""

    window_start: datetime
    category: str
    orders: int
    revenue: Decimal


def start(
    spark: "SparkSession",
    link: Link,
    orders: str,
    folder: Path,
    *,
    result_topic: str | None = None,
    window_seconds: int = 10,
    late_seconds: int = 60,
    every: float | None = None,
    **options: str,
) -> "StreamingQuery":
    """Begin to count the topic `orders`, in the background.

    Orders that come more than `late_seconds` after later ones may not be counted any more.
    """
    folder = local_folder("board", folder).absolute()
    checkpoint = folder / CHECKPOINT
    followed = topics.follow(spark, link, orders, ["body", "store_time"], **options)
    counted = board(followed, window_seconds, late_seconds)
    publish = _Publish(dict(link), result_topic, str(folder / TABLE), str(checkpoint))
    writing = (
        counted.writeStream.outputMode("update")
        .foreachBatch(publish)
        .option("checkpointLocation", str(checkpoint))
        .queryName(f"onelog-sales-board-{orders}")
    )
    return triggered(writing, every).start()


def board(messages: "DataFrame", window_seconds: int, late_seconds: int) -> "DataFrame":
    """The board of a frame of messages, streaming or not."""
    order = f.from_json(f.col("body").cast("string"), ORDER).alias("order")
    orders = messages.select(order, "store_time")
    is_past = f.col("order.ordered_at") <= f.expr(f"store_time + interval {late_seconds} seconds")
    is_order = f.col("order.category").isNotNull() & f.col("order.amount").isNotNull()
    sold = orders.select(
        f.when(is_past, f.col("order.ordered_at")).otherwise(f.col("store_time")).alias("time"),
        f.when(is_order, f.col("order.category")).otherwise(f.lit(UNREADABLE)).alias("category"),
        f.when(is_order, f.col("order.amount")).alias("amount"),
    )
    return (
        sold.withWatermark("time", f"{late_seconds} seconds")
        .groupBy(f.window("time", f"{window_seconds} seconds"), "category")
        .agg(f.count("*").alias("orders"), f.sum("amount").alias("revenue"))
        .select(
            f.col("window.start").alias("window_start"),
            "category",
            "orders",
            f.coalesce("revenue", f.lit(0).cast("decimal(28,2)")).alias("revenue"),
        )
    )


@dataclass(frozen=True)
class _Publish:
    """What is done with each batch of results; it may run on a Connect server."""

    link: dict[str, str]
    topic: str | None
    table: str
    checkpoint: str

    def __call__(self, frame: "DataFrame", batch: int) -> None:
        changed = frame.toArrow()
        if not changed.num_rows:
            return
        if self.topic is not None:
            results = frame.sparkSession.createDataFrame(changed)
            key = f.concat_ws(
                "/", f.date_format("window_start", "yyyy-MM-dd'T'HH:mm:ss"), "category"
            )
            body = f.to_json(f.struct(*changed.column_names))
            messages = results.select(key.alias("key"), body.alias("body"))
            topics.write(messages, self.link, self.topic, (f"sales-board-{self._query()}", batch))
        merge(Path(self.table), changed)
        if batch % TIDY_BATCHES == TIDY_BATCHES - 1:
            tidy(Path(self.table))

    def _query(self) -> str:
        """The query's id, which goes when its checkpoint goes: batches then count anew."""
        metadata = json.loads((Path(self.checkpoint) / "metadata").read_text())
        return str(metadata["id"])


# -- the table -----------------------------------------------------------------------------------


def merge(table: Path, changed: pa.Table) -> None:
    """Put results in the place of those that they update."""
    try:
        known = DeltaTable(table)
    except TableNotFoundError:
        write_deltalake(table, changed)
        return
    (
        known.merge(
            changed,
            "new.window_start = old.window_start and new.category = old.category",
            source_alias="new",
            target_alias="old",
        )
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )


def tidy(table: Path) -> None:
    """Join small files, and delete what left the table a while ago."""
    known = DeltaTable(table)
    known.optimize.compact()
    known.create_checkpoint()
    known.vacuum(_KEPT_HOURS, dry_run=False, enforce_retention_duration=False)


def read(folder: Path) -> Sequence[Cell]:
    """The board as it is now, in order of time; nothing before the first result."""
    try:
        rows = DeltaTable(local_folder("board", folder) / TABLE).to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return []
    cells = [Cell(**row) for row in rows]
    return sorted(cells, key=lambda cell: (cell.window_start, cell.category))
