"""Into queues and index: what was appended, as soon as it is confirmed.

A queue whose map was given up needs a file descriptor to be written to, and at worst there is none
when the record is in the log already. Its entries are late then, and all writes wait with them.

Invariant: entries reach a queue in the order of the log.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onelog.errors import StoreBusyError, StoreError
from onelog.record.entries import ENTRY_BYTES
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.keyindex import KeyIndex, Pending
from onelog.store.queues import Queues
from onelog.store.refusals import Refusals


class Successor:
    """A queue of a topic that is made anew, while the deletion of what it was before waits."""

    __slots__ = ("queue_id", "reserved", "topic")

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.reserved = 0

    def reserve(self, count: int) -> int:
        """Promise places, and return the first."""
        first = self.reserved
        self.reserved += count
        return first

    def release(self, reserved: int) -> None:
        """Take back what was promised from an offset on."""
        self.reserved = reserved


AnyQueue = ConsumeQueue | Successor


class Entered(NamedTuple):
    """How far queues and index know the log: its end, its last record, and when that was stored."""

    end: int
    last_record: int = 0
    store_ms: int = 0


class Held(NamedTuple):
    """What one append has to put into queues and index, once it is confirmed."""

    until: Entered
    entries: Mapping[AnyQueue, Sequence[bytes]]
    keys: Sequence[Pending]
    deleted: str = ""
    """The topic that it deletes."""


class Entering:
    """Of one store."""

    def __init__(self, queues: Queues, index: KeyIndex, refusals: Refusals) -> None:
        self.queues = queues
        self.index = index
        self._refusals = refusals
        self.dirty: set[ConsumeQueue] = set()
        """Queues with entries that may not be on disk."""
        # One value each, so that the flush thread sees all of it together.
        self.entered = self._late_entered = Entered(0)
        self._late: dict[ConsumeQueue, bytes] = {}

    @property
    def is_late(self) -> bool:
        """Whether some entries wait for their queues."""
        return bool(self._late)

    def mark(self, queue: ConsumeQueue) -> None:
        """A queue got entries."""
        if not queue.dirty:
            queue.dirty = True
            self.dirty.add(queue)

    def mark_all(self) -> None:
        self.dirty.update(self.queues)

    def enter(
        self,
        until: Entered,
        entries: Mapping[AnyQueue, Sequence[bytes]],
        keys: Sequence[Pending],
        deleted: str = "",
    ) -> None:
        """Put everything of an append where it belongs; see `Held`."""
        for queue, packed in entries.items():
            if isinstance(queue, Successor):
                queue = self.queues.get(queue.topic, queue.queue_id)
            self._put(queue, b"".join(packed))
            if not queue.dirty:
                self.mark(queue)
        for pending in keys:
            self.index.add(pending)
        if deleted:
            self._delete(deleted)
        # Only now may a checkpoint be behind a deletion: else a crash would leave the queues.
        if self._late:
            self._late_entered = until
            return
        self.entered = until
        if self.index.is_behind:
            try:
                self.index.build()
            except StoreError as error:
                # These messages are stored; it is the next ones that have to wait.
                self._refusals.refuse_for_now(error)

    def _put(self, queue: ConsumeQueue, entries: bytes) -> None:
        end = queue.end
        try:
            if not self._late or queue not in self._late:
                if (count := len(entries) // ENTRY_BYTES) > queue.allocated - end:
                    queue.make_room(count)
                queue.put(entries)
                return
            error = self._refusals.hindrance or StoreBusyError("entries of the queue wait already")
        except StoreError as reason:
            error = reason
        entries = entries[(queue.end - end) * ENTRY_BYTES :]
        self._late[queue] = self._late.get(queue, b"") + entries
        self._refusals.refuse_for_now(error)

    def put_late(self) -> None:
        """Put the entries that had to wait; `StoreError` if they still have to."""
        if not self._late:
            return
        for queue, entries in list(self._late.items()):
            del self._late[queue]
            self._put(queue, entries)
            if queue in self._late:
                raise self._refusals.hindrance or StoreBusyError("entries of a queue have to wait")
        self.entered = self._late_entered

    def retry(self) -> None:
        """Do what could not be done; `StoreError` if it still cannot, or never will."""
        assert self._refusals.now is not None
        if self._refusals.now is not self._refusals.hindrance:
            raise self._refusals.now
        self.put_late()
        self.index.build()
        self._refusals.retried()

    def _delete(self, topic: str) -> None:
        queues = self.queues.by_topic.get(topic, {}).values()
        self.dirty.difference_update(queues)
        for queue in queues:
            self._late.pop(queue, None)
        self.queues.delete_topic(topic)

    def rewind(self, end: int, *, everything: bool) -> None:
        """Let queues and index know the log up to `end` only; nothing may be left of it at all."""
        if everything:
            for topic in list(self.queues.by_topic):
                self.queues.delete_topic(topic)
            self.dirty.clear()
        self.queues.cut_at(end)
        self.index.truncate(end)
        self.mark_all()
        last = [each[0] for queue in self.queues if (each := queue.last_entry())]
        self.entered = self.entered._replace(end=end, last_record=max(last, default=0))
