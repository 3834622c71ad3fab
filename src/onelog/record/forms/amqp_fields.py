"""Field tables and content properties of AMQP 0-9-1, with the types that RabbitMQ gives them.

    table       pairs: u8 length, name | value                   the u32 length before it is not its
    value       u8 tag | as the tag says (below)
    properties  u16 flags, bit 15 for the first | the values of those that are there, in order

Tags are those that RabbitMQ and its clients use, not those that the specification prints: `s` is a
short integer, `l` and `L` are the same, and strings are `S`.

Properties stay as they came wherever possible: what looks for one finds it without reading the
others, and a changed header is spliced in among bytes that are not touched.

Invariant: what is no table or no properties raises `WireError` and nothing else, and does not take
long: values lie at most `DEPTH_MAX` deep.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from struct import Struct
from typing import Any, Final

from onelog.errors import WireError

DEPTH_MAX = 64
"""Tables and lists inside one another. RabbitMQ's own tables have three."""
NO_PROPERTIES = b"\0\0"

PROPERTIES = (
    ("content_type", "s"),
    ("content_encoding", "s"),
    ("headers", "t"),
    ("delivery_mode", "o"),
    ("priority", "o"),
    ("correlation_id", "s"),
    ("reply_to", "s"),
    ("expiration", "s"),
    ("message_id", "s"),
    ("timestamp", "l"),
    ("type", "s"),
    ("user_id", "s"),
    ("app_id", "s"),
    ("cluster_id", "s"),
)
"""Names and kinds (short string, table, octet, long long), in the order of their flags."""


class Timestamp(int):
    """Seconds since 1970, as a value of a table."""


class Long(int):
    """A number that is a long-long in a table, however small: Java's clients cast it to `Long`."""


class _Remove:
    """The type of `REMOVE`."""


REMOVE: Final = _Remove()
"""In place of a value: there is to be none."""

Value = None | bool | int | float | Decimal | str | bytes | list[Any] | dict[str, Any]
Table = dict[str, Value]

_U16, _U32 = Struct(">H"), Struct(">I")
_DECIMAL = Struct(">Bi")
_FIXED: dict[int, tuple[Struct, Callable[[Any], Value]]] = {
    ord(tag): (Struct(">" + code), make)
    for tag, code, make in (
        ("t", "?", bool),
        ("b", "b", int),
        ("B", "B", int),
        ("s", "h", int),
        ("u", "H", int),
        ("I", "i", int),
        ("i", "I", int),
        ("l", "q", int),
        ("L", "q", int),
        ("f", "f", float),
        ("d", "d", float),
        ("T", "Q", Timestamp),
    )
}
_STRING, _BYTES, _LIST, _TABLE, _VOID, _DECIMAL_TAG = b"SxAFVD"


# -- reading -----------------------------------------------------------------------------------


def decode_table(data: bytes) -> Table:
    """The values of a table, by name; the last one of a name counts."""
    try:
        return _table(data, 0, len(data), 0)
    except (struct.error, IndexError):
        raise WireError(f"a table of {len(data)} bytes is cut off") from None


def _table(data: bytes, at: int, end: int, depth: int) -> Table:
    table: Table = {}
    while at < end:
        begin = at + 1
        at = begin + data[at]
        table[_text(data[begin:at])], at = _value(data, at, end, depth)
    if at != end:
        raise WireError("a table ends inside one of its values")
    return table


def _list(data: bytes, at: int, end: int, depth: int) -> list[Value]:
    values: list[Value] = []
    while at < end:
        value, at = _value(data, at, end, depth)
        values.append(value)
    if at != end:
        raise WireError("a list ends inside one of its values")
    return values


def _value(data: bytes, at: int, end: int, depth: int) -> tuple[Value, int]:
    tag = data[at]
    at += 1
    fixed = _FIXED.get(tag)
    if fixed is not None:
        form, make = fixed
        return make(form.unpack_from(data, at)[0]), at + form.size
    if tag == _VOID:
        return None, at
    if tag == _DECIMAL_TAG:
        scale, number = _DECIMAL.unpack_from(data, at)
        return Decimal(number).scaleb(-scale), at + _DECIMAL.size
    begin = at + 4
    stop = begin + int(_U32.unpack_from(data, at)[0])
    if stop > end:
        raise WireError("a value is longer than the table that it is in")
    if tag == _STRING:
        return _text_or_bytes(data[begin:stop]), stop
    if tag == _BYTES:
        return data[begin:stop], stop
    if depth >= DEPTH_MAX:
        raise WireError(f"tables inside one another, more than {DEPTH_MAX} of them")
    if tag == _TABLE:
        return _table(data, begin, stop, depth + 1), stop
    if tag == _LIST:
        return _list(data, begin, stop, depth + 1), stop
    raise WireError(f"a value with the unknown tag {tag:#04x}")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _class_of(value: Value) -> type:
    """Numbers are equal to those of their class only: whole ones of any width, and the others."""
    if isinstance(value, float | Decimal):
        return float
    return int if isinstance(value, Long) else type(value)


