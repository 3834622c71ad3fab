"""Filters and the topics that they match, against the simplest model there is."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.routing.names import swapped
from onelog.core.routing.topic_trie import TopicTrie
from onelog.gateways.mqtt.filters import read_filter
from onelog.wire.mqtt.codes import PacketError

LEVEL = st.sampled_from(["a", "b", "$x", "", "a.b", "*"])
TOPICS = st.lists(LEVEL, min_size=1, max_size=5).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, last: "/".join([*levels, *last]),
    st.lists(LEVEL | st.just("+"), min_size=1, max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)


def model(text: str, topic: str) -> bool:
    if topic.startswith("$") and text[0] in "+#":
        return False
    pattern = "/".join("[^/]*" if each == "+" else re.escape(each) for each in text.split("/"))
    pattern = re.sub(r"(^|/)\\?#$", lambda found: "(/.*)?" if found[1] else ".*", pattern)
    return re.fullmatch(pattern, topic, re.DOTALL) is not None


@given(FILTERS, TOPICS)
def test_a_filter_matches_what_the_specification_says(text: str, topic: str) -> None:
    assert read_filter(text).matches(topic.split("/")) == model(text, topic)


@given(st.lists(FILTERS, max_size=8, unique=True), TOPICS)
def test_the_exchange_finds_at_least_what_the_client_wants(filters: list[str], topic: str) -> None:
    trie: TopicTrie[str] = TopicTrie()
    for each in filters:
        trie.add(swapped(each), each)
    found = set(trie.match(swapped(topic)))
    assert {each for each in filters if model(each, topic)} <= found


@given(TOPICS)
def test_a_topic_and_its_key_are_each_other_s(topic: str) -> None:
    assert swapped(swapped(topic)) == topic


@pytest.mark.parametrize("text", ["", "a#", "#/", "a/#/b", "+a", "$share/g/", "a/" * 200 + "a"])
def test_texts_that_are_no_filters(text: str) -> None:
    with pytest.raises(PacketError):
        read_filter(text)


def test_a_shared_filter_has_a_group() -> None:
    found = read_filter("$share/g/a/+")
    assert (found.group, found.text) == ("g", "a/+")


def test_100_000_subscriptions_cost_a_topic_next_to_nothing() -> None:
    trie: TopicTrie[int] = TopicTrie()
    for number in range(100_000):
        trie.add(swapped(f"site/{number % 300}/device/{number}/+"), number)
    topics = [swapped(f"site/{each % 300}/device/{each}/temperature") for each in range(10_000)]
    began = time.process_time()
    for topic in topics:
        assert len(trie.match(topic)) == 1
    each_us = (time.process_time() - began) / len(topics) * 1e6
    print(f"{each_us:.1f} us")
    assert each_us < 1_000  # A look at all of them would take longer.
