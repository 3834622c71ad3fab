"""POP, as brokers and clients speak it: requests, answers, and the receipts in between.

A receipt is a text that a client brings back to acknowledge a message. An answer tells, per queue,
where its messages are (the n-th message of a queue in the body is the n-th offset in
`msgOffsetInfo`); entries are joined by semicolons:

    startOffsetInfo   <retry> <queue id> <first offset>
    msgOffsetInfo     <retry> <queue id> <offset>,<offset>,...
    orderCountInfo    <retry> qo<queue id>%<offset> <times>   and   <retry> <queue id> <times>

From that a client makes one receipt per message (its property POP_CK):

    <first offset> <pop time> <invisible time> <revive queue> <retry> <broker> <queue id> [<offset>]

`retry` is 0 for the topic itself, 1 for %RETRY%group_topic, 2 for %RETRY%group+topic. A batch of
acknowledgements names its messages by a bit set over the first offset, in base64. A message that
came back may carry its receipt with it (POP_CK): RocketMQ writes it there, because it gives such a
message the name of the original topic.

Invariants: `parse_receipt` gives what a client built from our answer, or raises
`InvalidReceiptError`; `decode_batch` gives whole acknowledgements, or raises `WireError`. `popped`
gives a receipt with an offset for every message of an answer, or raises `WireError`; a message has
the topic that was asked for and the number of its earlier deliveries.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from onelog.errors import InvalidReceiptError, InvalidRequestError, WireError
from onelog.message import Buffer, Message, property_value
from onelog.names import LIGHT_QUEUE_PREFIX, RETRY_PREFIX, fitting
from onelog.record.decode import decode_records
from onelog.wire.remoting import fastjson, fields
from onelog.wire.remoting.body import require_few
from onelog.wire.remoting.fields import INT32_MAX, INT64_MAX

ORDERED_QUEUE = 999
"""The revive queue in receipts of ordered messages."""
BATCH_MAX = 65_536
"""Messages that one request may acknowledge."""
ALL_QUEUES = -1
_RETRY_MARKS = frozenset("012")
COUNT_MAX = 32
"""Messages that one request may ask for."""
FROM_FIRST, FROM_LAST = 0, 1
"""Where a group starts in a queue that it never popped from."""
RECEIPT = "POP_CK"
BATCH_SPAN_MAX = 1 << 16
"""How far after its lease's first message a message may be to be acknowledged in a batch, where
every message up to it takes a bit."""
_NAMES = {
    "c": "consumerGroup",
    "t": "topic",
    "r": "retry",
    "so": "startOffset",
    "q": "queueId",
    "rq": "reviveQueueId",
    "pt": "popTime",
    "it": "invisibleTime",
    "b": "bitSet",
}
"""The members of an acknowledgement in a batch: as 5.x writes them, and the long names it reads."""

_decode_any = msgspec.json.Decoder().decode
_SHOWN = itemgetter("consumerGroup", "topic", "queueId", "extraInfo", "offset")


class Receipt(NamedTuple):
    """What a client may show to acknowledge a message; `offset` is missing in old ones."""

    first_offset: int
    popped_ms: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker: str
    queue_id: int
    offset: int | None = None

    def __str__(self) -> str:
        known = self if self.offset is not None else self[:-1]
        return " ".join(map(str, known))

    def extended(self, offset: int, popped_ms: int, invisible_ms: int, now_ms: int) -> "Receipt":
        """The receipt of a message whose lease was changed now; `popped_ms` is its new handle."""
        if self.revive_queue == ORDERED_QUEUE:
            # Its pop time stays, so the time that it is invisible counts from there.
            invisible_ms += now_ms - popped_ms
        return self._replace(first_offset=offset, popped_ms=popped_ms, invisible_ms=invisible_ms)


class Shown(NamedTuple):
    """What a request about one message says of it, with the receipt that is shown for it."""

    group: str
    topic: str
    queue_id: int
    receipt: Receipt
    offset: int


class QueueInfo(NamedTuple):
    """The messages of one queue in an answer, and how often each came back to its place."""

    topic: str
    queue_id: int
    offsets: Sequence[int]
    times: Sequence[int] = ()


class BatchAck(NamedTuple):
    """Messages of one queue that are done."""

    group: str
    topic: str
    retry: str
    queue_id: int
    popped_ms: int
    offsets: Sequence[int]


def retry_mark(topic: str) -> str:
    """Which of the three kinds a topic is."""
    if not topic.startswith(RETRY_PREFIX):
        return "0"
    return "2" if "+" in topic else "1"


def real_topic(topic: str, group: str, retry: str) -> str:
    """The topic that a mark stands for, where only the original is named."""
    separators = {"0": "", "1": "_", "2": "+"}
    if retry not in separators:
        raise InvalidReceiptError(f"a receipt has no retry mark {retry[:20]!r}")
    if retry == "0":
        return topic
    return fitting(f"{RETRY_PREFIX}{group}{separators[retry]}{topic}")


def start_offset_info(queues: Iterable[QueueInfo]) -> str:
    """The field of that name."""
    return ";".join(
        f"{retry_mark(each.topic)} {each.queue_id} {each.offsets[0]}" for each in queues
    )


def message_offset_info(queues: Iterable[QueueInfo]) -> str:
    """The field msgOffsetInfo."""
    return ";".join(
        f"{retry_mark(each.topic)} {each.queue_id} {','.join(map(str, each.offsets))}"
        for each in queues
    )


def order_count_info(queues: Iterable[QueueInfo]) -> str:
    """The field of that name: each message that came back, and the least of each queue."""
    entries = []
    for each in queues:
        mark = retry_mark(each.topic)
        entries += [
            f"{mark} qo{each.queue_id}%{offset} {times}"
            for offset, times in zip(each.offsets, each.times, strict=True)
            if times
        ]
        entries.append(f"{mark} {each.queue_id} {min(each.times, default=0)}")
    return ";".join(entries)


def parse_receipt(text: str) -> Receipt:
    """The receipt that a text spells; tokens after the eighth are the proxy's own."""
    tokens = text.split(" ")
    if len(tokens) < 7:
        raise InvalidReceiptError(f"a receipt has 7 parts or more, not {len(tokens)}")
    first, popped, invisible, revive, retry, broker, queue = tokens[:7]
    if retry not in _RETRY_MARKS:
        raise InvalidReceiptError(f"a receipt has no retry mark {retry[:20]!r}")
    last = tokens[7] if len(tokens) > 7 else None
    # All digits are looked at together, for there is a receipt for every message.
    digits = f"{first}{popped}{invisible}{revive}{queue}{last or '0'}"
    if len(digits) < 120 and digits.isascii() and digits.isdigit():
        try:
            start, popped_ms, invisible_ms = int(first), int(popped), int(invisible)
            revive_queue, queue_id = int(revive), int(queue)
            offset = None if last is None else int(last)
            if (
                start | popped_ms | invisible_ms | (offset or 0)
            ) <= INT64_MAX and revive_queue | queue_id <= INT32_MAX:
                return Receipt(
                    start, popped_ms, invisible_ms, revive_queue, retry, broker, queue_id, offset
                )
        except ValueError:  # Of a number without digits.
            pass
    raise InvalidReceiptError(f"a receipt has other things than numbers in {text[:100]!r}")


