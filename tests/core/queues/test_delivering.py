"""Messages go to consumers: in order, once, to who has room, and come back where they were."""

import contextlib
from pathlib import Path

import pytest

from onelog.config import BrokerConfig
from onelog.core.access import SELF
from onelog.core.durable.writer import nobody
from onelog.core.queues import log_source
from onelog.core.queues import queues as workqueues
from onelog.core.queues.consumers import Window
from onelog.errors import AccessRefusedError, QueueNotFoundError, ResourceLockedError
from onelog.record.forms.amqp_fields import encode_properties
from tests.core.queues.yard import Yard, body_of, numbered

BOTH = pytest.mark.parametrize("durable", [True, False], ids=["log", "memory"])


@BOTH
def test_messages_are_delivered_in_order_and_counted(yard: Yard, durable: bool) -> None:
    queue = yard.queue(durable=durable)
    yard.put_all(*numbered(10))
    assert (queue.ready, queue.unacked, queue.ready_bytes) == (10, 0, 10)
    taker = yard.consume(prefetch=4)
    assert taker.bodies == numbered(4)
    assert (queue.ready, queue.unacked, queue.ready_bytes, queue.unacked_bytes) == (6, 4, 6, 4)
    queue.ack(taker.places[:2])
    yard.settle()
    assert taker.bodies == numbered(6)
    for _ in range(2):
        queue.ack(taker.places)
        yard.settle()
    assert taker.bodies == numbered(10)
    queue.ack(taker.places)
    assert yard.counts() == (0, 0)
    assert (queue.ready_bytes, queue.unacked_bytes, taker.consumer.unacked) == (0, 0, 0)
    assert len(yard.confirmed) == 10


@BOTH
def test_what_is_delivered_at_once_is_out_until_it_is_acknowledged(
    yard: Yard, durable: bool
) -> None:
    queue = yard.queue(durable=durable)
    taker = yard.consume()
    yard.put_all(*numbered(100))
    assert taker.bodies == numbered(100)
    assert yard.counts() == (0, 100)
    assert set(taker.redelivered) == {0}
    queue.ack(taker.places)
    assert yard.counts() == (0, 0)


@BOTH
def test_a_consumer_without_acknowledgements_empties_the_queue(yard: Yard, durable: bool) -> None:
    queue = yard.queue(durable=durable)
    taker = yard.consume(no_ack=True, prefetch=1)
    yard.put_all(*numbered(1_000))
    assert taker.bodies == numbered(1_000)
    assert (queue.ready, queue.unacked, queue.ready_bytes) == (0, 0, 0)
    assert max(taker.batches) <= 256
    assert taker.passed_on == 0  # More than 256 came together, or each by itself.


def test_new_messages_are_passed_on_to_who_acknowledges_nothing(yard: Yard) -> None:
    queue = yard.queue()
    first = yard.consume(prefetch=3)
    yard.put_all(*numbered(5))
    taker = yard.consume(no_ack=True)
    assert taker.bodies == numbered(5)[3:]
    first.consumer.pause()
    queue.requeue(first.places)
    yard.settle()
    assert taker.bodies == [*numbered(5)[3:], *numbered(3)]
    yard.works.cancel(first.consumer)
    assert taker.passed_on == 0
    taker.consumer.pause()
    for number in range(5, 305, 10):  # They come ten at a time, and are more than go at once.
        yard.put_all(*numbered(305)[number : number + 10])
    assert (queue.ready, taker.passed_on) == (300, 0)
    taker.consumer.resume()
    yard.settle()
    assert taker.bodies[5:] == numbered(305)[5:]
    assert (taker.passed_on, queue.acked, queue.delivered) == (300, 305, 308)
    assert taker.batches[-2:] == [250, 50]
    assert (queue.ready, queue.unacked, queue.ready_bytes, queue.unacked_bytes) == (0, 0, 0, 0)
    yard.record()
    yard.restart()
    assert yard.counts() == (0, 0)


