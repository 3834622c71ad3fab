"""The messages of a stored Kafka batch as rows, without an object for each.

What `flat_records` makes of a batch one message at a time, here all become at once: a layout whose
bodies lie in the batch as they are, and whose fronts and properties are written behind it.

Invariant: the rows are those of `in_rocketmq_form`. What it does to keys and headers that are no
plain texts, and to null bodies, is left to it: such batches are not taken.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onelog.errors import WireError
from onelog.message import KEYS, PROPERTIES_BYTES_MAX, UNIQUE_KEY, Message
from onelog.record.columns import Bytes, Ints, Layout, Mask, heads_at
from onelog.record.forms.kafka_columns import Fields, find_fields
from onelog.record.layout import HEADS
from onelog.spark.columns.pieces import pieces

_KEY_BYTES_MAX = PROPERTIES_BYTES_MAX // 2
_QUEUE_OFFSET, _SYS_FLAG, _BORN_MS = slice(20, 28), slice(36, 40), slice(40, 48)
"""Where the front of a record has what is not the same in all rows."""


def rows_of(record: Message, front: Bytes, sys_flag: int, with_properties: bool) -> Layout | None:
    """The messages of a record that holds a batch; None if they have to be taken one by one.

    `front` is how the record begins, and `sys_flag` what the rows say instead of its own.
    """
    try:
        found = find_fields(record.body)
    except WireError as error:
        raise WireError(f"the record at log offset {record.log_offset}: {error}") from None
    if found is None or (with_properties and not _is_plain(found)):
        return None
    count, name = len(found.key_at), record.topic.encode()
    fronts = np.tile(front[: HEADS[record.sys_flag >> 4 & 3].size], (count, 1))
    fronts[:, _QUEUE_OFFSET] = _big(found.offset_delta + record.queue_offset)
    fronts[:, _SYS_FLAG] = np.frombuffer(sys_flag.to_bytes(4, "big", signed=True), np.uint8)
    fronts[:, _BORN_MS] = _big(found.time_ms)
    if with_properties:
        tails, tail_at = _tails(record, found, name)
    else:
        tail = np.frombuffer(name + b"\0\0", np.uint8)
        tails, tail_at = np.tile(tail, count), np.arange(count + 1) * len(tail)
    raw = np.concatenate([found.raw, fronts.reshape(-1), tails])
    at = len(found.raw) + np.arange(count) * fronts.shape[1]
    tail_at += len(found.raw) + fronts.size
    return Layout(
        raw, at, tail_at[1:], heads_at(raw, at), np.full(count, sys_flag, np.int64),
        found.value_at, found.value_end, tail_at[:-1], tail_at[:-1] + len(name),
    )  # fmt: skip


def _big(numbers: Ints) -> Bytes:
    """Each number as eight bytes."""
    found: Bytes = numbers.astype(">i8").view(np.uint8).reshape(-1, 8)
    return found


def _is_plain(found: Fields) -> bool:
    """Whether keys are texts as properties have them, and there is nothing else to be kept."""
    if found.headers.any() or not found.has_value.all():
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


def _tails(record: Message, found: Fields, name: bytes) -> tuple[Bytes, Ints]:
    """Topics and properties, with the length between them; and where each begins, and ends."""
    count = len(found.key_at)
    id_ = f"{UNIQUE_KEY}\x01{record.message_id}-".encode()
    numbers = pa.array(found.offset_delta).cast(pa.string()).cast(pa.binary())
    parts = [pa.scalar(id_), numbers, pa.scalar(b"\x02")]
    if found.has_key.all():
        parts = [pa.scalar(f"{KEYS}\x01".encode()), _keys(found, found.has_key), parts[2], *parts]
    elif found.has_key.any():
        given = _joined(pa.scalar(f"{KEYS}\x01".encode()), _keys(found, found.has_key), parts[2])
        places = pa.array(np.cumsum(found.has_key) - 1, mask=~found.has_key)
        parts = [pc.fill_null(given.take(places), b""), *parts]
    properties = _joined(*parts)
    sizes = np.diff(np.frombuffer(properties.buffers()[1], np.int32, count + 1))
    lengths = pa.Array.from_buffers(
        pa.binary(), count,
        [None, pa.py_buffer(np.arange(count + 1, dtype=np.int32) * 2),
         pa.py_buffer(sizes.astype(">u2"))],
    )  # fmt: skip
    whole = _joined(pa.scalar(name), lengths, properties)
    _, bounds, content = whole.buffers()
    places = np.frombuffer(bounds, np.int32, count + 1).astype(np.int64)
    return np.frombuffer(content, np.uint8, int(places[-1])), places


def _joined(*parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, b"")
