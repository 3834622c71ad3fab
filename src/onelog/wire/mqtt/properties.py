"""Properties of version 5, from one table.

    varint length | (varint identifier | value)*

Most may be there once. User properties may repeat, and their order is kept; of subscription
identifiers, a message to a client can have several.

Invariant: what a packet may not have, or has twice, is an error with the reason that it has.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from onelog.wire.mqtt.codes import Packet, PacketError, Reason
from onelog.wire.mqtt.fields import (
    Data,
    encode_bytes,
    encode_text,
    encode_varint,
    read_byte,
    read_bytes,
    read_text,
    read_uint16,
    read_uint32,
    read_varint,
)

Properties = dict[int, Any]
"""Values by identifier: numbers, texts, bytes; user properties are a list of pairs of texts, and
subscription identifiers a list of numbers."""

WILL = 0
"""In the place of a packet's number: the properties of the will in CONNECT."""


class Property(IntEnum):
    """Identifiers of properties."""

    PAYLOAD_FORMAT = 1
    MESSAGE_EXPIRY = 2
    CONTENT_TYPE = 3
    RESPONSE_TOPIC = 8
    CORRELATION_DATA = 9
    SUBSCRIPTION_ID = 11
    SESSION_EXPIRY = 17
    ASSIGNED_CLIENT_ID = 18
    SERVER_KEEP_ALIVE = 19
    AUTHENTICATION_METHOD = 21
    AUTHENTICATION_DATA = 22
    REQUEST_PROBLEM_INFORMATION = 23
    WILL_DELAY = 24
    REQUEST_RESPONSE_INFORMATION = 25
    RESPONSE_INFORMATION = 26
    SERVER_REFERENCE = 28
    REASON_STRING = 31
    RECEIVE_MAXIMUM = 33
    TOPIC_ALIAS_MAXIMUM = 34
    TOPIC_ALIAS = 35
    MAXIMUM_QOS = 36
    RETAIN_AVAILABLE = 37
    USER_PROPERTY = 38
    MAXIMUM_PACKET_SIZE = 39
    WILDCARDS_AVAILABLE = 40
    SUBSCRIPTION_IDS_AVAILABLE = 41
    SHARED_AVAILABLE = 42


def _read_pair(data: Data, at: int, end: int) -> tuple[tuple[str, str], int]:
    name, at = read_text(data, at, end)
    value, at = read_text(data, at, end)
    return (name, value), at


def _encode_pair(pair: tuple[str, str]) -> bytes:
    return encode_text(pair[0]) + encode_text(pair[1])


class _Kind(NamedTuple):
    read: Callable[[Data, int, int], tuple[Any, int]]
    encode: Callable[[Any], bytes]


class _Row(NamedTuple):
    kind: _Kind
    packets: frozenset[int]
    most: int | None = None
    """The largest value, if not each that fits."""
    not_zero: bool = False


_BYTE = _Kind(read_byte, lambda value: bytes((value,)))
_UINT16 = _Kind(read_uint16, lambda value: value.to_bytes(2, "big"))
_UINT32 = _Kind(read_uint32, lambda value: value.to_bytes(4, "big"))
_VARINT = _Kind(read_varint, encode_varint)
_TEXT = _Kind(read_text, encode_text)
_BYTES = _Kind(read_bytes, encode_bytes)
_PAIR = _Kind(_read_pair, _encode_pair)

_CONNECT, _CONNACK, _PUBLISH = Packet.CONNECT, Packet.CONNACK, Packet.PUBLISH
_MESSAGE = frozenset((WILL, _PUBLISH))
_AUTHENTICATING = frozenset((_CONNECT, _CONNACK, Packet.AUTH))
_ANSWERS = frozenset(
    (
        _CONNACK,
        Packet.PUBACK,
        Packet.PUBREC,
        Packet.PUBREL,
        Packet.PUBCOMP,
        Packet.SUBACK,
        Packet.UNSUBACK,
        Packet.DISCONNECT,
        Packet.AUTH,
    )
)
_REPEATED = frozenset((Property.USER_PROPERTY, Property.SUBSCRIPTION_ID))


def _in(*packets: int) -> frozenset[int]:
    return frozenset(packets)


