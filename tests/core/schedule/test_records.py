"""The records of timed messages."""

import pytest

from onelog.core.schedule import records as timed_messages
from onelog.core.schedule.records import TAIL_BYTES, TAIL_HEAD, Scheduled
from onelog.errors import MessageError, PropertiesTooLargeError
from onelog.message import (
    Appended,
    LogOffset,
    Message,
    NewMessage,
    QueueOffset,
    decode_properties,
    encode_properties,
)
from onelog.names import TIMER_TOPIC
from onelog.record.decode import decode_message
from onelog.record.encode import encode

NOW_MS = 1_700_000_000_000


def stored(
    message: NewMessage, offset: int = 7, store_ms: int = NOW_MS, record_crc: bool = False
) -> Message:
    """The message as it is read back from the log."""
    place = Appended(LogOffset(4_096), QueueOffset(offset), 0)
    head, body, tail, _ = encode(
        message, place.queue_offset, place.log_offset, store_ms, record_crc
    )
    return decode_message(memoryview(b"".join((head, body, tail))))


def timed(due_ms: int = NOW_MS + 500, **properties: str) -> NewMessage:
    own = encode_properties({"UNIQ_KEY": "U1", "TIMER_DELAY_MS": "500", **properties})
    return timed_messages.scheduled(NewMessage("orders", 3, b"body", own, flag=9), due_ms)


def test_a_scheduled_message_keeps_everything_and_knows_its_way() -> None:
    message = timed(KEYS="k")
    assert (message.topic, message.queue_id) == (TIMER_TOPIC, 0)
    assert decode_properties(message.properties) == {
        "UNIQ_KEY": "U1",
        "KEYS": "k",
        "TIMER_DELAY_MS": "500",
        "REAL_TOPIC": "orders",
        "REAL_QID": "3",
        "TIMER_OUT_MS": f"0{NOW_MS + 500}",
    }
    read = timed_messages.read(stored(message))
    assert read == Scheduled(NOW_MS + 500, "orders", "U1")


@pytest.mark.parametrize("record_crc", [False, True])
def test_a_delivered_message_is_the_one_that_was_sent(record_crc: bool) -> None:
    record = stored(timed(), store_ms=NOW_MS + 1, record_crc=record_crc)
    assert timed_messages.read(record).due_ms == NOW_MS + 500
    message = timed_messages.delivered(record, NOW_MS + 503)
    assert (message.topic, message.queue_id, bytes(message.body), message.flag) == (
        "orders",
        3,
        b"body",
        9,
    )
    assert decode_properties(message.properties) == {
        "UNIQ_KEY": "U1",
        "TIMER_DELAY_MS": "500",
        "TIMER_OUT_MS": str(NOW_MS + 500),
        "TIMER_ENQUEUE_MS": str(NOW_MS + 1),
        "TIMER_DEQUEUE_MS": str(NOW_MS + 503),
    }


def test_what_a_sender_says_of_the_way_does_not_count() -> None:
    message = timed(REAL_TOPIC="secret", REAL_QID="0", TIMER_ROLL_FROM="0", TIMER_ROLL_TIMES="1")
    assert timed_messages.read(stored(message)) == Scheduled(NOW_MS + 500, "orders", "U1")
    assert timed_messages.delivered(stored(message), NOW_MS).topic == "orders"


def test_only_plain_scheduled_messages_end_with_their_time() -> None:
    def ends_with_its_time(message: NewMessage) -> bool:
        tail = message.properties[-TAIL_BYTES:]
        return tail.startswith(TAIL_HEAD) and tail[-14:-1].isdigit() and tail[-1] == 2

    assert ends_with_its_time(timed())
    assert ends_with_its_time(timed(REAL_TOPIC="secret"))
    assert ends_with_its_time(timed(TIMER_DEL_UNIQKEY="a header of another protocol"))
    plain = NewMessage("orders", 3, b"body")
    assert not ends_with_its_time(timed_messages.scheduled(plain, NOW_MS + 500, "orders+U9"))
    assert not ends_with_its_time(timed_messages.renewed(stored(timed())))
    host = b"\x7f\0\0\1\0\0\0\0"
    assert not ends_with_its_time(
        timed_messages.deletion("orders", "U1", NOW_MS, "g", NOW_MS, host)
    )


