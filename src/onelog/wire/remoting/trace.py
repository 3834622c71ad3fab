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
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from operator import attrgetter

from onelog.errors import WireError
from onelog.message import Buffer

_FIELD_END = "\x01"
_RECORD_END = "\x02"
_NONE = "null"
_DIGITS_MAX = 19
_OFFSET_ID_AT = 11
"""Where the field is that the oldest clients do not write though others follow it."""


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
class _Dated:
    time_ms: int
    region: str
    group: str


@dataclass(frozen=True, slots=True)
class _ByProducer(_Dated):
    topic: str
    message_id: str


@dataclass(frozen=True, slots=True)
class _OfMessage(_ByProducer):
    tags: str
    keys: str
    store_host: str


@dataclass(frozen=True, slots=True)
class Published(_OfMessage):
    """Pub: a producer sent a message. `time_ms` is when it began to, `cost_ms` how long it took."""

    body_bytes: int
    cost_ms: int
    kind: int
    offset_id: str
    success: bool
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class TransactionEnded(_OfMessage):
    """EndTransaction: a producer committed, rolled back, or does not know."""

    kind: int
    transaction_id: str
    state: str
    from_check: bool


@dataclass(frozen=True, slots=True)
class Recalled(_ByProducer):
    """Recall: a producer took a message back before it was due."""

    success: bool


@dataclass(frozen=True, slots=True)
class Delivered(_Dated):
    """SubBefore: a consumer is about to hand a message to its listener."""

    request_id: str
    """Of this delivery; `Consumed` names it again."""
    message_id: str
    retry_times: int
    keys: str
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class Consumed:
    """SubAfter: the listener is done.

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


TraceRecord = Published | Delivered | Consumed | TransactionEnded | Recalled


def _text(value: str) -> str:
    return "" if value == _NONE else value


def _number(value: str) -> int:
    digits = value.removeprefix("-")
    if not (digits.isdecimal() and digits.isascii() and len(digits) <= _DIGITS_MAX):
        raise WireError(f"{value[:40]!r} is not a number")
    return int(value)


def _flag(value: str) -> bool:
    return value.lower() == "true"


class _Form:
    """How records of one kind are written: the fields of their class, in order.

    Those with a default may be missing at the end. `least` of them are always written.
    """

    def __init__(self, name: str, kind: Callable[..., TraceRecord], least: int) -> None:
        declared = fields(kind)  # type: ignore[arg-type]
        self._kind = kind
        self._name = name
        self._least = least
        self._values = attrgetter(*(each.name for each in declared))
        reads: dict[object, Callable[[str], object]] = {str: _text, int: _number, bool: _flag}
        self._reads = [(reads[each.type], each.default is not MISSING) for each in declared]

    def decode(self, values: list[str]) -> TraceRecord:
        # One empty field at the end is no field, as in Java.
        count = len(values) - (not values[-1])
        if self._kind is Published and count < self._least:
            values.insert(_OFFSET_ID_AT, "")
            count += 1
        found = []
        try:
            for at, (read, has_default) in enumerate(self._reads):
                if has_default and at >= count:
                    break
                if at >= len(values):
                    raise WireError(f"it ends after {len(values)} fields")
                found.append(read(values[at]))
        except WireError as error:
            raise WireError(f"no {self._name} record of a trace: {error}") from None
        return self._kind(*found)

    def encode(self, record: TraceRecord) -> str:
        values = list(self._values(record))
        while len(values) > self._least and not values[-1]:
            values.pop()
        return _FIELD_END.join([self._name, *map(_written, values)]) + _RECORD_END


def _written(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) or _NONE


_FORMS = {
    Published: _Form("Pub", Published, 13),
    Delivered: _Form("SubBefore", Delivered, 7),
    Consumed: _Form("SubAfter", Consumed, 6),
    TransactionEnded: _Form("EndTransaction", TransactionEnded, 12),
    Recalled: _Form("Recall", Recalled, 6),
}
_BY_NAME = {form._name: form for form in _FORMS.values()}


def decode_trace(body: Buffer) -> list[TraceRecord]:
    """The records in the body of a trace message."""
    try:
        text = bytes(body).decode()
    except UnicodeDecodeError:
        raise WireError("the trace is not UTF-8") from None
    parts = (part.partition(_FIELD_END) for part in text.split(_RECORD_END))
    return [
        _BY_NAME[name].decode(rest.split(_FIELD_END)) for name, _, rest in parts if name in _BY_NAME
    ]


def encode_trace(records: Iterable[TraceRecord]) -> bytes:
    """The body of a trace message, as clients from 4.9 on write it.

    A `client_host`, or a `Consumed` without time and group, gives the form of older ones.
    """
    return "".join([_FORMS[type(record)].encode(record) for record in records]).encode()


def trace_keys(records: Iterable[TraceRecord]) -> list[str]:
    """The KEYS of a trace message: ids and keys of the messages that it is about, each once."""
    found: dict[str, None] = {}
    for record in records:
        found[record.message_id] = None
        if not isinstance(record, Recalled):
            found.update(dict.fromkeys(record.keys.split()))
    return list(found)
