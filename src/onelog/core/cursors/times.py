"""Where in a queue messages of a time are, by the times that their senders gave them.

The store finds records by the time they were stored. A message is stored after it was made, if the
sender's clock is right: so the first one that was made at a time or later is not before the first
one that was stored then, and is looked for from there on, record by record. Messages that claim to
be from the future are found only if they are.

For worker threads: everything is read with system calls, and nothing is changed.
"""

from collections.abc import Iterator
from typing import NamedTuple

from onelog.core.compaction.compacted import CompactedSegment
from onelog.core.cursors.unpacking import rest, unpacking_one
from onelog.errors import WireError
from onelog.names import COMPACTED_TOPIC
from onelog.record.forms import Form, form_of, kafka
from onelog.record.forms.neutral import sane_ms
from onelog.record.layout import BORN_MS, QUEUE_OFFSET, SYS_FLAG, body_at, field_of
from onelog.store.message_store import MessageStore

_RUN = 2_000
_HEAD_BYTES = 256
"""Enough for the head of a record and that of a batch in it."""


class Dated(NamedTuple):
    """A message's place and time."""

    offset: int
    time_ms: int


class _Seen(NamedTuple):
    """A record: its first offset in the queue, and its latest time."""

    offset: int
    latest_ms: int
    body_at: int
    body_bytes: int
    is_batch: bool


def first_since(
    store: MessageStore,
    topic: str,
    queue_id: int,
    time_ms: int,
    left: CompactedSegment | None = None,
) -> Dated | None:
    """The first message of a queue that was made at a time or later.

    What is left of a compacted queue was stored again since: there all messages are looked at.
    """
    begin = int(store.offset_by_time(topic, queue_id, time_ms))
    if left is not None:
        begin = 0
    for seen in _records(store, topic, queue_id, begin, left):
        if seen.latest_ms >= time_ms:
            for found in _messages(store, seen):
                if found.time_ms >= time_ms and found.offset >= begin:
                    return found
    return None


def latest(
    store: MessageStore, topic: str, queue_id: int, left: CompactedSegment | None = None
) -> Dated | None:
    """The message of a queue that was made last; the first of those."""
    best: _Seen | None = None
    for seen in _records(store, topic, queue_id, 0, left):
        if best is None or seen.latest_ms > best.latest_ms:
            best = seen
    if best is None:
        return None
    return next(
        (each for each in _messages(store, best) if each.time_ms >= best.latest_ms),
        Dated(best.offset, best.latest_ms),
    )


def _records(
    store: MessageStore, topic: str, queue_id: int, offset: int, left: CompactedSegment | None
) -> Iterator[_Seen]:
    """The records of a queue; those that say how a transaction ended are left out."""
    end = store.max_offset(topic, queue_id)
    offset = max(offset, store.min_offset(topic, queue_id))
    queue = store.queue_table.find(topic, queue_id)
    if left is not None and queue is not None and left.is_needed(queue) and offset < left.end:
        for number in range(left.number_at(store, offset), left.last):
            at, size, _ = store.entry_at(COMPACTED_TOPIC, left.queue_id, number) or (0, 0, 0)
            if size:
                yield _batch_at(store, at, size)
        offset = left.end
    if queue is not None:
        offset = max(offset, queue.start)
    while offset < end:
        entry = store.entry_at(topic, queue_id, offset)
        if entry is None:
            offset += 1
            continue
        at, size, _ = entry
        head = store.read_cold(at, min(size, _HEAD_BYTES))
        body, body_bytes = body_at(head)
        if form_of(field_of(head, SYS_FLAG)) == Form.KAFKA and len(head) >= body + kafka.HEAD.size:
            first = field_of(head, QUEUE_OFFSET)
            batch = kafka.Batch(*kafka.HEAD.unpack_from(head, body))
            offset = max(first + max(1, batch.records), offset + 1)
            if not batch.is_control:
                yield _Seen(first, batch.max_ms, at + body, body_bytes, True)
        else:
            yield _Seen(offset, field_of(head, BORN_MS), at + body, body_bytes, False)
            offset += 1


def _batch_at(store: MessageStore, at: int, size: int) -> _Seen:
    """A batch that is left of a compacted queue, which has its offset in it."""
    head = store.read_cold(at, min(size, _HEAD_BYTES))
    body, body_bytes = body_at(head)
    batch = kafka.Batch(*kafka.HEAD.unpack_from(head, body))
    return _Seen(batch.base_offset, batch.max_ms, at + body, body_bytes, True)


def _messages(store: MessageStore, seen: _Seen) -> Iterator[Dated]:
    if not seen.is_batch:
        yield Dated(seen.offset, seen.latest_ms)
        return
    with unpacking_one:
        body = store.read_cold(seen.body_at, seen.body_bytes)
        try:
            batch = kafka.read_head(body)
            raw = kafka.raw_records(body, batch)
            for run in kafka.runs(raw, batch, _RUN, len(raw), lambda _: rest()):
                for delta, message in kafka.records_in(raw, batch, run):
                    yield Dated(seen.offset + delta, sane_ms(message.time_ms))
        except WireError:
            yield Dated(seen.offset, seen.latest_ms)  # Who reads there is told what is wrong.
