"""The way into the log: a tick at a time, together with what moves, and kept if it fails."""

from pathlib import Path

from onelog.core.lease_retry import lease_retry_topic
from onelog.core.tables import LEASES_TOPIC
from onelog.errors import StoreFullError
from tests.core.leasing import GROUP, LEASE_MS, TICK_MS, TOPIC, bodies, reading

RETRY = lease_retry_topic(GROUP, TOPIC)


def test_nothing_is_told_before_it_is_recorded(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    before = reader.world.store.max_offset(LEASES_TOPIC, 0)
    reader.world.broker.pop.pop(reader.request())
    reader.leases.when_recorded(reader.answers.append)
    assert reader.answers == []
    assert reader.world.store.max_offset(LEASES_TOPIC, 0) == before
    reader.world.end_tick()
    assert reader.answers == [None]
    assert reader.world.store.max_offset(LEASES_TOPIC, 0) == before + 1


def test_everything_of_a_tick_is_one_record(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=4)
    for n in range(40):
        reader.world.send(queue_id=n % 4)
    leased = reader.pop()
    before = reader.world.store.max_offset(LEASES_TOPIC, 0)
    reader.ack(*leased[:20])
    assert reader.world.store.max_offset(LEASES_TOPIC, 0) == before + 1


def test_a_crash_between_hand_over_and_record_hands_out_again(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    reader.world.broker.pop.pop(reader.request())
    reader.world.crash()
    assert len(reader.pop()) == 1


def test_a_move_and_the_end_of_its_lease_are_one_write(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    reader.pop()
    reader.world.advance(LEASE_MS + TICK_MS)
    assert reader.world.store.max_offset(RETRY, 0) == 1
    for _ in range(2):
        reader.world.crash()
        reader.world.advance(TICK_MS)
    assert reader.world.store.max_offset(RETRY, 0) == 1


def test_snapshots_may_be_taken_at_any_time(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for n in range(8):
        reader.world.send(body=b"%d" % n)
    leased = reader.pop(4)
    reader.leases.acknowledge(GROUP, TOPIC, 0, leased[0].offset, leased[0].handle)
    reader.world.broker.lease_tables.snapshot(wait=True)
    reader.ack(leased[1])
    reader.world.crash()
    assert reader.cursor() == 2
    assert len(reader.leases) == 2
    assert len(reader.pop()) == 4


def test_a_store_that_takes_no_writes_loses_nothing(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for n in range(3):
        reader.world.send(body=b"%d" % n)
    expiring, done = reader.pop(2)
    full = StoreFullError("the disk is full")
    reader.world.store._refusal = full
    reader.ack(done)
    assert reader.answers[-1] is full
    assert reader.pop(invisible_ms=5 * LEASE_MS)
    assert reader.answers[-1] is full
    reader.world.advance(LEASE_MS + TICK_MS)
    reader.world.store._refusal = None
    reader.world.advance(2_000)
    reader.world.end_tick()
    assert bodies(reader.pop()) == [expiring.body]
    reader.world.crash()
    assert len(reader.leases) == 2
    assert reader.cursor() == 2
