"""Destinations: which texts mean which queues and exchanges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import InvalidRequestError
from onelog.gateways.stomp.destinations import (
    Destination,
    binding_key,
    destination_of,
    destinations,
    queue_pattern,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/queue/a", [Destination("queue", "a")]),
        ("/queue/a.b/c", [Destination("queue", "a.b/c")]),
        ("/queue/a%2Fb%2Cc", [Destination("queue", "a/b,c")]),
        ("/topic/a.b", [Destination("topic", "amq.topic", "a.b")]),
        ("/exchange/x", [Destination("exchange", "x")]),
        ("/exchange/x/k/l", [Destination("exchange", "x", "k/l")]),
        ("/exchange/x%2Fy/k", [Destination("exchange", "x/y", "k")]),
        ("/amq/queue/q", [Destination("amq/queue", "q")]),
        ("/temp-queue/t", [Destination("temp-queue", "t")]),
        ("/reply-queue/amq.gen-1", [Destination("reply-queue", "amq.gen-1")]),
        ("/queue/a,b", [Destination("queue", "a"), Destination("queue", "b")]),
        (
            " /queue/a, /topic/b,c ",
            [
                Destination("queue", "a"),
                Destination("topic", "amq.topic", "b"),
                Destination("topic", "amq.topic", "c"),
            ],
        ),
    ],
)
def test_what_a_destination_means(text: str, found: list[Destination]) -> None:
    assert list(destinations(text)) == found


@pytest.mark.parametrize(
    "text", ["", "a", "/", "/queue", "/queue/", "/nothing/a", "/queue/a,", "a,b"]
)
def test_what_is_none_is_refused_with_what_would_be_one(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="/queue/"):
        destinations(text)


@given(exchange=st.sampled_from(["", "amq.topic", "x", "x/y", "%2F,"]), key=st.text(min_size=1))
def test_where_a_message_was_sent_to_can_be_sent_to(exchange: str, key: str) -> None:
    if key != key.strip():
        return
    (found,) = destinations(destination_of(exchange, key))
    assert (found.key or found.name) == key
    if exchange:
        assert found.name == exchange


@pytest.mark.parametrize(
    ("given", "key"), [("a.>", "a.#"), (">", "#"), ("a.*.b", "a.*.b"), ("a.#", "a.#"), ("a>", "a>")]
)
def test_a_topic_of_activemq_in_the_way_of_exchanges(given: str, key: str) -> None:
    assert binding_key(given) == key


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("a.*", ["a.b"], ["a", "a.b.c", "ab", "b.a"]),
        ("a.>", ["a", "a.b", "a.b.c"], ["ab", "b.a"]),
        (">", ["a", "a.b"], []),
        ("*.b.>", ["a.b", "a.b.c.d"], ["b", "a.c"]),
    ],
)
def test_queues_by_pattern(pattern: str, matching: list[str], other: list[str]) -> None:
    compare = queue_pattern(pattern).fullmatch
    assert [each for each in matching + other if compare(each)] == matching
    assert Destination("queue", pattern).is_pattern
