"""The messages of stored Kafka batches as rows, without an object for each.

What `flat` makes of a batch one message at a time, here all become at once: a layout whose
bodies lie in the batches as they are, and whose fronts and properties are written behind them.

The fields of all records of the batches are found with a few passes over arrays.

Invariants: the rows are those of `in_rocketmq_form`. What it does to keys and headers that are no
plain texts, and to times beyond all bounds, is left to it: such batches are not taken.
`find_fields` finds what `forms.kafka.records` reads, and raises `WireError` where that does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onelog.errors import WireError
from onelog.message import KEYS, PROPERTIES_BYTES_MAX, UNIQUE_KEY, Message
from onelog.record.columns import Bytes, Ints, Layout, Mask, heads_at
from onelog.record.columns.pieces import pieces
from onelog.record.forms import kafka, rocketmq
from onelog.record.forms.neutral import TIME_MAX_MS
from onelog.record.layout import BORN_MS, HEADS, QUEUE_OFFSET, SYS_FLAG

_KEY_BYTES_MAX = PROPERTIES_BYTES_MAX // 2
_END = pa.scalar(b"\x02")
_NULL_BODY = f"{rocketmq.BODY}\x01{rocketmq.NULL}\x02".encode()


_ALIKE_MIN = 4
"""So many records that are as long as the one before make it worth to look for more at once."""
_LOOK_MIN = 256
_KINDS = {1: np.uint8, 2: np.uint16}
"""Lengths that can be compared as numbers: those of records up to 8 KB."""
_NONE: Ints = np.empty(0, np.int64)
_LAST_SHIFT = 63
"""Of the tenth byte of a varint, which has one bit left."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The records in `raw`, one row for each; places count from the start of `raw`."""

    raw: Bytes
    batch: Ints
    """The number of its batch."""
    offset_delta: Ints
    time_ms: Ints
    key_at: Ints
    key_end: Ints
    has_key: Mask
    value_at: Ints
    value_end: Ints
    has_value: Mask
    headers: Ints
    """How many there are."""


def find_fields(batches: Sequence[bytes | memoryview], behind: bytes = b"") -> Fields:
    """The fields of the records in batches, one batch behind the other, and `behind` at the end."""
    texts, bounds, first_ms, counts = [], [], [], []
    size = 0
    is_stamped = np.zeros(len(batches), np.bool_)
    for number, batch in enumerate(batches):
        head = kafka.read_head(batch)
        counts.append(0 if head.is_control else head.records)
        first_ms.append(head.base_ms)
        if head.is_control:
            continue
        text = kafka.unpacked(batch, head)
        if head.append_ms is not None:
            first_ms[-1], is_stamped[number] = head.append_ms, True
        try:
            bounds += _bounds(text, head.records, size)
        except IndexError:
            raise WireError("a record batch is cut off") from None
        texts.append(text)
        size += len(text)
    raw = np.frombuffer(b"".join([*texts, behind]), np.uint8)
    rows = np.repeat(np.arange(len(batches)), counts)
    at = np.concatenate([_NONE, *(begins for begins, _ in bounds)])
    end = np.concatenate([_NONE, *(ends for _, ends in bounds)])
    return _fields(raw, rows, at, end, np.array(first_ms, np.int64), is_stamped)


def _fields(
    raw: Bytes, rows: Ints, at: Ints, end: Ints, first_ms: Ints, is_stamped: Mask
) -> Fields:
    try:
        time_delta, at = _varints(raw, at + 1)
        offset_delta, at = _varints(raw, at)
        key_bytes, key_at = _varints(raw, at)
        key_end = key_at + np.maximum(key_bytes, 0)
        value_bytes, value_at = _varints(raw, key_end)
        value_end = value_at + np.maximum(value_bytes, 0)
        headers, at = _varints(raw, value_end)
        _check_headers(raw, headers, at, end)
    except IndexError:
        raise WireError("a record batch is cut off") from None
    if is_stamped.any():
        time_delta[is_stamped[rows]] = 0
    return Fields(
        raw,
        rows,
        offset_delta,
        first_ms[rows] + time_delta,
        key_at,
        key_end,
        key_bytes >= 0,
        value_at,
        value_end,
        value_bytes >= 0,
        headers,
    )