def test_messages_that_came_together_to_a_queue_in_memory_go_in_order_whoever_takes_them(
    yard: Yard,
) -> None:
    queue = yard.queue(durable=False)
    raw = encode_properties({})
    sent = [b"%03d" % number for number in range(700)]

    def put_together(bodies: list[bytes]) -> None:
        assert yard.broker.publish.routing.publish_all(SELF, "/", "", "q", raw, bodies, nobody)
        yard.settle()

    yard.put_all(sent[0])
    put_together(sent[1:5])
    yard.put_all(sent[5])
    assert [body_of(each) for each in queue.browse(1, 3)] == sent[1:4]
    put_together(sent[6:600])
    first = yard.consume(prefetch=3)
    assert first.bodies == sent[:3]
    taker = yard.consume(no_ack=True)
    assert (taker.bodies, queue.ready) == (sent[3:600], 0)
    assert 0 < taker.passed_on < 597
    assert max(taker.batches) <= 256
    first.consumer.pause()
    put_together(sent[600:650])
    assert taker.bodies[-50:] == sent[600:650]
    taker.consumer.pause()
    put_together(sent[650:690])
    queue.requeue(first.places)
    yard.put_all(sent[690])
    taker.consumer.resume()
    yard.settle()
    assert taker.bodies[-44:] == [*sent[:3], *sent[650:691]]
    assert (queue.unacked, queue.ready_bytes, queue.unacked_bytes) == (0, 0, 0)
    taker.consumer.pause()
    put_together(sent[691:])
    assert (queue.ready, queue.ready_bytes) == (9, 27)
    assert queue.purge() == 9
    assert (queue.ready, queue.ready_bytes, yard.works.memory_bytes) == (0, 0, 0)


def test_who_publishes_hears_at_once_that_there_is_little_memory(tmp_path: Path) -> None:
    config = BrokerConfig(memory_queue_bytes_max=1 << 20)
    with contextlib.closing(Yard(tmp_path / "store", broker_config=config)) as yard:
        told: list[bool] = []
        yard.works.on_alarm.append(lambda: told.append(yard.works.memory_is_high))
        yard.queue(durable=False)
        yard.put(*[bytes(10_000)] * 81)
        assert told == []
        yard.put(bytes(10_000))
        assert told == [True]  # Four fifths are in use; nothing else has had its turn.
        yard.settle()
        assert len(yard.drain()) == 82
        yard.settle()
        assert told == [True, False]


def test_what_is_passed_on_is_what_may_be_had(yard: Yard) -> None:
    """Not what has expired, and what is on its own ledger in its turn."""
    yard.queue("short", arguments={"x-message-ttl": 50})
    yard.queue("ranked", arguments={"x-max-priority": 2})
    takers = [yard.consume(name, no_ack=True) for name in ("short", "ranked")]
    for taker in takers:
        taker.consumer.pause()
    yard.put_all(*numbered(3), key="short")
    yard.advance(60)
    yard.put_all(*numbered(5)[3:], key="short")
    yard.put_all(b"low", key="ranked", priority=0)
    yard.put_all(b"high", key="ranked", priority=2)
    for taker in takers:
        taker.consumer.resume()
    yard.settle()
    assert [taker.bodies for taker in takers] == [numbered(5)[3:], [b"high", b"low"]]
    assert [taker.passed_on for taker in takers] == [0, 0]


def test_a_consumer_that_cannot_be_passed_on_to_is_cancelled(yard: Yard) -> None:
    yard.queue()
    taker = yard.consume(no_ack=True)

    def fail(*_: object) -> None:
        raise RuntimeError("a mistake of its gateway")

    taker.consumer.on_bodies = fail
    yard.put_all(*numbered(2))
    assert taker.cancelled == "error"
    assert not yard.find().consumers


