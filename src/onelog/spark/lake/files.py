"""The workers' half of a lake table: rows become Parquet files, which nobody reads yet.

    DIR/<topic>/date=2026-05-01/part-<unique>.parquet      one file for each day in a task's rows
    DIR/<topic>.dead_letters/date=.../part-<unique>.parquet

The day is that of the store time, in UTC. With decoded bodies, rows whose body could not be decoded
go to the dead letters, with the reason and the body as it came; so do rows that have something else
in a column than the table has (`lake.types`).

Invariant: a file is whole and on disk when its name is returned, and no two attempts write the same
file. Which files count is the table's business (`lake.tables`).
"""

import datetime
import functools
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onelog.errors import ConfigError, UndecodableError
from onelog.spark.columns.schema import INCARNATION
from onelog.spark.lake.types import fit
from onelog.spark.read.offsets import Extent

ERROR_COLUMN = "_error"
DATE = "date"
DEAD_LETTERS = ".dead_letters"
FILE_BYTES = 128 << 20
"""Rows of one table and day in hand, before compression, at which a file is written."""
_DEAD_LETTER_COLUMNS = (
    "topic",
    "queue",
    "offset",
    "broker",
    "key",
    "key_bytes",
    "tags",
    "body",
    "headers",
    "store_time",
)
_PLACE = ("topic", "broker", "queue")
_STATS = ("offset", "queue", "store_time")
_ODD = re.compile(r"[^a-zA-Z0-9_.%|-]")
"""What only topics of other protocols than RocketMQ's have in their names."""


KnownTypes = Callable[[str], pa.Schema | None]
"""The types of a table's columns, by its name; None if there is no table yet."""


class QueueRun(NamedTuple):
    """A queue, of one incarnation of its topic: only there an offset means something."""

    topic: str
    broker: str
    queue: int
    incarnation: int
    """0 if nobody knows."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of a table that is not part of it yet."""

    table: str
    path: str
    """Below the table's folder."""
    date: str
    size_bytes: int
    rows: int
    stats: str
    """What Delta keeps about a file, in JSON."""
    extents: Mapping[QueueRun, Extent]
    """What it has of each queue: the first offset, and the one after the last."""


def table_name(topic: str) -> str:
    """The folder of a topic's table: its name, without what paths and URLs treat specially."""
    name = _ODD.sub(lambda found: f"~{ord(found[0]):x}", topic)
    return name.replace("%", "-").replace("|", "-").lstrip("-_.") or "-"


def check_names(topics: Mapping[str, str] | list[str]) -> None:
    """`ConfigError` if two topics would share a table."""
    names: dict[str, str] = {}
    for topic in topics:
        other = names.setdefault(table_name(topic), topic)
        if other != topic:
            raise ConfigError(
                f"topics {other!r} and {topic!r} would both be the table {table_name(topic)!r}: "
                "sync them to different folders"
            )


class FileWriter:
    """Collects the rows of one task, by table and day, and writes them."""

    def __init__(
        self,
        folder: Path,
        *,
        hide: bool,
        file_bytes: int = FILE_BYTES,
        types: KnownTypes = lambda name: None,
    ) -> None:
        """`hide` for plain Parquet, whose readers take every file that they see."""
        self._folder = folder
        self._hide = hide
        self._file_bytes = file_bytes
        self._types = functools.cache(types)
        self._rows: dict[tuple[str, str], list[pa.RecordBatch]] = {}
        self._sizes: dict[tuple[str, str], int] = {}

    def add(self, batch: pa.RecordBatch) -> Iterator[WrittenFile]:
        """Take rows; gives the files that are full."""
        for topic, day, part in _by_topic_and_day(batch):
            name = table_name(topic)
            for suffix, rows in _by_outcome(part, self._types(name)):
                key = (name + suffix, day)
                self._rows.setdefault(key, []).append(rows)
                self._sizes[key] = self._sizes.get(key, 0) + rows.nbytes
                if self._sizes[key] >= self._file_bytes:
                    yield self._write(key)

    def rest(self) -> Iterator[WrittenFile]:
        for key in list(self._rows):
            yield self._write(key)

    def _write(self, key: tuple[str, str]) -> WrittenFile:
        name, day = key
        rows = pa.Table.from_batches(self._rows.pop(key))
        del self._sizes[key]
        extents = _extents(rows)
        if INCARNATION in rows.schema.names:
            rows = rows.drop_columns([INCARNATION])
        return write_file(self._folder, name, day, rows, extents, hide=self._hide)


