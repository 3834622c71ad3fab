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
import numpy.typing as npt
from isal.isal_zlib import crc32
from numpy.lib.stride_tricks import sliding_window_view

from onelog.errors import StoreError
from onelog.message import (
    MULTI_DISPATCH,
    TAGS,
    TRANSACTION_MASK,
    LogOffset,
    Message,
    SysFlag,
    property_bytes,
    tags_code,
)
from onelog.names import SCHEDULE_TOPIC
from onelog.store.dispatch import TagsCodes, is_deletion, targets
from onelog.store.keyhash import hashes_of
from onelog.store.record import (
    BLANK,
    CRC_MASK,
    CRC_NAME,
    CRC_PROPERTY_BYTES,
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    Blank,
    Broken,
    check,
)
from onelog.store.segment import Segment

Ints = npt.NDArray[np.int64]

_READ_BYTES = 8 << 20
_RECORDS_MAX = 32_768
_HELD_BYTES_MIN = 64 << 10
_FIXED = np.dtype(
    [
        ("size", ">u4"), ("magic", ">u4"), ("crc", ">u4"), ("queue_id", ">i4"), ("flag", ">i4"),
        ("queue_offset", ">i8"), ("log", ">i8"), ("sys_flag", ">i4"), ("born_ms", ">i8"),
    ]
)  # fmt: skip
"""The part of a record before its first address, which has the same place in all of them."""
_HEAD_BYTES = np.array([head.size for head in HEADS])
_TAGS_NEEDLE = TAGS.encode() + b"\x01"
_MULTI_NEEDLE = MULTI_DISPATCH.encode() + b"\x01"
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
        """The number of a topic."""
        return self[topic.encode()]


@dataclass(frozen=True, slots=True)
class Places:
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
    places: Places
    key_row: Ints
    """For each key of a record, which record it is of; keys are in the order they are indexed."""
    key_hash: Ints
    topics: list[str]
    tags: list[bytes | None]
    deleted: list[tuple[str, int]]
    """Topics that were deleted here, and the log offset of the record that says so."""


