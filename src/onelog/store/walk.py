"""Records of the log, read and checked many at a time, as columns.

Recovery and verification look at every record, and one Python call per field would take hours for
a large log. So a stretch of the log is read at once: a loop follows the lengths from record to
record, and everything at a fixed place in a record is then taken from all of them together.

Everything is read with system calls, never through a map: a sector that the disk cannot read is
damage like any other, where a touch of the map would end the process.

Invariant: what is accepted here is exactly what `record.check` accepts. Whatever looks wrong is
left to `check`, which also says why.
"""

from dataclasses import dataclass

import numpy as np
from isal.isal_zlib import crc32
from numpy.lib.stride_tricks import sliding_window_view

from onelog.errors import StoreError
from onelog.message import (
    MULTI_DISPATCH,
    TRANSACTION_MASK,
    Message,
    SysFlag,
    property_bytes,
    tags_code,
)
from onelog.names import COMPACTED_TOPIC, SCHEDULE_TOPIC
from onelog.record.columns import Ints, Layout, Mask, fixed, lay_out, starts
from onelog.record.decode import Blank, Broken, check, decode_message
from onelog.record.dispatch import TAGS_NEEDLE, TagsCodes, is_deletion, targets
from onelog.record.forms import FORM_CODE, FORM_MASK
from onelog.record.layout import BLANK, CRC_MASK, CRC_NAME, CRC_PROPERTY_BYTES, RECORD_BYTES_MIN
from onelog.store.keyindex import (
    ALIKE_MIN,
    hashes_of,
    tags_codes,
    unique_hashes,
    values_alike,
)
from onelog.store.segment import Segment

_READ_BYTES = 8 << 20
_STRETCH_BYTES = 4 << 20
"""The records of one stretch begin within so many bytes."""
_HELD_BYTES_MIN = 64 << 10
_MULTI_NEEDLE = MULTI_DISPATCH.encode() + b"\x01"
_TOPICS_AT_ONCE = 8
# Operations on an enum's members are calls.
_COMMITTED, _ROLLED_BACK = int(SysFlag.COMMITTED), int(SysFlag.ROLLED_BACK)
_INNER_BATCH = int(SysFlag.INNER_BATCH)
_COPIED_BYTES_MAX = 4 << 10
"""Longer bodies are not copied for their checksum."""
_CRC_NAME = np.frombuffer(CRC_NAME, np.uint8)
_CRC_DIGITS = 10 ** np.arange(10)
"""What the digits of a record's own checksum stand for: the least significant one comes first."""


class TopicNumbers(dict[bytes, int]):
    """A number for each topic's name, given when it is first met."""

    def __missing__(self, name: bytes) -> int:
        """Give the next number."""
        self[name] = number = len(self)
        self.names.append(name.decode("utf-8", "replace"))
        return number

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def of(self, topic: str) -> int:
        return self[topic.encode()]


@dataclass(frozen=True, slots=True)
class QueueEntryColumns:
    """Queue entries that there must be, in the order of the log. One row for each."""

    queue: Ints
    """The topic's number and, in the lower 32 bits, the queue id."""
    offset: Ints
    log: Ints
    size: Ints
    code: Ints


@dataclass(frozen=True, slots=True)
class Stretch:
    """Whole records that follow each other in one segment."""

    log: Ints
    store_ms: Ints
    end: int
    """The log offset after the last of them."""
    entries: QueueEntryColumns
    key_row: Ints
    """For each key of a record, which record it is of; keys are in the order they are indexed."""
    key_hash: Ints
    layout: Layout
    deleted: list[tuple[str, int]]
    """Topics that were deleted here, and the log offset of the record that says so."""


