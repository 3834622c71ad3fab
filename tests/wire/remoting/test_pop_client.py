"""What is expected of the Java client here was printed by its classes, version 5.5.0."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.message import NewMessage, encode_properties
from onelog.record.encode import encode
from onelog.wire.remoting.pop import (
    BATCH_SPAN_MAX,
    PopRequest,
    QueueInfo,
    Receipt,
    change_fields,
    changed,
    decode_batch,
    encode_batch,
    fits_batch,
    message_offset_info,
    order_count_info,
    parse_receipt,
    popped,
    real_topic,
    receipt_fields,
    start_offset_info,
)

REQUEST = PopRequest("readers", "orders", -1, 32, 60_000, 15_000, 1_700_000_000_000)
EXT = {"popTime": "1700000000123", "invisibleTime": "60000", "reviveQid": "4", "restNum": "7"}


def answer(queues: Sequence[QueueInfo], ordered: bool = False) -> dict[str, str]:
    ext = {
        **EXT,
        "startOffsetInfo": start_offset_info(queues),
        "msgOffsetInfo": message_offset_info(queues),
    }
    if ordered:
        ext["orderCountInfo"] = order_count_info(queues)
    return ext


def body(*places: tuple[str, int, int], times: int = 0, **properties: str) -> bytes:
    pieces: list[bytes] = []
    for topic, queue_id, offset in places:
        message = NewMessage(
            topic, queue_id, b"body", encode_properties(properties), reconsume_times=times
        )
        head, written, tail, _ = encode(message, offset, 0, 1_700_000_000_000, False)
        pieces += (head, bytes(written), tail)
    return b"".join(pieces)


def test_a_request_has_the_fields_of_the_java_client() -> None:
    assert REQUEST.fields() == {
        "consumerGroup": "readers",
        "topic": "orders",
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": "60000",
        "pollTime": "15000",
        "bornTime": "1700000000000",
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }
    ordered = REQUEST._replace(ordered=True, attempt_id="a-1").fields()
    assert (ordered["order"], ordered["attemptId"]) == ("true", "a-1")


def test_receipts_are_those_that_the_java_client_makes() -> None:
    retry = "%RETRY%readers+orders"
    ext = answer([QueueInfo("orders", 3, [17, 18]), QueueInfo(retry, 0, [5])])
    found = popped(
        REQUEST, "broker-a", ext, body(("orders", 3, 17), ("orders", 3, 18), (retry, 0, 5))
    )
    assert [str(each.receipt) for each in found] == [
        "17 1700000000123 60000 4 0 broker-a 3 17",
        "17 1700000000123 60000 4 0 broker-a 3 18",
        "5 1700000000123 60000 4 2 broker-a 0 5",
    ]
    assert [each.message.topic for each in found] == ["orders"] * 3


def test_offsets_are_those_of_the_answer_where_the_record_has_another() -> None:
    light = REQUEST._replace(topic="%LMQ%device-1")
    ext = answer([QueueInfo("%LMQ%device-1", 0, [2, 3])])
    found = popped(light, "broker-a", ext, body(("events", 5, 900), ("events", 6, 40)))
    assert [(each.receipt.queue_id, each.receipt.offset) for each in found] == [(0, 2), (0, 3)]


def test_a_message_that_brings_its_receipt_keeps_it() -> None:
    """RocketMQ gives what came back the topic's own name, and writes the receipt into it."""
    brought = "5 1700000000123 60000 4 1 broker-a 0 6"
    ext = answer([QueueInfo("%RETRY%readers_orders", 0, [5, 6]), QueueInfo("orders", 0, [9])])
    data = body(("orders", 0, 6), times=2, POP_CK=brought) + body(("orders", 0, 9))
    found = popped(REQUEST, "broker-a", ext, data)
    assert [str(each.receipt) for each in found] == [
        brought,
        "9 1700000000123 60000 4 0 broker-a 0 9",
    ]
    assert [each.message.reconsume_times for each in found] == [2, 0]


def test_a_broker_that_tells_no_offsets_leases_from_the_first_message_on() -> None:
    found = popped(REQUEST, "b", EXT, body(("orders", 1, 7), ("orders", 1, 9), ("orders", 2, 4)))
    assert [(each.receipt.first_offset, each.receipt.offset) for each in found] == [
        (7, 7),
        (7, 9),
        (4, 4),
    ]


def test_ordered_messages_that_came_back_are_counted() -> None:
    queues = [QueueInfo("orders", 3, [17, 18, 19], [1, 2, 1])]
    data = body(("orders", 3, 17), ("orders", 3, 18), ("orders", 3, 19))
    found = popped(REQUEST, "b", answer(queues, ordered=True), data)
    assert [each.message.reconsume_times for each in found] == [1, 2, 1]
    found = popped(REQUEST, "b", {**answer(queues), "orderCountInfo": "0 3 4"}, data)
    assert [each.message.reconsume_times for each in found] == [4, 4, 4]


