"""Records that may be on disk only, for those who read them in the loop's thread.

What waits for its time (delays, timers, leases, open transactions) was written long ago, and may
have left the page cache. Whoever is about to read such records asks here first: if some of them
would have to be waited for, a worker reads them, and then he is called again.

Invariant: whoever is told to wait is called exactly once, and finds ready what he asked for.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from onelog.core.cursors.unpacking import Opened, unpacking_one
from onelog.core.durable.durability import Post
from onelog.errors import OnelogError
from onelog.jobs import Job
from onelog.store.message_store import MessageStore

if TYPE_CHECKING:
    from onelog.core.cursors.reading import QueueReader

_Found = TypeVar("_Found")


class ColdReads:
    """Has workers read what is not in memory."""

    def __init__(
        self, store: MessageStore, offload: Callable[[Callable[[], None]], None], post: Post
    ) -> None:
        self._store = store
        self._offload = offload
        self._post = post
        self._read: set[int] = set()
        """What a worker has just read, for somebody who has not asked again yet."""
        self._line: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        """What takes memory, and is done one after the other."""
        self._job = Job("reading ahead")

    def is_ready(self, log_offsets: Iterable[int], again: Callable[[], None]) -> bool:
        """Whether records can be read without waiting; if not, `again` is called when they can."""
        store, read = self._store, self._read
        cold = []
        for at in log_offsets:
            if at in read:
                read.discard(at)
            elif not store.is_record_warm(at):
                cold.append(at)
        if not cold:
            return True

        def then(_: None) -> None:
            read.update(cold)
            again()
            read.difference_update(cold)

        return self._run(lambda: self._read_all(cold), then)

    def prepare(
        self, reader: "QueueReader", ranges: Sequence[tuple[int, int]], then: Callable[[], None]
    ) -> None:
        """Have a worker see to what a read found cold, and go on in the loop.

        What is to be unpacked takes memory: that is done for one after the other.
        """
        unpacking = reader.unpacking
        if not unpacking.wanted(ranges):
            self.find(lambda: reader.warm(ranges), lambda _: then())
            return

        def work() -> tuple[list[int], Opened]:
            reader.warm(ranges)
            wanted = unpacking.wanted(ranges)  # Somebody before may have had it done.
            return wanted, unpacking.unpack(self._store, wanted)

        def go_on(found: tuple[list[int], Opened] | None) -> None:
            unpacking.take(*found or (unpacking.wanted(ranges), ()))
            then()

        self.in_line(work, go_on)

    def in_line(self, find: Callable[[], _Found], then: Callable[[_Found | None], None]) -> None:
        """`find` what takes memory meanwhile: for one after the other, whoever asks.

        `then` gets what was found, before the next has its turn; None if that failed, and was said.
        """
        self._line.append((find, then))
        if len(self._line) == 1:
            self._next_in_line()

    def _next_in_line(self) -> None:
        find, then = self._line[0]
        found: list[Any] = []

        def end(_: None) -> None:
            try:
                then(found.pop() if found else None)
            finally:
                self._line.popleft()
                if self._line:
                    self._next_in_line()

        def look() -> None:
            with unpacking_one:
                found.append(find())

        if self._run(look, end):
            end(None)

    def find(self, find: Callable[[], _Found], then: Callable[[_Found], None]) -> None:
        """Have a worker find something out, and go on with it in the loop."""
        found: list[_Found] = []

        def go_on(_: None) -> None:
            if found:  # Otherwise the search failed, and that was said.
                then(found[0])

        if self._run(lambda: found.append(find()), go_on):
            go_on(None)

    def _run(self, work: Callable[[], None], then: Callable[[None], None]) -> bool:
        """Run something in a worker, `then` something in the loop; True, and nothing of that, if
        there was no worker and it is done already."""
        mine, is_done = threading.get_ident(), []

        def end() -> None:
            with self._job:
                then(None)

        def run() -> None:
            with self._job:
                work()
            if threading.get_ident() == mine:
                is_done.append(True)
            else:
                self._post(end)

        self._offload(run)
        return bool(is_done)

    def _read_all(self, log_offsets: Iterable[int]) -> None:
        for at in log_offsets:
            try:
                self._store.message_at(at)
            except OnelogError:
                continue  # Whoever asked reads it again, and says what is wrong.
