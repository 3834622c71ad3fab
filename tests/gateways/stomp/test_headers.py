"""Headers of STOMP as properties of AMQP, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import InvalidRequestError
from onelog.gateways.stomp.headers import arguments_of, properties_of, shown
from onelog.record.forms import amqp_fields

NOW_MS = 1_700_000_000_000


def test_headers_that_amqp_has_are_its_properties() -> None:
    headers = {
        "destination": "/queue/a",
        "receipt": "1",
        "content-length": "3",
        "content-type": "text/x",
        "persistent": "true",
        "priority": "7",
        "correlation-id": "c",
        "reply-to": "/queue/r",
        "expiration": "1000",
        "amqp-message-id": "m",
        "timestamp": "12",
        "type": "t",
        "user-id": "u",
        "app-id": "p",
        "mine": "ours",
        "content-encoding": "gzip",
    }
    assert amqp_fields.decode_properties(properties_of(headers, NOW_MS)) == {
        "content_type": "text/x",
        "content_encoding": "gzip",
        "headers": {"mine": "ours"},
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "/queue/r",
        "expiration": "1000",
        "message_id": "m",
        "timestamp": 12,
        "type": "t",
        "user_id": "u",
        "app_id": "p",
    }


NAMES = st.text("abcdefXYZ", min_size=1, max_size=20)


@given(headers=st.dictionaries(NAMES.map("h-{}".format), st.text(max_size=50), max_size=5))
def test_other_headers_come_back_as_they_were(headers: dict[str, str]) -> None:
    assert dict(shown(properties_of(headers, NOW_MS))) == headers


def test_expires_is_a_time_of_the_clock() -> None:
    soon = properties_of({"expires": str(NOW_MS + 500)}, NOW_MS)
    assert amqp_fields.property_of(soon, "expiration") == "500"
    past = properties_of({"expires": "5", "expiration": "9"}, NOW_MS)
    assert amqp_fields.property_of(past, "expiration") == "0"
    never = properties_of({"expires": "0"}, NOW_MS)
    assert amqp_fields.property_of(never, "expiration") is None


@pytest.mark.parametrize(
    "headers",
    [
        {"priority": "high"},
        {"priority": "256"},
        {"priority": "-1"},
        {"expiration": "soon"},
        {"timestamp": "9" * 30},
        {"correlation-id": "x" * 256},
        {"n" * 300: "x"},
    ],
)
def test_what_cannot_be_kept_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError):
        properties_of(headers, NOW_MS)


def test_values_of_other_kinds_are_texts() -> None:
    table: dict[str, object] = {
        "n": 5,
        "b": True,
        "l": [1, {"a": b"x"}],
        "none": None,
        "raw": b"\xff",
    }
    properties = amqp_fields.encode_properties({"headers": table, "delivery_mode": 1})
    assert dict(shown(properties)) == {
        "persistent": "false",
        "n": "5",
        "b": "true",
        "l": '[1, {"a": "x"}]',
        "none": "",
        "raw": "\N{REPLACEMENT CHARACTER}",
    }


def test_what_a_queue_is_declared_with() -> None:
    headers = {
        "x-max-length": "10",
        "x-overflow": "reject-publish",
        "x-other": "y",
        "x-single-active-consumer": "true",
    }
    assert arguments_of(headers) == {
        "x-max-length": 10,
        "x-overflow": "reject-publish",
        "x-single-active-consumer": True,
    }
    with pytest.raises(InvalidRequestError):
        arguments_of({"x-max-length": "many"})
