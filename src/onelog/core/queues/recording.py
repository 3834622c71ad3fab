"""What is recorded of the ledgers of durable queues, and when.

Acknowledgements are many, and none of them has to be on its way by itself: what changed is recorded
every few milliseconds, or with the tick for who waits for it. A process that is killed before that
delivers those messages again, as redelivered.

    table     "shelves": {topic@queue id: as in `ledger`}; with the leases', because it changes
              as often as they do
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onelog.core.durable.durability import WhenSafe
from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import in_parts
from onelog.core.queues.journal import LedgerJournal
from onelog.core.queues.ledger import TABLE, Ledger, ledger_of
from onelog.message import NewMessage
from onelog.names import join_key

RECORD_MS = 5
_PART_LEDGERS = 100


class LedgerRecords(LedgerJournal[Ledger]):
    """All ledgers of durable queues, and their table."""

    name = TABLE

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage, lambda ledger: None, TABLE)
        self.known: dict[str, Ledger] = {}
        self._dirty: list[Ledger] = []
        self._is_due = False

    def apply(self, key: str, value: Any) -> None:
        """Make one recorded change, while the log is replayed."""
        if value is None:
            self.known.pop(key, None)
            return
        ledger = self.known.get(key)
        if ledger is None:
            ledger = self.known[key] = ledger_of(key)
        ledger.apply(value)

    def parts(self) -> Iterator[dict[str, Any] | None]:
        """Every ledger; a pause after some."""
        for part in in_parts(self.known):
            for at in range(0, len(part), _PART_LEDGERS):
                yield {key: ledger.state() for key, ledger in part[at : at + _PART_LEDGERS]}
                yield None

    def get(self, topic: str, queue_id: int) -> Ledger:
        """The ledger of a queue of a topic; a new one if it has none."""
        key = join_key(topic, str(queue_id))
        ledger = self.known.get(key)
        if ledger is None:
            ledger = self.known[key] = Ledger(topic, queue_id)
        return ledger

    def forget(self, ledgers: Iterable[Ledger]) -> None:
        """These are gone; that is recorded at once."""
        for ledger in ledgers:
            self.known.pop(ledger.key, None)
            if ledger.is_dirty:
                ledger.is_dirty = False
                self._dirty.remove(ledger)
            self.gone(ledger)
        self.end_of_tick()

    # -- changes -------------------------------------------------------------------------------

    def record_soon(self, ledger: Ledger) -> None:
        """Record what changed, soon."""
        if not ledger.is_dirty:
            ledger.is_dirty = True
            self._dirty.append(ledger)
            if not self._is_due:
                self._is_due = True
                self._schedule(RECORD_MS, self._time_passed)

    def _time_passed(self) -> None:
        self._is_due = False
        self._hand_over()

    def _hand_over(self) -> None:
        dirty, self._dirty = self._dirty, []
        for ledger in dirty:
            ledger.is_dirty = False
            self.changed(ledger)

    def when_safe(self, callback: WhenSafe) -> None:
        self._hand_over()
        super().when_safe(callback)

    def flush(self) -> None:
        """Record what is still to be recorded."""
        self._hand_over()
        self.end_of_tick()

    def records(self, positions: Mapping[Ledger, Iterable[int]]) -> list[NewMessage]:
        """What changed, and that the messages at these places are done: for others' appends.

        Who has written them says so to the ledgers.
        """
        return self._tables.record(
            [(TABLE, ledger.key, ledger.record(also)) for ledger, also in positions.items()]
        )
