"""Packets: what is encoded decodes to the same, in any pieces; garbage is a `WireError`."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.wire.mqtt import packets
from onelog.wire.mqtt.codes import V5, V31, V311, Packet, PacketError, Reason
from onelog.wire.mqtt.fields import encode_varint, read_varint
from onelog.wire.mqtt.packets import (
    Connect,
    PacketReader,
    Publish,
    Subscribe,
    SubscribeFilter,
    Unsubscribe,
    Will,
)
from onelog.wire.mqtt.properties import (
    _TABLE,
    WILL,
    Property,
    encode_properties,
    property_list,
    read_properties,
)

LIMIT = 1 << 20
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
LEVELS = st.sampled_from([V31, V311, V5])
IDS = st.integers(1, 65_535)
ANSWERS = [Packet.PUBACK, Packet.PUBREC, Packet.PUBREL, Packet.PUBCOMP]

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "_BYTE": st.integers(0, 1),
    "_UINT16": st.integers(1, 65_535),
    "_UINT32": st.integers(1, 0xFFFFFFFF),
    "_VARINT": st.lists(st.integers(1, 0xFFFFFFF), min_size=1, max_size=3),
    "_TEXT": TEXT,
    "_BYTES": st.binary(max_size=30),
    "_PAIR": st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4),
}


def _value(name: int) -> st.SearchStrategy[Any]:
    from onelog.wire.mqtt import properties as module

    kind = _TABLE[name].kind
    return next(each for key, each in _VALUES.items() if getattr(module, key) is kind)


def properties_of(packet: int, level: int = V5) -> st.SearchStrategy[dict[int, Any]]:
    """Properties that such a packet may have."""
    if level != V5:
        return st.just({})
    allowed = {name: _value(name) for name, row in _TABLE.items() if packet in row.packets}
    return st.fixed_dictionaries({}, optional=allowed)


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    level = draw(LEVELS)
    will = None
    if draw(st.booleans()):
        will = Will(
            draw(TEXT),
            draw(st.binary(max_size=40)),
            draw(st.integers(0, 2)),
            draw(st.booleans()),
            draw(properties_of(WILL, level)),
        )
    user = draw(st.none() | TEXT)
    password = draw(st.none() | st.binary(max_size=9)) if user is not None or level == V5 else None
    return Connect(
        level,
        draw(TEXT),
        draw(st.booleans()),
        draw(st.integers(0, 65_535)),
        will,
        user,
        password,
        draw(properties_of(Packet.CONNECT, level)),
    )


def read_one(raw: bytes) -> tuple[bytes | bytearray, int, int, int]:
    reader = PacketReader(LIMIT)
    reader.feed(raw)
    ((head, at, end),) = reader.spans()
    assert reader.unread_bytes == 0
    return reader.data, head, at, end


@given(connects())
def test_a_connect_comes_back_as_it_was(connect: Connect) -> None:
    data, head, at, end = read_one(packets.encode_connect(connect))
    assert head == Packet.CONNECT << 4
    assert packets.read_connect(data, at, end) == connect


@st.composite
def publishes(draw: st.DrawFn) -> tuple[int, Publish]:
    level = draw(LEVELS)
    qos = draw(st.integers(0, 2))
    flags = qos << 1 | draw(st.integers(0, 1)) | (draw(st.integers(0, 1)) << 3 if qos else 0)
    about = property_list(draw(properties_of(Packet.PUBLISH, level)))
    topic = draw(TEXT).encode()
    return level, Publish(
        topic, flags, draw(IDS) if qos else 0, about, draw(st.binary(max_size=400))
    )


@given(publishes())
def test_a_publish_comes_back_as_it_was(given: tuple[int, Publish]) -> None:
    level, publish = given
    data, head, at, end = read_one(packets.encode_publish(level, publish))
    assert packets.read_publish(data, head, at, end, level) == publish
    packets.read_publish_properties(publish.properties)


@given(st.lists(publishes(), max_size=6), st.data())
def test_any_cut_of_the_bytes_gives_the_same_packets(
    given: list[tuple[int, Publish]], data: st.DataObject
) -> None:
    raw = b"".join(packets.encode_publish(level, publish) for level, publish in given)
    reader = PacketReader(LIMIT)
    found: list[Publish] = []
    at = 0
    while at < len(raw):
        size = data.draw(st.integers(1, len(raw) - at))
        reader.feed(raw[at : at + size])
        at += size
        for head, begin, end in reader.spans():
            level = given[len(found)][0]
            found.append(packets.read_publish(reader.data, head, begin, end, level))
    assert found == [publish for _, publish in given]
    assert reader.unread_bytes == 0


@given(st.sampled_from(ANSWERS), LEVELS, IDS, st.sampled_from(list(Reason)), st.data())
def test_answers_come_back_as_they_were(
    kind: Packet, level: int, packet_id: int, reason: Reason, data: st.DataObject
) -> None:
    about = data.draw(properties_of(kind, level))
    raw, head, at, end = read_one(packets.encode_answer(kind, level, packet_id, reason, about))
    found = packets.read_answer(raw, head, at, end, level)
    assert found.packet_id == packet_id
    if level == V5:
        assert (found.reason, found.properties) == (reason, about)


@given(LEVELS, IDS, st.lists(st.tuples(TEXT, st.integers(0, 2)), min_size=1), st.data())
def test_subscribing_and_its_end_come_back(
    level: int, number: int, filters: list[tuple[str, int]], data: st.DataObject
) -> None:
    about = data.draw(properties_of(Packet.SUBSCRIBE, level))
    wanted = Subscribe(number, [SubscribeFilter(*each) for each in filters], about)
    raw, _, at, end = read_one(packets.encode_subscribe(level, wanted))
    assert packets.read_subscribe(raw, at, end, level) == wanted
    about = data.draw(properties_of(Packet.UNSUBSCRIBE, level))
    over = Unsubscribe(number, [text for text, _ in filters], about)
    raw, _, at, end = read_one(packets.encode_unsubscribe(level, over))
    assert packets.read_unsubscribe(raw, at, end, level) == over
    reasons = bytes(qos for _, qos in filters)
    raw, head, at, end = read_one(packets.encode_reasons(Packet.SUBACK, level, number, reasons))
    assert packets.read_reasons(raw, head, at, end, level).reasons == reasons


@given(LEVELS, st.booleans(), st.data())
def test_connack_and_disconnect_come_back(level: int, present: bool, data: st.DataObject) -> None:
    about = data.draw(properties_of(Packet.CONNACK, level))
    raw, head, at, end = read_one(packets.encode_connack(level, present, 0, about))
    found = packets.read_connack(raw, at, end, level)
    assert found.properties == about
    assert found.packet_id == (present and level > V31)
    about = data.draw(properties_of(Packet.DISCONNECT, level))
    reason = data.draw(st.sampled_from(list(Reason)))
    raw, head, at, end = read_one(packets.encode_ending(Packet.DISCONNECT, level, reason, about))
    expected = (reason, about) if level == V5 else (0, {})
    assert packets.read_ending(raw, head, at, end, level) == expected


READERS: list[Callable[[bytes, int, int, int], object]] = [
    lambda data, head, end, level: packets.read_connect(data, 0, end),
    lambda data, head, end, level: packets.read_publish(data, head & 15, 0, end, level),
    lambda data, head, end, level: packets.read_answer(data, 0x40, 0, end, level),
    lambda data, head, end, level: packets.read_subscribe(data, 0, end, level),
    lambda data, head, end, level: packets.read_unsubscribe(data, 0, end, level),
    lambda data, head, end, level: packets.read_ending(data, 0xE0, 0, end, level),
    lambda data, head, end, level: packets.read_connack(data, 0, end, level),
    lambda data, head, end, level: packets.read_reasons(data, 0x90, 0, end, level),
    lambda data, head, end, level: packets.read_publish_properties(data),
    lambda data, head, end, level: packets.read_topic(data),
    lambda data, head, end, level: packets.require_flags(head),
]


@given(st.binary(max_size=80), st.integers(0, 255), LEVELS, st.sampled_from(READERS))
def test_garbage_is_a_wire_error_and_nothing_else(
    data: bytes, head: int, level: int, read: Callable[[bytes, int, int, int], object]
) -> None:
    with contextlib.suppress(PacketError):
        read(data, head, len(data), level)


@given(connects(), st.integers(0, 400), st.integers(0, 255))
def test_a_connect_with_one_wrong_byte_is_read_or_a_wire_error(
    connect: Connect, where: int, byte: int
) -> None:
    raw = bytearray(packets.encode_connect(connect))
    raw[where % len(raw)] = byte
    reader = PacketReader(LIMIT)
    reader.feed(bytes(raw))
    with contextlib.suppress(PacketError):
        for _, at, end in reader.spans():
            packets.read_connect(reader.data, at, end)


@given(st.integers(0, 0xFFFFFFF))
def test_varints_come_back(value: int) -> None:
    raw = encode_varint(value)
    assert read_varint(raw, 0, len(raw)) == (value, len(raw))


@pytest.mark.parametrize("raw", [b"\x80\x00", b"\xff\xff\xff\xff\x01", b"\x80", b""])
def test_varints_that_are_none(raw: bytes) -> None:
    with pytest.raises(PacketError):
        read_varint(raw, 0, len(raw))


def test_a_length_that_lies_is_refused_before_its_bytes_come() -> None:
    reader = PacketReader(1_000)
    reader.feed(b"\x30\xff\xff\xff\x7f")
    with pytest.raises(PacketError) as caught:
        reader.spans()
    assert caught.value.reason == Reason.PACKET_TOO_LARGE


def test_a_length_of_five_bytes_is_malformed() -> None:
    reader = PacketReader(1_000)
    reader.feed(b"\x30\xff\xff\xff\xff\x01")
    with pytest.raises(PacketError) as caught:
        reader.spans()
    assert caught.value.reason == Reason.MALFORMED_PACKET


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"\xed\xa0\x80", b"a\0b", b"\xc0\x80"])
def test_texts_that_are_not_utf_8_are_malformed(raw: bytes) -> None:
    with pytest.raises(PacketError) as caught:
        packets.read_topic(raw)
    assert caught.value.reason == Reason.MALFORMED_PACKET


@pytest.mark.parametrize("topic", [b"", b"a/+", b"#", b"a#"])
def test_a_topic_of_a_message_has_no_wildcards(topic: bytes) -> None:
    with pytest.raises(PacketError) as caught:
        packets.read_topic(topic)
    assert caught.value.reason == Reason.TOPIC_NAME_INVALID


@pytest.mark.parametrize("head", [0x00, 0x11, 0x60, 0x80, 0xA0, 0xC1, 0xE8, 0x42])
def test_flags_that_are_not_given_are_malformed(head: int) -> None:
    with pytest.raises(PacketError):
        packets.require_flags(head)


def test_a_property_twice_or_in_the_wrong_packet_is_a_protocol_error() -> None:
    twice = property_list({Property.MESSAGE_EXPIRY: 5}) * 2
    with pytest.raises(PacketError) as caught:
        packets.read_publish_properties(twice)
    assert caught.value.reason == Reason.PROTOCOL_ERROR
    elsewhere = encode_properties({Property.WILL_DELAY: 5})
    with pytest.raises(PacketError) as caught:
        read_properties(elsewhere, 0, len(elsewhere), Packet.PUBLISH)
    assert caught.value.reason == Reason.PROTOCOL_ERROR


def test_a_connect_of_mosquitto_s_clients_is_read() -> None:
    raw = bytes.fromhex("101000044d5154540402003c0004") + b"abcd"
    data, _, at, end = read_one(raw)
    found = packets.read_connect(data, at, end)
    assert found == Connect(V311, "abcd", True, 60)


def test_another_version_is_told_so() -> None:
    raw = bytes.fromhex("100c00044d5154540602003c0000")
    data, _, at, end = read_one(raw)
    with pytest.raises(PacketError) as caught:
        packets.read_connect(data, at, end)
    assert caught.value.reason == Reason.UNSUPPORTED_VERSION
