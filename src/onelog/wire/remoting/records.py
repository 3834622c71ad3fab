"""Records as brokers send them: the body of a pull, and of a search by id or key.

A body is whole records of the log, one after the other, without anything in between:

    int32 size | int32 magic | int32 body CRC | int32 queue | int32 flag | int64 queue offset
    int64 log offset | int32 sysFlag | int64 born time | born host | int64 store time | store host
    int32 reconsume times | int64 prepared offset | int32 length, body
    int8 (magic V1) or int16 (V2) length, topic | int16 length, properties

A host is 4 bytes of IP, or 16 if the sysFlag says so, and an int32 port.

Invariant: `decode_records` gives every record of the body, all of them whole and with the CRC that
they claim, or raises `WireError`.
"""

from struct import Struct

from isal.isal_zlib import crc32

from onelog.errors import WireError
from onelog.message import LogOffset, Message, QueueOffset, SysFlag
from onelog.wire.remoting.command import Buffer
from onelog.wire.remoting.compression import decompress

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB

_CRC_MASK = 0x7FFFFFFF
_HEADS = tuple(Struct(f">IIIiiqqiq{born}sq{stored}siqI") for stored in (8, 20) for born in (8, 20))
"""Everything before the body, by the two bits of the sysFlag that say which host is IPv6."""
_START = Struct(">II")
_SYS_FLAG_AT = 36
_LENGTH = Struct(">H")


def decode_records(data: Buffer) -> list[Message]:
    """The messages in a body; their own bodies stay views of it."""
    view = memoryview(data).cast("B").toreadonly()
    messages = []
    at, end = 0, len(view)
    while at < end:
        message = _decode(view, at)
        messages.append(message)
        at += message.size
    return messages


def unpacked_body(message: Message) -> bytes:
    """The body as its sender had it; `CompressionError` if it cannot be had from these bytes."""
    if not message.sys_flag & SysFlag.COMPRESSED:
        return bytes(message.body)
    return decompress(message.body, message.sys_flag >> 8 & 7)


def _decode(view: memoryview, at: int) -> Message:
    room = len(view) - at
    if room < _HEADS[0].size:
        raise WireError(f"a record is cut off: {room} bytes at byte {at} of the body")
    size, magic = _START.unpack_from(view, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise WireError(f"no record at byte {at} of the body: its magic is {magic:#010x}")
    if size > room:
        raise WireError(f"a record claims {size} bytes where {room} are left")
    head = _HEADS[view[at + _SYS_FLAG_AT + 3] >> 4 & 3]
    if size < head.size:
        raise WireError(f"a record claims {size} bytes; its hosts alone need more")
    (_, _, body_crc, queue_id, flag, queue_offset, log_offset, sys_flag, born_ms, born_host,
     store_ms, store_host, times, prepared, body_bytes) = head.unpack_from(view, at)  # fmt: skip
    end = at + size
    body_at = at + head.size
    topic_at = body_at + body_bytes
    name_at = topic_at + (1 if magic == MAGIC_V1 else 2)
    if name_at > end:
        raise WireError(f"a body of {body_bytes} bytes does not fit its record of {size}")
    properties_at = name_at + int.from_bytes(view[topic_at:name_at], "big")
    if properties_at + 2 > end:
        raise WireError(f"a topic does not fit its record of {size} bytes")
    if properties_at + 2 + _LENGTH.unpack_from(view, properties_at)[0] != end:
        raise WireError(f"the lengths in a record do not add up to its {size} bytes")
    body = view[body_at:topic_at]
    if crc32(body) & _CRC_MASK != body_crc:
        raise WireError(f"the body of the record at log offset {log_offset} has another CRC")
    return Message(
        bytes(view[name_at:properties_at]).decode("utf-8", "replace"), queue_id,
        QueueOffset(queue_offset), LogOffset(log_offset), body,
        bytes(view[properties_at + 2 : end]), flag, sys_flag, born_ms, born_host, store_ms,
        store_host, times, prepared, body_crc, size,
    )  # fmt: skip
