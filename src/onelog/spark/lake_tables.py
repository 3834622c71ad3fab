"""The driver's half of a lake table: which files are part of it, and how far it is.

A Delta table takes the files of a batch in one commit, together with the batch's number and, by
queue, the offset after the last message (Delta's application transactions). So the table itself
says what it has: a batch that comes again is known, and a sync whose checkpoint was lost goes on
where the table ends. A plain Parquet folder has a journal for the same purpose:

    DIR/<topic>/_onelog/<query>.json    {"batch": 7, "files": [...], "next_offsets": {...}}

Invariant: the rows of a batch are in the table once, however often it is committed.
"""

import contextlib
import datetime
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction

from onelog.errors import ConfigError
from onelog.spark.lake_files import DATE, WrittenFile, hidden

Form = Literal["delta", "parquet"]
JOURNAL = "_onelog"
_QUEUE_PREFIX = "onelog-queue "
FILES_KEPT_HOURS = 168
"""Readers of a Delta table may still read files that left it so long ago."""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table, for people."""

    name: str
    form: Form
    files: int
    size_bytes: int
    rows: int


def commit(folder: Path, form: Form, query: str, batch: int, files: Iterable[WrittenFile]) -> int:
    """Make files part of their tables; how many rows that were. Files of a known batch are not."""
    by_table: dict[str, list[WrittenFile]] = {}
    for file in files:
        by_table.setdefault(file.table, []).append(file)
    rows = 0
    for name, written in sorted(by_table.items()):
        add = _commit_delta if form == "delta" else _commit_parquet
        if add(folder / name, query, batch, written):
            rows += sum(file.rows for file in written)
        else:
            for file in written:
                path = folder / name / file.path
                (path if form == "delta" else hidden(path)).unlink(missing_ok=True)
    return rows


def _commit_delta(folder: Path, query: str, batch: int, files: Sequence[WrittenFile]) -> bool:
    schema = _schema(folder / files[0].path)
    try:
        table = DeltaTable(folder)
    except TableNotFoundError:
        table = DeltaTable.create(
            folder, schema, mode="ignore", partition_by=[DATE], name=folder.name
        )
    known = table.transaction_version(query)
    if known is not None and known >= batch:
        return False
    now_ms = int(time.time() * 1000)
    added = [
        AddAction(file.path, file.size_bytes, {DATE: file.date}, now_ms, True, file.stats)
        for file in files
    ]
    done = [Transaction(query, batch, now_ms)]
    for queue, offset in _next_offsets(files).items():
        before = table.transaction_version(_QUEUE_PREFIX + queue)
        if before is None or before < offset:
            done.append(Transaction(_QUEUE_PREFIX + queue, offset, now_ms))
    _widen(table, schema)
    table.create_write_transaction(
        list(added), "append", schema, [DATE],
        commit_properties=CommitProperties(app_transactions=done, max_commit_retries=10),
    )  # fmt: skip
    return True


def _widen(table: DeltaTable, schema: pa.Schema) -> None:
    """Add columns that the table does not have yet: bodies may get new fields."""
    known = {field.name for field in table.schema().fields}
    new = [field for field in schema if field.name not in known]
    if new:
        fields = Schema.from_arrow(pa.schema(new)).fields
        table.alter.add_columns(list(fields))


def _schema(path: Path) -> pa.Schema:
    found = pq.read_schema(path).remove_metadata()
    return found.append(pa.field(DATE, pa.string()))


def _next_offsets(files: Sequence[WrittenFile]) -> dict[str, int]:
    found: dict[str, int] = {}
    for file in files:
        for queue, offset in file.next_offsets.items():
            found[queue] = max(offset, found.get(queue, 0))
    return found


def _commit_parquet(folder: Path, query: str, batch: int, files: Sequence[WrittenFile]) -> bool:
    """The journal decides; then the files of the batch come out of hiding."""
    path = folder / JOURNAL / f"{query}.json"
    known = _read_journal(path)
    is_new = known.batch < batch
    if is_new:
        offsets = dict(known.next_offsets)
        for queue, offset in _next_offsets(files).items():
            offsets[queue] = max(offset, offsets.get(queue, 0))
        known = _Journal(batch, tuple(file.path for file in files), offsets)
        _write_journal(path, known)
    for name in known.files:
        _show(folder / name)
    return is_new


@dataclass(frozen=True, slots=True)
class _Journal:
    batch: int
    files: tuple[str, ...]
    next_offsets: Mapping[str, int]


def _read_journal(path: Path) -> _Journal:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Journal)
    except FileNotFoundError:
        return _Journal(-1, (), {})
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is no journal of a sync: {error}; move it away") from None


def _write_journal(path: Path, journal: _Journal) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        file.write(msgspec.json.encode(journal))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _show(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # It has been shown before.
        os.replace(hidden(path), path)


# -- how far tables are --------------------------------------------------------------------------


def next_offsets(folder: Path, form: Form, name: str, queues: Iterable[str]) -> dict[str, int]:
    """Where a sync goes on, for those of these queues (`topic broker queue`) that a table has."""
    if form == "parquet":
        found: dict[str, int] = {}
        for path in (folder / name / JOURNAL).glob("*.json"):
            for queue, offset in _read_journal(path).next_offsets.items():
                found[queue] = max(offset, found.get(queue, 0))
        return {queue: found[queue] for queue in queues if queue in found}
    try:
        table = DeltaTable(folder / name)
    except TableNotFoundError:
        return {}
    versions = {queue: table.transaction_version(_QUEUE_PREFIX + queue) for queue in queues}
    return {queue: version for queue, version in versions.items() if version is not None}


# -- looking after tables ------------------------------------------------------------------------


def tables(folder: Path) -> Iterator[TableInfo]:
    """The tables in a folder, by name."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not path.is_dir() or path.name.startswith((".", "_")):
            continue
        if DeltaTable.is_deltatable(str(path)):
            actions = pa.table(DeltaTable(path).get_add_actions(flatten=True))
            sizes = actions.column("size_bytes").to_pylist()
            rows = actions.column("num_records").to_pylist()
            yield TableInfo(path.name, "delta", len(sizes), sum(sizes), sum(filter(None, rows)))
        elif (path / JOURNAL).is_dir():
            files = [each for each in path.glob(f"{DATE}=*/*.parquet") if each.name[0] != "."]
            rows = [pq.read_metadata(each).num_rows for each in files]
            total = sum(each.stat().st_size for each in files)
            yield TableInfo(path.name, "parquet", len(files), total, sum(rows))


