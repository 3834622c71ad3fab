"""Runs: records of messages that reach one queue side by side, and are much alike.

What such messages share is packed once, and again only where lengths change; each then costs one
checksum and one call.

Invariant: the bytes are those that `record.encode` gives for the same messages.
"""

import functools
from struct import Struct

from isal.isal_zlib import crc32

from onelog.message import NewRun
from onelog.store.record import BOTH_V6, CRC_MASK, HEADS, LENGTH, SIZE_AND_MAGIC, topic_field

_SHARED_PART = Struct(">iq8sq8siqI")
"""From SYSFLAG to BODYLEN: what is the same in records of one run with bodies of one length."""


def is_plain_run(run: NewRun) -> bool:
    """Whether `encode_run_of_queue` can encode it: no IPv6 hosts."""
    return len(run.born_host) == 8 and len(run.store_host) == 8 and not run.sys_flag & BOTH_V6


def run_bytes_max(run: NewRun) -> int:
    """At least as many bytes as the records of a run take."""
    each = HEADS[0].size + 4 + len(topic_field(run.topic)[1]) + len(run.shared)
    return len(run.source) + len(run.parts) * each


@functools.lru_cache(maxsize=4096)
def _whole_record(body_bytes: int, name_bytes: int, properties: int, tail: int) -> Struct:
    """A record whose constant pieces are packed already."""
    return Struct(f">8sIiiqq52s{body_bytes}s{name_bytes}s{properties}s{tail}s")


def encode_run_of_queue(
    run: NewRun, queue_offset: int, log_offset: int, store_ms: int, records: list[bytes]
) -> tuple[list[int], list[int]]:
    """Encode a plain run from these offsets on; returns each record's place and size.

    `encode` for many messages that are alike: what they share is packed once, and again only where
    lengths change.
    """
    (topic, queue_id, parts, _, shared, sys_flag, born_ms, born_host, store_host, times) = run
    magic, topic_part = topic_field(topic)
    log_offsets: list[int] = []
    sizes: list[int] = []
    size, body_bytes, properties_bytes, last = 0, -1, -1, -1
    pack = HEADS[0].pack
    for number, (flag, body, properties) in enumerate(parts, queue_offset):
        if (
            len(body) != body_bytes
            or len(properties) != properties_bytes
            or not properties
            or properties[-1] != last
        ):
            body_bytes, properties_bytes = len(body), len(properties)
            last = properties[-1] if properties else -1
            tail = b"\x02" + shared if properties and last != 2 else shared
            name = topic_part + LENGTH.pack(properties_bytes + len(tail))
            middle = _SHARED_PART.pack(
                sys_flag, born_ms, born_host, store_ms, store_host, times, 0, body_bytes
            )
            record = _whole_record(body_bytes, len(name), properties_bytes, len(tail))
            size, pack = record.size, record.pack
            start = SIZE_AND_MAGIC.pack(size, magic)
        records.append(
            pack(
                start, crc32(body) & CRC_MASK, queue_id, flag, number, log_offset, middle, body,
                name, properties, tail,
            )
        )  # fmt: skip
        log_offsets.append(log_offset)
        sizes.append(size)
        log_offset += size
    return log_offsets, sizes
