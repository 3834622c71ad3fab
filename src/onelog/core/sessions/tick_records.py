"""Changes of tables that are recorded with the tick they came in, one record for all of them.

They are in the same append as the messages of that tick: not even a kill comes between.
"""

from collections.abc import Callable

from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import Change
from onelog.errors import OnelogError

OnRecorded = Callable[[OnelogError | None], None]


class TickRecords:
    """The changes of this tick, and who is to be told."""

    def __init__(self, storage: Storage) -> None:
        self._tables = storage.tables
        self._writer = storage.writer
        self._when_durable = storage.durability.when_safe
        self._changes: list[Change] = []
        self._on_recorded: list[OnRecorded] = []

    def put(self, change: Change, on_recorded: OnRecorded | None = None) -> None:
        """Record a change that its owner has made already."""
        if not self._changes:
            self._writer.join_tick(self._record)
        self._changes.append(change)
        if on_recorded is not None:
            self._on_recorded.append(on_recorded)

    def _record(self) -> None:
        changes, self._changes = self._changes, []
        on_recorded, self._on_recorded = self._on_recorded, []

        def tell(error: OnelogError | None) -> None:
            for each in on_recorded:
                each(error)

        def written(error: OnelogError | None) -> None:
            if error is None:
                self._when_durable(tell)
            else:
                tell(error)

        self._writer.put_records(self._tables.record(changes), written)
