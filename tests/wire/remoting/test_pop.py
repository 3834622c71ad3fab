"""Receipts and batches of acknowledgements, as RocketMQ's clients spell them."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import InvalidReceiptError, WireError
from onelog.wire.remoting.pop import (
    BATCH_MAX,
    BatchAck,
    QueueInfo,
    Receipt,
    decode_batch,
    message_offset_info,
    order_count_info,
    parse_receipt,
    real_topic,
    retry_mark,
    start_offset_info,
)

QUEUES = [
    QueueInfo("orders", 3, [17, 18, 21], [0, 2, 0]),
    QueueInfo("%RETRY%readers_orders", 0, [5], [1]),
]
NUMBER = st.integers(0, 2**31 - 1)


def test_the_fields_of_an_answer_are_spelled_as_rocketmq_does() -> None:
    assert start_offset_info(QUEUES) == "0 3 17;1 0 5"
    assert message_offset_info(QUEUES) == "0 3 17,18,21;1 0 5"
    assert order_count_info(QUEUES) == "0 qo3%18 2;0 3 0;1 qo0%5 1;1 0 1"


def test_the_three_kinds_of_topic_have_marks_both_ways() -> None:
    for topic, mark in (
        ("orders", "0"),
        ("%RETRY%readers_orders", "1"),
        ("%RETRY%readers+orders", "2"),
    ):
        assert retry_mark(topic) == mark
        assert real_topic("orders", "readers", mark) == topic
    with pytest.raises(InvalidReceiptError):
        real_topic("orders", "readers", "3")


def test_a_receipt_of_the_java_client_is_read() -> None:
    text = "17 1700000000123 60000 4 0 broker-a 3 18"
    assert parse_receipt(text) == Receipt(17, 1700000000123, 60000, 4, "0", "broker-a", 3, 18)
    assert parse_receipt(text.rpartition(" ")[0]).offset is None
    assert parse_receipt(text + " 4711").offset == 18, "the proxy adds a ninth part"


@given(
    st.builds(
        Receipt,
        NUMBER,
        st.integers(0, 2**63 - 1),
        NUMBER,
        NUMBER,
        st.sampled_from("012"),
        st.from_regex(r"[a-zA-Z0-9_-]+", fullmatch=True),
        NUMBER,
        st.none() | NUMBER,
    )
)
def test_every_receipt_is_read_as_it_was_written(receipt: Receipt) -> None:
    assert parse_receipt(str(receipt)) == receipt


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17 1700000000123 60000 4 0 broker-a",
        "x 1700000000123 60000 4 0 broker-a 3",
        "17 -1 60000 4 0 broker-a 3",
        "17 1_000 60000 4 0 broker-a 3",
        "17 1700000000123 60000 4 9 broker-a 3",
        "17 1700000000123 60000 4 0 broker-a 99999999999",
        "17 1700000000123 60000 4 0 broker-a 3 99999999999999999999",
        "17  1700000000123 60000 4 0 broker-a 3",
        "\u0661 1 1 1 0 b 1",
    ],
)
def test_what_is_no_receipt_is_refused(text: str) -> None:
    with pytest.raises(InvalidReceiptError):
        parse_receipt(text)


@given(st.text(alphabet="0123456789 -abc\u0663", max_size=60))
def test_garbage_is_a_receipt_or_an_invalid_one(text: str) -> None:
    try:
        parse_receipt(text)
    except InvalidReceiptError:
        pass


def bits(*offsets: int) -> str:
    """What Java's BitSet.toByteArray gives, in base64."""
    value = sum(1 << offset for offset in offsets)
    raw = value.to_bytes((max(offsets, default=-1) + 8) // 8, "little")
    return base64.b64encode(raw).decode()


SHORT = {
    "c": "readers",
    "t": "orders",
    "r": "1",
    "so": 100,
    "q": 2,
    "rq": 0,
    "pt": 1700000000123,
    "it": 60000,
}
LONG = {
    "consumerGroup": "readers",
    "topic": "orders",
    "retry": "1",
    "startOffset": 100,
    "queueId": 2,
    "reviveQueueId": 0,
    "popTime": 1700000000123,
    "invisibleTime": 60000,
}


@pytest.mark.parametrize(("entry", "name"), [(SHORT, "b"), (LONG, "bitSet")])
def test_a_batch_names_its_messages_by_bits_under_short_or_long_names(
    entry: dict[str, object], name: str
) -> None:
    body = json.dumps({"brokerName": "broker-a", "acks": [{**entry, name: bits(0, 3, 17)}]})
    assert decode_batch(body.encode()) == [
        BatchAck("readers", "orders", "1", 2, 1700000000123, [100, 103, 117])
    ]


def test_a_batch_may_be_empty() -> None:
    assert (
        decode_batch(b"{}") == decode_batch(b'{"acks":[]}') == decode_batch(b'{"acks":null}') == []
    )
    assert decode_batch(json.dumps({"acks": [SHORT]}).encode())[0].offsets == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"acks":7}',
        b'{"acks":[7]}',
        b'{"acks":[{}]}',
        json.dumps({"acks": [{**SHORT, "b": "!"}]}).encode(),
        json.dumps({"acks": [{**SHORT, "b": "AAA"}]}).encode(),
        json.dumps({"acks": [{**SHORT, "so": -1, "b": bits(0)}]}).encode(),
        json.dumps({"acks": [{**SHORT, "q": "2", "b": bits(0)}]}).encode(),
        json.dumps({"acks": [{**SHORT, "t": 5, "b": bits(0)}]}).encode(),
        json.dumps(
            {"acks": [{**SHORT, "b": base64.b64encode(b"\xff" * (BATCH_MAX // 8 + 1)).decode()}]}
        ).encode(),
        json.dumps(
            {"acks": [{**SHORT, "b": base64.b64encode(b"\xff" * (BATCH_MAX // 8)).decode()}] * 2}
        ).encode(),
    ],
)
def test_what_is_no_batch_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        decode_batch(body)


@given(st.binary(max_size=60))
def test_garbage_raises_nothing_but_wire_errors(body: bytes) -> None:
    try:
        decode_batch(body)
    except WireError:
        pass
