"""Messages as they are kept, in AMQP's form for STOMP's clients."""

from onelog.core.routing.names import swapped
from onelog.gateways.stomp.destinations import TOPIC_EXCHANGE
from onelog.record.forms import Form, amqp, mqtt
from onelog.record.forms.amqp import Content

_MQTT = Form.MQTT.sys_flag


def content_of(record: bytes | memoryview, form: int) -> Content:
    """Where a message was published to, its properties and its body."""
    if form != _MQTT:
        return amqp.read(record)
    content = amqp.content_from_neutral(mqtt.to_neutral(bytes(record)))
    key = swapped(mqtt.read(record).topic.decode("utf-8", "replace"))
    return content._replace(exchange=TOPIC_EXCHANGE, key=key)
