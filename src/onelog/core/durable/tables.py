"""Durable tables: everything the broker must remember besides messages.

A change is decided by the table's owner, recorded in the log, and only then applied. On start the
latest snapshot is loaded, and the records after it go through the same `apply`.

    record    topic `onelog_sys_tables`, queue 0; body = JSON [[table, key, value], ...];
              the value null deletes the key
    snapshot  config/onelog-tables.json =
              {"format": 1, "next_offset": n, "tables": {table: {key: value}}, "last": place};
              n is the queue offset of the first record that the snapshot does not cover; the place
              is that of the last record that it tells of: queue offset, log offset, store time, CRC
    table     "restated": {"from": n}: from record n on, records alone say everything

Invariant: memory = snapshot + records from `next_offset` on, in order. So the snapshot has to be
renewed before retention may delete the records after it (`snapshot`), and it takes its place only
when the log is on disk up to where it tells of: positions in it would otherwise be ahead of their
queues after a loss of power. One that is ahead all the same is written anew before the next record,
which would get an offset that the snapshot claims to cover; the tables' owners look after what is
in it.

What another version wrote, or a fault has spoilt, may be an entry that its owner cannot read: it is
set aside and named, and the others serve, with what the entry was before, if it was something. Who
can read it has it again: snapshots keep it in a table of its own, which is applied last. A record
that is none at all is kept in a table, too:

    table     "set_aside": {table@key: value}
              "unreadable_records": {topic and queue offset: base64}

Where the log has replicas, snapshots have none: a replica begins with what the log still has, and
one whose log was cut has a snapshot of another history. So before retention deletes records, all
entries are recorded again (`restate_some`); a snapshot counts only if its last record is the one in
the log, and without it the records say everything.
"""

import base64
import itertools
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from onelog.clock import Clock
from onelog.core.durable.storage import Runtime
from onelog.core.durable.writer import Writer
from onelog.errors import MessageError, OnelogError, StoreCorruptError, StoreError
from onelog.message import NewMessage
from onelog.names import TABLES_FILE, TABLES_TOPIC, join_key, split_key
from onelog.private_files import make_folder, opener
from onelog.record.decode import decode_message, decode_messages
from onelog.store.message_store import MessageStore
from onelog.store.retention import HEAD_ROOM_OF_DUE

log = logging.getLogger(__name__)

LEASES_TOPIC = "onelog_sys_leases"
"""Of a second set of tables, which changes with every acknowledgement."""
STAGED_TOPIC = "onelog_sys_staged"
"""Of messages that wait for a commit (`transactions.staged`)."""
SNAPSHOT_FORMAT = 1
SET_ASIDE, UNREADABLE = "set_aside", "unreadable_records"
PART_ENTRIES = 500
"""Entries of a large table that are looked at together: a few milliseconds."""
_SNAPSHOT_AGE_MS = 300_000
_RECORD_BYTES_MAX = 256 * 1024
_REPLAY_RECORDS, _REPLAY_BYTES = 200, 256 * 1024
"""What is applied in one step."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Result = TypeVar("_Result")
Part = dict[str, Any] | list[bytes] | None
"""Entries of a table; or one of them in JSON, with its key, in pieces."""
_Text = tuple[list[bytes], int, int]
"""A snapshot in pieces, the first record that it does not cover, and the first it knows not of."""
_RecordKey = tuple[int, int, int, int]
"""Queue offset, log offset, store time and CRC of a record, by which it is known again."""
Change = tuple[str, str, Any]
"""A table's name, a key, and the key's new value; None deletes the key."""


class Table(Protocol):
    """What an owner gives to have its state kept: the state changes in `apply` and nowhere else."""

    name: str

    def apply(self, key: str, value: Any) -> None:
        """Make one change; `value` is plain JSON, or None to forget the key."""
        ...

    def parts(self) -> Iterable["Part"]:
        """Changes that rebuild the present state from an empty one.

        Some at a time, if to list all at once would hold the loop; what changes meanwhile is in
        them or not. None is a pause: there was much to look at.
        """
        ...


def exhausted(steps: Generator[None, None, _Result]) -> _Result:
    """Go through all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: _Result = ended.value
            return result


