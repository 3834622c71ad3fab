"""Retained messages: found by any filter as a look at all of them would find them."""

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.sessions.retained import Retained
from onelog.errors import BrokerBusyError
from onelog.gateways.mqtt.filters import read_filter

LEVEL = st.sampled_from(["a", "b", "$x", ""])
TOPICS = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, last: "/".join([*levels, *last]),
    st.lists(LEVEL | st.just("+"), max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)


def retained(bytes_max: int = 1 << 20) -> Retained:
    return Retained(mock.Mock(), bytes_max)


@given(st.lists(st.tuples(TOPICS, st.booleans()), max_size=20), FILTERS)
def test_a_filter_finds_its_own(changes: list[tuple[str, bool]], text: str) -> None:
    messages = retained()
    model: dict[str, bytes] = {}
    for topic, is_kept in changes:
        messages.retain(topic, topic.encode() if is_kept else None, mock.Mock())
        model.pop(topic, None)
        if is_kept:
            model[topic] = topic.encode()
    wanted = read_filter(text)
    expected = sorted(body for topic, body in model.items() if wanted.matches(topic.split("/")))
    assert sorted(filter(None, messages.matching(wanted.levels))) == expected
    assert len(messages) == len(model)


def test_nothing_is_left_of_what_is_deleted() -> None:
    messages = retained()
    messages.retain("a/b/c", b"x", mock.Mock())
    messages.retain("a/b/c", None, mock.Mock())
    assert (messages.bytes, len(messages), messages._tree) == (0, 0, {})


def test_there_is_a_limit() -> None:
    messages = retained(bytes_max=1_000)
    messages.retain("a", bytes(700), mock.Mock())
    with pytest.raises(BrokerBusyError):
        messages.retain("b", bytes(700), mock.Mock())
    assert messages.find("b") is None


def test_a_snapshot_brings_all_of_them_back() -> None:
    messages, again = retained(), retained()
    for number in range(3):
        messages.retain(f"t/{number}", bytes((number,)), mock.Mock())
    for part in messages.parts():
        for topic, value in part.items():
            again.apply(topic, value)
    assert sorted(filter(None, again.matching(["t", "+"]))) == [b"\0", b"\1", b"\2"]
