"""Properties of many messages as columns: one property of each, or all of them as a map.

The encoded properties, `name 0x01 value 0x02` repeated, lie one message after the other in one
Arrow array. The separators of all of them are found at once, and names and values leave as pieces
between separators.

Invariant: a map has what `message.decode_properties` finds, a value is what
`message.property_value` finds, and an empty value counts as none. Keys, bodies that are none, and
headers are those of `forms.rocketmq.to_neutral`, without the unique key. What is unusual (a name
twice, bytes that are not text) is left to these functions.
"""

import functools
from urllib.parse import unquote_to_bytes

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onelog.message import KEYS, UNIQUE_KEY, decode_properties
from onelog.record.columns import Bytes, Ints, Mask, integers
from onelog.record.columns.pieces import pieces
from onelog.record.forms import amqp, rocketmq

_NAME_END = 1
_VALUE_END = 2
_NO_HEADERS = pa.array(
    [name.encode() for name in sorted({KEYS, UNIQUE_KEY, rocketmq.KEY, *rocketmq.OWN})]
)
"""Properties that are something else of the message, or the system's."""
_BODY, _NULL = rocketmq.BODY.encode(), rocketmq.NULL.encode()
_CELLS_MAX = 1 << 22
"""Messages times names up to which a table of who has what is affordable."""


