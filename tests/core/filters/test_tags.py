import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.filters.tags import Subscription, compile_sql, parse_tags, subscribe
from onelog.errors import FilterSyntaxError, OnelogError
from onelog.message import encode_properties, java_hash


@pytest.mark.parametrize("expression", ["", "*"])
def test_no_tags_mean_every_message(expression: str) -> None:
    assert parse_tags(expression) is None
    wanted = subscribe("orders", expression)
    assert (wanted.expression, wanted.codes, wanted.tags) == ("*", None, frozenset())
    assert wanted.wants_code(0)
    assert wanted.wants_code(12345)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TagA", {"TagA"}),
        ("TagA || TagB", {"TagA", "TagB"}),
        ("TagA||TagB||TagA", {"TagA", "TagB"}),
        ("\tTagA ||\n|| TagB || ", {"TagA", "TagB"}),
        ("a b || 标签", {"a b", "标签"}),
        ("a | b", {"a | b"}),
        ("* || a", {"*", "a"}),
        ("\u00a0", {"\u00a0"}),  # Java does not trim it, so it is a tag
    ],
)
def test_tags_are_separated_by_two_bars_and_compared_by_their_hash(
    expression: str, tags: set[str]
) -> None:
    codes = frozenset(java_hash(tag) for tag in tags)
    assert parse_tags(expression) == codes
    wanted = subscribe("orders", expression)
    assert (set(wanted.tags), wanted.codes, wanted.expression) == (tags, codes, expression)
    assert all(wanted.wants_code(code) for code in codes)
    assert not wanted.wants_code(0)
    assert not wanted.wants_code(java_hash("TagC"))


@pytest.mark.parametrize("expression", [" ", "||", " || || ", "\t"])
def test_tags_without_a_tag_are_refused(expression: str) -> None:
    with pytest.raises(FilterSyntaxError, match=r"write \* for every message"):
        subscribe("orders", expression)


def test_too_many_tags_are_refused_with_the_limit() -> None:
    assert parse_tags("a" * 16_000) is not None
    with pytest.raises(FilterSyntaxError, match="16001 characters; the limit is 16000"):
        parse_tags("a" * 16_001)


@given(st.text())
def test_any_text_is_tags_or_refused(expression: str) -> None:
    try:
        codes = parse_tags(expression)
    except FilterSyntaxError:
        return
    assert (codes is None) == (expression in ("", "*"))
    assert codes is None or all(-(2**31) <= code < 2**31 for code in codes)


def test_a_tag_subscription_looks_at_tags_alone() -> None:
    assert subscribe("orders", "TagA").wants(encode_properties({"TAGS": "TagA"}))


@pytest.mark.parametrize("kind", [None, "", "TAG"])
def test_without_a_kind_the_expression_is_tags(kind: str | None) -> None:
    wanted = subscribe("orders", "a > 5", kind)
    assert (wanted.kind, set(wanted.tags)) == ("TAG", {"a > 5"})


def test_a_sql_subscription_reads_every_entry_and_judges_by_properties() -> None:
    wanted = subscribe("orders", "a > 5", "SQL92", version=7)
    assert (wanted.topic, wanted.kind, wanted.version) == ("orders", "SQL92", 7)
    assert wanted.wants_code(0)
    assert wanted.wants(encode_properties({"a": "6"}))
    assert not wanted.wants(encode_properties({"a": "5"}))
    assert not wanted.wants(encode_properties({}))


def test_a_star_is_no_sql() -> None:
    with pytest.raises(FilterSyntaxError, match="at character 1"):
        subscribe("orders", "*", "SQL92")


@pytest.mark.parametrize("expression", ["", "  "])
def test_an_empty_sql_filter_is_refused_by_its_topic(expression: str) -> None:
    with pytest.raises(FilterSyntaxError, match="the SQL92 filter on topic orders is empty"):
        subscribe("orders", expression, "SQL92")


def test_an_unknown_kind_of_filter_is_refused_by_name() -> None:
    with pytest.raises(FilterSyntaxError, match="no kind of filter XPATH; there are TAG and SQL92"):
        subscribe("orders", "*", "XPATH")


def test_subscriptions_are_equal_when_their_texts_are() -> None:
    compile_sql.cache_clear()
    one = subscribe("orders", "a > 5", "SQL92", 7)
    compile_sql.cache_clear()
    other = subscribe("orders", "a > 5", "SQL92", 7)
    assert one.predicate is not other.predicate
    assert one == other
    assert hash(one) == hash(other)
    assert one != subscribe("orders", "a > 6", "SQL92", 7)
    assert one != subscribe("orders", "a > 5", "SQL92", 8)
    assert Subscription("orders") == subscribe("orders")


def test_a_filter_error_is_one_of_ours() -> None:
    assert issubclass(FilterSyntaxError, OnelogError)
