"""The messages of stored Kafka batches as rows, without an object for each.

What `flat_records` makes of a batch one message at a time, here all become at once: a layout whose
bodies lie in the batches as they are, and whose fronts and properties are written behind them.

Invariant: the rows are those of `in_rocketmq_form`. What it does to keys and headers that are no
plain texts, and to times beyond all bounds, is left to it: such batches are not taken.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onelog.message import KEYS, PROPERTIES_BYTES_MAX, UNIQUE_KEY, Message
from onelog.record.columns import Bytes, Ints, Layout, Mask, heads_at
from onelog.record.forms import rocketmq
from onelog.record.forms.kafka_columns import Fields, find_fields
from onelog.record.forms.neutral import TIME_MAX_MS
from onelog.record.layout import BORN_MS, HEADS, QUEUE_OFFSET, SYS_FLAG
from onelog.spark.columns.pieces import pieces

_KEY_BYTES_MAX = PROPERTIES_BYTES_MAX // 2
_END = pa.scalar(b"\x02")
_NULL_BODY = f"{rocketmq.BODY}\x01{rocketmq.NULL}\x02".encode()


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
