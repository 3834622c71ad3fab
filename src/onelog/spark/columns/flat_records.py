"""Records that are not one plain message each, rewritten as records that are.

A body is decompressed; an inner batch, and what is of another form than RocketMQ's, become a record
for each of their messages; and a record that was read from a queue of another topic than its own
(see `store.dispatch`) gets the place that it has there. All keep the log offset, the store time and
the hosts of the record that they come from. Those of a Kafka batch whose checksum was looked at
keep its form in their sysFlag: they have no checksum of their own.

Invariant: what comes out has no compressed body (where bodies matter) and nothing to unwrap, and is
in the order of what went in.
"""

import struct
from collections.abc import Callable, Iterator

import numpy as np
from isal.isal_zlib import crc32

from onelog.errors import WireError
from onelog.message import Message, QueueOffset, SysFlag
from onelog.record.columns import Layout, Mask, find_records, joined
from onelog.record.compression import unpacked_body
from onelog.record.decode import decode_message
from onelog.record.encode import encode_stored
from onelog.record.forms import FORM_MASK, Form, form_of
from onelog.record.forms.conversion import in_rocketmq_form
from onelog.record.inner_batch import unwrapped
from onelog.record.layout import CRC_MASK
from onelog.spark.columns.kafka_batches import rows_of
from onelog.store.dispatch import Target, targets

_BATCH = (SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP).value
_COMPRESSED = SysFlag.COMPRESSED.value
_LEFT = ~(_BATCH | _COMPRESSED | 0x700)
"""What stays of a sysFlag: neither the marks of a batch nor those of a compressed body."""

OnDamage = Callable[[WireError], None]
"""Told of a record that cannot be rewritten; raises, or has the record left out."""


def needs_flattening(layout: Layout, topic: str | None, with_bodies: bool) -> Mask:
    """Which records have to be rewritten; with `topic`, all were read from its queues."""
    unusual: Mask = (layout.sys_flag & _BATCH) == _BATCH
    unusual |= (layout.sys_flag & FORM_MASK) != 0
    if with_bodies:
        unusual |= (layout.sys_flag & _COMPRESSED) != 0
    if topic is not None and len(layout):
        unusual |= ~layout.is_of(topic)
    return unusual


def flatten(
    layout: Layout,
    unusual: Mask,
    topic: str | None,
    with_bodies: bool,
    with_properties: bool,
    on_damage: OnDamage,
) -> Layout:
    """The same messages, in records that are all plain.

    Of messages whose properties nobody wants some may be left out.
    """
    view = layout.raw.data
    parts: list[Layout] = []
    records: list[bytes | memoryview] = []
    rows = zip(layout.at.tolist(), layout.end.tolist(), unusual.tolist(), strict=True)
    for at, end, is_unusual in rows:
        if not is_unusual:
            records.append(view[at:end])
            continue
        try:
            message = decode_message(view, at)
            found = None
            if form_of(message.sys_flag) == Form.KAFKA and topic in (None, message.topic):
                _check_crc(message)
                flags = message.sys_flag & _LEFT
                found = rows_of(message, layout.raw[at:end], flags, with_properties)
            if found is None:
                records += list(_flat(message, topic, with_bodies))
            else:
                parts += _laid_out(records)
                parts.append(found)
                records = []
        except WireError as error:
            on_damage(error)
        except struct.error as error:
            on_damage(WireError(f"no message at byte {at} can be in the place it says: {error}"))
    parts += _laid_out(records)
    return joined(parts) if parts else layout.rows(slice(0, 0))


def _laid_out(records: list[bytes | memoryview]) -> list[Layout]:
    if not records:
        return []
    found = find_records(np.frombuffer(b"".join(records), np.uint8))
    assert found is not None, "records were rewritten as something else"
    return [found]


def _flat(message: Message, topic: str | None, with_bodies: bool) -> Iterator[bytes]:
    messages = _messages(message, with_bodies)
    for target in _places(message, topic):
        for each in messages:
            offset = target.queue_offset + each.queue_offset - message.queue_offset
            yield encode_stored(
                each._replace(
                    topic=target.topic, queue_id=target.queue_id, queue_offset=QueueOffset(offset),
                    sys_flag=each.sys_flag & _LEFT,
                )
            )  # fmt: skip


def _messages(message: Message, with_bodies: bool) -> list[Message]:
    """The messages that a record holds, with bodies as their senders had them."""
    is_foreign = message.sys_flag & FORM_MASK != 0
    is_batch = message.sys_flag & _BATCH == _BATCH
    if not (is_foreign or is_batch or with_bodies):
        return [message]
    _check_crc(message)
    if is_foreign:
        return in_rocketmq_form(message)
    if is_batch:
        return unwrapped([message])
    try:
        return [message._replace(body=memoryview(unpacked_body(message)))]
    except WireError as error:
        raise WireError(f"the record at log offset {message.log_offset}: {error}") from None


def _check_crc(message: Message) -> None:
    if crc32(message.body) & CRC_MASK != message.body_crc:
        raise WireError(
            f"the body of the record at log offset {message.log_offset} has another CRC"
        )


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
