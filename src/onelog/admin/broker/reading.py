"""Reading messages for people: nothing is consumed, and nothing is left behind.

The newest come first. A filter looks at so many messages at most, and says how many it looked at;
whoever wants more goes on from there.

A message is also shown as clients of each protocol get it. Every view is made by the conversions
that the gateways use; nothing is shown that a client would not get. What belongs to one delivery
(tags, subscriptions, receipts) is left out.
"""

import asyncio
import json
import time
from collections.abc import Iterable
from itertools import islice
from typing import Any, Protocol

from onelog.admin.broker.call import Call
from onelog.admin.documents import clean, shown
from onelog.admin.topics import Encoding, Field, MessageQuery, View
from onelog.admin.topics import Protocol as ProtocolName
from onelog.core.cursors.fetch import Cursor, Limits
from onelog.core.cursors.forms import offset_in
from onelog.core.filters.tags import Subscription, subscribe
from onelog.core.routing.names import swapped
from onelog.errors import (
    FilterDisabledError,
    MessageNotFoundError,
    OffsetOutOfRangeError,
    OnelogError,
    WireError,
)
from onelog.gateways.http.messages import shown as as_json
from onelog.gateways.http.requests import called, looked_up
from onelog.gateways.stomp.headers import shown as stomp_headers
from onelog.gateways.stomp.headers import text_of
from onelog.message import KEYS, Message, QueueOffset, decode_properties, property_value
from onelog.record.decode import decode_messages
from onelog.record.dispatch import targets
from onelog.record.forms import Form, amqp, amqp_fields, form_of, mqtt
from onelog.record.forms.conversion import neutral_of, rocketmq_messages
from onelog.record.forms.neutral import Neutral
from onelog.wire.mqtt.packets import read_publish_properties
from onelog.wire.mqtt.properties import Property

WINDOW = 200
BYTES_MAX = 1 << 20
LOOKED_AT_MAX = 50_000
SECONDS_MAX = 5.0
TIME_MAX = (1 << 62) - 1
SAME_TIME_MAX = 1_000
"""Messages of one millisecond that still come on a page."""

Found = tuple[list[Message], int, int | None, int | None]
"""Messages, how many were looked at, and the offset or time to go on at."""


class Wanted(Protocol):
    """Which messages are looked for."""

    def wants(self, properties: bytes) -> bool:
        """Whether one with these properties is."""


