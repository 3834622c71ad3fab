"""Commands as bytes: how they follow one another on a connection, and their headers in both forms.

    int32 length          of everything after this field
    int32 mark            serialize type << 24 | length of the header
    header                JSON or compact, as the mark says
    body                  the rest; may be empty

Invariants: however the bytes of a connection are cut into pieces, the commands are the same, and
bytes that are no frame raise `WireError` after the commands before them were handed out. A request
with a text that is too long (`fields`) is handed out as `REFUSED`. When all commands were taken,
nothing is kept but the bytes of the next one.

A header is in one of RocketMQ's two forms. JSON, serialize type 0:

    {"code":105,"extFields":{"topic":"orders"},"flag":0,"language":"JAVA","opaque":7,
     "remark":"...","serializeTypeCurrentRPC":"JSON","version":513}

Nulls are omitted; every value in `extFields` is a text. Clients in other languages are looser, and
fastjson forgives them (numbers as texts, texts as numbers, nulls), so a header that is not of the
usual form is read a second time, slowly and with the same forgiveness.

Compact, serialize type 1:

    int16 code | int8 language | int16 version | int32 opaque | int32 flag
    int32 length | remark in UTF-8                 (length 0: no remark)
    int32 length | { int16 length | key in UTF-8 | int32 length | value in UTF-8 } ...

Reading one field at a time costs a Python call per field. But a client sends the same fields in
the same order again and again, and most of them with the same values, so a `_Layout` remembers a
header: another one of the same size that differs only where others of this layout have differed
before is known by one comparison of large integers, and only its changing values are read.
Invariant: with or without layouts, the command is the same.

The code has 16 bits: requests with a higher one (POP) can only travel with a JSON header.
"""

import struct
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import msgspec

from onelog.errors import WireError
from onelog.message import Buffer
from onelog.wire.remoting.codes import LANGUAGE_CODES, LANGUAGE_NAMES, VERSION, LanguageCode
from onelog.wire.remoting.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    INT32_MAX,
    INT32_MIN,
    REFUSED,
    Command,
    Serialize,
)
from onelog.wire.remoting.fields import NAME_CHARS_MAX, too_long

INT16_MIN = -(2**15)
INT16_MAX = 2**15 - 1

_FIXED = struct.Struct(">hbhiii")
_FIXED_BYTES = _FIXED.size
_REMARK_AT = _FIXED_BYTES - 4
"""Where the length of the remark is; what comes before is different in every header."""
_EXT_AT = _FIXED_BYTES + 4
"""Where the fields start in a header without a remark."""
_FIELD_OF_ONE_LETTER = struct.Struct(">HBi")
_INT16 = struct.Struct(">H")
_INT32 = struct.Struct(">i")

_LAYOUTS_MAX = 512
_MISSES_PER_LAYOUT = 16
"""A layout costs about five plain reads; learning one of 16 misses bounds what a peer with ever
new forms can make us spend."""
_FIELDS_MAX = 64
"""The most fields in a header that is worth a layout; RocketMQ's largest has about 20."""

_LAYOUT_BYTES_MAX = 4096
"""The largest header that is worth a layout, which takes several times as much memory."""

_FIELDS_READ_MAX = 4096
"""The most fields that are read one by one, which takes 3 ms."""

_KEYS_MAX = 1024


class _Layout(NamedTuple):
    mask: int
    """Of a header as one large integer, the bits that must be as expected: all of keys, lengths and
    values that do not change, and of those that change the highest one of each byte. Where that is
    0, one byte is one character."""
    expected: int
    changing: tuple[tuple[str, slice], ...]
    slices: dict[str, slice]
    """Where the value of each field lies."""
    fields: dict[str, str]


_LETTERS: list[str] = [chr(code) for code in range(128)]
_keys: dict[str, str] = {}
"""Keys as they are written, length first; one character stands for one byte."""
_LENGTHS: list[str] = [_INT32.pack(length).decode("latin-1") for length in range(1024)]


