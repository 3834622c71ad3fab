"""Columns have what the records have, whatever form the records are in."""

import logging
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from onelog.errors import ConfigError, WireError
from onelog.message import NewMessage, SysFlag, encode_properties
from onelog.record.decode import decode_message, decode_records
from onelog.record.inner_batch import encode_batch
from onelog.spark.columns import messages as columns
from onelog.spark.columns.messages import RecordDecoder
from onelog.spark.columns.schema import ALL, RowFilters, Selection, spark_schema
from tests.spark.record_samples import (
    INT64,
    QUICK,
    any_messages,
    arrow_schema,
    encoded,
    plain_messages,
    records,
    rows_of,
    rows_one_by_one,
)

NAMES = st.lists(st.sampled_from(ALL), min_size=1, unique=True)


def decoder(*names: str, **options: object) -> RecordDecoder:
    return RecordDecoder(names or ALL, arrow_schema(names or ALL), **options)  # type: ignore[arg-type]


# -- against the code that reads record by record -------------------------------------------------


@QUICK
@given(records(any_messages()), st.sampled_from([bytes, bytearray, memoryview]))
def test_all_columns_of_any_records_are_what_a_reader_of_single_records_finds(
    data: bytes, kind: type
) -> None:
    assert rows_of(decoder().decode(kind(data), Selection("b"))) == rows_one_by_one(data)


@QUICK
@given(records(plain_messages()), NAMES)
def test_columns_come_in_the_order_in_which_they_are_asked_for(
    data: bytes, names: list[str]
) -> None:
    batches = list(decoder(*names).decode(data, Selection("b")))
    for batch in batches:
        assert batch.schema == arrow_schema(names)
    expected = [{name: row[name] for name in names} for row in rows_one_by_one(data)]
    assert rows_of(batches) == expected


@QUICK
@given(records(any_messages()), NAMES)
def test_a_column_has_the_same_values_whichever_others_are_decoded(
    data: bytes, names: list[str]
) -> None:
    expected = [{name: row[name] for name in names} for row in rows_one_by_one(data)]
    assert rows_of(decoder(*names).decode(data, Selection("b"))) == expected


@QUICK
@given(st.lists(plain_messages(), max_size=5))
def test_fixed_fields_are_those_of_the_store_s_own_decoder(messages: list[NewMessage]) -> None:
    at, parts = 0, []
    for number, message in enumerate(messages):
        parts.append(encoded(message, number, at))
        at += len(parts[-1])
    rows = rows_of(
        decoder("topic", "queue", "offset", "flag", "log_offset").decode(
            b"".join(parts), Selection("b")
        )
    )
    for row, part in zip(rows, parts, strict=True):
        found = decode_message(memoryview(part))
        assert list(row.values()) == [
            found.topic,
            found.queue_id,
            found.queue_offset,
            found.flag,
            found.log_offset,
        ]


@QUICK
@given(records(any_messages(transactions=False)), st.data())
def test_bytes_are_refused_exactly_when_the_reader_of_single_records_refuses_them(
    data: bytes, drawn: st.DataObject
) -> None:
    if data and drawn.draw(st.booleans()):
        place = drawn.draw(st.integers(0, len(data) - 1))
        data = (
            data[:place]
            + bytes([data[place] ^ 1 << drawn.draw(st.integers(0, 7))])
            + data[place + 1 :]
        )
    if drawn.draw(st.booleans()):
        data = data[: drawn.draw(st.integers(0, len(data)))]
    data += drawn.draw(st.sampled_from([b"", b"\0" * 91, b"garbage" * 20]))
    try:
        expected = rows_one_by_one(data)
    except WireError:
        with pytest.raises(WireError):
            list(decoder().decode(data, Selection("b")))
    else:
        assert rows_of(decoder().decode(data, Selection("b"))) == expected


@QUICK
@given(st.binary(max_size=400))
def test_garbage_raises_a_wire_error_and_nothing_else(data: bytes) -> None:
    try:
        list(decoder().decode(data, Selection("b")))
    except WireError:
        pass


def test_no_bytes_are_no_rows() -> None:
    assert list(decoder().decode(b"", Selection("b"))) == []


# -- which rows -----------------------------------------------------------------------------------


def run_of(count: int, **properties: str) -> bytes:
    message = NewMessage("orders", 3, b"body", encode_properties(properties))
    return b"".join(
        encoded(message, offset, 200 * offset, 1000 + offset) for offset in range(count)
    )


@QUICK
@given(records(any_messages()), INT64, INT64)
def test_rows_outside_of_the_range_are_left_out(data: bytes, first: int, end: int) -> None:
    batches = list(decoder().decode(data, Selection("b", first_offset=first, end_offset=end)))
    inside = [row for row in rows_one_by_one(data) if first <= row["offset"] < end]  # type: ignore[operator]
    assert rows_of(batches) == inside