def in_parts(table: Mapping[_Key, _Value]) -> Iterator[list[tuple[_Key, _Value]]]:
    """The items of a dictionary, some at a time, though it may change meanwhile."""
    keys = list(table)
    for at in range(0, len(keys), PART_ENTRIES):
        yield [(key, table[key]) for key in keys[at : at + PART_ENTRIES] if key in table]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    format: int
    next_offset: int
    tables: dict[str, dict[str, Any]]
    last: _RecordKey | None = None


class _Restated:
    """From which record on the records say everything."""

    name = "restated"
    begin = 0

    def apply(self, key: str, value: Any) -> None:
        self.begin = int(value)

    def parts(self) -> list[dict[str, Any]]:
        return [{"from": self.begin}] if self.begin else []


class _Foreign:
    """Entries of a table that this version does not know: kept, so that they are not lost."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._entries: dict[str, Any] = {}

    def apply(self, key: str, value: Any) -> None:
        if value is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = value

    def parts(self) -> list[dict[str, Any]]:
        return [self._entries]


@dataclass(eq=False)
class Tables:
    """All tables of one store: their records, their snapshot, their recovery.

    `topic` and `file` keep a second set, of tables that change much more often, apart.
    """

    _store: MessageStore
    _writer: Writer
    _runtime: Runtime
    _: KW_ONLY
    topic: str = TABLES_TOPIC
    file: str = TABLES_FILE
    snapshot_records: int = 10_000
    restates: bool = False
    """Whether the log has replicas, and has to say everything without a snapshot."""

    def __post_init__(self) -> None:
        self._path = self._store.folder / "config" / self.file
        self._restated = _Restated()
        self._tables: dict[str, Table] = {}
        if self.restates:
            self._tables[_Restated.name] = self._restated
        self._restating: Iterator[int] | None = None
        self._applied = 0
        self._aside: dict[tuple[str, str], tuple[Any, str]] = {}
        """Entries that cannot be read, and why."""
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(list[Change]).decode
        self._covered = 0
        self._clock = self._runtime.clock
        self._attempt_ms = self._clock.now_ms()
        self._gathering: Generator[int, None, _Text] | None = None
        self._file_lock = threading.Lock()
        self._is_closed = False

    def add(self, table: Table) -> None:
        """Take a table in; before `open`."""
        assert table.name not in self._tables
        self._tables[table.name] = table

    def open(self) -> bool:
        """Bring every table back to its last recorded state. False if this store never had any."""
        return exhausted(self.opening())

    def opening(self) -> Generator[None, None, bool]:
        """`open` in steps of some milliseconds: there may be much to apply, and more to do."""
        end = self._applied = self._store.max_offset(self.topic, 0)
        snapshot = self._load_snapshot()
        if snapshot is not None and self.restates and not self._is_of_this_log(snapshot):
            log.warning(
                "%s tells of records that the log does not have, and is ignored", self._path
            )
            snapshot = None
        if snapshot is None:
            begin = self._store.min_offset(self.topic, 0) if self.restates else 0
            yield from self._replaying(begin)
            return end > 0
        for name, entries in snapshot.tables.items():
            items = iter(entries.items())
            while some := list(itertools.islice(items, PART_ENTRIES)):
                keys = [split_key(key) if name == SET_ASIDE else (name, key) for key, _ in some]
                values = [value for _, value in some]
                self._take((of, key, value) for (of, key), value in zip(keys, values, strict=True))
                yield
        self._covered = min(snapshot.next_offset, end)
        if snapshot.next_offset > end:
            log.warning(
                "the tables' snapshot is %d records ahead of the log, whose end was lost in a"
                " crash; the snapshot counts",
                snapshot.next_offset - end,
            )
            self.snapshot(wait=True)
        else:
            yield from self._replaying(snapshot.next_offset)
        return True

    def _load_snapshot(self) -> _Snapshot | None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            snapshot = msgspec.json.decode(data, type=_Snapshot)
        except msgspec.MsgspecError as error:
            raise StoreCorruptError(
                f"{self._path} is not a snapshot of the broker's tables ({error}); move it away to "
                "start from the records that the log still has"
            ) from error
        if snapshot.format != SNAPSHOT_FORMAT:
            raise StoreCorruptError(
                f"{self._path} has format {snapshot.format}; this version reads {SNAPSHOT_FORMAT}"
            )
        return snapshot

    def _is_of_this_log(self, snapshot: _Snapshot) -> bool:
        """Whether the log has what a snapshot tells of; it may have been cut, and gone on."""
        if snapshot.last is None:
            return snapshot.next_offset <= self._applied
        return self._record_key(snapshot.last[0]) == snapshot.last

    def _record_key(self, offset: int) -> _RecordKey | None:
        """What the record at a queue offset is known by; None if it is not there."""
        entry = self._store.entry_at(self.topic, 0, offset)
        if entry is None:
            return None
        message = decode_message(memoryview(self._store.read_cold(entry[0], entry[1])))
        return offset, entry[0], message.store_ms, message.body_crc

    def follow(self) -> None:
        """Apply the records that have come since the last time, to the log of a follower."""
        end = self._store.max_offset(self.topic, 0)
        if end > self._applied:
            exhausted(self._replaying(self._applied))
            self._applied = end

    def _replaying(self, offset: int) -> Generator[None, None, None]:
        """Apply the records from `offset` on, some at a time."""
        start = self._store.min_offset(self.topic, 0)
        if start > offset:
            log.error(
                "table records %d to %d were deleted before a snapshot covered them: topics, groups"
                " or positions changed in that time may be missing",
                offset,
                start - 1,
            )
            offset = start
        end = self._store.max_offset(self.topic, 0)
        while offset < end:
            read = self._store.read_now(self.topic, 0, offset, _REPLAY_RECORDS, _REPLAY_BYTES)
            if not read.slices:
                if read.next_offset <= offset:
                    raise StoreCorruptError(f"table record {offset} of {end} cannot be read")
                log.error(
                    "table records %d to %d are damaged (see `onelog store inspect`): what changed "
                    "then may be missing",
                    offset,
                    read.next_offset - 1,
                )
            for part in read.slices:
                for message in decode_messages(part):
                    self._apply_record(message.body, message.queue_offset)
            offset = read.next_offset
            yield

    def _apply_record(self, body: memoryview, offset: int) -> None:
        try:
            changes = self._decode(body)
        except msgspec.MsgspecError as error:
            log.error("table record %d cannot be read, and is left out: %s", offset, error)
            changes = [(UNREADABLE, f"{self.topic} {offset}", base64.b64encode(body).decode())]
        self._take(changes)

    def _take(self, changes: Iterable[Change]) -> None:
        """Make changes that somebody has recorded; set aside what this version cannot read."""
        for change in changes:
            try:
                self.apply([change])
            except Exception as error:  # Whoever wrote it could write anything.
                self.set_aside(*change, error)

    def set_aside(self, name: str, key: str, value: Any, error: Exception) -> None:
        """Go on without an entry that cannot be read, but keep it."""
        if value is None:
            return
        reason = f"{type(error).__name__}: {error}"
        self._aside[name, key] = value, reason
        log.error(
            "the entry %.200r of table %s cannot be read (%.500s): it is set aside, and kept for a "
            "version that can read it; make it anew if that is lost",
            key,
            name,
            reason,
        )

    def is_aside(self, name: str, key: str) -> bool:
        """Whether an entry is there that cannot be read."""
        return (name, key) in self._aside

    def aside(self) -> list[str]:
        """What could not be read, for people."""
        found = [f"{name} {key}: {why}" for (name, key), (_, why) in self._aside.items()]
        for part in self._tables[UNREADABLE].parts() if UNREADABLE in self._tables else ():
            if isinstance(part, dict):
                found += [f"record {key}" for key in part]
        return found

    def apply(self, changes: Iterable[Change]) -> None:
        """Make changes that are already recorded."""
        tables = self._tables
        for name, key, value in changes:
            table = tables.get(name)
            if table is None:
                table = tables[name] = _Foreign(name)
            if self._aside:
                self._aside.pop((name, key), None)
            table.apply(key, value)

    def write(self, changes: Sequence[Change]) -> None:
        """Record changes and make them. If the record cannot be written, nothing changes."""
        if changes:
            self._writer.write_now([], self.record(changes))
            self.apply(changes)

    def deliver(self, messages: Sequence[NewMessage], changes: Sequence[Change]) -> None:
        """Write messages together with changes, and make those: not even a kill comes between.

        A message that cannot be stored is dropped, with a word in the log. All have head room:
        where they waited they keep files from being deleted.
        """
        with self._writer.head_room(HEAD_ROOM_OF_DUE):
            try:
                self._writer.write_now(messages, self.record(changes))
            except MessageError:
                for message in messages:
                    try:
                        self._writer.write_now([message])
                    except MessageError as error:
                        log.error("a message to %s is dropped: %s", message.topic, error)
                self._writer.write_now([], self.record(changes))
        self.apply(changes)

    def record(self, changes: Iterable[Change]) -> list[NewMessage]:
        """The messages that record these changes: one, or a few if one would be too large.

        For those who write them together with other messages; they `apply` the changes after.
        """
        bodies: list[bytes] = []
        parts: list[bytes] = []
        size = 0
        for change in changes:
            part = self._encode(change)
            if size + len(part) > _RECORD_BYTES_MAX and parts:
                bodies.append(b"[" + b",".join(parts) + b"]")
                parts, size = [], 0
            parts.append(part)
            size += len(part) + 1
        if parts:
            bodies.append(b"[" + b",".join(parts) + b"]")
        return list(map(self._record, bodies))

    def _record(self, body: bytes) -> NewMessage:
        return NewMessage(self.topic, 0, body, born_ms=self._clock.now_ms())

    def snapshot_if_due(self) -> bool:
        """Write a snapshot when many records, or old ones, are not covered by the last.

        True if it is not gathered yet: then this has to be called again, soon.
        """
        behind = self._store.max_offset(self.topic, 0) - self._covered
        age_ms = self._clock.now_ms() - self._attempt_ms
        if self._gathering is not None:
            self._gather_some()
        elif behind >= self.snapshot_records or (behind > 0 and age_ms >= _SNAPSHOT_AGE_MS):
            self.snapshot()
        return self._gathering is not None

    def prepare_retention(self, reach: int, *, follows: bool = False) -> None:
        """Before log files up to this offset are deleted: write what is needed of them anew.

        That is a snapshot, and where that is not enough the entries themselves; those of a log that
        `follows` another come with it.
        """
        if self._gathering is None and self._log_offset_of(self._covered) < reach:
            self.snapshot()
        if self.restates and not follows and self._log_offset_of(self._restated.begin) < reach:
            self.restate_some(anyway=True)

    def _log_offset_of(self, offset: int) -> int:
        return self._store.log_offset_of(self.topic, 0, offset)

    def needed_from(self) -> int:
        """Where in the log the first record is that no snapshot covers, or its end."""
        needed = self._log_offset_of(self._covered)
        return min(needed, self._log_offset_of(self._restated.begin)) if self.restates else needed

    def restate_some(self, *, anyway: bool = False) -> bool:
        """Go on to record all entries anew, some at a time; whether there are more.

        That begins if the first records are gone without it, or `anyway`.
        """
        if self._restating is None:
            if not anyway and self._store.min_offset(self.topic, 0) <= self._restated.begin:
                return False
            self._restating = self._restate()
        count = 0
        try:
            while count < PART_ENTRIES:
                count += 1 + next(self._restating)
        except StopIteration:
            self._restating = None
        except BaseException:
            self._restating = None
            raise
        return self._restating is not None

    def _restate(self) -> Iterator[int]:
        """Record all entries; what changes meanwhile is recorded behind what it was."""
        begin = self._store.next_offset(self.topic, 0)
        for name, table in list(self._tables.items()):
            for part in table.parts():
                if isinstance(part, dict):
                    records = self.record([(name, key, value) for key, value in part.items()])
                elif part is not None:
                    head = b"[[%b,%b," % (self._encode(name), part[0].removesuffix(b":"))
                    records = [self._record(b"".join([head, *part[1:], b"]]"]))]
                else:
                    records = []
                self._writer.write_now([], records)
                yield PART_ENTRIES if part is None else len(part)
        aside = [(name, key, value) for (name, key), (value, _) in self._aside.items()]
        self._writer.write_now([], self.record(aside))
        self.write([(_Restated.name, "from", begin)])

    def snapshot(self, *, wait: bool = False) -> None:
        """Write the present state to the snapshot file, atomically; in a worker unless `wait`.

        Only the first part of a large state is gathered here, the others by `snapshot_if_due`.
        """
        self._attempt_ms = self._clock.now_ms()
        self._gathering = self._gather()
        # Whoever cannot wait for replicas does without: the records are there.
        self._gather_some(wait=wait and self._store.confirmed == self._store.log_end)

    def _gather(self) -> Generator[int, None, _Text]:
        """The snapshot's text, some entries at a time.

        What is recorded meanwhile may be in it already. It is not covered all the same: it is
        applied once more when the snapshot is loaded, and the last record of a key decides.
        """
        next_offset = self._store.max_offset(self.topic, 0)
        text = [b'{"format":%d,"next_offset":%d,"tables":{' % (SNAPSHOT_FORMAT, next_offset)]
        for name, table in list(self._tables.items()):
            text.append(b"%b%b:{" % (b"," if len(text) > 1 else b"", self._encode(name)))
            comma = b""
            for part in table.parts():
                if part:
                    text.append(comma)
                    text += [self._encode(part)[1:-1]] if isinstance(part, dict) else part
                    comma = b","
                yield PART_ENTRIES if part is None else len(part)
            text.append(b"}")
        if self._aside:
            aside = {join_key(*at): value for at, (value, _) in self._aside.items()}
            text.append(
                b"%b%b:%b" % (b"," * (len(text) > 1), self._encode(SET_ASIDE), self._encode(aside))
            )
        text.append(b"}")
        return text, next_offset, self._store.next_offset(self.topic, 0)

    def _gather_some(self, *, wait: bool = False) -> None:
        """Gather one part, or with `wait` all of them, and hand the text over in the end."""
        assert self._gathering is not None
        count = 0
        try:
            while wait or count < PART_ENTRIES:
                count += 1 + next(self._gathering)
            return
        except StopIteration as ended:
            self._gathering = None
            text = ended.value
        except BaseException:
            self._gathering = None
            raise
        barrier = self._store.barrier()
        if wait:
            self._replace_file(text, barrier)
            return

        def confirmed(error: OnelogError | None) -> None:
            if error is None:
                self._runtime.offload(partial(self._replace_file_or_log, text, barrier))

        # No worker has to wait for replicas, and a log that is cut takes its snapshot with it.
        self._store.when_confirmed(self._store.log_end, confirmed)

    def _replace_file_or_log(self, text: _Text, barrier: Callable[[], None]) -> None:
        """The worker's part of a snapshot. If it fails, the old snapshot and the records remain."""
        try:
            self._replace_file(text, barrier)
        except StoreError as error:
            log.error("%s; the broker goes on, and tries again", error)

    def _replace_file(self, text: _Text, barrier: Callable[[], None]) -> None:
        barrier()
        data, next_offset, end = text
        last = self._record_key(end - 1) if end else None
        data.append(b',"last":%b}' % self._encode(last))
        with self._file_lock:
            if next_offset < self._covered or self._is_closed:
                return  # A worker came late, after a newer snapshot was written, or another core.
            temporary = self._path.with_suffix(".tmp")
            try:
                make_folder(self._path.parent)
                with open(temporary, "wb", opener=opener) as file:
                    file.writelines(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self._path)
                folder = os.open(self._path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
            except OSError as error:
                raise StoreError(
                    f"cannot write the tables' snapshot {self._path}: {error}"
                ) from error
            self._covered = next_offset

    def close(self, *, write: bool = True) -> None:
        """A last snapshot, so that the next start has nothing to replay; or just write no more."""
        try:
            if not write:
                return
            self.snapshot(wait=True)
        except StoreError as error:
            log.error("%s; the next start replays what changed since the last snapshot", error)
        finally:
            with self._file_lock:
                self._is_closed = True


@dataclass(frozen=True, slots=True)
class DataVersion:
    """How often, and when, a set of settings changed; name servers compare it to what they have."""

    counter: int = 0
    timestamp_ms: int = 0
    state_version: int = 0


class Versions:
    """The table of data versions, one per set of settings."""

    name = "versions"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._versions: dict[str, DataVersion] = {}

    def __getitem__(self, of: str) -> DataVersion:
        return self._versions.get(of) or DataVersion()

    def now_ms(self) -> int:
        """The time that versions are stamped with."""
        return self._clock.now_ms()

    def next(self, of: str) -> Change:
        """The change that makes `of` one version younger; record it together with its cause."""
        version = DataVersion(self[of].counter + 1, self._clock.now_ms())
        return (self.name, of, msgspec.to_builtins(version))

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        self._versions[key] = msgspec.convert(value, DataVersion)

    def parts(self) -> list[dict[str, Any]]:
        return [{key: msgspec.to_builtins(version) for key, version in self._versions.items()}]
