"""Records that are not one plain message each, rewritten as records that are.

A body is decompressed; an inner batch, and what is of another form than RocketMQ's, become a record
for each of their messages; and a record that was read from a queue of another topic than its own
(see `dispatch`) gets the place that it has there. All keep the log offset, the store time and the
hosts of the record that they come from. Those of a Kafka batch whose checksum was looked at keep
its form in their sysFlag: they have no checksum of their own.

Invariant: what comes out has no compressed body (where bodies matter) and nothing to unwrap, and is
in the order of what went in.
"""

import logging
import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from isal.isal_zlib import crc32

from onelog.errors import WireError
from onelog.message import Message, QueueOffset, SysFlag
from onelog.record.columns import Bytes, Layout, Mask, find_records, joined
from onelog.record.columns.kafka import Front, WantedColumns, rows_of
from onelog.record.compression import unpacked_body
from onelog.record.decode import decode_message
from onelog.record.dispatch import Target, targets
from onelog.record.encode import encode_stored
from onelog.record.forms import FORM_MASK, Form, form_of, kafka
from onelog.record.forms.conversion import in_rocketmq_form
from onelog.record.inner_batch import unwrapped
from onelog.record.layout import CRC_MASK

log = logging.getLogger(__name__)

_BATCH = (SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP).value
_COMPRESSED = SysFlag.COMPRESSED.value
_LEFT = ~(_BATCH | _COMPRESSED | 0x700)
"""What stays of a sysFlag: neither the marks of a batch nor those of a compressed body."""

_TOGETHER_BYTES_MAX = 4 << 20
"""More batches than that are not taken together: what they unpack to is held in memory."""
_PACKED_FACTOR = 8
"""How much of that a byte of a packed batch counts for."""
_FLAT_BYTES_MAX = 16 << 20
"""About as much is handed over at once: a megabyte of packed batches may become a gigabyte."""

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
    wanted: WantedColumns,
    on_damage: OnDamage,
) -> Iterator[Layout]:
    """The same messages, in records that are all plain, with the properties that are wanted."""
    flat = _Flat(topic, with_bodies, wanted, on_damage)
    view = layout.raw.data
    rows = zip(layout.at.tolist(), layout.end.tolist(), unusual.tolist(), strict=True)
    for at, end, is_unusual in rows:
        if not is_unusual:
            flat.add_plain(view[at:end])
        else:
            flat.add(layout.raw[at:end], at)
        if flat.size > _FLAT_BYTES_MAX:
            yield from flat.take()
    yield from flat.take()


