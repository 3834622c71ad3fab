"""The driver's half of a lake table: which files are part of it, and how far it is.

A Delta table takes the files of a batch in one commit, together with the offset after the last
message of each queue (Delta's application transactions). So the table itself says what it has,
whichever query wrote it: rows that lie before its positions are not taken again, be it that a batch
is run again, that a sync lost its checkpoint, or that another one has the same topic among its own.

    onelog-queue orders broker-a 0 1793528400000    the next offset of queue 0, in the incarnation
                                                    of the topic that was made then
    onelog-queue orders broker-a 0                  the same if nobody knows when, and of 0.1
    onelog-first orders broker-a                    the incarnation that the latter are of
    onelog-last orders broker-a                     the incarnation that was seen last

A plain Parquet folder has a journal for the same purpose (0.1 had one for each query):

    DIR/<topic>/_onelog/positions.json    {"batch": 0, "files": [...], "next_offsets": {...}}

A topic's dead letters are taken before its other rows, and the positions of both tables are those
of the whole batch. So what lies before the positions of the topic's own table is in one of the two.

The journal also keeps the types of the columns, which a Delta table knows by itself; all files have
these types (`lake.types`), and a file that does not is not taken.

Invariant: a message is in the table once, however often and by whomever it is committed.
"""

import contextlib
import datetime
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from onelog.errors import ConfigError, StoreError
from onelog.spark.folders import local_folder
from onelog.spark.lake.files import (
    DATE,
    DEAD_LETTERS,
    QueueRun,
    WrittenFile,
    after,
    hidden,
    table_name,
    write_file,
)
from onelog.spark.lake.types import conflict, merged
from onelog.spark.read.offsets import Incarnations

Form = Literal["delta", "parquet"]
JOURNAL = "_onelog"
_POSITIONS = "positions.json"
_PREFIX = "onelog-"
_CONFLICTS_MAX = 20
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


def commit(folder: Path, form: Form, files: Iterable[WrittenFile]) -> int:
    """Make files part of their tables, without what these have; how many rows were added."""
    by_topic: dict[str, list[WrittenFile]] = {}
    for file in files:
        by_topic.setdefault(next(iter(file.extents)).topic, []).append(file)
    add = _commit_delta if form == "delta" else _commit_parquet
    rows = 0
    for topic, written in sorted(by_topic.items()):
        reached: dict[QueueRun, int] = {}
        for run, extent in (item for file in written for item in file.extents.items()):
            reached[run] = max(extent.end, reached.get(run, 0))
        name = table_name(topic)
        letters = [file for file in written if file.table == name + DEAD_LETTERS]
        others = [file for file in written if file.table == name]
        if letters:
            rows += add(folder / (name + DEAD_LETTERS), letters, reached)
        if others or (folder / name).is_dir():
            rows += add(folder / name, others, reached)
    return rows


class _Positions:
    """How far a table is, by the texts under which that is kept."""

    def __init__(self, version: Callable[[str], int | None]) -> None:
        self._version = version

    def of(self, run: QueueRun) -> int | None:
        """The offset after the last one of a queue that the table has; None if it has none."""
        found = self._version(_queue(run))
        if found is None and self._version(_first(run)) in (None, run.incarnation):
            found = self._version(_queue(run._replace(incarnation=0)))
        return found

    def last_incarnation(self, run: QueueRun) -> int | None:
        """The incarnation of the topic that the table heard of last; None if of none."""
        return self._version(_last(run))

    def unsettled(self, run: QueueRun) -> dict[str, int]:
        """What has to be written down for positions without an incarnation to have one."""
        is_known = not run.incarnation or self._version(_first(run)) is not None
        return {} if is_known else {_first(run): run.incarnation}

    def changes(self, reached: Mapping[QueueRun, int]) -> dict[str, int]:
        """What has to be written down for the table to be so far."""
        found: dict[str, int] = {}
        for run, end in reached.items():
            position = max(end, self.of(run) or 0)
            if self._version(_queue(run)) != position:
                found[_queue(run)] = position
            found |= self.unsettled(run)
            if run.incarnation and self._version(_last(run)) != run.incarnation:
                found[_last(run)] = run.incarnation
        return found


def _queue(run: QueueRun) -> str:
    incarnation = f" {run.incarnation}" if run.incarnation else ""
    return f"queue {run.topic} {run.broker} {run.queue}{incarnation}"


def _first(run: QueueRun) -> str:
    return f"first {run.topic} {run.broker}"


def _last(run: QueueRun) -> str:
    return f"last {run.topic} {run.broker}"


class _Sifted(NamedTuple):
    """Files without the rows that their table has."""

    new: list[WrittenFile]
    replaced: list[WrittenFile]
    """Those that have nothing new, or in whose place others were written."""