class OfKey:
    """Those with a key."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._needle = key.encode("utf-8", "replace")

    def wants(self, properties: bytes) -> bool:
        """Whether one with these properties has it."""
        return (
            self._needle in properties
            and self._key in (property_value(properties, KEYS) or "").split()
        )


async def browse(call: Call, topic: str, query: MessageQuery) -> Found:
    """Messages of a topic, forth from an offset or back from a time."""
    wanted: Wanted | None = OfKey(query.key) if query.key else _subscription(call, topic, query)
    if query.offset is not None and query.queue is not None:
        return await _forth(call, topic, query, wanted)
    return await _back(call, topic, query, wanted)


def _subscription(call: Call, topic: str, query: MessageQuery) -> Subscription | None:
    if query.sql:
        if not call.broker.admin.config.property_filter:
            raise FilterDisabledError("SQL-92 filters are off: set broker.property_filter = true")
        return subscribe(topic, query.sql, "SQL92")
    return subscribe(topic, query.tag) if query.tag else None


async def _forth(call: Call, topic: str, query: MessageQuery, wanted: Wanted | None) -> Found:
    broker, queue = call.broker, query.queue
    assert queue is not None
    assert query.offset is not None
    end = broker.topics.max_offset(call.principal, topic, queue)
    at = max(query.offset, broker.topics.min_offset(call.principal, topic, queue))
    found: list[Message] = []
    began, first = time.monotonic(), at
    while at < end and len(found) < query.limit:
        window = min(WINDOW, query.limit if wanted is None else WINDOW)
        messages, at = await _read(call, topic, queue, at, window)
        for message in messages:
            if wanted is None or wanted.wants(message.properties):
                found.append(message)
                if len(found) == query.limit:
                    at = message.queue_offset + 1
                    break
        if at - first > LOOKED_AT_MAX or time.monotonic() - began > SECONDS_MAX:
            break
    return found, at - first, at if at < end else None, None


async def _back(call: Call, topic: str, query: MessageQuery, wanted: Wanted | None) -> Found:
    config = call.broker.topics.require(call.principal, topic)
    queues = range(config.queues) if query.queue is None else [query.queue]
    found: list[Message] = []
    looked_at = 0
    reached_ms = 0
    """Down to which time all queues were looked through."""
    until = time.monotonic() + SECONDS_MAX
    share = max(WINDOW, LOOKED_AT_MAX // max(1, len(queues)))
    for queue in queues:
        some, count, at_ms = await _queue_back(call, topic, queue, query, wanted, share, until)
        found += some
        looked_at += count
        reached_ms = max(reached_ms, at_ms)
    found.sort(key=lambda message: (-message.store_ms, -message.log_offset))
    found = [message for message in found if message.store_ms >= reached_ms]
    page = found[: query.limit]
    while len(page) < min(len(found), SAME_TIME_MAX):
        if found[len(page)].store_ms != page[-1].store_ms:
            break
        page.append(found[len(page)])
    has_more = len(page) < len(found) or reached_ms > 0
    following = (page[-1].store_ms if page else reached_ms) if has_more else None
    return page, looked_at, None, following


async def _queue_back(
    call: Call,
    topic: str,
    queue: int,
    query: MessageQuery,
    wanted: Wanted | None,
    share: int,
    until: float,
) -> tuple[list[Message], int, int]:
    """The newest of one queue; the time is 0 if it was looked through, else where that ended."""
    begin, end = await _stretch(call, topic, queue, query)
    found: list[Message] = []
    at = end
    window = min(WINDOW, query.limit if wanted is None else WINDOW)
    while at > begin:
        start = max(begin, at - window)
        messages, offset = [], start
        while offset < at:
            some, offset = await _read(call, topic, queue, offset, at - offset)
            messages += [message for message in some if message.queue_offset < at]
        at = start
        matching = [each for each in messages if wanted is None or wanted.wants(each.properties)]
        found = matching + found
        if len(found) >= query.limit or end - at >= share or time.monotonic() > until:
            break
        await asyncio.sleep(0)
    if at <= begin:
        return found, end - at, 0
    reached = found[0].store_ms if len(found) >= query.limit else 0
    if not reached and messages:
        reached = messages[0].store_ms
    return found, end - at, reached


async def _stretch(call: Call, topic: str, queue: int, query: MessageQuery) -> tuple[int, int]:
    """From where to where the times are that are asked for."""
    broker, principal = call.broker, call.principal
    begin, end = (
        broker.topics.min_offset(principal, topic, queue),
        broker.topics.max_offset(principal, topic, queue),
    )
    if query.from_ms is None and query.to_ms is None:
        return begin, end

    def find() -> tuple[int, int]:
        first, last = begin, end
        if query.from_ms is not None:
            first = max(begin, broker.topics.offset_by_time(principal, topic, queue, query.from_ms))
        if query.to_ms is not None:
            last = min(end, broker.topics.offset_by_time(principal, topic, queue, query.to_ms))
        return first, last

    return await looked_up(call.context, find)


async def _read(
    call: Call, topic: str, queue: int, offset: int, count: int
) -> tuple[list[Message], int]:
    """Some messages from an offset on, and where the next is."""
    cursor = Cursor(None, topic, queue, offset)
    limits = Limits(count, BYTES_MAX, BYTES_MAX, 1, True)
    _, results = await called(
        lambda done: call.broker.cursors.fetch(call.principal, [cursor], limits, 0, done)
    )
    result = results[0]
    if isinstance(result, OnelogError):
        raise result
    messages = [
        _with_address(topic, queue, message)
        for view in result.slices
        for message in decode_messages(view)
    ]
    return messages, max(result.next_offset, offset + 1)


def _with_address(topic: str, queue: int, message: Message) -> Message:
    """The message as one of the queue that it was read from, which may not be its own."""
    message = message._replace(body=memoryview(bytes(message.body)))
    if message.topic == topic:
        return message
    offset = QueueOffset(offset_in(topic, queue, message))
    return message._replace(topic=topic, queue_id=queue, queue_offset=offset)


async def by_key(call: Call, topic: str, query: MessageQuery) -> list[Message]:
    """Messages with a key or unique key, newest first."""
    key, broker = query.key, call.broker

    def find() -> list[Message]:
        records = broker.topics.find_by_key(
            call.principal, topic, key, query.from_ms or 0, query.to_ms or TIME_MAX, query.limit
        )
        return [
            message
            for record in records
            for message in islice(
                (
                    each
                    for each in rocketmq_messages(record)
                    if key in each.keys or key == each.unique_key
                ),
                query.limit,
            )
        ]

    found = await looked_up(call.context, find)
    found.sort(key=lambda message: (-message.store_ms, -message.log_offset))
    return found


async def by_id(
    call: Call, message_id: str, offset: int | None = None, topic: str = ""
) -> tuple[Message, Message]:
    """The record with an id, and the message in it; of several, the one with a queue offset.

    A record may be in several topics: it is shown as one of the topic that is named, if it is.
    """
    broker = call.broker

    def find() -> tuple[Message, Message]:
        try:
            record = broker.topics.message_by_id(call.principal, message_id)
        except (ValueError, OffsetOutOfRangeError):
            raise MessageNotFoundError(f"no message has the id {message_id!r:.80}") from None
        for each in targets(record) if topic not in ("", record.topic) else ():
            if each.topic == topic:
                offset_there = QueueOffset(each.queue_offset)
                record = record._replace(
                    topic=topic, queue_id=each.queue_id, queue_offset=offset_there
                )
        try:
            first = next(rocketmq_messages(record), record)
            wanted = (each for each in rocketmq_messages(record) if each.queue_offset == offset)
            return record, first if offset is None else next(wanted, first)
        except WireError:
            return record, record

    return await looked_up(call.context, find)


VALUE_CHARACTERS_MAX = 4_096
_AMQ_TOPIC = "amq.topic"


def form_name(record: Message) -> ProtocolName:
    """In which form a record is stored."""
    names: dict[int, ProtocolName] = {Form.KAFKA: "kafka", Form.AMQP: "amqp", Form.MQTT: "mqtt"}
    return names.get(form_of(record.sys_flag), "rocketmq")


def views(message: Message) -> list[View]:
    """A message of RocketMQ's form, as each protocol has it."""
    neutral = neutral_of(message)
    made: tuple[tuple[ProtocolName, Iterable[tuple[str, Any]]], ...] = (
        ("rocketmq", _rocketmq(message)),
        ("kafka", _kafka(message, neutral)),
        ("amqp", _amqp(message, neutral)),
        ("stomp", _stomp(message, neutral)),
        ("mqtt", _mqtt(message, neutral)),
        ("http", _http(message)),
    )
    return [View(name, [_field(*each) for each in fields]) for name, fields in made]


