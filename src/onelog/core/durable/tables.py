"""Durable tables: everything the broker must remember besides messages.

A change is decided by the table's owner, recorded in the log, and only then applied. On start the
latest snapshot is loaded, and the records after it go through the same `apply`.

    record    topic `onelog_sys_tables`, queue 0; body = JSON [[table, key, value], ...];
              the value null deletes the key
    snapshot  config/onelog-tables.json =
              {"format": 1, "next_offset": n, "tables": {table: {key: value}}};
              n is the queue offset of the first record that the snapshot does not cover

Invariant: memory = snapshot + records from `next_offset` on, in order. So the snapshot has to be
renewed before retention may delete the records after it (`snapshot`), and it takes its place only
when the log is on disk up to where it tells of: positions in it would otherwise be ahead of their
queues after a loss of power. One that is ahead all the same is written anew before the next record,
which would get an offset that the snapshot claims to cover; the tables' owners look after what is
in it.
"""

import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from onelog.clock import Clock
from onelog.core.durable.writer import Writer
from onelog.errors import MessageError, StoreCorruptError, StoreError
from onelog.message import NewMessage
from onelog.names import TABLES_FILE, TABLES_TOPIC
from onelog.record.decode import decode_messages
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

LEASES_TOPIC = "onelog_sys_leases"
"""Of a second set of tables, which changes with every acknowledgement."""
STAGED_TOPIC = "onelog_sys_staged"
"""Of messages that wait for a commit (`transactions.staged`)."""
SNAPSHOT_FORMAT = 1
PART_ENTRIES = 500
"""Entries of a large table that are looked at together: a few milliseconds."""
_RECORD_BYTES_MAX = 256 * 1024
_REPLAY_BYTES = 1 << 20

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
Part = dict[str, Any] | list[bytes] | None
"""Entries of a table; or one of them in JSON, with its key, in pieces."""
_Text = tuple[list[bytes], int]
"""A snapshot in pieces, and the first record that it does not cover."""
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
    _folder: Path
    _clock: Clock
    _offload: Callable[[Callable[[], None]], None]
    _: KW_ONLY
    topic: str = TABLES_TOPIC
    file: str = TABLES_FILE
    snapshot_records: int = 10_000
    snapshot_age_ms: int = 300_000

    def __post_init__(self) -> None:
        self._path = self._folder / self.file
        self._tables: dict[str, Table] = {}
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(list[Change]).decode
        self._covered = 0
        self._attempt_ms = self._clock.now_ms()
        self._gathering: Generator[int, None, _Text] | None = None
        self._file_lock = threading.Lock()

    def add(self, table: Table) -> None:
        """Take a table in; before `open`."""
        assert table.name not in self._tables
        self._tables[table.name] = table

    def open(self) -> bool:
        """Bring every table back to its last recorded state. False if this store never had any."""
        end = self._store.max_offset(self.topic, 0)
        snapshot = self._load_snapshot()
        if snapshot is None:
            self._replay(0)
            return end > 0
        for name, entries in snapshot.tables.items():
            self.apply([(name, key, value) for key, value in entries.items()])
        self._covered = min(snapshot.next_offset, end)
        if snapshot.next_offset > end:
            log.warning(
                "the tables' snapshot is %d records ahead of the log, whose end was lost in a"
                " crash; the snapshot counts",
                snapshot.next_offset - end,
            )
            self.snapshot(wait=True)
        else:
            self._replay(snapshot.next_offset)
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

    def _replay(self, offset: int) -> None:
        """Apply the records from `offset` on."""
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
            read = self._store.read_now(self.topic, 0, offset, 1_000, _REPLAY_BYTES)
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

    def _apply_record(self, body: memoryview, offset: int) -> None:
        try:
            changes = self._decode(body)
        except msgspec.MsgspecError as error:
            raise StoreCorruptError(f"table record {offset} is unreadable: {error}") from error
        self.apply(changes)

    def apply(self, changes: Iterable[Change]) -> None:
        """Make changes that are already recorded."""
        tables = self._tables
        for name, key, value in changes:
            table = tables.get(name)
            if table is None:
                table = tables[name] = _Foreign(name)
            table.apply(key, value)

    def write(self, changes: Sequence[Change]) -> None:
        """Record changes and make them. If the record cannot be written, nothing changes."""
        if changes:
            self._writer.write_now([], self.record(changes))
            self.apply(changes)

    def deliver(self, messages: Sequence[NewMessage], changes: Sequence[Change]) -> None:
        """Write messages together with changes, and make those: not even a kill comes between.

        A message that cannot be stored is dropped, with a word in the log.
        """
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
        now = self._clock.now_ms()
        return [NewMessage(self.topic, 0, body, born_ms=now) for body in bodies]

    def snapshot_if_due(self) -> bool:
        """Write a snapshot when many records, or old ones, are not covered by the last.

        True if it is not gathered yet: then this has to be called again, soon.
        """
        behind = self._store.max_offset(self.topic, 0) - self._covered
        age_ms = self._clock.now_ms() - self._attempt_ms
        if self._gathering is not None:
            self._gather_some()
        elif behind >= self.snapshot_records or (behind > 0 and age_ms >= self.snapshot_age_ms):
            self.snapshot()
        return self._gathering is not None

    def prepare_retention(self, reach: int) -> None:
        """Before log files up to this offset are deleted: write a snapshot if they are needed."""
        if self._gathering is None and self.needed_from() < reach:
            self.snapshot()

    def needed_from(self) -> int:
        """Where in the log the first record is that no snapshot covers, or its end."""
        return self._store.place_of(self.topic, 0, self._covered)

    def snapshot(self, *, wait: bool = False) -> None:
        """Write the present state to the snapshot file, atomically; in a worker unless `wait`.

        Only the first part of a large state is gathered here, the others by `snapshot_if_due`.
        """
        self._attempt_ms = self._clock.now_ms()
        self._gathering = self._gather()
        self._gather_some(wait=wait)

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
        text.append(b"}}")
        return text, next_offset

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
            data, next_offset = ended.value
        except BaseException:
            self._gathering = None
            raise
        barrier = self._store.barrier()
        if wait:
            self._replace_file(data, next_offset, barrier)
        else:
            self._offload(partial(self._replace_file_or_log, data, next_offset, barrier))

    def _replace_file_or_log(
        self, data: list[bytes], next_offset: int, barrier: Callable[[], None]
    ) -> None:
        """The worker's part of a snapshot. If it fails, the old snapshot and the records remain."""
        try:
            self._replace_file(data, next_offset, barrier)
        except StoreError as error:
            log.error("%s; the broker goes on, and tries again", error)

    def _replace_file(
        self, data: list[bytes], next_offset: int, barrier: Callable[[], None]
    ) -> None:
        barrier()
        with self._file_lock:
            if next_offset < self._covered:
                return  # A worker came late, after a newer snapshot was written.
            temporary = self._path.with_suffix(".tmp")
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with open(temporary, "wb") as file:
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

    def close(self) -> None:
        """A last snapshot, so that the next start has nothing to replay."""
        try:
            self.snapshot(wait=True)
        except StoreError as error:
            log.error("%s; the next start replays what changed since the last snapshot", error)


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
        """All versions."""
        return [{key: msgspec.to_builtins(version) for key, version in self._versions.items()}]