def _sift(folder: Path, files: Sequence[WrittenFile], positions: _Positions, hide: bool) -> _Sifted:
    sifted = _Sifted([], [])
    for file in files:
        known = {run: positions.of(run) or 0 for run in file.extents}
        before = {p: at for p, at in known.items() if file.extents[p].start < at}
        if not before:
            sifted.new.append(file)
            continue
        sifted.replaced.append(file)
        if all(file.extents[run].end <= before.get(run, 0) for run in file.extents):
            continue
        path = folder / file.path
        rows = after(pq.read_table(hidden(path) if hide else path, partitioning=None), before)
        if rows.num_rows:
            extents = {
                run: extent._replace(start=max(extent.start, before.get(run, 0)))
                for run, extent in file.extents.items()
            }
            fresh = write_file(folder.parent, file.table, file.date, rows, extents, hide=hide)
            sifted.new.append(fresh)
    return sifted


def _remove(folder: Path, files: Iterable[WrittenFile], hide: bool) -> None:
    for file in files:
        path = folder / file.path
        (hidden(path) if hide else path).unlink(missing_ok=True)


def _commit_delta(
    folder: Path, files: Sequence[WrittenFile], reached: Mapping[QueueRun, int]
) -> int:
    found = _types_in(folder / each.path for each in files)
    schema = None if found is None else found.append(pa.field(DATE, pa.string()))
    for _ in range(_CONFLICTS_MAX):
        table = _open_or_create(folder, schema)
        if table is None:
            return 0
        positions = _delta_positions(table)
        sifted = _sift(folder, files, positions, hide=False)
        try:
            _commit_sifted(table, schema, sifted.new, positions.changes(reached))
        except CommitFailedError as error:
            # Somebody else moved one of these positions meanwhile: look again what is new.
            _remove(folder, [each for each in sifted.new if each not in files], hide=False)
            reason = error
            continue
        _remove(folder, sifted.replaced, hide=False)
        return sum(file.rows for file in sifted.new)
    raise StoreError(
        f"{folder} takes no files, after {_CONFLICTS_MAX} tries: {reason}. Sync a topic to a table "
        "from one place only"
    )


def _open_or_create(folder: Path, schema: pa.Schema | None) -> DeltaTable | None:
    try:
        return DeltaTable(folder)
    except TableNotFoundError:
        if schema is None:
            return None
    return DeltaTable.create(folder, schema, mode="ignore", partition_by=[DATE], name=folder.name)


def _delta_positions(table: DeltaTable) -> _Positions:
    return _Positions(lambda text: table.transaction_version(_PREFIX + text))


def _commit_sifted(
    table: DeltaTable,
    schema: pa.Schema | None,
    files: Sequence[WrittenFile],
    changes: Mapping[str, int],
) -> None:
    if not files and not changes:
        return
    now_ms = int(time.time() * 1000)
    added = [
        AddAction(file.path, file.size_bytes, {DATE: file.date}, now_ms, True, file.stats)
        for file in files
    ]
    done = [Transaction(_PREFIX + text, version, now_ms) for text, version in changes.items()]
    known = pa.schema(table.schema().to_arrow())
    if schema is None:
        schema = known
    _check_types(Path(table.table_uri.removeprefix("file://")), known, schema)
    _grow(table, known, schema)
    table.create_write_transaction(
        list(added),
        "append",
        schema,
        [DATE],
        commit_properties=CommitProperties(app_transactions=done, max_commit_retries=10),
    )


def _grow(table: DeltaTable, known: pa.Schema, schema: pa.Schema) -> None:
    """Add columns, and fields of structs, that the table does not have yet."""
    if merged(known, schema) != merged(known, known):
        nothing = pa.table([pa.array([], field.type) for field in schema], schema=schema)
        write_deltalake(table, nothing, mode="append", schema_mode="merge")


def _types_in(paths: Iterable[Path]) -> pa.Schema | None:
    """The types of the columns in files; `StoreError` if they do not agree."""
    found: pa.Schema | None = None
    for path in paths:
        own = pq.read_schema(path).remove_metadata()
        if found is not None:
            _check_types(path, found, own)
        found = own if found is None else merged(found, own)
    return found


def _check_types(path: Path, known: pa.Schema, found: pa.Schema) -> None:
    """Workers fit their rows to the table; so this is one that was made, or grew, since then."""
    if (difference := conflict(known, found)) is not None:
        raise StoreError(
            f"{path} would have the column {difference}: it was changed while rows were written. "
            "Nothing was added; start the sync again, and what does not fit becomes a dead letter"
        )


def types_of(folder: Path, form: Form) -> pa.Schema | None:
    """The types of a table's columns, but the date's; None if there is no such table."""
    if form == "parquet":
        return _known_types(folder, _read_journals(folder))
    try:
        known = pa.schema(DeltaTable(folder).schema().to_arrow())
    except TableNotFoundError:
        return None
    return pa.schema([field for field in known if field.name != DATE])


def _known_types(folder: Path, journals: Mapping[str, "_Journal"]) -> pa.Schema | None:
    """What the journal says; where it is of an earlier version, the first file with a column."""
    own = journals.get(_POSITIONS)
    if own is not None and own.types:
        return pa.ipc.read_schema(pa.py_buffer(own.types))
    found: pa.Schema | None = None
    for path in sorted(folder.glob(f"{DATE}=*/*.parquet")) if journals else ():
        if path.name[0] != ".":
            types = pq.read_schema(path).remove_metadata()
            found = types if found is None else merged(found, types)
    return found


