import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.transactions.half_records import (
    OFFSETS_PER_OPERATION_MAX,
    check_of,
    checked_out,
    committed,
    ended_offsets,
    immune_until,
    operations,
    prepared,
    resumed,
)
from onelog.errors import MessageError
from onelog.message import (
    LOOPBACK,
    PROPERTIES_BYTES_MAX,
    Message,
    NewMessage,
    decode_properties,
    encode_properties,
)
from onelog.names import CHECKED_OUT_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from onelog.record.decode import decode_message
from onelog.record.encode import encode

OFFSETS = st.integers(0, 2**63 - 1)


def stored(message: NewMessage, queue_offset: int = 5, log_offset: int = 700) -> Message:
    head, body, tail, _ = encode(message, queue_offset, log_offset, 1_000_000, record_crc=True)
    return decode_message(memoryview(b"".join((head, body, tail))))


def half(**properties: str) -> Message:
    given = {"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": "u", **properties}
    return stored(
        prepared(NewMessage("orders", 3, b"x", encode_properties(given), 1, 4, born_ms=999_000))
    )


def test_each_form_has_the_message_and_its_own_place() -> None:
    of = half(K="v")
    forms = (committed(of, 2), check_of(of, 2), checked_out(of, 2), resumed(of))
    places = [("orders", 3), ("orders", 3), (CHECKED_OUT_TOPIC, 0), (HALF_TOPIC, 0)]
    assert [(form.topic, form.queue_id) for form in forms] == places
    for form in forms:
        assert (bytes(form.body), form.flag, form.born_ms) == (b"x", 1, 999_000)
        properties = decode_properties(form.properties)
        assert (properties["K"], properties["PGROUP"]) == ("v", "g")
        assert "__CRC32#" not in properties, "a checksum of another record"
    assert [form.sys_flag for form in forms] == [8, 0, 0, 0]
    assert [form.prepared_offset for form in forms] == [700, 0, 0, 0]
    times = [decode_properties(form.properties).get("TRANSACTION_CHECK_TIMES") for form in forms]
    assert times == ["2", "2", "2", None]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["TRAN_MSG", "XTRAN_MSG", "REAL_TOPIC", "REAL_QID", "PGROUP", "A"]),
            st.sampled_from(["true", "x", "TRAN_MSG"]),
        )
    )
)
def test_whatever_the_sender_calls_its_properties_the_broker_has_the_last_word(
    pairs: list[tuple[str, str]],
) -> None:
    given = "".join(f"{name}\x01{value}\x02" for name, value in [("PGROUP", "g"), *pairs]).encode()
    of = stored(prepared(NewMessage("orders", 3, b"x", given.removesuffix(b"\x02"))))
    found = committed(of, 0)
    assert (found.topic, found.queue_id) == ("orders", 3)
    own = {"TRAN_MSG", "REAL_TOPIC", "REAL_QID"}
    kept = {name: value for name, value in pairs if name not in own}
    assert decode_properties(found.properties) == {"PGROUP": "g", **kept}


def test_a_message_that_is_sent_on_leaves_the_count_of_its_first_transaction_behind() -> None:
    sent_on = encode_properties(
        {"TRAN_MSG": "true", "PGROUP": "g", "TRANSACTION_CHECK_TIMES": "14"}
        | {"TRAN_PREPARED_QUEUE_OFFSET": "7", "KEYS": "k"}
    )
    half = prepared(NewMessage("orders", 0, b"x", sent_on))
    named = decode_properties(half.properties)
    assert named.keys() == {"TRAN_MSG", "PGROUP", "KEYS", "REAL_TOPIC", "REAL_QID"}


def test_properties_without_room_for_the_count_go_without_it() -> None:
    room = PROPERTIES_BYTES_MAX - len(half(KEYS="k").properties)
    full = half(KEYS="k" * room)
    assert len(checked_out(full, 3).properties) <= PROPERTIES_BYTES_MAX
    assert "TRANSACTION_CHECK_TIMES" not in decode_properties(checked_out(full, 3).properties)


def test_a_half_message_that_names_no_place_goes_nowhere() -> None:
    lost = stored(NewMessage(HALF_TOPIC, 0, b"x", encode_properties({"REAL_TOPIC": "orders"})))
    with pytest.raises(MessageError):
        committed(lost, 0)
    assert checked_out(lost, 0).topic == CHECKED_OUT_TOPIC


@given(st.lists(OFFSETS, min_size=1, max_size=3 * OFFSETS_PER_OPERATION_MAX))
def test_operations_name_what_has_ended_in_small_records(offsets: list[int]) -> None:
    records = operations(offsets, 7, LOOPBACK)
    read = [offset for record in records for offset in ended_offsets(stored(record))]
    assert read == offsets
    assert all(len(record.body) <= 4_096 for record in records)
    assert {(record.topic, record.queue_id) for record in records} == {(OP_HALF_TOPIC, 0)}


@given(st.binary(max_size=40))
def test_any_operation_can_be_read(body: bytes) -> None:
    record = NewMessage(OP_HALF_TOPIC, 0, body, encode_properties({"TAGS": "d"}))
    assert all(offset >= 0 for offset in ended_offsets(stored(record)))


def test_one_number_is_the_whole_operation_when_one_ends() -> None:
    (record,) = operations([17], 7, LOOPBACK)
    assert record.body == b"17", "what RocketMQ 4.9 reads"


@pytest.mark.parametrize(
    ("seconds", "wanted_ms"),
    [("", 6_000), ("3", 6_000), ("60", 60_000), ("soon", 6_000), ("-1", 6_000), ("9" * 30, 6_000)],
)
def test_the_immunity_is_the_longer_of_the_own_and_the_usual(seconds: str, wanted_ms: int) -> None:
    of = half(CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
    assert immune_until(of, 6_000) == 999_000 + wanted_ms
