"""Properties as columns are what is found in them message by message."""

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onelog.message import decode_properties, encode_properties, property_value
from onelog.spark.columns import properties as property_columns
from onelog.spark.columns.properties import PropertyColumns, as_text
from tests.spark.record_samples import NAMES, PROPERTIES, QUICK, WELL_FORMED

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


@QUICK
@given(SEVERAL, st.sampled_from(["TAGS", "KEYS"]))
def test_first_words_are_split_as_keys_are(texts: list[bytes], name: str) -> None:
    words = [(property_value(text, name) or "").split()[:1] for text in texts]
    found = of(texts).first_words(name)
    found.validate(full=True)
    assert found.to_pylist() == [word[0] if word else None for word in words]


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
        [("TAGS", "a")], [], [("KEYS", "k")], [("TAGS", "b")], [("TAGS", "c")], [],
    ]  # fmt: skip


def test_no_messages_and_no_properties_are_fine() -> None:
    assert of([]).column("TAGS").to_pylist() == []
    assert of([]).maps(MAP).to_pylist() == []
    assert of([b"", b""]).first_words("KEYS").to_pylist() == [None, None]
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