class PropertyColumns:
    """The properties of a batch of messages."""

    def __init__(self, encoded: pa.Array) -> None:
        self._encoded = encoded
        self._count = len(encoded)
        self._bounds, self._text = _parts(encoded)

    # -- entries: what lies between two 0x02 -----------------------------------------------------

    @functools.cached_property
    def _entries(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Of each entry: start, end of its name, end of its value; and entries per message.

        An entry without 0x01 is left out.
        """
        text, bounds = self._text, self._bounds
        ends = np.flatnonzero(text == _VALUE_END)
        per_row = np.diff(np.searchsorted(ends, bounds))
        row_ends = bounds[1:]
        unended = row_ends > bounds[:-1]
        unended &= text[np.maximum(row_ends, 1) - 1] != _VALUE_END if len(text) else False
        if unended.any():
            # The end of a message ends its last entry too; it stands before what is at that byte.
            ends = np.sort(np.concatenate([row_ends[unended], ends]), kind="stable")
            per_row = per_row + unended
        starts = np.empty_like(ends)
        starts[1:] = ends[:-1] + 1
        first = np.cumsum(per_row) - per_row
        starts[first[per_row > 0]] = bounds[:-1][per_row > 0]
        middles = np.flatnonzero(text == _NAME_END)
        if len(middles) == len(ends) and ((starts <= middles) & (middles < ends)).all():
            return starts, middles, ends, per_row
        return _with_names(starts, middles, ends, per_row)

    @functools.cached_property
    def _row_of_entry(self) -> Ints:
        return np.repeat(np.arange(self._count), self._entries[3])

    # -- one property ----------------------------------------------------------------------------

    def values(self, name: str) -> tuple[Mask, Ints, Ints]:
        """Which messages have a property, and from where to where in the text its value lies."""
        starts, middles, ends, _ = self._entries
        wanted = name.encode()
        here = np.flatnonzero(middles - starts == len(wanted))
        for shift, byte in _words(wanted):
            here = here[
                integers(self._text, starts[here] + shift, f">i{len(byte)}")
                == int.from_bytes(byte, "big", signed=True)
            ]
        rows = self._row_of_entry[here]
        if len(rows) > 1:
            is_first = np.ones(len(rows), np.bool_)
            is_first[1:] = rows[1:] != rows[:-1]
            here, rows = here[is_first], rows[is_first]
        filled = ends[here] > middles[here] + 1
        here, rows = here[filled], rows[filled]
        has = np.zeros(self._count, np.bool_)
        has[rows] = True
        return has, middles[here] + 1, ends[here]

    def column(self, name: str) -> pa.Array:
        """The values of a property; null where a message has none."""
        has, starts, ends = self.values(name)
        return self._spread(has, as_text(pieces(self._text, starts, ends)))

    # -- keys, bodies, headers: what RocketMQ's form makes of them ---------------------------------

    def keys(self) -> pa.Array:
        """The key of each message, as it is; null where it has none."""
        has, starts, ends = self.values(KEYS)
        found = self._spread(has, pieces(self._text, starts, ends))
        is_packed, starts, ends = self.values(rocketmq.KEY)
        if is_packed.any():
            texts = as_text(pieces(self._text, starts, ends)).to_pylist()
            values = pa.array([rocketmq.unpacked(text) for text in texts], pa.binary())
            found = pc.replace_with_mask(found, pa.array(is_packed), values)
        return found

    def null_bodies(self) -> Mask:
        """Whose body is none, which is something else than an empty one."""
        has, starts, ends = self.values(rocketmq.BODY)
        rows = np.flatnonzero(has)
        found: Mask = np.zeros(self._count, np.bool_)
        found[rows[self._is_null(starts, ends)]] = True
        return found

    def _is_null(self, starts: Ints, ends: Ints) -> Mask:
        """Which of these values say that there is nothing."""
        found: Mask = ends - starts == len(_NULL)
        found[found] = integers(self._text, starts[found], ">i4") == int.from_bytes(_NULL)
        return found

    def headers(self, kind: pa.ListType) -> pa.Array:
        """The headers that the sender gave each message, in their order."""
        starts, middles, ends, _ = self._entries
        names = pieces(self._text, starts, middles)
        own = pc.is_in(names, _NO_HEADERS).to_numpy(zero_copy_only=False)
        if (body := pc.equal(names, _BODY).to_numpy(zero_copy_only=False)).any():
            own[body] = self._is_null(middles[body] + 1, ends[body])
        kept = np.flatnonzero((ends > middles + 1) & ~own)
        names = names.take(pa.array(kept))
        per_row = np.bincount(self._row_of_entry[kept], minlength=self._count)
        values = pieces(self._text, middles[kept] + 1, ends[kept])
        is_packed = pc.starts_with(names, rocketmq.HEADER)
        if pc.any(is_packed, min_count=0).as_py():
            unpacked = [
                _unpacked(name, value)
                for name, value in zip(
                    names.filter(is_packed).to_pylist(),
                    values.filter(is_packed).to_pylist(),
                    strict=True,
                )
            ]
            names = pc.replace_with_mask(
                names, is_packed, pa.array([name for name, _ in unpacked], pa.binary())
            )
            values = pc.replace_with_mask(
                values, is_packed, pa.array([value for _, value in unpacked], pa.binary())
            )
        bounds = np.concatenate([[0], np.cumsum(per_row)]).astype(np.int32)
        if pc.any(pc.equal(names, amqp.HEADER_TYPES.encode()), min_count=0).as_py():
            return _readable(as_text(names).to_pylist(), values.to_pylist(), bounds, kind)
        fields = kind.value_type
        pairs = pa.StructArray.from_arrays([as_text(names), values], fields=list(fields))
        return pa.Array.from_buffers(
            kind, self._count, [None, pa.py_buffer(bounds)], children=[pairs]
        )

    def _spread(self, has: Mask, values: pa.Array) -> pa.Array:
        """The values of those that have one, and null for the others."""
        if len(values) == self._count:
            return values
        return values.take(pa.array(np.cumsum(has) - 1, mask=~has))

    # -- all properties --------------------------------------------------------------------------

    def maps(self, kind: pa.MapType) -> pa.Array:
        starts, middles, ends, per_row = self._entries
        filled = ends > middles + 1
        if not filled.all():
            per_row = np.bincount(self._row_of_entry[filled], minlength=self._count)
            starts, middles, ends = starts[filled], middles[filled], ends[filled]
        rows = np.repeat(np.arange(self._count), per_row)
        names = pieces(self._text, starts, middles)
        try:
            names = names.cast(kind.key_type)
            values = pieces(self._text, middles + 1, ends).cast(kind.item_type)
        except pa.ArrowInvalid:
            return self._maps_one_by_one(kind)
        if _has_repeated(names, rows, self._count):
            return self._maps_one_by_one(kind)
        bounds = np.zeros(self._count + 1, np.int32)
        np.cumsum(per_row, out=bounds[1:])
        pairs = pa.StructArray.from_arrays(
            [names, values], fields=[kind.key_field, kind.item_field]
        )
        return pa.Array.from_buffers(
            kind, self._count, [None, pa.py_buffer(bounds)], children=[pairs]
        )

    def _maps_one_by_one(self, kind: pa.MapType) -> pa.Array:
        found = (decode_properties(text) for text in self._encoded.to_pylist())
        return pa.array([list(each.items()) for each in found], kind)


def _unpacked(name: bytes, value: bytes) -> tuple[bytes, bytes | None]:
    """A header that no property can have as it is."""
    quoted = name.decode("utf-8", "surrogateescape")[len(rocketmq.HEADER) :].partition(".")[2]
    text = value.decode("utf-8", "surrogateescape")
    return unquote_to_bytes(quoted), rocketmq.unpacked(text)


def _readable(
    names: list[str], values: list[bytes | None], bounds: npt.NDArray[np.int32], kind: pa.ListType
) -> pa.Array:
    """Headers among which there are typed ones of AMQP's."""
    pairs = list(zip(names, values, strict=True))
    rows = [
        amqp.readable(pairs[begin:end])
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    found = [[{"key": name, "value": value} for name, value in row] for row in rows]
    return pa.array(found, kind)


def texts_of(found: pa.Array) -> pa.Array:
    """Bytes as text; null for what is no UTF-8."""
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(raw) for raw in found.to_pylist()], pa.string())


