"""The store: one log, the queues and the key index over it, kept in step and on disk.

    open:     lock -> recover -> mark as running
    append:   see `appender`; what waits to be confirmed, and the log of another: `tail`
    flush:    see `flush`; what goes when it is old, or the disk full: `retention`
    close:    flush everything -> checkpoint -> remove the mark -> unlock

Invariant: a message has its queue entries as soon as `append` returns (with a gate: as soon as it
is confirmed), and is on disk as soon as `when_flushed` says so. One thread appends; the flush
thread only reads what that one wrote.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakSet

from onelog.clock import Clock, SystemClock
from onelog.config import StoreConfig
from onelog.errors import StoreClosedError, StoreError
from onelog.message import QueueOffset
from onelog.metrics import Histogram
from onelog.private_files import close_to_others
from onelog.store.appender import Appender
from onelog.store.checkpoint import AbortMark, Checkpoint, StoreLock, write_version
from onelog.store.commitlog import CommitLog
from onelog.store.damage import Damage, remember_damage
from onelog.store.entering import Entered, Entering
from onelog.store.flush import Checkpoints, Flusher, OnFlushed
from onelog.store.folder import check_is_store
from onelog.store.keyindex import KeyIndex
from onelog.store.queue_ends import QueueEnds
from onelog.store.queue_folders import QUEUES_FOLDER
from onelog.store.queues import Queues
from onelog.store.reader import StoreReader
from onelog.store.recovery import RecoveryReport, recover
from onelog.store.refusals import Refusals
from onelog.store.retention import Retention, RetentionRound
from onelog.store.segment import disk_error, make_folders
from onelog.store.tail import Tail

_log = logging.getLogger(__name__)
_BARRIER_SECONDS = 60.0


class MessageStore(StoreReader):
    """A store open for writing: it can be read as any other, and has parts for the rest."""

    def __init__(
        self, folder: Path, config: StoreConfig, clock: Clock, lock: StoreLock, gated: bool
    ) -> None:
        self.config = config
        self._lock = lock
        _open_stores.add(self)
        self._abort = AbortMark(folder / "abort")
        checkpoint = Checkpoint(folder / "checkpoint")
        crashed = self._abort.present()
        unsynced: set[str] = set()
        log = CommitLog(folder / "commitlog", config.segment_bytes, record_crc=config.record_crc)
        queues = Queues(folder / QUEUES_FOLDER, config.queue_file_entries, unsynced=unsynced)
        if queues.files is not None:
            queues.files.clear()
        index = KeyIndex(
            folder / "index", config.index_slots, config.index_entries, unsynced=unsynced
        )
        super().__init__(folder, log, queues, index)
        if log.segments and (crashed or not checkpoint.ours):
            # The process that made them may have died before their names were durable.
            unsynced.update((str(log.folder), str(folder)))
        self.refusals = Refusals(folder)
        self.entering = Entering(queues, index, self.refusals)
        self.mending.dirty = self.entering.dirty
        self.appender = Appender(log, self.entering, self.refusals, clock, config)
        self.append = self.append_runs = self.appender.append
        self.append_own, self.head_room = self.appender.append_own, self.refusals.head_room
        self.delete_topic = self.appender.delete_topic
        self.tags_codes = self.mending.tags_codes = self.appender.tags_codes
        write_version(folder / "onelog.json")
        self._abort.set()
        ends = QueueEnds(folder)
        self.recovery: RecoveryReport = recover(
            log, queues, index, checkpoint, ends, self.tags_codes, crashed=crashed, gated=gated
        )
        self.remember_damage(self.recovery.damage)
        self.opened_end = int(log.end)
        self.appender.last_ms = self.recovery.last_store_ms
        if crashed or self.recovery.records_replayed or ends.is_new:
            self.entering.mark_all()
        self.entering.entered = Entered(
            self.recovery.entered_end, self.recovery.last_record, self.recovery.last_store_ms
        )
        self.tail = Tail(self, gated=gated)
        self.checkpoints = Checkpoints(
            folder,
            checkpoint,
            log,
            self.entering,
            ends,
            unsynced,
            self.refusals.refuse_for_good,
            # What comes from another's log has checksums if that one makes them.
            lambda: self.config.record_crc and not self.gated,
        )
        self.flush()
        self.retention = Retention(self, config, clock)
        log.on_growth = self.retention.grown
        self.flusher = Flusher(log, self.checkpoints, config, self.refusals.refuse_for_good)
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

    # -- writing -------------------------------------------------------------------------------

    @property
    def refusal(self) -> StoreError | None:
        """Why nothing can be written now, as far as is known: nothing was since it was tried."""
        return self.refusals.known(int(self.log.end))

    def refuse_writes(self, reason: StoreError | None) -> None:
        """Raise `reason` on every append from now on; None accepts writes again.

        A disk that failed or a store that was closed stays refused.
        """
        self.refusals.refuse(reason)

    def next_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """The offset that the next message gets, also if some before it wait."""
        gate = self.appender.gate
        if gate is not None and topic in gate.successors:
            return QueueOffset(gate.successor(topic, queue_id).reserved)
        queue = self.queue_table.find(topic, queue_id)
        return QueueOffset(queue.reserved if queue else 0)

    @property
    def last_append_ms(self) -> int:
        """When what was appended last was stored."""
        return self.appender.last_ms

    # -- confirming ----------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        """Queues and index know all records below this log offset."""
        gate = self.appender.gate
        return int(self.log.end) if gate is None else gate.confirmed

    @property
    def gated(self) -> bool:
        """Whether what is appended waits to be confirmed; see `tail`."""
        return self.appender.gate is not None

    def when_confirmed(self, log_offset: int, callback: OnFlushed) -> None:
        """Call back, in the thread that confirms, once everything below `log_offset` is confirmed.

        With an error if the log is cut, or becomes another's, before that.
        """
        gate = self.appender.gate
        if gate is None:
            callback(None)
        else:
            gate.when_confirmed(log_offset, callback)

    # -- flushing ------------------------------------------------------------------------------

    @property
    def flush_seconds(self) -> Histogram:
        """How long flushes took."""
        return self.flusher.seconds

    def when_flushed(self, log_offset: int, callback: OnFlushed) -> None:
        """Call back, in the flush thread, once everything below `log_offset` is on disk."""
        self.flusher.when_flushed(log_offset, callback)

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
        gate = self.appender.gate
        log_end = int(self.log_end) if gate is None else gate.end
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
        self.checkpoints.save(force=True)

    # -- state ---------------------------------------------------------------------------------

    def remember_damage(self, found: Iterable[Damage]) -> None:
        """Ranges of the log are no use; or some of those that were known are gone."""
        log = self.log
        self.damage = remember_damage(self.folder, found, int(log.start), int(log.end))
        self.mending.damage = self.damage

    def reconfigure(self, config: StoreConfig) -> None:
        """Go on with other settings; those that shape files only count when a store is opened."""
        self.retention.reconfigure(config)
        self.config = config

    def retain(self, topic_retention_ms: Mapping[str, int] | None = None) -> RetentionRound:
        """One round of retention; see `Retention.run`."""
        return self.retention.run(topic_retention_ms or {})

    def leave_to_parent(self) -> None:
        """This process was forked from the one that has the store: it may read, and no more."""
        if not self.refusals.is_closed:
            self.refusals.now = StoreClosedError(
                f"the store in {self.folder} is open in the process that this one was forked from: "
                "open it here, or write there"
            )
            self._lock.leave()

    def close(self) -> None:
        """Flush, and leave the store as one that was stopped cleanly."""
        if self.refusals.is_closed:
            return
        failed = self.refusals.is_final
        try:
            self.tail.close()
        except StoreError:
            failed = True  # The next opening has to look at the queues.
        if self.entering.is_late and not failed:
            with contextlib.suppress(StoreError):
                self.entering.retry()
            failed = self.entering.is_late
        self.refusals.now = StoreClosedError(f"the store in {self.folder} is closed")
        try:
            self.flusher.stop()
            if not failed:
                self.flush()
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
