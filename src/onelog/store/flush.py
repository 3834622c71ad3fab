"""When bytes reach the disk: one thread that flushes for everybody.

Asynchronous flush: every 500 ms if 4 pages are dirty, and at the latest after 10 s. Synchronous
flush is a group commit: whoever needs its bytes on disk says up to which offset; the thread flushes
once for all who ask meanwhile, then tells each of them. Every few seconds, or 128 MiB, it
also flushes queues and index and moves the checkpoint on, which bounds the work of a recovery.

A flush that fails is final, whatever the reason: the kernel may have dropped the pages, so a second
flush that succeeds proves nothing. Everyone who waits gets the error, and the store takes no more
writes. What fails before the flush itself, because there is no file descriptor or no room for the
index, is tried again; those who wait go on waiting.
"""

import contextlib
import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onelog.config import StoreConfig
from onelog.errors import FlushFailedError, StoreClosedError, StoreError, StoreFailedError
from onelog.metrics import Histogram
from onelog.store.checkpoint import Checkpoint
from onelog.store.commitlog import CommitLog
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.entering import Entering
from onelog.store.queue_ends import QueueEnds
from onelog.store.segment import disk_error, flush_error, sync_folder

PAGE_BYTES = 4096
CHECKPOINT_BYTES_MAX = 128 << 20
"""How much may be written between two checkpoints, however fast: a recovery has to replay it."""

_FILES_SYNCED_ONE_BY_ONE_MAX = 64
_RETRY_S = 0.1
_CHECKPOINT_RETRY_S = 1.0

log = logging.getLogger(__name__)

OnFlushed = Callable[[StoreError | None], None]


@dataclass(eq=False)
class Checkpoints:
    """Moves the checkpoint of one store on: first log, queues and index are on disk."""

    folder: Path
    checkpoint: Checkpoint
    _log: CommitLog
    _entering: Entering
    _ends: QueueEnds
    unsynced: set[str]
    """Folders with names that were made or removed, and are not known to be durable."""
    _on_failure: Callable[[StoreError], None]
    record_crc: Callable[[], bool]
    """Whether what is written now has checksums of its own."""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()

    @property
    def safe_offset(self) -> int:
        """Below it, all is on disk."""
        return self.checkpoint.safe_offset

    def save(self, *, force: bool = False) -> None:
        """Have the checkpoint say how far queues and index know the log."""
        try:
            with self.lock:
                self._save(force)
        except FlushFailedError as error:
            # Also if it is the queues that failed: the disk is not to be trusted any more.
            self._log.flush_failure = error
            self._on_failure(error)
            raise

    def _save(self, force: bool) -> None:
        entered, index = self._entering.entered, self._entering.index
        if entered.end == self.safe_offset and not force:
            return
        index.build()
        self._log.flush()
        index.flush()
        self._flush_queues()
        self.checkpoint.save(*entered, index.full_until_ms, self.record_crc())

    def step_back(self, log_offset: int, store_ms: int) -> None:
        """What lies behind an offset is to be replayed by whoever comes after a crash."""
        self.checkpoint.save(min(log_offset, self.safe_offset), 0, store_ms)

    def _flush_queues(self) -> None:
        """Flush the queues, and the names of all new files."""
        # Clean before the flush: an entry that comes during it makes the queue dirty again.
        dirty: list[ConsumeQueue] = []
        folders: list[str] = []
        with contextlib.suppress(KeyError):
            while True:
                queue = self._entering.dirty.pop()
                queue.dirty = False
                dirty.append(queue)
        try:
            for queue in dirty:
                queue.settle()
            self._entering.queues.settle()
            with contextlib.suppress(KeyError):
                while True:
                    folders.append(self.unsynced.pop())
            if len(dirty) + len(folders) > _FILES_SYNCED_ONE_BY_ONE_MAX:
                sync_filesystem(self.folder)
            else:
                for queue in dirty:
                    queue.flush()
                for folder in folders:
                    if os.path.isdir(folder):
                        sync_folder(Path(folder))
            self._ends.add(self._entering.queues, dirty)
        except BaseException:
            for queue in dirty:
                self._entering.mark(queue)
            self.unsynced.update(folders)
            raise


