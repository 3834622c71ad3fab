from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import InvalidRequestError
from onelog.record.inner_batch import encode_batch, split_batch
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.frame import RemotingFrameReader, encode_response
from onelog.wire.remoting.send import (
    _SHORT_NAMES,
    SendHeader,
    _decode_carefully,
    decode_send_header,
    encode_send_response,
)
from tests.wire.remoting import captured

SHORT = {
    "a": "group",
    "b": "orders",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "0",
    "g": "1794763032744",
    "h": "0",
}
LONG = {
    "producerGroup": "group",
    "topic": "orders",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "3",
    "sysFlag": "0",
    "bornTimestamp": "1794763032744",
    "flag": "0",
}
HEADER = SendHeader(
    "group", "orders", "TBW102", 4, 3, 0, 1794763032744, 0, "", 0, False, None, False
)


def read(stream: bytes) -> Command:
    reader = RemotingFrameReader()
    reader.feed(stream)
    (command,) = reader.commands()
    return command


def test_short_and_long_names_say_the_same() -> None:
    assert decode_send_header(Command(310, ext=SHORT)) == HEADER
    assert decode_send_header(Command(10, ext=LONG)) == HEADER


def test_optional_fields_are_read() -> None:
    ext = SHORT | {"i": "TAGS\x01a", "j": "2", "k": "true", "l": "16", "m": "true"}
    header = decode_send_header(Command(310, ext=ext))
    assert header.properties == "TAGS\x01a"
    assert (header.reconsume_times, header.reconsume_times_max) == (2, 16)
    assert header.unit_mode
    assert header.batch


def test_code_320_is_a_batch_whatever_the_field_says() -> None:
    assert decode_send_header(Command(320, ext=SHORT)).batch


@pytest.mark.parametrize("name", sorted(SHORT))
def test_a_missing_field_is_named(name: str) -> None:
    ext = {key: value for key, value in SHORT.items() if key != name}
    with pytest.raises(InvalidRequestError, match=f"the custom field <{name}> is null"):
        decode_send_header(Command(310, ext=ext))


@pytest.mark.parametrize("name", ["d", "e", "f", "g", "h", "j", "l"])
@pytest.mark.parametrize("value", ["x", "1_0", "9" * 30, "1.0"])
def test_a_field_that_is_no_number_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"<{name}> is not a number"):
        decode_send_header(Command(310, ext=SHORT | {name: value}))


def outcome(decode: Callable[[], object]) -> str:
    try:
        return str(decode())
    except InvalidRequestError as error:
        return str(error)


numbers = st.integers(-(2**33), 2**33).map(str) | st.sampled_from(["", "0", "-1", "+1", "x"])


@given(st.dictionaries(st.sampled_from("defghijkl"), numbers))
def test_the_fast_way_and_the_careful_way_agree(ext: dict[str, str]) -> None:
    full = {"a": "p", "b": "t", "c": "d"} | ext
    fast = outcome(lambda: decode_send_header(Command(310, ext=full)))
    assert fast == outcome(lambda: _decode_carefully(full, _SHORT_NAMES, 310))


@pytest.mark.parametrize("serialize", [0, 1])
@pytest.mark.parametrize("unique_key", ["7F0000010A2B", "", "x" * 300, "ключ", 'q"uote\\'])
@pytest.mark.parametrize("message_id", ["7F00000100002A9F0000000000000000", "7F," * 200])
def test_the_answer_to_a_send_is_the_usual_answer(
    serialize: int, unique_key: str, message_id: str
) -> None:
    answer = encode_send_response(
        7, message_id, 3, 12345, unique_key, "Region", False, serialize=serialize
    )
    ext = {
        "msgId": message_id,
        "queueId": "3",
        "queueOffset": "12345",
        "transactionId": unique_key,
        "MSG_REGION": "Region",
        "TRACE_ON": "false",
    }
    usual = b"".join(encode_response(0, 7, ext, serialize=serialize))
    assert read(answer) == read(usual)
    if serialize:
        assert answer == usual
    for handle in ("djEgdCBiIDEgaw==", "a-_" * 60):
        answer = encode_send_response(
            7, message_id, 3, 12345, unique_key, "Region", False, serialize, handle
        )
        timed = {**ext, "recallHandle": handle}
        assert read(answer) == read(b"".join(encode_response(0, 7, timed, serialize=serialize)))


def test_what_real_producers_send_is_understood() -> None:
    for frame in (captured.SEND_JSON_550, captured.SEND_COMPACT_550, captured.SEND_COMPACT_498):
        command = read(frame)
        header = decode_send_header(command)
        assert (header.producer_group, header.topic, header.queue_id) == ("pg", "t1", 0)
        assert "TAGS\x01tagA" in header.properties
        assert command.body == b"hello"


def test_a_real_batch_is_taken_apart_and_put_together_again() -> None:
    command = read(captured.BATCH_COMPACT_550)
    assert decode_send_header(command).batch
    messages = split_batch(command.body)
    assert [body for _, body, _ in messages] == [b"one", b"two"]
    assert b"TAGS\x01tagB" in messages[1][2]
    assert encode_batch(messages) == command.body
