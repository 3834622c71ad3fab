"""Frames: how commands follow one another on a connection.

    int32 length          of everything after this field
    int32 mark            serialize type << 24 | length of the header
    header                JSON or compact, as the mark says
    body                  the rest; may be empty

Invariants: however the bytes of a connection are cut into pieces, the commands are the same, and
bytes that are no frame raise `WireError` after the commands before them were handed out. A request
with a text that is too long (`fields`) is handed out as `REFUSED`. When all commands were taken,
nothing is kept but the bytes of the next one.
"""

import struct
from collections.abc import Iterator

import msgspec

from onelog.errors import WireError
from onelog.message import Buffer
from onelog.wire.remoting.codes import VERSION
from onelog.wire.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, REFUSED, Command, Serialize
from onelog.wire.remoting.fields import NAME_CHARS_MAX, too_long
from onelog.wire.remoting.headers import (
    INT16_MAX,
    INT16_MIN,
    CompactHeaders,
    decode_json_header,
    encode_compact_header,
    encode_json_header,
)

FRAME_BYTES_MAX = 16 << 20
"""RocketMQ's limit on a frame, its length field not counted."""

REQUEST_HEADER_BYTES_MAX = (1 << 20) + (64 << 10)
"""For those who are only asked: the largest header of a request has a note of 1 MiB (`fields`).
Headers of answers can be longer, with the ids of a whole batch."""

BODY_COPY_MAX = 4096
"""A body up to this size is copied out of the received bytes, which costs less than a view and
does not keep them in memory; a larger one is a view."""

_START = struct.Struct(">iI")
# Members of an enum cost a lookup each time; these are compared once per frame.
_JSON = Serialize.JSON.value
_COMPACT = Serialize.COMPACT.value
_PLAIN_JSON = _JSON << 24 | NAME_CHARS_MAX
_FIRST_COMPACT = _COMPACT << 24
_PLAIN_COMPACT = _COMPACT << 24 | NAME_CHARS_MAX
"""Marks of headers that are small."""


class RemotingFrameReader:
    """Takes bytes as they come, hands out commands.

    One connection has one reader. After a `WireError` it is of no more use: where the next frame
    would start is unknown.
    """

    __slots__ = ("_at", "_bytes_max", "_data", "_decode_compact", "_header_bytes_max", "_wanted")

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = FRAME_BYTES_MAX,
        headers: CompactHeaders | None = None,
    ) -> None:
        """`headers` is what the readers of one server share."""
        self._decode_compact = (headers or CompactHeaders()).decode
        self._bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._data: bytes | bytearray = b""
        self._at = 0
        self._wanted = 4
        """How many bytes from `_at` on are needed to get any further."""

    @property
    def unread_bytes(self) -> int:
        """How many received bytes have not become a command yet."""
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        if not data:
            return
        if self._at == len(self._data):
            self._data = data
            self._at = 0
            return
        if self._at or not isinstance(self._data, bytearray):
            # A new array, because views of bodies may still point into the old bytes.
            self._data = bytearray(memoryview(self._data)[self._at :])
            self._at = 0
        self._data += data

    def commands(self) -> Iterator[Command]:
        """The commands that are complete by now. May be left at any point and called again."""
        data, at = self._data, self._at
        size = len(data)
        while size - at >= self._wanted:
            if size - at < 8:
                self._wanted = 8
                self._check(int.from_bytes(data[at : at + 4], "big", signed=True))
                break
            length, mark = _START.unpack_from(data, at)
            end = at + 4 + length
            if end > size or length < 4 or length > self._bytes_max:
                self._check(length)
                self._wanted = 4 + length
                break
            body_at = at + 8 + (mark & 0xFFFFFF)
            if body_at > end:
                raise WireError(f"a header of {mark & 0xFFFFFF} bytes in a frame of {length}")
            if end - body_at <= BODY_COPY_MAX:
                body: bytes | bytearray | memoryview = data[body_at:end]
            else:
                body = memoryview(data)[body_at:end]
            # Headers in which no text can be too long, as nearly all are, pay nothing for that.
            if mark <= _PLAIN_JSON:
                command = decode_json_header(data[at + 8 : body_at], body)
            elif _FIRST_COMPACT <= mark <= _PLAIN_COMPACT:
                command = self._decode_compact(data[at + 8 : body_at], body)
            else:
                command = self._decode_large(mark, data[at + 8 : body_at], body)
            self._at = at = end
            self._wanted = 4
            yield command
        if at:
            # A new array, because views of bodies may still point into the old bytes.
            self._data = bytearray(memoryview(data)[at:]) if at < size else b""
            self._at = 0

    def _decode_large(self, mark: int, header: bytes | bytearray, body: Buffer) -> Command:
        """The command of a header in which texts can be too long."""
        if len(header) > self._header_bytes_max:
            raise WireError(
                f"a header of {len(header)} bytes; the limit is {self._header_bytes_max}"
            )
        if mark >> 24 == _COMPACT:
            command = self._decode_compact(header, body)
        elif mark >> 24 == _JSON:
            command = decode_json_header(header, body)
        else:
            raise WireError(f"headers of serialize type {mark >> 24} are unknown")
        if not command.flag & FLAG_RESPONSE and (reason := too_long(command.ext)) is not None:
            command = msgspec.structs.replace(
                command, code=REFUSED, remark=reason, ext={}, body=b""
            )
        return command

    def _check(self, length: int) -> None:
        if length > self._bytes_max:
            raise WireError(f"a frame of {length} bytes; the limit is {self._bytes_max}")
        if length < 4:
            raise WireError(f"a frame of {length} bytes has no room for a header")


def encode_response(
    code: int,
    opaque: int,
    ext: dict[str, str] | None = None,
    remark: str | None = None,
    body: Buffer | tuple[Buffer, ...] | list[memoryview] = b"",
    serialize: int = Serialize.JSON,
) -> list[Buffer]:
    """An answer. `body` may be several buffers, such as neighbouring records of the log."""
    if isinstance(body, (tuple, list)):
        bodies: tuple[Buffer, ...] = tuple(body)
    else:
        bodies = (body,) if body else ()
    return _encode(
        code, "JAVA", VERSION, opaque, FLAG_RESPONSE, remark, ext or {}, bodies, serialize
    )


def encode_request(
    code: int,
    opaque: int,
    ext: dict[str, str] | None = None,
    body: Buffer = b"",
    *,
    oneway: bool = False,
    language: str = "JAVA",
    version: int = VERSION,
    serialize: int = Serialize.JSON,
) -> list[Buffer]:
    flag = FLAG_ONEWAY if oneway else 0
    bodies = (body,) if body else ()
    return _encode(code, language, version, opaque, flag, None, ext or {}, bodies, serialize)


def _encode(
    code: int,
    language: str,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext: dict[str, str],
    bodies: tuple[Buffer, ...],
    serialize: int,
) -> list[Buffer]:
    # A code that does not fit the compact header goes out as JSON, which every peer reads too.
    if serialize == _COMPACT and INT16_MIN <= code <= INT16_MAX:
        header = encode_compact_header(code, language, version, opaque, flag, remark, ext)
        mark = _COMPACT << 24 | len(header)
    else:
        header = encode_json_header(code, language, version, opaque, flag, remark, ext)
        mark = len(header)
    if not bodies:
        return [_START.pack(4 + len(header), mark) + header]
    body_bytes = sum(map(len, bodies))
    first = _START.pack(4 + len(header) + body_bytes, mark) + header
    if body_bytes <= BODY_COPY_MAX:
        return [b"".join((first, *bodies))]
    return [first, *bodies]
