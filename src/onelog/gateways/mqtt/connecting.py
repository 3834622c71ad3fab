"""CONNECT: what a client asks for, and what it gets."""

from random import Random
from typing import NamedTuple

from onelog.config import MqttConfig
from onelog.core.sessions.sessions import FOREVER_S
from onelog.gateways.mqtt.clients import Will, session_expiry
from onelog.wire.mqtt.codes import V5, PacketError, Reason
from onelog.wire.mqtt.packets import Connect, read_topic
from onelog.wire.mqtt.properties import Properties, Property, property_list

CLIENT_ID_BYTES_MAX = 4_096


class Greeting(NamedTuple):
    """What a client is answered: a reason why not, or the terms of its connection."""

    reason: int
    text: str
    client_id: str = ""
    expiry_s: int = 0
    keep_alive_s: int = 0
    will: Will | None = None
    properties: Properties = {}  # noqa: RUF012  # Nobody changes it.


def greet(connect: Connect, config: MqttConfig, random: Random) -> Greeting:
    about = connect.properties
    if Property.AUTHENTICATION_METHOD in about:
        method = about[Property.AUTHENTICATION_METHOD]
        return Greeting(
            Reason.BAD_AUTHENTICATION_METHOD, f"there is no authentication method {method!r} here"
        )
    if Property.AUTHENTICATION_DATA in about:
        return Greeting(Reason.PROTOCOL_ERROR, "authentication data without a method")
    client_id = connect.client_id
    if len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
        return Greeting(Reason.CLIENT_ID_NOT_VALID, "the client id is too long")
    if not client_id and connect.level < V5 and not connect.clean:
        return Greeting(Reason.CLIENT_ID_NOT_VALID, "a session that is kept needs a client id")
    granted: Properties = {}
    if not client_id:
        client_id = f"onelog-{random.getrandbits(96):024x}"
        granted[Property.ASSIGNED_CLIENT_ID] = client_id
    will = None
    if connect.will is not None:
        try:
            read_topic(connect.will.topic.encode())
        except PacketError as error:
            return Greeting(error.reason, str(error))
        will = _will(connect)
    if connect.level == V5:
        wanted_s = about.get(Property.SESSION_EXPIRY, 0)
    else:
        wanted_s = 0 if connect.clean else FOREVER_S
    expiry_s = session_expiry(wanted_s, config.session_expiry_max_s)
    if expiry_s != wanted_s:
        granted[Property.SESSION_EXPIRY] = expiry_s
    keep_alive_s = connect.keep_alive_s
    most_s = config.keep_alive_max_s
    if most_s and connect.level == V5 and (keep_alive_s == 0 or keep_alive_s > most_s):
        keep_alive_s = granted[Property.SERVER_KEEP_ALIVE] = most_s
    granted[Property.RECEIVE_MAXIMUM] = config.receive_maximum
    granted[Property.MAXIMUM_PACKET_SIZE] = config.packet_bytes_max
    if config.topic_alias_maximum:
        granted[Property.TOPIC_ALIAS_MAXIMUM] = config.topic_alias_maximum
    return Greeting(0, "", client_id, expiry_s, keep_alive_s, will, granted)


def _will(connect: Connect) -> Will:
    will = connect.will
    assert will is not None
    about = dict(will.properties)
    delay_s = about.pop(Property.WILL_DELAY, 0)
    return Will(will.topic, will.payload, will.qos, will.retain, property_list(about), delay_s)
