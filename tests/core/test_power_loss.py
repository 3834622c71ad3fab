"""A loss of power with asynchronous flush: the end of the log is gone, other files are not.

What files tell of the log must be in the log, and what is ahead of it all the same, because an
older version wrote it or a disk lied, must not swallow the messages that come next.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from onelog.core.schedule import wheel as timer_wheel
from onelog.errors import StoreError
from onelog.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from onelog.store.message_store import MessageStore
from tests.core.leasing import Reader, bodies
from tests.core.transacting import Producers
from tests.core.world import World


@pytest.fixture
def orders(world: World) -> World:
    world.topic("orders")
    world.core.groups.require("readers")
    world.core.tables.snapshot(wait=True)
    world.core.lease_tables.snapshot(wait=True)
    world.store.flush()
    return world


def snapshots(world: World) -> None:
    world.core.offsets.flush()
    world.core.tables.snapshot(wait=True)
    world.core.lease_tables.snapshot(wait=True)


def files_ahead_of_the_log() -> Any:
    return mock.patch.object(MessageStore, "barrier", return_value=lambda: None)


# -- files wait for the log ----------------------------------------------------------------------


def test_a_snapshot_is_never_ahead_of_the_log(orders: World) -> None:
    orders.send(DELAY="1")
    orders.send(TIMER_DELAY_MS="1000")
    orders.commit("readers", "orders", 0, 0)
    orders.advance(2_000)
    orders.commit("readers", "orders", 0, 2)
    snapshots(orders)
    end = orders.store.log_end
    orders.power_loss()
    assert orders.store.log_end >= end
    assert orders.core.offsets.get("readers", "orders", 0) == 2
    assert orders.store.max_offset("orders", 0) == 2


def test_a_snapshot_waits_for_the_log_in_its_worker_and_not_in_the_loop(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    offloaded: list[Callable[[], None]] = []
    tables = world.core.tables
    tables._runtime = replace(tables._runtime, offload=offloaded.append)
    world.topic("orders")
    with mock.patch.object(world.store, "wait_flushed", return_value=True) as waiting:
        world.core.tables.snapshot()
        assert waiting.call_count == 0
        offloaded.pop()()
        assert waiting.call_count == 1
    world.close()


def test_a_disk_that_does_not_take_the_log_keeps_the_old_snapshot(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    path = orders.folder / "config" / "onelog-tables.json"
    before = path.read_bytes()
    orders.topic("more")
    with mock.patch.object(orders.store, "wait_flushed", return_value=False):
        orders.core.tables.snapshot()
        with pytest.raises(StoreError, match="did not take the log in 60 s"):
            orders.core.tables.snapshot(wait=True)
    assert path.read_bytes() == before
    assert "did not take the log" in caplog.text


def test_a_run_of_timed_messages_forgets_only_what_the_log_knows_to_be_delivered(
    orders: World,
) -> None:
    with mock.patch.multiple(timer_wheel, FILE_COUNT=8, NEAR_COUNT=4):
        for number in range(40):
            orders.send("orders", 0, b"%d" % number, TIMER_DELAY_MS=str(1_000 + 10 * number))
        orders.send("orders", 0, b"40", TIMER_DELAY_MS="60000")
        orders.advance(5)
        assert orders.store.wait_flushed(orders.store.log_end)
        (run,) = (orders.folder / "onelog-timers").iterdir()
        size = run.stat().st_size
        orders.advance(3_000)
        assert run.stat().st_size < size, "it was written anew, without what has left"
        orders.power_loss()
        orders.advance(60_000)
        assert orders.bodies("orders") == [b"%d" % number for number in range(41)]


# -- positions come back to the end --------------------------------------------------------------


@pytest.mark.parametrize("kind", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}])
def test_new_messages_at_positions_that_were_passed_are_delivered(
    orders: World, kind: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        orders.send(body=b"lost", **kind)
    orders.advance(2_000)
    with files_ahead_of_the_log():
        snapshots(orders)
    orders.power_loss()
    assert orders.bodies("orders") == []
    assert "it goes on there" in caplog.text
    orders.send(body=b"new", **kind)
    orders.crash()
    orders.advance(2_000)
    assert orders.bodies("orders") == [b"new"]
    caplog.clear()
    orders.restart()
    orders.advance(2_000)
    assert orders.bodies("orders") == [b"new"]
    assert "it goes on there" not in caplog.text


def test_a_group_goes_on_at_the_end_of_a_queue_that_was_cut_off(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        orders.send()
    orders.commit("readers", "orders", 0, 3)
    orders.commit("readers", "orders", 1, 0)
    with files_ahead_of_the_log():
        snapshots(orders)
    orders.power_loss()
    assert "group readers was ahead of queues of topic orders" in caplog.text
    assert orders.core.offsets.of("readers", "orders") == {0: 0, 1: 0}
    for _ in range(5):
        orders.send()
    orders.crash()
    assert orders.core.offsets.get("readers", "orders", 0) == 0


def test_leases_go_on_at_the_end_of_a_queue_that_was_cut_off(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(orders)
    orders.send(body=b"kept")
    kept = reader.take()
    assert orders.store.wait_flushed(orders.store.log_end)
    orders.send(body=b"lost")
    orders.send(body=b"lost too")
    lost = reader.take()
    assert bodies(lost) == [b"lost", b"lost too"]
    reader.ack(lost[1])
    with files_ahead_of_the_log():
        snapshots(orders)
    orders.power_loss()
    orders.end_tick()
    assert "group readers was at 3 in queue 0 of topic orders, which a crash has cut" in caplog.text
    for body in (b"a", b"b", b"c"):
        orders.send(body=body)
    orders.crash()
    assert bodies(reader.take()) == [b"a", b"b", b"c"]
    reader.ack(*kept)
    assert reader.cursor() == 1


def test_transactions_go_on_at_the_end_of_queues_that_were_cut_off(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    producers = Producers(orders)
    producers.end(producers.begin(), commit=False)
    producers.begin()
    orders.core.checkback.check()
    with files_ahead_of_the_log():
        snapshots(orders)
    orders.power_loss()
    producers.connect()
    assert orders.store.max_offset(HALF_TOPIC, 0) == 0
    assert "transactions were known up to half message 2 and operation 1" in caplog.text
    assert producers.open_count() == 0
    producers.end(producers.begin(), commit=False)
    still_open = producers.begin()
    orders.crash()
    producers.connect()
    assert list(orders.core.transactions.log_offsets) == [still_open.queue_offset]


def test_nothing_is_said_about_positions_after_a_crash_without_loss(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    orders.send(DELAY="1")
    orders.send(TIMER_DELAY_MS="1000")
    orders.send()
    orders.advance(2_000)
    orders.commit("readers", "orders", 0, 3)
    snapshots(orders)
    caplog.clear()
    orders.crash()
    orders.restart()
    assert "crash has" not in caplog.text
    assert "in a crash" not in caplog.text
    assert orders.store.max_offset(SCHEDULE_TOPIC, 0) == orders.store.max_offset(TIMER_TOPIC, 0)