class CompactHeaders:
    """Reads headers. The connections of one server share it, and with it what it has learned."""

    __slots__ = ("_misses", "layouts")

    def __init__(self) -> None:
        self.layouts: dict[int, _Layout] = {}
        """By size of the header."""
        self._misses = 0

    def decode(self, header: bytes | bytearray, body: Buffer) -> Command:
        """The command that `header` and `body` make."""
        try:
            code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(header)
        except struct.error:
            raise WireError(f"a compact header of {len(header)} bytes is too short") from None
        layout = self.layouts.get(len(header))
        if layout is not None:
            mask, expected, changing, _, known = layout
            if int.from_bytes(header, "big") & mask == expected:
                ext = known.copy()
                text = header.decode("latin-1")
                for key, slice_ in changing:
                    ext[key] = text[slice_]
                name = LANGUAGE_NAMES.get(language, "OTHER")
                return Command(code, name, version, opaque, flag, None, ext, body, 1)
        remark, ext = self._decode_rest(header, remark_bytes)
        name = LANGUAGE_NAMES.get(language, "OTHER")
        return Command(code, name, version, opaque, flag, remark, ext, body, 1)

    def _decode_rest(
        self, header: bytes | bytearray, remark_bytes: int
    ) -> tuple[str | None, dict[str, str]]:
        """Remark and fields, read one by one."""
        ext_at = _EXT_AT + remark_bytes
        if remark_bytes < 0 or ext_at > len(header):
            raise WireError("the remark of a compact header ends outside of it")
        (ext_bytes,) = _INT32.unpack_from(header, ext_at - 4)
        if ext_bytes < 0 or ext_at + ext_bytes > len(header):
            raise WireError("the fields of a compact header end outside of it")
        end = ext_at + ext_bytes
        try:
            remark = header[_FIXED_BYTES : ext_at - 4].decode() if remark_bytes else None
            ext = _decode_fields(header, ext_at, end)
        except (struct.error, IndexError):
            raise WireError("a field of a compact header is cut off") from None
        except UnicodeDecodeError:
            raise WireError("a compact header holds a text that is not UTF-8") from None
        is_whole = end == len(header) <= _LAYOUT_BYTES_MAX
        if not remark_bytes and 1 < len(ext) <= _FIELDS_MAX and is_whole:
            layout = self.layouts.get(len(header))
            if layout is None or not self._widen(layout, header, ext):
                self._misses += 1
                if self._misses % _MISSES_PER_LAYOUT == 0:
                    self._learn(header, ext)
        return remark, ext

    def _widen(self, layout: _Layout, header: bytes | bytearray, ext: dict[str, str]) -> bool:
        """Let the layout be that of this header too; False if other values are not what differs.

        A layout is widened at most once for each of its fields.
        """
        known = layout.fields
        changing = {key for key, _ in layout.changing}
        more = {key for key, value in ext.items() if known.get(key) != value} - changing
        if tuple(known) != tuple(ext) or any(
            len(known[key]) != len(ext[key]) or not (known[key] + ext[key]).isascii()
            for key in more
        ):
            return False
        if more:
            self.layouts[len(header)] = _layout(header, ext, layout.slices, changing | more)
        return bool(more)

    def _learn(self, header: bytes | bytearray, ext: dict[str, str]) -> None:
        """Remember how this header, which was read well, is laid out."""
        if len(self.layouts) >= _LAYOUTS_MAX:
            self.layouts.clear()
        slices = {}
        at = _EXT_AT
        for key, value in ext.items():
            start = at + len(key.encode()) + 6
            at = start + len(value.encode())
            slices[key] = slice(start, at)
        # Otherwise a key came twice, and the dict no longer tells how the bytes lie.
        if at == len(header):
            self.layouts[len(header)] = _layout(header, ext, slices, set())


def _decode_fields(header: bytes | bytearray, at: int, end: int) -> dict[str, str]:
    text = header.decode("latin-1")
    one_letter = _FIELD_OF_ONE_LETTER.unpack_from
    # An empty key with an empty value is one byte shorter than what is read at a time.
    padded = header + b"\0"
    ext: dict[str, str] = {}
    for _ in range(_FIELDS_READ_MAX):
        if at >= end:
            break
        key_bytes, letter, value_bytes = one_letter(padded, at)
        if key_bytes == 1 and letter < 128:
            start = at + 7
            key = _LETTERS[letter]
        else:
            start = at + key_bytes + 6
            (value_bytes,) = _INT32.unpack_from(header, start - 4)
            key = header[at + 2 : start - 4].decode()
        at = start + value_bytes
        if value_bytes < 0 or at > end:
            raise WireError(f"field {key!r} of a compact header ends outside of it")
        ext[key] = text[start:at]
    else:
        raise WireError(f"a compact header has {_FIELDS_READ_MAX} fields or more")
    if "".join(ext.values()).isascii():
        return ext
    return dict(zip(ext, _as_utf8(tuple(ext.values())), strict=True))


