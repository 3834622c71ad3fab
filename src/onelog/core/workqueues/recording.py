"""What is recorded of the shelves of durable queues, and when.

Acknowledgements are many, and none of them has to be on its way by itself: what changed is recorded
every few milliseconds, or with the tick for who waits for it. A process that is killed before that
delivers those messages again, as redelivered.

    table     "shelves": {topic@queue id: as in `log_shelf`}; with the leases', because it changes
              as often as they do
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from onelog.core.durable.deadlines import Schedule
from onelog.core.durable.durability import WhenSafe
from onelog.core.durable.tables import Tables, in_parts
from onelog.core.durable.writer import Writer
from onelog.core.leases.journal import LeaseJournal
from onelog.core.workqueues.log_shelf import TABLE, LogShelf, shelf_key, shelf_of
from onelog.message import NewMessage
from onelog.names import join_key

RECORD_MS = 5
_PART_SHELVES = 100


class Shelves:
    """All shelves of durable queues, and their table."""

    name = TABLE

    def __init__(
        self,
        tables: Tables,
        writer: Writer,
        schedule: Schedule,
        when_durable: Callable[[WhenSafe], None],
    ) -> None:
        self._tables = tables
        self._schedule = schedule
        self._journal: LeaseJournal[LogShelf] = LeaseJournal(
            tables, writer, schedule, when_durable, lambda shelf: None, shelf_key, TABLE
        )
        self.known: dict[str, LogShelf] = {}
        self._dirty: list[LogShelf] = []
        self._is_due = False

    def apply(self, key: str, value: Any) -> None:
        """Make one recorded change, while the log is replayed."""
        if value is None:
            self.known.pop(key, None)
            return
        shelf = self.known.get(key)
        if shelf is None:
            shelf = self.known[key] = shelf_of(key)
        shelf.apply(value)

    def parts(self) -> Iterator[dict[str, Any] | None]:
        """Every shelf; a pause after some."""
        for part in in_parts(self.known):
            for at in range(0, len(part), _PART_SHELVES):
                yield {key: shelf.state() for key, shelf in part[at : at + _PART_SHELVES]}
                yield None

    def get(self, topic: str, queue_id: int) -> LogShelf:
        """The shelf of a queue of a topic; a new one if it has none."""
        key = join_key(topic, str(queue_id))
        shelf = self.known.get(key)
        if shelf is None:
            shelf = self.known[key] = LogShelf(topic, queue_id)
        return shelf

    def forget(self, shelves: Iterable[LogShelf]) -> None:
        """These are gone; that is recorded at once."""
        for shelf in shelves:
            self.known.pop(shelf_key(shelf), None)
            if shelf.is_dirty:
                shelf.is_dirty = False
                self._dirty.remove(shelf)
            self._journal.gone(shelf)
        self._journal.end_of_tick()

    # -- changes -------------------------------------------------------------------------------

    def changed(self, shelf: LogShelf) -> None:
        """Record what changed, soon."""
        if not shelf.is_dirty:
            shelf.is_dirty = True
            self._dirty.append(shelf)
            if not self._is_due:
                self._is_due = True
                self._schedule(RECORD_MS, self._time_passed)

    def _time_passed(self) -> None:
        self._is_due = False
        self._hand_over()

    def _hand_over(self) -> None:
        dirty, self._dirty = self._dirty, []
        for shelf in dirty:
            shelf.is_dirty = False
            self._journal.changed(shelf)

    def when_recorded(self, callback: WhenSafe) -> None:
        """Call back once what changed so far is in the log, as safe as configured."""
        self._hand_over()
        self._journal.when_safe(callback)

    def flush(self) -> None:
        """Record now what changed."""
        self._hand_over()
        self._journal.end_of_tick()

    def records(self, places: Mapping[LogShelf, Iterable[int]]) -> list[NewMessage]:
        """What changed, and that the messages at these places are done: for others' appends.

        Who has written them says so to the shelves.
        """
        return self._tables.record(
            [(TABLE, shelf_key(shelf), shelf.record(also)) for shelf, also in places.items()]
        )

    def follow(self) -> None:
        """The log is another broker's: nothing is recorded here."""
        self._journal.follows = True
