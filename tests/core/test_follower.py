"""A broker that follows another: what it serves, what it refuses, what it remembers."""

from dataclasses import replace
from pathlib import Path

import pytest

from onelog.core.access import SELF
from onelog.core.cursors.fetch import Cursor, allowed
from onelog.core.filters.tags import subscribe
from onelog.core.membership.members import Client, ConsumerData
from onelog.errors import NotMasterError, OnelogError
from onelog.message import NewMessage
from onelog.names import CHECKED_OUT_TOPIC
from tests.core.leasing import LEASE_MS, Reader
from tests.core.paying import Payer
from tests.core.replicas import STORE, Follower, Master
from tests.core.transacting import Producers
from tests.core.world import entries_of, pulled

SEGMENTS = replace(STORE, segment_bytes=1 << 14)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Master, Follower]:
    master = Master.at(tmp_path / "master", quick=True)
    master.topic("orders")
    master.send(body=b"1")
    master.core.groups.require("readers")
    follower = Follower.at(tmp_path / "follower")
    follower.receive(master.store)
    follower.core.master_is("")
    return master, follower


def test_groups_are_served_there_only_while_there_is_no_master(
    pair: tuple[Master, Follower],
) -> None:
    _, follower = pair
    broker = follower.broker
    follower.core.master_is("10.0.0.5:10911")
    with pytest.raises(NotMasterError):
        Reader(follower).pop(queue_id=0)
    with pytest.raises(NotMasterError):
        broker.groups.lock(SELF, "readers", "c", [("orders", 0)])
    with pytest.raises(NotMasterError):
        follower.commit("readers", "orders", 0, 1)
    assert pulled(follower.pull(0)) == [b"1"]
    follower.core.master_is("")
    (leased,) = Reader(follower).pop(queue_id=0)
    follower.core.master_is("10.0.0.5:10911")
    with pytest.raises(NotMasterError):
        broker.queues.acknowledge(SELF, "readers", "orders", 0, leased.offset, leased.handle)


def test_it_serves_what_is_confirmed_also_to_those_who_wait(
    pair: tuple[Master, Follower],
) -> None:
    master, follower = pair
    assert pulled(follower.pull(0)) == [b"1"]
    held = follower.fetch(
        [Cursor("readers", "orders", 0, 1)], allowed(follower.broker.admin.config, 32, 0, 0)
    )
    master.send(body=b"2")
    assert held == []
    follower.receive(master.store)
    ((found,),) = held
    assert not isinstance(found, OnelogError)
    assert pulled(found) == [b"2"]


def test_it_writes_nothing_and_says_who_does(
    pair: tuple[Master, Follower], caplog: pytest.LogCaptureFixture
) -> None:
    master, follower = pair
    master.send(body=b"timed", TIMER_DELIVER_MS=str(master.clock.now_ms() + 2_000))
    follower.receive(master.store)
    end = follower.store.log_end
    follower.core.master_is("10.0.0.5:10911")
    follower.publish(NewMessage("orders", 0, b"x"))
    follower.end_tick()
    due = str(follower.clock.now_ms() + 1_000)
    for properties in (b"TIMER_DELIVER_MS\x01" + due.encode(), b"DELAY\x011"):
        follower.publish(NewMessage("orders", 0, b"x", properties))
        follower.end_tick()
    error = follower.told[0].error
    assert isinstance(error, NotMasterError)
    assert "10.0.0.5:10911 is the master" in str(error)
    follower.core.master_is("10.0.0.6:10911")
    with pytest.raises(NotMasterError, match=r"10\.0\.0\.6"):
        follower.topic("new")
    follower.core.master_is("")
    with pytest.raises(NotMasterError, match="there is none now"):
        follower.broker.topics.delete_before(SELF, "orders", 0, 1)
    follower.advance(600_000)
    follower.close()
    assert follower.store.log_end == end
    assert not caplog.records


