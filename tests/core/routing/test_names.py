import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.routing.names import queue_of, topic_of
from onelog.names import NAME_BYTES_MAX, check_name

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("vhost", "queue", "topic"),
    [
        ("/", "orders", "orders"),
        ("/", "a/b.c d", "a/b.c d"),
        ("shop", "orders", "~shop~orders"),
        ("a/b~c", "~x%", "~a%2Fb%7Ec~%7Ex%25"),
        ("/", "~shop~orders", "~%2F~%7Eshop%7Eorders"),
        ("/", "%RETRY%group", "~%2F~%25RETRY%25group"),
        ("/", "tab\there", "~%2F~tab%09here"),
    ],
)
def test_a_queue_is_a_topic_of_that_name(vhost: str, queue: str, topic: str) -> None:
    assert topic_of(vhost, queue) == topic
    assert queue_of(topic) == (vhost, queue)


@given(NAMES, NAMES)
def test_a_topic_tells_its_queue(vhost: str, queue: str) -> None:
    topic = topic_of(vhost, queue)
    check_name(topic)
    if len(topic.encode()) < NAME_BYTES_MAX:
        assert queue_of(topic) == (vhost, queue)


def test_a_long_name_still_makes_a_topic() -> None:
    topics = {topic_of("shop", "x" * 254 + last) for last in "ab"}
    assert len(topics) == 2
    assert all(check_name(topic) for topic in topics)