def _check_headers(raw: Bytes, headers: Ints, at: Ints, end: Ints) -> None:
    """See that the headers of each record end where it ends."""
    if (headers < 0).any() or (headers > len(raw) - at).any():
        raise WireError("a record of a batch claims more headers than there are bytes")
    at = at.copy()
    rows = np.flatnonzero(headers)
    done = 0
    while len(rows):
        for is_name in (True, False):
            size, at[rows] = _varints(raw, at[rows])
            if is_name and (size < 0).any():
                raise WireError("a record of a batch has a header without a name")
            at[rows] += np.maximum(size, 0)
        done += 1
        rows = rows[headers[rows] > done]
    if (at != end).any():
        raise WireError("a record of a batch is not as long as it says")


def _bounds(text: bytes, count: int, start: int) -> list[tuple[Ints, Ints]]:
    """Where each record begins, behind its length, and ends, if the first is at `start`."""
    raw = np.frombuffer(text, np.uint8)
    runs: list[tuple[Ints, Ints]] = []
    begins: list[int] = []
    ends: list[int] = []
    at, left, alike, before = 0, count, 0, 0
    while left:
        size, begin = kafka.varint(text, at)
        if size < 0:
            raise WireError(f"a record of a batch claims {size} bytes")
        begins.append(begin + start)
        end = begin + size
        ends.append(end + start)
        left -= 1
        step, at = end - at, end
        alike = alike + 1 if step == before else 0
        before = step
        if alike == _ALIKE_MIN and left:
            width = step - size
            more = _alike(raw, at, text[begin - width : begin], step, left)
            following = np.arange(at + width, at + width + more * step, step) + start
            runs += [(np.array(begins), np.array(ends)), (following, following + size)]
            begins, ends, alike = [], [], 0
            at, left = at + more * step, left - more
    if at != len(text):
        raise WireError(f"the records of a batch end at byte {at} of {len(text)}")
    if begins:
        runs.append((np.array(begins), np.array(ends)))
    return runs


