"""Subscriptions as users write them, as brokers read them, and what they let pass."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.client.consumer.topic_filters import topic_filter
from onelog.core.filters.tags import subscribe
from onelog.errors import FilterSyntaxError, InvalidTopicError
from onelog.message import Message, NewMessage, encode_properties
from onelog.record.decode import decode_records
from onelog.record.encode import encode


def tagged(tag: str | None) -> Message:
    properties = encode_properties({"TAGS": tag} if tag else {"X": "TAGS"})
    head, body, tail, _ = encode(NewMessage("t", 0, b"x", properties), 0, 0, 1, False)
    return decode_records(head + bytes(body) + tail)[0]


@given(st.lists(st.sampled_from(["paid", "refunded", "ü", "*", "a b"]), min_size=1, max_size=4))
def test_a_broker_reads_the_tags_and_hashes_that_are_meant(tags: list[str]) -> None:
    made = topic_filter("orders", "  " + " || ".join(tags) + "||")
    read = subscribe("orders", made.expression, made.kind, made.version)
    data = made.data()
    assert frozenset(data.tags_set) == read.tags
    assert frozenset(data.code_set) == (read.codes or frozenset())
    assert (data.topic, data.sub_version, data.expression_type) == ("orders", made.version, "TAG")


def test_only_the_wanted_tags_pass_even_if_others_have_their_hash() -> None:
    made = topic_filter("t", "Aa || x")
    messages = [tagged(tag) for tag in ("Aa", "BB", "x", "xx", None)]
    assert [each.tags for each in made.wanted(messages)] == ["Aa", "x"]


@pytest.mark.parametrize("everything", ["*", "", "  "])
def test_everything_is_everything(everything: str) -> None:
    made = topic_filter("t", everything)
    messages = [tagged("Aa"), tagged(None)]
    assert made.wanted(messages) is messages
    assert (made.data().sub_string, made.data().tags_set, made.data().code_set) == ("*", [], [])


def test_a_condition_is_left_to_the_broker() -> None:
    made = topic_filter("t", sql="a > 3 AND b IS NOT NULL")
    assert (made.kind, made.data().sub_string) == ("SQL92", "a > 3 AND b IS NOT NULL")
    assert made.data().tags_set == []
    assert made.wanted([tagged(None)])


def test_a_later_filter_has_a_later_version() -> None:
    assert topic_filter("t").version > 1_700_000_000_000


@pytest.mark.parametrize(
    ("tags", "sql", "reason"),
    [("||", None, "no tag"), ("a", "b = 1", "not both"), ("*", "  ", "is empty")],
)
def test_a_filter_that_cannot_be_meant_is_refused(tags: str, sql: str | None, reason: str) -> None:
    with pytest.raises(FilterSyntaxError, match=reason):
        topic_filter("t", tags, sql=sql)


def test_a_topic_that_cannot_exist_is_refused() -> None:
    with pytest.raises(InvalidTopicError):
        topic_filter("no spaces")
