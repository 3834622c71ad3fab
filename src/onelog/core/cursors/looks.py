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
from onelog.core.cursors.reading import QueueReader
from onelog.core.cursors.warming import Warming
from onelog.core.durable.waiting import Key, Wait, Waiting
from onelog.core.filters.filter_time import FilterTime
from onelog.errors import OnelogError

Hold = tuple[Sequence[Key], Callable[[], bool] | None]
"""What a look waits for, and whether an arrival is worth looking again; see `Waiting.wait`."""


class Lack(NamedTuple):
    """Why a look has no answer: what is cold, or that filters have no time; else no messages."""

    cold: Sequence[tuple[int, int]] = ()
    later: bool = False
    size: int = 0
    """The bytes of messages that were found, and are too few."""


@dataclass(slots=True, eq=False)
class Look:
    """One question for messages, of an owner who may go away, and until when it may wait.

    `find(cold_ok, last)` is the answer or a `Lack`; an answer if it is the last time, unless
    something is cold or late. `hold(lack)` says what to wait for; None if too many do. `answer`
    gets what was found, or an `OnelogError`, and whether waiting was refused.
    """

    find: Callable[[bool, bool], Any]
    hold: Callable[[Lack], Hold | None]
    answer: Callable[[Any, bool], None]
    owner: Hashable
    until_ms: int
    is_over: bool = field(init=False, default=False)
    is_refused: bool = field(init=False, default=False)


@dataclass(eq=False)
class Looks:
    """All looks that have no answer yet."""

    reader: QueueReader
    waiting: Waiting
    warming: Warming
    filter_time: FilterTime
    clock: Clock

    def __post_init__(self) -> None:
        self._under_way: dict[Hashable, set[Look]] = {}
        """Those that wait for a worker or for their turn, by owner."""

    def make(self, look: Look, *, cold_ok: bool = False, last: bool = False) -> None:
        """Look, and answer, or look again when that makes sense."""
        try:
            found = look.find(cold_ok, last)
        except OnelogError as error:
            found = error.with_traceback(None)  # Which leads to `found`, and so to itself.
        if type(found) is Lack:
            self.make_later(look, found, cold_ok=cold_ok, last=last)
        else:
            look.answer(found, look.is_refused)

    def make_later(
        self, look: Look, lack: Lack, *, cold_ok: bool = False, last: bool = False
    ) -> None:
        """Go on with a look that has found out what it lacks."""
        if lack.cold:
            self._under_way.setdefault(look.owner, set()).add(look)
            again = partial(self._make_again, look, cold_ok=True, last=last)
            self.warming.prepare(self.reader, lack.cold, again)
        elif lack.later:
            try:
                self.filter_time.later(partial(self._make_again, look, cold_ok=cold_ok, last=last))
            except OnelogError as error:
                look.answer(error, False)
            else:
                self._under_way.setdefault(look.owner, set()).add(look)
        else:
            self._hold(look, lack)

    def _make_again(self, look: Look, *, cold_ok: bool, last: bool) -> None:
        if look.is_over:
            return
        mates = self._under_way[look.owner]
        mates.remove(look)
        if not mates:
            del self._under_way[look.owner]
        self.make(look, cold_ok=cold_ok, last=last)

    def _hold(self, look: Look, lack: Lack) -> None:
        left_ms = look.until_ms - self.clock.now_ms()
        if left_ms > 0:
            hold = look.hold(lack)
            if hold is not None:
                keys, ready = hold
                if self.waiting.wait(keys, left_ms, partial(self._woken, look), look.owner, ready):
                    return
            look.is_refused = True
        self.make(look, last=True)

    def _woken(self, look: Look, _: Wait, timed_out: bool) -> None:
        self.make(look, last=timed_out)

    def owner_gone(self, owner: Hashable) -> None:
        """Nobody wants the answers any more."""
        for look in self._under_way.pop(owner, ()):
            look.is_over = True
        self.waiting.cancel_owned(owner)
