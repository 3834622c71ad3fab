r"""MQTT's form: a message as a client published it, with what delivering it has to know.

    u8 flags | u64 time in ms | u16, u16, u32 lengths | client id | topic | properties | payload

The flags are those of the PUBLISH: QoS (6) and retain (1); and `REPLAYED` (0x80) for a message that
is sent because it was retained. The client id is its publisher's: who does not want its own
messages has to know. Properties are those of version 5, as on the wire, without their length and
without what belongs to one connection (aliases, subscription identifiers).

    neutral                   MQTT
    header mqtt.topic         topic
    header content-type       content type
    header reply-to           response topic
    header correlation-id     correlation data
    header mqtt.format        payload format indicator
    header mqtt.expiry        message expiry interval, in seconds
    header                    user property of the same name
    key                       user property `__key`
    body                      payload; of no body empty, with the user property `__body` = null

The headers with a property of their own come first, in this order. What does not fit (a value that
is no text, a name that is not its sender's to set, one of those headers at another place) is a user
property `__header`, whose value is the name in URL quotes and, after a `=`, the value in base64;
without a `=` it is null. A key that is no text is `__key64`, in base64.

Invariant: what is written here is read back as the same neutral message. Bytes that are no such
record raise `WireError`, and nothing else.
"""

import base64
import binascii
import struct
from typing import NamedTuple
from urllib.parse import quote, unquote

from onelog.errors import WireError
from onelog.record.forms.neutral import Header, Neutral, sane_ms

QOS = 6
EXACTLY_ONCE = 4
"""QoS 2, in its place among the flags."""
REPLAYED = 0x80
_HEAD = struct.Struct(">BQHHI")
_TEXT_BYTES_MAX = 65_535
_KEY, _KEY64, _BODY, _HEADER = "__key", "__key64", "__body", "__header"
_OWN = frozenset((_KEY, _KEY64, _BODY, _HEADER))
_FORMAT, _EXPIRY, _CONTENT_TYPE, _RESPONSE, _CORRELATION, _USER = 1, 2, 3, 8, 9, 38
_TOPIC_NAME = "mqtt.topic"
_NAMED = {
    _CONTENT_TYPE: "content-type",
    _RESPONSE: "reply-to",
    _CORRELATION: "correlation-id",
    _FORMAT: "mqtt.format",
    _EXPIRY: "mqtt.expiry",
}
"""Properties that are headers, in the order in which they are told."""
_NOT_PLAIN = frozenset((*_OWN, *_NAMED.values(), _TOPIC_NAME))
_WIDTHS = {_FORMAT: 1, _EXPIRY: 4}


class Content(NamedTuple):
    """The parts of a record's body."""

    flags: int
    time_ms: int
    client_id: bytes
    topic: bytes
    properties: bytes
    payload: bytes


def encode(
    flags: int, time_ms: int, client_id: bytes, topic: bytes, properties: bytes, payload: bytes
) -> bytes:
    """A record's body."""
    head = _HEAD.pack(flags, time_ms, len(client_id), len(topic), len(properties))
    return b"".join((head, client_id, topic, properties, payload))


def read(body: bytes | memoryview) -> Content:
    """The parts of a record's body."""
    if len(body) < _HEAD.size:
        raise WireError(f"an MQTT record has {len(body)} bytes, and needs {_HEAD.size}")
    flags, time_ms, client_bytes, topic_bytes, property_bytes = _HEAD.unpack_from(body)
    topic_at = _HEAD.size + client_bytes
    properties_at = topic_at + topic_bytes
    payload_at = properties_at + property_bytes
    if payload_at > len(body):
        raise WireError(f"an MQTT record claims {payload_at} bytes of {len(body)}")
    raw = bytes(body)
    return Content(
        flags,
        time_ms,
        raw[_HEAD.size : topic_at],
        raw[topic_at:properties_at],
        raw[properties_at:payload_at],
        raw[payload_at:],
    )


def expiry_s(properties: bytes) -> int | None:
    """The message expiry interval, if there is one."""
    if not properties or _EXPIRY not in properties:
        return None
    value = dict(_pairs(properties)).get(_EXPIRY)
    return value if isinstance(value, int) else None


def expiry_at(properties: bytes) -> int:
    """Where the message expiry interval is in properties that have one."""
    at = 0
    while properties[at] != _EXPIRY:
        width = _WIDTHS.get(properties[at])
        at += 1
        if width is not None:
            at += width
        else:
            is_pair = properties[at - 1] == _USER
            at = _sized(properties, at)[1]
            if is_pair:
                at = _sized(properties, at)[1]
    return at


