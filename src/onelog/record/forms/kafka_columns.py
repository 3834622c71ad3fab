"""Where the fields of all records of Kafka batches lie: found with a few passes over arrays.

Invariant: `find_fields` finds what `kafka.records` reads, and raises `WireError` where that does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onelog.errors import WireError
from onelog.record.columns import Bytes, Ints, Mask
from onelog.record.forms import kafka

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
