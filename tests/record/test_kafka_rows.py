"""Columns of Kafka batches are those of their messages, taken one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.message import NewMessage
from onelog.record.columns import flat
from onelog.record.decode import decode_records
from onelog.record.encode import encode_stored
from onelog.record.forms import FORM_MASK
from onelog.record.forms.conversion import in_rocketmq_form
from onelog.record.forms.kafka import Codec
from onelog.record.forms.neutral import Neutral
from onelog.spark.columns.messages import RecordDecoder
from onelog.spark.columns.schema import ALL, RowFilters, Selection
from tests.record.forms.samples import kafka_batch, neutrals
from tests.record.forms.test_forms import MESSAGES
from tests.spark.record_samples import IPV6, QUICK, arrow_schema, encoded, rows_of

PLAIN = st.builds(
    Neutral,
    key=st.none() | st.sampled_from([b"k", b"two words", "größe".encode()]),
    body=st.binary(max_size=300) | st.none(),
    headers=st.just(()),
    time_ms=st.integers(0, 2**40),
)
BATCHES = st.lists(PLAIN, min_size=1, max_size=40) | st.lists(MESSAGES, min_size=1, max_size=5)
PARTS = st.lists(
    st.builds(kafka_batch, BATCHES, st.just("t"), st.just(3), st.sampled_from(Codec))
    | st.builds(lambda body: NewMessage("t", 3, body), st.binary(max_size=50)),
    min_size=1,
    max_size=5,
)
NAMES = st.lists(st.sampled_from(ALL), min_size=1, unique=True)


def stored(parts: list[NewMessage]) -> bytes:
    records = []
    offset = 40
    for number, part in enumerate(parts):
        if number % 3 == 2:
            part = part._replace(born_host=IPV6)
        records.append(encoded(part, offset, 1_000 * number))
        offset += part.inner_count
    return b"".join(records)


def one_by_one(data: bytes) -> bytes:
    """The same messages in a record each."""
    return b"".join(
        encode_stored(each._replace(sys_flag=each.sys_flag & ~FORM_MASK))
        for record in decode_records(data)
        for each in in_rocketmq_form(record)
    )


def decoded(data: bytes, names: list[str], selection: Selection) -> list[dict[str, object]]:
    return rows_of(RecordDecoder(names, arrow_schema(names)).decode(data, selection))


@QUICK
@given(PARTS, NAMES, st.sampled_from(["t", None]))
def test_columns_are_those_of_the_messages_one_by_one(
    parts: list[NewMessage], names: list[str], topic: str | None
) -> None:
    data, selection = stored(parts), Selection("b", topic)
    assert decoded(data, names, selection) == decoded(one_by_one(data), names, selection)


@QUICK
@given(PARTS, st.integers(35, 90), st.integers(0, 60))
def test_offsets_and_tags_choose_among_the_messages_of_a_batch(
    parts: list[NewMessage], first: int, count: int
) -> None:
    data = stored(parts)
    filters = RowFilters(frozenset({"even"}))
    for selection in (
        Selection("b", "t", first, first + count),
        Selection("b", "t", filters=filters),
    ):
        names = ["offset", "body"]
        assert decoded(data, names, selection) == decoded(one_by_one(data), names, selection)


def test_plain_batches_are_not_taken_apart_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "in_rocketmq_form", None)
    sent = [
        Neutral(b"k%d" % number, b"v" * 100 if number % 9 else None, (), number)
        for number in range(1_000)
    ]
    rows = decoded(stored([kafka_batch(sent, "t", 3)]), list(ALL), Selection("b", "t"))
    assert [row["offset"] for row in rows] == list(range(40, 1_040))
    assert [row["key"] for row in rows] == [f"k{number}" for number in range(1_000)]
    assert [row["body"] for row in rows] == [each.body for each in sent]
    assert len({row["message_id"] for row in rows}) == 1_000


def test_headers_cost_nothing_where_they_are_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flat, "in_rocketmq_form", None)
    rows = decoded(stored([kafka_batch(neutrals(9), "t", 3)]), ["offset", "body"], Selection("b"))
    assert [row["body"] for row in rows] == [each.body for each in neutrals(9)]


def test_a_damaged_batch_is_reported_with_its_place() -> None:
    data = bytearray(encoded(kafka_batch(neutrals(9), "t", 3), 40, 4711))
    data[200] ^= 1
    with pytest.raises(WireError, match="log offset 4711 has another CRC"):
        decoded(bytes(data), ["offset"], Selection("b", "t"))
