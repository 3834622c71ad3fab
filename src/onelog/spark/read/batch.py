"""Batch reads: ranges of queues, shared out among tasks, that leave as Arrow batches.

The driver decides which range each task reads, and puts all that a task needs into its partition:
tasks run in other processes, with copies of the reader that were made before.

Invariant: what is read is a function of the partition alone, so a task that runs again gives the
same rows.
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from onelog.errors import ConfigError
from onelog.spark.brokers import connect
from onelog.spark.columns.schema import RowFilters, Selection, spark_schema
from onelog.spark.columns.tables import Table
from onelog.spark.options import ReadOptions
from onelog.spark.read.boundaries import EARLIEST, LATEST, BoundaryKind
from onelog.spark.read.offsets import Origin, QueueRange, Snapshot, resolve, split
from onelog.spark.read.origins import origin_of
from onelog.spark.read.pruning import OFFSET_MAX, Pruning, prune, pruning_of
from onelog.spark.workers import hide_closed_pipes, settle, task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from onelog.spark.columns.messages import RecordDecoder
    from onelog.spark.read.store_files import StoreSplit

_PLAIN_TAG = re.compile(r"[^\s|*]+")


@dataclass(frozen=True)
class QueuePartition(InputPartition):
    """What one task reads from brokers."""

    ranges: tuple[QueueRange, ...]
    filters: RowFilters


@dataclass(frozen=True)
class StorePartition(InputPartition):
    """What one task reads from a store's files."""

    split: "StoreSplit"
    filters: RowFilters


class OnelogReader(DataSourceReader):
    """`spark.read.format("onelog")`."""

    def __init__(self, options: ReadOptions, table: Table) -> None:
        if options.start is not None and options.start.kind is BoundaryKind.LATEST:
            raise ConfigError(
                "option startingOffsets: a batch query that begins with the latest message has "
                "nothing to read; earliest is the default"
            )
        if options.commit_offsets:
            raise ConfigError("option commitOffsets is for streams: a batch query commits nothing")
        self._options = options
        self._table = table
        self._pruning = Pruning()

    def partitions(self) -> Sequence[InputPartition]:
        """On the driver: who reads what."""
        options = self._options
        origin = origin_of(options)
        snapshot = origin.snapshot()
        ranges = prune(self._ranges(origin, snapshot), self._pruning, origin)
        return plan(options, ranges, self._pruning, snapshot)

    def _ranges(self, origin: Origin, snapshot: Snapshot) -> list[QueueRange]:
        options, now_ms = self._options, time.time_ns() // 1_000_000
        starts, ends = (
            resolve(
                option,
                boundary,
                snapshot,
                origin,
                group=options.group,
                now_ms=now_ms,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            for option, boundary in (
                ("startingOffsets", options.start or EARLIEST),
                ("endingOffsets", options.end or LATEST),
            )
        )
        made = snapshot.incarnations
        return [
            QueueRange(queue, starts[queue], ends[queue], made.get((queue.topic, queue.broker), 0))
            for queue in sorted(snapshot.extents)
        ]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._options, self._table, partition)


class OnelogPruningReader(OnelogReader):
    """The same where Spark hands over filters; to have the method where it does not is an error."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":  # noqa: N802
        """Read only what the filters leave; Spark applies them again, to all of it."""
        self._pruning = pruning_of(filters)
        return iter(filters)


def plan(
    options: ReadOptions, ranges: Iterable[QueueRange], pruning: Pruning, snapshot: Snapshot
) -> list[InputPartition]:
    """The partitions that read these ranges."""
    tags = None if options.tags is None else frozenset(options.tags)
    if pruning.tags is not None:
        tags = pruning.tags if tags is None else tags & pruning.tags
    filters = RowFilters(
        tags,
        pruning.store_ms_from or None,
        pruning.store_ms_until if pruning.store_ms_until < OFFSET_MAX else None,
    )
    if tags is not None and not tags:
        return []
    if options.store is not None:
        from onelog.spark.read import store_files

        splits = store_files.plan(
            options.store,
            list(ranges),
            by=options.split_by,
            splits_min=options.partitions_min,
            rows_max=options.partition_rows_max,
            fail_on_data_loss=options.fail_on_data_loss,
            aborted=snapshot.aborted,
        )
        return [StorePartition(each, filters) for each in splits]
    tasks = split(ranges, options.partitions_min, options.partition_rows_max)
    return [QueuePartition(tuple(task), filters) for task in tasks]


def sample_bodies(options: ReadOptions, count: int) -> list[bytes]:
    """Bodies of the newest messages, of all queues."""
    snapshot = origin_of(options).snapshot()
    filled = {queue: extent for queue, extent in snapshot.extents.items() if extent.end}
    each_count = -(-count // max(1, len(filled)))
    ranges = [
        QueueRange(queue, max(extent.start, extent.end - each_count), extent.end)
        for queue, extent in sorted(filled.items())
    ]
    # What is deleted between the look and the reading is not worth an error.
    tolerant = replace(options, fail_on_data_loss=False)
    table = Table(spark_schema(["body"]))
    return [
        body
        for part in plan(tolerant, ranges, Pruning(), snapshot)
        for batch in read_partition(tolerant, table, part)
        for body in batch["body"].drop_null().to_pylist()
    ]


def read_partition(
    options: ReadOptions, table: Table, partition: InputPartition
) -> "Iterator[pa.RecordBatch]":
    """The rows of one partition, in a task."""
    if task() is not None:
        hide_closed_pipes()
    decoder = table.decoder(options.on_corruption)
    if isinstance(partition, StorePartition):
        from onelog.spark.read import store_files

        yield from store_files.read(partition.split, decoder, partition.filters)
    elif isinstance(partition, QueuePartition):
        yield from _pulled(options, partition, decoder)
    # Anything else is what Spark makes of a plan without partitions.
    settle()


def _pulled(
    options: ReadOptions, partition: QueuePartition, decoder: "RecordDecoder"
) -> "Iterator[pa.RecordBatch]":
    assert options.link is not None
    brokers = connect(options.link)
    filters = partition.filters
    for each in partition.ranges:
        selection = Selection(
            each.queue.broker, each.queue.topic, each.start, each.end, filters, each.incarnation
        )
        pulls = brokers.read(
            each,
            group=options.group,
            tags=_wanted(filters.tags),
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for records in pulls:
            yield from decoder.decode(records, selection)


def _wanted(tags: frozenset[str] | None) -> Sequence[str] | None:
    """Tags that a broker can be asked for. It goes by their hashes; the decoder looks closer."""
    if tags is None or not all(map(_PLAIN_TAG.fullmatch, tags)):
        return None
    return sorted(tags)
