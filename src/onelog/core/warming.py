"""Records that may be on disk only, for those who read them in the loop's thread.

What waits for its time (delays, timers, leases, open transactions) was written long ago, and may
have left the page cache. Whoever is about to read such records asks here first: if some of them
would have to be waited for, a worker reads them, and then he is called again.

Invariant: whoever is told to wait is called exactly once, and finds ready what he asked for.
"""

from collections.abc import Callable, Iterable

from onelog.core.durability import Post
from onelog.errors import OnelogError
from onelog.jobs import Job
from onelog.store.message_store import MessageStore


class Warming:
    """Has workers read what is not in memory."""

    def __init__(
        self, store: MessageStore, offload: Callable[[Callable[[], None]], None], post: Post
    ) -> None:
        self._store = store
        self._offload = offload
        self._post = post
        self._read: set[int] = set()
        """What a worker has just read, for somebody who has not asked again yet."""

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
        job = Job("reading ahead")

        def then() -> None:
            read.update(cold)
            with job:
                again()
            read.difference_update(cold)

        def work() -> None:
            try:
                for at in cold:
                    self._read_one(at)
            finally:
                self._post(then)

        self._offload(work)
        return False

    def _read_one(self, at: int) -> None:
        try:
            self._store.message_at(at)
        except OnelogError:
            pass  # Whoever asked reads it again, and says what is wrong.
