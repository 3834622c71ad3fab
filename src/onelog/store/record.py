r"""One record of the log: how a message lies on disk. Byte for byte RocketMQ's layout.

     0  TOTALSIZE        4   the whole record
     4  MAGIC            4   V1 0xDAA320A7, V2 0xDAA320AB (topics over 127 bytes)
     8  BODYCRC          4   CRC-32 of the body, top bit cleared
    12  QUEUEID          4
    16  FLAG             4   the user's
    20  QUEUEOFFSET      8   index in the queue (of an inner batch: of its first message)
    28  PHYSICALOFFSET   8   where in the log this record starts
    36  SYSFLAG          4   bits 4 and 5 say whether the two hosts are IPv6
    40  BORNTIMESTAMP    8
    48  BORNHOST         8 | 20
        STORETIMESTAMP   8
        STOREHOST        8 | 20
        RECONSUMETIMES   4
        PREPAREDOFFSET   8   of a committed transaction: where its half message is
        BODYLEN, BODY    4 + n
        TOPICLEN, TOPIC  1 + n (V1) | 2 + n (V2)
        PROPLEN, PROPS   2 + n

All integers are big-endian. A blank record, {int32 bytes to the end of the file, 0xCBD43194},
closes a segment. With `record_crc` on, the properties end with `__CRC32#`, a checksum of the whole
record before it (RocketMQ 5's enabledAppendPropCRC); otherwise only the body is checksummed.

Invariant: `check` accepts exactly the records that `encode` writes for that place in the log.
"""

import functools
import struct
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from isal.isal_zlib import crc32

from onelog.errors import StoreCorruptError
from onelog.message import RECORD_CRC, Appended, Message, NewMessage, SysFlag
from onelog.names import check_name

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
MAGIC_START = b"\xda\xa3\x20"
"""What both kinds of records have there."""
BLANK = Struct(">II")
CRC_MASK = 0x7FFFFFFF
RECORD_BYTES_MIN = 91
"""A V1 record between IPv4 hosts with an empty body, topic and properties."""

HEADS = tuple(Struct(f">IIIiiqqiq{born}sq{stored}siqI") for stored in (8, 20) for born in (8, 20))
"""Everything before the body, by the two host bits of the sysFlag."""
_HEAD_V4 = HEADS[0]
SIZE_AND_MAGIC = Struct(">II")
LENGTH = Struct(">H")
# As a number: the complement of an IntFlag lacks the bits that have no name, as those of a
# compression have none.
BOTH_V6 = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
CRC_PROPERTY_BYTES = 20
"""What `record_crc` adds to the properties, beside a missing separator."""
CRC_NAME = RECORD_CRC.encode() + b"\x01"


@functools.lru_cache(maxsize=65_536)
def topic_field(topic: str) -> tuple[int, bytes]:
    """The magic that a topic's records carry, and TOPICLEN + TOPIC."""
    name = check_name(topic)
    if len(name) <= 127:
        return MAGIC_V1, bytes([len(name)]) + name
    return MAGIC_V2, LENGTH.pack(len(name)) + name


