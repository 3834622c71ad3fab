"""Sending, the hottest request: its header, its answer, and the body that holds a batch.

Codes 310, 320 and 325 carry the fields of 10 and 324 under the names `a` to `n`:
producerGroup a, topic b, defaultTopic c, defaultTopicQueueNums d, queueId e, sysFlag f,
bornTimestamp g, flag h, properties i, reconsumeTimes j, unitMode k, maxReconsumeTimes l, batch m,
and the broker's name n.

The body of a batch (320) is messages one after the other:

    int32 size (of all of it) | int32 magic | int32 body CRC | int32 flag
    int32 length | body | int16 length | properties

Invariant: the answer made here by `encode_send_response` is the one that `encode_response` would
make, byte order of the fields aside.
"""

import struct
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import NamedTuple

from onelog.errors import InvalidRequestError
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import VERSION, RequestCode
from onelog.wire.remoting.command import FLAG_RESPONSE, Buffer, Command, Serialize

_LONG_NAMES = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
)
_SHORT_NAMES = tuple("abcdefghijklm")
_LONG_CODES = frozenset({RequestCode.SEND_MESSAGE.value, RequestCode.SEND_REPLY_MESSAGE.value})
_REQUIRED = 8
"""The first so many names must be there."""

_required_short: Callable[[dict[str, str]], tuple[str, ...]] = itemgetter(*_SHORT_NAMES[:_REQUIRED])

_BATCHED = struct.Struct(">iiiii")
_BATCHED_BYTES_MIN = 22

_RESPONSE_START = struct.Struct(">iIhbhiiii")
_NUMBERS_MAX = 4096
_NUMBER_TEXTS = tuple(map(str, range(_NUMBERS_MAX)))


class SendHeader(NamedTuple):
    """What a producer says about the message it sends. `properties` stay encoded."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queues: int
    queue_id: int
    sys_flag: int
    born_ms: int
    flag: int
    properties: str
    reconsume_times: int
    unit_mode: bool
    reconsume_times_max: int | None
    batch: bool


class BatchedMessage(NamedTuple):
    """One message of a batch, as views of the batch's bytes."""

    flag: int
    body: memoryview
    properties: memoryview


def decode_send_header(command: Command) -> SendHeader:
    """The header of a request to send; `InvalidRequestError` if a field is missing or wrong."""
    ext = command.ext
    if command.code in _LONG_CODES:
        return _decode_slowly(ext, _LONG_NAMES, command.code)
    try:
        group, topic, default, queues, queue, sys_flag, born, flag = _required_short(ext)
    except KeyError:
        return _decode_slowly(ext, _SHORT_NAMES, command.code)
    reconsume, reconsume_max = ext.get("j") or "0", ext.get("l") or "0"
    digits = f"{queues}{queue}{sys_flag}{born}{flag}{reconsume}{reconsume_max}"
    if not (digits.isdecimal() and digits.isascii() and queues and queue and sys_flag and born):
        return _decode_slowly(ext, _SHORT_NAMES, command.code)
    try:
        header = SendHeader(
            group,
            topic,
            default,
            int(queues),
            int(queue),
            int(sys_flag),
            int(born),
            int(flag),
            ext.get("i", ""),
            int(reconsume),
            ext.get("k") == "true",
            int(reconsume_max) if "l" in ext else None,
            command.code == RequestCode.SEND_BATCH_MESSAGE or ext.get("m") == "true",
        )
def _decode_slowly(ext: dict[str, str], names: tuple[str, ...], code: int) -> SendHeader:
    """The same, with names as given, numbers of any sign, and words for what is wrong."""
    return SendHeader(
        fields.text(ext, names[0]),
        fields.text(ext, names[1]),
        fields.text(ext, names[2]),
        fields.int32(ext, names[3]),
        fields.int32(ext, names[4]),
        fields.int32(ext, names[5]),
        fields.number(ext, names[6]),
        fields.int32(ext, names[7]),
        ext.get(names[8], ""),
        fields.int32(ext, names[9], 0),
        fields.flag(ext, names[10]),
        fields.int32(ext, names[11]) if ext.get(names[11]) else None,
        code == RequestCode.SEND_BATCH_MESSAGE or fields.flag(ext, names[12]),
    )


def encode_send_response(
    opaque: int,
    message_id: str,
    queue_id: int,
    queue_offset: int,
    transaction_id: str,
    region: str = "DefaultRegion",
    trace: bool = True,
    serialize: int = Serialize.JSON,
) -> bytes:
    """The answer to a message that was stored."""
    queue = str(queue_id)
    offset = str(queue_offset)
    trace_on = "true" if trace else "false"
    if serialize == Serialize.COMPACT:
        ext = (
            f"\0\5msgId{_LENGTHS[len(message_id)]}{message_id}"
            f"\0\7queueId{_LENGTHS[len(queue)]}{queue}"
            f"\0\13queueOffset{_LENGTHS[len(offset)]}{offset}"
            f"\0\15transactionId{_LENGTHS[len(transaction_id)]}{transaction_id}"
            f"\0\12MSG_REGION{_LENGTHS[len(region)]}{region}"
            f"\0\10TRACE_ON{_LENGTHS[len(trace_on)]}{trace_on}"
        ).encode("latin-1")
