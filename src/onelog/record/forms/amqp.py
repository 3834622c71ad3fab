r"""AMQP's form: where a message was published to, its properties as they came, and its body.

    EXCHANGE    u8 length, name
    KEY         u8 length, routing key
    PROPERTIES  u32 length, u16 flags and the properties that these name (`amqp_fields`)
    body        the rest

Exchange and key are as they are in a delivery, so that they can leave in one piece.

    neutral     AMQP
    key         message-id; one that is no text of up to 255 bytes: header x-onelog-key
    body        body; no body is an empty one, and the header x-onelog-body without a value
    header      header of the same name; one that is text is a string, another one bytes
    time        the record's born time

What else AMQP has comes first among the neutral headers, in this order:

    amqp.exchange, amqp.routing-key, amqp.content-type, amqp.content-encoding, amqp.delivery-mode,
    amqp.priority, amqp.correlation-id, amqp.reply-to, amqp.expiration, amqp.timestamp, amqp.type,
    amqp.user-id, amqp.app-id, amqp.cluster-id
    amqp.header-types   one letter for each header behind: its tag, or `-` where text is a string
                        and other bytes are bytes. Numbers are in digits, true and false are words,
                        lists and tables as AMQP encodes them

Neutral headers that no table can have (a name that is too long, or there twice, or one of those
above out of its place) are kept in the table as `x-onelog-header.N`, a list of name and value.

Lossy: nothing, of what AMQP's clients send. A table that has a name twice is read as the last one.

Invariant: what is written here is read back as the same neutral message; AMQP content that becomes
a neutral message and AMQP content again has the same bytes, unless its table is an odd one.
"""

import base64
import json
import struct
from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple

from onelog.errors import WireError
from onelog.message import Buffer
from onelog.record.forms.amqp_fields import (
    PROPERTIES,
    decode_properties,
    decode_table,
    encode_properties,
    field_spans,
    short_string,
    tagged_entries,
    tagged_table,
)
from onelog.record.forms.neutral import Header, Neutral

_U32 = Struct(">I")
_KEY = "x-onelog-key"
_BODY = "x-onelog-body"
_HEADER = "x-onelog-header."
_TYPES = "amqp.header-types"
HEADER_TYPES = _TYPES
_EXCHANGE, _ROUTING_KEY = "amqp.exchange", "amqp.routing-key"
_NAMES = {
    name: f"amqp.{name.replace('_', '-')}"
    for name, _ in PROPERTIES
    if name not in ("headers", "message_id")
}
_KINDS = dict(PROPERTIES)
_ORDER = (_EXCHANGE, _ROUTING_KEY, *_NAMES.values(), _TYPES)
_OF_NAME = {neutral: name for name, neutral in _NAMES.items()}
_SHORT_MAX = 255


class Content(NamedTuple):
    """A message as AMQP has it."""

    exchange: str
    key: str
    properties: bytes
    body: bytes | memoryview


def head(exchange: str, key: str) -> bytes:
    """What a record's body begins with."""
    return short_string(exchange) + short_string(key)


def encode(exchange: str, key: str, properties: bytes, body: Buffer) -> bytes:
    return b"".join((head(exchange, key), _U32.pack(len(properties)), properties, body))


def properties_at(record: Buffer) -> tuple[int, int]:
    """Where the properties of a record begin and end: behind that is the body."""
    try:
        at = 1 + record[0]
        at += 1 + record[at]
        (size,) = _U32.unpack_from(record, at)
    except (IndexError, struct.error):
        raise WireError("a record in AMQP's form is cut off") from None
    if at + 4 + size > len(record):
        raise WireError("the properties of a record in AMQP's form are cut off")
    return at + 4, at + 4 + size


def read(record: Buffer) -> Content:
    """What the body of a record says."""
    begin, end = properties_at(record)
    key_at = 1 + record[0]
    exchange, key = bytes(record[1:key_at]), bytes(record[key_at + 1 : begin - 4])
    body = record[end:]
    return Content(
        exchange.decode("utf-8", "surrogateescape"),
        key.decode("utf-8", "surrogateescape"),
        bytes(record[begin:end]),
        bytes(body) if isinstance(body, bytearray) else body,
    )


# -- to the neutral message ------------------------------------------------------------------------


def to_neutral(record: Buffer, born_ms: int) -> Neutral:
    """The message in the body of a record."""
    content = read(record)
    return content_to_neutral(content, born_ms)


