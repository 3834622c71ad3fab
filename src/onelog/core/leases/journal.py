"""The leases' way into the log: what changed in a tick is one append, and then it may be told.

    table entry   key "topic@group@queue id"; value as in `lease_queue`, None for a queue that is
                  gone; in a topic and a snapshot of their own, because they change so often

Messages that are moved because their lease ended go into the same append as the record of that, so
that not even a killed process loses or doubles one.

Invariant: a callback of `when_recorded` is called exactly once: after the record of everything that
changed before it is in the log, or with the reason why that cannot be written. What could not be
written is kept, and written with the next tick; it keeps nothing else from being written.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from onelog.core.durable.tables import Tables
from onelog.core.durable.waiting import Schedule
from onelog.core.leases.queue import QueueLeases
from onelog.core.publish import Publisher
from onelog.errors import OnelogError, StoreError
from onelog.message import NewMessage
from onelog.names import join_key, split_key
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

LEASES_FILE = "onelog-leases.json"
TABLE = "leases"
_TROUBLE_MS = 1_000

Place = tuple[str, str, int]
"""Group, topic and queue id."""
WhenRecorded = Callable[[OnelogError | None], None]


def place_key(queue: QueueLeases) -> str:
    """The table's key of a queue."""
    return f"{join_key(queue.topic, queue.group)}@{queue.queue_id}"


def place_of(key: str) -> Place:
    """The inverse of `place_key`."""
    names, _, queue_id = key.rpartition("@")
    topic, group = split_key(names)
    return group, topic, int(queue_id)


class LeaseJournal:
    """Collects changes, and appends them tick by tick."""

    def __init__(
        self,
        tables: Tables,
        store: MessageStore,
        publisher: Publisher,
        schedule: Schedule,
        call_soon: Callable[[Callable[[], None]], None],
        on_recorded: Callable[[QueueLeases], None],
    ) -> None:
        """`on_recorded` is called with each queue whose changes have reached the log."""
        self._tables = tables
        self._store = store
        self._publisher = publisher
        self._schedule = schedule
        self._call_soon = call_soon
        self._on_recorded = on_recorded
        self._changed: dict[QueueLeases, None] = {}
        self._gone: dict[str, None] = {}
        self._told: list[WhenRecorded] = []
        self._tick_begun = False
        self._tried_again = False

    def changed(self, queue: QueueLeases) -> None:
        """The queue's leases changed in this tick."""
        self._changed[queue] = None
        self._begin_tick()

    def gone(self, queue: QueueLeases) -> None:
        """There is no such queue any more."""
        self._changed.pop(queue, None)
        self._gone[place_key(queue)] = None
        self._begin_tick()

    def _begin_tick(self) -> None:
        if not self._tick_begun:
            self._tick_begun = True
            self._call_soon(self.end_of_tick)

    def when_recorded(self, callback: WhenRecorded) -> None:
        """Call back once everything that changed so far is in the log, or cannot be written."""
        if self._tick_begun:
            self._told.append(callback)
        else:
            callback(None)

    def end_of_tick(self) -> None:
        """Record what changed, and tell everybody who waits for that."""
        if self._tick_begun:
            try:
                self.write([])
            except StoreError as error:
                log.error("leases could not be recorded, and are tried again: %s", error)
                if not self._tried_again:
                    self._tried_again = True
                    self._schedule(_TROUBLE_MS, self._try_again)

    def _try_again(self) -> None:
        self._tried_again = False
        self._begin_tick()

    def write(self, moved: Sequence[NewMessage]) -> None:
        """Append messages that are moved, and the record of everything that changed, together.

        What is raised beside `StoreError` is about the list with `moved` in it, of which nothing
        was written: the tick goes on, and its end writes the record without them.
        """
        gone, changed = list(self._gone), list(self._changed)
        error: StoreError | None = None
        try:
            self._append(gone, changed, moved)
        except StoreError as reason:
            gone, changed, error = [], [], reason
        except Exception:
            if moved:
                raise
            gone, changed, error = self._append_one_by_one(gone, changed)
        # What is called from here on may change leases again: that is another tick.
        told, self._told = self._told, []
        self._tick_begun = False
        for key in gone:
            del self._gone[key]
        for queue in changed:
            del self._changed[queue]
            queue.recorded()
        for queue in changed:
            self._on_recorded(queue)
        for callback in told:
            _tell(callback, error)
        if error is not None:
            raise error

    def _append(
        self, gone: list[str], changed: list[QueueLeases], moved: Sequence[NewMessage] = ()
    ) -> None:
        changes: list[tuple[str, str, Any]] = [(TABLE, key, None) for key in gone]
        changes += [(TABLE, place_key(queue), queue.record()) for queue in changed]
        records = self._tables.record(changes)
        if moved:
            self._publisher.write_now([*moved, *records])
        elif records:
            self._store.append_own(records)

    def _append_one_by_one(
        self, gone: list[str], changed: list[QueueLeases]
    ) -> tuple[list[str], list[QueueLeases], StoreError | None]:
        """Some queue cannot be recorded: record the others. What was recorded, and what is wrong.

        Nothing that a client may send makes such a record; a segment may be too small for one.
        """
        error: StoreError | None = None
        done: tuple[list[str], list[QueueLeases]] = ([], [])
        for keys, queues in [(gone, []), *(([], [queue]) for queue in changed)]:
            try:
                self._append(keys, queues)
            except StoreError as reason:
                error = reason
            except Exception as reason:
                names = ", ".join([*keys, *map(place_key, queues)])
                error = StoreError(f"the leases of {names} cannot be recorded: {reason}")
            else:
                done[0].extend(keys)
                done[1].extend(queues)
        return *done, error


def _tell(callback: WhenRecorded, error: OnelogError | None) -> None:
    try:
        callback(error)
    except Exception:
        # One broken connection must not cost the others their answer.
        log.exception("an answer about leases could not be handed over")