def decode_shown(ext: dict[str, str], broker: str) -> Shown:
    """Of an acknowledgement, say; the receipt must fit the rest of the request, and the broker."""
    try:
        group, topic, queue, text, at = _SHOWN(ext)
    except KeyError as missing:
        raise InvalidRequestError(f"the custom field <{missing.args[0]}> is null") from None
    if (
        len(queue) < 10
        and len(at) < 19
        and queue.isdecimal()
        and at.isdecimal()
        and (queue + at).isascii()
    ):  # As `fields` reads numbers, without its calls: there is one such request a message.
        queue_id, offset = int(queue), int(at)
    else:
        queue_id, offset = fields.int32(ext, "queueId"), fields.number(ext, "offset")
    receipt = parse_receipt(text)
    if (
        receipt.queue_id != queue_id
        or receipt.offset not in (None, offset)
        or receipt.retry != retry_mark(topic)
        or receipt.broker != broker
    ):
        raise InvalidReceiptError(f"the receipt {receipt} was given for another message")
    return Shown(group, topic, queue_id, receipt, offset)


def decode_batch(body: Buffer) -> list[BatchAck]:
    require_few(body)
    try:
        members = _decode_any(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        members = fastjson.loads(body)
    entries = members.get("acks") if isinstance(members, dict) else None
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise WireError("the acknowledgements are not a list of objects")
    acks = []
    count = 0
    for entry in entries:
        ack = _batch_ack(
            {short: entry.get(short, entry.get(long)) for short, long in _NAMES.items()}
        )
        count += len(ack.offsets)
        if count > BATCH_MAX:
            raise WireError(f"more than {BATCH_MAX} acknowledgements in one request")
        acks.append(ack)
    return acks


def _batch_ack(entry: dict[str, Any]) -> BatchAck:
    group, topic, retry = entry["c"], entry["t"], entry["r"] or "0"
    first, queue_id, popped_ms = entry["so"], entry["q"] or 0, entry["pt"] or 0
    bits = entry["b"] or ""
    texts = (group, topic, retry, bits)
    numbers = (first, queue_id, popped_ms)
    if not all(isinstance(text, str) for text in texts) or not all(
        isinstance(number, int) and 0 <= number <= INT64_MAX for number in numbers
    ):
        raise WireError("an acknowledgement whose members are missing or not what they must be")
    try:
        raw = base64.b64decode(bits, validate=True)
    except (binascii.Error, ValueError):
        raise WireError("a bit set that is not base64") from None
    if sum(map(int.bit_count, raw)) > BATCH_MAX:
        raise WireError(f"more than {BATCH_MAX} acknowledgements in one request")
    offsets = [
        first + 8 * index + bit
        for index, byte in enumerate(raw)
        if byte
        for bit in range(8)
        if byte >> bit & 1
    ]
    return BatchAck(group, topic, retry, queue_id, popped_ms, offsets)


# -- the client's side -----------------------------------------------------------------------------

_Key = tuple[str, int]
"""The retry mark of a topic, and a queue of it."""


class PopRequest(NamedTuple):
    """What a consumer wants: messages of one queue, or of all queues that a broker has."""

    group: str
    topic: str
    queue_id: int
    count_max: int
    invisible_ms: int
    poll_ms: int
    born_ms: int
    start: int = FROM_FIRST
    expression: str = "*"
    expression_type: str = "TAG"
    ordered: bool = False
    attempt_id: str | None = None

    def fields(self) -> dict[str, str]:
        ext = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": str(self.queue_id),
            "maxMsgNums": str(self.count_max),
            "invisibleTime": str(self.invisible_ms),
            "pollTime": str(self.poll_ms),
            "bornTime": str(self.born_ms),
            "initMode": str(self.start),
            "expType": self.expression_type,
            "exp": self.expression,
            "order": "true" if self.ordered else "false",
        }
        if self.attempt_id is not None:
            ext["attemptId"] = self.attempt_id
        return ext


