"""Permission to acknowledge: is what was written safe, as far as it was promised?

With asynchronous flush and no replicas that is so at once. With synchronous flush it is so when the
disk has confirmed every byte up to the message's end; the store's flush thread tells, one group of
ticks at a time, and the answer is handed over to the core's thread by `post`. With replicas it is
so when as many of them have those bytes as `replication.ack` says; the leader tells (`Replicas`).

Invariant: each callback is called exactly once: with None, with the flush's error, or, when what
was asked has not answered in time (what it says after that is ignored), with `FlushTimeoutError` or
`ReplicaTimeoutError`. After `refuse`, none is called with None.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from enum import IntEnum
from time import perf_counter
from typing import Protocol, cast

from onelog.core.durable.storage import Runtime
from onelog.errors import (
    FlushTimeoutError,
    NotMasterError,
    OnelogError,
    ReplicasMissingError,
    ReplicaTimeoutError,
    StoreError,
)
from onelog.message import LogOffset
from onelog.metrics import Histogram
from onelog.store.message_store import MessageStore

WhenSafe = Callable[[OnelogError | None], None]
Post = Callable[[Callable[[], None]], None]
"""Calls a function in the thread of the core, soon; may be called from any thread."""


class Acks(IntEnum):
    """When a sender is answered."""

    DURABLE = 0
    """When what was sent is as safe as configured."""
    MASTER = 1
    """When it is safe on this node, whatever replicas have."""


class Replicas(Protocol):
    """The other nodes that keep this log, as the master sees them."""

    @property
    def in_sync(self) -> int:
        """How many nodes have all that is confirmed, the master included."""
        ...

    def appended(self) -> None:
        """There is more in the log; once for all that a tick has appended."""
        ...

    def when_replicated(self, log_offset: int, callback: WhenSafe) -> None:
        """Call back, in the core's thread, once what is below is where the mode wants it."""
        ...

    def is_current(self) -> bool:
        """Whether this is certainly the master still: nobody can have written behind its back."""
        ...

    def available(self, needed: int) -> bool:
        """Whether as many nodes are in sync, and as many as the mode needs."""
        ...


@dataclass(slots=True, eq=False)
class _Ticket:
    """One callback on its way."""

    _post: Post
    deadline_ms: int
    when_safe: WhenSafe | None
    left: int
    """How many of flush and replicas have not confirmed."""
    is_flushed: bool
    seconds: Histogram
    """Where it is told how long that took."""
    began: float = field(default_factory=perf_counter)

    def flushed(self, error: StoreError | None) -> None:
        """Called by the flush thread."""
        self._post(lambda: self._on_disk(error))

    def _on_disk(self, error: StoreError | None) -> None:
        self.is_flushed = True
        self.confirmed(error)

    def confirmed(self, error: OnelogError | None) -> None:
        """One of those who were asked has confirmed, or cannot."""
        self.left -= 1
        if error is not None or self.left == 0:
            self.settle(error)

    def settle(self, error: OnelogError | None) -> None:
        """Call back, unless that has happened."""
        when_safe, self.when_safe = self.when_safe, None
        if when_safe is not None:
            self.seconds.observe(perf_counter() - self.began)
            when_safe(error)


@dataclass(eq=False)
class _TicketQueue:
    """Tickets in the order of their deadlines: those that wait equally long."""

    _runtime: Runtime
    timeout_ms: int

    def __post_init__(self) -> None:
        self._tickets: deque[_Ticket] = deque()
        self._armed = False

    def add(self, ticket: _Ticket) -> None:
        """Look after one more."""
        tickets = self._tickets
        while tickets and tickets[0].when_safe is None:
            tickets.popleft()
        tickets.append(ticket)
        if not self._armed:
            self._arm()

    def _arm(self) -> None:
        self._armed = True
        wait_ms = self._tickets[0].deadline_ms - self._runtime.clock.now_ms()
        self._runtime.schedule(max(1, wait_ms), self._time_passed)

    def _time_passed(self) -> None:
        """Give up on what is overdue."""
        self._armed = False
        now = self._runtime.clock.now_ms()
        tickets = self._tickets
        while tickets and (tickets[0].when_safe is None or tickets[0].deadline_ms <= now):
            ticket = tickets.popleft()
            kind, by = (
                (ReplicaTimeoutError, "replicas")
                if ticket.is_flushed
                else (FlushTimeoutError, "the disk")
            )
            ticket.settle(kind(f"stored, but not confirmed by {by} in {self.timeout_ms} ms"))
        if tickets:
            self._arm()

    def settle_all(self, error: OnelogError) -> None:
        """Let nobody wait any longer."""
        while self._tickets:
            self._tickets.popleft().settle(error)