@BOTH
def test_a_message_that_comes_back_is_at_its_place_and_redelivered(
    yard: Yard, durable: bool
) -> None:
    queue = yard.queue(durable=durable)
    taker = yard.consume(prefetch=5)
    yard.put_all(*numbered(8))
    queue.requeue([taker.places[3], taker.places[1]])
    yard.settle()
    assert taker.bodies == [b"0", b"1", b"2", b"3", b"4", b"1", b"3"]
    assert taker.redelivered == [0, 0, 0, 0, 0, 1, 1]
    assert len(set(taker.places)) == 5
    queue.ack(taker.places)
    yard.settle()
    assert taker.bodies[7:] == [b"5", b"6", b"7"]


@BOTH
def test_consumers_have_messages_in_turn(yard: Yard, durable: bool) -> None:
    yard.queue(durable=durable)
    one, two, three = yard.consume(), yard.consume(), yard.consume()
    yard.put_all(*numbered(7))
    assert one.bodies == [b"0", b"3", b"6"]
    assert two.bodies == [b"1", b"4"]
    assert three.bodies == [b"2", b"5"]
    yard.put_all(b"7")
    assert two.bodies == [b"1", b"4", b"7"]


def test_a_consumer_that_is_full_loses_its_turn(yard: Yard) -> None:
    queue = yard.queue(durable=False)
    one, two = yard.consume(prefetch=1), yard.consume(prefetch=3)
    yard.put_all(*numbered(10))
    assert (one.bodies, two.bodies) == ([b"0"], [b"1", b"2", b"3"])
    queue.ack(one.places)
    yard.settle()
    assert one.bodies == [b"0", b"4"]


def test_consumers_of_a_higher_priority_go_first(yard: Yard) -> None:
    queue = yard.queue()
    low, high = yard.consume(priority=-1), yard.consume(priority=5, prefetch=2)
    yard.put_all(*numbered(5))
    assert (high.bodies, low.bodies) == ([b"0", b"1"], [b"2", b"3", b"4"])
    queue.ack(high.places)
    yard.put_all(b"5")
    assert high.bodies[2:] == [b"5"]


def test_a_single_active_consumer_has_all_until_it_goes(yard: Yard) -> None:
    queue = yard.queue(arguments={"x-single-active-consumer": True})
    one, two = yard.consume(prefetch=2), yard.consume()
    yard.put_all(*numbered(4))
    assert (one.bodies, two.bodies) == ([b"0", b"1"], [])
    assert (one.consumer.is_active, two.consumer.is_active) == (True, False)
    yard.works.cancel(one.consumer)
    yard.settle()
    assert two.bodies == [b"2", b"3"]
    queue.requeue(one.places)
    yard.settle()
    assert two.bodies == [b"2", b"3", b"0", b"1"]
    with pytest.raises(ResourceLockedError):
        yard.get()


def test_the_window_of_a_channel_is_shared(yard: Yard) -> None:
    a, b = yard.queue("a", durable=False), yard.queue("b")
    window = Window(3)
    one, two = yard.consume("a", window=window), yard.consume("b", window=window)
    yard.put_all(*numbered(5), key="a")
    yard.put_all(*numbered(5), key="b")
    assert (len(one.got), len(two.got)) == (3, 0)
    a.ack(one.places[:2])
    yard.settle()
    assert len(one.got) + len(two.got) == 5
    b.ack(two.places)
    a.ack(one.places)
    yard.settle()
    window.set_limit(0)
    yard.settle()
    assert sorted(one.bodies) == sorted(two.bodies) == list(numbered(5))


def test_consumers_of_one_channel_share_its_window_on_one_queue(yard: Yard) -> None:
    queue = yard.queue()
    window = Window(3)
    one, two = yard.consume(window=window), yard.consume(window=window)
    yard.put_all(*numbered(10))
    assert (one.bodies, two.bodies) == ([b"0", b"2"], [b"1"])
    queue.ack(two.places)
    yard.settle()
    assert len(one.got) + len(two.got) == 4


