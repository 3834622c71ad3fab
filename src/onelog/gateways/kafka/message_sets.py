r"""Message sets: what batches were before Kafka 0.11 (message formats 0 and 1). All big-endian.

     0  OFFSET        8   of a compressed set in format 1: relative to the first message inside
     8  SIZE          4   bytes behind this field
    12  CRC           4   CRC-32 of everything behind it
    16  MAGIC         1   0 or 1
    17  ATTRIBUTES    1   bits 0-2 codec, 3 append time
    18  TIMESTAMP     8   in format 1 only
        KEYLEN, key   4 + n
        VALUELEN, value

A message with a codec holds a set of others, packed, as its value.

Old producers' sets become one batch before they are stored; old consumers get batches as sets,
without headers. This is done message by message, for clients that few still use.

Invariant: bytes that are no set raise `BatchError`, and nothing else.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import islice

from isal.isal_zlib import crc32

from onelog.core.cursors.unpacking import ColdError
from onelog.errors import UnpackedTooLargeError, WireError
from onelog.gateways.kafka.batches import BatchError, WithOffset
from onelog.record.compression import Method, unpack
from onelog.record.forms import kafka
from onelog.record.forms.kafka import Codec
from onelog.record.forms.neutral import Neutral, sane_ms
from onelog.wire.kafka.codes import ErrorCode

MESSAGES_MAX = 1_000
"""That one answer to an old consumer converts."""
SENT_MAX = 50_000
"""Of a producer, in one set."""
_UNPACKED_BYTES_MAX = 16 << 20
"""Of all packed messages of a set: each message in it becomes one of Python's objects."""
_LITTLE_BYTES = 64 << 10
_HEAD = struct.Struct(">qiIbb")
_ATTRIBUTES_AT = 17
_SIZE_END = 12
_CRC_END = 16
_TIME = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_METHODS = {Codec.GZIP: Method.GZIP, Codec.SNAPPY: Method.SNAPPY, Codec.LZ4: Method.LZ4}


def to_batch(data: memoryview | None, now_ms: int) -> bytes:
    """One batch with the messages of a producer's set; those without a time get this one."""
    messages = list(
        islice(_messages(bytes(data or b""), now_ms, [_UNPACKED_BYTES_MAX]), SENT_MAX + 1)
    )
    if len(messages) > SENT_MAX:
        reason = f"more than {SENT_MAX} messages in the format of before Kafka 0.11"
        raise BatchError(ErrorCode.MESSAGE_TOO_LARGE, reason)
    if not messages:
        raise BatchError(ErrorCode.INVALID_RECORD, "a partition without a message")
    return kafka.from_neutral(messages, codec=_codec_of(data or b""))


def _codec_of(data: memoryview | bytes) -> Codec:
    """How a set is packed, and so its batch: it does not take more of the disk than it was."""
    for attributes in _attributes(data):
        if codec := attributes & kafka.Attribute.CODEC:
            return Codec(codec)
    return Codec.NONE


def _attributes(data: memoryview | bytes) -> Iterator[int]:
    """Those of the messages of a set, without what is packed in them."""
    at, end = 0, len(data) - _ATTRIBUTES_AT
    while at < end:
        yield data[at + _ATTRIBUTES_AT]
        at += _SIZE_END + max(1, int.from_bytes(data[at + 8 : at + 12], "big"))


def is_little(data: memoryview | None) -> bool:
    """Whether a set is one of few messages, none of them packed: for the loop."""
    if data is None or len(data) > _LITTLE_BYTES:
        return data is None
    return not any(each & kafka.Attribute.CODEC for each in _attributes(data))


def to_batch_apart(data: memoryview | None, now_ms: int) -> bytes | BatchError:
    """`to_batch`, for a worker."""
    try:
        return to_batch(data, now_ms)
    except BatchError as error:
        return error


def _messages(
    data: bytes, now_ms: int, room: list[int], *, nested: bool = False
) -> Iterator[Neutral]:
    at = 0
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise BatchError(ErrorCode.CORRUPT_MESSAGE, "a message set is cut off")
        _, size, crc, magic, attributes = _HEAD.unpack_from(data, at)
        end = at + _SIZE_END + size
        if end > len(data) or size < _HEAD.size - _SIZE_END or magic not in (0, 1):
            raise BatchError(ErrorCode.CORRUPT_MESSAGE, f"no message of {size} bytes at {at}")
        if crc32(data[at + _CRC_END : end]) != crc:
            raise BatchError(ErrorCode.CORRUPT_MESSAGE, "a message with another CRC than it says")
        cursor = at + _HEAD.size
        time_ms = now_ms
        try:
            if magic == 1:
                (time_ms,) = _TIME.unpack_from(data, cursor)
                cursor += _TIME.size
            key, cursor = _bytes(data, cursor, end)
            value, cursor = _bytes(data, cursor, end)
        except struct.error:
            raise BatchError(ErrorCode.CORRUPT_MESSAGE, "a message is cut off") from None
        codec = attributes & kafka.Attribute.CODEC
        if codec == Codec.NONE:
            yield Neutral(key, value, (), time_ms if time_ms >= 0 else now_ms)
        else:
            yield from _packed(value, codec, now_ms, room, nested)
        at = end


def _packed(
    value: bytes | None, codec: int, now_ms: int, room: list[int], nested: bool
) -> Iterator[Neutral]:
    method = _METHODS.get(Codec(codec)) if codec <= Codec.ZSTD else None
    if method is None or nested or value is None:
        reason = f"messages are packed by codec {codec}"
        raise BatchError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, reason)
    try:
        raw = unpack(value, method, room[0])
    except UnpackedTooLargeError as error:
        raise BatchError(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from None
    except WireError as error:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    room[0] -= len(raw)
    yield from _messages(raw, now_ms, room, nested=True)


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    (size,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if size < 0:
        return None, at
    if at + size > end:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, f"a field claims {size} bytes of {end - at}")
    return data[at : at + size], at + size


def from_messages(messages: Iterable[WithOffset], magic: int, bytes_max: int) -> bytes:
    """Messages as a set of a format: so many bytes, and the first in any case."""
    found: list[bytes] = []
    size = 0
    try:
        for offset, message in messages:
            encoded = _encoded(offset, message, magic)
            size += len(encoded)
            if found and (size > bytes_max or len(found) >= MESSAGES_MAX):
                break
            found.append(encoded)
    except ColdError:
        if not found:
            raise  # Else what follows comes with the next answer.
    return b"".join(found)


def _encoded(offset: int, message: Neutral, magic: int) -> bytes:
    body = bytes((magic, 0))
    if magic == 1:
        body += _TIME.pack(sane_ms(message.time_ms))
    for each in (message.key, message.body):
        body += _LENGTH.pack(-1 if each is None else len(each)) + (each or b"")
    checked = crc32(body).to_bytes(4, "big") + body
    return offset.to_bytes(8, "big") + len(checked).to_bytes(4, "big") + checked
