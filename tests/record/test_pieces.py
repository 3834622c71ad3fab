"""Fields of many records are found where they are, and nowhere else."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.message import NewMessage
from onelog.record.columns import Ints, find_records, integers, lay_out, leading_records
from onelog.record.columns.pieces import bodies, pieces, properties, topics
from onelog.record.decode import decode_records
from tests.spark.record_samples import QUICK, any_messages, encoded, records


def as_bytes(data: bytes) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    return np.frombuffer(data, np.uint8)


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


@QUICK
@given(records(any_messages()))
def test_every_field_of_every_record_is_found(data: bytes) -> None:
    layout = find_records(as_bytes(data))
    assert layout is not None
    messages = decode_records(data)
    assert len(layout) == len(messages)
    found = (
        layout.queue_id,
        layout.flag,
        layout.queue_offset,
        layout.log_offset,
        layout.sys_flag,
        layout.born_ms,
        layout.store_ms,
        layout.body_crc,
        layout.end - layout.at,
    )
    for row, message in enumerate(messages):
        assert [int(column[row]) for column in found] == [
            message.queue_id,
            message.flag,
            message.queue_offset,
            message.log_offset,
            message.sys_flag,
            message.born_ms,
            message.store_ms,
            message.body_crc,
            message.size,
        ]
        host_at = int(layout.store_host_at[row])
        assert data[host_at : host_at + len(message.store_host)] == message.store_host
    assert bodies(layout).to_pylist() == [bytes(each.body) for each in messages]
    assert [name.decode() for name in topics(layout).to_pylist()] == [m.topic for m in messages]
    assert properties(layout).to_pylist() == [each.properties for each in messages]


@QUICK
@given(records(any_messages()), st.data())
def test_what_is_not_whole_records_is_not_found(data: bytes, drawn: st.DataObject) -> None:
    length = drawn.draw(st.integers(0, len(data)))
    cut = data[:length] + drawn.draw(st.binary(max_size=200))
    try:
        decode_records(cut)
    except WireError as error:
        whole = "CRC" in str(error)
    else:
        whole = True
    assert (find_records(as_bytes(cut)) is not None) == whole


@QUICK
@given(records(any_messages()), st.data())
def test_records_may_lie_anywhere_in_the_bytes(data: bytes, drawn: st.DataObject) -> None:
    front, back = drawn.draw(st.binary(max_size=50)), drawn.draw(st.binary(max_size=50))
    at = len(front) + np.cumsum([0, *(message.size for message in decode_records(data))])[:-1]
    layout, whole = lay_out(as_bytes(front + data + back), at)
    assert whole.all()
    assert properties(layout).to_pylist() == [m.properties for m in decode_records(data)]
    every_second = layout.rows(slice(0, None, 2))
    assert bodies(every_second).to_pylist() == bodies(layout).to_pylist()[::2]


def test_a_record_that_is_not_whole_is_told_from_its_neighbours() -> None:
    record = encoded(NewMessage("t", 0, b"body", b"a\x01b\x02"))
    damaged = bytearray(record)
    damaged[87] += 1
    layout, whole = lay_out(as_bytes(record + damaged + record), ints(*np.arange(3) * len(record)))
    assert whole.tolist() == [True, False, True]
    assert bodies(layout.rows(whole)).to_pylist() == [b"body", b"body"]


@QUICK
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 200)), min_size=1, max_size=6))
def test_records_of_one_size_in_a_row_are_found_like_others(runs: list[tuple[int, int]]) -> None:
    data = b"".join(
        encoded(NewMessage("t", number % 7, bytes([size]) * size, b"k\x01%d\x02" % size))
        for size, count in runs
        for number in range(count)
    )
    layout = find_records(as_bytes(data))
    assert layout is not None
    messages = decode_records(data)
    assert bodies(layout).to_pylist() == [bytes(each.body) for each in messages]
    assert layout.queue_id.tolist() == [each.queue_id for each in messages]
    ends = np.cumsum([each.size for each in messages])
    assert layout.end.tolist() == ends.tolist()
    half = len(messages) // 2
    until = int(layout.at[half])
    assert len(leading_records(as_bytes(data), until)) == half
    assert len(leading_records(as_bytes(data), until + 1)) == half + 1
    assert len(leading_records(as_bytes(data[:-1]))) == len(messages) - 1


def test_a_damaged_record_ends_a_run_of_one_size() -> None:
    record = encoded(NewMessage("t", 0, b"body", b"a\x01b\x02"))
    data = bytearray(record * 300)
    data[200 * len(record) : 200 * len(record) + 4] = bytes(4)
    assert len(leading_records(as_bytes(bytes(data)))) == 200


def test_topics_are_told_apart_by_length_and_by_content() -> None:
    names = ["abcd", "abcd", "abce", "abc", "abcde"]
    for some in (names, names[:3]):
        layout = find_records(as_bytes(b"".join(encoded(NewMessage(n, 0, b"x")) for n in some)))
        assert layout is not None
        assert layout.is_of("abcd").tolist() == [name == "abcd" for name in some]


def test_integers_are_big_endian_and_may_lie_at_any_byte() -> None:
    raw = as_bytes(b"\0\xff\xff\xff\xff\xff\xff\xff\xfe\x01")
    assert integers(raw, ints(0, 1, 2), ">i8").tolist() == [(1 << 56) - 1, -2, -511]
    assert integers(raw, ints(8), ">u2").tolist() == [0xFE01]
    assert integers(raw, ints(), ">u2").tolist() == []


def test_pieces_may_be_empty_and_may_touch() -> None:
    raw = as_bytes(b"abcdef")
    assert pieces(raw, ints(0, 2, 2, 5), ints(2, 2, 4, 6)).to_pylist() == [b"ab", b"", b"cd", b"f"]
    assert pieces(raw, ints(), ints()).to_pylist() == []


def test_pieces_of_more_than_two_gigabytes_are_cut_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = np.zeros((1 << 31) + 10, np.uint8)  # Never touched, so never really there.
    raw[-1] = 7
    found = pieces(raw, ints(0, len(raw) - 1), ints(2, len(raw)))
    assert found.type == pa.binary()
    assert found.to_pylist() == [b"\0\0", b"\7"]
