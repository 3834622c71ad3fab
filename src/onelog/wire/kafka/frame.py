"""Frames: how requests and answers follow one another on a connection. All big-endian.

    request   int32 length | int16 api key | int16 version | int32 number | string? client id
              | tags, if the version is flexible | fields
    answer    int32 length | int32 number | tags, if the version is flexible | fields

The answer to ApiVersions never has tags: who asks does not know yet what the broker speaks.

Invariants: however the bytes of a connection are cut into pieces, the frames are the same; bytes
that are no request raise `WireError`.
"""

import struct
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np

from onelog.errors import WireError
from onelog.wire.kafka import schema
from onelog.wire.kafka.codes import ApiKey

Piece = bytes | memoryview

_HEADER = struct.Struct(">hhih")
_LENGTH_BYTES = 4
_SIZED = struct.Struct(">ii")
_ROOM_BYTES_MIN, _ROOM_BYTES_SURE = 64 << 10, 2 << 20
"""What is missing of a frame that is worth a place of its own: so much is copied in little time.
A frame that claims more than the other has its place when a quarter of it is there."""


PARTS_MAX, ANSWER_BYTES_MAX = 200_000, 256 << 20
"""What one request may name, and what is answered to it: a part takes several times its bytes."""
_JOINED_AT = 1_000


class Header(NamedTuple):
    """What a request begins with, and where its fields begin."""

    key: int
    version: int
    number: int
    client_id: str
    fields_at: int


class KafkaFrameReader:
    """Takes bytes as they come, hands out frames without their length."""

    __slots__ = ("_bytes_max", "_bytes_min", "_filled", "_frame", "_pieces", "_wanted")

    def __init__(self, bytes_max: int, bytes_min: int = _HEADER.size) -> None:
        self._bytes_max, self._bytes_min = bytes_max, bytes_min
        self._pieces: list[Piece] = []
        self._wanted = _LENGTH_BYTES
        """How many bytes are needed to get any further."""
        self._frame: memoryview | None = None
        """A large frame, whose bytes are put where they stay; then there are no pieces."""
        self._filled = 0
        """How many received bytes have not become a frame yet."""

    @property
    def unread_bytes(self) -> int:
        """How many received bytes have not become a frame yet."""
        return self._filled

    @property
    def room(self) -> memoryview | None:
        """Where to read the rest of a large frame to, instead of feeding it."""
        if self._frame is None:
            missing = self._wanted - self._filled
            if missing < _ROOM_BYTES_MIN or self._wanted > max(_ROOM_BYTES_SURE, 4 * self._filled):
                return None
            self._frame = np.empty(self._wanted, np.uint8).data
            at = 0
            for piece in self._pieces:
                self._frame[at : at + len(piece)] = piece
                at += len(piece)
            self._pieces = []
        return self._frame[self._filled :] if self._filled < len(self._frame) else None

    def fill(self, count: int) -> None:
        """So many bytes were read to where there was room."""
        self._filled += count

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        if self._frame is not None:
            rest = self._frame[self._filled :]
            rest[: len(data)] = data[: len(rest)]
            self._filled += min(len(data), len(rest))
            data = data[len(rest) :]
        if data:
            self._pieces.append(data)
            self._filled += len(data)

    def frames(self) -> Iterator[memoryview]:
        """The frames that are complete by now. May be left at any point and called again."""
        while self._filled >= self._wanted:
            if self._frame is not None:
                whole, self._frame = self._frame, None
                self._wanted = _LENGTH_BYTES
                self._filled -= len(whole)
                yield whole[_LENGTH_BYTES:].toreadonly()
                continue
            # Joined once per frame, however many pieces a large one comes in.
            if len(self._pieces) > 1:
                self._pieces = [b"".join(self._pieces)]
            data = memoryview(self._pieces[0])
            size = int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)
            if not self._bytes_min <= size <= self._bytes_max:
                raise WireError(f"a request of {size} bytes; the limit is {self._bytes_max}")
            end = _LENGTH_BYTES + size
            if end > len(data):
                self._wanted = end
                return
            self._wanted = _LENGTH_BYTES
            self._filled = len(data) - end
            self._pieces = [data[end:]] if self._filled else []
            yield data[_LENGTH_BYTES:end]