class _Flat:
    """What was rewritten so far. Kafka batches that follow each other are taken together."""

    def __init__(
        self, topic: str | None, with_bodies: bool, wanted: WantedColumns, on_damage: OnDamage
    ) -> None:
        self._topic = topic
        self._with_bodies = with_bodies
        self._wanted = wanted
        self._on_damage = on_damage
        self._parts: list[Layout] = []
        self._records: list[bytes | memoryview] = []
        self._batches: list[Front] = []
        self._batch_bytes = 0
        self.size = 0
        """Bytes that are rewritten and not handed over."""

    def add_plain(self, record: memoryview) -> None:
        """A record that stays as it is."""
        if self._batches:
            self._end_batches()
        self._add_records([record])

    def add(self, raw: Bytes, at: int) -> None:
        """A record that has to be rewritten; what is damaged is reported."""
        try:
            message = decode_message(raw.data)
            if form_of(message.sys_flag) == Form.KAFKA and self._topic in (None, message.topic):
                _check_crc(message)
                self._add_batch(Front(message, raw, message.sys_flag & _LEFT))
            else:
                self._end_batches()
                self._add_records(list(_flat(message, self._topic, self._with_bodies)))
        except WireError as error:
            self._on_damage(error)
        except struct.error as error:
            complaint = f"no message at byte {at} can be in the place it says: {error}"
            self._on_damage(WireError(complaint))

    def _add_batch(self, front: Front) -> None:
        if self._batches and (
            self._batch_bytes > _TOGETHER_BYTES_MAX or not front.is_like(self._batches[0])
        ):
            self._end_batches()
        self._batches.append(front)
        factor = _PACKED_FACTOR if kafka.is_packed(front.record.body) else 1
        self._batch_bytes += len(front.start) * factor

    def _end_batches(self) -> None:
        batches, self._batches, self._batch_bytes = self._batches, [], 0
        if not batches:
            return
        try:
            found = rows_of(batches, self._wanted)
        except WireError:
            found = None
        if found is not None:
            self._end_records()
            self._parts.append(found)
            self.size += len(found.raw)
        elif len(batches) > 1:
            for each in batches:
                self._batches = [each]
                self._end_batches()
        else:
            self._add_one_by_one(batches[0].record)

    def _add_one_by_one(self, message: Message) -> None:
        try:
            self._add_records(list(_flat(message, self._topic, self._with_bodies)))
        except WireError as error:
            self._on_damage(error)
        except struct.error as error:
            complaint = f"no message at log offset {message.log_offset} can be as it says: {error}"
            self._on_damage(WireError(complaint))

    def _add_records(self, records: Sequence[bytes | memoryview]) -> None:
        self._records += records
        self.size += sum(map(len, records))

    def _end_records(self) -> None:
        self._parts += _laid_out(self._records)
        self._records = []

    def take(self) -> Iterator[Layout]:
        """All that was not taken yet, if there is anything."""
        self._end_batches()
        self._end_records()
        parts, self._parts, self.size = self._parts, [], 0
        if parts:
            yield joined(parts)


def _laid_out(records: list[bytes | memoryview]) -> list[Layout]:
    if not records:
        return []
    found = find_records(np.frombuffer(b"".join(records), np.uint8))
    assert found is not None, "records were rewritten as something else"
    return [found]


def _flat(message: Message, topic: str | None, with_bodies: bool) -> Iterator[bytes]:
    messages = _messages(message, with_bodies)
    for target in _targets(message, topic):
        for each in messages:
            offset = target.queue_offset + each.queue_offset - message.queue_offset
            yield encode_stored(
                each._replace(
                    topic=target.topic,
                    queue_id=target.queue_id,
                    queue_offset=QueueOffset(offset),
                    sys_flag=each.sys_flag & _LEFT,
                )
            )


def _messages(message: Message, with_bodies: bool) -> list[Message]:
    """The messages that a record holds, with bodies as their senders had them."""
    is_foreign = message.sys_flag & FORM_MASK != 0
    is_batch = message.sys_flag & _BATCH == _BATCH
    if not (is_foreign or is_batch or with_bodies):
        return [message]
    _check_crc(message)
    if is_foreign:
        found = in_rocketmq_form(message)
        if (lost := _claimed(message) - len(found)) > 0:
            log.warning(
                "%d messages of the record at log offset %d, topic %r, cannot be read: left out",
                lost,
                message.log_offset,
                message.topic,
            )
        return found
    if is_batch:
        return unwrapped([message])
    try:
        return [message._replace(body=memoryview(unpacked_body(message)))]
    except WireError as error:
        raise WireError(f"the record at log offset {message.log_offset}: {error}") from None


def _claimed(message: Message) -> int:
    """How many messages a record says that it has."""
    if form_of(message.sys_flag) != Form.KAFKA:
        return 1
    batch = kafka.read_head(message.body)
    return 0 if batch.is_control else batch.records


def _check_crc(message: Message) -> None:
    if crc32(message.body) & CRC_MASK != message.body_crc:
        raise WireError(
            f"the body of the record at log offset {message.log_offset} has another CRC"
        )


def _targets(message: Message, topic: str | None) -> list[Target]:
    if topic is None or message.topic == topic:
        return [Target(message.topic, message.queue_id, message.queue_offset, 1)]
    found = [target for target in targets(message) if target.topic == topic]
    if not found:
        raise WireError(
            f"the record at log offset {message.log_offset} belongs to topic {message.topic!r}, "
            f"but was read from a queue of {topic!r}"
        )
    return found