def test_a_range_may_start_and_end_inside_an_inner_batch() -> None:
    body = encode_batch((number, b"m%d" % number, b"") for number in range(5))
    flags = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
    data = encoded(NewMessage("orders", 0, body, sys_flag=flags), 100)
    rows = rows_of(
        decoder("offset", "body").decode(data, Selection("b", first_offset=101, end_offset=104))
    )
    assert rows == [{"offset": 100 + n, "body": b"m%d" % n} for n in (1, 2, 3)]


def test_many_rows_leave_in_batches_of_ten_thousand() -> None:
    batches = list(decoder("offset").decode(run_of(25_000), Selection("b")))
    assert [batch.num_rows for batch in batches] == [10_000, 10_000, 5_000]
    assert [row["offset"] for row in rows_of(batches)] == list(range(25_000))


def test_large_rows_leave_in_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BATCH_BYTES_MAX", 800)
    small, large = NewMessage("t", 0, b"x" * 300), NewMessage("t", 0, b"x" * 5000)
    data = b"".join(encoded(each) for each in (small, small, small, large, small))
    assert [each.num_rows for each in decoder("body").decode(data, Selection("b"))] == [2, 1, 1, 1]


def test_rows_can_be_chosen_by_tag_and_store_time() -> None:
    data = b"".join(
        encoded(NewMessage("t", 0, b"", encode_properties(p)), offset, 0, 1000 + offset)
        for offset, p in enumerate([{"TAGS": "a"}, {"TAGS": "b"}, {}, {"TAGS": "c"}, {"TAGS": "a"}])
    )

    def offsets(filters: RowFilters) -> list[object]:
        found = list(decoder("offset").decode(data, Selection("b", filters=filters)))
        return [row["offset"] for row in rows_of(found)]

    assert offsets(RowFilters()) == [0, 1, 2, 3, 4]
    assert offsets(RowFilters(tags=frozenset({"a", "c"}))) == [0, 3, 4]
    assert offsets(RowFilters(tags=frozenset())) == []
    assert offsets(RowFilters(store_ms_from=1001, store_ms_until=1004)) == [1, 2, 3]
    assert offsets(RowFilters(frozenset({"a"}), store_ms_from=1001)) == [4]


def test_half_and_rolled_back_messages_are_no_rows() -> None:
    kinds = [0, SysFlag.PREPARED, SysFlag.COMMITTED, SysFlag.ROLLED_BACK]
    data = b"".join(
        encoded(NewMessage("t", 0, b"", sys_flag=int(kind)), number)
        for number, kind in enumerate(kinds)
    )
    assert [row["offset"] for row in rows_of(decoder("offset").decode(data, Selection("b")))] == [
        0,
        2,
    ]


# -- records in queues of other topics -----------------------------------------------------------


def shared(topics: str, offsets: str, **options: object) -> bytes:
    properties = encode_properties(
        {"INNER_MULTI_DISPATCH": topics, "INNER_MULTI_QUEUE_OFFSET": offsets}
    )
    return encoded(NewMessage("orders", 3, b"body", properties, **options), 10, 4711)  # type: ignore[arg-type]


def places(data: bytes, topic: str | None, **range_: int) -> list[list[object]]:
    selection = Selection("b", topic=topic, **range_)  # type: ignore[arg-type]
    found = decoder("topic", "queue", "offset").decode(data, selection)
    return [list(row.values()) for row in rows_of(found)]


def test_a_record_has_the_place_of_the_queue_that_it_was_read_from() -> None:
    data = shared("fan-out,%LMQ%x", "7,8")
    assert places(data, None) == [["orders", 3, 10]]
    assert places(data, "orders") == [["orders", 3, 10]]
    assert places(data, "fan-out") == [["fan-out", 3, 7]]
    assert places(data, "%LMQ%x") == [["%LMQ%x", 0, 8]]


def test_ranges_are_about_offsets_in_the_queue_that_was_read() -> None:
    data = shared("fan-out", "7") + shared("fan-out", "8") + shared("fan-out", "9")
    assert places(data, "fan-out", first_offset=8, end_offset=9) == [["fan-out", 3, 8]]


def test_an_inner_batch_has_places_in_the_queue_that_was_read_too() -> None:
    body = encode_batch((0, b"m%d" % number, b"") for number in range(3))
    flags = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
    properties = encode_properties(
        {"INNER_NUM": "3", "INNER_MULTI_DISPATCH": "fan-out", "INNER_MULTI_QUEUE_OFFSET": "50"}
    )
    data = encoded(NewMessage("orders", 1, body, properties, sys_flag=flags), 10)
    assert places(data, "fan-out", first_offset=51) == [["fan-out", 1, 51], ["fan-out", 1, 52]]


@QUICK
@given(records(any_messages()))
def test_a_topic_that_all_records_name_changes_nothing(data: bytes) -> None:
    for topic in {row["topic"] for row in rows_one_by_one(data)}:
        own = b"".join(data[at:end] for at, end, name in spans(data) if name == topic)
        assert rows_of(decoder().decode(own, Selection("b", topic=str(topic)))) == rows_one_by_one(
            own
        )


