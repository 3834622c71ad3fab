"""Sending, the hottest request: its header and its answer. A batch's body: `record.inner_batch`.

Codes 310, 320 and 325 carry the fields of 10 and 324 under the names `a` to `n`:
producerGroup a, topic b, defaultTopic c, defaultTopicQueueNums d, queueId e, sysFlag f,
bornTimestamp g, flag h, properties i, reconsumeTimes j, unitMode k, maxReconsumeTimes l, batch m,
and the broker's name n.

A producer sends to the same few queues again and again, so it makes the JSON header once per queue
(`SendTemplate`), with gaps for what each message says of itself.

Invariants: the fast ways and the slow ways of this file give the same values and the same bytes; a
filled template is, field by field, what `encode_request` makes of the same fields.
"""

import functools
import struct
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

import msgspec

from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import VERSION, RequestCode, ResponseCode
from onelog.wire.remoting.command import FLAG_ONEWAY, Command, Serialize
from onelog.wire.remoting.frame import encode_response

_LONG_NAMES = tuple(
    "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag "
    "properties reconsumeTimes unitMode maxReconsumeTimes batch".split()
)
_SHORT_NAMES = tuple("abcdefghijklm")
_LONG_CODES = frozenset({RequestCode.SEND_MESSAGE.value, RequestCode.SEND_REPLY_MESSAGE.value})
_BATCH_CODE = RequestCode.SEND_BATCH_MESSAGE.value
_required: Callable[[dict[str, str]], tuple[str, ...]] = itemgetter(*_SHORT_NAMES[:8])

_SMALL = {str(number): number for number in range(-1, 512)}
"""The numbers that are usual in headers: to find one is to have checked it, and twice as fast."""

_START = struct.Struct(">iI")
_COMPACT_START = struct.Struct(">iIhbhiiii")
_COMPACT = Serialize.COMPACT.value
_json = msgspec.json.Encoder().encode
_LENGTHS = tuple(f"\0\0\0{chr(length)}" for length in range(128))
"""Lengths of short texts, as the compact header writes them."""


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


def decode_send_header(command: Command) -> SendHeader:
    """The header of a request to send; `InvalidRequestError` if a field is missing or wrong."""
    ext, code = command.ext, command.code
    if code in _LONG_CODES:
        return _decode_carefully(ext, _LONG_NAMES, code)
    try:
        group, topic, default, queues, queue, sys_flag, born, flag = _required(ext)
        most = ext.get("l")
        if born.isdecimal() and len(born) <= 18:
            # What NamedTuple's own __new__ does, without the cost of its thirteen arguments.
            return tuple.__new__(
                SendHeader,
                (
                    group,
                    topic,
                    default,
                    _SMALL[queues],
                    _SMALL[queue],
                    _SMALL[sys_flag],
                    int(born),
                    _SMALL[flag],
                    ext.get("i", ""),
                    _SMALL[ext.get("j", "0")],
                    ext.get("k") == "true",
                    _SMALL[most] if most else None,
                    code == _BATCH_CODE or ext.get("m") == "true",
                ),
            )
    except KeyError:
        pass
    return _decode_carefully(ext, _SHORT_NAMES, code)


