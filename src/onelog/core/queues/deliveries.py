"""A message on its way to a consumer, and what a queue has to know of it.

A queue does not look into messages, but for three things: how many bytes a consumer gets, how long
it may lie there, and, when it is a dead letter, all of it.

    record body of AMQP's form   u8, exchange | u8, key | u32, properties | payload

See `record.forms.amqp`. What came by other protocols is as it was stored, or was converted.
"""

from typing import Final, NamedTuple

from onelog.core.routing.names import swapped
from onelog.record.forms import Form, amqp
from onelog.record.forms.amqp_fields import property_of

AMQP_FLAG, MQTT_FLAG = Form.AMQP.sys_flag, Form.MQTT.sys_flag
TOPIC_EXCHANGE = "amq.topic"
_EXPIRATION_BIT = 0x01
"""Of the high byte of a message's property flags."""

Delivery = tuple[int, int, bytes, int, int, int]
"""Place in the queue, how often it came back, record body, the form's flag, store time, payload.

A tuple that is made once per message, and no class: it is the one thing that every message costs.
"""
POSITION: Final = 0
TIMES: Final = 1
BODY: Final = 2
FORM: Final = 3
STORED_MS: Final = 4
SIZE: Final = 5


class Stretch(NamedTuple):
    """What was read of a queue, and the first offset that was not looked at."""

    found: list[Delivery]
    next_offset: int


def facts_of(body: bytes | memoryview, form: int) -> tuple[int, bool]:
    """How many bytes the payload has, and whether the message says itself when it expires."""
    if form != AMQP_FLAG:
        return len(body), False
    at = body[0] + 1
    at += body[at] + 1
    end = at + 4 + (body[at] << 24 | body[at + 1] << 16 | body[at + 2] << 8 | body[at + 3])
    return len(body) - end, bool(body[at + 4] & _EXPIRATION_BIT)


def expiration_ms(body: bytes, form: int) -> int | None:
    """How long a message may lie in a queue, as it says itself; None if it does not."""
    if not facts_of(body, form)[1]:
        return None
    stated = property_of(amqp.read(body).properties, "expiration")
    return (
        int(stated) if isinstance(stated, str) and stated.isascii() and stated.isdigit() else None
    )


def in_amqp_form(body: bytes | memoryview, form: int) -> bytes | memoryview:
    """A record's body for who speaks AMQP; MQTT's topics are keys of `amq.topic` to him."""
    if form != MQTT_FLAG:
        return body
    from onelog.record.forms import mqtt  # Few queues have such messages.

    content = amqp.content_from_neutral(mqtt.to_neutral(body))
    key = swapped(mqtt.read(body).topic.decode("utf-8", "replace"))
    return amqp.encode(TOPIC_EXCHANGE, key, content.properties, content.body)