def _commit_parquet(
    folder: Path, files: Sequence[WrittenFile], reached: Mapping[QueueRun, int]
) -> int:
    """The journal decides; then the files of the batch come out of hiding."""
    path = folder / JOURNAL / _POSITIONS
    with _locked(folder):
        journals = _read_journals(folder)
        # Who decided for them may have died before they were shown.
        for name in (name for journal in journals.values() for name in journal.files):
            _show(folder / name)
        positions = _journal_positions(journals.values())
        sifted = _sift(folder, files, positions, hide=True)
        own = journals.get(path.name, _Journal(0, (), {})).next_offsets
        changes = {_journal_text(t): v for t, v in positions.changes(reached).items()}
        names = tuple(file.path for file in sifted.new)
        known = _known_types(folder, journals)
        found = _types_in(hidden(folder / name) for name in names)
        if known is not None and found is not None:
            _check_types(folder, known, found)
            found = merged(known, found)
        types = (found or known or pa.schema([])).serialize().to_pybytes()
        if names or changes:
            _write_journal(path, _Journal(0, names, {**own, **changes}, types))
        for name in names:
            _show(folder / name)
        _remove(folder, sifted.replaced, hide=True)
    return sum(file.rows for file in sifted.new)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """For who changes the table; the lock goes with the process."""
    (folder / JOURNAL).mkdir(parents=True, exist_ok=True)
    with open(folder / JOURNAL / "lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _journal_positions(journals: Iterable["_Journal"]) -> _Positions:
    found: dict[str, int] = {}
    for text, version in (item for each in journals for item in each.next_offsets.items()):
        found[text] = max(version, found.get(text, 0))
    return _Positions(lambda text: found.get(_journal_text(text)))


def _journal_text(text: str) -> str:
    """0.1 kept nothing but queues, without saying so."""
    return text.removeprefix("queue ")


@dataclass(frozen=True, slots=True)
class _Journal:
    batch: int
    files: tuple[str, ...]
    next_offsets: Mapping[str, int]
    types: bytes = b""
    """An Arrow schema."""


def _read_journals(folder: Path) -> dict[str, _Journal]:
    return {path.name: _read_journal(path) for path in (folder / JOURNAL).glob("*.json")}


def _read_journal(path: Path) -> _Journal:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Journal)
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


def reached(
    folder: Path, form: Form, name: str, runs: Iterable[QueueRun]
) -> tuple[dict[QueueRun, int], Incarnations]:
    """How far a table is in these queues, as far as it knows them, and which topics it saw last.

    A queue is looked for in the incarnation that the table saw last, whatever was asked for.
    """
    if form == "parquet":
        positions = _journal_positions(_read_journals(folder / name).values())
    else:
        try:
            positions = _delta_positions(DeltaTable(folder / name))
        except TableNotFoundError:
            return {}, {}
    found: dict[QueueRun, int] = {}
    incarnations: dict[tuple[str, str], int] = {}
    for run in runs:
        last = positions.last_incarnation(run)
        seen = run if last is None else run._replace(incarnation=last)
        if last is not None:
            incarnations[run.topic, run.broker] = last
        if (position := positions.of(seen)) is not None:
            found[seen] = position
    return found, incarnations


def settle_incarnations(folder: Path, form: Form, incarnations: Incarnations) -> None:
    """Tell tables of 0.1 which incarnation of their topics they have."""
    for (topic, broker), made in incarnations.items():
        run = QueueRun(topic, broker, 0, made)
        for name in (table_name(topic), table_name(topic) + DEAD_LETTERS):
            if form == "parquet":
                _settle_parquet(folder / name, run)
                continue
            table = _open_or_create(folder / name, None)
            if table is not None and (changes := _delta_positions(table).unsettled(run)):
                _commit_sifted(table, None, [], changes)


def _settle_parquet(folder: Path, run: QueueRun) -> None:
    if not (folder / JOURNAL).is_dir():
        return
    with _locked(folder):
        journals = _read_journals(folder)
        if changes := _journal_positions(journals.values()).unsettled(run):
            own = journals.get(_POSITIONS, _Journal(0, (), {}))
            kept = replace(own, next_offsets={**own.next_offsets, **changes})
            _write_journal(folder / JOURNAL / _POSITIONS, kept)


# -- looking after tables ------------------------------------------------------------------------


def tables(folder: Path) -> Iterator[TableInfo]:
    """The tables in a folder, by name."""
    folder = local_folder("lake", folder)
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
    """Join small files of a Delta table into larger ones; how many files went.

    delta-rs casts what it joins: a file with other types than the table's, as 0.1 may
    have written, would have other values afterwards.
    """
    table = _delta(folder)
    known = pa.schema(table.schema().to_arrow())
    for uri in table.file_uris():
        path = Path(uri.removeprefix("file://"))
        if (difference := conflict(known, pq.read_schema(path))) is not None:
            raise StoreError(
                f"{path} has the column {difference}: to join files would change values, and "
                "nothing was done. Sync the topic to another folder"
            )
    done = table.optimize.compact(target_size=target_bytes)
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