_TABLE: dict[int, _Row] = {
    Property.PAYLOAD_FORMAT: _Row(_BYTE, _MESSAGE, 1),
    Property.MESSAGE_EXPIRY: _Row(_UINT32, _MESSAGE),
    Property.CONTENT_TYPE: _Row(_TEXT, _MESSAGE),
    Property.RESPONSE_TOPIC: _Row(_TEXT, _MESSAGE),
    Property.CORRELATION_DATA: _Row(_BYTES, _MESSAGE),
    Property.SUBSCRIPTION_ID: _Row(_VARINT, _in(_PUBLISH, Packet.SUBSCRIBE), not_zero=True),
    Property.SESSION_EXPIRY: _Row(_UINT32, _in(_CONNECT, _CONNACK, Packet.DISCONNECT)),
    Property.ASSIGNED_CLIENT_ID: _Row(_TEXT, _in(_CONNACK)),
    Property.SERVER_KEEP_ALIVE: _Row(_UINT16, _in(_CONNACK)),
    Property.AUTHENTICATION_METHOD: _Row(_TEXT, _AUTHENTICATING),
    Property.AUTHENTICATION_DATA: _Row(_BYTES, _AUTHENTICATING),
    Property.REQUEST_PROBLEM_INFORMATION: _Row(_BYTE, _in(_CONNECT), 1),
    Property.WILL_DELAY: _Row(_UINT32, _in(WILL)),
    Property.REQUEST_RESPONSE_INFORMATION: _Row(_BYTE, _in(_CONNECT), 1),
    Property.RESPONSE_INFORMATION: _Row(_TEXT, _in(_CONNACK)),
    Property.SERVER_REFERENCE: _Row(_TEXT, _in(_CONNACK, Packet.DISCONNECT)),
    Property.REASON_STRING: _Row(_TEXT, _ANSWERS),
    Property.RECEIVE_MAXIMUM: _Row(_UINT16, _in(_CONNECT, _CONNACK), not_zero=True),
    Property.TOPIC_ALIAS_MAXIMUM: _Row(_UINT16, _in(_CONNECT, _CONNACK)),
    Property.TOPIC_ALIAS: _Row(_UINT16, _in(_PUBLISH)),
    Property.MAXIMUM_QOS: _Row(_BYTE, _in(_CONNACK), 1),
    Property.RETAIN_AVAILABLE: _Row(_BYTE, _in(_CONNACK), 1),
    Property.USER_PROPERTY: _Row(_PAIR, frozenset((WILL, *Packet))),
    Property.MAXIMUM_PACKET_SIZE: _Row(_UINT32, _in(_CONNECT, _CONNACK), not_zero=True),
    Property.WILDCARDS_AVAILABLE: _Row(_BYTE, _in(_CONNACK), 1),
    Property.SUBSCRIPTION_IDS_AVAILABLE: _Row(_BYTE, _in(_CONNACK), 1),
    Property.SHARED_AVAILABLE: _Row(_BYTE, _in(_CONNACK), 1),
}


def read_properties(data: Data, at: int, end: int, packet: int) -> tuple[Properties, int]:
    """The properties of a packet of this kind, and the place behind them."""
    size, at = read_varint(data, at, end)
    stop = at + size
    if stop > end:
        raise PacketError(f"properties claim {size} bytes of {end - at}")
    found: Properties = {}
    while at < stop:
        name, at = read_varint(data, at, stop)
        row = _TABLE.get(name)
        if row is None:
            raise PacketError(f"there is no property {name}")
        if packet not in row.packets:
            raise PacketError(f"{_name(name)} is no property of this packet", Reason.PROTOCOL_ERROR)
        value, at = row.kind.read(data, at, stop)
        if (row.not_zero and value == 0) or (row.most is not None and value > row.most):
            raise PacketError(f"{_name(name)} may not be {value}", Reason.PROTOCOL_ERROR)
        if name in _REPEATED:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise PacketError(f"{_name(name)} is there twice", Reason.PROTOCOL_ERROR)
        else:
            found[name] = value
    return found, stop


def _name(number: int) -> str:
    return Property(number).name.lower().replace("_", " ")


def encode_properties(properties: Properties) -> bytes:
    """The properties with their length before them."""
    if not properties:
        return b"\0"
    content = property_list(properties)
    return encode_varint(len(content)) + content


def property_list(properties: Properties) -> bytes:
    """The properties without their length, so that others can be put behind them."""
    return b"".join(
        bytes((name,)) + _TABLE[name].kind.encode(each)
        for name, value in properties.items()
        for each in (value if name in _REPEATED else (value,))
    )
