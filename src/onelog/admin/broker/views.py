"""The same message as clients of each protocol get it.

Every view is made by the conversions that the gateways use; nothing is shown that a client would
not get. What belongs to one delivery (tags, subscriptions, receipts) is left out.
"""

import json
from collections.abc import Iterable
from typing import Any

from onelog.admin.documents import clean, shown
from onelog.admin.topics import Encoding, Field, Protocol, View
from onelog.core.routing.names import swapped
from onelog.gateways.http.messages import shown as as_json
from onelog.gateways.stomp.headers import shown as stomp_headers
from onelog.gateways.stomp.headers import text_of
from onelog.message import Message, decode_properties
from onelog.record.forms import Form, amqp, amqp_fields, form_of, mqtt
from onelog.record.forms.conversion import neutral_of
from onelog.record.forms.neutral import Neutral
from onelog.wire.mqtt.packets import read_publish_properties
from onelog.wire.mqtt.properties import Property

VALUE_CHARACTERS_MAX = 4_096
_AMQ_TOPIC = "amq.topic"


def form_name(record: Message) -> Protocol:
    """In which form a record is stored."""
    names: dict[int, Protocol] = {Form.KAFKA: "kafka", Form.AMQP: "amqp", Form.MQTT: "mqtt"}
    return names.get(form_of(record.sys_flag), "rocketmq")


def views(message: Message) -> list[View]:
    """A message of RocketMQ's form, as each protocol has it."""
    neutral = neutral_of(message)
    made: tuple[tuple[Protocol, Iterable[tuple[str, Any]]], ...] = (
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