def test_a_renewed_message_says_which_one_it_stands_for() -> None:
    once = stored(timed_messages.renewed(stored(timed(), offset=7)), offset=90)
    assert timed_messages.read(once) == Scheduled(NOW_MS + 500, "orders", "U1", renews=7)
    twice = stored(timed_messages.renewed(once), offset=200)
    assert timed_messages.read(twice).renews == 90
    assert decode_properties(twice.properties)["TIMER_ROLL_TIMES"] == "2"
    delivered = timed_messages.delivered(twice, NOW_MS)
    assert (delivered.topic, delivered.queue_id) == ("orders", 3)
    assert not {"TIMER_ROLL_TIMES", "TIMER_ROLL_FROM", "REAL_TOPIC", "REAL_QID"} & set(
        decode_properties(delivered.properties)
    )


def test_a_deletion_names_what_it_deletes() -> None:
    message = timed_messages.deletion(
        "orders", "U1", NOW_MS + 5, "g", NOW_MS, b"\x7f\0\0\1\0\0\0\0"
    )
    assert decode_properties(message.properties)["PGROUP"] == "g"
    assert timed_messages.read(stored(message)) == Scheduled(
        NOW_MS + 5, "orders", "U1", deletes="orders+U1"
    )


def test_a_group_cannot_smuggle_properties_into_a_deletion() -> None:
    host = b"\x7f\0\0\1\0\0\0\0"
    group = "g\x02REAL_TOPIC\x01other"
    message = timed_messages.deletion("orders", "U1", NOW_MS + 5, group, NOW_MS, host)
    assert timed_messages.read(stored(message)).topic == "orders"
    assert b"other" not in message.properties


@pytest.mark.parametrize(
    ("properties", "store_ms", "due_ms"),
    [
        # 12.345 s was wanted; RocketMQ writes 12.000, and delivers at 13.000.
        ({"TIMER_DELIVER_MS": "12345", "TIMER_OUT_MS": "12000"}, 10_000, 12_345),
        ({"TIMER_DELIVER_MS": "13000", "TIMER_OUT_MS": "12000"}, 10_000, 13_000),
        ({"TIMER_DELAY_MS": "2345", "TIMER_OUT_MS": "12000"}, 10_001, 12_346),
        ({"TIMER_DELAY_SEC": "2", "TIMER_OUT_MS": "11000"}, 10_000, 12_000),
        # Rolled: what is left of the delay is not known any more.
        (
            {"TIMER_DELAY_SEC": "9", "TIMER_OUT_MS": "12000", "TIMER_ROLL_TIMES": "1"},
            10_000,
            13_000,
        ),
        ({"TIMER_OUT_MS": "12000"}, 10_000, 12_000),
        ({"TIMER_DELAY_MS": "x", "TIMER_OUT_MS": "12000"}, 10_000, 12_000),
    ],
)
def test_a_message_that_rocketmq_scheduled_is_not_delivered_early(
    properties: dict[str, str], store_ms: int, due_ms: int
) -> None:
    own = {"REAL_TOPIC": "orders", "REAL_QID": "0", "UNIQ_KEY": "U", **properties}
    message = stored(NewMessage(TIMER_TOPIC, 0, b"x", encode_properties(own)), store_ms=store_ms)
    read = timed_messages.read(message)
    assert (read.due_ms, read.is_copy) == (due_ms, "TIMER_ROLL_TIMES" in properties)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"REAL_TOPIC": "t", "REAL_QID": "0"},
        {"REAL_TOPIC": "t", "REAL_QID": "0", "TIMER_OUT_MS": "soon"},
        {"REAL_TOPIC": "t", "REAL_QID": "0", "TIMER_OUT_MS": "-5"},
        {"REAL_TOPIC": "t", "REAL_QID": "x", "TIMER_OUT_MS": "5"},
        {"REAL_QID": "0", "TIMER_OUT_MS": "5"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0", "TIMER_OUT_MS": "05"},
    ],
)
def test_a_record_that_says_nothing_useful_is_refused(properties: dict[str, str]) -> None:
    message = stored(NewMessage(TIMER_TOPIC, 0, b"x", encode_properties(properties)))
    with pytest.raises(MessageError):
        timed_messages.read(message)
    if properties.get("TIMER_OUT_MS") == "05":
        with pytest.raises(MessageError):
            timed_messages.delivered(message, NOW_MS)
        with pytest.raises(MessageError):
            timed_messages.renewed(message)


def test_properties_leave_room_for_what_is_added_later() -> None:
    with pytest.raises(PropertiesTooLargeError):
        timed(KEYS="k" * 32_650)
    longest = timed(KEYS="k" * 32_560)
    once = timed_messages.renewed(stored(longest))
    assert len(timed_messages.renewed(stored(once, offset=10**12)).properties) <= 32_767
    assert len(timed_messages.delivered(stored(longest), NOW_MS).properties) <= 32_767
