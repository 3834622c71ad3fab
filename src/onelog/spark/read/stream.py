"""Streaming reads: from offset to offset, as far as a trigger may go.

Spark writes the end of a batch down before it runs, and after a crash runs the same batch again; so
offsets carry all that says which messages are meant, down to when their topic was made.

Invariants: `latestOffset` returns its start, the same text, when there is nothing new; a batch has
no more rows than its limit; after `prepareForTriggerAvailableNow` no batch goes past what was
there then.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from onelog.client.message import Queue
from onelog.errors import ConfigError, OnelogError
from onelog.spark.brokers import Patience, connect, disconnect
from onelog.spark.columns.tables import Table
from onelog.spark.options import ReadOptions
from onelog.spark.read.batch import plan, read_partition
from onelog.spark.read.boundaries import LATEST
from onelog.spark.read.offsets import (
    Extent,
    Json,
    Offsets,
    QueueRange,
    Snapshot,
    is_other_incarnation,
    losses,
    ration,
    report,
    resolve,
)
from onelog.spark.read.origins import ClusterOrigin, StoreOrigin, origin_of
from onelog.spark.read.pruning import Pruning

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    # Before 4.2 Spark asks for the latest offset only, and limits are kept as far as that allows.
    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for what PySpark does not have yet."""


log = logging.getLogger(__name__)


class OnelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("onelog")`."""

    def __init__(self, options: ReadOptions, table: Table) -> None:
        if options.end is not None:
            raise ConfigError(
                "options endingOffsets and endingTimestamp are for batch queries: end a stream "
                "with trigger(availableNow=True)"
            )
        self._options = options
        self._table = table
        self._begin: Offsets | None = None
        self._reached: Offsets | None = None
        """Where the last batch ended that this process heard of."""
        self._seen: Snapshot | None = None
        self._target: Mapping[Queue, int] | None = None
        self._missed: set[Queue] = set()
        self._committed: Mapping[Queue, int] | None = None

    # -- on the driver -------------------------------------------------------------------------

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Where a new query begins. Spark asks twice, and must hear the same."""
        if self._begin is None:
            options, origin = self._options, self._origin()
            snapshot = self._look(missing_ok=False)
            positions = resolve(
                "startingOffsets",
                options.start or LATEST,
                snapshot,
                origin,
                group=options.group,
                now_ms=time.time_ns() // 1_000_000,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            self._begin = Offsets(positions, snapshot.incarnations)
            self._reached = self._reached or self._begin
        return self._begin.to_json()

    def latestOffset(self, start: Json | None = None, limit: "ReadLimit | None" = None) -> Json:  # noqa: N802
        """How far the next batch goes. Before PySpark 4.2 nobody says where it begins."""
        if start is not None and (self._begin is None or start != self._begin.to_json()):
            # Spark asks for the next batch when the last one is done, and calls `commit` one batch
            # later, which after the last one is never.
            self.commit(start)
        begin = self._reached if start is None else Offsets.from_json(start)
        snapshot = self._look() if begin is None else self._look_for(begin.positions)
        if begin is None:
            # A restart with PySpark 4.0 or 4.1: the first batch takes everything.
            return self._reach(snapshot.ends)
        lost = losses(begin, snapshot)
        report(lost, fail=self._options.fail_on_data_loss)
        positions = {**begin.positions, **{each.queue: each.go_on_at for each in lost}}
        backlog = self._backlog(positions, snapshot)
        shares = self._limited(backlog, positions, snapshot, limit)
        for queue, rows in shares.items():
            if rows:
                positions[queue] = positions.get(queue, snapshot.extents[queue].start) + rows
        moved = [each.queue for each in lost] + [queue for queue, rows in shares.items() if rows]
        reached = Offsets(positions, _incarnations(begin, snapshot, moved))
        return start if reached == begin and start is not None else self._reach(reached)

    def _backlog(self, positions: Mapping[Queue, int], snapshot: Snapshot) -> dict[Queue, int]:
        ends = snapshot.ends.positions
        if self._target is not None:
            ends = {q: min(end, self._target[q]) for q, end in ends.items() if q in self._target}
        return {
            queue: max(0, end - positions.get(queue, snapshot.extents[queue].start))
            for queue, end in ends.items()
        }

    def _limited(
        self,
        backlog: dict[Queue, int],
        positions: Mapping[Queue, int],
        snapshot: Snapshot,
        limit: "ReadLimit | None",
    ) -> dict[Queue, int]:
        if type(limit).__name__ == "ReadAllAvailable":
            return backlog  # No limit, or Trigger.Once: everything, whatever the options say.
        rows_max = getattr(limit, "max_rows", self._options.rows_per_trigger)
        bytes_max = getattr(limit, "max_bytes", self._options.bytes_per_trigger)
        if bytes_max is not None and any(backlog.values()):
            starts = {
                queue: positions.get(queue, snapshot.extents[queue].start)
                for queue, rows in backlog.items()
                if rows
            }
            sizes = self._origin().record_bytes(starts)
            total = sum(rows * sizes.get(queue, 0.0) for queue, rows in backlog.items())
            if total > bytes_max:
                fitting = int(sum(backlog.values()) * bytes_max / total)
                rows_max = max(1, fitting if rows_max is None else min(rows_max, fitting))
        return backlog if rows_max is None else ration(backlog, rows_max)

    def _reach(self, offsets: Offsets) -> Json:
        self._reached = offsets
        return offsets.to_json()

    def getDefaultReadLimit(self) -> "ReadLimit":  # noqa: N802 - Spark's name
        """What the options say; Spark knows one limit only, and `latestOffset` keeps both."""
        if self._options.rows_per_trigger is not None:
            return ReadMaxRows(self._options.rows_per_trigger)
        if self._options.bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on, nothing that comes later counts."""
        self._target = self._look(missing_ok=self._begin is not None).ends.positions

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """What there is, for the progress reports of the query.

        Of a Python source Spark (4.0 to 4.3) takes neither metrics nor a description, and shows
        this as `latestOffset` of the source, as it is: so both are in here.
        """
        if self._seen is None:
            return None
        seen = self._seen.ends.to_json()
        return {"description": self.description, **seen, "metrics": self.metrics()}

    @property
    def description(self) -> str:
        """What is read, for people."""
        given = self._options.subscription
        topics = given.topics or given.queues or ()
        what = f"topics {given.pattern}" if given.pattern else f"topic {', '.join(topics)}"
        link = self._options.link
        return f"onelog: {what} {f'at {link.nameserver}' if link else f'in {self._options.store}'}"

    def metrics(self) -> dict[str, Any]:
        """How far the last batch that was planned is behind what there is, by topic and at most.

        Seconds are the age of the oldest message that no batch has yet.
        """
        if self._seen is None or self._reached is None:
            return {}
        at = self._reached.positions
        behind = {
            queue: max(0, extent.end - at.get(queue, extent.start))
            for queue, extent in self._seen.extents.items()
        }
        starts = {queue: at.get(queue, self._seen.extents[queue].start) for queue in behind}
        ages = self._ages({queue: starts[queue] for queue, count in behind.items() if count})
        by_topic = {
            topic: _lag({q: n for q, n in behind.items() if q.topic == topic}, ages)
            for topic in sorted({queue.topic for queue in behind})
        }
        return {**_lag(behind, ages), "topics": by_topic}

    def _ages(self, positions: Mapping[Queue, int]) -> dict[Queue, float]:
        """How many seconds ago these messages were stored, as far as that can be told."""
        if not positions:
            return {}
        try:
            stored = self._origin().store_times(positions)
        except OnelogError as error:
            log.debug("how old what is unread is cannot be told: %s", error)
            return {}
        now_ms = time.time_ns() // 1_000_000
        return {queue: max(0, now_ms - ms) / 1000 for queue, ms in stored.items()}

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Who reads what of a batch."""
        begin, until = Offsets.from_json(start), Offsets.from_json(end)
        self._reached = until
        snapshot = self._seen or self._look()
        other = [
            each
            for each in losses(until, snapshot)
            if is_other_incarnation(each.queue, until.incarnations, snapshot.incarnations)
        ]
        # The batch was planned before the topic was made again: its messages are gone for good.
        report(other, fail=self._options.fail_on_data_loss)
        gone = {each.queue for each in other}
        ranges = []
        for queue, stop in sorted(until.positions.items()):
            if queue in gone:
                continue
            first = begin.positions.get(queue)
            if first is None or is_other_incarnation(queue, begin.incarnations, until.incarnations):
                first = snapshot.extents.get(queue, Extent(0, 0)).start
            incarnation = until.incarnations.get((queue.topic, queue.broker), 0)
            ranges.append(QueueRange(queue, first, stop, incarnation))
        return plan(self._options, ranges, Pruning(), snapshot)

    def commit(self, end: Json) -> None:
        """Everything up to `end` is done: let the group's lag show it."""
        options = self._options
        if not options.commit_offsets:
            return
        assert options.link is not None
        assert options.group is not None
        done = Offsets.from_json(end).positions
        if done == self._committed:
            return
        try:
            connect(options.link).commit(options.group, done)
            self._committed = done
        except OnelogError as error:
            # The checkpoint is what counts; the next batch commits again.
            log.warning("the position of group %s was not committed: %s", options.group, error)

    def stop(self) -> None:
        """The query ended."""
        disconnect()

    def _origin(self) -> ClusterOrigin | StoreOrigin:
        return origin_of(self._options)

    def _look(self, *, missing_ok: bool = True) -> Snapshot:
        self._seen = self._origin().snapshot(missing_ok=missing_ok)
        return self._seen

    def _look_for(self, known: Iterable[Queue]) -> Snapshot:
        """What there is. Where queues are missing, wait for them, once, as for brokers.

        A broker that is started again is away from the name servers for a moment.
        """
        patience = Patience(self._options.link) if self._options.link else None
        while True:
            snapshot = self._look()
            missing = {queue for queue in known if queue not in snapshot.extents}
            if not missing - self._missed or patience is None or not patience.wait():
                self._missed = missing
                return snapshot

    # -- in a task -----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._options, self._table, partition)


def _lag(behind: Mapping[Queue, int], ages: Mapping[Queue, float]) -> dict[str, Any]:
    return {
        "messagesBehind": sum(behind.values()),
        "maxMessagesBehind": max(behind.values(), default=0),
        "secondsBehind": max((ages[queue] for queue in behind if queue in ages), default=0.0),
    }


def _incarnations(
    begin: Offsets, snapshot: Snapshot, moved: Iterable[Queue]
) -> dict[tuple[str, str], int]:
    """Those that the new offsets belong to: where nothing moved, still the old ones."""
    topics_on_brokers = {(queue.topic, queue.broker) for queue in moved}
    now = {
        topic_on_broker: ms
        for topic_on_broker, ms in snapshot.incarnations.items()
        if topic_on_broker in topics_on_brokers
    }
    return {**begin.incarnations, **now}
