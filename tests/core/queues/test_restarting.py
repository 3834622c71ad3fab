"""What durable queues know after a restart, a kill, and a loss of power."""

from pathlib import Path

import pytest

from onelog.core.access import SELF
from onelog.core.queues.deliveries import Delivery
from onelog.core.queues.restore import claim, read_again
from onelog.message import NewMessage
from tests.core.queues.yard import Yard, body_of, numbered
from tests.core.world import cut, entries_of


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_what_was_not_acknowledged_comes_again_as_redelivered(yard: Yard, how: str) -> None:
    queue = yard.queue()
    taker = yard.consume(prefetch=6)
    yard.put_all(*numbered(10))
    queue.ack([taker.places[0], taker.places[2], taker.places[3]])
    yard.settle()
    yard.record()
    getattr(yard, how)()
    queue = yard.find()
    assert (queue.ready, queue.unacked, queue.ready_bytes) == (7, 0, 7)
    taker = yard.consume()
    assert taker.bodies == [b"1", b"4", b"5", b"6", b"7", b"8", b"9"]
    assert taker.redelivered == [1, 1, 1, 1, 1, 1, 0]
    queue.ack(taker.places)
    assert (queue.ready_bytes, queue.unacked_bytes) == (0, 0)
    yard.record()
    getattr(yard, how)()
    assert yard.counts() == (0, 0)


def test_acknowledgements_of_the_last_moment_may_be_lost_and_no_message(yard: Yard) -> None:
    queue = yard.queue()
    taker = yard.consume()
    yard.put_all(*numbered(5))
    yard.record()
    queue.ack(taker.places)
    yard.crash()
    taker = yard.consume()
    assert taker.bodies == numbered(5)
    assert set(taker.redelivered) == {1}


def test_who_waits_for_the_record_of_acknowledgements_is_told(yard: Yard) -> None:
    queue = yard.queue()
    memory = yard.queue("m", durable=False)
    taker = yard.consume()
    yard.put_all(*numbered(5))
    told: list[object] = []
    queue.ack(taker.places)
    queue.when_recorded(told.append)
    memory.when_recorded(told.append)
    assert told == [None]
    yard.settle()
    assert told == [None, None]
    yard.crash()
    assert yard.counts() == (0, 0)


def test_acknowledgements_can_be_in_the_append_of_what_is_published(yard: Yard) -> None:
    queue = yard.queue()
    memory = yard.queue("m", durable=False)
    taker = yard.consume()
    yard.put_all(*numbered(5))
    acks = [(queue, taker.places[:3]), (memory, [0])]
    yard.broker.transactions.begin(SELF, "me", "t")
    yard.broker.publish.routing.stage(SELF, "me", "t", "/", "", "q", b"\0\0", b"more")

    def committed(token: object, where: object, error: object) -> None:
        assert error is None
        yard.crash()

    alongside = yard.works.acks_alongside(lambda: acks, lambda: queue.ack(taker.places[:3]))
    yard.broker.publish.routing.commit(SELF, "me", "t", committed, alongside=alongside)
    yard.settle()
    assert yard.drain() == [b"3", b"4", b"more"]


@pytest.mark.parametrize(("staged", "lost"), [(0, 1), *((2, lost) for lost in range(6))])
def test_messages_and_acknowledgements_of_a_commit_that_was_cut_off_are_there_or_neither(
    yard: Yard, staged: int, lost: int
) -> None:
    queue, other, _ = yard.queue(), yard.queue("other"), yard.queue("out")
    takers = yard.consume(), yard.consume("other")
    yard.put_all(*numbered(3))
    yard.put_all(*numbered(2), key="other")
    yard.record()
    yard.broker.transactions.begin(SELF, "me", "t")
    for body in numbered(staged):
        yard.broker.publish.routing.stage(SELF, "me", "t", "/", "", "out", b"\0\0", body)
    acks = [(queue, takers[0].places[:2]), (other, takers[1].places)]
    alongside = yard.works.acks_alongside(lambda: acks, lambda: None)
    yard.broker.publish.routing.commit(SELF, "me", "t", lambda *told: None, alongside=alongside)
    # Without messages one record; with them what follows, they, the acknowledgements, the end.
    if lost:
        cut(yard, lost)
    is_there = lost < (5 if staged else 1)
    for again in (yard.crash, yard.crash, yard.restart):
        again()
        found = [yard.counts(name)[0] for name in ("q", "other", "out")]
        assert found == ([1, 0, staged] if is_there else [3, 2, 0])


