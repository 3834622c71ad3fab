"""The ledgers' way into the log: what changed goes in with the tick, and then it may be told.

    table entry   key "topic@group@queue id" of leases, "topic@queue id" of declared queues; value
                  as in `lease_ledger` and `ledger`, None for one that is gone; in a topic and a
                  snapshot of their own, because they change so often

Messages that are moved because their lease ended go into the same append as the record of that, so
that not even a killed process loses or doubles one.

Invariant: a callback of `when_recorded` is called exactly once: after the record of everything that
changed before it is in the log, or with the reason why that cannot be written. What could not be
written is kept, and written with the next tick; it keeps nothing else from being written.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from onelog.core.durable.durability import WhenSafe
from onelog.core.durable.storage import Storage
from onelog.core.queues.ledger import Ledger
from onelog.errors import OnelogError, StoreError
from onelog.message import NewMessage

log = logging.getLogger(__name__)

LEASES_FILE = "onelog-leases.json"
TABLE = "leases"
_TROUBLE_MS = 1_000

WhenRecorded = Callable[[OnelogError | None], None]
Kind = TypeVar("Kind", bound=Ledger)


@dataclass(eq=False)
class LedgerJournal(Generic[Kind]):
    """Collects changes, and appends them tick by tick."""

    _storage: Storage
    _on_recorded: Callable[[Kind], None]
    """Called with each queue whose changes have reached the log."""
    _table: str = TABLE

    def __post_init__(self) -> None:
        self._tables, self._writer = self._storage.tables, self._storage.writer
        self._when_durable = self._storage.durability.when_safe
        self._schedule = self._storage.runtime.schedule
        self._changed: dict[Kind, None] = {}
        self._gone: dict[str, None] = {}
        self._callbacks: list[WhenRecorded] = []
        self._unsafe: list[WhenSafe] = []
        """Who is told when that is as safe as a message."""
        self._tick_begun = self._has_joined = False
        self._tried_again = False
        self.follows = False
        """Whether the log is another broker's: then leases are kept in memory only."""

    def changed(self, ledger: Kind) -> None:
        """The queue's leases changed in this tick."""
        self._changed[ledger] = None
        self._begin_tick()

    def gone(self, ledger: Kind) -> None:
        """There is no such queue any more."""
        self._changed.pop(ledger, None)
        self._gone[ledger.key] = None
        self._begin_tick()

    def _begin_tick(self) -> None:
        self._tick_begun = True
        if not self._has_joined:
            self._has_joined = True
            self._writer.join_tick(self._put_records)

    def when_recorded(self, callback: WhenRecorded) -> None:
        """Call back once everything that changed so far is in the log, or cannot be written."""
        if self._tick_begun:
            self._callbacks.append(callback)
        else:
            callback(None)

    def when_safe(self, callback: WhenSafe) -> None:
        """The same, once it is as safe as configured."""
        if self._tick_begun:
            self._unsafe.append(callback)
        else:
            self._when_durable(callback)

    def _put_records(self) -> None:
        """The writer's tick ends: record what changed with everything else."""
        self._has_joined = False
        if self._tick_begun:
            gone, changed = list(self._gone), list(self._changed)
            if self.follows:
                self._settle(gone, changed, None)
                return
            records = self._records(gone, changed)
            self._writer.put_records(records, partial(self._written, gone, changed))

    def _written(self, gone: list[str], changed: list[Kind], error: Exception | None) -> None:
        trouble = error if isinstance(error, StoreError) else None
        if trouble is not None:
            gone, changed = [], []
        elif error is not None:
            gone, changed, trouble = self._append_one_by_one(gone, changed)
        self._settle(gone, changed, trouble)
        if trouble is not None:
            log.error("leases could not be recorded, and are tried again: %s", trouble)
            if not self._tried_again:
                self._tried_again = True
                self._schedule(_TROUBLE_MS, self._try_again)

    def _try_again(self) -> None:
        self._tried_again = False
        self._begin_tick()

    def end_of_tick(self) -> None:
        """Record now what changed, and tell everybody who waits for that."""
        if self._tick_begun:
            gone, changed = list(self._gone), list(self._changed)
            error: Exception | None = None
            try:
                self._writer.write_now([], self._records(gone, changed))
            except Exception as reason:
                error = reason
            self._written(gone, changed, error)

    def write(self, moved: Sequence[NewMessage]) -> None:
        """Append messages that are moved, and the record of everything that changed, together.

        If that fails nothing was written. `StoreError` is told to those who wait; after another
        error the tick goes on, and its end writes the record without `moved`.
        """
        gone, changed = list(self._gone), list(self._changed)
        try:
            self._writer.write_now(moved, self._records(gone, changed))
        except StoreError as error:
            self._settle([], [], error)
            raise
        self._settle(gone, changed, None)

    def _settle(self, gone: list[str], changed: list[Kind], error: OnelogError | None) -> None:
        """This much is recorded: tell everybody."""
        # What is called from here on may change leases again: that is another tick.
        callbacks, self._callbacks = self._callbacks, []
        unsafe, self._unsafe = self._unsafe, []
        self._tick_begun = False
        for key in gone:
            del self._gone[key]
        for queue in changed:
            del self._changed[queue]
            queue.recorded()
        for queue in changed:
            self._on_recorded(queue)
        _tell_all(callbacks, error)
        if unsafe and error is None:
            self._when_durable(partial(_tell_all, unsafe))
        else:
            _tell_all(unsafe, error)

    def _records(self, gone: list[str], changed: list[Kind]) -> list[NewMessage]:
        changes: list[tuple[str, str, Any]] = [(self._table, key, None) for key in gone]
        changes += [(self._table, queue.key, queue.record()) for queue in changed]
        return self._tables.record(changes)

    def _append_one_by_one(
        self, gone: list[str], changed: list[Kind]
    ) -> tuple[list[str], list[Kind], StoreError | None]:
        """Some queue cannot be recorded: record the others. What was recorded, and what is wrong.

        Nothing that a client may send makes such a record; a segment may be too small for one.
        """
        error: StoreError | None = None
        done: tuple[list[str], list[Kind]] = ([], [])
        for keys, queues in [(gone, []), *(([], [queue]) for queue in changed)]:
            try:
                self._writer.write_now([], self._records(keys, queues))
            except StoreError as reason:
                error = reason
            except Exception as reason:
                names = ", ".join([*keys, *(each.key for each in queues)])
                error = StoreError(f"the leases of {names} cannot be recorded: {reason}")
            else:
                done[0].extend(keys)
                done[1].extend(queues)
        return *done, error


def _tell_all(callbacks: Sequence[WhenRecorded], error: OnelogError | None) -> None:
    for callback in callbacks:
        try:
            callback(error)
        except Exception:
            # One broken connection must not cost the others their answer.
            log.exception("an answer about leases could not be handed over")
