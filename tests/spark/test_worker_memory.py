"""The collector passes over what workers have imported, and nobody else's memory is touched."""

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from onelog.spark.worker_memory import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: how much the collector passes over, before and after."""
    for _ in batches:
        before = gc.get_freeze_count()
        settle()
        after = gc.get_freeze_count()
        settle()
        again = gc.get_freeze_count()
        yield pa.RecordBatch.from_pydict({"before": [before], "after": [after], "again": [again]})


def test_a_worker_is_settled_once(spark: "SparkSession") -> None:
    rows = spark.range(1).repartition(1)
    found = rows.mapInArrow(frozen, "before long, after long, again long").collect()[0]
    assert found.after > 1_000
    assert found.before in (0, found.after)
    assert found.again == found.after


def test_a_process_without_a_task_is_left_as_it_is() -> None:
    before = gc.get_freeze_count()
    settle()
    assert gc.get_freeze_count() == before