def content_to_neutral(content: Content, born_ms: int) -> Neutral:
    """The message, in no system's form."""
    properties, table = _taken_apart(content.properties)
    key: bytes | None = None
    if "message_id" in properties:
        key = properties["message_id"].encode("utf-8", "surrogateescape")
    body: bytes | None = bytes(content.body)
    first: list[Header] = []
    for name, text in ((_EXCHANGE, content.exchange), (_ROUTING_KEY, content.key)):
        if text:
            first.append((name, text.encode("utf-8", "surrogateescape")))
    for name, neutral in _NAMES.items():
        if name in properties:
            first.append((neutral, str(properties[name]).encode("utf-8", "surrogateescape")))
    headers: list[Header] = []
    types: list[str] = []
    for name, tag, raw in tagged_entries(table):
        if name == _KEY and tag == "x":
            key = raw
        elif name == _BODY and tag == "V":
            body = None
        elif name.startswith(_HEADER) and tag == "A" and (wrapped := _unwrapped(raw)) is not None:
            headers.append(wrapped)
            types.append("-")
        else:
            value, kind = _shown(tag, raw)
            headers.append((name, value))
            types.append(kind)
    if any(kind != "-" for kind in types):
        first.append((_TYPES, "".join(types).encode()))
    return Neutral(key, body, (*first, *headers), born_ms)


def _shown(tag: str, raw: bytes) -> tuple[bytes | None, str]:
    """A value of a table as a neutral header has it, and its letter."""
    if tag == "V":
        return None, "-"
    if tag in "Sx":
        return raw, "-" if (tag == "S") == _is_text(raw) else tag
    if tag == "t":
        return (b"true" if raw != b"\0" else b"false"), tag
    if (size := _INT_BYTES.get(tag)) is not None and size == len(raw):
        return str(int.from_bytes(raw, "big", signed=tag in _SIGNED)).encode(), tag
    return raw, tag


def readable(headers: Sequence[Header]) -> list[Header]:
    """The headers of `to_neutral` for people: numbers as digits, lists and tables as JSON."""
    at = next((number for number, (name, _) in enumerate(headers) if name == _TYPES), None)
    types = "" if at is None else (headers[at][1] or b"").decode("utf-8", "replace")
    if at is None or len(types) != len(headers) - at - 1:
        return list(headers)
    typed = zip(headers[at + 1 :], types, strict=True)
    return [*headers[:at], *((name, _readable(value, kind)) for (name, value), kind in typed)]


def _readable(value: bytes | None, kind: str) -> bytes | None:
    if value is None or kind not in "fdDAF" or not _is_value(kind, value):
        return value
    found = decode_table(tagged_table([("", kind, value)]))[""]
    if isinstance(found, dict | list):
        found = json.dumps(found, default=_in_json, ensure_ascii=False)
    return str(found).encode("utf-8", "surrogateescape")


def _in_json(value: object) -> object:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


_INT_BYTES = {"b": 1, "B": 1, "s": 2, "u": 2, "I": 4, "i": 4, "l": 8, "L": 8, "T": 8}
_SIGNED = "bsIlL"


def _encoded(value: bytes | None, kind: str) -> tuple[str, bytes] | None:
    """The inverse of `_shown`: a tag, and the bytes behind it; None if that is no such value."""
    if kind == "-":
        if value is None:
            return "V", b""
        return ("S" if _is_text(value) else "x"), value
    if value is None:
        return None
    if kind in "Sx":
        return (kind, value) if (kind == "S") != _is_text(value) else None
    if kind == "t":
        return (kind, b"\1" if value == b"true" else b"\0") if value in _BOOLEANS else None
    if (size := _INT_BYTES.get(kind)) is not None:
        try:
            number = int(value)
            raw = number.to_bytes(size, "big", signed=kind in _SIGNED)
        except (ValueError, OverflowError):
            return None
        return (kind, raw) if str(number).encode() == value else None
    return (kind, value) if kind in "fdDAF" and _is_value(kind, value) else None


_BOOLEANS = (b"true", b"false")


def _is_value(tag: str, raw: bytes) -> bool:
    """Whether these are the bytes of a value with that tag."""
    entry = [("", tag, raw)]
    try:
        return tagged_entries(tagged_table(entry)) == entry
    except WireError:
        return False


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unwrapped(raw: bytes) -> Header | None:
    entries = tagged_entries(raw, named=False)
    if len(entries) != 2 or entries[0][1] not in "Sx" or entries[1][1] not in "SxV":
        return None
    (_, _, name), (_, tag, value) = entries
    return name.decode("utf-8", "surrogateescape"), None if tag == "V" else value


# -- from the neutral message ----------------------------------------------------------------------