def to_neutral(body: bytes | memoryview) -> Neutral:
    """The message in a record's body."""
    content = read(body)
    key: bytes | None = None
    payload: bytes | None = content.payload
    named: dict[int, bytes] = {}
    headers: list[Header] = []
    for number, value in _pairs(content.properties):
        if isinstance(value, tuple):
            name, text = value
            if name == _KEY:
                key = text.encode()
            elif name == _KEY64:
                key = _unpacked(text)
            elif name == _BODY and text == "null":
                payload = None
            else:
                headers.append(_header(name, text))
        else:
            named[number] = str(value).encode() if isinstance(value, int) else value
    first: list[Header] = [(_TOPIC_NAME, content.topic)] if content.topic else []
    first += [(name, named[number]) for number, name in _NAMED.items() if number in named]
    return Neutral(key, payload, (*first, *headers), content.time_ms)


def _header(name: str, text: str) -> Header:
    if name != _HEADER:
        return name, text.encode()
    quoted, sign, packed = text.partition("=")
    return unquote(quoted, errors="surrogateescape"), _unpacked(packed) if sign else None


def from_neutral(message: Neutral, flags: int = 0, client_id: bytes = b"") -> bytes:
    """A record's body with this message."""
    topic = b""
    pieces: list[bytes] = []
    headers = list(message.headers)
    if headers and headers[0][0] == _TOPIC_NAME and _text(headers[0][1]):
        topic = headers.pop(0)[1] or b""
    for number, name in _NAMED.items():
        if headers and headers[0][0] == name:
            encoded = _property(number, headers[0][1])
            if encoded is not None:
                pieces.append(encoded)
                del headers[0]
    if message.key is not None:
        text = _text(message.key)
        pieces.append(_pair(_KEY64, _packed(message.key)) if text is None else _pair(_KEY, text))
    if message.body is None:
        pieces.append(_pair(_BODY, "null"))
    for name, value in headers:
        text = None if value is None else _text(value)
        plain = _text(name.encode("utf-8", "surrogateescape"))
        if text is None or plain is None or name in _NOT_PLAIN:
            quoted = quote(name, safe="", errors="surrogateescape")
            text = quoted if value is None else f"{quoted}={_packed(value)}"
            name = _HEADER
        pieces.append(_pair(name, text))
    return encode(
        flags, sane_ms(message.time_ms), client_id, topic, b"".join(pieces), message.body or b""
    )


def _pairs(properties: bytes) -> list[tuple[int, int | bytes | tuple[str, str]]]:
    """Numbers and values of properties, in their order."""
    found: list[tuple[int, int | bytes | tuple[str, str]]] = []
    at, end = 0, len(properties)
    while at < end:
        number = properties[at]
        at += 1
        width = _WIDTHS.get(number)
        if width is not None:
            found.append((number, int.from_bytes(properties[at : at + width], "big")))
            at += width
            continue
        value, at = _sized(properties, at)
        if number == _USER:
            other, at = _sized(properties, at)
            try:
                found.append((number, (value.decode(), other.decode())))
            except UnicodeDecodeError:
                raise WireError("a user property of an MQTT record is no text") from None
        elif number in _NAMED:
            found.append((number, value))
        else:
            raise WireError(f"an MQTT record has property {number}")
    if at > end:
        raise WireError("the properties of an MQTT record are cut off")
    return found


def _sized(raw: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + int.from_bytes(raw[at : at + 2], "big")
    if end > len(raw) or at + 2 > len(raw):
        raise WireError("the properties of an MQTT record are cut off")
    return raw[at + 2 : end], end


def _property(number: int, value: bytes | None) -> bytes | None:
    """A property with this value, if it may have it."""
    if value is None or len(value) > _TEXT_BYTES_MAX:
        return None
    width = _WIDTHS.get(number)
    if width is not None:
        if not value.isdigit() or len(value) > 10 or str(int(value)).encode() != value:
            return None
        wanted, most = int(value), 1 if number == _FORMAT else 0xFFFFFFFF
        return bytes((number,)) + wanted.to_bytes(width, "big") if wanted <= most else None
    if number != _CORRELATION and _text(value) is None:
        return None
    if number == _RESPONSE and (not value or b"+" in value or b"#" in value):
        return None
    return bytes((number,)) + len(value).to_bytes(2, "big") + value


def _pair(name: str, value: str) -> bytes:
    raw, content = name.encode(), value.encode()
    if len(raw) > _TEXT_BYTES_MAX or len(content) > _TEXT_BYTES_MAX:
        # Longer than any property can be: it is left out, and so are its bytes.
        return b""
    return b"".join(
        (
            bytes((_USER,)),
            len(raw).to_bytes(2, "big"),
            raw,
            len(content).to_bytes(2, "big"),
            content,
        )
    )


def _text(value: bytes | None) -> str | None:
    """The value as a text of MQTT, or None."""
    if value is None or len(value) > _TEXT_BYTES_MAX:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _packed(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _unpacked(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except binascii.Error:
        return text.encode()  # Somebody else's property that happens to have such a name.
