"""Receipts of POP: texts that a broker hands out, and a client brings back to acknowledge.

An answer tells, per queue, where its messages are; entries are joined by semicolons:

    startOffsetInfo   <retry> <queue id> <first offset>
    msgOffsetInfo     <retry> <queue id> <offset>,<offset>,...
    orderCountInfo    <retry> qo<queue id>%<offset> <times>   and   <retry> <queue id> <times>

From that a client makes one receipt per message (its property POP_CK):

    <first offset> <pop time> <invisible time> <revive queue> <retry> <broker> <queue id> [<offset>]

`retry` is 0 for the topic itself, 1 for %RETRY%group_topic, 2 for %RETRY%group+topic. A batch of
acknowledgements names its messages by a bit set over the first offset, in base64.

Invariant: `parse_receipt` gives what a client built from our answer, or raises
`InvalidReceiptError`; `decode_batch` gives whole acknowledgements, or raises `WireError`.
"""

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from onelog.errors import InvalidReceiptError, WireError
from onelog.names import RETRY_PREFIX, fitting
from onelog.wire.remoting import fastjson
from onelog.wire.remoting.command import Buffer
from onelog.wire.remoting.fields import INT32_MAX, INT64_MAX

ORDERED_QUEUE = 999
"""The revive queue in receipts of ordered messages."""
BATCH_MAX = 65_536
"""Messages that one request may acknowledge."""
_NAMES = {
    "c": "consumerGroup", "t": "topic", "r": "retry", "so": "startOffset", "q": "queueId",
    "rq": "reviveQueueId", "pt": "popTime", "it": "invisibleTime", "b": "bitSet",
}  # fmt: skip
"""The members of an acknowledgement in a batch: as 5.x writes them, and the long names it reads."""

_decode_any = msgspec.json.Decoder().decode


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
    if tokens[4] not in ("0", "1", "2"):
        raise InvalidReceiptError(f"a receipt has no retry mark {tokens[4][:20]!r}")
    return Receipt(
        _number(tokens[0], INT64_MAX),
        _number(tokens[1], INT64_MAX),
        _number(tokens[2], INT64_MAX),
        _number(tokens[3], INT32_MAX),
        tokens[4],
        tokens[5],
        _number(tokens[6], INT32_MAX),
        _number(tokens[7], INT64_MAX) if len(tokens) > 7 else None,
    )


def _number(token: str, most: int) -> int:
    if token.isascii() and token.isdigit() and len(token) < 20 and int(token) <= most:
        return int(token)
    raise InvalidReceiptError(f"a receipt has a number where {token[:20]!r} is")


def decode_batch(body: Buffer) -> list[BatchAck]:
    """The body of BATCH_ACK_MESSAGE."""
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
        ack = _batch_ack({short: entry.get(short, entry.get(long)) for short, long in
                          _NAMES.items()})  # fmt: skip
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
