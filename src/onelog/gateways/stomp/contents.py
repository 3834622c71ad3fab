"""Messages as they are kept, in AMQP's form for STOMP's clients."""

from onelog.errors import WireError
from onelog.message import Buffer
from onelog.record.forms import Form, amqp, mqtt
from onelog.record.forms.amqp import Content
from onelog.record.forms.amqp_fields import NO_PROPERTIES, decode_properties


def content_of(record: Buffer, form: int) -> Content:
    """Where a message was published to, its properties and its body.

    What a sender wrote that nobody can read comes without properties.
    """
    if form == Form.MQTT.sys_flag:
        return amqp.content_from_neutral(mqtt.to_neutral(record))
    content = amqp.read(record)
    try:
        decode_properties(content.properties)
    except WireError:
        return content._replace(properties=NO_PROPERTIES)
    return content
