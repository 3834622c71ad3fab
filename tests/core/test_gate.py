"""A master whose replicas have to confirm: nobody sees, or is told of, what they have not."""

from pathlib import Path
from typing import Any

import pytest

from onelog.core.access import SELF
from onelog.core.cursors.fetch import Cursor, allowed
from onelog.core.durable.durability import Acks
from onelog.errors import (
    NotMasterError,
    OffsetOutOfRangeError,
    OnelogError,
    ReplicasMissingError,
    ReplicaTimeoutError,
    TopicNotFoundError,
)
from onelog.message import NewMessage
from tests.core.paying import Payer
from tests.core.replicas import Master
from tests.core.world import pulled


@pytest.fixture
def master(tmp_path: Path) -> Master:
    master = Master.at(tmp_path / "store")
    master.topic("orders")
    master.confirm()
    return master


def test_nobody_is_told_of_a_message_before_it_is_confirmed(master: Master) -> None:
    master.publish(NewMessage("orders", 0, b"x"))
    master.end_tick()
    assert master.told == []
    assert master.replicas.appends
    master.confirm()
    (told,) = master.told
    assert (told.error, told.appended.queue_offset) == (None, 0)


def test_nobody_sees_a_message_before_it_is_confirmed(master: Master) -> None:
    cursor = Cursor("readers", "orders", 0, 0)
    limits = allowed(master.broker.admin.config, 32, 0, 0)
    held = master.fetch([cursor], limits)
    master.publish(NewMessage("orders", 0, b"x", b"KEYS\x01k\x02"))
    place = int(master.store.log_end)
    master.end_tick()
    broker = master.broker
    assert held == []
    assert broker.topics.max_offset(SELF, "orders", 0) == 0
    assert broker.topics.find_by_key(SELF, "orders", "k", 0, 1 << 62, 10) == []
    with pytest.raises(OffsetOutOfRangeError):
        broker.topics.message_at(SELF, place)
    master.confirm()
    ((found,),) = held
    assert not isinstance(found, OnelogError)
    assert pulled(found) == [b"x"]
    assert bytes(broker.topics.message_at(SELF, place).body) == b"x"
    assert len(broker.topics.find_by_key(SELF, "orders", "k", 0, 1 << 62, 10)) == 1


def test_a_message_that_replicas_do_not_confirm_in_time_is_stored(master: Master) -> None:
    master.publish(NewMessage("orders", 0, b"x"))
    master.end_tick()
    master.advance(5_000)
    (told,) = master.told
    assert isinstance(told.error, ReplicaTimeoutError)
    assert told.appended.queue_offset == 0
    master.confirm()
    assert master.bodies("orders") == [b"x"]
    assert len(master.told) == 1


def test_with_too_few_replicas_senders_are_told_so_at_once(master: Master) -> None:
    master.replicas.in_sync = 1
    master.publish(NewMessage("orders", 0, b"x"))
    master.end_tick()
    (told,) = master.told
    assert isinstance(told.error, ReplicasMissingError)
    assert told.appended.queue_offset == 0
    with pytest.raises(ReplicasMissingError):
        master.broker.publish.require_replicas(SELF, 1)
    master.replicas.in_sync = 2
    master.broker.publish.require_replicas(SELF, 2)
    with pytest.raises(ReplicasMissingError):
        master.broker.publish.require_replicas(SELF, 3)


def test_who_waits_for_this_broker_only_is_told_at_once(master: Master) -> None:
    told: list[tuple[str, int]] = []

    def on_stored(token: str, appended: Any, error: OnelogError | None) -> None:
        assert error is None
        told.append((token, appended.queue_offset))

    for token, acks in (("a", Acks.DURABLE), ("b", Acks.MASTER), ("c", Acks.DURABLE)):
        master.broker.publish.send(SELF, NewMessage("orders", 0, b"x"), on_stored, token, acks=acks)
    master.end_tick()
    assert told == [("b", 1)]
    master.confirm()
    assert told == [("b", 1), ("a", 0), ("c", 2)]


