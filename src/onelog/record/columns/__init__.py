"""Where the fields of many records lie: found with a few passes over arrays, not record by record.

Records are followed by their lengths, and what stands at a fixed place in each of them is then
taken from all together (`layout` draws the bytes).

Invariant: `find_records` finds records where, and only where, `decode_records` reads them;
checksums of bodies are not looked at here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from onelog.message import SysFlag
from onelog.record.layout import HEADS, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_SIZE = Struct(">I")
_ALIKE_MIN = 8
"""So many sizes that are the same as the one before make it worth to look for more at once."""
_LOOK_MIN = 64
_HEAD_FIELDS = {
    "size": (">u4", 0),
    "magic": (">u4", 4),
    "body_crc": (">u4", 8),
    "queue_id": (">i4", 12),
    "flag": (">i4", 16),
    "queue_offset": (">i8", 20),
    "log_offset": (">i8", 28),
    "sys_flag": (">i4", 36),
    "born_ms": (">i8", 40),
    "store_ms": (">i8", 56),
    "body_bytes": (">u4", 84),
}
_HEAD = np.dtype(
    {
        "names": list(_HEAD_FIELDS),
        "formats": [kind for kind, _ in _HEAD_FIELDS.values()],
        "offsets": [at for _, at in _HEAD_FIELDS.values()],
        "itemsize": HEADS[0].size,
    }
)
"""The front of a record between IPv4 hosts; with others, what is behind `born_ms` moves on."""
_HEAD_AS_BYTES = np.dtype((np.void, _HEAD.itemsize))
"""In which form heads are kept: what has fields is copied field by field."""
_HEAD_BYTES: Ints = np.array([head.size for head in HEADS])
_STORE_HOST_AT: Ints = np.array([64, 76, 64, 76])
"""By the host bits of the sysFlag, as the born host stands before it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Records in `raw`, one row for each; places count from the start of `raw`."""

    raw: Bytes
    at: Ints
    end: Ints
    head: npt.NDArray[np.void]
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
        return Layout(
            self.raw,
            self.at[chosen],
            self.end[chosen],
            self.head[chosen],
            self.sys_flag[chosen],
            self.body_at[chosen],
            self.topic_at[chosen],
            self.name_at[chosen],
            self.properties_at[chosen],
        )

    @property
    def body_crc(self) -> Ints:
        """The CRC that each record claims for its body."""
        return _field(self.head, "body_crc")

    @property
    def queue_id(self) -> Ints:
        """The queue that each record names."""
        return _field(self.head, "queue_id")

    @property
    def flag(self) -> Ints:
        return _field(self.head, "flag")

    @property
    def queue_offset(self) -> Ints:
        return _field(self.head, "queue_offset")

    @property
    def log_offset(self) -> Ints:
        """Where in the log each record says it starts."""
        return _field(self.head, "log_offset")

    @property
    def born_ms(self) -> Ints:
        """When the producer made the message."""
        return _field(self.head, "born_ms")

    @property
    def store_ms(self) -> Ints:
        found = _field(self.head, "store_ms")
        moved: Mask = (self.sys_flag & SysFlag.BORN_HOST_V6) != 0
        if moved.any():
            found[moved] = integers(self.raw, self.store_host_at[moved] - 8, ">i8")
        return found

    @property
    def store_host_at(self) -> Ints:
        """Where the address of the broker stands, behind the store time."""
        found: Ints = self.at + _STORE_HOST_AT[self.sys_flag >> 4 & 3]
        return found

    def is_of(self, topic: str) -> Mask:
        name = topic.encode()
        same: Mask = self.properties_at - self.name_at == len(name)
        if name and same.any():
            # Equal lengths: zeros at the end, which such strings do not have, make no difference.
            same[same] = fixed(self.raw, self.name_at[same], np.dtype(f"S{len(name)}")) == name
        return same

    def is_odd(self) -> Mask:
        """Which whole records no broker writes: those that a write which was cut off may leave."""
        raw, end, properties_at = self.raw, self.end, self.properties_at
        odd: Mask = (raw[properties_at - 1] == 0) | (self.name_at == properties_at)
        odd |= (end - properties_at > 2) & (raw[end - 1] == 0)
        odd |= (self.queue_offset < 0) | (self.queue_id < 0)
        return odd


def joined(layouts: Sequence[Layout]) -> Layout:
    """The records of all, one behind the other."""
    if len(layouts) == 1:
        return layouts[0]
    starts = np.cumsum([0, *(len(each.raw) for each in layouts[:-1])])
    placed = list(zip(layouts, starts, strict=True))
    return Layout(
        np.concatenate([each.raw for each in layouts]),
        np.concatenate([each.at + start for each, start in placed]),
        np.concatenate([each.end + start for each, start in placed]),
        np.concatenate([each.head for each in layouts]),
        np.concatenate([each.sys_flag for each in layouts]),
        np.concatenate([each.body_at + start for each, start in placed]),
        np.concatenate([each.topic_at + start for each, start in placed]),
        np.concatenate([each.name_at + start for each, start in placed]),
        np.concatenate([each.properties_at + start for each, start in placed]),
    )


def heads_at(raw: Bytes, at: Ints) -> npt.NDArray[np.void]:
    """The fronts of the records at these places."""
    return fixed(raw, at, _HEAD_AS_BYTES)


def _field(head: npt.NDArray[np.void], name: str) -> Ints:
    found: Ints = head.view(_HEAD)[name].astype(np.int64)
    return found


def integers(raw: Bytes, at: Ints, kind: str) -> Ints:
    """The big-endian integers at these places."""
    return fixed(raw, at, np.dtype(kind)).astype(np.int64)


def fixed(raw: Bytes, at: Ints, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """What stands at these places, all of one type and size."""
    count = len(at)
    if not count:
        return np.empty(0, kind)
    if step := _step(at):
        assert at[0] >= 0
        assert at[-1] + kind.itemsize <= len(raw)
        return np.ndarray((count,), kind, raw, int(at[0]), (step,))
    everywhere: npt.NDArray[Any] = np.ndarray((len(raw) - kind.itemsize + 1,), kind, raw, 0, (1,))
    return everywhere[at]


def _step(at: Ints) -> int:
    """How far these places are from each other, if all are equally far; else 0."""
    if len(at) < 2:
        return 0
    step = int(at[1] - at[0])
    if step <= 0 or at[-1] - at[0] != step * (len(at) - 1):
        return 0
    return step if bool((at[1:] - at[:-1] == step).all()) else 0


def find_records(raw: Bytes) -> Layout | None:
    """The records that fill `raw`; None if it is not whole records from front to back."""
    layout = leading_records(raw)
    end = int(layout.end[-1]) if len(layout) else 0
    return layout if end == len(raw) else None


def leading_records(raw: Bytes, limit: int | None = None) -> Layout:
    """The whole records at the front of `raw`, up to the first that starts at `limit` or behind."""
    last = len(raw) - RECORD_BYTES_MIN
    if limit is not None:
        last = min(last, limit - 1)
    layout, whole = lay_out(raw, starts(raw, last))
    return layout if whole.all() else layout.rows(slice(0, int(np.argmin(whole))))


def starts(raw: Bytes, last: int) -> Ints:
    """Where records start, by their sizes, up to `last`; ends where a size cannot be one.

    Sizes are followed one by one, until several are the same: then all that are like them are
    found at once.
    """
    # A search for the magic in all bytes at once is slower, from records of 300 bytes on by far.
    runs: list[Ints] = []
    some: list[int] = []
    view, unpack = raw.data, _SIZE.unpack_from
    at, before, alike = 0, 0, 0
    while at <= last:
        (size,) = unpack(view, at)
        if size < RECORD_BYTES_MIN:
            break
        some.append(at)
        at += size
        if size == before:
            alike += 1
            if alike == _ALIKE_MIN:
                count = _alike(raw, at, size, last)
                runs += [np.array(some, np.int64), np.arange(at, at + count * size, size)]
                some, at, alike = [], at + count * size, 0
        before = size
    return np.concatenate([*runs, np.array(some, np.int64)])


def _alike(raw: Bytes, at: int, size: int, last: int) -> int:
    """How many records of this size follow each other from `at` on."""
    possible, count, look = (last - at) // size + 1, 0, _LOOK_MIN
    while count < possible:
        look = min(look, possible - count)
        sizes = np.ndarray((look,), ">u4", raw, at + count * size, (size,))
        differs = sizes != size
        if differs.any():
            return count + int(differs.argmax())
        count, look = count + look, 8 * look
    return count


def lay_out(raw: Bytes, at: Ints) -> tuple[Layout, Mask]:
    """The records at these places, and which of them are whole.

    The places must be ascending, with at least the smallest record's bytes behind each. Only of a
    whole record does the layout mean anything.
    """
    head = heads_at(raw, at)
    size, magic, sys_flag = (_field(head, name) for name in ("size", "magic", "sys_flag"))
    is_v1 = magic == MAGIC_V1
    end = at + size
    hosts = sys_flag >> 4 & 3
    body_at = at + _HEAD_BYTES[hosts]
    whole = (size >= RECORD_BYTES_MIN) & (end <= len(raw)) & (is_v1 | (magic == MAGIC_V2))
    # Where lengths are wrong, look at the record's own start instead of outside of the bytes.
    whole &= body_at <= end
    topic_at = body_at + (
        integers(raw, np.where(whole, body_at - 4, at), ">u4")
        if hosts.any()
        else _field(head, "body_bytes")
    )
    name_at = topic_at + np.where(is_v1, 1, 2)
    whole &= name_at + 2 <= end
    length_at = np.where(whole, topic_at, at)
    name_bytes = np.where(is_v1, raw[length_at], integers(raw, length_at, ">u2"))
    properties_at = name_at + name_bytes
    whole &= properties_at + 2 <= end
    properties_bytes = integers(raw, np.where(whole, properties_at, at), ">u2")
    whole &= properties_at + 2 + properties_bytes == end
    return Layout(raw, at, end, head, sys_flag, body_at, topic_at, name_at, properties_at), whole
