"""One pass over a compacted queue: first which keys are new, then a copy without what they replace.

The new part of the queue is read once for the last offset of each of its keys; where there are more
than fit, the pass ends there, and the next one goes on. Then the remains of the pass before and the
new part are read, and what is to stay is written as the new remains. Left out are:

    messages with a key that comes again in the new part, and messages without one
    tombstones that were there for long enough since they were first gone over
    aborted messages, and what says how a transaction ended; what is left is of no transaction
    messages that are too old, if the topic deletes by age

A pass may have to go further than messages may be compacted, because the log that holds them is
about to go: these are copied as they are, and looked at for their keys by a later pass.

`step` is for a worker: it reads, and tells what is to be written. It changes nothing.

Keys are known by 128 bits of a hash, 24 bytes for each: what comes is collected in columns, and put
in order when the columns are full or somebody asks. A message is called superseded only if a later
one with the same hash was added.
"""

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from onelog.core.compaction.compacted import Cleaned, CompactedSegment, QueueKey
from onelog.core.cursors.forms import offset_in
from onelog.errors import StoreError, WireError
from onelog.message import Message, NewMessage, QueueOffset, encode_properties
from onelog.names import COMPACTED_TOPIC
from onelog.record.decode import decode_messages
from onelog.record.dispatch import LAST_OFFSET
from onelog.record.forms import Form, form_of, kafka
from onelog.record.forms.conversion import in_kafka_form
from onelog.record.forms.kafka import Attribute, Batch, Span
from onelog.record.inner_batch import unwrapped
from onelog.store.message_store import MessageStore
from onelog.store.outcomes import Aborted
from onelog.store.reader import FetchStatus

_DIGEST_BYTES = 16
_Numbers = npt.NDArray[np.uint64]


