"""Timed messages that wait for longer than the log is kept."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from onelog.core.schedule import wheel as timer_wheel
from onelog.core.schedule.timers import COLLECT_MS, TICK_MS
from onelog.errors import StoreFullError
from onelog.message import NewMessage, decode_properties, encode_properties
from onelog.names import TIMER_TOPIC
from tests.core.world import SMALL_STORE, TROUBLES, World

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
RETENTION_MS = 6 * HOUR_MS


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[World]:
    config = replace(SMALL_STORE, retention_ms=RETENTION_MS)
    with mock.patch.multiple(timer_wheel, FILE_COUNT=8, NEAR_COUNT=4, MERGE_FILES=3):
        world = World(tmp_path / "store", config)
        world.topic("orders")
        yield world
        world.close()


def retain(world: World) -> int:
    """A round of retention, as the server does it; how many files were deleted."""
    return world.retain().segments_deleted


def fill_a_segment(world: World) -> None:
    for _ in range(11):
        world.send("orders", 3, b"x" * 100_000)


def live(world: World, hours: int) -> None:
    """Time passes, with other messages, and retention every hour."""
    for _ in range(hours):
        fill_a_segment(world)
        world.advance(HOUR_MS)
        retain(world)


def test_a_message_outlives_the_files_of_the_log_and_comes_in_time_once(orders: World) -> None:
    begin = orders.clock.now_ms()
    for number in range(20):
        orders.send("orders", 0, b"%d" % number, TIMER_DELAY_MS=str(30 * HOUR_MS + number))
    live(orders, 29)
    assert orders.store.log_min > 20 << 20
    assert orders.bodies("orders") == []
    orders.restart()
    live(orders, 2)
    assert orders.bodies("orders") == [b"%d" % number for number in range(20)]
    for number, message in enumerate(orders.messages("orders")):
        assert 0 <= message.store_ms - (begin + 30 * HOUR_MS + number) <= TICK_MS


def test_messages_that_are_due_soon_are_not_written_again(orders: World) -> None:
    orders.send("orders", body=b"soon", TIMER_DELAY_MS=str(4 * HOUR_MS + 1))
    orders.send("orders", body=b"later", TIMER_DELAY_MS=str(8 * HOUR_MS))
    live(orders, 5)
    records = [decode_properties(each.properties) for each in orders.messages(TIMER_TOPIC)]
    assert [record.get("TIMER_ROLL_FROM") for record in records] == [None, None, "1"]
    assert orders.bodies("orders") == [b"soon"]


def test_recalled_messages_are_not_written_again_and_renewed_ones_can_be_recalled(
    orders: World,
) -> None:
    for key in ("A", "B", "C"):
        orders.send("orders", body=key.encode(), UNIQ_KEY=key, TIMER_DELAY_MS=str(12 * HOUR_MS))
    orders.core.timers.recall("orders", "A", orders.on_stored)
    orders.end_tick()
    live(orders, 5)
    assert orders.store.max_offset(TIMER_TOPIC, 0) == 3 + 1 + 2
    orders.core.timers.recall("orders", "B", orders.on_stored)
    orders.end_tick()
    orders.crash()
    live(orders, 10)
    assert orders.bodies("orders") == [b"C"]


def test_many_are_renewed_some_at_a_time(orders: World) -> None:
    for number in range(1_000):
        own = encode_properties({"TIMER_DELAY_MS": str(20 * HOUR_MS + number)})
        orders.publish(NewMessage("orders", 0, b"%d" % number, own))
    orders.end_tick()
    orders.advance(4 * HOUR_MS + 61_000)
    assert orders.store.max_offset(TIMER_TOPIC, 0) == 2_000
    orders.advance(4 * HOUR_MS)
    orders.advance(12 * HOUR_MS)
    assert len(orders.bodies("orders")) == 1_000


def test_before_files_go_by_force_what_waits_in_them_is_renewed(orders: World) -> None:
    orders.send("orders", body=b"waits", TIMER_DELAY_MS=str(HOUR_MS))
    for _ in range(3):
        fill_a_segment(orders)
    orders.store.retention.disk = lambda folder: 88.0
    assert retain(orders) == 3
    orders.store.retention.disk = lambda folder: 10.0
    orders.advance(HOUR_MS + TICK_MS)
    assert orders.bodies("orders") == [b"waits"]


def test_a_disk_that_is_too_full_for_messages_is_freed_although_some_wait(orders: World) -> None:
    orders.send("orders", body=b"waits", TIMER_DELAY_MS=str(HOUR_MS))
    for _ in range(3):
        fill_a_segment(orders)
    percents = [92.0]
    orders.store.retention.disk = lambda folder: percents[0]
    orders.store.retain()
    with pytest.raises(StoreFullError):
        orders.store.append([NewMessage("orders", 0, b"refused")])
    assert retain(orders) == 3
    percents[0] = 60.0
    retain(orders)
    orders.advance(HOUR_MS + TICK_MS)
    assert orders.bodies("orders") == [b"waits"]


def test_a_disk_that_is_full_of_what_waits_is_freed_when_that_is_due_and_not_copied_before(
    orders: World,
) -> None:
    for number in range(40):
        orders.send("orders", 3, b"x" * 100_000, TIMER_DELAY_MS=str(HOUR_MS + number))
    orders.core.tables.snapshot(wait=True)
    store = orders.store
    store.retention.disk = lambda folder: 91.0
    end = store.log_end
    for _ in range(3):
        assert retain(orders) == 0
        orders.advance(1_000)
    assert store.log_end - end < 100_000, "nothing was copied"
    with pytest.raises(StoreFullError):
        store.append([NewMessage("orders", 0, b"refused")])
    orders.advance(HOUR_MS)
    assert len(orders.bodies("orders", 3)) == 40
    assert retain(orders) >= 3
    store.retention.disk = lambda folder: 60.0
    retain(orders)
    store.append([NewMessage("orders", 0, b"taken")])


def test_when_nothing_can_be_written_the_files_that_hold_what_waits_stay_and_others_go(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        fill_a_segment(orders)
    orders.send("orders", body=b"waits", TIMER_DELAY_MS=str(2 * HOUR_MS))
    for _ in range(2):
        fill_a_segment(orders)
    orders.core.tables.snapshot(wait=True)
    percents = [99.0]
    orders.store.retention.disk = lambda folder: percents[0]
    orders.store.retain()
    for _ in range(3):
        retain(orders)
    holding = orders.store.log.segments[0]
    assert (
        holding.start
        <= orders.store.log_offset_of(TIMER_TOPIC, 0, 0)
        < holding.start + holding.size
    )
    assert holding.start > 0
    assert "renewing timed messages failed" in caplog.text
    orders.crash()
    orders.advance(2 * HOUR_MS + TICK_MS)
    assert orders.bodies("orders") == [b"waits"]


def test_what_waits_in_many_files_is_renewed_file_by_file_and_some_at_a_time(
    orders: World,
) -> None:
    for segment in range(3):
        for number in range(500):
            own = encode_properties({"TIMER_DELAY_MS": str(HOUR_MS + number)})
            body = b"%d-%d" % (segment, number)
            orders.publish(NewMessage("orders", 0, body, own))
        orders.end_tick()
        fill_a_segment(orders)
    orders.core.tables.snapshot(wait=True)
    orders.store.retention.disk = lambda folder: 88.0
    orders.core.prepare_retention()
    assert orders.store.max_offset(TIMER_TOPIC, 0) == 1_500 + 200
    assert retain(orders) == 0
    orders.advance(20)
    assert retain(orders) == 1, "the first file is free, the second one not yet"
    orders.advance(100)
    assert retain(orders) == 2
    orders.store.retention.disk = lambda folder: 10.0
    orders.advance(HOUR_MS + 1_000)
    assert len(set(orders.bodies("orders"))) == len(orders.bodies("orders")) == 1_500


def test_files_go_only_when_what_was_renewed_is_on_disk(orders: World) -> None:
    orders.send("orders", body=b"waits", TIMER_DELAY_MS=str(HOUR_MS))
    fill_a_segment(orders)
    orders.core.tables.snapshot(wait=True)
    assert orders.store.wait_flushed(orders.store.log_end)
    orders.store.retention.disk = lambda folder: 88.0
    with mock.patch.object(orders.store, "when_flushed"):  # A disk that takes its time.
        for _ in range(3):
            orders.core.prepare_retention()
            assert orders.store.retain().segments_deleted == 0
    assert orders.store.max_offset(TIMER_TOPIC, 0) == 2
    orders.power_loss()
    orders.advance(HOUR_MS + TICK_MS)
    assert orders.bodies("orders") == [b"waits"]


def test_without_old_messages_nothing_is_written(orders: World) -> None:
    orders.send("orders", TIMER_DELAY_MS=str(HOUR_MS))
    orders.advance(2 * HOUR_MS)
    orders.core.offsets.flush()
    end = orders.store.log_end
    orders.advance(30 * HOUR_MS)
    orders.core.prepare_retention()
    assert orders.store.log_end == end


@pytest.mark.parametrize("trouble", TROUBLES)
def test_whatever_fails_puts_renewal_off(
    orders: World, trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    orders.send("orders", body=b"waits", TIMER_DELAY_MS=str(20 * HOUR_MS))
    with mock.patch.object(orders.store, "append", side_effect=trouble):
        orders.advance(4 * HOUR_MS + 61_000)
    assert "renewing timed messages failed" in caplog.text
    assert orders.store.max_offset(TIMER_TOPIC, 0) == 1
    orders.advance(61_000)
    assert orders.store.max_offset(TIMER_TOPIC, 0) == 2


def test_what_retention_took_all_the_same_is_reported(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    orders.send("orders", body=b"lost", TIMER_DELAY_MS=str(HOUR_MS))
    orders.advance(COLLECT_MS)
    orders.send("orders", body=b"not even read", TIMER_DELAY_MS=str(HOUR_MS))
    for _ in range(3):
        fill_a_segment(orders)
    orders.send("orders", 1, body=b"kept", TIMER_DELAY_MS=str(HOUR_MS))
    orders.store.retention.disk = lambda folder: 88.0
    orders.store.retention.kept_from = None  # As if somebody had deleted the files by hand.
    assert orders.store.retain().segments_deleted == 3
    orders.advance(2 * HOUR_MS)
    assert "1 timed messages were deleted by retention as soon as they came" in caplog.text
    assert "retention deleted it before it was due" in caplog.text
    assert orders.bodies("orders", 1) == [b"kept"]
    assert orders.bodies("orders") == []
