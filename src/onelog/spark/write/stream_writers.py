"""Stream writers for every PySpark: Arrow batches from 4.1 on, rows made into batches on 4.0.

A sink says what its tasks and its driver do (`StreamWork`); the classes that Spark wants are here.
"""

import itertools
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from onelog.errors import ConfigError
from onelog.spark.workers import hide_pipes_of_drivers, task
from onelog.spark.write.deciders import QUERY_PREFIX

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:
    HAS_ARROW_STREAMS = False
else:
    HAS_ARROW_STREAMS = True

ROWS_PER_BATCH = 10_000

Messages = list[WriterCommitMessage | None]


class StreamWork(Protocol):
    """What a sink does with a stream; it is pickled on its way to the tasks."""

    def write(
        self, query: str, batch: int, batches: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        """In a task: the rows of a partition. Nothing of it may be visible yet."""
        ...

    def commit(self, batch: int, messages: Messages) -> None:
        """On the driver: make visible what the tasks of a batch have written, once."""
        ...


class RowStreamWriter(DataSourceStreamWriter):
    """A sink on PySpark 4.0."""

    def __init__(self, work: StreamWork, schema: StructType) -> None:
        self._work = work
        self._schema = schema

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        query, batch = query_and_batch()
        return self._work.write(query, batch, in_batches(iterator, self._schema))

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        self._work.commit(batchId, messages)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver. It is also called after a commit that failed, so it can undo nothing."""


if HAS_ARROW_STREAMS:

    class ArrowStreamWriter(DataSourceStreamArrowWriter):
        """A sink on PySpark 4.1 and later."""

        def __init__(self, work: StreamWork) -> None:
            self._work = work

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            """In a task."""
            query, batch = query_and_batch()
            return self._work.write(query, batch, iterator)

        def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
            """On the driver."""
            self._work.commit(batchId, messages)

        def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
            """On the driver; see `RowStreamWriter.abort`."""


def stream_writer(work: StreamWork, schema: StructType) -> DataSourceStreamWriter:
    """The writer for the PySpark that runs."""
    hide_pipes_of_drivers()
    return ArrowStreamWriter(work) if HAS_ARROW_STREAMS else RowStreamWriter(work, schema)


def in_batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(schema)
    while some := list(itertools.islice(rows, ROWS_PER_BATCH)):
        yield pa.RecordBatch.from_pylist([row.asDict() for row in some], schema=arrow)


def query_and_batch() -> tuple[str, int]:
    """Which query and batch the running task is of: only Spark's local properties tell."""
    context = task()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    if not query or batch is None:
        raise ConfigError(
            "Spark does not tell the task its query and batch, without which nothing can be "
            "written exactly once"
        )
    return QUERY_PREFIX + query, int(batch)