def test_a_timed_message_is_delivered_when_both_its_time_has_come_and_it_is_confirmed(
    master: Master,
) -> None:
    due = str(master.clock.now_ms() + 1_000)
    master.publish(NewMessage("orders", 0, b"timed", b"TIMER_DELIVER_MS\x01" + due.encode()))
    master.publish(NewMessage("orders", 0, b"delayed", b"DELAY\x011"))
    master.end_tick()
    master.advance(3_000)
    master.confirm()
    assert master.bodies("orders") == []
    master.advance(10)
    assert master.bodies("orders") == []  # It is on its way, and not confirmed.
    master.confirm()
    assert sorted(master.bodies("orders")) == [b"delayed", b"timed"]
    master.advance(3_000)
    master.confirm()
    assert len(master.bodies("orders")) == 2


def test_what_a_transaction_sent_is_committed_when_its_marker_is_confirmed(
    master: Master,
) -> None:
    master.replicas.is_quick = True
    payer = Payer(master, "payer")
    payer.send("orders", 0, b"x")
    master.confirm()
    assert master.broker.cursors.settled(SELF, "orders", 0, 0, 1)[0] == 0
    broker = master.broker
    master.replicas.is_quick = False
    broker.transactions.in_place.end(
        SELF, "payer", payer.id, payer.epoch, True, lambda *_: None, renews=True
    )
    assert broker.topics.max_offset(SELF, "orders", 0) == 1
    assert broker.cursors.settled(SELF, "orders", 0, 0, 1)[0] == 0
    master.confirm()
    assert broker.cursors.settled(SELF, "orders", 0, 0, 2)[0] == 2


def test_a_topic_that_is_made_anew_begins_anew_whatever_is_confirmed(master: Master) -> None:
    master.replicas.is_quick = True
    master.send(body=b"old")
    master.replicas.is_quick = False
    master.broker.topics.delete(SELF, "orders")
    with pytest.raises(TopicNotFoundError):
        master.broker.topics.require(SELF, "orders")
    master.topic("orders")
    master.publish(NewMessage("orders", 0, b"new"))
    master.end_tick()
    master.confirm()
    assert master.told[0].appended.queue_offset == 0
    assert master.bodies("orders") == [b"new"]


def test_a_snapshot_is_written_when_all_that_it_tells_of_is_confirmed(master: Master) -> None:
    path = master.folder / "config" / "onelog-tables.json"
    before = path.read_bytes() if path.exists() else b""
    master.topic("later")
    master.core.tables.snapshot()
    assert (path.read_bytes() if path.exists() else b"") == before
    master.confirm()
    assert b'"later"' in path.read_bytes()


def test_a_master_that_is_fenced_acknowledges_and_writes_nothing(master: Master) -> None:
    master.core.groups.require("readers")
    master.publish(NewMessage("orders", 0, b"waits"))
    master.end_tick()
    master.core.fence()
    assert [(type(told.error), told.appended) for told in master.told] == [(NotMasterError, None)]
    end = master.store.log_end
    master.publish(NewMessage("orders", 0, b"too late"))
    master.end_tick()
    assert isinstance(master.told[1].error, NotMasterError)
    master.commit("readers", "orders", 0, 1)
    master.core.close(write=False)
    master.advance(600_000)
    assert master.store.log_end == end


def test_a_master_that_did_not_hand_over_after_all_writes_again(master: Master) -> None:
    master.publish(NewMessage("orders", 0, b"waits"))
    master.end_tick()
    master.core.refuse_writes("it is handed over")
    master.publish(NewMessage("orders", 0, b"refused"))
    master.end_tick()
    assert str(master.told[0].error) == "it is handed over"
    master.confirm()
    assert master.told[1].error is None
    master.core.refuse_writes(None)
    master.replicas.is_quick = True
    master.send(body=b"taken")
    assert master.bodies("orders") == [b"waits", b"taken"]


def test_what_is_only_in_memory_is_written_before_a_hand_over(master: Master) -> None:
    master.commit("readers", "orders", 0, 3)
    master.confirm()
    end = master.store.log_end
    master.core.flush()
    assert master.store.log_end > end


def test_a_master_that_is_closed_with_a_tail_leaves_it_to_the_next(tmp_path: Path) -> None:
    master = Master.at(tmp_path / "store")
    master.topic("orders")
    master.publish(NewMessage("orders", 0, b"x"))
    master.end_tick()
    master.close()
    assert master.store.confirmed == 0
    again = Master.at(tmp_path / "store")
    assert again.bodies("orders") == [b"x"]
    again.close()
