"""Frames, and the events that they are."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.amqp.codes import FaultError, ReplyCode
from onelog.wire.amqp.frame import (
    GREETING,
    HEARTBEAT,
    DeliveryWriter,
    Event,
    EventReader,
    content_frames,
    encoded_address,
    method_frame,
)
from onelog.wire.amqp.methods import ENCODERS, NUMBERS

FRAME_MAX = 4096
PUBLISH = NUMBERS["basic.publish"]
ACK = NUMBERS["basic.ack"]
NAMES = st.text(max_size=20)
BODIES = st.one_of(st.binary(max_size=40), st.integers(4080, 9000).map(bytes))


def published(channel: int, exchange: str, key: str, properties: bytes, body: bytes) -> bytes:
    payload = ENCODERS["basic.publish"](exchange, key, False, False)
    return b"".join(content_frames(channel, payload, properties, body, FRAME_MAX))


PUBLISHES = st.builds(
    lambda channel, exchange, key, body: (
        published(channel, exchange, key, b"\x10\0\2", body),
        (channel, PUBLISH, (exchange, key, False, False), b"\x10\0\2", body),
    ),
    st.integers(1, 3),
    NAMES,
    NAMES,
    BODIES,
)
ACKS = st.builds(
    lambda channel, tag, multiple: (
        method_frame(channel, ENCODERS["basic.ack"](tag, multiple)),
        (channel, ACK, (tag, multiple), None, None),
    ),
    st.integers(1, 3),
    st.integers(0, (1 << 64) - 1),
    st.booleans(),
)
BEATS = st.just((HEARTBEAT, (0, 0, (), None, None)))


def read(pieces: Sequence[bytes], body_bytes_max: int = 1 << 20) -> list[Event]:
    reader = EventReader(FRAME_MAX, body_bytes_max)
    found: list[Event] = []
    for piece in pieces:
        reader.feed(piece)
        found += reader.events()
    return found


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@given(st.lists(st.one_of(PUBLISHES, ACKS, BEATS), max_size=8), st.lists(st.integers(0, 20_000)))
def test_events_are_the_same_however_the_bytes_are_cut(
    sent: list[tuple[bytes, Event]], places: list[int]
) -> None:
    data = b"".join(frames for frames, _ in sent)
    events = [event for _, event in sent]
    assert read([data]) == events
    assert read(cut(data, places)) == events


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "e"]), st.sampled_from([b"", b"aa", b"bb", b"ccc"])),
        max_size=12,
    ),
    st.lists(st.integers(0, 800)),
)
def test_publishes_that_are_alike_can_be_had_together(
    sent: list[tuple[str, bytes]], places: list[int]
) -> None:
    data = b"".join(published(1, exchange, "k", b"\x10\0\2", body) for exchange, body in sent)
    reader = EventReader(FRAME_MAX, 1 << 20)
    found: list[tuple[str, bytes]] = []
    for piece in cut(data, places):
        reader.feed(piece)
        for event in reader.events():
            bodies = [event[4], *reader.alike(event)]
            found += [(event[2][0], body or b"") for body in bodies]
    assert found == sent
    assert reader.unread_bytes == 0


SENT = st.tuples(
    st.sampled_from(["", "", "", "x"]),
    st.sampled_from(["a", "b", "long"]),
    st.sampled_from([b"\0\0", b"\x10\0\2"]),
    st.sampled_from([b"one", b"two", b"three"]),
    st.sampled_from([1, 1, 1, 2]),
)


@given(st.lists(SENT, max_size=40), st.lists(st.integers(0, 3_000)))
def test_publishes_to_several_queues_can_be_had_by_queue(
    sent: list[tuple[str, str, bytes, bytes, int]], places: list[int]
) -> None:
    data = b"".join(
        published(number, exchange, key, properties, body)
        for exchange, key, properties, body, number in sent
    )
    reader = EventReader(FRAME_MAX, 1 << 20)
    found: list[tuple[str, str, bytes, bytes, int]] = []
    for piece in cut(data, places):
        reader.feed(piece)
        for event in reader.events():
            number, _, (exchange, key, *_), properties, body = event
            found.append((exchange, key, properties or b"", body or b"", number))
            for key, bodies in reader.scattered(event):
                found += [("", key, properties or b"", each, number) for each in bodies]
    assert reader.unread_bytes == 0
    for mine in {each[:2] for each in sent}:
        assert [each for each in found if each[:2] == mine] == [
            each for each in sent if each[:2] == mine
        ]
    others = [each for each in sent if each[0]]
    assert [each for each in found if each[0]] == others


def test_events_come_byte_by_byte() -> None:
    data = published(1, "x", "k", b"\0\0", b"body") + HEARTBEAT
    reader = EventReader(FRAME_MAX, 100)
    found: list[Event] = []
    for at in range(len(data)):
        reader.feed(data[at : at + 1])
        found += reader.events()
    assert found == [
        (1, PUBLISH, ("x", "k", False, False), b"\0\0", b"body"),
        (0, 0, (), None, None),
    ]
    assert reader.unread_bytes == 0


def test_a_reader_may_be_left_and_asked_again() -> None:
    data = published(1, "x", "k", b"\0\0", b"body") * 3
    reader = EventReader(FRAME_MAX, 100)
    reader.feed(data)
    next(reader.events())
    reader.feed(data)
    assert len(list(reader.events())) == 5


@given(st.binary(max_size=300))
def test_garbage_is_a_wire_error(data: bytes) -> None:
    try:
        read([data])
    except WireError:
        pass


@given(st.lists(PUBLISHES, min_size=1, max_size=3), st.data())
def test_a_changed_byte_is_a_wire_error_or_another_event(
    sent: list[tuple[bytes, Event]], data: st.DataObject
) -> None:
    whole = bytearray(b"".join(frames for frames, _ in sent))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    try:
        read([bytes(whole)])
    except WireError:
        pass


def test_frames_of_other_channels_may_lie_between_those_of_a_content() -> None:
    payload = ENCODERS["basic.publish"]("x", "k", True, False)
    pieces = content_frames(1, payload, b"\0\0", bytes(5000), FRAME_MAX)
    frames = b"".join(pieces)
    method_end = len(method_frame(1, payload))
    ack = method_frame(2, ENCODERS["basic.ack"](7, True))
    found = read([frames[:method_end] + ack + frames[method_end:]])
    assert [event[:2] for event in found] == [(2, ACK), (1, PUBLISH)]
    assert found[1][4] == bytes(5000)


def test_a_body_that_is_too_long_is_read_over() -> None:
    data = published(1, "x", "k", b"\0\0", bytes(6000)) + HEARTBEAT
    reader = EventReader(FRAME_MAX, 5000)
    reader.feed(data)
    found = list(reader.events())
    assert found[0] == (1, PUBLISH, ("x", "k", False, False), b"\0\0", None)
    assert len(found) == 2
    assert reader.unread_bytes == 0
    small = published(1, "x", "k", b"\0\0", bytes(200))
    assert read([small], 100)[0][4] is None


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\1\0\1\0\0\0\4\0\x0a\0\x0a\xcf", ReplyCode.FRAME_ERROR),
        (b"\1\0\1\0\0\0\2\0\x0a\xce", ReplyCode.FRAME_ERROR),
        (b"\1\0\1\0\0\x20\0", ReplyCode.FRAME_ERROR),
        (b"\7\0\1\0\0\0\0\xce", ReplyCode.FRAME_ERROR),
        (b"\x08\0\1\0\0\0\0\xce", ReplyCode.UNEXPECTED_FRAME),
        (b"\3\0\1\0\0\0\0\xce", ReplyCode.UNEXPECTED_FRAME),
        (b"\2\0\1\0\0\0\x0e\0\x3c" + bytes(12) + b"\xce", ReplyCode.UNEXPECTED_FRAME),
        (method_frame(1, b"\0\x3c\0\x63"), ReplyCode.COMMAND_INVALID),
        (method_frame(1, b"\0\x3c\0\x50\0"), ReplyCode.FRAME_ERROR),
    ],
)
def test_what_breaks_the_protocol_has_rabbitmqs_code(data: bytes, code: ReplyCode) -> None:
    with pytest.raises(FaultError) as caught:
        read([data + bytes(8)])
    assert caught.value.code == code


def test_a_content_is_not_interrupted_on_its_channel() -> None:
    payload = ENCODERS["basic.publish"]("x", "k", False, False)
    ack = method_frame(1, ENCODERS["basic.ack"](7, True))
    with pytest.raises(FaultError, match="expected content") as caught:
        read([method_frame(1, payload) + ack])
    assert caught.value.code == ReplyCode.UNEXPECTED_FRAME


def test_a_publish_like_the_last_one_does_not_interrupt_a_content_either() -> None:
    like = published(1, "x", "k", b"\0\0", b"body")
    payload = ENCODERS["basic.publish"]("x", "k", False, False)
    with pytest.raises(FaultError, match="expected content"):
        read([like, method_frame(1, payload) + like])


def test_a_body_is_no_longer_than_its_header_says() -> None:
    payload = ENCODERS["basic.publish"]("x", "k", False, False)
    header = b"\2\0\1\0\0\0\x0e\0\x3c\0\0" + (3).to_bytes(8, "big") + b"\0\0\xce"
    body = b"\3\0\1\0\0\0\4abcd\xce"
    with pytest.raises(FaultError, match="longer") as caught:
        read([method_frame(1, payload) + header + body])
    assert caught.value.code == ReplyCode.FRAME_ERROR


def test_the_greeting_is_read_once_it_is_whole() -> None:
    reader = EventReader(FRAME_MAX, 100)
    reader.feed(GREETING[:5])
    assert reader.greeting() is None
    reader.feed(GREETING[5:] + HEARTBEAT)
    assert reader.greeting() == GREETING
    assert len(list(reader.events())) == 1


@given(st.lists(st.tuples(NAMES, NAMES, BODIES, st.booleans()), max_size=5))
def test_deliveries_are_read_as_they_were_written(
    items: list[tuple[str, str, bytes, bool]],
) -> None:
    writer = DeliveryWriter(3, "tag", FRAME_MAX)
    out: list[bytes | bytearray | memoryview] = []
    for number, (exchange, key, body, redelivered) in enumerate(items):
        place = encoded_address(exchange, key)
        writer.put(out, number, redelivered, place, b"\x80\0\4text", body)
    number = NUMBERS["basic.deliver"]
    assert read([b"".join(out)]) == [
        (3, number, ("tag", tag, redelivered, exchange, key), b"\x80\0\4text", body)
        for tag, (exchange, key, body, redelivered) in enumerate(items)
    ]


def test_a_delivery_like_the_two_before_it_has_the_same_bytes() -> None:
    writer = DeliveryWriter(3, "tag", FRAME_MAX)
    place, properties = encoded_address("e", "k"), b"\x80\0\4text"
    lead = place + b"\0\0\0\7" + properties
    for _ in range(2):
        writer.expect(lead, place, properties, len(lead) + 5)
    found, size, like = writer.like
    assert (found, size) == (lead, len(lead) + 5)
    out: list[bytes | bytearray | memoryview] = []
    writer.put(out, 7, False, place, properties, b"hello")
    assert like(7, b"hello") == b"".join(out)


def test_a_key_that_is_too_long_for_amqp_is_cut() -> None:
    assert encoded_address("", "ä" * 200) == b"\0\xfe" + ("ä" * 127).encode()
