"""Records that are not one plain message each, rewritten as records that are.

A body is decompressed, an inner batch becomes a record for each of its messages, and a record that
was read from a queue of another topic than its own (see `store.dispatch`) gets the place that it
has there. All keep the log offset, the times and the hosts of the record that they come from.

Invariant: what comes out has no compressed body (where bodies matter) and nothing to unwrap, and is
in the order of what went in.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from isal.isal_zlib import crc32

from onelog.errors import WireError
from onelog.message import Message, QueueOffset, SysFlag
from onelog.record.columns import Layout, Mask, find_records
from onelog.record.compression import unpacked_body
from onelog.record.decode import decode_message
from onelog.record.encode import encode_stored
from onelog.record.inner_batch import split_batch
from onelog.record.layout import CRC_MASK
from onelog.store.dispatch import Target, targets

_BATCH = (SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP).value
_COMPRESSED = SysFlag.COMPRESSED.value
_LEFT = ~(_BATCH | _COMPRESSED | 0x700)
"""What stays of a sysFlag: neither the marks of a batch nor those of a compressed body."""

OnDamage = Callable[[WireError], None]
"""Told of a record that cannot be rewritten; raises, or has the record left out."""


class _Part(NamedTuple):
    """One message of a record."""

    flag: int
    body: memoryview
    properties: bytes


def needs_flattening(layout: Layout, topic: str | None, with_bodies: bool) -> Mask:
    """Which records have to be rewritten; with `topic`, all were read from its queues."""
    unusual: Mask = (layout.sys_flag & _BATCH) == _BATCH
    if with_bodies:
        unusual |= (layout.sys_flag & _COMPRESSED) != 0
    if topic is not None and len(layout):
        unusual |= ~layout.is_of(topic)
    return unusual


def flatten(
    layout: Layout, unusual: Mask, topic: str | None, with_bodies: bool, on_damage: OnDamage
) -> Layout:
    """The same messages, in records that are all plain."""
    view = layout.raw.data
    records: list[bytes | memoryview] = []
    rows = zip(layout.at.tolist(), layout.end.tolist(), unusual.tolist(), strict=True)
    for at, end, is_unusual in rows:
        if not is_unusual:
            records.append(view[at:end])
            continue
        try:
            records += list(_flat(decode_message(view, at), topic, with_bodies))
        except WireError as error:
            on_damage(error)
        except struct.error as error:
            on_damage(WireError(f"no message at byte {at} can be in the place it says: {error}"))
    raw = np.frombuffer(b"".join(records), np.uint8)
    found = find_records(raw)
    assert found is not None, "records were rewritten as something else"
    return found


def _flat(message: Message, topic: str | None, with_bodies: bool) -> Iterator[bytes]:
    is_batch = message.sys_flag & _BATCH == _BATCH
    parts = [_Part(message.flag, message.body, message.properties)]
    if is_batch or with_bodies:
        if crc32(message.body) & CRC_MASK != message.body_crc:
            raise WireError(
                f"the body of the record at log offset {message.log_offset} has another CRC"
            )
        try:
            body = unpacked_body(message)
            parts = [_Part(message.flag, memoryview(body), message.properties)]
            if is_batch:
                parts = [
                    _Part(flag, memoryview(inner), own) for flag, inner, own in split_batch(body)
                ]
        except WireError as error:
            raise WireError(f"the record at log offset {message.log_offset}: {error}") from None
    for target in _places(message, topic):
        for index, part in enumerate(parts):
            yield encode_stored(
                message._replace(
                    topic=target.topic, queue_id=target.queue_id,
                    queue_offset=QueueOffset(target.queue_offset + index), body=part.body,
                    properties=part.properties, flag=part.flag, sys_flag=message.sys_flag & _LEFT,
                )
            )  # fmt: skip


def _places(message: Message, topic: str | None) -> list[Target]:
    if topic is None or message.topic == topic:
        return [Target(message.topic, message.queue_id, message.queue_offset, 1)]
    found = [target for target in targets(message) if target.topic == topic]
    if not found:
        raise WireError(
            f"the record at log offset {message.log_offset} belongs to topic {message.topic!r}, "
            f"but was read from a queue of {topic!r}"
        )
    return found