@functools.lru_cache(maxsize=65_536)
def _topic_name(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def host_flags(message: NewMessage) -> int:
    """The message's sysFlag, with the host bits set to what its hosts are."""
    flags = message.sys_flag & ~BOTH_V6
    if len(message.born_host) == 20:
        flags |= SysFlag.BORN_HOST_V6
    if len(message.store_host) == 20:
        flags |= SysFlag.STORE_HOST_V6
    return int(flags)


def encode(
    message: NewMessage, queue_offset: int, log_offset: int, store_ms: int, record_crc: bool
) -> tuple[bytes, bytes | bytearray | memoryview, bytes, int]:
    """A record as (head, body, tail, size): the body is passed on as it came."""
    (topic, queue_id, body, properties, flag, flags, born_ms, born_host, store_host, times,
     prepared, _, _) = message  # fmt: skip
    magic, topic_part = topic_field(topic)
    head = _HEAD_V4
    if len(born_host) != 8 or len(store_host) != 8 or flags & 0x30:
        flags = host_flags(message)
        head = HEADS[flags >> 4 & 3]
    if properties and properties[-1] == 0:
        properties += b"\x02"  # A record never ends in zeros; that is how a cut one is known.
    if record_crc:
        if properties and properties[-1] != 2:
            properties += b"\x02"
        properties += bytes(CRC_PROPERTY_BYTES)
    tail = topic_part + LENGTH.pack(len(properties)) + properties
    body_bytes = len(body)
    size = head.size + body_bytes + len(tail)
    packed = head.pack(
        size, magic, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, log_offset, flags,
        born_ms, born_host, store_ms, store_host, times, prepared, body_bytes,
    )  # fmt: skip
    if record_crc:
        checked = tail[:-CRC_PROPERTY_BYTES]
        tail = checked + _crc_property(crc32(checked, crc32(body, crc32(packed))))
    return packed, body, tail, size


@functools.lru_cache(maxsize=65_536)
def _tail_start(topic: str, properties_bytes: int) -> tuple[int, bytes, int]:
    """Magic, TOPICLEN + TOPIC + PROPLEN, and the size of an IPv4 record without its body."""
    magic, topic_part = topic_field(topic)
    start = topic_part + LENGTH.pack(properties_bytes)
    return magic, start, _HEAD_V4.size + len(start) + properties_bytes


def encode_run(
    messages: Sequence[NewMessage],
    queue_offsets: Sequence[int],
    log_offset: int,
    stop: int,
    store_ms: int,
    record_crc: bool,
    buffers: list[bytes | bytearray | memoryview],
    places: list[Appended],
) -> int:
    """Encode messages, one after the other from `log_offset` on, until one would pass `stop`.

    Adds to `buffers` what is to be written and to `places` where each message lies, and returns
    where the run ends. This is `encode` without a call and a few tuples per message: the loop that
    every message of the broker goes through.
    """
    pack, new = _HEAD_V4.pack, tuple.__new__
    for message, queue_offset in zip(messages, queue_offsets, strict=True):
        (topic, queue_id, body, properties, flag, flags, born_ms, born_host, store_host, times,
         prepared, _, _) = message  # fmt: skip
        if (
            record_crc
            or flags & 0x30
            or len(born_host) != 8
            or len(store_host) != 8
            or (properties and properties[-1] == 0)
        ):
            *parts, size = encode(message, queue_offset, log_offset, store_ms, record_crc)
            if log_offset + size > stop:
                break
            buffers += parts
        else:
            body_bytes = len(body)
            magic, start, size = _tail_start(topic, len(properties))
            size += body_bytes
            if log_offset + size > stop:
                break
            buffers += (
                pack(
                    size, magic, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, log_offset,
                    flags, born_ms, born_host, store_ms, store_host, times, prepared, body_bytes,
                ),
                body,
                start,
                properties,
            )  # fmt: skip
        places.append(new(Appended, (log_offset, queue_offset, size)))
        log_offset += size
    return log_offset


def _crc_property(value: int) -> bytes:
    """`__CRC32#`, ten digits with the least significant first, as RocketMQ writes it."""
    return CRC_NAME + f"{value & CRC_MASK:010d}"[::-1].encode() + b"\x02"


def decode_message(view: memoryview, at: int = 0) -> Message:
    """The record at `at`, which must be whole. The body stays a view of the same bytes."""
    head = HEADS[view[at + 39] >> 4 & 3]
    (size, magic, body_crc, queue_id, flag, queue_offset, log_offset, flags, born_ms, born_host,
     store_ms, store_host, times, prepared, body_bytes) = head.unpack_from(view, at)  # fmt: skip
    body_at = at + head.size
    topic_at = body_at + body_bytes
    body = view[body_at:topic_at]
    if magic == MAGIC_V1:
        name_at = topic_at + 1
        properties_at = name_at + view[topic_at]
    else:
        name_at = topic_at + 2
        properties_at = name_at + (view[topic_at] << 8 | view[topic_at + 1])
    # A fifth of what calling the class costs.
    return tuple.__new__(
        Message,
        (
            _topic_name(bytes(view[name_at:properties_at])), queue_id, queue_offset, log_offset,
            body, bytes(view[properties_at + 2 : at + size]), flag, flags, born_ms, born_host,
            store_ms, store_host, times, prepared, body_crc, size,
        ),
    )  # fmt: skip


def decode_messages(view: memoryview) -> Iterator[Message]:
    """Every record of a run of whole records, as a read returns them."""
    at = 0
    end = len(view)
    try:
        while at < end:
            message = decode_message(view, at)
            if message.size < RECORD_BYTES_MIN or at + message.size > end:
                raise StoreCorruptError(f"a record of {message.size} bytes where {end - at} are")
            yield message
            at += message.size
    except (struct.error, IndexError) as error:
        raise StoreCorruptError(f"no record at byte {at} of a run of {end}: {error}") from None


STORE_TIME_END = 76
"""Before this byte of a record its store time ends."""


def store_time_ms(view: memoryview, at: int = 0) -> int:
    """A record's store time, without decoding the rest."""
    start = at + (68 if view[at + 39] & 0x10 else 56)
    return int.from_bytes(view[start : start + 8], "big", signed=True)


class Blank(NamedTuple):
    """The filler that closes a segment."""

    size: int


class Broken(NamedTuple):
    """Why the bytes at a place are not a whole record. `empty` means nothing was written there."""

    log_offset: int
    reason: str
    empty: bool = False


def check(
    view: memoryview,
    at: int,
    log_offset: int,
    require_crc: bool = False,
    room: int | None = None,
) -> Message | Blank | Broken:
    """What is at `at` of a segment: a whole record, a blank one, or neither and why.

    A record's own checksum is checked where there is one; with `require_crc` there must be one.
    If the view is but a part of the segment, `room` says how much of that follows from `at` on.
    """
    if room is None:
        room = len(view) - at
    if room < BLANK.size:
        return Broken(log_offset, f"only {room} bytes are left in the segment")
    size, magic = SIZE_AND_MAGIC.unpack_from(view, at)
    if magic == MAGIC_BLANK:
        return (
            Blank(room)
            if size == room
            else Broken(log_offset, f"a blank record claims {size} of {room}")
        )
    if size == 0 and magic == 0:
        return Broken(log_offset, "nothing is written here", empty=True)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return Broken(log_offset, f"magic {magic:#010x} is not a record's")
    if not RECORD_BYTES_MIN <= size <= room:
        return Broken(log_offset, f"a record claims {size} bytes where {room} are left")
    if size > len(view) - at:
        return Broken(log_offset, f"of {size} bytes of a record only {len(view) - at} can be read")
    head = HEADS[view[at + 39] >> 4 & 3]
    body_bytes = int.from_bytes(view[at + head.size - 4 : at + head.size], "big")
    topic_at = at + head.size + body_bytes
    length_bytes = 1 if magic == MAGIC_V1 else 2
    end = at + size
    name_at = topic_at + length_bytes
    if name_at > end:
        return Broken(log_offset, f"a body of {body_bytes} bytes does not fit its record of {size}")
    properties_at = name_at + int.from_bytes(view[topic_at:name_at], "big")
    if properties_at + 2 > end or properties_at == name_at:
        return Broken(log_offset, "the topic does not fit its record")
    properties_bytes = int.from_bytes(view[properties_at : properties_at + 2], "big")
    if properties_at + 2 + properties_bytes != end:
        return Broken(log_offset, f"lengths add up to another size than the record's {size}")
    # Topic and properties have no checksum. A write that was cut off left zeros there.
    if view[properties_at - 1] == 0 or (properties_bytes and view[end - 1] == 0):
        return Broken(log_offset, "the record ends in zeros")
    message = decode_message(view, at)
    reason = _fault(view, at, message, log_offset, require_crc)
    return message if reason is None else Broken(log_offset, reason)


def _fault(
    view: memoryview, at: int, message: Message, log_offset: int, require_crc: bool
) -> str | None:
    """What is wrong with a record whose lengths are right."""
    if message.log_offset != log_offset:
        return f"the record says it is at {message.log_offset}"
    if message.queue_offset < 0 or message.queue_id < 0:
        return f"queue {message.queue_id} offset {message.queue_offset} is negative"
    if crc32(message.body) & CRC_MASK != message.body_crc:
        return "the body's CRC does not match"
    properties = message.properties
    if properties[-CRC_PROPERTY_BYTES : -CRC_PROPERTY_BYTES + 9] == CRC_NAME:
        covered = view[at : at + message.size - CRC_PROPERTY_BYTES]
        if _crc_property(crc32(covered)) != properties[-CRC_PROPERTY_BYTES:]:
            return "the record's CRC does not match"
    elif require_crc:
        return "the record's CRC is missing"
    return None


def require_message(found: Message | Blank | Broken, log_offset: int) -> Message:
    """The message, or `StoreCorruptError` that says what is there instead."""
    if isinstance(found, Message):
        return found
    reason = found.reason if isinstance(found, Broken) else "the segment's closing blank record"
    raise StoreCorruptError(f"no record at log offset {log_offset}: {reason}")
