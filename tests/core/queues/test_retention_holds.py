"""What the log keeps for queues, and what it does not keep for them."""

from typing import Any

import pytest

from onelog.core.access import SELF
from onelog.core.queues import retention_holds
from onelog.errors import StoreFullError
from onelog.message import NewMessage
from onelog.record.forms import Form, mqtt
from tests.core.queues.yard import Yard, numbered

DAYS_MS = 4 * 86_400_000
"""More than the log is kept for."""


def fill(yard: Yard, segments: int = 3) -> None:
    """Other messages, a few segments of them, that all are old then."""
    if yard.core.topics.get("other") is None:
        yard.topic("other", queues=1)
    size = yard.store.config.segment_bytes
    end = yard.store.log_end + segments * size
    while yard.store.log_end < end:
        yard.store.append([NewMessage("other", 0, bytes(size // 20))] * 10)
    yard.clock.advance(DAYS_MS)
    yard.store.append([NewMessage("other", 0, b"fresh")])


def test_a_file_with_messages_that_nobody_has_acknowledged_stays(yard: Yard) -> None:
    yard.queue("forgotten")
    yard.put_all(*(bytes(60_000) for _ in range(10)), key="forgotten")  # Too much to be moved.
    fill(yard, 2)
    assert yard.retain().segments_deleted == 0
    assert yard.counts("forgotten") == (10, 0)
    assert len(yard.drain("forgotten")) == 10
    yard.record()
    assert yard.retain().segments_deleted >= 2


def test_what_a_consumer_has_is_kept(yard: Yard) -> None:
    yard.queue()
    yard.put_all(b"one", b"two")
    taker = yard.consume()
    yard.find().ack(taker.places[1:])
    yard.record()
    fill(yard)
    assert yard.retain().segments_deleted == 0
    yard.find().ack(taker.places[:1])
    yard.record()
    assert yard.retain().segments_deleted >= 2


@pytest.mark.parametrize("how", ["restart", "crash", "power_loss"])
def test_few_messages_of_a_forgotten_queue_move_to_the_end(yard: Yard, how: str) -> None:
    yard.queue("forgotten")
    yard.queue("busy")
    yard.put_all(*numbered(5), key="forgotten")
    yard.put_all(b"done", key="busy")
    yard.drain("busy")
    fill(yard)
    yard.put_all(b"5", key="forgotten")
    start = yard.store.log_min
    assert yard.retain().segments_deleted >= 2
    assert yard.store.log_min > start
    assert yard.counts("forgotten") == (6, 0)
    assert yard.store.wait_flushed(yard.store.log_end)
    getattr(yard, how)()
    assert yard.counts("forgotten") == (6, 0)
    assert yard.find("forgotten").ready_bytes == 6
    assert yard.drain("forgotten") == list(numbered(6))
    assert yard.drain("busy") == []


def test_messages_that_came_back_are_known_as_such_when_they_were_moved(yard: Yard) -> None:
    yard.queue()
    yard.put_all(*numbered(4))
    taker = yard.consume(prefetch=2)
    yard.works.cancel(taker.consumer)
    yard.find().requeue(taker.places)
    fill(yard)
    assert yard.retain().segments_deleted >= 2
    again = yard.consume()
    assert again.bodies == list(numbered(4))
    assert again.redelivered == [1, 1, 0, 0]
    yard.find().requeue(again.places)
    yard.record()
    yard.crash()
    assert yard.drain() == list(numbered(4))


def test_levels_are_moved_each_for_itself(yard: Yard) -> None:
    yard.queue("ranked", arguments={"x-max-priority": 2})
    for priority in (0, 2, 1, 2):
        yard.put_all(b"p%d" % priority, key="ranked", priority=priority)
    fill(yard)
    assert yard.retain().segments_deleted >= 2
    assert yard.drain("ranked") == [b"p2", b"p2", b"p1", b"p0"]


@pytest.mark.parametrize("how", ["queue", "message"])
def test_messages_that_expire_are_not_moved(yard: Yard, how: str) -> None:
    ttl: dict[str, Any] = {"x-message-ttl": 2 * DAYS_MS} if how == "queue" else {}
    yard.queue(arguments=ttl)
    yard.put_all(b"one", **({} if ttl else {"expiration": str(2 * DAYS_MS)}))
    fill(yard)
    assert yard.retain().segments_deleted == 0
    assert yard.drain() == [b"one"]


def test_a_move_that_cannot_be_written_changes_nothing(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard.queue()
    yard.put_all(*numbered(3))
    fill(yard)

    def refuse(*_: object) -> None:
        raise StoreFullError("disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(yard.broker.queues.declared.ledgers, "records", refuse)
        assert yard.retain().segments_deleted == 0
    assert yard.counts() == (3, 0)
    assert yard.retain().segments_deleted >= 2
    assert yard.drain() == list(numbered(3))


def test_more_than_little_is_not_moved(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_holds, "MOVED_COUNT_MAX", 3)
    yard.queue()
    yard.put_all(*numbered(4))
    fill(yard)
    assert yard.retain().segments_deleted == 0
    assert yard.drain() == list(numbered(4))


def test_who_holds_the_log_back_is_told(yard: Yard) -> None:
    yard.queue("late")
    yard.queue("later")
    yard.queue("empty")
    yard.put_all(*numbered(3), key="late")
    yard.put_all(*numbered(2), key="later")
    taker = yard.consume("late", prefetch=1)
    first, second = yard.core.retention_holds.holds()
    assert (first.vhost, first.queue, first.messages) == ("/", "late", 3)
    assert (second.queue, second.messages) == ("later", 2)
    assert first.log_offset < second.log_offset
    assert yard.core.retention_holds.needed_from() == first.log_offset
    yard.works.cancel(taker.consumer)
    yard.find("late").ack(taker.places)
    yard.find("late").purge()
    assert [pin.queue for pin in yard.core.retention_holds.holds()] == ["later"]


@pytest.mark.parametrize(("qos", "was_sent"), [(1, True), (2, False), (2, True)])
def test_a_message_of_mqtt_that_was_sent_with_qos_2_keeps_its_place(
    yard: Yard, qos: int, was_sent: bool
) -> None:
    queue = yard.queue()
    body = mqtt.encode(qos << 1, 0, b"", b"t", b"", b"x")
    form = Form.MQTT.sys_flag
    yard.broker.publish.routing.publish_record(SELF, "/", "", "q", body, form, lambda *told: None)
    yard.settle()
    if was_sent:
        taker = yard.consume()
        yard.works.cancel(taker.consumer)
        queue.requeue(taker.places, counted=False)
        yard.settle()
    fill(yard)
    is_bound = was_sent and qos == 2
    assert bool(yard.retain().segments_deleted) == (not is_bound)
    assert yard.consume().places == [0 if is_bound else 1]
