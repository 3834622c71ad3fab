"""Bindings between MQTT's topics and OneLog's, as `onelog bind` makes them."""

from onelog.core.routing.mqtt_forwarding import EXCHANGE
from onelog.core.routing.names import DEFAULT_VHOST, swapped
from onelog.errors import InvalidRequestError
from onelog.gateways.remoting.names import create_topic
from onelog.gateways.remoting.session import BrokerSession, Handler, Success
from onelog.rocketmq.names import DEFAULT_TOPIC
from onelog.wire.remoting import fields
from onelog.wire.remoting.bindings import BindingList, TopicBinding
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command

_QUEUES = 4
"""Of a topic that is made for a binding."""


def change(session: BrokerSession, command: Command) -> Success:
    ext, broker, principal = command.ext, session.broker, session.principal
    topic, wanted = fields.text(ext, "topic"), fields.text(ext, "filter")
    back, remove = fields.flag(ext, "back"), fields.flag(ext, "remove")
    key = swapped(wanted)
    if not wanted or (back and ("+" in wanted or "#" in wanted)):
        raise InvalidRequestError(f"{wanted!r} is no topic that messages can be published to")
    if not remove:
        create_topic(broker, principal, topic, DEFAULT_TOPIC, _QUEUES)
    if back and remove:
        broker.topics.mqtt_forwarding.remove(principal, topic)
    elif back:
        broker.topics.mqtt_forwarding.add(principal, topic, key)
    elif remove:
        broker.publish.routing.unbind(principal, DEFAULT_VHOST, EXCHANGE, "topic", topic, key)
    else:
        broker.publish.routing.bind(principal, DEFAULT_VHOST, EXCHANGE, "topic", topic, key)
    return Success()


def listed(session: BrokerSession, command: Command) -> Success:
    broker, principal = session.broker, session.principal
    found = [
        TopicBinding(filter=swapped(each.key), topic=each.destination)
        for each in broker.publish.routing.bindings(principal, DEFAULT_VHOST, EXCHANGE)
        if each.kind == "topic"
    ]
    found += [
        TopicBinding(back=True, filter=swapped(key), topic=topic)
        for topic, key in broker.topics.mqtt_forwarding.all(principal).items()
    ]
    return Success(body=BindingList(bindings=found).encode())


HANDLERS: dict[int, Handler] = {
    RequestCode.CHANGE_BINDING: change,
    RequestCode.LIST_BINDINGS: listed,
}