class LastOffsets:
    """Which message of each key is the last, for as many keys as there is room for."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._digests = bytearray()
        self._offsets = array("q")
        self._high: _Numbers = np.empty(0, np.uint64)
        self._low: _Numbers = np.empty(0, np.uint64)
        self._last: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, key: bytes, offset: int) -> None:
        """A message with this key is there."""
        self._digests += _digest(key)
        self._offsets.append(offset)

    @property
    def is_full(self) -> bool:
        """Whether there are as many keys as may be."""
        if len(self._offsets) + len(self._last) >= 2 * self._keys_max:
            self._put_in_order()
        return len(self._last) >= self._keys_max

    def superseded(self, keys: Sequence[bytes], offsets: Sequence[int]) -> list[bool]:
        """Of each message with one of these keys, at these offsets, whether a later one is there.

        Where two keys share the first half of their hash, the answer may be no instead of yes.
        """
        self._put_in_order()
        if not len(self._last):
            return [False] * len(keys)
        high, low = _halves(b"".join([_digest(key) for key in keys]))
        rows = np.searchsorted(self._high, high).clip(max=len(self._last) - 1)
        is_known = (self._high[rows] == high) & (self._low[rows] == low)
        later = self._last[rows] > np.array(offsets, np.int64)
        found: list[bool] = (is_known & later).tolist()
        return found

    def _put_in_order(self) -> None:
        """Plain columns, and no copies in between: others run while numpy works on those."""
        if not self._offsets:
            return
        new_high, new_low = _halves(self._digests)
        high, low = np.concatenate([self._high, new_high]), np.concatenate([self._low, new_low])
        last = np.concatenate([self._last, np.frombuffer(self._offsets, np.int64)])
        self._digests, self._offsets = bytearray(), array("q")
        order = np.lexsort((last, low, high))
        high, low, last = high[order], low[order], last[order]
        is_last = np.append((high[1:] != high[:-1]) | (low[1:] != low[:-1]), True)
        self._high, self._low, self._last = high[is_last], low[is_last], last[is_last]


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()


def _halves(digests: bytes | bytearray) -> tuple[_Numbers, _Numbers]:
    """The first halves of some digests, and the second ones."""
    halves = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    return halves[:, 0], halves[:, 1]


log = logging.getLogger(__name__)

STEP_BYTES = 256 << 10
"""What is read at once."""
_STEP_COUNT = 1 << 16
_TIMES_KEPT = 50
_KAFKA_FORM = Form.KAFKA.sys_flag


@dataclass(frozen=True)
class CompactionPlan:
    """What a pass is to do."""

    queue_key: QueueKey
    before: CompactedSegment | None
    start: int
    """Where the queue begins."""
    clean: int
    """Keys are looked at from here,"""
    dirty_end: int
    """to before here; and not in what is younger than that:"""
    young_ms: int
    carry_end: int
    """Messages are copied to here, if they have to be, though their keys were not looked at."""
    compacts: bool
    """Else everything stays that is not too old."""
    tombstones_before: int
    """Tombstones before this offset have been there for long enough."""
    tombstone_ms: int
    """How long that is."""
    expired_ms: int
    """Messages before that time are too old."""
    aborted: Sequence[Aborted]


@dataclass(slots=True)
class _Piece:
    """A batch, and where in the queue it is."""

    first: int
    end: int
    data: bytes | memoryview
    is_carried: bool


@dataclass(eq=False)
class CompactionRun:
    """One pass on its way."""

    store: MessageStore
    plan: CompactionPlan
    queue_id: int
    """Where the new remains go."""
    keys_max: int

    is_done: bool = field(init=False, default=False)
    messages: int = field(init=False, default=0)
    oldest_ms: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        plan = self.plan
        self._keys = LastOffsets(self.keys_max)
        self.clean = plan.clean
        """How far keys were looked at."""
        self.end = plan.start
        """How far messages were copied."""
        self._is_looking = plan.compacts and plan.clean < plan.dirty_end
        self._tombstones: dict[int, int] = {}
        """Those that stay, by the end of the part they are in, as in `CompactedSegment.cleaned`."""

    def step(self) -> list[NewMessage]:
        """Go on, for some milliseconds; what is to be written."""
        if self._is_looking:
            self._look()
            return []
        plan = self.plan
        carried_to = 0 if plan.before is None else plan.before.end
        limit = max(self.clean, carried_to, plan.carry_end)
        pieces, after = self._read(self.end, limit)
        made = [each for piece in pieces if (each := self._left_of(piece)) is not None]
        self.is_done = after is None
        self.end = pieces[-1].end if after is None and pieces else after or self.end
        if self.is_done:
            self.end = max(self.end, self.clean, carried_to)
        return made

    def _look(self) -> None:
        """Note the keys of some more batches."""
        plan = self.plan
        pieces, after = self._read(max(self.clean, plan.start), plan.dirty_end)
        for piece in pieces:
            if piece.is_carried and kafka.read_head(piece.data).max_ms > plan.young_ms:
                after = None
                break
            opened = self._opened(piece)
            for span in () if opened is None else opened[2]:
                if span.key is not None:
                    self._keys.add(span.key, piece.first + span.offset_delta)
            self.clean = piece.end
            if self._keys.is_full:
                after = None
                break
        else:
            self.clean = self.clean if after is None else after
        self._is_looking = after is not None

    # -- reading -------------------------------------------------------------------------------

    def _read(self, offset: int, limit: int) -> tuple[list[_Piece], int | None]:
        """Some whole batches from an offset on, and where to go on; None if nothing follows."""
        if offset >= limit:
            return [], None
        before = self.plan.before
        carried = [] if before is None or offset >= before.end else self._carried(before, offset)
        if carried and before is not None:
            after = before.end if carried[-1].end >= before.end else carried[-1].end
            return carried, after if after < limit else None
        if before is not None:
            offset = max(offset, before.end)
        return self._written(offset, limit)

    def _carried(self, before: CompactedSegment, offset: int) -> list[_Piece]:
        """From the remains of the pass before."""
        number = before.number_at(self.store, offset)
        if number >= before.last:
            return []
        found = []
        count = min(before.last - number, _STEP_COUNT)
        read = self.store.read_now(COMPACTED_TOPIC, before.queue_id, number, count, STEP_BYTES)
        if read.status is not FetchStatus.FOUND:
            raise StoreError(f"what is left of {self.plan.queue_key} cannot be read: {read.status}")
        for view in read.slices:
            for message in decode_messages(view):
                batch = kafka.read_head(message.body)
                end = batch.base_offset + batch.last_offset_delta + 1
                found.append(_Piece(batch.base_offset, end, message.body, True))
        return found

    def _written(self, offset: int, limit: int) -> tuple[list[_Piece], int | None]:
        """From the queue itself; a batch that reaches over the limit is left for later."""
        topic, queue_id = self.plan.queue_key
        if offset >= limit:
            return [], None
        read = self.store.read_now(topic, queue_id, offset, _STEP_COUNT, STEP_BYTES)
        if read.status is not FetchStatus.FOUND:
            return [], min(read.next_offset, limit) if offset < read.next_offset else None
        pieces: list[_Piece] = []
        plain: list[Message] = []
        for message in (each for view in read.slices for each in decode_messages(view)):
            first = offset_in(topic, queue_id, message)
            if first + message.inner_count > limit:
                return [*pieces, *_batches(plain)], None
            if form_of(message.sys_flag) == Form.KAFKA:
                pieces += _batches(plain)
                plain = []
                end = first + message.inner_count
                pieces.append(_Piece(first, end, message.body, False))
            else:
                plain += _single(message._replace(queue_offset=QueueOffset(first)))
        after = read.next_offset
        return [*pieces, *_batches(plain)], after if after < limit else None

    # -- what stays ----------------------------------------------------------------------------

    def _opened(self, piece: _Piece) -> tuple[Batch, bytes, list[Span]] | None:
        """A batch and its messages, if they can be read; of what was not committed there are none.

        What cannot be read stays as it is: it came before the topic was compacted.
        """
        try:
            batch = kafka.read_head(piece.data)
            if batch.is_control or self._is_aborted(batch, piece.first):
                return batch, b"", []
            return kafka.spans(piece.data)
        except WireError as error:
            log.warning(
                "batch %d of %s stays as it is: %s", piece.first, self.plan.queue_key, error
            )
            return None

    def _is_aborted(self, batch: Batch, first: int) -> bool:
        return bool(batch.attributes & Attribute.TRANSACTIONAL) and any(
            each.producer_id == batch.producer_id and each.first_offset <= first <= each.last_offset
            for each in self.plan.aborted
        )

    def _left_of(self, piece: _Piece) -> NewMessage | None:
        """The record for what stays of a batch, if anything does."""
        opened = self._opened(piece)
        if opened is None:
            body = piece.first.to_bytes(8, "big") + bytes(piece.data[8:])
            return self._record(body, piece.end, self.plan.young_ms)
        batch, raw, spans = opened
        kept = self._kept(batch, spans, piece.first)
        if not kept:
            return None
        body = kafka.with_only(piece.data, batch, raw, kept, piece.first)
        self.messages += len(kept)
        max_ms = kafka.read_head(body).max_ms
        if not self.oldest_ms or max_ms < self.oldest_ms:
            self.oldest_ms = max_ms
        return self._record(body, piece.end, max_ms)

    def _kept(self, batch: Batch, spans: Sequence[Span], first: int) -> list[Span]:
        plan = self.plan
        is_append_time = batch.attributes & Attribute.APPEND_TIME
        left = [span for span in spans if first + span.offset_delta >= plan.start]
        if plan.expired_ms > 0:
            left = [
                span
                for span in left
                if (batch.max_ms if is_append_time else batch.base_ms + span.time_delta)
                >= plan.expired_ms
            ]
        if not plan.compacts:
            return left
        keys = [span.key or b"" for span in left]
        gone = self._keys.superseded(keys, [first + span.offset_delta for span in left])
        kept = []
        for span, is_gone in zip(left, gone, strict=True):
            offset = first + span.offset_delta
            if offset >= self.clean:
                kept.append(span)
            elif not is_gone and span.key is not None:
                if span.is_tombstone:
                    if offset < plan.tombstones_before:
                        continue
                    self._count_tombstone(offset)
                kept.append(span)
        return kept

    def _count_tombstone(self, offset: int) -> None:
        known = () if self.plan.before is None else self.plan.before.cleaned
        end = next((each.end for each in known if offset < each.end), self.clean)
        self._tombstones[end] = self._tombstones.get(end, 0) + 1

    def _record(self, body: bytes, end: int, max_ms: int) -> NewMessage:
        return NewMessage(
            COMPACTED_TOPIC,
            self.queue_id,
            body,
            encode_properties({LAST_OFFSET: str(end - 1)}),
            sys_flag=_KAFKA_FORM,
            born_ms=max_ms,
        )

    def compacted(self, first: int, last: int, now_ms: int) -> CompactedSegment:
        """What there is after the pass, which was written there."""
        known = () if self.plan.before is None else self.plan.before.cleaned
        times = {each.end: each.time_ms for each in known}
        # Those of about the same time are one part: a queue may be gone over every few seconds.
        about_ms = max(1, self.plan.tombstone_ms // _TIMES_KEPT)
        parts: dict[int, Cleaned] = {}
        for end, count in sorted(self._tombstones.items()):
            time_ms = times.get(end, now_ms)
            same = parts.get(time_ms // about_ms)
            count += 0 if same is None else same.tombstones
            parts[time_ms // about_ms] = Cleaned(end, time_ms, count)
        return CompactedSegment(
            self.queue_id,
            first,
            last,
            self.plan.start,
            self.clean,
            self.end,
            self.messages,
            self.oldest_ms,
            now_ms,
            tuple(parts.values()),
        )


def _single(message: Message) -> list[Message]:
    """The messages in a record of RocketMQ's form."""
    try:
        return unwrapped([message])
    except WireError:
        return [message]


def _batches(messages: Sequence[Message]) -> list[_Piece]:
    """Messages of RocketMQ's form as batches; a new one where offsets do not follow."""
    pieces = []
    begin = 0
    for end in range(1, len(messages) + 1):
        if end == len(messages) or messages[end].queue_offset != messages[end - 1].queue_offset + 1:
            run = messages[begin:end]
            first = run[0].queue_offset
            pieces.append(_Piece(first, first + len(run), in_kafka_form(run, first), False))
            begin = end
    return pieces
