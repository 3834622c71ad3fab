"""Methods by their table."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.amqp.codes import FaultError, ReplyCode, reply_text
from onelog.wire.amqp.methods import DECODERS, ENCODERS, NAMES, NUMBERS, decode

SAMPLES: dict[str, tuple[Any, ...]] = {
    "connection.start": (0, 9, {"product": "x"}, b"PLAIN", b"en_US"),
    "connection.start-ok": ({}, "PLAIN", b"\0a\0b", "en_US"),
    "connection.tune": (2047, 131072, 60),
    "connection.open": ("/",),
    "connection.close": (320, "CONNECTION_FORCED - bye", 0, 0),
    "access.request": ("data", False, True, True, False, True),
    "exchange.declare": ("x", "topic", False, True, False, False, True, {"a": 1}),
    "exchange.unbind": ("d", "s", "k", True, {}),
    "queue.declare": ("q", False, True, False, True, False, {"x-max-length": 3}),
    "queue.declare-ok": ("q", 3, 1),
    "queue.unbind": ("q", "x", "k", {"x-match": "all"}),
    "basic.qos": (0, 10, True),
    "basic.consume": ("q", "t", True, False, True, False, {}),
    "basic.deliver": ("t", 1 << 63, True, "x", "k"),
    "basic.get-ok": (7, False, "x", "k", 12),
    "basic.nack": (9, False, True),
    "basic.reject": (9, True),
    "tx.commit": (),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_method_comes_back_as_it_was(name: str) -> None:
    data = ENCODERS[name](*SAMPLES[name])
    assert int.from_bytes(data[:4], "big") == NUMBERS[name]
    assert decode(NUMBERS[name], data[4:]) == SAMPLES[name]


def test_the_answer_to_unbind_has_the_number_that_rabbitmq_gave_it() -> None:
    assert NUMBERS["exchange.unbind-ok"] == 40 << 16 | 51


def test_bits_share_an_octet_from_the_lowest_up() -> None:
    data = ENCODERS["exchange.declare"]("", "", False, True, False, False, True, {})
    assert data == bytes.fromhex("0028000a 0000 00 00 12 00000000")


@given(st.sampled_from(sorted(NAMES)), st.binary(max_size=60))
def test_garbage_is_a_wire_error(method: int, data: bytes) -> None:
    try:
        assert isinstance(decode(method, data), tuple)
    except WireError:
        pass


def test_every_method_can_be_read_and_written() -> None:
    assert set(DECODERS) == set(NAMES) == {NUMBERS[name] for name in ENCODERS}


def test_an_unknown_method_is_an_invalid_command() -> None:
    with pytest.raises(FaultError, match=r"60\.99") as caught:
        decode(60 << 16 | 99, b"")
    assert caught.value.code == ReplyCode.COMMAND_INVALID
    assert not caught.value.code.is_soft
    assert ReplyCode.NOT_FOUND.is_soft


def test_a_reply_text_is_a_short_string() -> None:
    text = reply_text(ReplyCode.NOT_FOUND, "ä" * 200)
    assert text.startswith("NOT_FOUND - ää")
    assert len(text.encode()) <= 255
