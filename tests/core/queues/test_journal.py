"""The way into the log: a tick at a time, together with what moves, and kept if it fails."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from onelog.core.durable.tables import LEASES_TOPIC
from onelog.errors import MessageTooLargeError, StoreFullError
from onelog.message import Appended, NewMessage
from onelog.rocketmq.profile import NAMING
from tests.core.leasing import (
    GROUP,
    LEASE_MS,
    ORDERED,
    TICK_MS,
    TOPIC,
    Reader,
    bodies,
    reading,
)
from tests.core.world import SMALL_STORE

RETRY = NAMING.lease_retry_topic(GROUP, TOPIC)


def test_nothing_is_told_before_it_is_recorded(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    before = reader.world.store.max_offset(LEASES_TOPIC, 0)
    reader.ask(reader.request())
    reader.leases.when_recorded(reader.answers.append)
    assert reader.answers == []
    assert reader.world.store.max_offset(LEASES_TOPIC, 0) == before
    reader.world.end_tick()
    assert reader.answers == [None]
    assert reader.world.store.max_offset(LEASES_TOPIC, 0) == before + 1


def test_what_changes_while_others_are_told_waits_for_its_own_record(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for _ in range(2):
        reader.world.send()
    one, two = reader.pop()
    leases, store = reader.leases, reader.world.store
    before = store.max_offset(LEASES_TOPIC, 0)
    safe: list[int] = []

    def acknowledge(offset: int, handle: int) -> None:
        leases.acknowledge(GROUP, TOPIC, 0, offset, handle)
        leases.when_safe(lambda error: safe.append(store.max_offset(LEASES_TOPIC, 0) - before))

    leases.acknowledge(GROUP, TOPIC, 0, one.offset, one.handle)
    leases.when_recorded(lambda error: acknowledge(two.offset, two.handle))
    leases.when_safe(lambda error: safe.append(store.max_offset(LEASES_TOPIC, 0) - before))
    for _ in range(2):
        reader.world.end_tick()
    assert safe == [1, 2]


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
    reader.ask(reader.request())
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
    reader.world.core.lease_tables.snapshot(wait=True)
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
    reader.world.store.refusals.now = full
    reader.ack(done)
    assert reader.answers[-1] is full
    assert reader.pop(invisible_ms=5 * LEASE_MS) == [], "nobody is told of it"
    assert reader.answers[-1] is full
    reader.world.advance(LEASE_MS + TICK_MS)
    reader.world.store.refusals.now = None
    reader.world.advance(2_000)
    reader.world.end_tick()
    assert bodies(reader.pop()) == [expiring.body]
    reader.world.crash()
    assert len(reader.leases) == 2
    assert reader.cursor() == 2


def test_records_of_leases_may_be_larger_than_messages(tmp_path: Path) -> None:
    reader = reading(tmp_path, store_config=replace(SMALL_STORE, body_bytes_max=100))
    for n in range(32):
        reader.world.send(body=b"%d" % n)
    leased = reader.pop(attempt_id="a" * 100, policy=ORDERED)
    reader.ack(*leased[::2])
    assert reader.answers == [None, None]
    reader.world.crash()
    assert len(reader.leases) == 16


def refuse_records_of(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, key: bytes, error: Exception
) -> None:
    """From now on the store takes no list with a record that says this."""
    append = reader.world.store.append

    def picky(messages: Sequence[NewMessage]) -> list[Appended]:
        if any(key in bytes(message.body) for message in messages):
            raise error
        return append(messages)

    monkeypatch.setattr(reader.world.store, "append", picky)
    monkeypatch.setattr(reader.world.store, "append_own", picky)


@pytest.mark.parametrize(
    "error", [MessageTooLargeError("no segment has room"), OverflowError("beyond 64 bits")]
)
def test_a_record_that_cannot_be_written_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    reader = reading(tmp_path, queues=2)
    for n in range(4):
        reader.world.send(queue_id=n % 2)
    with monkeypatch.context() as patched:
        refuse_records_of(reader, patched, b"orders@readers@0", error)
        reader.take(queue_id=0, count_max=1)
        assert "orders@readers@0" in str(reader.answers[-1])
        good = reader.take(queue_id=1, count_max=1)
        reader.ack(good[0])
        assert reader.cursor(queue_id=1) == 1
    reader.world.end_tick()
    reader.world.advance(2_000)
    reader.world.end_tick()
    reader.take(queue_id=1, count_max=1)
    assert reader.answers[-1] is None
    reader.world.crash()
    assert len(reader.leases) == 2
    assert reader.cursor(queue_id=1) == 1


def test_a_move_beside_a_record_that_cannot_be_written_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reading(tmp_path, queues=2)
    for n in range(2):
        reader.world.send(queue_id=n)
    reader.take(queue_id=0)
    with monkeypatch.context() as patched:
        refuse_records_of(reader, patched, b"orders@readers@1", OverflowError("beyond 64 bits"))
        reader.take(queue_id=1, invisible_ms=10 * LEASE_MS)
        reader.world.advance(LEASE_MS + TICK_MS)
        reader.world.end_tick()
        reader.world.advance(LEASE_MS)
    reader.world.advance(LEASE_MS)
    reader.world.end_tick()
    assert reader.world.store.max_offset(RETRY, 0) == 1
