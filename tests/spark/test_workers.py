"""What Spark's Python workers keep, what they say, and what it takes to import the source."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from onelog.spark.workers import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HIDDEN = "from onelog.spark.workers import hide_closed_pipes as hide; hide(); hide(); "
CAUGHT = "import traceback\ntry: raise {}('x')\nexcept BaseException: traceback.print_exc()"


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


def said(program: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    ).stderr


@pytest.mark.parametrize("error", ["BrokenPipeError", "ConnectionResetError"])
def test_pipes_that_the_other_side_closed_are_no_traceback(error: str) -> None:
    assert said(f"{HIDDEN}raise {error}('x')") == ""
    assert said(f"{HIDDEN}\n{CAUGHT.format(error)}") == ""


@pytest.mark.parametrize(
    ("module", "begins"),
    [
        ("pyspark.sql.worker.lookup_data_sources", "import pyspark_onelog"),
        ("pyspark.sql.streaming.python_streaming_source_runner", "import onelog.spark.source"),
        (
            "pyspark.sql.worker.python_streaming_sink_runner",
            "from onelog.spark.write import stream_writers as each; each.stream_writer(None, None)",
        ),
    ],
)
def test_nor_those_of_what_works_for_a_driver(module: str, begins: str) -> None:
    broken = f"{begins}\n{CAUGHT.format('BrokenPipeError')}"
    assert said(broken, module) == ""
    assert "BrokenPipeError: x" in said(broken)


def test_everything_else_is_shown() -> None:
    assert "ValueError: x" in said(f"{HIDDEN}raise ValueError('x')")
    assert "ValueError: x" in said(f"{HIDDEN}\n{CAUGHT.format('ValueError')}")


def test_importing_the_source_and_planning_take_little() -> None:
    """Every query starts processes that plan it; Arrow, numpy and pandas are for tasks."""
    program = (
        "import sys, onelog.spark.source, onelog.spark.read.batch, onelog.spark.read.stream\n"
        "print(*{'numpy', 'pandas', 'pyarrow', 'onelog.core'} & set(sys.modules))\n"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    heavy, kib = found.stdout.splitlines()
    assert heavy == ""
    assert int(kib) < 60 << 10
