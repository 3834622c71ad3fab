"""Stored records of one form in another, for readers of that.

As messages of RocketMQ's form:
A record of another form may hold many messages. Each of them gets the record's place in the log,
store time and hosts, and a queue offset, a born time, a body and properties of its own. If it has
no UNIQ_KEY it gets one, the record's message id and its number: the place alone would not tell it
from its neighbours.

As a batch of Kafka's form, or as AMQP's: bodies are unpacked, which RocketMQ's consumers do for
themselves.

Invariant: a message of the form that is asked for comes out as it is; a record of which nothing can
be read raises `WireError`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from onelog.errors import CompressionError, WireError
from onelog.message import UNIQUE_KEY, Message, QueueOffset, SysFlag, property_bytes
from onelog.record.compression import unpacked_body
from onelog.record.forms import FORM_MASK, Form, amqp, form_of, kafka, mqtt, rocketmq
from onelog.record.forms.neutral import Neutral, sane_ms
from onelog.record.forms.unpacked import unpack_record
from onelog.record.inner_batch import unwrapped

_LEFT = ~int(FORM_MASK | SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED | 0x700)
"""What stays of a sysFlag: the hosts, and what became of a transaction."""
_UNIQUE_NEEDLE = UNIQUE_KEY.encode() + b"\x01"
_INNER_BATCH = int(SysFlag.INNER_BATCH)


def _of_rocketmq(record: Message) -> Iterator[tuple[int, Neutral]]:
    messages = unwrapped([record]) if record.sys_flag & _INNER_BATCH else [record]
    yield from enumerate(map(_plain, messages))


def _plain(message: Message) -> Neutral:
    try:
        body = unpacked_body(message)
    except CompressionError:
        body = bytes(message.body)  # Its reader has to see what it makes of that.
    return rocketmq.to_neutral(body, message.properties, message.born_ms)


def _of_kafka(record: Message) -> Iterator[tuple[int, Neutral]]:
    unpacked = unpack_record(record)
    for number in unpacked.runs_from(0):
        yield from unpacked.run(number)[0]


def _of_amqp(record: Message) -> Iterator[tuple[int, Neutral]]:
    yield 0, amqp.to_neutral(record.body, record.born_ms)


def _of_mqtt(record: Message) -> Iterator[tuple[int, Neutral]]:
    yield 0, mqtt.to_neutral(record.body)


_NEUTRAL: dict[int, Callable[[Message], Iterator[tuple[int, Neutral]]]] = {
    Form.ROCKETMQ: _of_rocketmq,
    Form.KAFKA: _of_kafka,
    Form.AMQP: _of_amqp,
    Form.MQTT: _of_mqtt,
}


def neutrals(record: Message) -> Iterator[tuple[int, Neutral]]:
    """The messages in a record, and how far each is behind the record's own offset.

    Those of a batch that cannot be read are left out; `WireError` if that is all of them.
    """
    read = _NEUTRAL.get(form_of(record.sys_flag))
    if read is None:
        raise WireError(
            f"the record at log offset {record.log_offset} has form {form_of(record.sys_flag)},"
            " which this version does not know"
        )
    try:
        yield from read(record)
    except WireError as error:
        raise WireError(f"the record at log offset {record.log_offset}: {error}") from None


def in_rocketmq_form(record: Message) -> list[Message]:
    """The messages in a record; of one that says how a transaction ended there are none."""
    return [*rocketmq_messages(record)]


def rocketmq_messages(record: Message) -> Iterator[Message]:
    """The same, one by one, for who does not want all of them."""
    if form_of(record.sys_flag) not in _NEUTRAL or not record.sys_flag & FORM_MASK:
        yield record
    else:
        yield from as_rocketmq(record, neutrals(record))


def as_rocketmq(record: Message, messages: Iterable[tuple[int, Neutral]]) -> Iterator[Message]:
    """Messages that were found in a record, in RocketMQ's form."""
    record_id = record.message_id.encode()
    for offset_delta, neutral in messages:
        body, properties = rocketmq.from_neutral(neutral)
        if property_bytes(properties, _UNIQUE_NEEDLE) is None:
            properties += b"%b%b-%d\x02" % (_UNIQUE_NEEDLE, record_id, offset_delta)
        yield record._replace(
            queue_offset=QueueOffset(record.queue_offset + offset_delta),
            body=memoryview(body),
            properties=properties,
            born_ms=sane_ms(neutral.time_ms),
            sys_flag=record.sys_flag & _LEFT,
        )


def in_kafka_form(messages: Sequence[Message], first_offset: int) -> bytes:
    """One batch of messages, none of them Kafka's, which have offsets one after the other."""
    return kafka.from_neutral([neutral_of(message) for message in messages], first_offset)


def neutral_of(message: Message) -> Neutral:
    """A message, of any form but Kafka's, in no system's form."""
    if not message.sys_flag & FORM_MASK:
        return _plain(message)
    try:
        return next(neutrals(message))[1]
    except WireError:
        return _plain(message)


def in_amqp_form(record: Message, queue: str) -> list[tuple[int, bytes]]:
    """The bodies of records of AMQP's form, and how far each is behind the record's own offset.

    Messages that were not published to an exchange are as if published to the queue by its name.
    """
    if form_of(record.sys_flag) == Form.AMQP:
        return [(0, bytes(record.body))]
    return [(delta, amqp.from_neutral(neutral, key=queue)) for delta, neutral in neutrals(record)]