class Popped(NamedTuple):
    """A message, and what must be shown to acknowledge it."""

    message: Message
    receipt: Receipt


def popped(request: PopRequest, broker: str, ext: Mapping[str, str], body: Buffer) -> list[Popped]:
    """The messages of an answer."""
    try:
        answer = _Answer(request, broker, ext)
        return [answer.popped(message) for message in decode_records(body)]
    except (InvalidReceiptError, InvalidRequestError) as error:
        raise WireError(f"an answer to POP_MESSAGE that makes no sense: {error}") from None


class _Answer:
    def __init__(self, request: PopRequest, broker: str, ext: Mapping[str, str]) -> None:
        given = dict(ext)
        self._request = request
        self._broker = broker
        self._popped_ms = fields.number(given, "popTime")
        self._invisible_ms = fields.number(given, "invisibleTime")
        self._revive_queue = fields.int32(given, "reviveQid")
        self._oldest: dict[_Key, int] = {}
        self._first = {
            _key(mark, queue_id): _offset_number(offset)
            for mark, queue_id, offset in _entries(given.get("startOffsetInfo"))
        }
        self._offsets = {
            _key(mark, queue_id): iter([_offset_number(each) for each in offsets.split(",")])
            for mark, queue_id, offsets in _entries(given.get("msgOffsetInfo"))
        }
        self._times = {
            (mark, what): _offset_number(times)
            for mark, what, times in _entries(given.get("orderCountInfo"))
        }

    def popped(self, message: Message) -> Popped:
        receipt = self._receipt(message)
        times = message.reconsume_times
        if self._times:
            mark, queue_id = receipt.retry, receipt.queue_id
            least = self._times.get((mark, str(queue_id)), 0)
            again = self._times.get((mark, f"qo{queue_id}%{receipt.offset}"), least)
            times = again or times
        known = message._replace(topic=self._request.topic, reconsume_times=times)
        return Popped(known, receipt)

    def _receipt(self, message: Message) -> Receipt:
        written = property_value(message.properties, RECEIPT)
        if written is not None:
            receipt = parse_receipt(written)
            if receipt.offset is None:
                raise InvalidReceiptError(f"the receipt {receipt} names no message")
            # It took its turn like the others.
            next(self._offsets.get((receipt.retry, receipt.queue_id), iter(())), None)
            return receipt
        mark, queue_id = retry_mark(message.topic), message.queue_id
        if mark == "0" and self._request.topic.startswith(LIGHT_QUEUE_PREFIX):
            queue_id = 0  # The record says where it was written; the light queue has one queue.
        key = (mark, queue_id)
        if not self._first:
            # Brokers before the field: the lease begins at the first message of its queue.
            first = self._oldest.setdefault(key, message.queue_offset)
            offset: int | None = message.queue_offset
        else:
            first = self._first.get(key, -1)
            offset = next(self._offsets.get(key, iter(())), None)
        if offset is None or offset < first or first < 0:
            raise InvalidReceiptError(
                f"no offset is given for a message of {message.topic} queue {queue_id}"
            )
        return Receipt(
            first,
            self._popped_ms,
            self._invisible_ms,
            self._revive_queue,
            mark,
            self._broker,
            queue_id,
            offset,
        )