def test_acknowledgements_out_of_order_are_remembered_one_by_one(yard: Yard) -> None:
    queue = yard.queue()
    taker = yard.consume()
    yard.put_all(*numbered(200))
    queue.ack(taker.places[::2])
    yard.record()
    queue.ack(taker.places[1:100:4])
    yard.record()
    left = [b"%d" % each for each in range(1, 200, 2) if each > 100 or each % 4 == 3]
    for again in (yard.crash, yard.restart, yard.crash):
        again()
        assert yard.find().ready == len(left)
        assert yard.find().ready_bytes == sum(map(len, left))
    assert yard.drain() == left


def test_the_snapshot_says_what_the_records_said(yard: Yard) -> None:
    queue = yard.queue()
    taker = yard.consume(prefetch=5)
    yard.put_all(*numbered(20))
    queue.ack(taker.places[1:3])
    yard.settle()
    yard.record()
    yard.core.lease_tables.snapshot(wait=True)
    yard.crash()
    assert entries_of(yard.works.ledgers)["q@0"]["u"] == [[0, 1], [3, 7]]
    assert yard.find().ready == 18
    assert yard.drain() == [b"0", *numbered(17, 3)]


def test_a_purge_is_remembered(yard: Yard) -> None:
    queue = yard.queue()
    taker = yard.consume(prefetch=2)
    yard.put_all(*numbered(1_000))
    queue.requeue(taker.places[:1])
    yard.works.cancel(taker.consumer)
    assert yard.works.purge(SELF, "/", "q") == 999
    yard.put_all(b"new")
    yard.record()
    yard.crash()
    assert yard.counts() == (2, 0)
    assert yard.drain() == [b"1", b"new"]


def test_bytes_are_counted_also_for_what_came_after_the_last_record(yard: Yard) -> None:
    yard.queue()
    yard.put_all(b"12345", b"123")
    yard.crash()
    assert yard.find().ready_bytes == 8
    yard.get(no_ack=True)
    yard.record()
    yard.put_all(b"1234567")
    yard.crash()
    assert (yard.find().ready, yard.find().ready_bytes) == (2, 10)


def test_a_queue_that_only_grows_writes_down_its_bytes(yard: Yard) -> None:
    yard.queue()
    yard.put_all(*numbered(1_500))
    yard.advance(20_000)
    yard.settle()
    yard.record()
    before = yard.find().ready_bytes
    yard.crash()
    ledger = yard.find().ledgers[0]
    assert yard.find().ready_bytes == before
    assert ledger.record()["b"][0] == 1_500


def test_a_loss_of_power_may_cut_the_queue_off(yard: Yard) -> None:
    queue = yard.queue()
    yard.put_all(*numbered(5))
    yard.store.flush()
    assert yard.store.wait_flushed(yard.store.log_end)
    taker = yard.consume()
    yard.put_all(*numbered(5, 5))
    queue.ack(taker.places)
    yard.record()
    yard.power_loss()
    assert yard.find().ready == 5
    yard.put_all(b"new")
    assert yard.drain() == [*numbered(5), b"new"]
    yard.record()
    yard.crash()
    assert yard.counts() == (0, 0)


def test_a_queue_that_was_deleted_and_made_anew_has_nothing_of_the_old_one(yard: Yard) -> None:
    queue = yard.queue()
    taker = yard.consume()
    yard.put_all(*numbered(9))
    queue.ack(taker.places[:4])
    yard.works.delete(SELF, "/", "q")
    yard.queue()
    yard.put_all(b"a", b"b")
    yard.crash()
    assert yard.counts() == (2, 0)
    assert yard.drain() == [b"a", b"b"]


