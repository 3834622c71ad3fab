"""Properties as columns are what is found in them message by message."""

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onelog.message import decode_properties, encode_properties, property_value
from onelog.record.columns import properties as property_columns
from onelog.record.columns.properties import PropertyColumns, as_text, texts_of
from onelog.record.forms import amqp, rocketmq
from onelog.record.forms.amqp_fields import decode_table, encode_table
from onelog.record.forms.amqp_fields import encode_properties as encode_amqp
from tests.record.forms.test_forms import MESSAGES
from tests.spark.record_samples import (
    NAMES,
    PROPERTIES,
    QUICK,
    WELL_FORMED,
    body_of,
    headers_of,
    key_of,
    text_of,
)

MAP = pa.map_(pa.string(), pa.string())
SEVERAL = st.lists(PROPERTIES, max_size=8)


def of(texts: list[bytes]) -> PropertyColumns:
    return PropertyColumns(pa.array(texts, pa.binary()))


@QUICK
@example([encode_properties({"\U00010000\U00010000": "a"})], "\U00010000\U00010000")
@given(SEVERAL, st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY"]) | NAMES)
def test_a_column_has_the_first_value_of_a_property(texts: list[bytes], name: str) -> None:
    found = of(texts).column(name)
    found.validate(full=True)
    assert found.to_pylist() == [property_value(text, name) or None for text in texts]


KEYED = st.lists(
    st.one_of(
        MESSAGES.map(lambda message: rocketmq.from_neutral(message)[1]),
        WELL_FORMED,
        PROPERTIES,
        st.sampled_from(
            [
                b"KEYS\x01a b\x02",
                b"__key\x01=/w==\x02",
                b"__key\x01no base64\x02",
                b"__body\x01null\x02",
                b"__body\x01nulL",
                b"__header.x\x01null\x02",
            ]
        ),
    ),
    max_size=8,
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@QUICK
@given(KEYED)
def test_keys_headers_and_bodies_that_are_none_are_as_their_senders_had_them(
    texts: list[bytes],
) -> None:
    found = of(texts)
    keys, headers = found.keys(), found.headers(HEADERS)
    for array in (keys, headers):
        array.validate(full=True)
    assert keys.to_pylist() == [key_of(text) for text in texts]
    assert texts_of(keys).to_pylist() == [text_of(key_of(text)) for text in texts]
    assert found.null_bodies().tolist() == [body_of(b"", text) is None for text in texts]
    assert headers.to_pylist() == [headers_of(text) for text in texts]


def test_values_of_amqp_s_tables_can_be_read() -> None:
    table = encode_table({"list": [1, "x"], "half": 0.5, "n": 7, "deep": {"a": True}, "s": "text"})
    properties = encode_amqp({"headers": decode_table(table), "content_type": "text/plain"})
    neutral = amqp.content_to_neutral(amqp.Content("shop", "paid", properties, b""), 0)
    (found,) = of([rocketmq.from_neutral(neutral)[1]]).headers(HEADERS).to_pylist()
    assert {each["key"]: each["value"] for each in found} == {
        "amqp.exchange": b"shop",
        "amqp.routing-key": b"paid",
        "amqp.content-type": b"text/plain",
        "list": b'[1, "x"]',
        "half": b"0.5",
        "n": b"7",
        "deep": b'{"a": true}',
        "s": b"text",
    }


@QUICK
@given(SEVERAL | st.lists(WELL_FORMED, max_size=8))
def test_a_map_has_all_properties(texts: list[bytes]) -> None:
    found = of(texts).maps(MAP)
    found.validate(full=True)
    assert [sorted(pairs) for pairs in found.to_pylist()] == [
        sorted(decode_properties(text).items()) for text in texts
    ]


def test_the_end_of_a_message_ends_its_last_property() -> None:
    texts = [b"TAGS\x01a", b"", b"KEYS\x01k", b"\x02TAGS\x01b", b"TAGS\x01c\x02", b"TAGS"]
    assert of(texts).column("TAGS").to_pylist() == ["a", None, None, "b", "c", None]
    assert of(texts).maps(MAP).to_pylist() == [
        [("TAGS", "a")],
        [],
        [("KEYS", "k")],
        [("TAGS", "b")],
        [("TAGS", "c")],
        [],
    ]


def test_no_messages_and_no_properties_are_fine() -> None:
    assert of([]).column("TAGS").to_pylist() == []
    assert of([]).maps(MAP).to_pylist() == []
    assert of([b"", b""]).keys().to_pylist() == [None, None]
    assert of([]).keys().to_pylist() == of([]).headers(HEADERS).to_pylist() == []
    assert of([b"", b""]).headers(HEADERS).to_pylist() == [[], []]
    assert of([b"", b""]).maps(MAP).to_pylist() == [[], []]


def test_usual_properties_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(text: bytes) -> dict[str, str]:
        raise AssertionError(f"read {text!r} by itself")

    monkeypatch.setattr(property_columns, "decode_properties", never)
    texts = [encode_properties({"UNIQ_KEY": f"{n:032d}", "KEYS": "a b"})[:-1] for n in range(9)]
    assert len(of(texts).maps(MAP).to_pylist()) == 9


def test_a_name_that_is_repeated_is_noticed_among_very_many_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(property_columns, "_CELLS_MAX", 0)
    texts = [b"a\x011\x02b\x012\x02", b"a\x013\x02a\x014\x02"]
    assert of(texts).maps(MAP).to_pylist() == [[("a", "1"), ("b", "2")], [("a", "4")]]
    assert of(texts[:1]).maps(MAP).to_pylist() == [[("a", "1"), ("b", "2")]]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert as_text(pa.array([b"a\xffb", b"c"], pa.binary())).to_pylist() == ["a\ufffdb", "c"]
