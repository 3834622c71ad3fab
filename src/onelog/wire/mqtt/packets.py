"""Packets: bytes to values and back, for both sides of a connection.

    byte type << 4 | flags | varint length of the rest | what the type has | payload

    CONNECT      text name, byte level, byte flags, uint16 keep alive, [properties], text client id,
                 [[properties], text will topic, bytes will], [text user], [bytes password]
    CONNACK      byte session present, byte reason, [properties]
    PUBLISH      text topic, [uint16 packet id, if QoS > 0], [properties], payload
    PUBACK...    uint16 packet id, [byte reason, [properties]]
    SUBSCRIBE    uint16 packet id, [properties], (text filter, byte options)+
    SUBACK       uint16 packet id, [properties], byte reason+
    UNSUBSCRIBE  uint16 packet id, [properties], text filter+
    DISCONNECT   [byte reason, [properties]]

Properties are of version 5. A PUBLISH is what there are most of: its topic and its properties stay
the bytes that they are, and who needs to look inside does.

The reader cuts what has arrived into spans; nothing is copied until a packet is read. Most of what
arrives is a run of small packets, and a span costs a handful of byte look-ups.

Invariants: what is decoded without an error follows every rule that can be seen in one packet.
However the bytes of a connection are cut into pieces, the packets are the same. A packet that
claims more than the limit is refused before its bytes come.
"""

from collections.abc import Sequence
from typing import NamedTuple

from onelog.wire.mqtt.codes import (
    RETURN_CODES,
    V5,
    V31,
    V311,
    Packet,
    PacketError,
    Reason,
    ReturnCode,
)
from onelog.wire.mqtt.fields import (
    Data,
    as_text,
    encode_bytes,
    encode_text,
    encode_varint,
    read_byte,
    read_bytes,
    read_text,
    read_uint16,
    read_varint,
)
from onelog.wire.mqtt.properties import (
    WILL,
    Properties,
    encode_properties,
    read_properties,
)

Span = tuple[int, int, int]
"""The first byte of a packet, and where in `data` the rest of it begins and ends."""


class PacketReader:
    """Takes bytes as they come, hands out spans of packets."""

    __slots__ = ("_at", "bytes_max", "data")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        """The largest packet."""
        self.data: bytes | bytearray = b""
        """What the spans are of, until more is fed."""
        self._at = 0

    @property
    def unread_bytes(self) -> int:
        """How many received bytes have not become a packet yet."""
        return len(self.data) - self._at

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        if not data:
            return
        if self._at == len(self.data):
            self.data = data
        elif self._at or not isinstance(self.data, bytearray):
            self.data = bytearray(memoryview(self.data)[self._at :])
            self.data += data
        else:
            self.data += data
        self._at = 0

    def give_back(self, at: int) -> None:
        """Have the spans from this place on handed out again: they are for later."""
        self._at = at

    def spans(self, count_max: int = 1 << 30) -> list[Span]:
        """The packets that are there as a whole, so many at most."""
        data, at = self.data, self._at
        size = len(data)
        found: list[Span] = []
        while size - at >= 2 and len(found) < count_max:
            length = data[at + 1]
            begin = at + 2
            if length >= 0x80:
                length, begin = self._length(at + 1, size)
                if begin == 0:
                    break
            end = begin + length
            if end - at > self.bytes_max:
                raise PacketError(
                    f"a packet has {end - at} bytes; it may have {self.bytes_max}",
                    Reason.PACKET_TOO_LARGE,
                )
            if end > size:
                break
            found.append((data[at], begin, end))
            at = end
        self._at = at
        return found

    def _length(self, at: int, size: int) -> tuple[int, int]:
        """A length of several bytes and the place behind it; 0 if it is not all there."""
        data = self.data
        length = shift = 0
        for position in range(at, min(at + 4, size)):
            byte = data[position]
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                return length, position + 1
            shift += 7
        if size - at >= 4:
            raise PacketError("the length of a packet has more than four bytes")
        return 0, 0


_NAMES = {("MQIsdp", V31), ("MQTT", V311), ("MQTT", V5)}
_KNOWN = {"MQIsdp", "MQTT"}
_ACK_FLAGS = {Packet.PUBACK: 0, Packet.PUBREC: 0, Packet.PUBREL: 2, Packet.PUBCOMP: 0}
PINGRESP = bytes((Packet.PINGRESP << 4, 0))
PINGREQ = bytes((Packet.PINGREQ << 4, 0))


