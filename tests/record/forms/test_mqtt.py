"""MQTT's form: what a client published, whole; and what other forms see of it."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.record.forms import mqtt
from onelog.record.forms.neutral import Neutral

PROPERTIES = (
    b"\x01\x01\x02\x00\x00\x00\x3c\x03\x00\x04text\x08\x00\x03a/b\x09\x00\x02\xff\x00"
    b"\x26\x00\x04shop\x00\x05north\x26\x00\x04shop\x00\x05south"
)


def test_the_parts_of_a_publish_come_back() -> None:
    body = mqtt.encode(5, 1_000, b"me", b"a/b", PROPERTIES, b"hello")
    assert mqtt.read(body) == (5, 1_000, b"me", b"a/b", PROPERTIES, b"hello")
    assert mqtt.expiry_s(PROPERTIES) == 60
    assert mqtt.expiry_s(b"") is None


def test_properties_and_topic_are_headers_for_others() -> None:
    body = mqtt.encode(2, 1_000, b"me", b"a/b", PROPERTIES, b"hello")
    neutral = mqtt.to_neutral(body)
    assert neutral == Neutral(
        None,
        b"hello",
        (
            ("mqtt.topic", b"a/b"),
            ("content-type", b"text"),
            ("reply-to", b"a/b"),
            ("correlation-id", b"\xff\x00"),
            ("mqtt.format", b"1"),
            ("mqtt.expiry", b"60"),
            ("shop", b"north"),
            ("shop", b"south"),
        ),
        1_000,
    )
    again = mqtt.read(mqtt.from_neutral(neutral, 2, b"me"))
    assert (again.topic, again.payload, again.flags) == (b"a/b", b"hello", 2)
    assert mqtt.to_neutral(mqtt.from_neutral(neutral)) == neutral


@given(st.binary(max_size=80))
def test_garbage_is_a_wire_error(body: bytes) -> None:
    with contextlib.suppress(WireError):
        mqtt.to_neutral(body)


@given(st.binary(max_size=60))
def test_garbage_in_the_properties_is_a_wire_error(properties: bytes) -> None:
    body = mqtt.encode(0, 0, b"", b"t", properties, b"")
    with contextlib.suppress(WireError):
        mqtt.to_neutral(body)
