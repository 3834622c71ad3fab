"""Permission to acknowledge: is what was written safe, as far as it was promised?

With asynchronous flush that is so at once. With synchronous flush it is so when the disk has
confirmed every byte up to the message's end; the store's flush thread tells, one group of ticks at
a time, and the answer is handed over to the core's thread by `post`.

Invariant: each callback is called exactly once: with None, with the flush's error, or with
`FlushTimeoutError` when the disk has not answered in time (what it says after that is ignored).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from onelog.clock import Clock
from onelog.core.durable.deadlines import Schedule
from onelog.errors import FlushTimeoutError, OnelogError, StoreError
from onelog.message import LogOffset
from onelog.store.message_store import MessageStore

WhenSafe = Callable[[OnelogError | None], None]
Post = Callable[[Callable[[], None]], None]
"""Calls a function in the thread of the core, soon; may be called from any thread."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """One callback on its way."""

    _durability: "Durability"
    deadline_ms: int
    when_safe: WhenSafe | None

    def flushed(self, error: StoreError | None) -> None:
        """Called by the flush thread."""
        self._durability.post(lambda: self.settle(error))

    def settle(self, error: OnelogError | None) -> None:
        """Call back, unless that has happened."""
        when_safe, self.when_safe = self.when_safe, None
        if when_safe is not None:
            when_safe(error)


@dataclass(eq=False)
class Durability:
    """Who waits for the disk."""

    _store: MessageStore
    _clock: Clock
    _schedule: Schedule
    post: Post
    _: KW_ONLY
    immediate: bool
    """Whether everything may be acknowledged as soon as it is written."""
    timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        self._tickets: deque[_Ticket] = deque()
        self._armed = False

    def when_safe(self, log_offset: int, callback: WhenSafe) -> None:
        """Call back once everything below `log_offset` is as safe as promised."""
        if self.immediate:
            callback(None)
            return
        ticket = _Ticket(self, self._clock.now_ms() + self.timeout_ms, callback)
        self._drop_settled()
        self._tickets.append(ticket)
        if not self._armed:
            self._arm()
        self._store.when_flushed(LogOffset(log_offset), ticket.flushed)

    def when_on_disk(self, callback: WhenSafe) -> None:
        """Call back, in the flush thread, once everything written so far is on disk.

        Whatever is promised: for what may be deleted only then.
        """
        self._store.when_flushed(self._store.log_end, callback)

    def _drop_settled(self) -> None:
        tickets = self._tickets
        while tickets and tickets[0].when_safe is None:
            tickets.popleft()

    def _arm(self) -> None:
        self._armed = True
        wait_ms = self._tickets[0].deadline_ms - self._clock.now_ms()
        self._schedule(max(1, wait_ms), self._time_passed)

    def _time_passed(self) -> None:
        """Give up on what is overdue. Tickets are in the order of their deadlines."""
        self._armed = False
        now = self._clock.now_ms()
        tickets = self._tickets
        while tickets and (tickets[0].when_safe is None or tickets[0].deadline_ms <= now):
            ticket = tickets.popleft()
            ticket.settle(
                FlushTimeoutError(f"stored, but not confirmed by the disk in {self.timeout_ms} ms")
            )
        if tickets:
            self._arm()