def _field(name: str, value: Any) -> Field:
    encoding: Encoding = "text"
    if isinstance(value, bytes):
        value, encoding = shown(value)
    elif value is not None and not isinstance(value, str):
        value = text_of(value)
    return Field(clean(name), clean(value[:VALUE_CHARACTERS_MAX] if value else value), encoding)


def _rocketmq(message: Message) -> Iterable[tuple[str, Any]]:
    yield "topic", message.topic
    yield "queueId", message.queue_id
    yield "queueOffset", message.queue_offset
    yield "msgId", message.message_id
    yield "bornTimestamp", message.born_ms
    yield "reconsumeTimes", message.reconsume_times
    yield from decode_properties(message.properties).items()


def _kafka(message: Message, neutral: Neutral) -> Iterable[tuple[str, Any]]:
    yield "topic", message.topic
    yield "partition", message.queue_id
    yield "offset", message.queue_offset
    yield "timestamp", neutral.time_ms
    yield "key", neutral.key
    yield "value", None if neutral.body is None else f"{len(neutral.body)} B"
    for name, value in neutral.headers:
        yield f"header {name}", value


def _content(message: Message, neutral: Neutral) -> amqp.Content:
    return amqp.read(amqp.from_neutral(neutral, key=message.topic))


def _amqp(message: Message, neutral: Neutral) -> Iterable[tuple[str, Any]]:
    content = _content(message, neutral)
    yield "exchange", content.exchange
    yield "routing key", content.key
    yield "body", f"{len(content.body)} B"
    for name, value in amqp_fields.decode_properties(content.properties).items():
        if name == "headers":
            for header, each in value.items():
                yield f"header {header}", each if isinstance(each, bytes) else text_of(each)
        else:
            yield name, value


def _stomp(message: Message, neutral: Neutral) -> Iterable[tuple[str, Any]]:
    content = _content(message, neutral)
    if content.exchange == _AMQ_TOPIC:
        yield "destination", f"/topic/{content.key}"
    elif content.exchange:
        yield "destination", f"/exchange/{content.exchange}/{content.key}"
    else:
        yield "destination", f"/queue/{message.topic}"
    yield "content-length", len(content.body)
    yield from stomp_headers(content.properties)


def _mqtt(message: Message, neutral: Neutral) -> Iterable[tuple[str, Any]]:
    content = mqtt.read(mqtt.from_neutral(neutral))
    yield "topic", content.topic or swapped(_content(message, neutral).key)
    yield "payload", f"{len(content.payload)} B"
    for number, value in read_publish_properties(content.properties).items():
        if number == Property.USER_PROPERTY:
            for name, text in value:
                yield f"user property {name}", text
        else:
            yield Property(number).name.lower().replace("_", " "), value


def _http(message: Message) -> Iterable[tuple[str, Any]]:
    found = as_json(message.topic, message.queue_id, message.queue_offset, message)
    for name, value in found.items():
        if name.startswith("body"):
            yield name, f"{len(value or '')} characters"
        else:
            yield name, value if isinstance(value, str) else json.dumps(value)
