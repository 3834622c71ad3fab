"""Messages as records: one by one, many of all kinds, and many of one queue that are alike.

`encode` can do all; the others are fast. In a run, what its messages share is packed once, and
again only where lengths change; each then costs one checksum and one call.

Invariant: all of them write the same bytes for the same message.
"""

import functools
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from isal.isal_zlib import crc32

from onelog.message import Appended, Buffer, Message, NewMessage, NewRun, SysFlag
from onelog.record.layout import (
    BOTH_V6,
    CRC_MASK,
    CRC_NAME,
    CRC_PROPERTY_BYTES,
    HEAD_V4,
    HEADS,
    LENGTH,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    topic_field,
)

PlacedRun = tuple[list[int], list[int]]
"""Where each record of a run begins, and their sizes."""
Placed = Appended | PlacedRun
_SHARED_PART = Struct(">iq8sq8siqI")
"""From SYSFLAG to BODYLEN: what is the same in records of one run with bodies of one length."""


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
) -> tuple[bytes, Buffer, bytes, int]:
    """A record as (head, body, tail, size): the body is passed on as it came."""
    magic, topic_part = topic_field(message.topic)
    body, properties, flags = message.body, message.properties, host_flags(message)
    head = HEADS[flags >> 4 & 3]
    if properties and properties[-1] == 0:
        properties += b"\x02"  # A record never ends in zeros; that is how a cut one is known.
    if record_crc:
        if properties and properties[-1] != 2:
            properties += b"\x02"
        properties += bytes(CRC_PROPERTY_BYTES)
    tail = topic_part + LENGTH.pack(len(properties)) + properties
    size = head.size + len(body) + len(tail)
    packed = head.pack(
        size,
        magic,
        crc32(body) & CRC_MASK,
        message.queue_id,
        message.flag,
        queue_offset,
        log_offset,
        flags,
        message.born_ms,
        message.born_host,
        store_ms,
        message.store_host,
        message.reconsume_times,
        message.prepared_offset,
        len(body),
    )
    if record_crc:
        checked = tail[:-CRC_PROPERTY_BYTES]
        tail = checked + crc_property(crc32(checked, crc32(body, crc32(packed))))
    return packed, body, tail, size


@functools.lru_cache(maxsize=65_536)
def _tail_start(topic: str, properties_bytes: int) -> tuple[int, bytes, int]:
    """Magic, TOPICLEN + TOPIC + PROPLEN, and the size of an IPv4 record without its body."""
    magic, topic_part = topic_field(topic)
    start = topic_part + LENGTH.pack(properties_bytes)
    return magic, start, HEAD_V4.size + len(start) + properties_bytes


def encode_batches(
    batches: Sequence[Any],
    queue_offsets: Sequence[int],
    log_offset: int,
    stop: int,
    store_ms: int,
    record_crc: bool,
    has_runs: bool,
    buffers: list[Buffer],
    placed: list[Placed],
) -> int:
    """Encode batches, one after the other from `log_offset` on, until one would pass `stop`.

    Adds to `buffers` what is to be written and to `placed` where each batch lies, and returns where
    the last one ends. This is `encode` without a call and a few tuples per message: the loop that
    every message of the broker goes through. A run that is not plain also ends it.
    """
    pack, new = HEAD_V4.pack, tuple.__new__
    last_topic, last_bytes, magic, start, rest_bytes = "", -1, 0, b"", 0
    for batch, queue_offset in zip(batches, queue_offsets, strict=True):
        if has_runs and isinstance(batch, NewRun):
            if record_crc or not _is_plain(batch):
                break
            records, place = _encode_run(batch, queue_offset, log_offset, store_ms)
            end = place[0][-1] + place[1][-1]
            if end > stop:
                break
            buffers += records
            placed.append(place)
            log_offset = end
            continue
        (topic, queue_id, body, properties, flag, flags, born_ms, born_host, store_host, times,
         prepared, _, _) = batch  # fmt: skip
        if (
            record_crc
            or flags & 0x30
            or len(born_host) != 8
            or len(store_host) != 8
            or (properties and properties[-1] == 0)
        ):
            *parts, size = encode(batch, queue_offset, log_offset, store_ms, record_crc)
            if log_offset + size > stop:
                break
            buffers += parts
        else:
            body_bytes = len(body)
            if topic is not last_topic or len(properties) != last_bytes:
                last_topic, last_bytes = topic, len(properties)
                magic, start, rest_bytes = _tail_start(topic, last_bytes)
            size = rest_bytes + body_bytes
            if log_offset + size > stop:
                break
            head = pack(
                size, magic, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, log_offset,
                flags, born_ms, born_host, store_ms, store_host, times, prepared, body_bytes,
            )  # fmt: skip
            buffers += (head, body, start, properties)
        placed.append(new(Appended, (log_offset, queue_offset, size)))
        log_offset += size
    return log_offset


