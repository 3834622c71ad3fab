import re
import time
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.routing import topic_trie
from onelog.core.routing.names import swapped
from onelog.core.routing.topic_trie import TopicTrie

WORDS = st.sampled_from(["a", "b", "", "*", "#", "$x"])
PATTERNS = st.lists(WORDS, min_size=1, max_size=5).map(".".join)
KEYS = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=6).map(".".join)


def matches(pattern: str, key: str) -> bool:
    """The rule as RabbitMQ states it, word by word."""

    def rest(words: list[str], left: list[str]) -> bool:
        if not words:
            return not left
        if words[0] == "#":
            return rest(words[1:], left) or (bool(left) and rest(words, left[1:]))
        return bool(left) and words[0] in ("*", left[0]) and rest(words[1:], left[1:])

    return rest(pattern.split("."), key.split("."))


@given(patterns=st.lists(PATTERNS, max_size=12), keys=st.lists(KEYS, max_size=5), data=st.data())
def test_a_key_matches_the_patterns_that_the_rule_says(
    patterns: list[str], keys: list[str], data: st.DataObject
) -> None:
    trie: TopicTrie[str] = TopicTrie()
    added = list(dict.fromkeys(patterns))
    for pattern in added:
        assert trie.add(pattern, pattern)
    for key in keys:
        assert set(trie.match(key)) == {each for each in added if matches(each, key)}
    for gone in data.draw(st.lists(st.sampled_from(added), unique=True) if added else st.just([])):
        # A pattern of two wildcards side by side is the same place as with one of them.
        assert trie.remove(gone, gone)
        added.remove(gone)
    for key in keys:
        assert set(trie.match(key)) == {each for each in added if matches(each, key)}


@given(patterns=st.lists(PATTERNS, max_size=12))
def test_an_empty_tree_is_left_when_all_patterns_are_removed(patterns: list[str]) -> None:
    trie: TopicTrie[int] = TopicTrie()
    for number, pattern in enumerate(patterns):
        trie.add(pattern, number)
    for number, pattern in enumerate(patterns):
        assert trie.remove(pattern, number)
        assert not trie.remove(pattern, number)
    assert len(trie) == 0
    assert trie._root.is_empty


def test_a_value_is_matched_once_in_the_order_of_its_first_pattern() -> None:
    trie: TopicTrie[str] = TopicTrie()
    for pattern, value in [("#", "c"), ("a.*", "b"), ("a.b", "c"), ("*.b", "a")]:
        trie.add(pattern, value)
    assert trie.match("a.b") == ("c", "b", "a")


def test_many_wildcards_do_not_make_a_match_long() -> None:
    trie: TopicTrie[int] = TopicTrie()
    trie.add(".".join(["#", "a"] * 60), 1)
    trie.add("#." * 200 + "#", 2)
    assert trie.match(".".join(["a"] * 200)) == (1, 2)
    assert trie.match(".".join(["a"] * 59)) == (2,)


def test_mqtt_filters_are_patterns_with_other_signs() -> None:
    trie: TopicTrie[str] = TopicTrie("/", "+", "#")
    for pattern in ("a/#", "a/+/c", "+", "#"):
        trie.add(pattern, pattern)
    assert trie.match("a") == ("a/#", "+", "#")
    assert trie.match("a/b/c") == ("a/#", "a/+/c", "#")


@given(st.text())
def test_a_topic_of_mqtt_becomes_a_key_and_is_read_back(topic: str) -> None:
    assert swapped(swapped(topic)) == topic
    assert re.sub("[./+*]", "", swapped(topic)) == re.sub("[./+*]", "", topic)


@pytest.mark.parametrize(
    ("topic", "key"), [("a/b.c/+", "a.b/c.*"), ("/x", ".x"), ("a/#", "a.#"), ("*", "+")]
)
def test_levels_are_words(topic: str, key: str) -> None:
    assert swapped(topic) == key


@pytest.mark.parametrize("places_max", [8, 40, 32_000])
@given(patterns=st.lists(PATTERNS, max_size=30), keys=st.lists(KEYS, max_size=5), data=st.data())
def test_patterns_in_rows_match_what_those_in_the_tree_do_while_they_come_and_go(
    places_max: int, patterns: list[str], keys: list[str], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_trie, "TREE_WORDS_MAX", 0)
        patch.setattr(topic_trie, "_PLACES_MAX", places_max)
        trie: TopicTrie[str] = TopicTrie()
        there: list[str] = []
        for pattern in patterns:
            if trie.add(pattern, pattern):
                there.append(pattern)
            for gone in data.draw(st.lists(st.sampled_from(there), max_size=1)) if there else ():
                assert trie.remove(gone, gone)
                there.remove(gone)
            for key in keys:
                assert set(trie.match(key)) == {each for each in there if matches(each, key)}
        for gone in there:
            assert trie.remove(gone, gone)
        assert trie._rows == []


def test_what_is_remembered_of_keys_counts_what_they_match() -> None:
    trie: TopicTrie[int] = TopicTrie()
    for number in range(1_000):
        trie.add("#", number)
    for number in range(1_000):
        assert len(trie.match(f"key.{number}")) == 1_000
    assert sum(map(len, trie._cached.values())) <= topic_trie.REMEMBERED_MAX


def test_very_many_long_patterns_of_which_one_changes_are_matched_in_a_moment() -> None:
    random = Random(7)
    trie: TopicTrie[int] = TopicTrie()
    patterns = {".".join(random.choices("*a", k=190)) for _ in range(8_000)}
    for number, pattern in enumerate(patterns):
        trie.add(pattern, number)
    spent = []
    for number, pattern in enumerate(sorted(patterns)[:3_000:100]):
        trie.remove(pattern, list(patterns).index(pattern))
        began = time.thread_time()
        assert len(trie.match(".".join("a" * 190))) == 8_000 - number - 1
        spent.append(time.thread_time() - began)
    assert min(spent) < 0.1, "it was 0.25 where nothing else ran"