def test_consumers_are_members_of_their_groups_there_too(pair: tuple[Master, Follower]) -> None:
    _, follower = pair
    broker = follower.broker
    data = ConsumerData("new", "CONSUME_PASSIVELY", "CLUSTERING", "x", (subscribe("orders", "*"),))
    broker.groups.heartbeat(SELF, Client("c", "c"), [data], ["producers"])
    assert broker.groups.pull_subscription(SELF, "new", "orders", "c").topic == "orders"
    queue = ("orders", 0)
    assert broker.groups.lock(SELF, "readers", "c", [queue]) == [queue]
    assert broker.groups.lock(SELF, "readers", "d", [queue]) == []


def test_positions_are_kept_until_the_masters_come(pair: tuple[Master, Follower]) -> None:
    master, follower = pair
    follower.commit("readers", "orders", 0, 5)
    assert follower.broker.cursors.query(SELF, "readers", "orders", 0) == 5
    master.commit("readers", "orders", 0, 7)
    master.core.offsets.flush()
    follower.receive(master.store)
    assert follower.broker.cursors.query(SELF, "readers", "orders", 0) == 7


def test_leases_go_on_there_in_memory(pair: tuple[Master, Follower]) -> None:
    master, follower = pair
    for body in (b"2", b"3"):
        master.send(body=body)
    reader = Reader(master)
    first, second, third = reader.pop(queue_id=0)
    reader.ack(first)
    follower.receive(master.store)
    there = Reader(follower)
    assert there.pop(queue_id=0) == []
    there.ack(replace(second))
    follower.advance(LEASE_MS + 1_000)
    again = there.pop(queue_id=0)
    assert [each.body for each in again] == [third.body]
    there.ack(*again)
    follower.advance(LEASE_MS + 1_000)
    assert there.pop(queue_id=0) == []
    reader.ack(third)
    master.send(body=b"4")
    (fourth,) = reader.pop(queue_id=0)
    follower.receive(master.store)
    assert there.pop(queue_id=0) == []
    follower.advance(LEASE_MS + 1_000)
    assert [each.body for each in there.pop(queue_id=0)] == [fourth.body]


def test_its_tables_are_the_masters(pair: tuple[Master, Follower]) -> None:
    master, follower = pair
    payer = Payer(master, "payer")
    payer.send("orders", 1, b"x")
    payer.end(commit=False)
    Reader(master).pop(queue_id=0)
    master.commit("readers", "orders", 0, 1)
    master.core.flush()
    follower.receive(master.store)
    for ours, theirs in (
        (master.core.tables, follower.core.tables),
        (master.core.lease_tables, follower.core.lease_tables),
    ):
        for name, table in ours._tables.items():
            assert entries_of(theirs._tables[name]) == entries_of(table), name


def test_transactions_in_place_end_for_its_readers_as_for_the_masters(
    pair: tuple[Master, Follower],
) -> None:
    master, follower = pair
    payer = Payer(master, "payer")
    payer.send("orders", 1, b"x")
    follower.receive(master.store)
    assert follower.broker.cursors.settled(SELF, "orders", 1, 0, 1)[0] == 0
    payer.end(commit=False)
    master.confirm()
    follower.receive(master.store)
    stable, aborted = follower.broker.cursors.settled(SELF, "orders", 1, 0, 2)
    assert (stable, [each.producer_id for each in aborted]) == (2, [payer.id])


# -- its own retention -------------------------------------------------------------------------


def test_what_waits_is_kept_until_the_master_has_written_it_anew(tmp_path: Path) -> None:
    master = Master.at(tmp_path / "master", quick=True, store=SEGMENTS)
    master.topic("orders")
    master.send(body=b"timed", TIMER_DELIVER_MS=str(master.clock.now_ms() + 10 * 86_400_000))
    half = Producers(master).begin(b"half")
    fill(master, 60)
    follower = Follower.at(tmp_path / "follower", SEGMENTS, master.clock)
    follower.receive(master.store)
    master.clock.advance(4 * 86_400_000)
    follower.retain()
    assert follower.store.log_min == 0
    for _ in range(4):
        master.retain()
        master.pass_time(20_000)
    assert master.store.log_min > half.log_offset
    follower.receive(master.store)
    follower.retain()
    assert follower.store.log_min > half.log_offset
    follower.promote()
    master.clock.advance(6 * 86_400_000)
    follower.pass_time(60_000)
    assert follower.bodies("orders").count(b"timed") == 1
    assert follower.bodies(CHECKED_OUT_TOPIC) == [b"half"]