@pytest.mark.parametrize(
    "broken",
    [
        {"popTime": "soon"},
        {"reviveQid": ""},
        {"startOffsetInfo": "0 3"},
        {"startOffsetInfo": "0 3 x"},
        {"startOffsetInfo": "0 4 17"},
        {"startOffsetInfo": "0 3 18"},
        {"msgOffsetInfo": ""},
        {"msgOffsetInfo": "0 3 17,"},
        {"msgOffsetInfo": "1 3 17"},
        {"orderCountInfo": "0 3 often"},
    ],
)
def test_an_answer_that_does_not_fit_its_messages_is_refused(broken: dict[str, str]) -> None:
    ext = {**answer([QueueInfo("orders", 3, [17])]), **broken}
    with pytest.raises(WireError, match="POP_MESSAGE"):
        popped(REQUEST, "broker-a", ext, body(("orders", 3, 17)))


@pytest.mark.parametrize("receipt", ["", "nonsense", "5 1 2 4 0 b 0"])
def test_a_brought_receipt_that_is_none_is_refused(receipt: str) -> None:
    data = body(("orders", 0, 6), POP_CK=receipt or " ")
    with pytest.raises(WireError):
        popped(REQUEST, "b", answer([QueueInfo("orders", 0, [6])]), data)


@given(
    st.dictionaries(
        st.sampled_from([*EXT, "startOffsetInfo", "msgOffsetInfo", "orderCountInfo"]),
        st.text("01 ;,qo%x", max_size=12),
    )
)
def test_any_fields_give_receipts_or_a_wire_error(fields: dict[str, str]) -> None:
    try:
        found = popped(REQUEST, "b", {**EXT, **fields}, body(("orders", 1, 1)))
    except WireError:
        return
    assert found[0].receipt.offset is not None


def test_an_acknowledgement_names_the_real_topic() -> None:
    receipt = parse_receipt("5 1700000000123 60000 4 1 broker-a 0 6")
    assert receipt_fields("readers", "orders", receipt) == {
        "consumerGroup": "readers",
        "topic": "%RETRY%readers_orders",
        "queueId": "0",
        "extraInfo": "5 1700000000123 60000 4 1 broker-a 0 6",
        "offset": "6",
        "bname": "broker-a",
    }
    assert change_fields("readers", "orders", receipt, 9)["invisibleTime"] == "9"


def test_a_retry_topic_that_is_popped_itself_is_named_as_it_is() -> None:
    """Messages wait there that were given back before the group began to pop."""
    retry = "%RETRY%readers"
    request = REQUEST._replace(topic=retry)
    ext = answer([QueueInfo(retry, 0, [5, 6])])
    found = popped(request, "broker-a", ext, body((retry, 0, 5), (retry, 0, 6)))
    receipts = [each.receipt for each in found]
    assert [each.message.topic for each in found] == [retry, retry]
    assert receipt_fields("readers", retry, receipts[0])["topic"] == retry
    (ack,) = decode_batch(encode_batch("readers", retry, receipts))
    assert real_topic(ack.topic, ack.group, ack.retry) == retry
    assert list(ack.offsets) == [5, 6]


def test_a_changed_time_gives_a_receipt_for_this_message_alone() -> None:
    receipt = parse_receipt("5 1700000000123 60000 4 1 broker-a 0 6")
    ext = {"popTime": "1700000050000", "invisibleTime": "9000", "reviveQid": "2"}
    assert str(changed(receipt, ext)) == "6 1700000050000 9000 2 1 broker-a 0 6"
    with pytest.raises(WireError, match="popTime"):
        changed(receipt, {})


def test_a_batch_is_written_as_the_java_client_writes_it() -> None:
    receipts = [
        Receipt(17, 1700000000123, 60000, 4, "0", "broker-a", 3, offset)
        for offset in (17, 18, 21, 87)
    ]
    receipts.append(Receipt(5, 1700000000123, 60000, 4, "1", "broker-a", 0, 5))
    assert encode_batch("readers", "orders", receipts) == (
        b'{"acks":[{"b":"EwAAAAAAAABA","c":"readers","it":60000,"pt":1700000000123,"q":3,"r":"0",'
        b'"rq":4,"so":17,"t":"orders"},{"b":"AQ==","c":"readers","it":60000,"pt":1700000000123,'
        b'"q":0,"r":"1","rq":4,"so":5,"t":"orders"}],"brokerName":"broker-a"}'
    )


@given(
    st.lists(
        st.builds(
            Receipt,
            st.integers(0, 50),
            st.integers(0, 3),
            st.just(60_000),
            st.just(0),
            st.sampled_from("012"),
            st.just("broker-a"),
            st.integers(0, 2),
            st.integers(50, 300),
        ),
        min_size=1,
    )
)
def test_the_broker_reads_every_message_of_a_batch(receipts: list[Receipt]) -> None:
    written = {
        (real_topic("orders", "readers", each.retry), each.queue_id, each.popped_ms, each.offset)
        for each in receipts
    }
    read = {
        (real_topic(ack.topic, ack.group, ack.retry), ack.queue_id, ack.popped_ms, offset)
        for ack in decode_batch(encode_batch("readers", "orders", receipts))
        for offset in ack.offsets
    }
    assert read == written


def test_a_message_far_from_its_leases_first_is_acknowledged_alone() -> None:
    receipt = Receipt(10, 1, 1, 0, "0", "b", 0, 10 + BATCH_SPAN_MAX - 1)
    assert fits_batch(receipt)
    assert not fits_batch(receipt._replace(offset=10 + BATCH_SPAN_MAX))
    assert not fits_batch(receipt._replace(offset=None))