def from_neutral(message: Neutral, exchange: str = "", key: str = "") -> bytes:
    """The body of a record; the exchange and the key are for those that do not name theirs."""
    content = content_from_neutral(message)
    return encode(
        content.exchange or exchange, content.key or key, content.properties, content.body
    )


def content_from_neutral(message: Neutral) -> Content:
    """The message as AMQP has it; the time goes where the born time goes."""
    properties, rest = _leading(message.headers)
    exchange, routing_key = properties.pop(_EXCHANGE, ""), properties.pop(_ROUTING_KEY, "")
    types = properties.pop(_TYPES, "-" * len(rest))
    table: list[tuple[str, str, bytes]] = []
    if message.key is not None:
        if len(message.key) <= _SHORT_MAX and _is_text(message.key):
            properties["message_id"] = message.key.decode()
        else:
            table.append((_KEY, "x", message.key))
    if message.body is None:
        table.append((_BODY, "V", b""))
    seen: set[str] = set()
    for number, ((name, value), kind) in enumerate(zip(rest, types, strict=True)):
        encoded = _encoded(value, kind)
        assert encoded is not None
        if kind == "-" and not _is_plain_name(name, seen):
            pair = [("", "x", name.encode("utf-8", "surrogateescape")), ("", *encoded)]
            table.append((f"{_HEADER}{number}", "A", tagged_table(pair, named=False)))
        else:
            seen.add(name)
            table.append((name, *encoded))
    raw = _put_together(properties, tagged_table(table))
    return Content(exchange, routing_key, raw, message.body or b"")


_BEFORE_TABLE = ("content_type", "content_encoding")
_HAS_TABLE = 0x2000
_U16 = Struct(">H")


def _taken_apart(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """The properties but the headers, and the bytes of their table."""
    there = field_spans(raw)
    if "headers" not in there:
        return decode_properties(raw), b""
    begin, end = there["headers"]
    flags = _U16.unpack_from(raw)[0] & ~_HAS_TABLE
    rest = b"".join((_U16.pack(flags), raw[2:begin], raw[end:]))
    return decode_properties(rest), raw[begin + 4 : end]


def _put_together(properties: dict[str, Any], table: bytes) -> bytes:
    """The inverse of `_taken_apart`; an empty table is none."""
    if not table:
        return encode_properties(properties)
    before = {name: properties.pop(name) for name in _BEFORE_TABLE if name in properties}
    first, second = encode_properties(before), encode_properties(properties)
    flags = _U16.unpack_from(first)[0] | _U16.unpack_from(second)[0] | _HAS_TABLE
    return b"".join((_U16.pack(flags), first[2:], _U32.pack(len(table)), table, second[2:]))


def _is_plain_name(name: str, seen: set[str]) -> bool:
    return (
        len(name.encode("utf-8", "surrogateescape")) <= _SHORT_MAX
        and name not in seen
        and not name.startswith((_HEADER, "amqp."))
        and name not in (_KEY, _BODY)
    )


def _leading(headers: tuple[Header, ...]) -> tuple[dict[str, Any], tuple[Header, ...]]:
    """What of the first headers is AMQP's own, as `to_neutral` puts it there; and the others."""
    found: dict[str, Any] = {}
    count, last = 0, -1
    for name, value in headers:
        at = _ORDER.index(name) if name in _ORDER else -1
        if at <= last or value is None:
            break
        text = value.decode("utf-8", "surrogateescape")
        if name == _TYPES:
            rest = headers[count + 1 :]
            if not _fits_types(text, rest):
                break
        elif not _fits(name, text, len(value)):
            break
        own = _OF_NAME.get(name, name)
        found[own] = text if _KINDS.get(own, "s") == "s" else int(text)
        count, last = count + 1, at
    return found, headers[count:]


def _fits(name: str, text: str, size: int) -> bool:
    """Whether a property can have that value, and only as this text."""
    kind = _KINDS.get(_OF_NAME.get(name, ""), "s")
    if kind == "s":
        return size <= _SHORT_MAX and (size > 0 or name not in (_EXCHANGE, _ROUTING_KEY))
    most = 255 if kind == "o" else (1 << 64) - 1
    return text.isascii() and text.isdigit() and str(int(text[:20])) == text and int(text) <= most


def _fits_types(text: str, rest: tuple[Header, ...]) -> bool:
    if len(text) != len(rest) or not text.strip("-"):
        return False
    seen: set[str] = set()
    for (name, value), kind in zip(rest, text, strict=True):
        if _encoded(value, kind) is None:
            return False
        if kind != "-" and (name in seen or len(name.encode("utf-8", "surrogateescape")) > 255):
            return False
        seen.add(name)
    return True