def _entries(text: str | None) -> Iterable[tuple[str, str, str]]:
    for entry in (text or "").split(";"):
        if entry:
            parts = entry.split(" ")
            if len(parts) != 3:
                raise InvalidReceiptError(f"an entry has 3 parts, not {entry[:40]!r}")
            yield parts[0], parts[1], parts[2]


def _key(mark: str, queue_id: str) -> _Key:
    return mark, _offset_number(queue_id)


def _offset_number(text: str) -> int:
    return fields.number({"offset": text}, "offset")


def _mark(topic: str, receipt: Receipt) -> str:
    """What to add to a topic's name: nothing, if it was a group's retry topic that was popped."""
    return "0" if retry_mark(topic) != "0" else receipt.retry


def receipt_fields(group: str, topic: str, receipt: Receipt) -> dict[str, str]:
    """The fields of ACK_MESSAGE; `topic` is the one that was asked for."""
    return {
        "consumerGroup": group,
        "topic": real_topic(topic, group, _mark(topic, receipt)),
        "queueId": str(receipt.queue_id),
        "extraInfo": str(receipt),
        "offset": str(receipt.offset),
        "bname": receipt.broker,
    }


def change_fields(group: str, topic: str, receipt: Receipt, invisible_ms: int) -> dict[str, str]:
    """The fields of CHANGE_MESSAGE_INVISIBLETIME."""
    return {**receipt_fields(group, topic, receipt), "invisibleTime": str(invisible_ms)}


def changed(receipt: Receipt, ext: Mapping[str, str]) -> Receipt:
    """The receipt that replaces one whose time was changed."""
    given = dict(ext)
    try:
        return receipt._replace(
            first_offset=receipt.first_offset if receipt.offset is None else receipt.offset,
            popped_ms=fields.number(given, "popTime"),
            invisible_ms=fields.number(given, "invisibleTime"),
            revive_queue=fields.int32(given, "reviveQid"),
        )
    except InvalidRequestError as error:
        raise WireError(f"an answer that makes no receipt: {error}") from None


def fits_batch(receipt: Receipt) -> bool:
    """Whether the message can be acknowledged together with others."""
    return receipt.offset is not None and (
        0 <= receipt.offset - receipt.first_offset < BATCH_SPAN_MAX
    )


def encode_batch(group: str, topic: str, receipts: Sequence[Receipt]) -> bytes:
    """The body of BATCH_ACK_MESSAGE for messages of one topic from one broker."""
    leases: dict[tuple[str, int, int, int], list[Receipt]] = {}
    for receipt in receipts:
        key = (receipt.retry, receipt.queue_id, receipt.first_offset, receipt.popped_ms)
        leases.setdefault(key, []).append(receipt)
    acks = []
    for held in leases.values():
        first = held[0]
        bits = 0
        for receipt in held:
            assert receipt.offset is not None
            assert fits_batch(receipt)
            bits |= 1 << receipt.offset - first.first_offset
        bit_set = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        acks.append(
            {
                "b": base64.b64encode(bit_set).decode(),
                "c": group,
                "it": first.invisible_ms,
                "pt": first.popped_ms,
                "q": first.queue_id,
                "r": _mark(topic, first),
                "rq": first.revive_queue,
                "so": first.first_offset,
                "t": topic,
            }
        )
    return fastjson.dumps({"acks": acks, "brokerName": receipts[0].broker})
