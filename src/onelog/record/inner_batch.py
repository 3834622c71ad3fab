"""Inner batches: many messages in one record, which a reader takes apart.

A RocketMQ broker keeps a batch that was sent to a topic of queue type BatchCQ as one record. Its
body is the batch as it was sent, its queue offset that of the first message, and its sysFlag has
INNER_BATCH and NEED_UNWRAP. What has INNER_BATCH alone is left to those who know its form. The body
is messages one after the other:

    int32 size (of all of it) | int32 magic | int32 body CRC | int32 flag
    int32 length | body | int16 length | properties

Invariant: a message out of a batch has the batch's time, hosts and place in the log, and a flag,
properties, body and queue offset of its own. Its sysFlag keeps INNER_BATCH: the record at its place
in the log is not this message alone.
"""

import functools
import struct
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

from onelog.errors import WireError
from onelog.message import Buffer, Message, Part, QueueOffset, SysFlag
from onelog.record.compression import unpacked_body

BATCHED_BYTES = 22
"""What a batched message takes beyond its body and properties."""

_BATCHED = struct.Struct(">iiiii")
_INT16 = struct.Struct(">h")

_BOTH = (SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP).value
_LEFT = ~(SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED).value


def unwrapped(messages: list[Message]) -> list[Message]:
    """The same messages, with those in batches one by one; `WireError` if that cannot be."""
    for message in messages:
        if message.sys_flag & _BOTH == _BOTH:
            return [inner for each in messages for inner in _inner(each)]
    return messages


def _inner(message: Message) -> list[Message]:
    if message.sys_flag & _BOTH != _BOTH:
        return [message]
    try:
        parts = split_batch(unpacked_body(message))
    except WireError as error:
        raise WireError(f"the batch at log offset {message.log_offset}: {error}") from None
    return [
        message._replace(
            queue_offset=QueueOffset(message.queue_offset + index),
            body=memoryview(body),
            properties=properties,
            flag=flag,
            sys_flag=message.sys_flag & _LEFT,
        )
        for index, (flag, body, properties) in enumerate(parts)
    ]


@functools.lru_cache(maxsize=1024)
def _batched_alike(body_bytes: int, properties_bytes: int) -> struct.Struct:
    return struct.Struct(f">iiiii{body_bytes}sH{properties_bytes}s")


_lengths: Callable[[tuple[Any, ...]], tuple[int, int, int]] = itemgetter(0, 4, 6)
_parts: Callable[[tuple[Any, ...]], Part] = itemgetter(3, 5, 7)


def split_batch(body: Buffer) -> list[Part]:
    """Flag, body and properties of each message of a batch; `WireError` if the bytes are none."""
    # Copies, because bodies in batches are small, and then views cost more than they save.
    data = body if isinstance(body, bytes) else bytes(body)
    if len(data) > BATCHED_BYTES:
        # Most batches have messages of one size: then one call takes all of them apart.
        size, _, _, _, body_bytes = _BATCHED.unpack_from(data)
        properties_bytes = size - BATCHED_BYTES - body_bytes
        if body_bytes >= 0 and 0 <= properties_bytes < 0x8000 and len(data) % size == 0:
            alike = list(_batched_alike(body_bytes, properties_bytes).iter_unpack(data))
            if set(map(_lengths, alike)) == {(size, body_bytes, properties_bytes)}:
                return list(map(_parts, alike))
    return _split_one_by_one(data)


def _split_one_by_one(data: bytes) -> list[Part]:
    messages: list[Part] = []
    at, end = 0, len(data)
    try:
        while at < end:
            size, _, _, flag, body_bytes = _BATCHED.unpack_from(data, at)
            body_at, body_end = at + 20, at + 20 + body_bytes
            at += size
            if (
                body_bytes < 0
                or at > end
                or size - BATCHED_BYTES - body_bytes != data[body_end] << 8 | data[body_end + 1]
            ):
                raise WireError(f"message {len(messages)} of the batch has wrong lengths")
            messages.append((flag, data[body_at:body_end], data[body_end + 2 : at]))
    except (struct.error, IndexError):
        raise WireError(f"message {len(messages)} of the batch is cut off") from None
    return messages


def encode_batch(messages: Iterable[tuple[int, Buffer, Buffer]]) -> bytes:
    """A batch's body, from each message's flag, body and encoded properties."""
    pieces: list[Buffer] = []
    for flag, body, properties in messages:
        size = BATCHED_BYTES + len(body) + len(properties)
        pieces.append(_BATCHED.pack(size, 0, 0, flag, len(body)))
        pieces.append(body)
        pieces.append(_INT16.pack(len(properties)))
        pieces.append(properties)
    return b"".join(pieces)