def _as_utf8(values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(v if v.isascii() else v.encode("latin-1").decode() for v in values)
    except UnicodeDecodeError:
        raise WireError("a compact header holds a text that is not UTF-8") from None


def _layout(
    header: bytes | bytearray, ext: dict[str, str], slices: dict[str, slice], changing: set[str]
) -> _Layout:
    mask = bytearray(b"\xff" * len(header))
    mask[:_REMARK_AT] = bytes(_REMARK_AT)
    for key in changing:
        start, end = slices[key].start, slices[key].stop
        mask[start:end] = b"\x80" * (end - start)
    bits = int.from_bytes(mask, "big")
    expected = int.from_bytes(header, "big") & bits
    found = tuple((key, slice_) for key, slice_ in slices.items() if key in changing)
    return _Layout(bits, expected, found, slices, ext.copy())


def encode_compact_header(
    code: int,
    language: str,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext: dict[str, str],
) -> bytes:
    """The header's bytes. `code` must fit 16 bits."""
    fields = _encode_fields(ext)
    remark_encoded = remark.encode() if remark else b""
    fixed = _FIXED.pack(
        code, LANGUAGE_CODES.get(language, 7), version, opaque, flag, len(remark_encoded)
    )
    return b"".join((fixed, remark_encoded, _INT32.pack(len(fields)), fields))


def _encode_fields(ext: dict[str, str]) -> bytes:
    try:
        # As in reading, one character stands for one byte; texts that are not ASCII and the few
        # that are long go the slow way.
        if "".join(ext.values()).isascii():
            pieces = [f"{_keys[key]}{_LENGTHS[len(value)]}{value}" for key, value in ext.items()]
            return "".join(pieces).encode("latin-1")
    except LookupError:
        pass
    fields = bytearray()
    for key, value in ext.items():
        encoded = value.encode()
        fields += _encode_key(key)
        fields += _INT32.pack(len(encoded))
        fields += encoded
    return bytes(fields)


def _encode_key(key: str) -> bytes:
    encoded = key.encode()
    with_length = _INT16.pack(len(encoded)) + encoded
    if len(_keys) < _KEYS_MAX:
        _keys[key] = with_length.decode("latin-1")
    return with_length


_Int32 = Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)]


class _Header(msgspec.Struct, gc=False, omit_defaults=True):
    code: int
    flag: int
    language: str
    opaque: int
    serialize: str = msgspec.field(name="serializeTypeCurrentRPC")
    version: int
    ext: dict[str, str] = msgspec.field(default_factory=dict, name="extFields")
    remark: str | None = None


class _Received(msgspec.Struct, gc=False):
    code: _Int32 = 0
    ext: dict[str, str] = msgspec.field(default_factory=dict, name="extFields")
    flag: _Int32 = 0
    language: str = "JAVA"
    opaque: _Int32 = 0
    remark: str | None = None
    version: _Int32 = 0


_decode_json = msgspec.json.Decoder(_Received).decode
_decode_any = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode


def decode_json_header(header: Buffer, body: Buffer) -> Command:
    """The command that `header` and `body` make."""
    try:
        it = _decode_json(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        it = _decode_leniently(header)
    return Command(it.code, it.language, it.version, it.opaque, it.flag, it.remark, it.ext, body, 0)


def encode_json_header(
    code: int,
    language: str,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext: dict[str, str],
) -> bytes:
    return _encode_json(_Header(code, flag, language, opaque, "JSON", version, ext, remark))


def _decode_leniently(header: Buffer) -> _Received:
    try:
        fields = _decode_any(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the header is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise WireError("the header is JSON, but not an object")
    ext = fields.get("extFields")
    if ext is None:
        ext = {}
    elif not isinstance(ext, dict):
        raise WireError("the header's extFields are not an object")
    remark = fields.get("remark")
    return _Received(
        code=_number(fields, "code"),
        ext={name: _text(value) for name, value in ext.items() if value is not None},
        flag=_number(fields, "flag"),
        language=_language(fields.get("language")),
        opaque=_number(fields, "opaque"),
        remark=None if remark is None else _text(remark),
        version=_number(fields, "version"),
    )


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if value is None:
        return 0
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise WireError(f"the header's {name} is not a number") from None
    if not INT32_MIN <= number <= INT32_MAX:
        raise WireError(f"the header's {name} does not fit 32 bits")
    return number


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _language(value: Any) -> str:
    if isinstance(value, int):
        return LANGUAGE_NAMES.get(value, LanguageCode.OTHER.name)
    return value if isinstance(value, str) else LanguageCode.JAVA.name


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