@pytest.mark.parametrize("limit", [1, 5])
def test_queues_take_turns_in_the_window_of_a_channel(yard: Yard, limit: int) -> None:
    window, names = Window(limit), ("a", "b", "c")
    for queue_name in names:
        yard.queue(queue_name)
        yard.put_all(*numbered(90), key=queue_name)
    takers = [yard.consume(queue_name, window=window) for queue_name in names]
    acknowledged = [0, 0, 0]
    while sum(len(each.got) for each in takers) < 90:
        for number, each in enumerate(takers):
            if new := each.places[acknowledged[number] :]:
                acknowledged[number] += len(new)
                each.consumer.queue.ack(new)
        yard.settle()
    assert all(25 <= len(each.got) <= 35 for each in takers)


def test_who_acknowledges_nothing_waits_for_the_window_and_takes_no_room(yard: Yard) -> None:
    window = Window(2)
    yard.queue("a")
    yard.queue("b")
    yard.put_all(*numbered(3), key="a")
    yard.put_all(*numbered(5), key="b")
    careful = yard.consume("a", window=window)
    careless = yard.consume("b", window=window, no_ack=True)
    assert (len(careful.got), len(careless.got)) == (2, 0)
    careful.consumer.queue.ack(careful.places)
    yard.settle()
    assert (len(careful.got), len(careless.got)) == (3, 5)
    yard.put_all(b"more", key="b")
    assert (window.used, len(careless.got)) == (1, 6)


def test_a_consumer_that_pauses_gets_nothing_until_it_resumes(yard: Yard) -> None:
    yard.queue()
    taker = yard.consume()
    taker.consumer.pause()
    yard.put_all(b"a")
    assert taker.got == []
    taker.consumer.resume()
    yard.settle()
    assert taker.bodies == [b"a"]


def test_what_is_kept_at_hand_has_a_limit_for_all_queues_together(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_source, "HOT_BYTES_OF_ALL", 20_000)
    names = ["a", "b", "c"]
    takers = []
    for name in names:
        yard.queue(name)
        takers.append(yard.consume(name, no_ack=True))
        takers[-1].consumer.pause()
    for name in names:
        yard.put_all(*numbered(200), key=name)
    ledgers = [yard.find(name).ledgers[0] for name in names]
    assert [ledger.ready for ledger in ledgers] == [200, 200, 200]
    sources = [each.source for each in ledgers]
    kept = [each.at_hand(0) for each in sources if isinstance(each, log_source.LogSource)]
    assert kept[0] == 200
    assert kept[1] == kept[2] < 100
    for taker in takers:
        taker.consumer.resume()
    yard.settle()
    assert [taker.bodies for taker in takers] == [numbered(200)] * 3


@BOTH
def test_queues_are_behind_while_they_could_deliver_a_lot(
    yard: Yard, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workqueues, "_BEHIND_BYTES", 100_000)
    yard.queue(durable=durable)
    taker = yard.consume(no_ack=True)
    yard.put_all(*numbered(1_000))
    assert not yard.works.is_behind()
    yard.put(*numbered(1_000))
    while len(taker.got) < 1_256:
        yard.end_tick()
    assert yard.works.is_behind()
    taker.consumer.pause()
    yard.settle()
    assert not yard.works.is_behind()  # It is not this broker that is slow.
    taker.consumer.resume()
    yard.settle()
    assert not yard.works.is_behind()
    assert taker.bodies == [*numbered(1_000), *numbered(1_000)]


def test_a_cancelled_consumer_keeps_what_it_has(yard: Yard) -> None:
    queue = yard.queue()
    taker = yard.consume(prefetch=2)
    yard.put_all(*numbered(4))
    yard.works.cancel(taker.consumer)
    yard.settle()
    assert taker.bodies == [b"0", b"1"]
    assert yard.counts() == (2, 2)
    queue.ack(taker.places[:1])
    queue.requeue(taker.places[1:])
    assert yard.drain() == [b"1", b"2", b"3"]


def test_an_exclusive_consumer_is_alone(yard: Yard) -> None:
    yard.queue()
    first = yard.consume(exclusive=True)
    with pytest.raises(AccessRefusedError):
        yard.consume()
    yard.works.cancel(first.consumer)
    yard.consume()
    with pytest.raises(AccessRefusedError):
        yard.consume(exclusive=True)