@dataclass(frozen=True, slots=True)
class _Fields:
    """Where things are in the bytes that were read, and what the fixed fields say."""

    at: Ints
    fixed: npt.NDArray[np.void]
    store_ms: Ints
    body_at: Ints
    topic_at: Ints
    name_at: Ints
    properties_at: Ints
    end: Ints
    plausible: npt.NDArray[np.bool_]


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
        self, segment: Segment, at: int, limit: int
    ) -> tuple[Stretch | None, int, Blank | Broken | None]:
        """The next records from `at` on, up to byte `limit` of the segment.

        Returns them, the place after them, and what stopped it there if it was not a limit.
        """
        data, starts = self._follow_lengths(segment, at, limit)
        if not starts:
            if at >= limit:
                return None, at, None
            return None, at, self._what_stops(segment, at, data)
        fields = _find_fields(data, np.array(starts), segment.start + at)
        count = self._count_whole(segment, at, data, fields)
        if count == 0:
            return None, at, self._what_stops(segment, at, data)
        after = at + int(fields.end[count - 1])
        return self._stretch(segment.start + at, data, fields, count), after, None

    def _follow_lengths(self, segment: Segment, at: int, limit: int) -> tuple[bytes, list[int]]:
        """Bytes from `at` on, and where in them records start, if the lengths can be trusted."""
        data = self._bytes_from(segment, at)
        starts: list[int] = []
        here = 0
        unpack = BLANK.unpack_from
        stop = limit - at
        while here < stop and len(starts) < _RECORDS_MAX and here + BLANK.size <= len(data):
            size, magic = unpack(data, here)
            if size < RECORD_BYTES_MIN or (magic != MAGIC_V1 and magic != MAGIC_V2):
                break
            if here + size > len(data):
                if starts or at + size > segment.size:
                    break
                # One record is larger than what is read at once.
                data = segment.read_around(at, size)
            starts.append(here)
            here += size
        return data, starts

    def _bytes_from(self, segment: Segment, at: int) -> bytes:
        """What follows from `at` on; what was read last and not used, behind damage, will do."""
        held_by, held_at, held = self._held
        end = held_at + len(held)
        enough = min(at + _HELD_BYTES_MIN, segment.size)
        if held_by is segment and held_at <= at and enough <= end:
            data = held[at - held_at :]
        else:
            written = max(segment.data_until(at) - at, BLANK.size)
            data = segment.read_around(at, min(_READ_BYTES, written, segment.size - at))
        self._held = segment, at, data
        return data

    def _count_whole(self, segment: Segment, at: int, data: bytes, fields: _Fields) -> int:
        """How many of the records, from the first on, are whole."""
        count = len(fields.at)
        view = memoryview(data)
        for row in np.flatnonzero(~fields.plausible).tolist():
            if not isinstance(self._check(segment, at, view, int(fields.at[row])), Message):
                count = row
                break
        bodies = zip(fields.body_at[:count].tolist(), fields.topic_at[:count].tolist(), strict=True)
        found = np.array([crc32(data[start:end]) for start, end in bodies], np.uint32)
        wrong = (found & CRC_MASK) != fields.fixed["crc"][:count]
        wrong |= self._wrong_own_crc(data, fields, count)
        return int(wrong.argmax()) if wrong.any() else count

    def _wrong_own_crc(self, data: bytes, fields: _Fields, count: int) -> npt.NDArray[np.bool_]:
        """Which of the first `count` records have a wrong checksum of their own, or lack one."""
        wrong = np.full(count, self.require_crc)
        raw = np.frombuffer(data, np.uint8)
        end = fields.end[:count]
        long_enough = end - fields.properties_at[:count] - 2 >= CRC_PROPERTY_BYTES
        rows = np.flatnonzero(long_enough & (raw[end - CRC_PROPERTY_BYTES] == _CRC_NAME[0]))
        if not len(rows):
            return wrong
        ends = end[rows] - CRC_PROPERTY_BYTES
        texts = sliding_window_view(raw, CRC_PROPERTY_BYTES)[ends]
        named = (texts[:, : len(_CRC_NAME)] == _CRC_NAME).all(axis=1)
        rows, ends, texts = rows[named], ends[named], texts[named]
        digits = texts[:, len(_CRC_NAME) : -1].astype(np.int64) - ord("0")
        whole = zip(fields.at[rows].tolist(), ends.tolist(), strict=True)
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

    def _stretch(self, log_at: int, data: bytes, fields: _Fields, count: int) -> Stretch:
        fixed = fields.fixed[:count]
        names = zip(fields.name_at.tolist(), fields.properties_at[:count].tolist(), strict=False)
        topic = np.array([self._topics[data[a:b]] for a, b in names], np.int64)
        tails = zip(fields.properties_at.tolist(), fields.end[:count].tolist(), strict=False)
        properties = [data[a + 2 : b] for a, b in tails]
        tags = [property_bytes(text, _TAGS_NEEDLE) for text in properties]
        store_ms = fields.store_ms[:count]
        log = fixed["log"].astype(np.int64)
        flags = fixed["sys_flag"].astype(np.int64)
        code = np.array([tags_code(text) if text else 0 for text in tags], np.int64)
        for row in np.flatnonzero(topic == self._topics.of(SCHEDULE_TOPIC)).tolist():
            code[row] = self._tags_codes.of(SCHEDULE_TOPIC, properties[row], int(store_ms[row]))
        kind = flags & TRANSACTION_MASK
        plain = (kind == 0) | (kind == SysFlag.COMMITTED)
        special = [row for row, text in enumerate(properties) if _MULTI_NEEDLE in text]
        special += np.flatnonzero(flags & SysFlag.INNER_BATCH).tolist()
        plain[special] = False
        rows = np.flatnonzero(plain)
        queue = (topic << 32) + fixed["queue_id"]
        offset = fixed["queue_offset"].astype(np.int64)
        if special:
            rows, more_queue, more_offset = self._place_special(
                sorted(set(special)), rows, data, fields, queue, offset
            )
        else:
            more_queue, more_offset = queue[rows], offset[rows]
        size = fixed["size"].astype(np.int64)
        places = Places(more_queue, more_offset, log[rows], size[rows], code[rows])
        topics = [self._topics.names[number] for number in topic.tolist()]
        deleted = []
        keyed = properties
        rolled_back = np.flatnonzero(kind == SysFlag.ROLLED_BACK).tolist()
        if rolled_back:
            keyed = properties.copy()
        for row in rolled_back:
            keyed[row] = b""
            if is_deletion(int(flags[row]), properties[row]):
                deleted.append((topics[row], int(log[row])))
        hashes, key_row = hashes_of(topics, keyed)
        end = log_at + int(fields.end[count - 1])
        return Stretch(log, store_ms, end, places, key_row, hashes, topics, tags, deleted)

    def _place_special(
        self,
        special: list[int],
        rows: Ints,
        data: bytes,
        fields: _Fields,
        queue: Ints,
        offset: Ints,
    ) -> tuple[Ints, Ints, Ints]:
        """The places of inner batches and of records in extra queues, among those of the others.

        Returns for each place the record's row, the queue, and the offset in it.
        """
        all_rows, all_queues, all_offsets = [rows], [queue[rows]], [offset[rows]]
        for row in special:
            message = _message(data, fields, row, int(fields.fixed["log"][row]))
            for target in targets(message):
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


