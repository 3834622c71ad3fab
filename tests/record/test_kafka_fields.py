"""The fields of a batch's records, found all at once, are those that are read one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.record.columns.kafka import find_fields
from onelog.record.forms import kafka
from onelog.record.forms.kafka import Attribute, Codec
from onelog.record.forms.neutral import Neutral
from tests.record.forms.test_forms import MESSAGES

Row = tuple[int, int, bytes | None, bytes | None, int]
ALIKE = st.builds(
    lambda count, size, start: [
        Neutral(b"k%03d" % number, b"v" * size, (), start + number) for number in range(count)
    ],
    st.integers(1, 300),
    st.sampled_from([0, 40, 100, 9_000]),
    st.integers(0, 2**40),
)
LISTS = st.lists(MESSAGES, min_size=1, max_size=30) | ALIKE


def one_by_one(batch: bytes) -> list[Row]:
    return [
        (delta, each.time_ms, each.key, each.body, len(each.headers))
        for delta, each in kafka.records(batch)
    ]


def all_at_once(*batches: bytes) -> list[Row]:
    found = find_fields(batches)
    raw = found.raw.tobytes()
    keys = zip(found.has_key.tolist(), found.key_at.tolist(), found.key_end.tolist(), strict=True)
    values = zip(
        found.has_value.tolist(), found.value_at.tolist(), found.value_end.tolist(), strict=True
    )
    return list(
        zip(
            found.offset_delta.tolist(),
            found.time_ms.tolist(),
            [raw[at:end] if has else None for has, at, end in keys],
            [raw[at:end] if has else None for has, at, end in values],
            found.headers.tolist(),
            strict=True,
        )
    )


@given(LISTS, st.sampled_from(Codec))
def test_the_fields_are_those_that_are_read_one_by_one(
    messages: list[Neutral], codec: Codec
) -> None:
    batch = kafka.from_neutral(messages, codec=codec)
    assert all_at_once(batch) == one_by_one(batch)


@given(st.lists(LISTS, max_size=4))
def test_those_of_several_batches_follow_each_other(lists: list[list[Neutral]]) -> None:
    batches = [kafka.from_neutral(messages) for messages in lists]
    assert all_at_once(*batches) == [row for batch in batches for row in one_by_one(batch)]


def test_all_have_the_time_of_their_arrival_if_the_batch_says_so() -> None:
    batch = bytearray(kafka.from_neutral([Neutral(None, b"x", (), 5), Neutral(None, b"y", (), 7)]))
    batch[kafka.ATTRIBUTES_AT + 1] |= Attribute.APPEND_TIME
    other = kafka.from_neutral([Neutral(None, b"z", (), 9)])
    assert [row[1] for row in all_at_once(other, bytes(batch), other)] == [9, 7, 7, 9]


def test_how_a_transaction_ended_is_no_message() -> None:
    assert all_at_once(kafka.control_batch(1, 0, 5, commit=True)) == []


def read(batch: bytes, how: object) -> list[Row] | str:
    try:
        return all_at_once(batch) if how is find_fields else one_by_one(batch)
    except WireError:
        return "no batch"


@settings(max_examples=400)
@given(LISTS.filter(lambda some: len(some) < 60), st.data())
def test_what_is_damaged_is_refused_where_reading_one_by_one_refuses_it(
    messages: list[Neutral], data: st.DataObject
) -> None:
    batch = bytearray(kafka.from_neutral(messages))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(kafka.HEAD.size, len(batch) - 1))
        batch[at] = data.draw(st.integers(0, 255) | st.sampled_from([0x80, 0xFF, 1]))
    assert read(bytes(batch), find_fields) == read(bytes(batch), None)


@pytest.mark.parametrize("length", [b"\x81" * 9 + b"\x01", b"\x80" * 9 + b"\x02", b"\x80" * 10])
def test_a_number_of_more_than_64_bits_is_refused(length: bytes) -> None:
    record = b"\0" + length + b"\0\1\1\0"
    raw = bytes([2 * len(record)]) + record
    whole = kafka.from_neutral([Neutral(None, b"x" * 30, (), 5)])
    head = bytearray(whole[: kafka.HEAD.size])
    head[kafka.LENGTH_AT : kafka.LENGTH_AT + 4] = (len(head) - 12 + len(raw)).to_bytes(4, "big")
    batch = bytes(head) + raw
    assert read(batch, find_fields) == read(batch, None)