def _decode_carefully(ext: dict[str, str], names: tuple[str, ...], code: int) -> SendHeader:
    """The same for any names and signs, and with words for what is wrong."""
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
        code == _BATCH_CODE or fields.flag(ext, names[12]),
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
    recall_handle: str = "",
) -> bytes:
    """The answer to a message that was stored; a timed one has a handle (`recall_handle`)."""
    queue = str(queue_id)
    offset = str(queue_offset)
    recall = ""
    try:
        # Texts that need no escape, and in the compact form, as in `headers`, characters
        # that stand for bytes; what does not fit in here goes the usual way below.
        if serialize == _COMPACT:
            if recall_handle:
                recall = f"\0\14recallHandle{_LENGTHS[len(recall_handle)]}{recall_handle}"
            id_bytes = len(message_id)
            # The ids of a batch make a long text, whose length is one of bytes that are not ASCII.
            long = id_bytes > 127
            header = (
                f"\0\5msgId{'%b' if long else _LENGTHS[id_bytes]}{message_id}"
                f"\0\7queueId{_LENGTHS[len(queue)]}{queue}"
                f"\0\13queueOffset{_LENGTHS[len(offset)]}{offset}"
                f"\0\15transactionId{_LENGTHS[len(transaction_id)]}{transaction_id}"
                f"{_compact_end(region, trace)}{recall}"
            ).encode("ascii")
            if long:
                header = header.replace(b"%b", id_bytes.to_bytes(4, "big"), 1)
            size = len(header)
            mark = _COMPACT << 24 | 21 + size
            return _COMPACT_START.pack(25 + size, mark, 0, 0, VERSION, opaque, 1, 0, size) + header
        if f"{message_id.replace(',', '')}{transaction_id}{region}".isalnum():
            trace_on = "true" if trace else "false"
            if recall_handle:
                recall = f',"recallHandle":"{recall_handle}"'
            header = (
                f'{{"code":0,"extFields":{{"msgId":"{message_id}","queueId":"{queue}",'
                f'"queueOffset":"{offset}","transactionId":"{transaction_id}",'
                f'"MSG_REGION":"{region}","TRACE_ON":"{trace_on}"{recall}}},"flag":1,'
                f'"language":"JAVA",'
                f'"opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
            ).encode("ascii")
            return _START.pack(4 + len(header), len(header)) + header
    except (IndexError, UnicodeEncodeError):
        pass
    ext = {
        "msgId": message_id,
        "queueId": queue,
        "queueOffset": offset,
        "transactionId": transaction_id,
        "MSG_REGION": region,
        "TRACE_ON": "true" if trace else "false",
        **({"recallHandle": recall_handle} if recall_handle else {}),
    }
    return b"".join(encode_response(ResponseCode.SUCCESS, opaque, ext, serialize=serialize))


@functools.lru_cache(maxsize=64)
def _compact_end(region: str, trace: bool) -> str:
    """What is the same in all answers of a broker."""
    trace_on = "true" if trace else "false"
    return (
        f"\0\12MSG_REGION{_LENGTHS[len(region)]}{region}"
        f"\0\10TRACE_ON{_LENGTHS[len(trace_on)]}{trace_on}"
    )


class SendTemplate:
    """What is the same in all sends of a producer to one queue."""

    __slots__ = ("_template", "_variants", "fields")

    def __init__(
        self,
        group: str,
        topic: str,
        queue_id: int,
        broker: str,
        *,
        default_topic: str,
        default_queues: int,
        code: int = RequestCode.SEND_MESSAGE_V2,
        language: str = "PYTHON",
    ) -> None:
        is_batch = code == RequestCode.SEND_BATCH_MESSAGE
        self.fields = {
            "a": group,
            "b": topic,
            "c": default_topic,
            "d": str(default_queues),
            "e": str(queue_id),
            "j": "0",
            "k": "false",
            "m": "true" if is_batch else "false",
            "n": broker,
        }
        """The request's own fields; those of the message are missing."""
        self._variants: dict[int, SendTemplate] = {}
        same = b",".join(
            _json(key) + b":" + _json(value).replace(b"%", b"%%")
            for key, value in self.fields.items()
        )
        self._template = (
            b'{"code":%d,"extFields":{' % code
            + same
            + b',"f":"%d","g":"%d","h":"%d","i":%b},"flag":%d,"language":"'
            + language.encode()
            + b'","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":'
            + b"%d}" % VERSION
        )

    def head(
        self,
        opaque: int,
        sys_flag: int,
        born_ms: int,
        flag: int,
        properties: str,
        body_bytes: int,
        oneway: bool = False,
    ) -> bytes:
        """Everything of the request but the body, which follows."""
        header = self._template % (
            sys_flag,
            born_ms,
            flag,
            _json(properties),
            FLAG_ONEWAY if oneway else 0,
            opaque,
        )
        size = len(header)
        return _START.pack(4 + size + body_bytes, size) + header

    def with_code(self, code: int) -> "SendTemplate":
        """The same for another request to that queue: a batch, or a reply."""
        variant = self._variants.get(code)
        if variant is None:
            fields = self.fields
            variant = self._variants[code] = SendTemplate(
                fields["a"],
                fields["b"],
                int(fields["e"]),
                fields["n"],
                default_topic=fields["c"],
                default_queues=int(fields["d"]),
                code=code,
            )
        return variant

    def message_fields(
        self, sys_flag: int, born_ms: int, flag: int, properties: str
    ) -> dict[str, str]:
        """All fields, as texts: what a signature is made of."""
        return {
            **self.fields,
            "f": str(sys_flag),
            "g": str(born_ms),
            "h": str(flag),
            "i": properties,
        }