def _alike(raw: Bytes, at: int, length: bytes, step: int, most: int) -> int:
    """How many records from `at` on are `step` bytes long, and begin with this length."""
    most = min(most, (len(raw) - at) // step)
    kind = _KINDS.get(len(length))
    if kind is None:
        return 0
    wanted, count, look = np.frombuffer(length, kind)[0], 0, _LOOK_MIN
    while count < most:
        look = min(look, most - count)
        differs = np.ndarray((look,), kind, raw, at + count * step, (step,)) != wanted
        first = int(differs.argmax())
        if differs[first]:
            return count + first
        count, look = count + look, 8 * look
    return count


def _varints(raw: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The zig-zag varints at these places, and the places behind them; `IndexError`."""
    byte = raw[at].astype(np.int64)
    value, behind = byte & 0x7F, at + 1
    rows = np.flatnonzero(byte >= 0x80)
    shift = 7
    while len(rows):
        byte = raw[behind[rows]].astype(np.int64)
        if shift == _LAST_SHIFT and (byte > 1).any():
            raise WireError("a varint of a record batch has more than 64 bits")
        value[rows] |= (byte & 0x7F) << shift
        behind[rows] += 1
        rows = rows[byte >= 0x80]
        shift += 7
    # The top bit of the shifted value is none of its sign.
    found: Ints = (value >> 1 & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1)
    return found, behind


# -- rows -----------------------------------------------------------------------------------------


class Front(NamedTuple):
    """A record that holds a batch, how it begins, and what its rows have for a sysFlag."""

    record: Message
    start: Bytes
    sys_flag: int

    def is_like(self, other: "Front") -> bool:
        """Whether the rows of both can stand in one layout."""
        return self.record.topic == other.record.topic and self.hosts == other.hosts

    @property
    def hosts(self) -> int:
        """The bits that say how long the addresses in it are."""
        return self.sys_flag >> 4 & 3


class WantedColumns(NamedTuple):
    """What somebody looks at, beside heads."""

    names: bool
    """Of topics."""
    any: bool
    """Property."""
    keys: bool
    ids: bool
    bodies: bool = True


def rows_of(fronts: Sequence[Front], wanted: WantedColumns) -> Layout | None:
    """The messages of records that are like each other; None if they are to be taken one by one."""
    name, hosts = fronts[0].record.topic.encode(), fronts[0].hosts
    found = find_fields([front.record.body for front in fronts], name + b"\0\0")
    if wanted.any and not _is_plain(found):
        return None
    if ((found.time_ms < 0) | (found.time_ms > TIME_MAX_MS)).any():
        return None
    count, width = len(found.batch), HEADS[hosts].size
    heads = np.stack([front.start[:width] for front in fronts])[found.batch]
    first = np.array([front.record.queue_offset for front in fronts], np.int64)
    flags = np.array([front.sys_flag for front in fronts], np.int64)[found.batch]
    heads[:, QUEUE_OFFSET] = _big(found.offset_delta + first[found.batch], 8)
    heads[:, SYS_FLAG] = _big(flags, 4)
    heads[:, BORN_MS] = _big(found.time_ms, 8)
    size = len(found.raw)
    parts, at = [found.raw], np.zeros(count, np.int64)
    if hosts or wanted.ids:  # Else nobody looks for anything in heads that is not in `Layout.head`.
        parts.append(heads.reshape(-1))
        at = size + np.arange(count) * width
        size += heads.size
    has_nulls = (wanted.bodies or wanted.keys) and not found.has_value.all()
    if wanted.names or wanted.keys or wanted.ids or has_nulls:
        ids = [f"{UNIQUE_KEY}\x01{front.record.message_id}-" for front in fronts]
        tails, tail_at = _tails(found, name, wanted, ids)
        parts.append(tails)
        name_at, end = tail_at[:-1] + size, tail_at[1:] + size
    else:
        name_at, end = np.full((2, count), len(found.raw))
        name_at -= len(name) + 2
    return Layout(
        np.concatenate(parts) if len(parts) > 1 else found.raw,
        at,
        end,
        heads_at(heads.reshape(-1), np.arange(count) * width),
        flags,
        found.value_at,
        found.value_end,
        name_at,
        name_at + len(name),
    )


def _big(numbers: Ints, width: int) -> Bytes:
    """Each number as so many bytes."""
    found: Bytes = numbers.astype(f">i{width}").view(np.uint8).reshape(-1, width)
    return found


def _is_plain(found: Fields) -> bool:
    """Whether keys are texts as properties have them, and there is nothing else to be kept."""
    if found.headers.any():
        return False
    sizes = (found.key_end - found.key_at)[found.has_key]
    if not len(sizes):
        return True
    if not sizes.all() or sizes.max() > _KEY_BYTES_MAX:
        return False
    keys = _keys(found, found.has_key)
    text = np.frombuffer(keys.buffers()[2], np.uint8, int(sizes.sum()))
    if ((text == 1) | (text == 2)).any():
        return False
    try:
        keys.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _keys(found: Fields, rows: Mask) -> pa.Array:
    return pieces(found.raw, found.key_at[rows], found.key_end[rows])


def _tails(found: Fields, name: bytes, wanted: WantedColumns, ids: list[str]) -> tuple[Bytes, Ints]:
    """Topics and properties, with the length between them; and where each begins, and ends."""
    count = len(found.batch)
    parts: list[pa.Array | pa.Scalar] = []
    if wanted.keys and found.has_key.any():
        keys = [pa.scalar(f"{KEYS}\x01".encode()), _keys(found, found.has_key), _END]
        if found.has_key.all():
            parts += keys
        else:
            rows_at = pa.array(np.cumsum(found.has_key) - 1, mask=~found.has_key)
            parts.append(pc.fill_null(_joined(keys).take(rows_at), b""))
    if not found.has_value.all():
        parts.append(pc.if_else(pa.array(found.has_value), b"", _NULL_BODY))
    if wanted.ids:
        of_batches = pa.array([each.encode() for each in ids]).take(pa.array(found.batch))
        numbers = pa.array(found.offset_delta).cast(pa.string()).cast(pa.binary())
        parts += [of_batches, numbers, _END]
    sizes = sum((_sizes(part, count) for part in parts), np.zeros(count, np.int64))
    lengths = pa.Array.from_buffers(
        pa.binary(),
        count,
        [
            None,
            pa.py_buffer(np.arange(count + 1, dtype=np.int32) * 2),
            pa.py_buffer(sizes.astype(">u2")),
        ],
    )
    whole = _joined([pa.scalar(name), lengths, *parts])
    ends = np.concatenate([[0], np.cumsum(sizes + len(name) + 2)])
    return np.frombuffer(whole.buffers()[2], np.uint8, int(ends[-1])), ends


def _sizes(part: pa.Array | pa.Scalar, count: int) -> Ints:
    if isinstance(part, pa.Scalar):
        return np.full(count, len(part.as_py()), np.int64)
    return np.diff(np.frombuffer(part.buffers()[1], np.int32, count + 1)).astype(np.int64)


def _joined(parts: list[pa.Array | pa.Scalar]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, b"")