def _find_fields(data: bytes, at: Ints, log_at: int) -> _Fields:
    """The places of all fields, and which records could be whole."""
    raw = np.frombuffer(data, np.uint8)
    fixed = sliding_window_view(raw, _FIXED.itemsize)[at].view(_FIXED).ravel()
    head_bytes = _HEAD_BYTES[fixed["sys_flag"].astype(np.int64) >> 4 & 3]
    born_bytes = np.where(fixed["sys_flag"].astype(np.int64) & SysFlag.BORN_HOST_V6, 20, 8)
    store_ms = _integers(raw, at + _FIXED.itemsize + born_bytes, ">i8")
    end = at + fixed["size"]
    body_at = at + head_bytes
    # Where lengths are wrong, look at the record's own start instead of outside of the bytes.
    plausible = body_at < end
    body_bytes = _integers(raw, np.where(plausible, body_at - 4, at), ">u4")
    topic_at = body_at + body_bytes
    is_v1 = fixed["magic"] == MAGIC_V1
    name_at = topic_at + np.where(is_v1, 1, 2)
    plausible &= name_at + 2 < end
    safe_topic = np.where(plausible, topic_at, at)
    topic_bytes = np.where(is_v1, raw[safe_topic], _integers(raw, safe_topic, ">u2"))
    properties_at = np.where(plausible, name_at + topic_bytes, at)
    plausible &= (properties_at + 2 <= end) & (topic_bytes > 0)
    properties_at = np.where(plausible, properties_at, at)
    properties_bytes = _integers(raw, properties_at, ">u2")
    plausible &= properties_at + 2 + properties_bytes == end
    plausible &= (raw[properties_at - 1] != 0) & ((properties_bytes == 0) | (raw[end - 1] != 0))
    plausible &= (fixed["log"] == log_at + at) & (fixed["queue_offset"] >= 0)
    plausible &= fixed["queue_id"] >= 0
    return _Fields(at, fixed, store_ms, body_at, topic_at, name_at, properties_at, end, plausible)


def _integers(raw: npt.NDArray[np.uint8], at: Ints, kind: str) -> Ints:
    """The big-endian integers at these places."""
    width = np.dtype(kind).itemsize
    values: Ints = sliding_window_view(raw, width)[at].view(kind).ravel().astype(np.int64)
    return values


def _message(data: bytes, fields: _Fields, row: int, log_offset: int) -> Message:
    """The record of one row, as `targets` wants it."""
    fixed = fields.fixed[row]
    name = data[int(fields.name_at[row]) : int(fields.properties_at[row])]
    properties = data[int(fields.properties_at[row]) + 2 : int(fields.end[row])]
    return Message(
        name.decode("utf-8", "replace"), int(fixed["queue_id"]), fixed["queue_offset"].item(),
        LogOffset(log_offset), memoryview(b""), properties, 0, int(fixed["sys_flag"]), 0, b"",
        int(fields.store_ms[row]), b"", 0, 0, 0, int(fixed["size"]),
    )  # fmt: skip
