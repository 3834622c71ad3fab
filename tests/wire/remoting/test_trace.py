"""Traces are read as every version of RocketMQ's clients writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.remoting.trace import (
    Consumed,
    Delivered,
    MessageKind,
    Outcome,
    Published,
    Recalled,
    TraceRecord,
    TransactionEnded,
    decode_trace,
    encode_trace,
    trace_keys,
)

TEXTS = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=20
).filter(lambda text: text != "null")
TIMES = st.integers(0, 1 << 45)
COUNTS = st.integers(-(1 << 31), (1 << 31) - 1)
FLAGS = st.booleans()
PUBLISHED = st.builds(
    Published,
    TIMES,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    COUNTS,
    COUNTS,
    COUNTS,
    TEXTS,
    FLAGS,
    TEXTS,
)
DELIVERED = st.builds(Delivered, TIMES, TEXTS, TEXTS, TEXTS, TEXTS, COUNTS, TEXTS, TEXTS)
CONSUMED = st.builds(Consumed, TEXTS, TEXTS, COUNTS, FLAGS, TEXTS, COUNTS, TIMES, TEXTS)
ENDED = st.builds(
    TransactionEnded,
    TIMES,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    COUNTS,
    TEXTS,
    TEXTS,
    FLAGS,
)
RECALLED = st.builds(Recalled, TIMES, TEXTS, TEXTS, TEXTS, TEXTS, FLAGS)
RECORDS = st.lists(PUBLISHED | DELIVERED | CONSUMED | ENDED | RECALLED, max_size=6)


# What clients wrote to a broker: a producer of 4.9.8, in a transaction, and a consumer of 5.5.0.
CAPTURED_4_9_8 = (
    b"Pub\x011794767984941\x01DefaultRegion\x01orders-transactions\x01orders\x01"
    b"FD00000000000000000000000000000201E74E0E2F2A4C1A312D0005\x01paid\x01key-orders-2\x01"
    b"127.0.0.1:20309\x0126\x0111\x011\x017F00000100004F5500000000000008BB\x01true\x02"
    b"EndTransaction\x011794767984953\x01DefaultRegion\x01orders-transactions\x01orders\x01"
    b"FD00000000000000000000000000000201E74E0E2F2A4C1A312D0005\x01paid\x01key-orders-2\x01"
    b"127.0.0.1:20309\x012\x01FD00000000000000000000000000000201E74E0E2F2A4C1A312D0005\x01"
    b"COMMIT_MESSAGE\x01false\x02"
)
CAPTURED_5_5_0 = (
    b"SubBefore\x011794768015357\x01DefaultRegion\x01orders-group\x01"
    b"FD00000000000000000000000000000206374E0E2F2A4C1AA7FD0008\x01"
    b"FD00000000000000000000000000000206374E0E2F2A4C1AA27D0000\x010\x01key-orders-0\x02"
    b"SubAfter\x01FD00000000000000000000000000000206374E0E2F2A4C1AA7FD0008\x01"
    b"FD00000000000000000000000000000206374E0E2F2A4C1AA27D0000\x010\x01false\x01key-orders-0"
    b"\x014\x011794768015357\x01orders-group\x02"
)


def body(*records: str) -> bytes:
    """A trace's body, with spaces between the fields for the eye."""
    return "".join(record.replace(" ", "\x01") + "\x02" for record in records).encode()


@given(RECORDS)
def test_what_is_written_is_read_as_it_was(records: list[TraceRecord]) -> None:
    assert decode_trace(encode_trace(records)) == records


@given(RECORDS, RECORDS)
def test_bodies_side_by_side_are_one_body(
    first: list[TraceRecord], second: list[TraceRecord]
) -> None:
    assert decode_trace(encode_trace(first) + encode_trace(second)) == first + second


@given(st.binary(max_size=200) | TEXTS.map(str.encode))
def test_garbage_is_a_wire_error_or_nothing(raw: bytes) -> None:
    try:
        records = decode_trace(raw)
    except WireError:
        return
    assert decode_trace(encode_trace(records)) == records


@given(
    st.sampled_from(["Pub", "SubBefore", "SubAfter", "EndTransaction", "Recall"]),
    st.lists(TEXTS | COUNTS.map(str), max_size=16),
)
def test_garbled_records_are_a_wire_error_or_records(kind: str, fields: list[str]) -> None:
    try:
        records = decode_trace("\x01".join([kind, *fields]).encode())
    except WireError:
        return
    assert len(records) == 1


@given(PUBLISHED | DELIVERED | CONSUMED | ENDED | RECALLED, st.data())
def test_a_record_that_is_cut_off_is_an_error(record: TraceRecord, data: st.DataObject) -> None:
    fields = encode_trace([record])[:-1].split(b"\x01")
    needed = {"Published": 13, "Delivered": 8, "Consumed": 6, "TransactionEnded": 13, "Recalled": 7}
    kept = data.draw(st.integers(1, needed[type(record).__name__] - 1))
    with pytest.raises(WireError):
        decode_trace(b"\x01".join(fields[:kept]))


