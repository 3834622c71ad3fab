"""Messages: what is refused at once, and what a received one tells."""

import pickle
import zlib
from datetime import UTC, datetime, timedelta

import pytest

from onelog.client.message import RESERVED_PROPERTIES, Message, Queue, Receipt, ReceivedMessage
from onelog.errors import EmptyMessageError, InvalidTopicError, MessageError
from onelog.message import LogOffset, QueueOffset, SysFlag, encode_host, encode_properties
from onelog.message import Message as Record


def record(
    topic: str = "orders",
    body: bytes = b"hello",
    properties: bytes = b"",
    sys_flag: int = 0,
    reconsume_times: int = 0,
) -> Record:
    return Record(
        topic=topic,
        queue_id=3,
        queue_offset=QueueOffset(17),
        log_offset=LogOffset(4711),
        body=memoryview(body),
        properties=properties,
        flag=9,
        sys_flag=sys_flag,
        born_ms=1_700_000_000_123,
        born_host=encode_host("10.0.0.1", 1),
        store_ms=1_700_000_000_456,
        store_host=encode_host("10.0.0.2", 10911),
        reconsume_times=reconsume_times,
        prepared_offset=0,
        body_crc=0,
        size=200,
    )


def test_a_message_has_what_it_was_given() -> None:
    message = Message("orders", b"x", tags="paid", keys=["1", "2"], properties={"a": "b"}, flag=7)
    assert (message.topic, message.body, message.tags) == ("orders", b"x", "paid")
    assert (message.keys, message.properties, message.flag) == (("1", "2"), {"a": "b"}, 7)


def test_one_key_may_be_a_text() -> None:
    assert Message("orders", b"x", keys="42").keys == ("42",)
    assert Message("orders", b"x", keys=[]).keys == ()


def test_a_message_is_a_value() -> None:
    given = {"a": "b"}
    message = Message("orders", b"x", properties=given)
    given["a"] = "c"
    assert message == Message("orders", b"x", properties={"a": "b"})
    assert len({message, Message("orders", b"x", properties={"a": "b"})}) == 1
    assert pickle.loads(pickle.dumps(message)) == message
    with pytest.raises(AttributeError):
        message.topic = "other"  # type: ignore[misc]


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "ä", "x" * 128])
def test_topics_that_no_client_of_rocketmq_takes_are_refused(topic: str) -> None:
    with pytest.raises(InvalidTopicError):
        Message(topic, b"x")


def test_the_longest_names_are_taken() -> None:
    Message("x" * 127, b"x")
    Message("%RETRY%" + "x" * 130, b"x")


def test_a_body_that_is_a_text_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match="bytes, not str: encode it"):
        Message("orders", "text")  # type: ignore[arg-type]


def test_a_message_without_a_body_is_refused() -> None:
    with pytest.raises(EmptyMessageError, match="'orders' has an empty body"):
        Message("orders", b"")


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES)[::7])
def test_names_that_rocketmq_keeps_for_itself_are_refused(name: str) -> None:
    with pytest.raises(MessageError, match=f"'{name}' is reserved"):
        Message("orders", b"x", properties={name: "1"})


@pytest.mark.parametrize("text", ["a\x01b", "a\x02b", "", "\ud800"])
def test_texts_that_would_break_the_properties_are_refused(text: str) -> None:
    with pytest.raises(MessageError):
        Message("orders", b"x", properties={"a": text})
    with pytest.raises(MessageError):
        Message("orders", b"x", properties={text: "a"})
    with pytest.raises(MessageError):
        Message("orders", b"x", tags=text)
    with pytest.raises(MessageError):
        Message("orders", b"x", keys=["a", text])


def test_a_key_with_a_space_would_be_two_keys() -> None:
    with pytest.raises(MessageError, match="spaces separate keys"):
        Message("orders", b"x", keys="a b")


def test_values_of_properties_are_texts() -> None:
    with pytest.raises(TypeError, match="property 'a' must be a text, not int"):
        Message("orders", b"x", properties={"a": 1})  # type: ignore[dict-item]