def spans(data: bytes) -> list[tuple[int, int, str]]:
    found, at = [], 0
    for message in decode_records(data):
        found.append((at, at + message.size, message.topic))
        at += message.size
    return found


def test_a_record_that_has_no_place_in_the_queue_is_refused() -> None:
    with pytest.raises(WireError, match=r"belongs to topic 'orders', but was read from .* 'other'"):
        list(decoder().decode(shared("fan-out", "7"), Selection("b", topic="other")))


def test_an_offset_that_no_queue_can_have_is_refused() -> None:
    with pytest.raises(WireError, match="can be in the place it says"):
        list(decoder().decode(shared("fan-out", "9" * 30), Selection("b", topic="fan-out")))


# -- damage ---------------------------------------------------------------------------------------


def with_wrong_crc(message: NewMessage, queue_offset: int, log_offset: int) -> bytes:
    record = bytearray(encoded(message, queue_offset, log_offset))
    record[8] ^= 1
    return bytes(record)


def test_a_body_with_another_crc_fails_and_says_where() -> None:
    message = NewMessage("t", 0, b"body")
    data = encoded(message, 0, 4711) + with_wrong_crc(message, 1, 4811)
    with pytest.raises(WireError, match="log offset 4811 has another CRC"):
        list(decoder().decode(data, Selection("b")))
    with pytest.raises(WireError, match="log offset 4811 has another CRC"):
        decode_records(data)


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_bodies_of_any_size_are_checked(size: int) -> None:
    message = NewMessage("t", 0, b"x" * size)
    good = encoded(message, 0, 0)
    assert [row["body"] for row in rows_of(decoder().decode(good * 3, Selection("b")))] == [
        message.body
    ] * 3
    with pytest.raises(WireError, match="log offset 5 has another CRC"):
        list(decoder().decode(good + with_wrong_crc(message, 1, 5) + good, Selection("b")))


def test_a_body_that_is_not_decoded_is_not_checked() -> None:
    data = with_wrong_crc(NewMessage("t", 0, b"body"), 7, 0)
    assert rows_of(decoder("offset").decode(data, Selection("b"))) == [{"offset": 7}]


def test_damaged_records_can_be_skipped_and_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    flags = int(SysFlag.COMPRESSED)
    data = (
        encoded(NewMessage("t", 0, b"first"), 0)
        + with_wrong_crc(NewMessage("t", 0, b"second"), 1, 77)
        + encoded(NewMessage("t", 0, b"not zlib", sys_flag=flags), 2, 88)
        + encoded(NewMessage("t", 0, b"last"), 3)
    )
    skipping = decoder("offset", on_corruption="skip")
    assert len(rows_of(skipping.decode(data, Selection("b")))) == 4
    assert skipping.skipped == 0
    skipping = decoder("offset", "body", on_corruption="skip")
    with caplog.at_level(logging.WARNING):
        rows = rows_of(skipping.decode(data, Selection("b")))
    assert [row["body"] for row in rows] == [b"first", b"last"]
    assert skipping.skipped == 2
    assert "log offset 77" in caplog.text
    assert "log offset 88" in caplog.text


# -- schemas --------------------------------------------------------------------------------------


def test_the_schema_of_columns_is_a_spark_schema() -> None:
    assert spark_schema(["offset", "tags", "properties"]).simpleString() == (
        "struct<offset:bigint,tags:string,properties:map<string,string>>"
    )
    assert spark_schema(ALL).names == list(ALL)
    assert isinstance(spark_schema([]), StructType)


def test_a_column_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"no column 'value'; there are topic, queue, offset"):
        spark_schema(["offset", "value"])


def test_a_schema_that_fits_no_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'offset' is bigint, not int32"):
        RecordDecoder(["offset"], pa.schema([("offset", pa.int32())]))
    with pytest.raises(ConfigError, match=r"'offset' is asked for, but the schema lacks it"):
        RecordDecoder(["offset"], pa.schema([("tags", pa.string())]))
    with pytest.raises(ConfigError, match=r"nothing gives the column 'price'"):
        RecordDecoder([], pa.schema([("price", pa.string())]))


def test_wide_strings_and_other_zones_are_given_as_they_are_asked_for() -> None:
    schema = pa.schema(
        [
            ("topic", pa.large_string()),
            ("body", pa.large_binary()),
            ("store_time", pa.timestamp("us", "Europe/Berlin")),
            ("properties", pa.map_(pa.large_string(), pa.large_string())),
        ]
    )
    (batch,) = list(RecordDecoder(schema.names, schema).decode(run_of(1, a="b"), Selection("b")))
    assert batch.schema == schema
    assert rows_of([batch]) == [
        {"topic": "orders", "body": b"body", "store_time": 1_000_000, "properties": {"a": "b"}}
    ]


def test_filters_can_be_sent_to_workers() -> None:
    filters = RowFilters(frozenset({"a"}), 1, 2)
    assert pickle.loads(pickle.dumps(filters)) == filters
