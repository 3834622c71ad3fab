"""Where the fields of all records of a Kafka batch lie: found with a few passes over arrays.

Invariant: `find_fields` finds what `kafka.records` reads, and raises `WireError` where that does.
"""

from dataclasses import dataclass

import numpy as np

from onelog.errors import WireError
from onelog.record.columns import Bytes, Ints, Mask
from onelog.record.forms import kafka

_ALIKE_MIN = 8
"""So many records that are as long as the one before make it worth to look for more at once."""
_LOOK_MIN = 64
_LAST_SHIFT = 63
"""Of the tenth byte of a varint, which has one bit left."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The records in `raw`, one row for each; places count from the start of `raw`."""

    raw: Bytes
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


def find_fields(batch: bytes | memoryview) -> Fields | None:
    """The fields of the records in a batch; None of a control batch."""
    head = kafka.read_head(batch)
    if head.is_control:
        return None
    text, append_ms = kafka.unpacked(batch, head)
    raw = np.frombuffer(text, np.uint8)
    try:
        at, end = _bounds(text, raw, head.records)
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
    time_ms = head.base_ms + time_delta if append_ms is None else np.full(len(at), append_ms)
    return Fields(
        raw, offset_delta, time_ms, key_at, key_end, key_bytes >= 0, value_at, value_end,
        value_bytes >= 0, headers,
    )  # fmt: skip


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


def _bounds(text: bytes, raw: Bytes, count: int) -> tuple[Ints, Ints]:
    """Where each record begins, behind its length, and ends."""
    runs: list[tuple[Ints, Ints]] = []
    begins: list[int] = []
    ends: list[int] = []
    at, left, alike, before = 0, count, 0, (0, 0)
    while left:
        size, begin = kafka.varint(text, at)
        if size < 0:
            raise WireError(f"a record of a batch claims {size} bytes")
        begins.append(begin)
        ends.append(begin + size)
        width, at, left = begin - at, begin + size, left - 1
        alike = alike + 1 if before == (size, width) else 0
        before = size, width
        if alike == _ALIKE_MIN and left:
            step = width + size
            more = _alike(raw, at, text[begin - width : begin], step, left)
            following = np.arange(at + width, at + width + more * step, step)
            runs += [(np.array(begins), np.array(ends)), (following, following + size)]
            begins, ends, alike = [], [], 0
            at, left = at + more * step, left - more
    runs.append((np.array(begins, np.int64), np.array(ends, np.int64)))
    if at != len(text):
        raise WireError(f"the records of a batch end at byte {at} of {len(text)}")
    return np.concatenate([each[0] for each in runs]), np.concatenate([each[1] for each in runs])


def _alike(raw: Bytes, at: int, length: bytes, step: int, most: int) -> int:
    """How many records from `at` on are `step` bytes long, and begin with this length."""
    most = min(most, (len(raw) - at) // step)
    wanted, count, look = np.frombuffer(length, np.uint8), 0, _LOOK_MIN
    while count < most:
        look = min(look, most - count)
        found = np.ndarray((look, len(length)), np.uint8, raw, at + count * step, (step, 1))
        differs = (found != wanted).any(axis=1)
        if differs.any():
            return count + int(differs.argmax())
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