def crc_property(value: int) -> bytes:
    """`__CRC32#`, ten digits with the least significant first, as RocketMQ writes it."""
    return CRC_NAME + f"{value & CRC_MASK:010d}"[::-1].encode() + b"\x02"


def encode_stored(message: Message) -> bytes:
    """A stored message as a record at the place that it names; of size and CRC those it has now."""
    head = HEADS[message.sys_flag >> 4 & 3]
    name, body, properties = message.topic.encode(), message.body, message.properties
    magic = MAGIC_V1 if len(name) <= 127 else MAGIC_V2
    length = len(name).to_bytes(1 if magic == MAGIC_V1 else 2, "big")
    tail = b"".join((length, name, LENGTH.pack(len(properties)), properties))
    packed = head.pack(
        head.size + len(body) + len(tail),
        magic,
        crc32(body) & CRC_MASK,
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.log_offset,
        message.sys_flag,
        message.born_ms,
        message.born_host,
        message.store_ms,
        message.store_host,
        message.reconsume_times,
        message.prepared_offset,
        len(body),
    )
    return b"".join((packed, body, tail))


def _is_plain(run: NewRun) -> bool:
    """Whether `_encode_run` can encode it: no IPv6 hosts."""
    return len(run.born_host) == 8 and len(run.store_host) == 8 and not run.sys_flag & BOTH_V6


@functools.lru_cache(maxsize=4096)
def _whole_record(
    body_bytes: int, name_bytes: int, properties: int, tail: int
) -> Callable[..., bytes]:
    """Packs a record whose constant pieces are packed already."""
    return Struct(f">8sIiiqq52s{body_bytes}s{name_bytes}s{properties}s{tail}s").pack


def _encode_run(
    run: NewRun, queue_offset: int, log_offset: int, store_ms: int
) -> tuple[list[bytes], PlacedRun]:
    """The records of a plain run, from these offsets on.

    `encode` for many messages that are alike: what they share is packed once, and again only where
    lengths change.
    """
    (topic, queue_id, parts, _, shared, sys_flag, born_ms, born_host, store_host, times) = run
    records: list[bytes] = []
    log_offsets: list[int] = []
    sizes: list[int] = []
    size, body_bytes, properties_bytes, last = 0, -1, -1, -1
    for number, (flag, body, properties) in enumerate(parts, queue_offset):
        if (
            len(body) != body_bytes
            or len(properties) != properties_bytes
            or (properties and properties[-1] != last)
        ):
            body_bytes, properties_bytes = len(body), len(properties)
            last = properties[-1] if properties else -1
            tail = b"\x02" + shared if properties and last != 2 else shared
            middle = _SHARED_PART.pack(
                sys_flag, born_ms, born_host, store_ms, store_host, times, 0, body_bytes
            )
            magic, name, size = _tail_start(topic, properties_bytes + len(tail))
            size += body_bytes
            pack = _whole_record(body_bytes, len(name), properties_bytes, len(tail))
            start = SIZE_AND_MAGIC.pack(size, magic)
        records.append(
            pack(
                start,
                crc32(body) & CRC_MASK,
                queue_id,
                flag,
                number,
                log_offset,
                middle,
                body,
                name,
                properties,
                tail,
            )
        )
        log_offsets.append(log_offset)
        sizes.append(size)
        log_offset += size
    return records, (log_offsets, sizes)
