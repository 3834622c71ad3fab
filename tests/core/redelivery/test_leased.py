"""Messages that nobody acknowledged: counted, retried, and in the end dead letters."""

from pathlib import Path

from onelog.message import decode_properties
from onelog.rocketmq.profile import NAMING
from tests.core.leasing import GROUP, LEASE_MS, TICK_MS, TOPIC, bodies, reading

RETRY = NAMING.lease_retry_topic(GROUP, TOPIC)


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