class RecordWalk:
    """Reads segments from front to back."""

    def __init__(
        self, tags_codes: TagsCodes, topics: TopicNumbers, *, require_crc: bool = False
    ) -> None:
        """With `require_crc` only records with a checksum of their own are whole."""
        self._tags_codes = tags_codes
        self._topics = topics
        self.require_crc = require_crc
        self._held: tuple[Segment | None, int, bytes] = None, 0, b""

    def read(
        self, segment: Segment, at: int, limit: int, written: int | None = None
    ) -> tuple[Stretch | None, int, Blank | Broken | None]:
        """The next records from `at` on, up to byte `limit` of the segment.

        Returns them, the place after them, and what stopped it there if it was not a limit.
        Bytes from `written` on are not there yet, and a record that needs them is not whole.
        """
        data, layout, plausible = self._follow_lengths(segment, at, limit, written or segment.size)
        count = self._count_whole(segment, at, data, layout, plausible) if len(layout) else 0
        if count == 0:
            return None, at, None if at >= limit else self._what_stops(segment, at, data)
        after = at + int(layout.end[count - 1])
        return self._stretch(segment.start + at, data, layout.rows(slice(0, count))), after, None

    def _follow_lengths(
        self, segment: Segment, at: int, limit: int, written: int
    ) -> tuple[bytes, Layout, Mask]:
        """Bytes from `at` on, the records in them, and which of these could be whole."""
        data = self._bytes_from(segment, at, written)
        if limit > at and len(data) >= BLANK.size:
            size = int.from_bytes(data[:4], "big")
            if len(data) < size <= written - at:
                # One record is larger than what is read at once.
                data = segment.read_around(at, size)
        raw = np.frombuffer(data, np.uint8)
        last = min(limit - at - 1, len(data) - RECORD_BYTES_MIN, _STRETCH_BYTES)
        layout, whole = lay_out(raw, starts(raw, last))
        # What is cut off by the end of the bytes comes with the next ones.
        inside = layout.end <= len(data)
        layout, whole = layout.rows(inside), whole[inside]
        plausible = whole.copy()
        plausible[whole] = ~layout.rows(whole).is_odd()
        plausible &= layout.log_offset == segment.start + at + layout.at
        return data, layout, plausible

    def _bytes_from(self, segment: Segment, at: int, written: int) -> bytes:
        """What follows from `at` on; what was read last and not used, behind damage, will do."""
        held_by, held_at, held = self._held
        end = held_at + len(held)
        enough = min(at + _HELD_BYTES_MIN, written)
        if held_by is segment and held_at <= at and enough <= end:
            data = held[at - held_at :]
        else:
            if written == segment.size:
                written = max(segment.data_until(at), at + BLANK.size)
            data = segment.read_around(at, min(_READ_BYTES, written - at, segment.size - at))
        self._held = segment, at, data
        return data

    def _count_whole(
        self, segment: Segment, at: int, data: bytes, layout: Layout, plausible: Mask
    ) -> int:
        """How many of the records, from the first on, are whole."""
        count = len(layout)
        view = memoryview(data)
        for row in np.flatnonzero(~plausible).tolist():
            if not isinstance(self._check(segment, at, view, int(layout.at[row])), Message):
                count = row
                break
        bodies = zip(layout.body_at[:count].tolist(), layout.topic_at[:count].tolist(), strict=True)
        source = data if len(data) <= count * _COPIED_BYTES_MAX else view
        found = np.array([crc32(source[start:end]) for start, end in bodies], np.uint32)
        wrong = (found & CRC_MASK) != layout.body_crc[:count]
        wrong |= self._wrong_own_crc(data, layout, count)
        return int(wrong.argmax()) if wrong.any() else count

    def _wrong_own_crc(self, data: bytes, layout: Layout, count: int) -> Mask:
        """Which of the first `count` records have a wrong checksum of their own, or lack one."""
        wrong = np.full(count, self.require_crc)
        raw, end = layout.raw, layout.end[:count]
        long_enough = end - layout.properties_at[:count] - 2 >= CRC_PROPERTY_BYTES
        rows = np.flatnonzero(long_enough & (raw[end - CRC_PROPERTY_BYTES] == _CRC_NAME[0]))
        if not len(rows):
            return wrong
        ends = end[rows] - CRC_PROPERTY_BYTES
        texts = sliding_window_view(raw, CRC_PROPERTY_BYTES)[ends]
        named = (texts[:, : len(_CRC_NAME)] == _CRC_NAME).all(axis=1)
        rows, ends, texts = rows[named], ends[named], texts[named]
        digits = texts[:, len(_CRC_NAME) : -1].astype(np.int64) - ord("0")
        whole = zip(layout.at[rows].tolist(), ends.tolist(), strict=True)
        found = np.array([crc32(data[start:until]) for start, until in whole], np.uint32)
        right = (digits @ _CRC_DIGITS == (found & CRC_MASK)) & (texts[:, -1] == 2)
        wrong[rows] = ~(right & ((digits >= 0) & (digits <= 9)).all(axis=1))
        return wrong

    def _check(
        self, segment: Segment, at: int, view: memoryview, inside: int
    ) -> Message | Blank | Broken:
        """`record.check` of what lies `inside` the bytes that were read at `at`."""
        place = at + inside
        room = segment.size - place
        return check(view, inside, segment.start + place, self.require_crc, room)

    def _what_stops(self, segment: Segment, at: int, data: bytes) -> Blank | Broken:
        found = self._check(segment, at, memoryview(data), 0)
        assert not isinstance(found, Message), f"{segment.path} at {at} is whole after all"
        if isinstance(found, Broken):
            size = int.from_bytes(data[:4], "big")
            room = segment.size - at
            try:
                segment.read(at, size if BLANK.size <= size <= room else min(BLANK.size, room))
            except StoreError as error:
                return Broken(segment.start + at, str(error))
        return found

    def _stretch(self, log_at: int, data: bytes, layout: Layout) -> Stretch:
        topic = self._topic_numbers(data, layout)
        store_ms, log, flags = layout.store_ms, layout.log_offset, layout.sys_flag
        kind = flags & TRANSACTION_MASK
        rolled_back = np.flatnonzero(kind == _ROLLED_BACK).tolist()
        code, special, hashes, key_row = self._texts(data, layout, topic, rolled_back)
        for row in np.flatnonzero(topic == self._topics.of(SCHEDULE_TOPIC)).tolist():
            text = _text(data, layout, row)
            code[row] = self._tags_codes.of(SCHEDULE_TOPIC, text, int(store_ms[row]))
        code[flags & FORM_MASK != 0] = FORM_CODE
        for row in np.flatnonzero(topic == self._topics.of(COMPACTED_TOPIC)).tolist():
            text = _text(data, layout, row)
            code[row] = self._tags_codes.of(COMPACTED_TOPIC, text, int(store_ms[row]))
        plain = (kind == 0) | (kind == _COMMITTED)
        special += np.flatnonzero(flags & _INNER_BATCH).tolist()
        plain[special] = False
        rows = np.flatnonzero(plain)
        queue = (topic << 32) + layout.queue_id
        offset = layout.queue_offset
        if special:
            rows, more_queue, more_offset = self._enter_special(
                sorted(set(special)), rows, layout, queue, offset
            )
        else:
            more_queue, more_offset = queue[rows], offset[rows]
        size = layout.end - layout.at
        entries = QueueEntryColumns(more_queue, more_offset, log[rows], size[rows], code[rows])
        deleted = [
            (self._topics.names[int(topic[row])], int(log[row]))
            for row in rolled_back
            if is_deletion(int(flags[row]), _text(data, layout, row))
        ]
        end = log_at + int(layout.end[-1])
        return Stretch(log, store_ms, end, entries, key_row, hashes, layout, deleted)

    def _topic_numbers(self, data: bytes, layout: Layout) -> Ints:
        """The number of each record's topic: of some topics with many records, all at once."""
        found = np.full(len(layout), -1, np.int64)
        left = np.arange(len(layout))
        for _ in range(_TOPICS_AT_ONCE):
            if len(left) < ALIKE_MIN:
                break
            at, end = int(layout.name_at[left[0]]), int(layout.properties_at[left[0]])
            if at == end:
                break
            alike = left[(layout.properties_at - layout.name_at)[left] == end - at]
            names = fixed(layout.raw, layout.name_at[alike], np.dtype(f"S{end - at}"))
            found[alike[names == data[at:end]]] = self._topics[data[at:end]]
            left = left[found[left] < 0]
        if len(left):
            names_at = zip(
                layout.name_at[left].tolist(), layout.properties_at[left].tolist(), strict=True
            )
            found[left] = [self._topics[data[at:end]] for at, end in names_at]
        return found

    def _texts(
        self, data: bytes, layout: Layout, topic: Ints, rolled_back: list[int]
    ) -> tuple[Ints, list[int], Ints, Ints]:
        """What is found in the properties.

        The tags code of each record; records that go to extra queues; the hashes of all keys, and
        which record each is of. Many of one topic, as long as each other, are looked at as one.
        """
        code = np.zeros(len(layout), np.int64)
        text_at = layout.properties_at + 2
        form = (topic << 16) + layout.end - text_at
        if rolled_back:
            form[rolled_back] = -1  # They have no keys.
        order = np.argsort(form, kind="stable")
        cuts = np.flatnonzero(np.diff(form[order])) + 1
        special: list[int] = []
        single: list[int] = []
        hashes, owners = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for rows in np.split(order, cuts):
            size = int(form[rows[0]]) & 0xFFFF
            if len(rows) < ALIKE_MIN or form[rows[0]] < 0:
                single += rows.tolist()
                continue
            if not size:
                continue
            whole = fixed(layout.raw, text_at[rows], np.dtype((np.void, size))).tobytes()
            name = self._topics.names[int(topic[rows[0]])]
            keys = unique_hashes(name, whole, len(rows))
            tags = values_alike(whole, len(rows), TAGS_NEEDLE)
            if keys is None or whole.find(_MULTI_NEEDLE) >= 0:
                single += rows.tolist()
                continue
            if tags is not None:
                code[rows] = tags_codes(tags)
            elif whole.find(TAGS_NEEDLE) >= 0:
                code[rows] = [
                    _tags_code(whole[at : at + size]) for at in range(0, len(whole), size)
                ]
            hashes.append(keys)
            owners.append(rows[: len(keys)])
        if single:
            texts = [_text(data, layout, row) for row in single]
            code[single] = [*map(_tags_code, texts)]
            special = [
                row for row, text in zip(single, texts, strict=True) if _MULTI_NEEDLE in text
            ]
            for number, row in enumerate(single):
                if form[row] < 0:
                    texts[number] = b""
            names = [self._topics.names[number] for number in topic[single].tolist()]
            more, of = hashes_of(names, texts)
            hashes.append(more)
            owners.append(np.array(single, np.int64)[of])
        key_row = np.concatenate(owners)
        in_order = np.argsort(key_row, kind="stable")
        return code, special, np.concatenate(hashes)[in_order], key_row[in_order]

    def _enter_special(
        self,
        special: list[int],
        rows: Ints,
        layout: Layout,
        queue: Ints,
        offset: Ints,
    ) -> tuple[Ints, Ints, Ints]:
        """The places of inner batches and of records in extra queues, among those of the others.

        Returns for each place the record's row, the queue, and the offset in it.
        """
        all_rows, all_queues, all_offsets = [rows], [queue[rows]], [offset[rows]]
        for row in special:
            for target in targets(decode_message(layout.raw.data, int(layout.at[row]))):
                number = (self._topics.of(target.topic) << 32) + target.queue_id
                all_rows.append(np.full(target.entries, row))
                all_queues.append(np.full(target.entries, number))
                first = target.queue_offset
                all_offsets.append(np.arange(first, first + target.entries))
        found = np.concatenate(all_rows)
        order = np.argsort(found, kind="stable")
        return (
            found[order],
            np.concatenate(all_queues)[order],
            np.concatenate(all_offsets)[order],
        )


def _text(data: bytes, layout: Layout, row: int) -> bytes:
    """The properties of a record."""
    return data[int(layout.properties_at[row]) + 2 : int(layout.end[row])]


def _tags_code(properties: bytes) -> int:
    tags = property_bytes(properties, TAGS_NEEDLE)
    return tags_code(tags) if tags else 0
