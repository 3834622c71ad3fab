"""A message that is written again is the same, without what the store said of its old record."""

from onelog.message import NewMessage, SysFlag, decode_properties
from onelog.record.decode import decode_message
from onelog.record.dispatch import with_dispatch_properties
from onelog.record.encode import encode
from onelog.record.properties import with_property, without_property, written_again


def stored(message: NewMessage) -> bytes:
    whole = with_dispatch_properties(message, lambda topic, queue_id, count: 7)
    head, body, tail, _ = encode(whole, 5, 4096, 34, record_crc=True)
    return b"".join((head, body, tail))


def test_what_the_store_added_is_left_out() -> None:
    sent = NewMessage("t", 3, b"body", b"TAGS\x01a\x02", 9, born_ms=12, extra_queues=("%LMQ%x",))
    message = decode_message(memoryview(stored(sent)))
    assert set(decode_properties(message.properties)) == {
        "TAGS",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "__CRC32#",
    }
    again = written_again(message, "other", 1, message.properties, reconsume_times=2)
    assert again == NewMessage(
        "other", 1, b"body", b"TAGS\x01a\x02", 9, born_ms=12, reconsume_times=2
    )


def test_an_inner_batch_stays_one_of_as_many_messages() -> None:
    message = decode_message(memoryview(stored(NewMessage("t", 3, b"body", inner_count=5))))
    again = written_again(message, "other", 1, message.properties)
    assert (again.inner_count, again.properties) == (5, b"")
    assert again.sys_flag & SysFlag.INNER_BATCH


def test_a_property_is_found_by_its_whole_name() -> None:
    properties = b"AB\x01x\x02B\x01y\x02C\x01B\x01z\x02B\x01last"
    assert without_property(properties, b"B\x01") == b"AB\x01x\x02C\x01B\x01z\x02"
    assert with_property(b"A\x011", b"B\x01", b"2") == b"A\x011\x02B\x012\x02"