def write_file(
    folder: Path,
    name: str,
    day: str,
    rows: pa.Table,
    extents: Mapping[QueueRun, Extent],
    *,
    hide: bool,
) -> WrittenFile:
    """Write rows of one table and day, under a name that nothing ever had."""
    path = f"{DATE}={day}/part-{uuid.uuid4().hex}.parquet"
    target = folder / name / path
    target.parent.mkdir(parents=True, exist_ok=True)
    written = hidden(target)
    pq.write_table(rows, written, compression="zstd")
    with open(written, "rb") as file:
        os.fsync(file.fileno())
    size = written.stat().st_size
    if not hide:
        os.replace(written, target)
    return WrittenFile(name, path, day, size, rows.num_rows, _stats(rows), extents)


def hidden(path: Path) -> Path:
    """Where a file is while it is not to be read: readers pass over names that begin so."""
    return path.with_name(f".{path.name}")


def _by_outcome(
    batch: pa.RecordBatch, known: pa.Schema | None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows that the table takes, and the dead letters, with what is added to its name."""
    good, failed, reasons = batch, None, None
    if ERROR_COLUMN in batch.schema.names:
        reasons = batch.column(ERROR_COLUMN)
        failed = pc.is_valid(reasons)
        # What was decoded has its body in columns; what was not is one of the dead letters.
        good = batch.drop_columns([n for n in (ERROR_COLUMN, "body") if n in batch.schema.names])
    if known is not None:
        good, misfits = fit(good, known)
        if misfits and reasons is None and "body" not in batch.schema.names:
            raise UndecodableError(next(iter(misfits.values())))
        if misfits:
            own = [misfits.get(row) for row in range(len(batch))]
            reasons = pc.coalesce(*filter(None, [reasons]), pa.array(own, pa.string()))
            failed = pc.is_valid(reasons)
    if failed is None or reasons is None:
        yield "", good
        return
    good = good.filter(pc.invert(failed))
    bad = batch.filter(failed)
    wanted = (*_DEAD_LETTER_COLUMNS, INCARNATION)
    names = [name for name in wanted if name in bad.schema.names]
    letters = bad.select(names).append_column("reason", reasons.filter(failed))
    for name, rows in (("", good), (DEAD_LETTERS, letters)):
        if rows.num_rows:
            yield name, rows


def _by_topic_and_day(batch: pa.RecordBatch) -> Iterator[tuple[str, str, pa.RecordBatch]]:
    days = pc.cast(batch.column("store_time"), pa.date32(), safe=False)
    topics = batch.column("topic")
    for topic in pc.unique(topics).to_pylist():
        of_topic = pc.equal(topics, topic)
        for day in pc.unique(days.filter(of_topic)).to_pylist():
            chosen = pc.and_(of_topic, pc.equal(days, pa.scalar(day, pa.date32())))
            rows = batch if pc.all(chosen).as_py() else batch.filter(chosen)
            yield topic, day.isoformat(), rows


def _stats(rows: pa.Table) -> str:
    lowest, highest = {}, {}
    for name in _STATS:
        if name in rows.schema.names:
            bounds = pc.min_max(rows.column(name)).as_py()
            lowest[name], highest[name] = _plain(bounds["min"]), _plain(bounds["max"])
    return json.dumps(
        {"numRecords": rows.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": {}}
    )


def _plain(value: object) -> object:
    if isinstance(value, datetime.datetime):
        # Delta's statistics have milliseconds; rounded down they would cut off the last rows.
        return value.astimezone(datetime.UTC).isoformat(timespec="microseconds")
    return value


def _extents(rows: pa.Table) -> dict[QueueRun, Extent]:
    """What these rows have of each queue."""
    by = [name for name in (*_PLACE, INCARNATION) if name in rows.schema.names]
    bounds = rows.group_by(by).aggregate([("offset", "min"), ("offset", "max")])
    return {
        QueueRun(row["topic"], row["broker"], row["queue"], row.get(INCARNATION) or 0): Extent(
            row["offset_min"], row["offset_max"] + 1
        )
        for row in bounds.to_pylist()
    }


def after(rows: pa.Table, positions: Mapping[QueueRun, int]) -> pa.Table:
    """The rows that do not lie before these positions."""
    wanted = None
    for run, position in positions.items():
        here = pc.less(rows.column("offset"), position)
        for name in _PLACE:
            here = pc.and_(here, pc.equal(rows.column(name), getattr(run, name)))
        wanted = pc.invert(here) if wanted is None else pc.and_(wanted, pc.invert(here))
    return rows if wanted is None else rows.filter(wanted)
