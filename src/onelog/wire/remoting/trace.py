"""Message traces: what RocketMQ's clients write to RMQ_SYS_TRACE_TOPIC about their messages.

The body of such a message is text in UTF-8: records, each ended by 0x02, of fields with 0x01 in
between, the first of which names the kind. Its KEYS are the ids and keys of the traced messages.

    Pub             time region group topic id tags keys storeHost bodyBytes costMs type
                    [offsetId] success [clientHost]
    SubBefore       time region group requestId id retryTimes keys [clientHost]
    SubAfter        requestId id costMs success keys [outcome [time group]]
    EndTransaction  time region group topic id tags keys storeHost type transactionId state
                    fromCheck
    Recall          time region group topic id success

What is in brackets depends on the client: up to 4.3 Pub has no offsetId, up to 4.7 SubAfter has
neither time nor group (nor has a client of the CLOUD channel, in any version), and only 4.8 writes
clientHost. EndTransaction came with 4.9, Recall with 5.3. A text that the client does not have is
written as "null", which is why a tag of that name cannot be told from none.

Invariants: `decode_trace(encode_trace(records)) == records`; bytes that are no trace raise
`WireError`; records of a kind that is not known here are left out, as RocketMQ leaves them out.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn

from onelog.errors import WireError
from onelog.wire.remoting.command import Buffer

"""Where clients write their traces unless they are told another topic."""

_FIELD_END = "\x01"
_RECORD_END = "\x02"
_NONE = "null"
_DIGITS_MAX = 19


class MessageKind(IntEnum):
    """What sort of message a producer sent (RocketMQ: MessageType, by its ordinal)."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class Outcome(IntEnum):
    """How a consumer's listener ended (RocketMQ: ConsumeReturnType, by its ordinal)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class Published:
    """Pub: a producer sent a message. `time_ms` is when it began to, `cost_ms` how long it took."""

    time_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    body_bytes: int
    cost_ms: int
    kind: int
    offset_id: str
    success: bool
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class Delivered:
    """SubBefore: a consumer is about to hand a message to its listener."""

    time_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class Consumed:
    """SubAfter: the listener is done. `request_id` is that of the delivery it belongs to.

    `cost_ms` is the time of the whole batch, divided by its messages. Without `time_ms` (0) and
    `group`, which not every client writes, the delivery tells them.
    """

    request_id: str
    message_id: str
    cost_ms: int
    success: bool
    keys: str
    outcome: int = 0
    time_ms: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """EndTransaction: a producer committed, rolled back, or does not know."""

    time_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    kind: int
    transaction_id: str
    state: str
    from_check: bool


@dataclass(frozen=True, slots=True)
class Recalled:
    """Recall: a producer took a message back before it was due."""

    time_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    success: bool


TraceRecord = Published | Delivered | Consumed | TransactionEnded | Recalled


def decode_trace(body: Buffer) -> list[TraceRecord]:
    """The records in the body of a trace message."""
    try:
        text = bytes(body).decode()
    except UnicodeDecodeError:
        raise WireError("the trace is not UTF-8") from None
    records: list[TraceRecord] = []
    for part in text.split(_RECORD_END):
        name, _, rest = part.partition(_FIELD_END)
        decode = _DECODERS.get(name)
        if decode is not None:
            records.append(decode(_Fields(name, rest.split(_FIELD_END))))
    return records


def encode_trace(records: Iterable[TraceRecord]) -> bytes:
    """The body of a trace message, as clients from 4.9 on write it.

    A `client_host`, or a `Consumed` without time and group, gives the form of older ones.
    """
    return "".join(
        _FIELD_END.join(map(_text, _fields_of(record))) + _RECORD_END for record in records
    ).encode()


def trace_keys(records: Iterable[TraceRecord]) -> list[str]:
    """The KEYS of a trace message: ids and keys of the messages that it is about, each once."""
    found: dict[str, None] = {}
    for record in records:
        found[record.message_id] = None
        if not isinstance(record, Recalled):
            found.update(dict.fromkeys(record.keys.split()))
    return list(found)


class _Fields:
    """The fields of one record, taken one after the other."""

    def __init__(self, kind: str, values: list[str]) -> None:
        self._kind = kind
        self._values = values
        self._at = 0

    @property
    def left(self) -> int:
        """How many there are yet; one empty field at the end is no field, as in Java."""
        left = len(self._values) - self._at
        return left - 1 if left and not self._values[-1] else left

    def text(self) -> str:
        value = self._take()
        return "" if value == _NONE else value

    def number(self) -> int:
        value = self._take()
        digits = value.removeprefix("-")
        if not (digits.isdecimal() and digits.isascii() and len(digits) <= _DIGITS_MAX):
            self._fail(f"{value[:40]!r} is not a number")
        return int(value)

    def flag(self) -> bool:
        return self._take().lower() == "true"

    def _take(self) -> str:
        if self._at >= len(self._values):
            self._fail(f"it ends after {len(self._values)} fields")
        self._at += 1
        return self._values[self._at - 1]

    def _fail(self, what: str) -> NoReturn:
        raise WireError(f"no {self._kind} record of a trace: {what}")


def _published(fields: _Fields) -> Published:
    time_ms, region, group, topic = fields.number(), fields.text(), fields.text(), fields.text()
    message_id, tags, keys, host = fields.text(), fields.text(), fields.text(), fields.text()
    body_bytes, cost_ms, kind = fields.number(), fields.number(), fields.number()
    offset_id = fields.text() if fields.left >= 2 else ""
    return Published(
        time_ms, region, group, topic, message_id, tags, keys, host, body_bytes, cost_ms, kind,
        offset_id, fields.flag(), fields.text() if fields.left else "",
    )  # fmt: skip


def _delivered(fields: _Fields) -> Delivered:
    return Delivered(
        fields.number(),
        fields.text(),
        fields.text(),
        fields.text(),
        fields.text(),
        fields.number(),
        fields.text(),
        fields.text() if fields.left else "",
    )


def _consumed(fields: _Fields) -> Consumed:
    return Consumed(
        fields.text(),
        fields.text(),
        fields.number(),
        fields.flag(),
        fields.text(),
        fields.number() if fields.left else 0,
        fields.number() if fields.left else 0,
        fields.text() if fields.left else "",
    )


def _transaction_ended(fields: _Fields) -> TransactionEnded:
    return TransactionEnded(
        fields.number(),
        fields.text(),
        fields.text(),
        fields.text(),
        fields.text(),
        fields.text(),
        fields.text(),
        fields.text(),
        fields.number(),
        fields.text(),
        fields.text(),
        fields.flag(),
    )


def _recalled(fields: _Fields) -> Recalled:
    return Recalled(
        fields.number(),
        fields.text(),
        fields.text(),
        fields.text(),
        fields.text(),
        fields.flag(),
    )


_DECODERS: dict[str, Callable[[_Fields], TraceRecord]] = {
    "Pub": _published,
    "SubBefore": _delivered,
    "SubAfter": _consumed,
    "EndTransaction": _transaction_ended,
    "Recall": _recalled,
}

_Value = str | int | bool


def _fields_of(record: TraceRecord) -> list[_Value]:
    match record:
        case Published() as sent:
            return [
                "Pub", sent.time_ms, sent.region, sent.group, sent.topic, sent.message_id,
                sent.tags, sent.keys, sent.store_host, sent.body_bytes, sent.cost_ms, sent.kind,
                sent.offset_id, sent.success, *_given(sent.client_host),
            ]  # fmt: skip
        case Delivered() as given:
            return [
                "SubBefore", given.time_ms, given.region, given.group, given.request_id,
                given.message_id, given.retry_times, given.keys, *_given(given.client_host),
            ]  # fmt: skip
        case Consumed() as done:
            dated: list[_Value] = [done.time_ms, done.group] if done.time_ms or done.group else []
            return [
                "SubAfter", done.request_id, done.message_id, done.cost_ms, done.success,
                done.keys, done.outcome, *dated,
            ]  # fmt: skip
        case TransactionEnded() as ended:
            return [
                "EndTransaction", ended.time_ms, ended.region, ended.group, ended.topic,
                ended.message_id, ended.tags, ended.keys, ended.store_host, ended.kind,
                ended.transaction_id, ended.state, ended.from_check,
            ]  # fmt: skip
        case Recalled() as back:
            return [
                "Recall", back.time_ms, back.region, back.group, back.topic, back.message_id,
                back.success,
            ]  # fmt: skip


def _given(text: str) -> list[_Value]:
    return [text] if text else []


def _text(value: _Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) or _NONE