@BOTH
def test_a_get_sees_what_was_published_before_it(yard: Yard, durable: bool) -> None:
    queue = yard.queue(durable=durable)
    yard.put(b"a", b"b")  # The tick is not over.
    first = yard.get()
    assert first is not None
    assert body_of(first) == b"a"
    assert yard.counts() == (1, 1)
    queue.requeue([first[0]])
    again = yard.get()
    assert again is not None
    assert (body_of(again), again[1]) == (b"a", 1)
    assert yard.drain() == [b"b"]
    assert yard.get() is None


@BOTH
def test_a_purge_drops_what_is_ready_only(yard: Yard, durable: bool) -> None:
    queue = yard.queue(durable=durable)
    yard.put(*numbered(5))
    held = yard.get()
    assert held is not None
    assert yard.works.purge(SELF, "/", "q") == 4
    assert yard.counts() == (0, 1)
    assert queue.ready_bytes == 0
    queue.requeue([held[0]])
    assert yard.drain() == [b"0"]


def test_a_deleted_queue_tells_its_consumers(yard: Yard) -> None:
    yard.queue()
    taker = yard.consume()
    yard.put_all(b"a")
    assert yard.works.delete(SELF, "/", "q") == 0
    assert taker.cancelled == "deleted"
    taker.consumer.queue.ack(taker.places)  # Late, and ignored.
    with pytest.raises(QueueNotFoundError):
        yard.find()
    yard.queue()
    assert yard.counts() == (0, 0)


def test_who_cannot_be_delivered_to_is_cancelled_and_loses_nothing(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    yard.queue()

    def broken(consumer: object, found: object) -> None:
        raise RuntimeError("a bug")

    yard.works.consume(SELF, "/", "q", broken, lambda consumer, reason: None)
    yard.put_all(b"a")
    assert "a bug" in caplog.text
    assert yard.drain() == [b"a"]


def test_one_that_never_acknowledges_does_not_get_everything(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.core.queues.queue.UNACKED_MAX", 50)
    queue = yard.queue()
    taker = yard.consume()
    yard.put_all(*numbered(120))
    assert len(taker.got) == 50
    queue.ack(taker.places[:10])
    yard.settle()
    assert len(taker.got) == 60


def test_messages_of_a_higher_priority_go_first(yard: Yard) -> None:
    for name, durable in (("log", True), ("memory", False)):
        queue = yard.queue(name, durable=durable, arguments={"x-max-priority": 3})
        yard.put(b"none", key=name)
        for priority in (1, 3, 9, 0, 2):
            yard.put(b"%d" % priority, key=name, priority=priority)
        yard.settle()
        first = yard.get(name)
        assert first is not None
        queue.requeue([first[0]])
        assert yard.drain(name) == [b"3", b"9", b"2", b"1", b"none", b"0"]
        assert queue.ready_bytes == 0


@BOTH
def test_very_many_go_back_some_at_a_time(
    yard: Yard, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.core.queues.queue.SOME_MAX", 100)
    queue = yard.queue(durable=durable)
    taker = yard.consume()
    yard.put_all(*numbered(450))
    yard.works.cancel(taker.consumer)
    queue.requeue(taker.places)
    assert yard.counts() == (100, 350)
    yard.advance(1)
    assert yard.counts() == (450, 0)
    assert yard.drain() == numbered(450)
    taker = yard.consume()
    yard.put_all(*numbered(450))
    queue.ack(taker.places)
    yard.advance(1)
    assert yard.counts() == (0, 0)


@BOTH
def test_browsing_takes_nothing(yard: Yard, durable: bool) -> None:
    queue = yard.queue(durable=durable)
    yard.put_all(*numbered(10))
    first = yard.get()
    assert first is not None
    queue.requeue([first[0]])
    assert [body_of(each) for each in queue.browse(0, 3)] == numbered(3)
    assert [body_of(each) for each in queue.browse(8, 3)] == numbered(2, 8)
    assert yard.counts() == (10, 0)