def files_of(folder: Path) -> list[str]:
    """The files that are part of a table now; ask again to see what has come since."""
    if DeltaTable.is_deltatable(str(folder)):
        return [uri.removeprefix("file://") for uri in DeltaTable(folder).file_uris()]
    found = folder.glob(f"{DATE}=*/*.parquet")
    return sorted(str(each) for each in found if each.name[0] != ".")


def compact(folder: Path, target_bytes: int = 128 << 20) -> int:
    """Join small files of a Delta table into larger ones; how many files went."""
    done = _delta(folder).optimize.compact(target_size=target_bytes)
    return int(done["numFilesRemoved"])


def vacuum(folder: Path, kept_hours: int = FILES_KEPT_HOURS) -> int:
    """Delete files that are no part of a Delta table any more, and are older; how many."""
    table = _delta(folder)
    enforce = kept_hours >= FILES_KEPT_HOURS
    gone = table.vacuum(kept_hours, dry_run=False, enforce_retention_duration=enforce, full=True)
    return len(gone)


def retain(folder: Path, days: int, today: datetime.date) -> int:
    """Drop the days before the last so many from a table; how many rows, or files of Parquet."""
    first = (today - datetime.timedelta(days=days)).isoformat()
    if DeltaTable.is_deltatable(str(folder)):
        return int(_delta(folder).delete(f"{DATE} < '{first}'")["num_deleted_rows"])
    gone = 0
    for path in folder.glob(f"{DATE}=*"):
        if path.name.removeprefix(f"{DATE}=") < first:
            gone += sum(1 for _ in path.glob("*.parquet"))
            shutil.rmtree(path)
    return gone


def _delta(folder: Path) -> DeltaTable:
    try:
        return DeltaTable(folder)
    except TableNotFoundError:
        raise ConfigError(f"{folder} is no Delta table") from None
