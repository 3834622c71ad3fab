"""The store: one log, the queues and the key index over it, kept in step and on disk.

    append:   see `writer`
    open:     lock -> recover -> mark as running
    close:    flush everything -> checkpoint -> remove the mark -> unlock

A replica's store has a gate (`gate`) between the log and the rest, and what is not confirmed waits
there; the log of one that follows another comes as bytes (`received`).

Invariant: a message has its queue entries as soon as `append` returns (with a gate: as soon as it
is confirmed), and is on disk as soon as `when_flushed` says so. One thread appends; the flush
thread only reads what that one wrote.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakSet

from onelog.clock import Clock, SystemClock
from onelog.config import StoreConfig
from onelog.errors import (
    FlushFailedError,
    OffsetOutOfRangeError,
    StoreClosedError,
    StoreError,
)
from onelog.message import LogOffset
from onelog.metrics import Histogram
from onelog.private_files import close_to_others
from onelog.store.checkpoint import AbortMark, Checkpoint, StoreLock, write_version
from onelog.store.commitlog import CommitLog
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.cutting import Cut, pieces_behind, put_aside
from onelog.store.damage import remember_damage
from onelog.store.flush import Flusher, OnFlushed, sync_filesystem
from onelog.store.folder import check_is_store
from onelog.store.gate import AnyQueue, Gate
from onelog.store.keyindex import KeyIndex
from onelog.store.queue_folders import QUEUES_FOLDER
from onelog.store.queues import Queues
from onelog.store.received import Received
from onelog.store.recovery import RecoveryReport, deleted_topics, rebuild, recover
from onelog.store.retention import Retention, RetentionRound
from onelog.store.segment import Buffer, disk_error, make_folders, sync_folder
from onelog.store.writer import StoreWriter

_log = logging.getLogger(__name__)
_FILES_SYNCED_ONE_BY_ONE_MAX = 64
_BARRIER_SECONDS = 60.0
_TOUCHED_MAX = 1_000


class MessageStore(StoreWriter):
    """A store open for writing."""

    def __init__(
        self, folder: Path, config: StoreConfig, clock: Clock, lock: StoreLock, gated: bool
    ) -> None:
        self._lock = lock
        _open_stores.add(self)
        self._abort = AbortMark(folder / "abort")
        self._checkpoint = Checkpoint(folder / "checkpoint")
        crashed = self._abort.present()
        self._unsynced: set[str] = set()
        """Folders with names that were made or removed, and are not known to be durable."""
        super().__init__(
            folder,
            config,
            clock,
            CommitLog(folder / "commitlog", config.segment_bytes, record_crc=config.record_crc),
            _queues(folder, config, self._unsynced),
            KeyIndex(
                folder / "index", config.index_slots, config.index_entries, unsynced=self._unsynced
            ),
        )
        if self.log.segments and (crashed or not self._checkpoint.ours):
            # The process that made them may have died before their names were durable.
            self._unsynced.update((str(self.log.folder), str(folder)))
        write_version(folder / "onelog.json")
        self._abort.set()
        self.recovery: RecoveryReport = recover(
            self.log,
            self.queue_table,
            self.index,
            self._checkpoint,
            self._tags_codes,
            crashed=crashed,
            gated=gated,
        )
        self.damage = remember_damage(
            folder, self.recovery.damage, int(self.log.start), int(self.log.end)
        )
        """Ranges of the log that are no use, as far as is known."""
        self.opened_end = int(self.log.end)
        self.last_append_ms = self.recovery.last_store_ms
        if crashed or self.recovery.records_replayed:
            self._dirty.update(self.queue_table)
        entered = self.recovery.entered_end
        self._entered = (entered, self.recovery.last_record, self.last_append_ms)
        if gated:
            self._gate = Gate(entered, int(self.log.end))
        self._received = Received(self.log, self.queue_table, self.index, self._tags_codes)
        self._received.restart(*self._entered)
        self._checkpoint_lock = threading.Lock()
        self._save_checkpoint(force=True)
        self.retention = Retention(self, config, clock)
        self.log.on_growth = self.retention.grown
        self._flusher = Flusher(
            self.log, self._checkpoint, self._save_checkpoint, config, self._refuse_from_now
        )
        (_log.info if self.recovery.clean else _log.warning)("%s: %s", folder, self.recovery)

    @classmethod
    def open(
        cls,
        folder: Path,
        config: StoreConfig | None = None,
        clock: Clock | None = None,
        *,
        gated: bool = False,
    ) -> Self:
        """Open a store for writing, or make one in an empty or missing folder.

        With `gated`, what the log has behind the last checkpoint waits to be confirmed.
        """
        try:
            check_is_store(folder)
            make_folders(folder)
            lock = StoreLock(folder / "lock")
            close_to_others(folder)
        except OSError as error:
            raise disk_error(error, folder, "open a store in") from error
        try:
            return cls(folder, config or StoreConfig(), clock or SystemClock(), lock, gated)
        except BaseException as error:
            lock.release()
            if isinstance(error, OSError):
                raise disk_error(error, folder, "open a store in") from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- confirming ----------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        """Queues and index know all records below this log offset."""
        return int(self.log.end) if self._gate is None else self._gate.confirmed

    @property
    def gated(self) -> bool:
        """Whether what is appended waits for `confirm`."""
        return self._gate is not None

    def set_gated(self, on: bool) -> None:
        """From now on what is appended waits for `confirm`, or does so no more."""
        if on and self._gate is None:
            self._gate = Gate(int(self.log.end), int(self.log.end))
        elif not on and self._gate is not None:
            self.drop_partial()
            self.confirm(int(self.log.end))
            self.drop_partial()  # Also decides about what is held back.
            gate, self._gate = self._gate, None
            assert gate.confirmed == self.log.end

    def confirm(self, log_offset: int) -> set[tuple[str, int]] | None:
        """Enter whole records below a log offset into queues and index.

        Returns which queues got some, or None for many. `StoreError` if the disk has no room for
        what a replica has to enter: to be tried again.
        """
        gate = self._gate
        if gate is None:
            return set()
        touched: set[AnyQueue] = set()
        if gate.has_raw:
            touched |= self._enter_received(gate, log_offset)
        if not gate.has_raw:
            for held in gate.pass_until(log_offset):
                self._enter_held(held)
                touched.update(held.entries)
        gate.tell()
        if len(touched) > _TOUCHED_MAX:
            return None
        return {(queue.topic, queue.queue_id) for queue in touched}

    def _enter_received(self, gate: Gate, log_offset: int) -> set[ConsumeQueue]:
        """`confirm` for what came as bytes."""
        received = self._received
        try:
            queues = received.enter(min(log_offset, gate.raw_until))
        finally:
            gate.confirmed = received.read_until
        self._take_entered(queues)
        return queues

    def _take_entered(self, queues: set[ConsumeQueue]) -> None:
        """Queues got what came as bytes."""
        received = self._received
        for queue in queues:
            queue.dirty = True
        self._dirty.update(queues)
        if received.damage:
            self.damage = remember_damage(
                self.folder, received.damage, int(self.log.start), int(self.log.end)
            )
            received.damage.clear()
        self.last_append_ms = max(self.last_append_ms, received.last_ms)
        self._entered = (received.entered, received.last_record, received.last_ms)

    def when_confirmed(self, log_offset: int, callback: OnFlushed) -> None:
        """Call back, in the thread that confirms, once everything below `log_offset` is confirmed.

        With an error if the log is cut, or becomes another's, before that.
        """
        if self._gate is None:
            callback(None)
        else:
            self._gate.when_confirmed(log_offset, callback)

    # -- another's log -------------------------------------------------------------------------

    @property
    def raw_end(self) -> int:
        """Where the log's bytes end; inside a record if the rest of that is yet to come."""
        return self._received.end

    @property
    def records_received(self) -> int:
        """How many records that came as bytes are in queues and index, since the start."""
        return self._received.records

    def follow(self) -> None:
        """From now on the log is another's: what waits is known by its bytes only."""
        gate = self._gate
        if gate is None:
            raise StoreError("only a store with a gate can follow another")
        gate.give_up(StoreError("the log is another's now"))
        gate.forget_held()
        if not gate.has_raw:
            self._received.restart(*self._entered)
        gate.raw_until = int(self.log.end)

    def append_raw(self, log_offset: int, data: Buffer) -> None:
        """Write the next bytes of the log that this store follows, wherever they are split.

        `log_offset` is `raw_end`, or the start of the next segment if only zeros are between. A log
        with nothing in it begins where the first bytes say, which is at some segment's start.
        """
        if self._refusal is not None:
            self._refuse()
        gate = self._gate
        if gate is None or gate.end > gate.confirmed:
            self.follow()
            gate = self._gate
        assert gate is not None
        try:
            self._received.append(log_offset, data)
        finally:
            gate.raw_until = self.raw_end
        if self.log.start > gate.confirmed:
            gate.confirmed = int(self.log.start)
            self._entered = (gate.confirmed, 0, 0)

    def drop_partial(self) -> None:
        """Nothing more will be sent: cut a record whose end has not come."""
        received, gate = self._received, self._gate
        received.drop_partial()
        if gate is not None:
            gate.raw_until = min(gate.raw_until, int(self.log.end))
        if received.is_holding:
            self._take_entered(received.finish())

    def cut(self, log_offset: int, why: str, *, may_lose: bool = False) -> Cut:
        """End the log at an offset, or at the record before that, and keep aside what was behind.

        What cannot be kept aside is not cut, but for `may_lose`: `StoreError`. Queues and index
        forget it, if they knew of it. Nobody may be reading meanwhile.
        """
        if log_offset >= self.raw_end:
            return Cut(self.raw_end, 0, why, (), rewound=False)
        if self._late:
            self._put_late()
        end = self._received.whole_before(log_offset)
        behind = pieces_behind(self.log, end)
        try:
            kept = put_aside(self.log, behind)
        except StoreError:
            if not may_lose:
                raise
            kept = ()
        error = StoreError(f"the log was cut at {end}: {why}")
        gate = self._gate
        if gate is not None:
            gate.give_up(error)
            gate.forget_held()
        known = self.confirmed
        lost = deleted_topics(self.log, end, known, self._tags_codes) if end < known else set()
        with self._checkpoint_lock:
            if end < known:
                self._rewind(end)
            self.log.cut(LogOffset(end))
        self._flusher.give_up(end, error)
        self._received.restart(*self._entered)
        self.opened_end = min(self.opened_end, end)
        self.damage = remember_damage(self.folder, (), int(self.log.start), end)
        if gate is not None:
            gate.confirmed, gate.raw_until = min(known, end), end
        if lost:
            rebuild(self.log, self.queue_table, self.index, self._tags_codes, lost)
            self._dirty.update(self.queue_table)
        self._save_checkpoint(force=True)
        found = Cut(end, sum(size for _, _, size in behind), why, kept, rewound=end < known)
        _log.warning("%s: %s", self.folder, found)
        return found

    def _rewind(self, end: int) -> None:
        """Let queues and index know the log up to `end` only."""
        self.index.build()
        store_ms = self._entered[2]
        # First: a crash from here on replays what is not cut yet.
        self._checkpoint.save(min(end, self._checkpoint.safe_offset), 0, store_ms)
        if end == self.log.start:
            for topic in list(self.queue_table.by_topic):
                self.queue_table.delete_topic(topic)
            self._dirty.clear()
        self.queue_table.cut_at(end)
        self.index.truncate(end)
        self._dirty.update(self.queue_table)
        last = [each[0] for queue in self.queue_table if (each := queue.last_entry())]
        self._entered = (end, max(last, default=0), store_ms)

    def read_raw(self, log_offset: int, size: int) -> memoryview:
        """Up to `size` bytes of the log for a replica, as far as the segment and the log go.

        They may have to come from the disk: ask `is_warm`, or have a worker call `read_cold`.
        """
        if log_offset == self.log.end:
            return memoryview(b"")
        segment = self.log.segment_at(log_offset)
        end = min(log_offset + size, segment.start + segment.size, int(self.log.end))
        if end < log_offset:
            raise OffsetOutOfRangeError(
                f"log offset {log_offset} is behind {self.log.end}, where the log ends"
            )
        return segment.view[log_offset - segment.start : end - segment.start]

    def _leave_gate(self) -> None:
        """Before the store is closed: no queue keeps room for what nobody may see."""
        if self._gate is not None:
            self._gate.give_up(StoreClosedError("the store was closed before it was confirmed"))
            self._gate.forget_held()
            self.drop_partial()

    # -- flushing ------------------------------------------------------------------------------

    @property
    def flush_seconds(self) -> Histogram:
        """How long flushes took."""
        return self._flusher.seconds

    def when_flushed(self, log_offset: int, callback: OnFlushed) -> None:
        """Call back, in the flush thread, once everything below `log_offset` is on disk."""
        self._flusher.when_flushed(log_offset, callback)

    def wait_flushed(self, log_offset: int, timeout_s: float = 5.0) -> bool:
        """Block until everything below `log_offset` is on disk; False after the time-out."""
        done = threading.Event()
        errors: list[StoreError] = []

        def on_flushed(error: StoreError | None) -> None:
            if error is not None:
                errors.append(error)
            done.set()

        self.when_flushed(log_offset, on_flushed)
        in_time = done.wait(timeout_s)
        if errors:
            raise errors[0]
        return in_time

    def barrier(self, *, seen: bool = False) -> Callable[[], None]:
        """For a file that tells what the log says now: to be called before the file counts.

        The call, in a worker, returns when the log is confirmed and on disk up to where it ends
        now. Without it, a loss of power or a cut could leave the file, and take from the log what
        it is about. With `seen`, the file is made of what readers see: that is confirmed already.
        """
        log_end = int(self.log_end) if self._gate is None else self._gate.end
        if seen:
            log_end = self.confirmed
        confirmed: Future[None] = Future()
        self.when_confirmed(log_end, partial(_settle, confirmed))

        def wait() -> None:
            try:
                confirmed.result(_BARRIER_SECONDS)
            except TimeoutError:
                raise StoreError(f"unconfirmed for {_BARRIER_SECONDS:.0f} s") from None
            if not self.wait_flushed(log_end, _BARRIER_SECONDS):
                raise StoreError(f"the disk did not take the log in {_BARRIER_SECONDS:.0f} s")

        return wait

    def flush(self) -> None:
        """Return when log, queues and index are on disk, and the checkpoint says so."""
        self._save_checkpoint(force=True)

    def _save_checkpoint(self, force: bool = False) -> None:
        try:
            self._flush_and_save(force)
        except FlushFailedError as error:
            # Also if it is the queues that failed: the disk is not to be trusted any more.
            self.log.flush_failure = error
            self._refuse_from_now(error)
            raise

    def _flush_and_save(self, force: bool) -> None:
        with self._checkpoint_lock:
            log_end, last_record, store_ms = self._entered
            if log_end == self._checkpoint.safe_offset and not force:
                return
            self.index.build()
            self.log.flush()
            self.index.flush()
            self._flush_queues()
            self._checkpoint.save(
                log_end,
                last_record,
                store_ms,
                self.index.full_until_ms,
                # What comes from another's log has checksums if that one makes them.
                self.config.record_crc and self._gate is None,
            )

    def _flush_queues(self) -> None:
        """Flush the queues, and the names of all new files."""
        # Clean before the flush: an entry that comes during it makes the queue dirty again.
        dirty: list[ConsumeQueue] = []
        folders: list[str] = []
        with contextlib.suppress(KeyError):
            while True:
                queue = self._dirty.pop()
                queue.dirty = False
                dirty.append(queue)
        try:
            for queue in dirty:
                queue.settle()
            self.queue_table.settle()
            with contextlib.suppress(KeyError):
                while True:
                    folders.append(self._unsynced.pop())
            if len(dirty) + len(folders) > _FILES_SYNCED_ONE_BY_ONE_MAX:
                sync_filesystem(self.folder)
            else:
                for queue in dirty:
                    queue.flush()
                for folder in folders:
                    if os.path.isdir(folder):
                        sync_folder(Path(folder))
        except BaseException:
            for queue in dirty:
                queue.dirty = True
            self._dirty.update(dirty)
            self._unsynced.update(folders)
            raise

    # -- state ---------------------------------------------------------------------------------

    def reconfigure(self, config: StoreConfig) -> None:
        """Go on with other settings; those that shape files only count when a store is opened."""
        self.retention.reconfigure(config)
        self.config = config

    def retain(self, topic_retention_ms: Mapping[str, int] | None = None) -> RetentionRound:
        """One round of retention; see `Retention.run`."""
        return self.retention.run(topic_retention_ms or {})

    def leave_to_parent(self) -> None:
        """This process was forked from the one that has the store: it may read, and no more."""
        if not isinstance(self._refusal, StoreClosedError):
            self._refusal = StoreClosedError(
                f"the store in {self.folder} is open in the process that this one was forked from: "
                "open it here, or write there"
            )
            self._lock.leave()

    def close(self) -> None:
        """Flush, and leave the store as one that was stopped cleanly."""
        if isinstance(self._refusal, StoreClosedError):
            return
        failed = self._refusal not in (None, self._hindrance) and not self.retention.owns(
            self._refusal
        )
        try:
            self._leave_gate()
        except StoreError:
            failed = True  # The next opening has to look at the queues.
        if self._late and not failed:
            with contextlib.suppress(StoreError):
                self._refuse()
            failed = bool(self._late)
        self._refusal = StoreClosedError(f"the store in {self.folder} is closed")
        try:
            self._flusher.stop()
            if not failed:
                self._save_checkpoint(force=True)
                self._abort.clear()
        finally:
            self.queue_table.close()
            self._lock.release()


_open_stores: WeakSet[MessageStore] = WeakSet()


def _leave_all_to_parent() -> None:
    for store in list(_open_stores):
        store.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


def _settle(done: "Future[None]", error: StoreError | None) -> None:
    """Let a wait end, or fail."""
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _queues(folder: Path, config: StoreConfig, unsynced: set[str]) -> Queues:
    entries = config.queue_file_entries
    queues = Queues(folder / QUEUES_FOLDER, entries, unsynced=unsynced)
    if queues.files is not None:
        queues.files.clear()
    return queues
