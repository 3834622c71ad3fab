"""RocketMQ's form: a body, and properties that are texts.

    neutral     RocketMQ
    key         property KEYS
    body        body; no body is an empty one, and the property `__body` = null
    header      property of the same name
    time        born time

Properties are texts with a value each, no name twice, and neither 0x01 nor 0x02 in them. What does
not fit is kept under a name that says what it was, and its value is bytes in base64 after a `=`, or
`null`. All of that is read back as what it was:

    __key             a key that is no such text (binary, empty)
    __header.N.NAME   header number N, counted from 0, NAME in URL quotes: one with a binary, empty
                      or null value, a name that was there before, or a name not its sender's to set

RocketMQ's Java clients before 5.0 stop at a message whose body is empty; later ones read it.

Names that brokers and clients set for themselves (`OWN`) are no headers of the sender.

One thing is lost: properties end at 32,767 bytes. Headers that do not fit are left out, from the
end on, and `__left_out` says how many; what is kept in another form still has them.

Invariant: what is written here, and fits, is read back as the same neutral message.
"""

import base64
import binascii
from collections.abc import Iterator
from urllib.parse import quote, unquote

from onelog.message import KEYS, PROPERTIES_BYTES_MAX
from onelog.record.forms.neutral import Header, Neutral

OWN = frozenset(
    "MSG_REGION TRACE_ON CLUSTER WAIT POP_CK POP_CK_OFFSET 1ST_POP_TIME __CRC32# INNER_NUM "
    "INNER_BASE INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET __left_out".split()
)
_BODY = "__body"
_KEY = "__key"
_HEADER = "__header."
_LEFT_OUT = "__left_out"
_NULL = "null"
_TAKEN = frozenset({KEYS, _BODY, _KEY, *OWN})
_ROOM_BYTES = 128
"""For what is added to converted properties: how many were left out, a unique key, a receipt."""


def to_neutral(body: bytes, properties: bytes, born_ms: int) -> Neutral:
    """The message in a body and its encoded properties."""
    key: bytes | None = None
    content: bytes | None = body
    headers: list[Header] = []
    for name, value in _pairs(properties):
        if name == KEYS:
            key = value.encode("utf-8", "surrogateescape")
        elif name == _KEY:
            key = _unpacked(value)
        elif name == _BODY and value == _NULL:
            content = None
        elif name.startswith(_HEADER):
            quoted = name[len(_HEADER) :].partition(".")[2]
            headers.append((unquote(quoted, errors="surrogateescape"), _unpacked(value)))
        elif name not in OWN:
            headers.append((name, value.encode("utf-8", "surrogateescape")))
    return Neutral(key, content, tuple(headers), born_ms)


def from_neutral(message: Neutral) -> tuple[bytes, bytes]:
    """The body and the encoded properties; the time goes where the born time goes."""
    pieces: list[str] = []
    if message.key is not None:
        text = _text(message.key)
        pieces.append(f"{_KEY}\x01{_packed(message.key)}" if text is None else f"{KEYS}\x01{text}")
    if message.body is None:
        pieces.append(f"{_BODY}\x01{_NULL}")
    seen: set[str] = set()
    for number, (name, value) in enumerate(message.headers):
        text = None if value is None else _text(value)
        if text is None or name in seen or not _is_plain_name(name):
            quoted = quote(name, safe="", errors="surrogateescape")
            pieces.append(f"{_HEADER}{number}.{quoted}\x01{_packed(value)}")
        else:
            pieces.append(f"{name}\x01{text}")
            seen.add(name)
    encoded = [f"{piece}\x02".encode() for piece in pieces]
    size, left_out = sum(map(len, encoded)), 0
    while size > PROPERTIES_BYTES_MAX - _ROOM_BYTES:
        size -= len(encoded.pop())
        left_out += 1
    if left_out:
        encoded.append(f"{_LEFT_OUT}\x01{left_out}\x02".encode())
    return message.body or b"", b"".join(encoded)


def _pairs(properties: bytes) -> Iterator[tuple[str, str]]:
    """Names and values in their order; what has no value is dropped, as RocketMQ drops it."""
    for entry in properties.decode("utf-8", "surrogateescape").split("\x02"):
        name, _, value = entry.partition("\x01")
        if value:
            yield name, value


def _text(value: bytes) -> str | None:
    """The value as a property can have it, or None."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text and "\x01" not in text and "\x02" not in text else None


def _is_plain_name(name: str) -> bool:
    raw = name.encode("utf-8", "surrogateescape")
    return _text(raw) is not None and name not in _TAKEN and not name.startswith(_HEADER)


def _packed(value: bytes | None) -> str:
    # An empty value would be no property at all, hence the sign before it.
    return _NULL if value is None else "=" + base64.b64encode(value).decode("ascii")


def _unpacked(value: str) -> bytes | None:
    if value == _NULL:
        return None
    try:
        return base64.b64decode(value.removeprefix("=").encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        # Somebody else's property that happens to have such a name.
        return value.encode("utf-8", "surrogateescape")


# For who reads properties without making a message of them.
KEY, BODY, HEADER, NULL, LEFT_OUT = _KEY, _BODY, _HEADER, _NULL, _LEFT_OUT
packed, unpacked, plain_text, is_plain_name = _packed, _unpacked, _text, _is_plain_name
