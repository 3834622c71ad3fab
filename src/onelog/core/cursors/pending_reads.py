"""Looking for messages until there are some: the one loop behind every fetch and every lease.

A look that has no answer yet says what it lacks: records that a worker has to read first, time for
its filter, or messages. It is made again when it may have that: after the worker, in its turn, or
when something arrives; and for the last time when its time is up.

Invariant: every look is answered exactly once; or never, if its owner goes before that.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from onelog.clock import Clock
from onelog.core.cursors.cold_reads import ColdReads
from onelog.core.cursors.reading import QueueReader
from onelog.core.durable.waiting import Key, OpenWaits, Wait
from onelog.core.filters.filter_time import FilterTime
from onelog.errors import OnelogError

Hold = tuple[Sequence[Key], Callable[[], bool] | None]
"""What a look waits for, and whether an arrival is worth looking again; see `OpenWaits.wait`."""


class Missing(NamedTuple):
    """Why a look has no answer: what is cold, or that filters have no time; else no messages."""

    cold: Sequence[tuple[int, int]] = ()
    later: bool = False
    size: int = 0
    """The bytes of messages that were found, and are too few."""


@dataclass(slots=True, eq=False)
class PendingRead:
    """One question for messages, of an owner who may go away, and until when it may wait.

    `find(cold_ok, last)` is the answer or a `Missing`; an answer if it is the last time, unless
    something is cold or late. `hold(missing)` says what to wait for; None if too many do. `answer`
    gets what was found, or an `OnelogError`, and whether waiting was refused.
    """

    find: Callable[[bool, bool], Any]
    hold: Callable[[Missing], Hold | None]
    answer: Callable[[Any, bool], None]
    owner: Hashable
    until_ms: int
    is_over: bool = field(init=False, default=False)
    is_refused: bool = field(init=False, default=False)


@dataclass(eq=False)
class PendingReads:
    """All looks that have no answer yet."""

    reader: QueueReader
    waiting: OpenWaits
    cold_reads: ColdReads
    filter_time: FilterTime
    clock: Clock

    def __post_init__(self) -> None:
        self._under_way: dict[Hashable, set[PendingRead]] = {}
        """Those that wait for a worker or for their turn, by owner."""

    def make(self, read: PendingRead, *, cold_ok: bool = False, last: bool = False) -> None:
        """Look, and answer, or look again when that makes sense."""
        try:
            found = read.find(cold_ok, last)
        except OnelogError as error:
            found = error.with_traceback(None)  # Which leads to `found`, and so to itself.
        if type(found) is Missing:
            self.make_later(read, found, cold_ok=cold_ok, last=last)
        else:
            read.answer(found, read.is_refused)

    def make_later(
        self, read: PendingRead, missing: Missing, *, cold_ok: bool = False, last: bool = False
    ) -> None:
        """Go on with a look that has found out what it lacks."""
        if missing.cold:
            self._under_way.setdefault(read.owner, set()).add(read)
            again = partial(self._make_again, read, cold_ok=True, last=last)
            self.cold_reads.prepare(self.reader, missing.cold, again)
        elif missing.later:
            try:
                self.filter_time.later(partial(self._make_again, read, cold_ok=cold_ok, last=last))
            except OnelogError as error:
                read.answer(error, False)
            else:
                self._under_way.setdefault(read.owner, set()).add(read)
        else:
            self._hold(read, missing)

    def _make_again(self, read: PendingRead, *, cold_ok: bool, last: bool) -> None:
        if read.is_over:
            return
        mates = self._under_way[read.owner]
        mates.remove(read)
        if not mates:
            del self._under_way[read.owner]
        self.make(read, cold_ok=cold_ok, last=last)

    def _hold(self, read: PendingRead, missing: Missing) -> None:
        left_ms = read.until_ms - self.clock.now_ms()
        if left_ms > 0:
            hold = read.hold(missing)
            if hold is not None:
                keys, ready = hold
                if self.waiting.wait(keys, left_ms, partial(self._woken, read), read.owner, ready):
                    return
            read.is_refused = True
        self.make(read, last=True)

    def _woken(self, read: PendingRead, _: Wait, timed_out: bool) -> None:
        self.make(read, last=timed_out)

    def owner_gone(self, owner: Hashable) -> None:
        """Nobody wants the answers any more."""
        for read in self._under_way.pop(owner, ()):
            read.is_over = True
        self.waiting.cancel_owned(owner)
