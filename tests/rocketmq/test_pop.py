"""POP: all queues of a topic and its retry topic, and what becomes of expired messages."""

from pathlib import Path

import pytest

from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.cursors.fetch import Limits
from onelog.errors import (
    GroupPermissionError,
    InvalidQueueError,
    TopicNotFoundError,
    TopicPermissionError,
)
from onelog.message import decode_properties
from onelog.rocketmq.profile import NAMING
from onelog.store.reader import Fetched
from tests.core.leasing import GROUP, LEASE_MS, ORDERED, TICK_MS, TOPIC, Reader, bodies, reading
from tests.core.world import pulled

RETRY = NAMING.lease_retry_topic(GROUP, TOPIC)


def test_a_request_for_one_queue_gets_nothing_of_the_others(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=2)
    reader.world.send(queue_id=0, body=b"0")
    reader.world.send(queue_id=1, body=b"1")
    assert bodies(reader.pop(queue_id=1)) == [b"1"]
    assert reader.pop(queue_id=1) == []


def test_neither_old_nor_new_messages_starve_the_others(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=2)
    for _ in range(64):
        reader.world.send(body=b"old")
    while reader.pop():
        pass
    reader.world.advance(LEASE_MS + TICK_MS)
    for _ in range(2_000):
        reader.world.send(queue_id=1, body=b"new")
    served = {b"old": 0, b"new": 0}
    for _ in range(40):
        for each in reader.pop(8):
            served[each.body] += 1
            reader.ack(each)
    assert served[b"old"] > 0
    assert served[b"new"] > served[b"old"]


def test_ordered_requests_leave_the_retry_topic_alone(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    reader.pop()
    reader.world.advance(LEASE_MS + TICK_MS)
    assert reader.world.store.max_offset(RETRY, 0) == 1
    assert reader.pop(policy=ORDERED) == []
    assert len(reader.pop()) == 1


def test_who_may_not_pop_is_told_why(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    broker = reader.world.broker
    with pytest.raises(TopicNotFoundError):
        Reader(reader.world, topic="nowhere").pop()
    for queue_id in (1, -2):
        with pytest.raises(InvalidQueueError, match="is illegal"):
            reader.pop(queue_id=queue_id)
    reader.world.core.groups.put(GroupConfig(GROUP, consume_enable=False))
    with pytest.raises(GroupPermissionError):
        reader.pop()
    broker.topics.create(SELF, TopicConfig("mute", 1, 1, perm=2))
    with pytest.raises(TopicPermissionError):
        Reader(reader.world, "others", "mute").pop()


# -- looking -----------------------------------------------------------------------------------


def peek(reader: Reader, count_max: int = 32) -> tuple[list[bytes], int]:
    """What would come next, and how much of it there is."""
    cursors, left = reader.world.broker.queues.unread(SELF, reader.request(count_max))
    (results,) = reader.world.fetch(cursors, Limits(count_max, 1 << 20, 1 << 20), 0)
    kept = [each for each in results if isinstance(each, Fetched)]
    return [body for each in kept for body in pulled(each)], left


def test_peeking_shows_what_is_unread_and_leases_nothing(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=2)
    for n in range(6):
        reader.world.send(queue_id=n % 2)
    reader.pop(2, queue_id=0)
    for _ in range(2):
        found, left = peek(reader, 3)
        assert (len(found), left) == (3, 4)
    assert len(reader.leases) == 2
    assert len(reader.pop()) == 4
    assert peek(reader) == ([], 0)


def test_peeking_goes_on_where_retention_left_off(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    world = reader.world
    world.send()
    assert len(reader.pop()) == 1
    world.send()
    world.clock.advance(1_000)
    world.send(body=b"kept")
    world.store.retain({TOPIC: 500})
    assert peek(reader)[0] == [b"kept"]


# -- where messages go -------------------------------------------------------------------------


def test_an_expired_message_comes_back_through_the_retry_topic_counted(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send(body=b"a", TAGS="t", KEYS="k", UNIQ_KEY="u")
    first = reader.pop()[0]
    for times in range(1, 4):
        reader.world.advance(LEASE_MS + TICK_MS)
        again = reader.pop(tags="t")[0]
        assert again.topic == RETRY
        assert again.message.reconsume_times == times
        assert again.message.born_ms == first.message.born_ms
        properties = decode_properties(again.message.properties)
        assert {name: properties[name] for name in ("TAGS", "KEYS", "UNIQ_KEY")} == {
            "TAGS": "t",
            "KEYS": "k",
            "UNIQ_KEY": "u",
        }
        assert properties["RETRY_TOPIC"] == TOPIC
        assert properties["ORIGIN_MESSAGE_ID"] == first.message.message_id
        assert properties["ORIGIN_GROUP"] == GROUP
        assert properties["1ST_POP_TIME"] == str(first.handle)


def test_a_message_that_comes_back_does_not_hold_the_topics_cursor(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    reader.world.send()
    reader.ack(reader.pop()[1])
    assert reader.cursor() == 0
    reader.world.advance(LEASE_MS + TICK_MS)
    assert reader.cursor() == 2
    assert reader.cursor(topic=RETRY) is None or reader.cursor(topic=RETRY) == 0


def test_after_the_groups_maximum_it_is_a_dead_letter(tmp_path: Path) -> None:
    reader = reading(tmp_path, retry_times_max=2)
    sent = reader.world.send(body=b"poison")
    origin = reader.world.store.message_at(sent.log_offset).message_id
    for _ in range(3):
        assert bodies(reader.pop()) == [b"poison"]
        reader.world.advance(LEASE_MS + TICK_MS)
    assert reader.pop() == []
    assert len(reader.leases) == 0
    dead = reader.world.messages(NAMING.dead_letter_topic(GROUP))
    assert [bytes(each.body) for each in dead] == [b"poison"]
    properties = decode_properties(dead[0].properties)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == (TOPIC, origin)


def test_a_message_that_cannot_be_written_again_stays_where_it_is(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send(body=b"plain")
    reader.world.send(body=b"stuffed", filler="x" * 32_700)
    assert len(reader.pop()) == 2
    reader.world.advance(LEASE_MS + TICK_MS)
    reader.world.advance(TICK_MS)
    again = {each.body: each for each in reader.pop()}
    assert again[b"plain"].topic == RETRY
    assert again[b"stuffed"].topic == TOPIC


def test_a_rejected_message_is_a_dead_letter_at_once(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send(body=b"poison")
    (leased,) = reader.pop()
    reader.reject(leased)
    reader.world.advance(TICK_MS)
    assert reader.world.bodies(NAMING.dead_letter_topic(GROUP)) == [b"poison"]
    assert (reader.pop(), len(reader.leases), reader.cursor()) == ([], 0, 1)
