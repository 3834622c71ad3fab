"""What is left of a compacted queue: batches in a queue of their own, and how they are read.

The messages of a compacted queue up to some offset are read from there, all others from where they
were written. What is left lies in one stretch of a queue of the topic `onelog_sys_compacted`, in
the order of the offsets that it stands for: each record is a batch of Kafka's form, with its base
offset, and its entry in the queue says the last offset that it stands for (`dispatch.TagsCodes`).

A new pass over the queue writes a new stretch, and then one record says that it counts. So there is
always exactly one that does, and it is whole.
"""

from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

from onelog.names import COMPACTED_TOPIC
from onelog.record.layout import QUEUE_OFFSET, body_at
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.message_store import MessageStore
from onelog.store.reader import Fetched, FetchStatus

QueueKey = tuple[str, int]
"""A topic and a queue id."""
_COUNT_AT = 57
"""Of the count of records in a batch."""


class Cleaned(NamedTuple):
    """Some tombstones that are left: up to which offset, since when, how many."""

    end: int
    time_ms: int
    tombstones: int


class CompactedSegment(NamedTuple):
    """What is left of a queue; in a table as a list of this."""

    queue_id: int
    """Of the queue where it lies."""
    first: int
    last: int
    """The stretch there: from here, to before there."""
    start: int
    """Where the compacted queue begins."""
    clean: int
    """Before this offset no key is there twice."""
    end: int
    """Up to here the queue is read from the remains."""
    messages: int
    oldest_ms: int
    made_ms: int
    cleaned: tuple[Cleaned, ...]
    """In the order of offsets: what was gone over first when, as far as it has tombstones."""

    def number_at(self, store: MessageStore, offset: int) -> int:
        """The first record that stands for an offset or a later one; `last` if there is none."""
        queue = store.queue_table.find(COMPACTED_TOPIC, self.queue_id)
        if queue is None or self.first == self.last:
            return self.last
        numbers = range(self.first, self.last)
        return self.first + bisect_left(numbers, offset, key=lambda at: queue.entry(at)[2])

    def next_offset(self, store: MessageStore, number: int) -> int:
        """The offset behind the record before that number; `end` behind the last."""
        if number >= self.last:
            return self.end
        queue = store.queue_table.find(COMPACTED_TOPIC, self.queue_id)
        assert queue is not None
        return queue.entry(number - 1)[2] + 1

    def is_needed(self, queue: ConsumeQueue) -> bool:
        """Whether the queue still goes on from there: somebody may have deleted even more."""
        return queue.start <= self.end


def found_in(
    compacted: CompactedSegment, store: MessageStore, topic: str, queue_id: int, offset: int
) -> bool:
    """Whether a message of a queue, if it is still there, is in the remains."""
    queue = store.queue_table.find(topic, queue_id)
    return queue is not None and offset < compacted.end and compacted.is_needed(queue)


def as_of_queue(
    found: Fetched, compacted: CompactedSegment, store: MessageStore, queue_key: QueueKey
) -> Fetched:
    """What was read from the remains, with the offsets of the queue that they are of."""
    slices, messages = [], 0
    for view in found.slices:
        moved, count = moved_records(view)
        slices.append(moved)
        messages += count
    return found._replace(
        slices=slices,
        next_offset=compacted.next_offset(store, found.next_offset),
        min_offset=store.min_offset(*queue_key),
        max_offset=store.max_offset(*queue_key),
        messages=messages,
    )


def moved_records(view: memoryview) -> tuple[memoryview, int]:
    """Records with the offsets of their batches in the place of their own; and how many messages.

    These are the bytes of a record that say where in its queue it is: the log has another number.
    """
    data = bytearray(view)
    at = messages = 0
    while at < len(data):
        body, _ = body_at(data, at)
        data[at + QUEUE_OFFSET.start : at + QUEUE_OFFSET.stop] = data[body : body + 8]
        messages += int.from_bytes(data[body + _COUNT_AT : body + _COUNT_AT + 4], "big")
        at += int.from_bytes(data[at : at + 4], "big")
    return memoryview(data).toreadonly(), messages


def nothing_left(
    store: MessageStore, queue_key: QueueKey, next_offset: int, *, lost: bool = False
) -> Fetched:
    """The answer where there is no message before an offset: the gap that compaction leaves; or,
    if they are `lost`, those that are damaged."""
    start, end = store.min_offset(*queue_key), store.max_offset(*queue_key)
    status = FetchStatus.MESSAGE_WAS_REMOVING if lost else FetchStatus.NO_MATCHED_MESSAGE
    return Fetched(status, [], next_offset, start, end)


CompactedSegments = Mapping[QueueKey, CompactedSegment]