def is_number(value: Value) -> bool:
    """Whether a value is a number of any class, which a time is not, and neither is a bool."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool | Timestamp)


def same(one: Value, other: Value) -> bool:
    """Whether two values are equal to RabbitMQ: 10 is a number of any width, but not 10.0."""
    if _class_of(one) is not _class_of(other):
        return False
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return one == other


# -- writing -----------------------------------------------------------------------------------


def encode_table(table: Mapping[str, Value]) -> bytes:
    """The bytes of a table; without its length."""
    pieces: list[bytes] = []
    for name, value in table.items():
        pieces.append(short_string(name))
        pieces.append(encode_value(value))
    return b"".join(pieces)


def encode_value(value: Value) -> bytes:
    if isinstance(value, str):
        data = value.encode()
        return b"S" + _U32.pack(len(data)) + data
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if isinstance(value, Timestamp):
        return b"T" + value.to_bytes(8, "big")
    if isinstance(value, int):
        if -(1 << 31) <= value < 1 << 31 and not isinstance(value, Long):
            return b"I" + value.to_bytes(4, "big", signed=True)
        if not -(1 << 63) <= value < 1 << 63:
            raise WireError("a number in a table does not fit 64 bits")
        return b"l" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        return b"d" + _FIXED[ord("d")][0].pack(value)
    if isinstance(value, bytes):
        return b"x" + _U32.pack(len(value)) + value
    if isinstance(value, dict):
        data = encode_table(value)
        return b"F" + _U32.pack(len(data)) + data
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        number = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
        if exponent > 0:
            number, exponent = number * 10**exponent, 0
        return b"D" + _DECIMAL.pack(-exponent, number)
    data = b"".join(map(encode_value, value))
    return b"A" + _U32.pack(len(data)) + data


def short_string(text: str) -> bytes:
    """A string of up to 255 bytes, with its length."""
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > 255:
        raise WireError(f"a name of {len(data)} bytes; 255 is the most")
    return bytes((len(data),)) + data


# -- properties --------------------------------------------------------------------------------

_BITS = {name: 1 << (15 - number) for number, (name, _) in enumerate(PROPERTIES)}
_FLAGS_KNOWN = sum(_BITS.values())
_KINDS = {"s": "a text", "o": "a number up to 255", "l": "a time in seconds", "t": "an object"}
_layouts: dict[int, tuple[tuple[str, str], ...]] = {}


def _layout(flags: int) -> tuple[tuple[str, str], ...]:
    found = _layouts.get(flags)
    if found is None:
        if flags & ~_FLAGS_KNOWN:
            raise WireError(f"properties with the unknown flags {flags & ~_FLAGS_KNOWN:#06x}")
        found = tuple(each for each in PROPERTIES if flags & _BITS[each[0]])
        _layouts[flags] = found
    return found


def field_spans(raw: bytes) -> dict[str, tuple[int, int]]:
    """Where the value of each property begins and ends; `WireError` if that is not all there is."""
    try:
        flags = int(_U16.unpack_from(raw)[0])
        at = 2
        found = {}
        for name, kind in _layout(flags):
            begin = at
            if kind == "s":
                at += 1 + raw[at]
            elif kind == "o":
                at += 1
            elif kind == "l":
                at += 8
            else:
                at += 4 + int(_U32.unpack_from(raw, at)[0])
            found[name] = (begin, at)
    except (struct.error, IndexError):
        raise WireError(f"properties of {len(raw)} bytes are cut off") from None
    if at != len(raw):
        raise WireError(f"properties of {at} bytes in a place of {len(raw)}")
    return found


def _read(raw: bytes, name: str, begin: int, end: int) -> Any:
    if name == "headers":
        return decode_table(raw[begin + 4 : end])
    if name in ("delivery_mode", "priority"):
        return raw[begin]
    if name == "timestamp":
        return int.from_bytes(raw[begin:end], "big")
    return _text(raw[begin + 1 : end])


def decode_properties(raw: bytes) -> dict[str, Any]:
    """The properties that are there, by name."""
    return {name: _read(raw, name, *place) for name, place in field_spans(raw).items()}


def property_of(raw: bytes, name: str) -> Any:
    """One property, or None if it is not there."""
    if len(raw) < 2 or not (raw[0] << 8 | raw[1]) & _BITS[name]:
        return None
    return _read(raw, name, *field_spans(raw)[name])


def headers_of(raw: bytes) -> Table:
    """The header table; empty, if there is none."""
    found: Table | None = property_of(raw, "headers")
    return {} if found is None else found


def encode_properties(properties: Mapping[str, Any]) -> bytes:
    """The bytes of properties; those that are None are not there. `WireError` if one cannot be."""
    flags, pieces = 0, [b""]
    for name, kind in PROPERTIES:
        value = properties.get(name)
        if value is None:
            continue
        flags |= _BITS[name]
        try:
            pieces.append(_written(kind, value))
        except (ValueError, TypeError, AttributeError, OverflowError):
            raise WireError(f"{name} is to be {_KINDS[kind]}, not {value!r:.60}") from None
    pieces[0] = _U16.pack(flags)
    return b"".join(pieces)


def _written(kind: str, value: Any) -> bytes:
    if kind == "s":
        return short_string(value)
    if kind == "o":
        return bytes((value,))
    if kind == "l":
        return int(value).to_bytes(8, "big")
    data = encode_table(value)
    return _U32.pack(len(data)) + data


def with_properties(raw: bytes, changes: Mapping[str, Any]) -> bytes:
    """The same with other values for some; None or `REMOVE` for those that are to go."""
    kinds = dict(PROPERTIES)
    there = field_spans(raw)
    values = {name: raw[begin:end] for name, (begin, end) in there.items()}
    for name, value in changes.items():
        values.pop(name, None)
        if value is not None and value is not REMOVE:
            values[name] = _written(kinds[name], value)
    flags = sum(_BITS[name] for name in values)
    return _U16.pack(flags) + b"".join(values[name] for name, _ in PROPERTIES if name in values)


def with_headers(raw: bytes, changes: Mapping[str, "Value | _Remove"], **properties: Any) -> bytes:
    """The same with other values for some headers, and for some properties.

    Headers that are not named keep their bytes.
    """
    kept = []
    there = field_spans(raw)
    if "headers" in there:
        begin, end = there["headers"]
        kept = [piece for name, piece in _entries(raw[begin + 4 : end]) if name not in changes]
    for name, value in changes.items():
        if not isinstance(value, _Remove):
            kept.append(short_string(name) + encode_value(value))
    changed = with_properties(raw, {**properties, "headers": None})
    if not kept:
        return changed
    table = b"".join(kept)
    at = 2
    for name, (_, end) in field_spans(changed).items():
        if name in ("content_type", "content_encoding"):
            at = end
    flags = _U16.unpack_from(changed)[0] | _BITS["headers"]
    return b"".join((_U16.pack(flags), changed[2:at], _U32.pack(len(table)), table, changed[at:]))


def _entries(data: bytes) -> list[tuple[str, bytes]]:
    """Name and bytes, name included, of each entry of a table."""
    found, at = [], 0
    try:
        while at < len(data):
            name_end = at + 1 + data[at]
            end = _value(data, name_end, len(data), 0)[1]
            if end > len(data):
                raise WireError("a table ends inside one of its values")
            found.append((_text(data[at + 1 : name_end]), data[at:end]))
            at = end
    except (struct.error, IndexError):
        raise WireError(f"a table of {len(data)} bytes is cut off") from None
    return found


# -- values as they are ------------------------------------------------------------------------

Tagged = tuple[str, str, bytes]
"""A name, a tag, and the bytes of a value; without the length that some begin with."""
_SIZED = "SxAF"


def tagged_entries(data: bytes, *, named: bool = True) -> list[Tagged]:
    """The entries of a table, or of a list, with the bytes of their values."""
    found, at, name = [], 0, ""
    try:
        while at < len(data):
            if named:
                name_end = at + 1 + data[at]
                name, at = _text(data[at + 1 : name_end]), name_end
            end = _value(data, at, len(data), 0)[1]
            if end > len(data):
                raise WireError("a table ends inside one of its values")
            tag = chr(data[at])
            found.append((name, tag, data[at + (5 if tag in _SIZED else 1) : end]))
            at = end
    except (struct.error, IndexError):
        raise WireError(f"a table of {len(data)} bytes is cut off") from None
    return found


def tagged_table(entries: Iterable[Tagged], *, named: bool = True) -> bytes:
    """The bytes of a table, or of a list; the inverse of `tagged_entries`."""
    pieces: list[bytes] = []
    for name, tag, raw in entries:
        if named:
            pieces.append(short_string(name))
        pieces.append(tag.encode())
        if tag in _SIZED:
            pieces.append(_U32.pack(len(raw)))
        pieces.append(raw)
    return b"".join(pieces)
