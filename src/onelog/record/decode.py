"""Records as messages: those that were checked, those that a broker sent, and those on a disk.

Invariants: `check` accepts exactly the records that `encode` writes for that place in the log.
`decode_records` gives every record of what a broker sent, all of them whole and with the CRC that
they claim, or raises `WireError`.
"""

import functools
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from isal.isal_zlib import crc32

from onelog.errors import StoreCorruptError, WireError
from onelog.message import Buffer, Message
from onelog.record.encode import crc_property
from onelog.record.layout import (
    BLANK,
    CRC_MASK,
    CRC_NAME,
    CRC_PROPERTY_BYTES,
    HEAD_V4,
    HEADS,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
)


@functools.lru_cache(maxsize=65_536)
def _topic_name(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def decode_message(view: memoryview, at: int = 0) -> Message:
    """The record at `at`, which must be whole. The body stays a view of the same bytes."""
    head = HEADS[view[at + 39] >> 4 & 3]
    (
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        log_offset,
        flags,
        born_ms,
        born_host,
        store_ms,
        store_host,
        times,
        prepared,
        body_bytes,
    ) = head.unpack_from(view, at)
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
            _topic_name(bytes(view[name_at:properties_at])),
            queue_id,
            queue_offset,
            log_offset,
            body,
            bytes(view[properties_at + 2 : at + size]),
            flag,
            flags,
            born_ms,
            born_host,
            store_ms,
            store_host,
            times,
            prepared,
            body_crc,
            size,
        ),
    )


def size_at(view: memoryview, at: int = 0) -> int:
    """How long the record is that begins there."""
    return int.from_bytes(view[at : at + 4], "big")


def queue_offset_of(view: memoryview) -> int:
    """The offset that a record says of itself."""
    return int.from_bytes(view[20:28], "big")


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


def records_in(slices: Iterable[memoryview]) -> Iterator[tuple[memoryview, int]]:
    """Each record of runs of whole records, still encoded, and its sysFlag."""
    for view in slices:
        at, end = 0, len(view)
        while at < end:
            size = int.from_bytes(view[at : at + 4], "big")
            yield view[at : at + size], int.from_bytes(view[at + 36 : at + 40], "big")
            at += size


def decode_records(data: Buffer) -> list[Message]:
    """The messages in a body; their own bodies stay views of a copy of it.

    This is the loop that every message goes through on its way to a consumer; what is wrong with a
    body is found out only when something is.
    """
    raw = bytes(data)
    view = memoryview(raw)
    messages: list[Message] = []
    heads, head_bytes_min, new = HEADS, HEAD_V4.size, tuple.__new__
    at, end = 0, len(raw)
    name_before, topic = b"", ""
    while at < end:
        if end - at < head_bytes_min:
            raise _not_whole(view, at)
        head = heads[raw[at + 39] >> 4 & 3]
        if end - at < head.size:
            raise _not_whole(view, at)
        (
            size, magic, body_crc, queue_id, flag, queue_offset, log_offset, sys_flag, born_ms,
            born_host, store_ms, store_host, times, prepared, body_bytes,
        ) = head.unpack_from(raw, at)  # fmt: skip
        body_at = at + head.size
        topic_at = body_at + body_bytes
        stop = at + size
        if stop > end or topic_at + 3 > stop:
            raise _not_whole(view, at)
        if magic == MAGIC_V1:
            name_at = topic_at + 1
            properties_at = name_at + raw[topic_at]
        else:
            name_at = topic_at + 2
            properties_at = name_at + (raw[topic_at] << 8 | raw[topic_at + 1])
        start = properties_at + 2
        if (
            (magic != MAGIC_V1 and magic != MAGIC_V2)
            or start > stop
            or start + (raw[properties_at] << 8 | raw[properties_at + 1]) != stop
        ):
            raise _not_whole(view, at)
        body = view[body_at:topic_at]
        if crc32(body) & CRC_MASK != body_crc:
            raise WireError(f"the body of the record at log offset {log_offset} has another CRC")
        name = raw[name_at:properties_at]
        if name != name_before:
            name_before, topic = name, name.decode("utf-8", "replace")
        # A fifth of what calling the class costs.
        messages.append(
            new(
                Message,
                (topic, queue_id, queue_offset, log_offset, body, raw[start:stop], flag, sys_flag,
                 born_ms, born_host, store_ms, store_host, times, prepared, body_crc, size),
            )
        )  # fmt: skip
        at = stop
    return messages


def _not_whole(view: memoryview, at: int) -> WireError:
    """What is wrong with the record at `at`."""
    found = check(view, at, int.from_bytes(view[at + 28 : at + 36], "big", signed=True))
    reason = found.reason if isinstance(found, Broken) else "a blank record"
    return WireError(f"no record at byte {at} of {len(view)}: {reason}")


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
        if crc_property(crc32(covered)) != properties[-CRC_PROPERTY_BYTES:]:
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