def _text(raw: bytes | None) -> str | None:
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return None


def _with_names(
    starts: Ints, middles: Ints, ends: Ints, per_row: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """The entries that have a 0x01, which ends the name at its first place."""
    sentinel = np.append(middles, np.int64(1) << 62)
    middle = sentinel[np.searchsorted(middles, starts)]
    named = middle < ends
    row = np.repeat(np.arange(len(per_row)), per_row)
    per_row = np.bincount(row[named], minlength=len(per_row))
    return starts[named], middle[named], ends[named], per_row


def _words(name: bytes) -> list[tuple[int, bytes]]:
    """A name in parts that are as wide as an integer, each with its place."""
    parts = []
    shift = 0
    while shift < len(name):
        width = next(width for width in (8, 4, 2, 1) if width <= len(name) - shift)
        parts.append((shift, name[shift : shift + width]))
        shift += width
    return parts


def _parts(encoded: pa.Array) -> tuple[Ints, Bytes]:
    """Where the elements of an array start and end, and their bytes."""
    _, bounds, text = encoded.buffers()
    where: Ints = np.frombuffer(bounds, np.int32, len(encoded) + 1).astype(np.int64)
    if text is None or not where[-1]:
        return where, np.empty(0, np.uint8)
    return where, np.frombuffer(text, np.uint8, int(where[-1]))


def as_text(found: pa.Array) -> pa.Array:
    """Bytes as text; what is no UTF-8 is replaced."""
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([raw.decode("utf-8", "replace") for raw in found.to_pylist()], pa.string())


def _has_repeated(names: pa.Array, rows: Ints, count: int) -> bool:
    """Whether a message has a name twice."""
    encoded = names.dictionary_encode()
    cells = rows * len(encoded.dictionary) + encoded.indices.to_numpy()
    if count * len(encoded.dictionary) <= _CELLS_MAX:
        seen = np.zeros(count * len(encoded.dictionary), np.bool_)
        seen[cells] = True
        return int(np.count_nonzero(seen)) < len(cells)
    return len(pc.unique(pa.array(cells))) < len(cells)