@dataclass(eq=False)
class Durability:
    """Who waits for the disk, and for replicas."""

    _store: MessageStore
    _runtime: Runtime
    _: KW_ONLY
    immediate: bool
    """Whether everything may be acknowledged as soon as it is written."""
    timeout_ms: int = 5_000
    replicas: Replicas | None = None
    """Who else has the log; None if nobody."""
    replicates: bool = False
    """Whether these are asked before anything is acknowledged."""
    replicas_timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        self.seconds = Histogram()
        """How long what was written had to wait to be safe; once for all messages of a tick."""
        self._flushes = not self.immediate
        self.immediate = self.immediate and not self.replicates
        self._here = _TicketQueue(self._runtime, self.timeout_ms)
        self._everywhere = _TicketQueue(self._runtime, self.replicas_timeout_ms)
        self._refusal: OnelogError | None = None
        self.for_master: NotMasterError | None = None
        """Of a follower with a master: what those are told who want what only that one does."""

    def when_safe(
        self, callback: WhenSafe, log_offset: int | None = None, acks: Acks = Acks.DURABLE
    ) -> None:
        """Call back once all below `log_offset`, or all that is written, is as safe as asked."""
        if self.immediate:
            callback(None)
            return
        replicas = self.replicas
        end = LogOffset(self._store.log_end if log_offset is None else log_offset)
        is_here = acks or replicas is None or not self.replicates
        flushes = self._flushes
        if self._refusal is not None:
            callback(self._refusal)
        elif is_here and not flushes:
            callback(None)
        elif is_here:
            self._here.timeout_ms = self.timeout_ms
            ticket = self._ticket(self._here, callback, 1)
            self._store.when_flushed(end, ticket.flushed)
        elif not cast(Replicas, replicas).available(0):
            callback(ReplicasMissingError("stored, but too few replicas are in sync"))
        else:
            self._everywhere.timeout_ms = self.replicas_timeout_ms
            ticket = self._ticket(self._everywhere, callback, 1 + flushes)
            if flushes:
                self._store.when_flushed(end, ticket.flushed)
            cast(Replicas, replicas).when_replicated(end, ticket.confirmed)

    def _ticket(self, queue: _TicketQueue, callback: WhenSafe, left: int) -> _Ticket:
        deadline_ms = self._runtime.clock.now_ms() + queue.timeout_ms
        is_flushed = not self._flushes
        ticket = _Ticket(self._runtime.post, deadline_ms, callback, left, is_flushed, self.seconds)
        queue.add(ticket)
        return ticket

    def require_replicas(self, needed: int) -> None:
        """`ReplicasMissingError` if what is written now cannot be confirmed, or by too few."""
        replicas = self.replicas
        if needed > 1 and replicas is None:
            raise ReplicasMissingError(f"{needed} replicas are asked for; this broker has none")
        if replicas is not None and not replicas.available(needed):
            raise ReplicasMissingError(f"{replicas.in_sync} replicas are in sync, which is too few")

    def is_current(self) -> bool:
        """Whether what is known here is how it is; asked before positions are told.

        A process that was stopped for a while, or whose judge is away, cannot know: another may be
        master, and further.
        """
        return self.replicas is None or self.replicas.is_current()

    def require_current(self) -> None:
        """`NotMasterError` if positions that are known here may be old ones."""
        if not self.is_current():
            raise NotMasterError("this broker may not be the master any more: ask again who is")

    def require_served(self) -> None:
        """`NotMasterError` if a master is there who looks after groups."""
        if self.for_master is not None:
            raise self.for_master

    def when_on_disk(self, callback: WhenSafe) -> None:
        """Call back, in the flush thread, once everything written so far is confirmed and on disk.

        Whatever is promised: for what may be deleted only then.
        """
        end = self._store.log_end

        def confirmed(error: StoreError | None) -> None:
            if error is None:
                self._store.when_flushed(end, callback)
            else:
                callback(error)

        self._store.when_confirmed(end, confirmed)

    def refuse(self, error: OnelogError) -> None:
        """Acknowledge nothing from now on: those who wait, and who come, are told the reason."""
        self._refusal = error
        self.immediate = False
        self._here.settle_all(error)
        self._everywhere.settle_all(error)
