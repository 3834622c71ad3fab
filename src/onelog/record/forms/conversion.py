"""Stored records of one form in another, for readers of that.

As messages of RocketMQ's form:
A record of another form may hold many messages. Each of them gets the record's place in the log,
store time and hosts, and a queue offset, a born time, a body and properties of its own. If it has
no UNIQ_KEY it gets one, the record's message id and its number: the place alone would not tell it
from its neighbours.

As a batch of Kafka's form: bodies are unpacked, which RocketMQ's consumers do for themselves.

Invariant: a message of RocketMQ's form comes out as it is; what cannot be read raises `WireError`.
"""

from collections.abc import Sequence

from onelog.errors import CompressionError, WireError
from onelog.message import UNIQUE_KEY, Message, QueueOffset, SysFlag, property_bytes
from onelog.record.compression import unpacked_body
from onelog.record.forms import FORM_MASK, Form, form_of, kafka, rocketmq
from onelog.record.forms.neutral import Neutral

_LEFT = ~int(FORM_MASK | SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED | 0x700)
"""What stays of a sysFlag: the hosts, and what became of a transaction."""
_UNIQUE_NEEDLE = UNIQUE_KEY.encode() + b"\x01"


def in_rocketmq_form(record: Message) -> list[Message]:
    """The messages in a record; of one that says how a transaction ended there are none."""
    if form_of(record.sys_flag) != Form.KAFKA:
        return [record]
    try:
        inner = kafka.records(record.body)
    except WireError as error:
        raise WireError(f"the record at log offset {record.log_offset}: {error}") from None
    messages = []
    record_id = record.message_id.encode()
    for offset_delta, neutral in inner:
        body, properties = rocketmq.from_neutral(neutral)
        if property_bytes(properties, _UNIQUE_NEEDLE) is None:
            properties += b"%b%b-%d\x02" % (_UNIQUE_NEEDLE, record_id, offset_delta)
        messages.append(
            record._replace(
                queue_offset=QueueOffset(record.queue_offset + offset_delta),
                body=memoryview(body),
                properties=properties,
                born_ms=neutral.time_ms,
                sys_flag=record.sys_flag & _LEFT,
            )
        )
    return messages


def in_kafka_form(messages: Sequence[Message], first_offset: int) -> bytes:
    """One batch of messages of RocketMQ's form, which have offsets one after the other."""
    return kafka.from_neutral([neutral_of(message) for message in messages], first_offset)


def neutral_of(message: Message) -> Neutral:
    """A message of RocketMQ's form, in no system's form."""
    try:
        body = unpacked_body(message)
    except CompressionError:
        body = bytes(message.body)  # Its reader has to see what it makes of that.
    return rocketmq.to_neutral(body, message.properties, message.born_ms)