def test_priorities_are_kept(yard: Yard) -> None:
    queue = yard.queue(arguments={"x-max-priority": 5})
    for priority in (1, 5, 3, 5):
        yard.put(b"%d" % priority, priority=priority)
    held = yard.get()
    assert held is not None
    queue.ack([held[0]])
    yard.record()
    yard.crash()
    assert yard.find().ready_bytes == 3
    assert yard.drain() == [b"5", b"3", b"1"]


def test_what_other_protocols_send_to_its_topic_is_delivered(yard: Yard) -> None:
    yard.queue()
    taker = yard.consume()
    yard.broker.publish.send(
        SELF, NewMessage("q", 0, b"from afar", b"KEYS\x01k\x02", born_ms=1), yard.on_stored
    )
    yard.put(b"near")
    yard.settle()
    assert taker.bodies == [b"from afar", b"near"]
    yard.crash()
    assert yard.drain() == [b"from afar", b"near"]


def test_one_append_for_many_queues(yard: Yard) -> None:
    routing = yard.broker.publish.routing
    for name in ("a", "b", "c"):
        yard.queue(name)
        routing.bind(SELF, "/", "amq.fanout", "queue", name, "")
    yard.queue("m", durable=False)
    routing.bind(SELF, "/", "amq.fanout", "queue", "m", "")
    takers = {name: yard.consume(name) for name in ("a", "c", "m")}
    for number in range(5):
        yard.put(b"%d" % number, exchange="amq.fanout", key="")
        yard.put(b"to c", key="c")
    yard.settle()
    assert takers["a"].bodies == takers["m"].bodies == list(numbered(5))
    assert takers["c"].bodies[::2] == list(numbered(5))
    takers["c"].consumer.queue.ack(takers["c"].places[:3])
    yard.record()
    yard.crash()
    assert yard.drain("a") == yard.drain("b") == list(numbered(5))
    assert len(yard.drain("c")) == 7


def test_what_is_on_disk_only_is_read_by_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard = Yard(tmp_path / "store")
    yard.queue()
    yard.put_all(*numbered(20))
    yard.restart()
    monkeypatch.setattr(yard.core.reader, "_is_cold", lambda ranges: True)
    works: list[object] = []
    monkeypatch.setattr(yard.core.reader, "warm", works.append)
    taker = yard.consume(prefetch=5)
    assert works
    assert taker.bodies == numbered(5)
    taker.consumer.queue.requeue(taker.places)
    yard.settle()
    assert taker.bodies[5:] == numbered(5)
    found = yard.get()
    assert found is not None
    assert body_of(found) == b"5"
    yard.close()


@pytest.mark.parametrize("is_recorded", [True, False])
def test_what_somebody_had_can_be_claimed_when_the_broker_starts_again(
    yard: Yard, is_recorded: bool
) -> None:
    queue = yard.queue()
    taker = yard.consume(prefetch=4)
    yard.put_all(*numbered(6))
    queue.ack(taker.places[:1])
    if is_recorded:
        yard.record()
    yard.crash()
    queue = yard.find()
    for place in (taker.places[0], taker.places[2], 77):
        claim(yard.works, queue, place)
    assert queue.unacked == (1 if is_recorded else 2)
    found: list[Delivery] = []
    for place in (taker.places[2], taker.places[3], 77):
        read_again(yard.works, queue, place, found.extend)
    assert [body_of(each) for each in found] == [b"2"]
    bodies = [b"%d" % number for number in (1, 3, 4, 5)]
    assert yard.consume().bodies == bodies
    assert (queue.ready_bytes, queue.unacked_bytes) == (0, 5 if is_recorded else 6)
    queue.ack([taker.places[2]])
    yard.record()
    yard.crash()
    assert yard.counts()[0] == (4 if is_recorded else 5)
