"""Changes of tables that are recorded with the tick they came in, one record for all of them.

They are in the same append as the messages of that tick: not even a kill comes between.
"""

from collections.abc import Callable

from onelog.core.durable.tables import Change, Tables
from onelog.core.durable.writer import Writer
from onelog.errors import OnelogError

OnRecorded = Callable[[OnelogError | None], None]
WhenDurable = Callable[[OnRecorded], None]
"""Calls back once everything written so far is as safe as configured."""


class TickRecords:
    """The changes of this tick, and who is to be told."""

    def __init__(self, tables: Tables, writer: Writer, when_durable: WhenDurable) -> None:
        self._tables = tables
        self._writer = writer
        self._when_durable = when_durable
        self._changes: list[Change] = []
        self._told: list[OnRecorded] = []

    def put(self, change: Change, told: OnRecorded | None = None) -> None:
        """Record a change that its owner has made already."""
        if not self._changes:
            self._writer.join_tick(self._record)
        self._changes.append(change)
        if told is not None:
            self._told.append(told)

    def _record(self) -> None:
        changes, self._changes = self._changes, []
        told, self._told = self._told, []

        def tell(error: OnelogError | None) -> None:
            for each in told:
                each(error)

        def written(error: OnelogError | None) -> None:
            if error is None:
                self._when_durable(tell)
            else:
                tell(error)

        self._writer.put_records(self._tables.record(changes), written)
