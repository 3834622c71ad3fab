"""What packets are made of: numbers, texts, bytes, and numbers of one to four bytes (varints).

A text is UTF-8 with its length before it, as bytes are. It has no U+0000 and no surrogates (1.5.4
of version 5). A varint has seven bits in each byte, the lowest first.
"""

import struct

from onelog.wire.mqtt.codes import REMAINING_BYTES_MAX, PacketError

TEXT_BYTES_MAX = 65_535
_INT16 = struct.Struct(">H").unpack_from
_INT32 = struct.Struct(">I").unpack_from

Data = bytes | bytearray


def read_uint16(data: Data, at: int, end: int) -> tuple[int, int]:
    """A number of two bytes, and the place behind it."""
    if at + 2 > end:
        raise PacketError("a packet ends within a number")
    return _INT16(data, at)[0], at + 2


def read_uint32(data: Data, at: int, end: int) -> tuple[int, int]:
    """A number of four bytes, and the place behind it."""
    if at + 4 > end:
        raise PacketError("a packet ends within a number")
    return _INT32(data, at)[0], at + 4


def read_byte(data: Data, at: int, end: int) -> tuple[int, int]:
    """A number of one byte, and the place behind it."""
    if at >= end:
        raise PacketError("a packet ends within a number")
    return data[at], at + 1


def read_bytes(data: Data, at: int, end: int) -> tuple[bytes, int]:
    """Bytes with their length, and the place behind them."""
    if at + 2 > end:
        raise PacketError("a packet ends within a length")
    stop = at + 2 + (data[at] << 8 | data[at + 1])
    if stop > end:
        raise PacketError(f"a field claims {stop - at - 2} bytes of {end - at - 2}")
    return bytes(data[at + 2 : stop]), stop


def read_text(data: Data, at: int, end: int) -> tuple[str, int]:
    """A text, and the place behind it."""
    raw, at = read_bytes(data, at, end)
    return as_text(raw), at


def as_text(raw: bytes) -> str:
    """The text in these bytes, if it is one."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise PacketError("a text is not UTF-8") from None
    if "\0" in text:
        raise PacketError("a text has the character U+0000")
    return text


def read_varint(data: Data, at: int, end: int) -> tuple[int, int]:
    """A varint in as few bytes as it needs, and the place behind it."""
    value = shift = 0
    for position in range(at, min(at + 4, end)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and position > at:
                raise PacketError("a varint has more bytes than it needs")
            return value, position + 1
        shift += 7
    raise PacketError("a varint has no end")


def encode_varint(value: int) -> bytes:
    """A number of at most 28 bits as a varint."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value > REMAINING_BYTES_MAX:
        raise PacketError(f"{value} is more than a packet can have")
    pieces = bytearray()
    while value >= 0x80:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)


def encode_bytes(value: bytes) -> bytes:
    """Bytes with their length before them."""
    if len(value) > TEXT_BYTES_MAX:
        raise PacketError(f"a field has {len(value)} bytes; it may have {TEXT_BYTES_MAX}")
    return len(value).to_bytes(2, "big") + value


def encode_text(value: str) -> bytes:
    """A text with its length before it."""
    return encode_bytes(value.encode())
