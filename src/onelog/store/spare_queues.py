"""Folders of queues, made before they are needed, so that whoever writes does not wait for them.

Making a folder and a file in it takes the file system ten times as long as moving a folder that is
there, and longer still while others flush. So once a store makes more than a few queues, a thread
keeps some in stock, each with an empty first file:

    onelog-spare/17/00000000000000000000   is moved to   consumequeue/<topic>/<queue id>/000...000

The thread works only while no queues are being made: two threads that make files at once get in
each other's way, and the writer would wait longer than without help. The stock is not part of the
store; what a crash leaves of it is deleted. Second and later files are not made ahead: RocketMQ
takes an empty last file for one with an entry.

Queues of topics that are deleted go the other way: their folder is moved here, which takes no time,
and a thread deletes it.

Invariant: a queue that is taken from here looks as if it had been made in its place.
"""

import os
import shutil
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from onelog.jobs import Job
from onelog.store.segment import file_name, opened

FOLDER = "onelog-spare"
STOCK_MIN = 16
STOCK_MAX = 256
MISSES_MIN = 8
"""Queues that are made in their place before there is a stock: most stores have a few for ever."""
QUIET_SECONDS = 1.0
"""How long no queue must have been made before the stock is filled."""
ALLOCATED_BYTES = 4 * 1024


class SpareQueues:
    """The stock. `take` and `close` belong to one thread, the filling to another."""

    def __init__(
        self, folder: Path, file_bytes: int, *, quiet_seconds: float | None = None
    ) -> None:
        self._folder = folder
        self._file_bytes = file_bytes
        self._quiet_seconds = QUIET_SECONDS if quiet_seconds is None else quiet_seconds
        self._ready: deque[Path] = deque()
        self._asked = 0
        self._misses = 0
        self._made = 0
        self._wanted = STOCK_MIN
        self._filler: threading.Thread | None = None
        self._discarded = 0
        self._cleaner: ThreadPoolExecutor | None = None
        self._filling = Job("making queues ahead")
        self._closing = threading.Event()
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)

    def take(self, target: Path) -> bool:
        """Put a queue's folder, with an empty first file, in its place; False if there is none."""
        self._asked += 1
        if not self._ready:
            self._misses += 1
            if self._made:
                self._wanted = STOCK_MAX
            if self._misses >= MISSES_MIN:
                self._fill()
            return False
        spare = self._ready.popleft()
        try:
            os.rename(spare, target)
        except OSError:
            # Whoever asked makes it, and says what is wrong if that fails, too.
            self._ready.append(spare)
            return False
        if len(self._ready) < self._wanted // 2:
            self._fill()
        return True

    def discard(self, folder: Path) -> bool:
        """Move a folder of queues out of the way, for another thread to delete; False if not."""
        self._discarded += 1
        target = self._folder / f"deleted-{self._discarded}"
        try:
            self._folder.mkdir(exist_ok=True)
            os.rename(folder, target)
        except OSError:
            return False
        if self._cleaner is None:
            self._cleaner = ThreadPoolExecutor(1, "onelog-deleting")
        self._cleaner.submit(shutil.rmtree, target, True)
        return True

    def _fill(self) -> None:
        if self._filler is None or not self._filler.is_alive():
            self._filler = threading.Thread(
                target=self._fill_up, name="onelog-spare-queues", daemon=True
            )
            self._filler.start()

    def _fill_up(self) -> None:
        """The other thread's part."""
        with self._filling:  # If it fails, the next one who takes a queue has it tried again.
            self._folder.mkdir(exist_ok=True)
            while len(self._ready) < self._wanted:
                asked = self._asked
                if self._closing.wait(self._quiet_seconds):
                    return
                while asked == self._asked and len(self._ready) < self._wanted:
                    self._ready.append(self._make())

    def _make(self) -> Path:
        self._made += 1
        folder = self._folder / str(self._made)
        folder.mkdir()
        with opened(folder / file_name(0), os.O_RDWR | os.O_CREAT) as fd:
            os.ftruncate(fd, self._file_bytes)
            os.posix_fallocate(fd, 0, min(ALLOCATED_BYTES, self._file_bytes))
        return folder

    def close(self) -> None:
        """Make no more, and delete what was not needed."""
        self._closing.set()
        if self._cleaner is not None:
            self._cleaner.shutdown()
        if self._filler is not None:
            self._filler.join()
        if self._filler is not None or self._cleaner is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