# -- tables without their first records --------------------------------------------------------


def fill(master: Master, count: int) -> None:
    for number in range(count):
        master.send("orders", number % 4, b"x" * 1_000)


def test_before_records_are_deleted_the_tables_are_recorded_anew(tmp_path: Path) -> None:
    master = Master.at(tmp_path / "master", quick=True, store=SEGMENTS)
    for name in ("orders", "gone", "kept"):
        master.topic(name)
    reader = Reader(master)
    master.send(body=b"leased")
    reader.pop(queue_id=0)
    master.commit("readers", "kept", 1, 0)
    fill(master, 100)
    master.clock.advance(4 * 86_400_000)
    master.broker.topics.delete(SELF, "gone")
    for _ in range(3):
        master.retain()
        master.advance(20_000)
        master.end_tick()
        master.confirm()
    assert master.store.log_min > 0
    assert master.store.min_offset(master.core.tables.topic, 0) > 0
    follower = Follower.at(tmp_path / "follower", SEGMENTS, master.clock)
    follower.receive(master.store)
    assert follower.store.log_min == master.store.log_min
    topics = follower.core.topics
    assert topics.get("kept") == master.core.topics.get("kept") is not None
    assert topics.get("gone") is None
    assert entries_of(follower.core.leases) == entries_of(master.core.leases)
    assert entries_of(follower.core.leases)
    follower.promote()
    assert follower.core.topics.get("kept") is not None
    assert follower.broker.cursors.query(SELF, "readers", "kept", 1) == 0
    follower.close()


def test_a_log_that_lacks_its_first_records_says_everything_soon(tmp_path: Path) -> None:
    """A store from before it had replicas, whose snapshot alone knows some."""
    master = Master.at(tmp_path / "master", quick=True, store=SEGMENTS)
    master.core.tables.restates = master.core.lease_tables.restates = False
    master.topic("orders")
    fill(master, 100)
    master.clock.advance(4 * 86_400_000)
    for _ in range(3):
        master.retain()
        master.confirm()
    assert master.store.min_offset(master.core.tables.topic, 0) > 0
    master.close()
    master = Master.at(tmp_path / "master", quick=True, store=SEGMENTS)
    master.advance(30_000)
    master.end_tick()
    master.confirm()
    follower = Follower.at(tmp_path / "follower", SEGMENTS)
    follower.receive(master.store)
    assert follower.core.topics.get("orders") is not None


def test_a_snapshot_of_another_history_does_not_count(tmp_path: Path) -> None:
    master = Master.at(tmp_path / "master", quick=True)
    master.topic("common")
    other = Follower.at(tmp_path / "other")
    other.receive(master.store)
    other.promote()
    for world, name in ((master, "mine"), (other, "their")):
        world.topic(name)
        world.topic("more")
    other.confirm_all()
    other.close()
    master.confirm()
    snapshot = (other.folder / "config" / "onelog-tables.json").read_bytes()
    assert b'"their"' in snapshot
    follower = Follower.at(tmp_path / "follower")
    follower.receive(master.store)
    follower.core.close()
    (follower.folder / "config").mkdir(exist_ok=True)
    (follower.folder / "config" / "onelog-tables.json").write_bytes(snapshot)
    follower.start_core()
    topics = follower.core.topics
    assert [topics.get(each) is not None for each in ("common", "mine", "their")] == [
        True,
        True,
        False,
    ]
    follower.core.tables.snapshot(wait=True)
    follower.core.close()
    follower.start_core()
    assert follower.core.topics.get("mine") is not None