def read_header(frame: memoryview) -> Header:
    """What a frame begins with, of an API and version that may be unknown."""
    key, version, number, length = _HEADER.unpack_from(frame)
    at = _HEADER.size
    client_id = ""
    if length >= 0:
        if at + length > len(frame):
            raise WireError(f"a client id of {length} bytes in a request of {len(frame)}")
        client_id = str(frame[at : at + length], "utf-8", "replace")
        at += length
    return Header(key, version, number, client_id, at)


def read_fields(header: Header, frame: memoryview) -> schema.Fields:
    """The fields of a request, of a version that is known."""
    at = header.fields_at
    api = schema.apis()[header.key]
    try:
        if header.version in api.flexible:
            at = schema.skip_tags(frame, at) if frame[at] else at + 1
    except IndexError:
        raise WireError(f"{api.name} {header.version} is cut off in its header") from None
    except WireError as error:
        raise WireError(f"{api.name} {header.version}: {error}") from None
    try:
        fields: schema.Fields = schema.decoder(header.key, header.version, "request")(frame, at)[0]
        return fields
    except schema.DECODE_ERRORS as error:
        raise WireError(f"{api.name} {header.version}: {schema.cut_off(error)}") from None
    except WireError as error:
        raise WireError(f"{api.name} {header.version}: {error}") from None


def read_long_fields(header: Header, frame: memoryview) -> Generator[int, None, schema.Fields]:
    """The same in steps, for a frame that may have very many parts; but not more than a limit.

    Says how many there are so far.
    """
    count = 0
    at = header.fields_at
    api = schema.apis()[header.key]
    try:
        if header.version in api.flexible:
            at = schema.skip_tags(frame, at)
        steps = schema.decode_long_request(header.key, header.version, frame, at)
        while True:
            try:
                count += next(steps)
            except StopIteration as end:
                return cast(schema.Fields, end.value)
            if count > PARTS_MAX:
                raise WireError(f"more than {PARTS_MAX} parts in one request")
            yield count
    except IndexError:
        raise WireError(f"{api.name} {header.version} is cut off in its header") from None
    except WireError as error:
        raise WireError(f"{api.name} {header.version}: {error}") from None


def encode_request(
    key: int, version: int, number: int, client_id: str, fields: schema.Fields
) -> list[Piece]:
    """A request of ours, in pieces that go to the socket one after the other."""
    client = client_id.encode()
    head = _HEADER.pack(key, version, number, len(client)) + client
    if version in schema.apis()[key].flexible:
        head += b"\0"
    pieces = [head, *schema.encode_request(key, version, fields)]
    size = sum(map(len, pieces))
    return joined([size.to_bytes(_LENGTH_BYTES, "big"), *pieces])


def encode_answer(key: int, version: int, number: int, fields: schema.Fields) -> list[Piece]:
    """An answer, in pieces that go to the socket one after the other."""
    pieces = _answer_head(key, version)
    schema.encoder(key, version, "response")(fields, pieces)
    pieces[0] = _SIZED.pack(_LENGTH_BYTES + sum(map(len, pieces)), number)
    return joined(pieces)


def encode_long_answer(
    key: int, version: int, number: int, fields: schema.Fields
) -> Generator[None, None, list[Piece]]:
    """The same in steps, for an answer that may have very many parts."""
    pieces = _answer_head(key, version)
    done, size = 1, 0
    for _ in schema.encode_long_response_to(key, version, fields, pieces):
        if len(pieces) - done >= _JOINED_AT:
            pieces[done:] = joined(pieces[done:])
            size += sum(map(len, pieces[done:]))
            done = len(pieces)
            if size > ANSWER_BYTES_MAX:
                raise WireError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        yield
    pieces[0] = _SIZED.pack(_LENGTH_BYTES + sum(map(len, pieces)), number)
    return joined(pieces)


def _answer_head(key: int, version: int) -> list[Piece]:
    tagged = version in schema.apis()[key].flexible and key != ApiKey.API_VERSIONS
    return [b"", b"\0"] if tagged else [b""]


def joined(pieces: Sequence[Piece], bytes_max: int = 4096) -> list[Piece]:
    """The same bytes in fewer pieces: small ones that are neighbours are one."""
    found: list[Piece] = []
    run: list[Piece] = []
    for piece in pieces:
        if len(piece) <= bytes_max:
            run.append(piece)
            continue
        if run:
            found.append(b"".join(run))
            run = []
        found.append(piece)
    if run:
        found.append(b"".join(run))
    return found