def test_what_a_producer_of_5_5_writes() -> None:
    record = (
        "Pub 1700000000123 DefaultRegion shop orders 7F0000010A1B2C3D paid order-7 "
        "127.0.0.1:10911 42 3 0 7F00000100002A9F0000000000000000 true"
    )
    (sent,) = decode_trace(body(record))
    assert sent == Published(
        1_700_000_000_123,
        "DefaultRegion",
        "shop",
        "orders",
        "7F0000010A1B2C3D",
        "paid",
        "order-7",
        "127.0.0.1:10911",
        42,
        3,
        MessageKind.NORMAL,
        "7F00000100002A9F0000000000000000",
        True,
    )
    assert encode_trace([sent]) == body(record)


def test_bodies_of_real_clients_are_read_and_written_to_the_byte() -> None:
    sent, ended = decode_trace(CAPTURED_4_9_8)
    assert isinstance(sent, Published)
    assert (sent.kind, sent.cost_ms, sent.keys) == (
        MessageKind.TRANSACTION_HALF,
        11,
        "key-orders-2",
    )
    assert isinstance(ended, TransactionEnded)
    assert (ended.state, ended.message_id) == ("COMMIT_MESSAGE", sent.message_id)
    given, failed = decode_trace(CAPTURED_5_5_0)
    assert isinstance(failed, Consumed)
    assert (failed.success, failed.outcome, failed.group) == (False, 4, "orders-group")
    assert encode_trace([sent, ended]) == CAPTURED_4_9_8
    assert encode_trace([given, failed]) == CAPTURED_5_5_0


def test_producers_of_other_versions_write_less_or_more() -> None:
    common = "Pub 1 r g t id null null host 42 3 1"
    oldest, newer, with_host = decode_trace(
        body(f"{common} true", f"{common} offset-id false", f"{common} null true 10.0.0.9")
    )
    assert isinstance(oldest, Published)
    assert (oldest.offset_id, oldest.success, oldest.client_host) == ("", True, "")
    assert (oldest.tags, oldest.keys, oldest.kind) == ("", "", MessageKind.TRANSACTION_HALF)
    assert isinstance(newer, Published)
    assert (newer.offset_id, newer.success) == ("offset-id", False)
    assert isinstance(with_host, Published)
    assert (with_host.offset_id, with_host.client_host) == ("", "10.0.0.9")


def test_what_a_consumer_writes_before_and_after() -> None:
    records = (
        "SubBefore 1700000000200 DefaultRegion readers REQ id-1 2 k1",
        "SubAfter REQ id-1 15 false k1 4 1700000000215 readers",
    )
    before, after = decode_trace(body(*records))
    assert before == Delivered(
        1_700_000_000_200, "DefaultRegion", "readers", "REQ", "id-1", 2, "k1"
    )
    assert after == Consumed(
        "REQ", "id-1", 15, False, "k1", Outcome.FAILED, 1_700_000_000_215, "readers"
    )
    assert encode_trace([before, after]) == body(*records)


def test_consumers_of_other_versions_write_less_or_more() -> None:
    up_to_4_7, cloud, oldest, of_4_8 = decode_trace(
        body(
            "SubAfter REQ id-1 15 true null 0",
            "SubAfter REQ id-1 15 true null 1 ",
            "SubAfter REQ id-1 15 true k",
            "SubBefore 1 r g REQ id-1 0 null 10.0.0.9",
        )
    )
    assert up_to_4_7 == Consumed("REQ", "id-1", 15, True, "")
    assert cloud == Consumed("REQ", "id-1", 15, True, "", Outcome.TIME_OUT)
    assert oldest == Consumed("REQ", "id-1", 15, True, "k")
    assert of_4_8 == Delivered(1, "r", "g", "REQ", "id-1", 0, "", "10.0.0.9")


def test_the_end_of_a_transaction_and_a_recall() -> None:
    records = (
        "EndTransaction 5 DefaultRegion shop orders id-1 paid k1 127.0.0.1:10911 2 tx-1 "
        "COMMIT_MESSAGE true",
        "Recall 6 DefaultRegion shop orders id-1 true",
    )
    ended, recalled = decode_trace(body(*records))
    assert ended == TransactionEnded(
        5,
        "DefaultRegion",
        "shop",
        "orders",
        "id-1",
        "paid",
        "k1",
        "127.0.0.1:10911",
        MessageKind.TRANSACTION_COMMIT,
        "tx-1",
        "COMMIT_MESSAGE",
        True,
    )
    assert recalled == Recalled(6, "DefaultRegion", "shop", "orders", "id-1", True)
    assert encode_trace([ended, recalled]) == body(*records)


def test_kinds_that_are_not_known_are_left_out() -> None:
    assert decode_trace(b"") == []
    assert decode_trace(body("Brew 1 2 3", "Recall 6 r g t id false")) == [
        Recalled(6, "r", "g", "t", "id", False)
    ]


@pytest.mark.parametrize("number", ["", "x", "1_000", " 7", "٣", "9" * 20, "--1"])
def test_only_digits_are_numbers(number: str) -> None:
    with pytest.raises(WireError, match="no Recall record"):
        decode_trace(f"Recall\x01{number}\x01r\x01g\x01t\x01id\x01true\x02".encode())


def test_the_keys_of_a_trace_lead_to_every_message_in_it() -> None:
    records: list[TraceRecord] = [
        Delivered(1, "r", "g", "REQ", "id-1", 0, "a b"),
        Delivered(1, "r", "g", "REQ", "id-2", 0, "b"),
        Recalled(2, "r", "g", "t", "id-3", True),
    ]
    assert trace_keys(records) == ["id-1", "a", "b", "id-2", "id-3"]
