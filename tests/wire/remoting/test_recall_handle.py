"""Recall handles."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.remoting.recall_handle import RecallHandle

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" "), min_size=1)


def test_a_handle_as_rocketmq_makes_it() -> None:
    handle = RecallHandle("TopicTest", "broker-a", 1_700_000_000_001, "AC1200011F906D06")
    text = base64.urlsafe_b64encode(
        b"v1 TopicTest broker-a 1700000000001 AC1200011F906D06"
    ).decode()
    assert handle.encode() == text
    assert RecallHandle.decode(text) == handle
    assert RecallHandle.decode(text.rstrip("=")) == handle


@given(WORDS, WORDS, st.integers(0, 10**18 - 1), WORDS)
def test_handles_are_read_back(topic: str, broker: str, time_ms: int, key: str) -> None:
    handle = RecallHandle(topic, broker, time_ms, key)
    assert RecallHandle.decode(handle.encode()) == handle


def encoded(words: str) -> str:
    return base64.urlsafe_b64encode(words.encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1 t b 1 k",
        "????",
        "äöü",
        encoded("v1 t b 1"),
        encoded("v2 t b 1 k"),
        encoded("v1 t b soon k"),
        encoded("v1 t b -1 k"),
        encoded("v1 t b 1 k x"),
        encoded("v1 t b " + "9" * 30 + " k"),
        base64.urlsafe_b64encode(b"v1 t b 1 \xff").decode(),
    ],
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(WireError, match="invalid"):
        RecallHandle.decode(text)


@given(st.text() | st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_garbage_raises_a_wire_error_and_nothing_else(text: str) -> None:
    try:
        RecallHandle.decode(text)
    except WireError:
        pass
