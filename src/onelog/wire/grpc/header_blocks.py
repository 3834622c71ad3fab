"""HPACK, as a server reads it: blocks of headers, most of which refer to earlier ones.

    1xxxxxxx                 a header of the table
    01xxxxxx value           a header that enters the table; its name is in it, or follows
    0000xxxx, 0001xxxx       one that does not
    001xxxxx                 how large the table is from now on

The static table and Huffman's code are the library's (`hpack`); its loop over the bytes costs four
times as much as this one, and is half of what an HTTP/2 request costs.

Invariant: `decode` gives the headers of the block, or raises `WireError`, after which the
connection is of no use. What is larger than `list_bytes_max` is read to its end, and told by None.
Java's client refers to fourteen headers in each call, and adds two to the table.
"""

from functools import lru_cache

from hpack import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from onelog.errors import WireError

TABLE_BYTES = 4096
"""What every peer may rely on, and what we leave it at."""
LIST_BYTES_MAX = 16 << 10
_ENTRY_BYTES = 32
_INTEGER_MAX = 1 << 24

Header = tuple[bytes, bytes]
_STATIC: tuple[Header, ...] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_DYNAMIC_FROM = len(_STATIC)
_NEWEST = _DYNAMIC_FROM - 1
_STATIC_BYTES = sum(len(name) + len(value) for name, value in _STATIC)
_EXPANDS_MAX = 2
"""How much longer a text may be than in Huffman's code, whose shortest has five bits."""


@lru_cache(1024)
def _huffman(text: bytes) -> bytes:
    return decode_huffman(text)


class HeaderDecoder:
    """The table of one connection."""

    def __init__(self, list_bytes_max: int = LIST_BYTES_MAX) -> None:
        self._list_bytes_max = list_bytes_max
        # Each name and value is there once: more is not to be had without a block that is larger.
        self._block_bytes_fine = (list_bytes_max - TABLE_BYTES - _STATIC_BYTES) // _EXPANDS_MAX
        self._table: list[Header] = []
        """The newest last."""
        self._bytes = 0
        self._bytes_max = TABLE_BYTES

    def decode(self, block: bytes) -> dict[bytes, bytes] | None:
        """The headers of a block, of several with one name the last; None if they are too large."""
        try:
            found = self._decode(block)
        except IndexError:
            raise WireError("a block of headers that is cut off, or refers to nothing") from None
        except HPACKError as error:
            raise WireError(f"a block of headers that makes no sense: {error}") from None
        if len(block) > self._block_bytes_fine:
            size = sum([len(name) + len(value) for name, value in found.items()])
            return found if size <= self._list_bytes_max else None
        return found

    def _decode(self, block: bytes) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        table = self._table
        at, end = 0, len(block)
        while at < end:
            byte = block[at]
            if byte > 0x80:
                at += 1
                index = byte - 0x80
                if index == 0x7F:
                    index, at = _integer(block, at - 1, 0x7F)
                name, value = _STATIC[index] if index < _DYNAMIC_FROM else table[_NEWEST - index]
            elif byte & 0x40:
                index = byte - 0x40
                if index == 0x3F:
                    index, at = _integer(block, at, 0x3F)
                else:
                    at += 1
                if not index:
                    name, at = _text(block, at)
                else:
                    name = (_STATIC[index] if index < _DYNAMIC_FROM else table[_NEWEST - index])[0]
                value, at = _text(block, at)
                table.append((name, value))
                self._bytes += len(name) + len(value) + _ENTRY_BYTES
                if self._bytes > self._bytes_max:
                    self._shrink()
            elif (
                not byte
                and (middle := at + 2 + block[at + 1]) < end
                and (until := middle + 1 + block[middle]) <= end
                and block[at + 1] < 0x7F
                and block[middle] < 0x7F
            ):
                # As gRPC's own libraries write most of them: plain, short, and for no table.
                name, value = block[at + 2 : middle], block[middle + 1 : until]
                at = until
            elif byte & 0xE0 == 0x20:
                most, at = _integer(block, at, 0x1F)
                if most > TABLE_BYTES:
                    raise WireError(f"a table of {most} bytes, where {TABLE_BYTES} are allowed")
                self._bytes_max = most
                self._shrink()
                continue
            elif byte == 0x80:
                raise WireError("a header with the number 0")
            else:
                index, at = _integer(block, at, 0x0F)
                if not index:
                    name, at = _text(block, at)
                else:
                    name = (_STATIC[index] if index < _DYNAMIC_FROM else table[_NEWEST - index])[0]
                value, at = _text(block, at)
            found[name] = value
        return found

    def _shrink(self) -> None:
        table, size, count = self._table, self._bytes, 0
        while size > self._bytes_max:
            name, value = table[count]
            size -= len(name) + len(value) + _ENTRY_BYTES
            count += 1
        del table[:count]
        self._bytes = size


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if value > _INTEGER_MAX or shift > 28:
            raise WireError("a number in a block of headers that is too large")
        if not byte & 0x80:
            return value, at
        shift += 7


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    first = block[at]
    if first & 0x7F == 0x7F:
        length, at = _integer(block, at, 0x7F)
    else:
        length, at = first & 0x7F, at + 1
    end = at + length
    if end > len(block):
        raise WireError("a header that is cut off")
    text = block[at:end]
    return (_huffman(text) if first & 0x80 else text), end


def literal(name: bytes, value: bytes) -> bytes:
    """A header that enters no table; texts of less than 127 bytes or more."""
    return b"\x00" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    length = len(text)
    if length < 0x7F:
        return bytes((length,))
    length -= 0x7F
    written = bytearray(b"\x7f")
    while length >= 0x80:
        written.append(length & 0x7F | 0x80)
        length >>= 7
    written.append(length)
    return bytes(written)
