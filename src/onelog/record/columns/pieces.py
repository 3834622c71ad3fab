"""Pieces of records as Arrow arrays: bodies, names, properties.

Pieces have different lengths: the bytes are taken for an array whose elements are the pieces and
the gaps between them in turn, without a copy, and Arrow gathers every second element.
"""

import numpy as np
import pyarrow as pa

from onelog.record.columns import Bytes, Ints, Layout, fixed

_ARROW_BYTES_MAX = 0x7FFFFFFF


def bodies(layout: Layout) -> pa.Array:
    """The bodies, as they are stored."""
    return pieces(layout.raw, layout.body_at, layout.topic_at)


def topics(layout: Layout) -> pa.Array:
    """The names of the topics, still bytes."""
    return pieces(layout.raw, layout.name_at, layout.properties_at)


def properties(layout: Layout) -> pa.Array:
    """The properties, still encoded."""
    return pieces(layout.raw, layout.properties_at + 2, layout.end)


def pieces(raw: Bytes, start: Ints, stop: Ints) -> pa.Array:
    """The bytes of `raw` from each start to its stop, copied together; pieces are in order."""
    count = len(start)
    if not count:
        return pa.array([], pa.binary())
    low = int(start[0])
    size = int(stop[0]) - low
    if size > 0 and count * size <= _ARROW_BYTES_MAX and (stop - start == size).all():
        content = fixed(raw, start, np.dtype(f"V{size}"))
        bounds = np.arange(0, size * count + 1, size, dtype=np.int32)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(content))]
        return pa.Array.from_buffers(pa.binary(), count, buffers)
    wide = int(stop[-1]) - low > _ARROW_BYTES_MAX
    bounds = np.empty(2 * count, np.int64 if wide else np.int32)
    np.subtract(start, low, out=bounds[0::2], casting="unsafe")
    np.subtract(stop, low, out=bounds[1::2], casting="unsafe")
    found = pa.Array.from_buffers(
        pa.large_binary() if wide else pa.binary(),
        2 * count - 1,
        [None, pa.py_buffer(bounds), pa.py_buffer(raw[low:])],
    ).take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    return found.cast(pa.binary()) if wide else found