def test_one_way_to_delay_excludes_the_others() -> None:
    later = datetime.now(UTC)
    with pytest.raises(MessageError, match="exclude one another"):
        Message("orders", b"x", delay=timedelta(seconds=1), deliver_at=later)
    with pytest.raises(MessageError, match="exclude one another"):
        Message("orders", b"x", delay=timedelta(seconds=1), delay_level=3)
    Message("orders", b"x", delay=timedelta(0))
    Message("orders", b"x", deliver_at=later)
    Message("orders", b"x", delay_level=18)


def test_times_without_a_zone_and_in_the_wrong_direction_are_refused() -> None:
    with pytest.raises(MessageError, match="no time zone"):
        Message("orders", b"x", deliver_at=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(MessageError, match="delay cannot be"):
        Message("orders", b"x", delay=timedelta(seconds=-1))
    with pytest.raises(MessageError, match="delay level"):
        Message("orders", b"x", delay_level=-1)


def test_a_flag_has_32_bits() -> None:
    assert Message("orders", b"x", flag=-(2**31)).flag == -(2**31)
    with pytest.raises(MessageError, match="32-bit"):
        Message("orders", b"x", flag=2**31)


def test_a_received_message_tells_what_the_record_says() -> None:
    properties = {"TAGS": "paid", "KEYS": "1 2", "UNIQ_KEY": "AB", "colour": "red", "WAIT": "true"}
    message = ReceivedMessage(record(properties=encode_properties(properties)), "broker-a")
    assert (message.topic, message.body, message.flag) == ("orders", b"hello", 9)
    assert (message.tags, message.keys, message.message_id) == ("paid", ["1", "2"], "AB")
    assert message.properties == {"colour": "red"}
    assert message.all_properties == properties
    assert (message.queue, message.offset) == (Queue("orders", "broker-a", 3), 17)
    assert message.offset_id == "0A0000020000 2A9F 0000000000001267".replace(" ", "")
    assert (message.born_ms, message.store_ms) == (1_700_000_000_123, 1_700_000_000_456)
    assert message.born_time == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert message.store_time - message.born_time == timedelta(milliseconds=333)
    assert message.delivery_attempt == 1
    assert message.transaction_id is None
    assert "AB of orders from broker-a/3 at 17" in repr(message)


def test_without_a_unique_key_the_offset_id_is_the_id() -> None:
    message = ReceivedMessage(record(), "broker-a")
    assert message.message_id == message.offset_id
    assert (message.tags, message.keys, message.properties) == (None, [], {})


def test_a_compressed_body_is_unpacked_when_it_is_asked_for() -> None:
    packed = record(body=zlib.compress(b"hello" * 100), sys_flag=int(SysFlag.COMPRESSED))
    message = ReceivedMessage(packed, "broker-a")
    assert message.body == b"hello" * 100
    assert message.body is message.body


def test_a_retried_message_has_its_real_topic_and_its_retry_queue() -> None:
    properties = encode_properties({"RETRY_TOPIC": "orders"})
    raw = record("%RETRY%billing", properties=properties, reconsume_times=2)
    message = ReceivedMessage(raw, "broker-a")
    assert message.topic == "orders"
    assert message.queue.topic == "%RETRY%billing"
    assert message.delivery_attempt == 3


def test_a_committed_transaction_has_an_id() -> None:
    properties = encode_properties({"UNIQ_KEY": "AB"})
    raw = record(properties=properties, sys_flag=int(SysFlag.COMMITTED))
    assert ReceivedMessage(raw, "b").transaction_id == "AB"
    named = encode_properties({"UNIQ_KEY": "AB", "__transactionId__": "T1"})
    assert ReceivedMessage(record(properties=named), "b").transaction_id == "T1"


def test_a_receipt_is_a_value() -> None:
    receipt = Receipt("id", "offset-id", Queue("orders", "broker-a", 1), 5)
    assert pickle.loads(pickle.dumps(receipt)) == receipt
    with pytest.raises(AttributeError):
        receipt.offset = 6  # type: ignore[misc]
