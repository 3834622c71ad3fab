"""What the properties of a message say it is to become."""

import pytest

from onelog.clock import ManualClock
from onelog.core.publish import Intent
from onelog.errors import MessageError
from onelog.message import encode_properties
from onelog.rocketmq.sent_properties import NEEDLES, intent_of, is_timed
from onelog.rocketmq.sent_properties import wanted_ms as wanted_ms_of

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("properties", "wanted_ms"),
    [
        ({"TIMER_DELAY_SEC": "2"}, NOW_MS + 2_000),
        ({"TIMER_DELAY_MS": "20"}, NOW_MS + 20),
        ({"TIMER_DELIVER_MS": "1800000000000"}, 1_800_000_000_000),
        ({"TIMER_DELIVER_MS": "5", "TIMER_DELAY_MS": "20"}, NOW_MS + 20),
        ({"TIMER_DELAY_MS": "20", "TIMER_DELAY_SEC": "2"}, NOW_MS + 2_000),
        ({"TIMER_DELAY_MS": "-20"}, NOW_MS - 20),
        ({"TIMER_DELAY_MS": "20", "DELAY": "0"}, NOW_MS + 20),
        ({"TIMER_DELAY_MS": "20", "DELAY": "3"}, None),
        ({"TIMER_DELAY_MS": "20", "TIMER_OUT_MS": "1"}, None),
        ({"TIMER_DEL_UNIQKEY": "orders+U1"}, None),
        ({"MY_TIMER_DELAY_MS": "20"}, None),
        ({}, None),
    ],
)
def test_the_time_that_a_sender_wants(properties: dict[str, str], wanted_ms: int | None) -> None:
    encoded = encode_properties({"KEYS": "k", **properties, "WAIT": "true"})
    assert wanted_ms_of(encoded, NOW_MS) == wanted_ms
    assert wanted_ms_of(encode_properties(properties)[:-1], NOW_MS) == wanted_ms


@pytest.mark.parametrize("text", ["soon", "1.5", " 5", "1_000", "", "9" * 30])
def test_a_time_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(MessageError):
        wanted_ms_of(b"TIMER_DELAY_MS\x01" + text.encode() + b"\x02", NOW_MS)


@pytest.mark.parametrize(
    ("properties", "intent"),
    [
        ({}, None),
        ({"MY_DELAY": "3", "MY_TIMER_DELAY_MS": "5", "XTRAN_MSG": "true"}, None),
        ({"A": "DELAY", "B": "TIMER_DELAY_MS", "C": "TRAN_MSG"}, None),
        ({"DELAY": "3"}, Intent(delay_level=3)),
        ({"DELAY": "0"}, None),
        ({"DELAY": "-1"}, None),
        ({"DELAY": "3", "TIMER_DELAY_MS": "20"}, Intent(delay_level=3)),
        ({"DELAY": "0", "TIMER_DELAY_MS": "20"}, Intent(NOW_MS + 20)),
        ({"TIMER_DELAY_SEC": "2"}, Intent(NOW_MS + 2_000)),
        ({"TIMER_DELAY_MS": "0"}, None),
        ({"TIMER_DELIVER_MS": "1"}, None),
        ({"TIMER_DELAY_MS": "5", "TIMER_OUT_MS": "1"}, None),
        (
            {"TIMER_DELAY_MS": "5", "TIMER_DEL_UNIQKEY": "orders+U1"},
            Intent(NOW_MS + 5, recalls="orders+U1"),
        ),
        ({"TRAN_MSG": "true"}, Intent(half=True)),
        ({"TRAN_MSG": "TRUE", "DELAY": "soon"}, Intent(half=True)),
        ({"TRAN_MSG": "false"}, None),
    ],
)
def test_what_a_sender_wants(properties: dict[str, str], intent: Intent | None) -> None:
    encoded = encode_properties({"KEYS": "k", **properties})
    assert intent_of(encoded, ManualClock(NOW_MS)) == intent
    assert intent is None or any(needle in encoded for needle in NEEDLES)
    timed = intent is not None and intent.deliver_at_ms is not None
    assert is_timed(encoded) or not timed


@pytest.mark.parametrize(
    "properties",
    [
        {"DELAY": "soon"},
        {"TIMER_DELAY_MS": "x"},
        {"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "k"},
    ],
)
def test_what_cannot_be_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(MessageError):
        intent_of(encode_properties(properties), ManualClock(NOW_MS))