class Will(NamedTuple):
    """What is published in a client's name when it is gone."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties


class Connect(NamedTuple):
    """The first packet of a client."""

    level: int
    client_id: str
    clean: bool
    keep_alive_s: int
    will: Will | None = None
    user: str | None = None
    password: bytes | None = None
    properties: Properties = {}  # noqa: RUF012  # Nobody changes it.


class Publish(NamedTuple):
    """A message on the wire."""

    topic: bytes
    flags: int
    """Duplicate (8), QoS (6), retain (1)."""
    packet_id: int
    """0 with QoS 0."""
    properties: bytes
    """Without their length."""
    payload: bytes


class SubscribeFilter(NamedTuple):
    """A filter, and how its messages are to come: QoS (3), no local (4), retain as published (8),
    retain handling (48)."""

    filter: str
    options: int


class Subscribe(NamedTuple):
    """A wish for messages."""

    packet_id: int
    subscriptions: list[SubscribeFilter]
    properties: Properties


class Unsubscribe(NamedTuple):
    """The end of such a wish."""

    packet_id: int
    filters: list[str]
    properties: Properties


class Acknowledgement(NamedTuple):
    """PUBACK, PUBREC, PUBREL or PUBCOMP; also SUBACK and UNSUBACK, with a reason for each filter,
    and CONNACK, whose packet id is whether the session is there."""

    packet_id: int
    reason: int
    properties: Properties
    reasons: bytes = b""


def require_flags(head: int) -> None:
    """The lower four bits of a first byte are given, but for PUBLISH."""
    kind = head >> 4
    wanted = 2 if kind in (Packet.PUBREL, Packet.SUBSCRIBE, Packet.UNSUBSCRIBE) else 0
    if kind == 0 or (head & 15) != wanted:
        raise PacketError(f"a packet begins with {head:#04x}")


def _at_end(at: int, end: int) -> None:
    if at != end:
        raise PacketError(f"{end - at} bytes follow the end of a packet")


# -- reading ------------------------------------------------------------------------------------


def read_connect(data: Data, at: int, end: int) -> Connect:
    """A CONNECT; one of another version has the reason that says so."""
    name, at = read_text(data, at, end)
    level, at = read_byte(data, at, end)
    # A bridge sets the highest bit of the level; it is a client like any other.
    level &= 0x7F
    if name not in _KNOWN:
        raise PacketError(f"a client speaks {name!r}", Reason.UNSUPPORTED_VERSION)
    if (name, level) not in _NAMES:
        raise PacketError(f"a client speaks level {level} of {name}", Reason.UNSUPPORTED_VERSION)
    flags, at = read_byte(data, at, end)
    if flags & 1 or (not flags & 4 and flags & 0x38) or flags & 0x18 == 0x18:
        raise PacketError(f"CONNECT has the flags {flags:#04x}")
    if level < V5 and flags & 0xC0 == 0x40:
        raise PacketError("CONNECT has a password without a user")
    keep_alive_s, at = read_uint16(data, at, end)
    properties: Properties = {}
    if level == V5:
        properties, at = read_properties(data, at, end, Packet.CONNECT)
    client_id, at = read_text(data, at, end)
    will = None
    if flags & 4:
        about: Properties = {}
        if level == V5:
            about, at = read_properties(data, at, end, WILL)
        topic, at = read_text(data, at, end)
        payload, at = read_bytes(data, at, end)
        will = Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20), about)
    user = password = None
    if flags & 0x80:
        user, at = read_text(data, at, end)
    if flags & 0x40:
        password, at = read_bytes(data, at, end)
    _at_end(at, end)
    return Connect(
        level, client_id, bool(flags & 2), keep_alive_s, will, user, password, properties
    )


def read_publish(data: Data, head: int, at: int, end: int, level: int) -> Publish:
    """A PUBLISH; topic and properties are not looked at."""
    if end - at < 2:
        raise PacketError("a PUBLISH without a topic")
    flags = head & 15
    behind = at + 2 + (data[at] << 8 | data[at + 1])
    topic = bytes(data[at + 2 : behind])
    packet_id = 0
    if flags & 6:
        if flags & 6 == 6:
            raise PacketError("a PUBLISH with QoS 3")
        packet_id = int.from_bytes(data[behind : behind + 2], "big")
        if packet_id == 0:
            raise PacketError("a PUBLISH with packet id 0", Reason.PROTOCOL_ERROR)
        behind += 2
    elif flags & 8:
        raise PacketError("a duplicate with QoS 0")
    properties = b""
    if level == V5:
        if behind < end and not data[behind]:
            behind += 1
        else:
            size, at = read_varint(data, behind, end)
            behind = at + size
            properties = bytes(data[at:behind])
    if behind > end:
        raise PacketError("a PUBLISH claims more bytes than it has")
    return Publish(topic, flags, packet_id, properties, bytes(data[behind:end]))


def read_publish_properties(properties: bytes) -> Properties:
    """What the properties of a `Publish` say."""
    return read_properties(encode_varint(len(properties)) + properties, 0, 1 << 28, Packet.PUBLISH)[
        0
    ]


def read_answer(data: Data, head: int, at: int, end: int, level: int) -> Acknowledgement:
    """PUBACK, PUBREC, PUBREL, PUBCOMP."""
    if head & 15 != _ACK_FLAGS[Packet(head >> 4)]:
        raise PacketError(f"an answer begins with {head:#04x}")
    packet_id, at = _read_packet_id(data, at, end)
    reason = 0
    properties: Properties = {}
    if level == V5 and at < end:
        reason, at = read_byte(data, at, end)
        if at < end:
            properties, at = read_properties(data, at, end, head >> 4)
    _at_end(at, end)
    return Acknowledgement(packet_id, reason, properties)


def _read_packet_id(data: Data, at: int, end: int) -> tuple[int, int]:
    packet_id, at = read_uint16(data, at, end)
    if packet_id == 0:
        raise PacketError("a packet with packet id 0", Reason.PROTOCOL_ERROR)
    return packet_id, at


def read_subscribe(data: Data, at: int, end: int, level: int) -> Subscribe:
    """A SUBSCRIBE; whether its filters are filters is for others to say."""
    packet_id, at = _read_packet_id(data, at, end)
    properties: Properties = {}
    if level == V5:
        properties, at = read_properties(data, at, end, Packet.SUBSCRIBE)
    found = []
    while at < end:
        text, at = read_text(data, at, end)
        options, at = read_byte(data, at, end)
        if options & 3 == 3 or (options > 2 if level < V5 else options & 0xC0 or options >= 0x30):
            reason = Reason.MALFORMED_PACKET if options & 0xC0 else Reason.PROTOCOL_ERROR
            raise PacketError(f"a subscription has the options {options:#04x}", reason)
        found.append(SubscribeFilter(text, options))
    if not found:
        raise PacketError("SUBSCRIBE without a filter", Reason.PROTOCOL_ERROR)
    return Subscribe(packet_id, found, properties)


def read_unsubscribe(data: Data, at: int, end: int, level: int) -> Unsubscribe:
    packet_id, at = _read_packet_id(data, at, end)
    properties: Properties = {}
    if level == V5:
        properties, at = read_properties(data, at, end, Packet.UNSUBSCRIBE)
    found = []
    while at < end:
        text, at = read_text(data, at, end)
        found.append(text)
    if not found:
        raise PacketError("UNSUBSCRIBE without a filter", Reason.PROTOCOL_ERROR)
    return Unsubscribe(packet_id, found, properties)


def read_ending(data: Data, head: int, at: int, end: int, level: int) -> tuple[int, Properties]:
    """The reason and the properties of a DISCONNECT, or of an AUTH."""
    reason = 0
    properties: Properties = {}
    if level == V5 and at < end:
        reason, at = read_byte(data, at, end)
        if at < end:
            properties, at = read_properties(data, at, end, head >> 4)
    _at_end(at, end)
    return reason, properties


def read_connack(data: Data, at: int, end: int, level: int) -> Acknowledgement:
    """A CONNACK, for those who connect."""
    present, at = read_byte(data, at, end)
    reason, at = read_byte(data, at, end)
    properties: Properties = {}
    if level == V5:
        properties, at = read_properties(data, at, end, Packet.CONNACK)
    _at_end(at, end)
    return Acknowledgement(present, reason, properties)


def read_reasons(data: Data, head: int, at: int, end: int, level: int) -> Acknowledgement:
    """A SUBACK or UNSUBACK, for those who subscribe."""
    packet_id, at = _read_packet_id(data, at, end)
    properties: Properties = {}
    if level == V5:
        properties, at = read_properties(data, at, end, head >> 4)
    return Acknowledgement(packet_id, 0, properties, bytes(data[at:end]))


def read_topic(raw: bytes) -> str:
    """The topic of a message: a text without wildcards."""
    text = as_text(raw)
    if not text or "+" in text or "#" in text:
        raise PacketError(f"{text[:80]!r} is no topic of a message", Reason.TOPIC_NAME_INVALID)
    return text


# -- writing ------------------------------------------------------------------------------------


def _packet(head: int, *pieces: bytes) -> bytes:
    size = sum(map(len, pieces))
    return b"".join((bytes((head,)), encode_varint(size), *pieces))


def _properties(level: int, properties: Properties) -> bytes:
    return encode_properties(properties) if level == V5 else b""


def encode_connect(connect: Connect) -> bytes:
    level, will = connect.level, connect.will
    flags = connect.clean << 1 | (connect.user is not None) << 7
    flags |= (connect.password is not None) << 6
    tail = [encode_text(connect.client_id)]
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
        tail += [_properties(level, will.properties), encode_text(will.topic)]
        tail.append(encode_bytes(will.payload))
    if connect.user is not None:
        tail.append(encode_text(connect.user))
    if connect.password is not None:
        tail.append(encode_bytes(connect.password))
    name = "MQIsdp" if level == V31 else "MQTT"
    start = encode_text(name) + bytes((level, flags)) + connect.keep_alive_s.to_bytes(2, "big")
    about = _properties(level, connect.properties)
    return _packet(Packet.CONNECT << 4, start, about, *tail)


def encode_connack(level: int, present: bool, reason: int, properties: Properties) -> bytes:
    """A CONNACK; versions before 5 have fewer reasons."""
    if level < V5:
        code = RETURN_CODES.get(reason, ReturnCode.SERVER_UNAVAILABLE)
        return bytes((Packet.CONNACK << 4, 2, present and level > V31, code))
    return _packet(Packet.CONNACK << 4, bytes((present, reason)), encode_properties(properties))


def encode_publish(level: int, publish: Publish) -> bytes:
    topic, flags, packet_id, properties, payload = publish
    size = 2 + len(topic) + len(payload) + (2 if flags & 6 else 0)
    about = b""
    if level == V5:
        about = encode_varint(len(properties)) + properties if properties else b"\0"
        size += len(about)
    number = packet_id.to_bytes(2, "big") if flags & 6 else b""
    return b"".join(
        (
            bytes((0x30 | flags,)),
            encode_varint(size),
            len(topic).to_bytes(2, "big"),
            topic,
            number,
            about,
            payload,
        )
    )


def encode_answer(
    kind: Packet, level: int, packet_id: int, reason: int = 0, properties: Properties | None = None
) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
    head = kind << 4 | _ACK_FLAGS[kind]
    if level < V5 or not (reason or properties):
        return bytes((head, 2, packet_id >> 8, packet_id & 255))
    if not properties:
        return bytes((head, 3, packet_id >> 8, packet_id & 255, reason))
    number = packet_id.to_bytes(2, "big")
    return _packet(head, number, bytes((reason,)), encode_properties(properties))


def encode_subscribe(level: int, subscribe: Subscribe) -> bytes:
    wanted = [encode_text(each.filter) + bytes((each.options,)) for each in subscribe.subscriptions]
    number = subscribe.packet_id.to_bytes(2, "big")
    about = _properties(level, subscribe.properties)
    return _packet(Packet.SUBSCRIBE << 4 | 2, number, about, *wanted)


def encode_unsubscribe(level: int, unsubscribe: Unsubscribe) -> bytes:
    number = unsubscribe.packet_id.to_bytes(2, "big")
    about = _properties(level, unsubscribe.properties)
    return _packet(
        Packet.UNSUBSCRIBE << 4 | 2, number, about, *map(encode_text, unsubscribe.filters)
    )


def encode_reasons(
    kind: Packet,
    level: int,
    packet_id: int,
    reasons: Sequence[int],
    properties: Properties | None = None,
) -> bytes:
    """A SUBACK or UNSUBACK; versions before 5 know of one failure, and UNSUBACK of none."""
    number = packet_id.to_bytes(2, "big")
    if level < V5:
        codes = b"" if kind == Packet.UNSUBACK else bytes(min(each, 0x80) for each in reasons)
        return _packet(kind << 4, number, codes)
    return _packet(kind << 4, number, encode_properties(properties or {}), bytes(reasons))


def encode_ending(
    kind: Packet, level: int, reason: int = 0, properties: Properties | None = None
) -> bytes:
    """A DISCONNECT, or an AUTH."""
    if level < V5 or not (reason or properties):
        return bytes((kind << 4, 0))
    if not properties:
        return bytes((kind << 4, 1, reason))
    return _packet(kind << 4, bytes((reason,)), encode_properties(properties))
