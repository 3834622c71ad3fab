"""Files of queues are made and deleted by a thread: whoever writes does not wait for the disk.

A file system that is busy can take seconds to make a folder or a file, or to move one. Whoever
needs a new queue waits for that a few milliseconds, as most disks take. After that the queue begins
in memory, and its first file follows:

    reserve, put        into memory
    the thread          makes folder and file, copies the entries, and changes the maps
    reserve, put        into the file

A topic that is deleted goes the same way: its folder is moved to `onelog-spare/deleted-<number>`,
and another thread deletes it there. What a crash leaves of that is deleted by the next start.

Invariants: work is done in the order in which it was asked for, so that a topic that is made again
gets a folder of its own. A checkpoint waits for all of it (`settle`): what it calls safe is in
files. What could not be deleted is tried again before anything else is done.
"""

import os
import shutil
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

from onelog.jobs import Job
from onelog.private_files import make_folder

if TYPE_CHECKING:
    from onelog.store.consumequeue import ConsumeQueue

FOLDER = "onelog-spare"
IN_THREAD = True
"""Whether there is a thread; without it all is done at once."""
WAIT_SECONDS = 0.005
"""How long one waits for the thread, if it has nothing else to do."""
YOUNG_BYTES = 1 << 20
"""How much of a queue memory takes, at most, while its file is being made."""


class QueueFiles:
    """The thread, and what it has to do."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for what is being deleted."""
        self._folder = folder
        self.lock = threading.Lock()
        """Held while a queue changes from memory to its file, and by who writes to it meanwhile."""
        self.in_thread = IN_THREAD
        self._worker = ThreadPoolExecutor(1, "onelog-queue-files")
        self._cleaner = ThreadPoolExecutor(1, "onelog-deleting")
        self._last: Future[None] | None = None
        self._failed: deque[Callable[[], object]] = deque()
        self._discarded = 0
        self._job = Job("making and deleting the files of queues")

    def run(self, work: Callable[[], object], *, again: bool = False) -> "Future[None]":
        """Do something after all that was asked for before; `again` if it must not fail.

        Most of the time it is done on return.
        """
        if self.in_thread:
            is_busy = self._last is not None and not self._last.done()
            self._last = self._worker.submit(self._do, work, again)
            if not is_busy:
                wait((self._last,), WAIT_SECONDS)
            return self._last
        done: Future[None] = Future()
        work()
        done.set_result(None)
        return done

    def _do(self, work: Callable[[], object], again: bool) -> None:
        with self._job:
            if again:
                self._failed.append(work)
            while self._failed:
                self._failed[0]()
                self._failed.popleft()
            if not again:
                work()
        if self._job.error is not None:
            raise self._job.error

    def settle(self) -> None:
        """Return when all that was asked for is done; `StoreError` if it could not be."""
        if self._last is not None and (not self._last.done() or self._failed):
            self.run(lambda: None).result()

    def discard(self, folder: Path) -> None:
        """Move a folder of queues out of the way, for another thread to delete."""
        self._discarded += 1
        target = self._folder / f"deleted-{self._discarded}"
        try:
            make_folder(self._folder)
            os.rename(folder, target)
        except FileNotFoundError:
            return
        except OSError:
            shutil.rmtree(folder)
            return
        if self.in_thread:
            self._cleaner.submit(shutil.rmtree, target, True)
        else:
            shutil.rmtree(target, True)

    def clear(self) -> None:
        """Delete what was to be deleted, and was not before the end of an earlier process."""
        if self._folder.exists():
            shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Finish what was asked for."""
        self._worker.shutdown()
        self._cleaner.shutdown()
        self.clear()


class MapBudget:
    """Bounds how many queue files are mapped at once: a map costs a file descriptor."""

    def __init__(self, maps_max: int) -> None:
        self._maps_max = maps_max
        self._mapped: dict[tuple[ConsumeQueue, int], None] = {}
        self._lock = threading.Lock()

    def add(self, queue: "ConsumeQueue", file: int) -> None:
        """Count a new map in; the one mapped first goes if there are too many."""
        with self._lock:
            self._mapped[queue, file] = None
            oldest = next(iter(self._mapped)) if len(self._mapped) > self._maps_max else None
        if oldest is not None:
            oldest_queue, oldest_file = oldest
            oldest_queue.unmap(oldest_file)

    def remove(self, queue: "ConsumeQueue", file: int) -> None:
        with self._lock:
            self._mapped.pop((queue, file), None)
