"""Where the fields of many records lie: found with a few passes over arrays, not record by record.

Records are followed by their lengths, and what stands at a fixed place in each of them is then
taken from all together (`store.record` draws the bytes). Pieces of different lengths, as bodies
are, leave as an Arrow array: the bytes are taken for an array whose elements are the pieces and
the gaps between them in turn, without a copy, and Arrow gathers every second element.

Invariant: `find_records` finds records where, and only where, `wire.remoting.records` reads them;
checksums of bodies are not looked at here.
"""

from dataclasses import dataclass
from struct import Struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onelog.store.record import HEADS, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_SIZE = Struct(">I")
_SYS_FLAG_AT = 36
_HEAD_BYTES: Ints = np.array([head.size for head in HEADS])
_STORE_HOST_AT: Ints = np.array([64, 76, 64, 76])
"""By the host bits of the sysFlag, as the born host stands before it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Records in `raw`, one row for each; places count from the start of `raw`."""

    raw: Bytes
    at: Ints
    end: Ints
    sys_flag: Ints
    body_at: Ints
    topic_at: Ints
    """Where the body ends, and the length of the topic stands."""
    name_at: Ints
    properties_at: Ints
    """Where the topic ends, and the length of the properties stands."""

    def __len__(self) -> int:
        return len(self.at)

    def rows(self, chosen: "Mask | Ints | slice") -> "Layout":
        """Some of the records."""
        return Layout(
            self.raw, self.at[chosen], self.end[chosen], self.sys_flag[chosen],
            self.body_at[chosen], self.topic_at[chosen], self.name_at[chosen],
            self.properties_at[chosen],
        )  # fmt: skip

    @property
    def body_crc(self) -> Ints:
        """The CRC that each record claims for its body."""
        return integers(self.raw, self.at + 8, ">u4")

    @property
    def queue_id(self) -> Ints:
        """The queue that each record names."""
        return integers(self.raw, self.at + 12, ">i4")

    @property
    def flag(self) -> Ints:
        """The user's flag."""
        return integers(self.raw, self.at + 16, ">i4")

    @property
    def queue_offset(self) -> Ints:
        """The index in the queue."""
        return integers(self.raw, self.at + 20, ">i8")

    @property
    def log_offset(self) -> Ints:
        """Where in the log each record says it starts."""
        return integers(self.raw, self.at + 28, ">i8")

    @property
    def born_ms(self) -> Ints:
        """When the producer made the message."""
        return integers(self.raw, self.at + 40, ">i8")

    @property
    def store_ms(self) -> Ints:
        """When the broker stored it."""
        return integers(self.raw, self.store_host_at - 8, ">i8")

    @property
    def store_host_at(self) -> Ints:
        """Where the address of the broker stands, behind the store time."""
        found: Ints = self.at + _STORE_HOST_AT[self.sys_flag >> 4 & 3]
        return found

    def bodies(self) -> pa.Array:
        """The bodies, as they are stored."""
        return pieces(self.raw, self.body_at, self.topic_at)

    def topics(self) -> pa.Array:
        """The names of the topics, still bytes."""
        return pieces(self.raw, self.name_at, self.properties_at)

    def properties(self) -> pa.Array:
        """The properties, still encoded."""
        return pieces(self.raw, self.properties_at + 2, self.end)


def integers(raw: Bytes, at: Ints, kind: str) -> Ints:
    """The big-endian integers at these places."""
    width = np.dtype(kind).itemsize
    if not len(at):
        return np.empty(0, np.int64)
    everywhere: npt.NDArray[np.integer] = np.ndarray((len(raw) - width + 1,), kind, raw, 0, (1,))
    found: Ints = everywhere[at].astype(np.int64)
    return found


def pieces(raw: Bytes, start: Ints, stop: Ints) -> pa.Array:
    """The bytes of `raw` from each start to its stop, copied together; pieces are in order."""
    count = len(start)
    if not count:
        return pa.array([], pa.binary())
    low = int(start[0])
    wide = int(stop[-1]) - low > 0x7FFFFFFF
    bounds = np.empty(2 * count, np.int64 if wide else np.int32)
    np.subtract(start, low, out=bounds[0::2], casting="unsafe")
    np.subtract(stop, low, out=bounds[1::2], casting="unsafe")
    found = pa.Array.from_buffers(
        pa.large_binary() if wide else pa.binary(),
        2 * count - 1,
        [None, pa.py_buffer(bounds), pa.py_buffer(raw[low:])],
    ).take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    return found.cast(pa.binary()) if wide else found


def find_records(raw: Bytes) -> Layout | None:
    """The records that fill `raw`; None if it is not whole records from front to back."""
    layout = leading_records(raw)
    end = int(layout.end[-1]) if len(layout) else 0
    return layout if end == len(raw) else None


def leading_records(raw: Bytes, limit: int | None = None) -> Layout:
    """The whole records at the front of `raw`, up to the first that starts at `limit` or behind."""
    # A search for the magic in all bytes at once is slower, from records of 300 bytes on by far.
    starts: list[int] = []
    view, unpack = raw.data, _SIZE.unpack_from
    at, last = 0, len(raw) - RECORD_BYTES_MIN
    if limit is not None:
        last = min(last, limit - 1)
    while at <= last:
        (size,) = unpack(view, at)
        if size < RECORD_BYTES_MIN:
            break
        starts.append(at)
        at += size
    layout, whole = lay_out(raw, np.array(starts, np.int64))
    return layout if whole.all() else layout.rows(slice(0, int(np.argmin(whole))))


def lay_out(raw: Bytes, at: Ints) -> tuple[Layout, Mask]:
    """The records at these places, and which of them are whole.

    The places must be ascending, with at least the smallest record's bytes behind each. Only of a
    whole record does the layout mean anything.
    """
    size = integers(raw, at, ">u4")
    magic = integers(raw, at + 4, ">u4")
    sys_flag = integers(raw, at + _SYS_FLAG_AT, ">i4")
    is_v1 = magic == MAGIC_V1
    end = at + size
    body_at = at + _HEAD_BYTES[sys_flag >> 4 & 3]
    whole = (size >= RECORD_BYTES_MIN) & (end <= len(raw)) & (is_v1 | (magic == MAGIC_V2))
    # Where lengths are wrong, look at the record's own start instead of outside of the bytes.
    whole &= body_at <= end
    topic_at = body_at + integers(raw, np.where(whole, body_at - 4, at), ">u4")
    name_at = topic_at + np.where(is_v1, 1, 2)
    whole &= name_at + 2 <= end
    length_at = np.where(whole, topic_at, at)
    name_bytes = np.where(is_v1, raw[length_at], integers(raw, length_at, ">u2"))
    properties_at = name_at + name_bytes
    whole &= properties_at + 2 <= end
    properties_bytes = integers(raw, np.where(whole, properties_at, at), ">u2")
    whole &= properties_at + 2 + properties_bytes == end
    return Layout(raw, at, end, sys_flag, body_at, topic_at, name_at, properties_at), whole
