"""Outgoing messages: their properties, and the limits with words that help."""

from datetime import UTC, datetime, timedelta

import pytest

from onelog.client.message import Message
from onelog.client.producer.outgoing import batch_body, check_batch, check_body, properties_of
from onelog.errors import MessageError, MessageTooLargeError, PropertiesTooLargeError
from onelog.message import decode_properties
from onelog.record.inner_batch import split_batch


def properties(message: Message, extra: dict[str, str] | None = None) -> dict[str, str]:
    return decode_properties(properties_of(message, "ID", extra).encode())


def test_everything_a_message_says_of_itself_is_a_property() -> None:
    message = Message(
        "orders", b"x", tags="paid", keys=["1", "2"], properties={"größe": "ß"}, delay_level=3
    )
    assert properties(message, {"TRAN_MSG": "true"}) == {
        "UNIQ_KEY": "ID",
        "TAGS": "paid",
        "KEYS": "1 2",
        "DELAY": "3",
        "größe": "ß",
        "TRAN_MSG": "true",
    }


def test_a_plain_message_has_its_id_only() -> None:
    assert properties_of(Message("orders", b"x"), "ID") == "UNIQ_KEY\x01ID\x02"


def test_times_are_milliseconds() -> None:
    delayed = Message("orders", b"x", delay=timedelta(seconds=90, milliseconds=5))
    assert properties(delayed)["TIMER_DELAY_MS"] == "90005"
    at = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(milliseconds=7)
    timed = Message("orders", b"x", deliver_at=at)
    assert properties(timed)["TIMER_DELIVER_MS"] == "1893456000007"


@pytest.mark.parametrize("character", ["x", "ß", "€", "😀"])
def test_properties_over_what_a_record_can_hold_are_refused(character: str) -> None:
    size = len(character.encode())
    room = 32_767 - len("UNIQ_KEY\x01ID\x02a\x01\x02")
    properties_of(Message("orders", b"x", properties={"a": character * (room // size)}), "ID")
    too_large = Message("orders", b"x", properties={"a": character * (room // size + 1)})
    with pytest.raises(PropertiesTooLargeError, match=r"have \d+ bytes; the limit is 32767"):
        properties_of(too_large, "ID")


def test_a_body_over_the_limit_is_refused_with_its_size_and_the_option() -> None:
    check_body("orders", 10, 10)
    with pytest.raises(MessageTooLargeError, match=r"'orders' has 11 bytes; the limit is 10 .*bod"):
        check_body("orders", 11, 10)


def test_a_batch_is_its_messages_one_after_the_other() -> None:
    messages = [Message("orders", b"a", flag=1, tags="t"), Message("orders", b"bb", flag=2)]
    body = batch_body(messages, ["A", "B"], {"k": "v"}, 1_000)
    first, second = split_batch(body)
    assert (*first[:2], *second[:2]) == (1, b"a", 2, b"bb")
    assert decode_properties(first[2]) == {"UNIQ_KEY": "A", "TAGS": "t", "k": "v"}
    assert decode_properties(second[2]) == {"UNIQ_KEY": "B", "k": "v"}


def test_a_batch_over_the_limit_is_refused_whether_bodies_or_properties_are_too_many() -> None:
    with pytest.raises(MessageTooLargeError, match=r"batch of 2 messages to 'orders'.*in parts"):
        batch_body([Message("orders", b"x" * 50)] * 2, ["A", "B"], None, 100)
    wide = Message("orders", b"x", properties={"a": "b" * 90})
    with pytest.raises(MessageTooLargeError, match="batch of 1 messages"):
        batch_body([wide], ["A"], None, 100)


def test_what_cannot_be_one_batch_is_refused() -> None:
    assert check_batch([Message("orders", b"x")]) == "orders"
    with pytest.raises(MessageError, match="at least one"):
        check_batch([])
    with pytest.raises(MessageError, match="one topic, and these go to a, b"):
        check_batch([Message("b", b"x"), Message("a", b"x")])
    with pytest.raises(MessageError, match="retries and dead letters go one by one"):
        check_batch([Message("%RETRY%g", b"x")])
    for late in (
        Message("a", b"x", delay=timedelta(1)),
        Message("a", b"x", deliver_at=datetime.now(UTC)),
        Message("a", b"x", delay_level=1),
    ):
        with pytest.raises(MessageError, match="message 1 of the batch is to be delivered later"):
            check_batch([Message("a", b"x"), late])
