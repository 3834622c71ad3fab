"""Fields of protobuf messages, written by hand: for the answers that every message needs.

    key (number << 3 | kind) | varint            a number
    key | varint length | bytes                  a text, bytes, or a message within

Making an answer of objects costs ten times as much. Fields may stand in any order, and one that
stands twice counts as it stands last, so what is the same in many answers is written once.
"""

from functools import lru_cache

_SHORT = 256
_MASK = (1 << 64) - 1


def varint(value: int) -> bytes:
    """A number; negative ones have ten bytes."""
    value &= _MASK
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


_VARINTS = tuple(map(varint, range(_SHORT)))


def number(key: bytes, value: int) -> bytes:
    return key + (_VARINTS[value] if 0 <= value < _SHORT else varint(value))


def field(key: bytes, content: bytes) -> bytes:
    """A field with bytes, or with a message that is written already."""
    size = len(content)
    return key + (_VARINTS[size] if size < _SHORT else varint(size)) + content


def text(key: bytes, content: str) -> bytes:
    data = content.encode()
    size = len(data)
    return key + (_VARINTS[size] if size < _SHORT else varint(size)) + data


@lru_cache(4096)
def time(key: bytes, time_ms: int) -> bytes:
    """A field with a Timestamp or a Duration; many messages have the same."""
    seconds, rest_ms = divmod(time_ms, 1000)
    return field(key, number(b"\x08", seconds) + number(b"\x10", rest_ms * 1_000_000))
