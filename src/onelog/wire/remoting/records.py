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
from onelog.message import Buffer, Message

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB

_CRC_MASK = 0x7FFFFFFF
_HEADS = tuple(Struct(f">IIIiiqqiq{born}sq{stored}siqI") for stored in (8, 20) for born in (8, 20))
"""Everything before the body, by the two bits of the sysFlag that say which host is IPv6."""
_START = Struct(">II")
_SYS_FLAG_AT = 36
_LENGTH = Struct(">H")


def decode_records(data: Buffer) -> list[Message]:
    """The messages in a body; their own bodies stay views of a copy of it.

    This is the loop that every message goes through on its way to a consumer; what is wrong with a
    body is found out only when something is.
    """
    raw = bytes(data)
    view = memoryview(raw)
    messages: list[Message] = []
    heads, head_bytes_min, new = _HEADS, _HEADS[0].size, tuple.__new__
    at, end = 0, len(raw)
    name_before, topic = b"", ""
    while at < end:
        if end - at < head_bytes_min:
            raise _complaint(view, at)
        head = heads[raw[at + _SYS_FLAG_AT + 3] >> 4 & 3]
        if end - at < head.size:
            raise _complaint(view, at)
        (
            size, magic, body_crc, queue_id, flag, queue_offset, log_offset, sys_flag, born_ms,
            born_host, store_ms, store_host, times, prepared, body_bytes,
        ) = head.unpack_from(raw, at)  # fmt: skip
        body_at = at + head.size
        topic_at = body_at + body_bytes
        stop = at + size
        if stop > end or topic_at + 3 > stop:
            raise _complaint(view, at)
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
            raise _complaint(view, at)
        body = view[body_at:topic_at]
        if crc32(body) & _CRC_MASK != body_crc:
            raise _complaint(view, at)
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


def _complaint(view: memoryview, at: int) -> WireError:
    """What is wrong with the record at `at`."""
    room = len(view) - at
    if room < _HEADS[0].size:
        return WireError(f"a record is cut off: {room} bytes at byte {at} of the body")
    size, magic = _START.unpack_from(view, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return WireError(f"no record at byte {at} of the body: its magic is {magic:#010x}")
    if size > room:
        return WireError(f"a record claims {size} bytes where {room} are left")
    head = _HEADS[view[at + _SYS_FLAG_AT + 3] >> 4 & 3]
    if size < head.size:
        return WireError(f"a record claims {size} bytes; its hosts alone need more")
    log_offset, body_bytes = head.unpack_from(view, at)[6::8]
    topic_at = at + head.size + body_bytes
    name_at = topic_at + (1 if magic == MAGIC_V1 else 2)
    if name_at > at + size:
        return WireError(f"a body of {body_bytes} bytes does not fit its record of {size}")
    properties_at = name_at + int.from_bytes(view[topic_at:name_at], "big")
    if properties_at + 2 > at + size:
        return WireError(f"a topic does not fit its record of {size} bytes")
    if properties_at + 2 + _LENGTH.unpack_from(view, properties_at)[0] != at + size:
        return WireError(f"the lengths in a record do not add up to its {size} bytes")
    return WireError(f"the body of the record at log offset {log_offset} has another CRC")