@dataclass(eq=False)
class Flusher:
    """The flush thread of one store."""

    _log: CommitLog
    _checkpoints: Checkpoints
    _config: StoreConfig
    _on_failure: Callable[[StoreError], None]

    def __post_init__(self) -> None:
        self._wake = threading.Condition()
        self._waiting: list[tuple[int, OnFlushed]] = []
        self._stopping = False
        self._failure: StoreError | None = None
        self._said = ""
        self._last_flush = self._last_checkpoint = time.monotonic()
        self._checkpoint_from = 0.0
        self.seconds = Histogram()
        """How long flushes took."""
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="onelog-flush", daemon=True)
        self._thread.start()

    def when_flushed(self, log_offset: int, callback: OnFlushed) -> None:
        """Call back, in the flush thread, once everything below `log_offset` is on disk.

        If it is there already, or never will be, the call comes at once.
        """
        with self._wake:
            error = self._failure
            if error is None and self._stopping:
                error = StoreClosedError("the store was closed before the flush")
            if error is None and log_offset > self._log.flushed:
                self._waiting.append((log_offset, callback))
                self._wake.notify()
                return
        callback(error)

    def give_up(self, log_offset: int, error: StoreError) -> None:
        """The log was cut: what is to be on disk behind an offset will not be this log."""
        with self._wake:
            lost = [call for offset, call in self._waiting if offset > log_offset]
            self._waiting = [each for each in self._waiting if each[0] <= log_offset]
        for call in lost:
            call(error)

    def stop(self) -> None:
        """End the thread; who still waits is served first."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping and self._failure is None:
            with self._wake:
                if not self._waiting and not self._stopping:
                    self._wake.wait(self._config.flush_interval_ms / 1000)
            if not self.round(time.monotonic()):
                time.sleep(_RETRY_S)
        if self._failure is None:
            self.end()

    def round(self, now: float) -> bool:
        """Flush what is due or asked for; False if that is to be tried again, a little later."""
        config = self._config
        dirty = self._log.end - self._log.flushed
        due = dirty >= config.flush_pages_min * PAGE_BYTES or (
            dirty > 0 and (now - self._last_flush) * 1000 >= config.flush_thorough_ms
        )
        try:
            if self._waiting or due:
                began = time.monotonic()
                self._log.flush()
                self.seconds.observe(time.monotonic() - began)
                self._last_flush = now
                self._tell(None)
            behind = self._log.end - self._checkpoints.safe_offset
            due = (now - self._last_checkpoint) * 1000 >= config.checkpoint_interval_ms
            if (due or behind >= CHECKPOINT_BYTES_MAX) and now >= self._checkpoint_from:
                self._last_checkpoint = now
                if not self._try_checkpoint():
                    self._checkpoint_from = now + _CHECKPOINT_RETRY_S
        except FlushFailedError as error:
            self._fail(error)
        except StoreError as error:
            self._complain("no flush", error)
            return False
        except Exception as error:
            self._fail(StoreFailedError(f"the flush thread failed: {error!r}"))
            raise
        return True

    def end(self) -> None:
        """Serve who still waits, one way or the other."""
        if self._waiting:
            try:
                self._log.flush()
                self._tell(None)
            except StoreError as error:
                self._fail(error)

    def _try_checkpoint(self) -> bool:
        try:
            self._checkpoints.save()
        except FlushFailedError:
            raise
        except StoreError as error:
            # Nothing is lost by it: a recovery would begin at the checkpoint before.
            self._complain("no checkpoint", error)
            return False
        self._said = ""
        return True

    def _complain(self, what: str, error: StoreError) -> None:
        """Say once that something is tried again."""
        if str(error) != self._said:
            self._said = str(error)
            log.warning("%s, tried again: %s", what, error)

    def _tell(self, error: StoreError | None) -> None:
        """Answer those whose bytes are on disk, or everybody if there was an error."""
        flushed = self._log.flushed
        with self._wake:
            ready = [call for offset, call in self._waiting if error or offset <= flushed]
            self._waiting = [w for w in self._waiting if not error and w[0] > flushed]
        for call in ready:
            call(error)

    def _fail(self, error: StoreError) -> None:
        self._failure = error
        self._on_failure(error)
        self._tell(error)


def sync_filesystem(folder: Path) -> None:
    """Flush everything on the file system of a folder with one call.

    For thousands of small files that is far cheaper than a flush of each.
    """
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise disk_error(error, folder, "open") from error
    try:
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:
            os.sync()
        elif syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise flush_error(OSError(code, os.strerror(code)), folder)
    finally:
        os.close(fd)
