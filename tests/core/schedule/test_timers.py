"""Timed messages, over a whole broker with a clock that tests move."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from onelog.config import BrokerConfig
from onelog.core.access import SELF
from onelog.core.publish import Intent
from onelog.core.schedule import records as timed_messages
from onelog.core.schedule.queue import TimerQueue
from onelog.core.schedule.timers import COLLECT_MS, TICK_MS
from onelog.errors import (
    MessageError,
    RecallError,
    StoreFullError,
    TopicPermissionError,
)
from onelog.message import Appended, NewMessage, SysFlag, decode_properties, encode_properties
from onelog.names import SCHEDULE_TOPIC, TIMER_TOPIC
from tests.core.world import SMALL_STORE, TROUBLES, World, entries_of

DAY_MS = 86_400_000


@pytest.fixture
def orders(world: World) -> World:
    world.topic("orders")
    return world


def recall(world: World, key: str, topic: str = "orders") -> None:
    world.core.timers.recall(topic, key, world.on_stored)
    world.end_tick()
    assert world.told.pop().error is None


# -- scheduling ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "time", [{"TIMER_DELAY_MS": "1234"}, {"TIMER_DELIVER_MS": "1700000001234"}]
)
def test_a_message_waits_in_the_timer_topic_and_comes_in_time(
    orders: World, time: dict[str, str]
) -> None:
    orders.send("orders", 2, b"x", KEYS="k", **time)
    assert orders.bodies("orders", 2) == []
    (waiting,) = orders.messages(TIMER_TOPIC)
    assert decode_properties(waiting.properties)["REAL_TOPIC"] == "orders"
    orders.advance(1_233)
    assert orders.bodies("orders", 2) == []
    orders.advance(TICK_MS)
    (delivered,) = orders.messages("orders", 2)
    assert delivered.store_ms - (orders.begin_ms + 1_234) <= TICK_MS
    assert (bytes(delivered.body), delivered.keys) == (b"x", ["k"])
    assert delivered.born_ms == orders.begin_ms
    orders.advance(DAY_MS)
    assert len(orders.messages("orders", 2)) == 1


def test_a_delay_in_seconds_is_understood(orders: World) -> None:
    orders.send("orders", TIMER_DELAY_SEC="2")
    orders.advance(1_999)
    assert orders.bodies("orders") == []
    orders.advance(TICK_MS)
    assert orders.bodies("orders") == [b"x"]


def test_messages_come_in_the_order_of_their_times(orders: World) -> None:
    for delay_ms in (900, 100, 500, 100, 40):
        orders.send("orders", body=b"%d" % delay_ms, TIMER_DELAY_MS=str(delay_ms))
    orders.advance(1_000)
    assert orders.bodies("orders") == [b"40", b"100", b"100", b"500", b"900"]


def test_a_time_that_has_passed_is_now(orders: World) -> None:
    orders.send("orders", body=b"zero", TIMER_DELAY_MS="0")
    orders.send("orders", body=b"negative", TIMER_DELAY_SEC="-5")
    orders.send("orders", body=b"past", TIMER_DELIVER_MS="1600000000000")
    assert orders.bodies("orders") == [b"zero", b"negative", b"past"]


def test_the_shortest_delay_is_kept_too(orders: World) -> None:
    orders.send("orders", TIMER_DELAY_MS="1")
    assert orders.bodies("orders") == []
    orders.advance(TICK_MS + COLLECT_MS)
    assert orders.bodies("orders") == [b"x"]


def test_a_delay_level_goes_before_a_time(orders: World) -> None:
    orders.send("orders", DELAY="2", TIMER_DELAY_MS="100")
    assert orders.store.max_offset(SCHEDULE_TOPIC, 1) == 1
    orders.advance(4_999)
    assert orders.bodies("orders") == []
    orders.advance(1)
    assert orders.bodies("orders") == [b"x"]
    orders.advance(DAY_MS)
    assert orders.bodies("orders") == [b"x"]


def test_a_message_that_was_delivered_is_not_timed_again(orders: World) -> None:
    orders.send("orders", TIMER_DELAY_MS="100")
    orders.advance(200)
    (delivered,) = orders.messages("orders")
    orders.send("orders", 1, b"x", **decode_properties(delivered.properties))
    assert len(orders.messages("orders", 1)) == 1


@pytest.mark.parametrize("name", ["TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"])
def test_a_delay_beyond_the_maximum_is_refused_and_nothing_is_stored(
    orders: World, name: str
) -> None:
    end = orders.store.log_end
    with pytest.raises(MessageError, match="max delay 3456000000ms"):
        orders.send("orders", 0, b"x", **{name: str(10**14)})
    with pytest.raises(MessageError, match="not a number"):
        orders.send("orders", 0, b"x", **{name: "tomorrow"})
    assert orders.store.log_end == end


def test_the_maximum_itself_is_accepted_and_can_be_changed(orders: World) -> None:
    orders.send("orders", TIMER_DELAY_MS=str(40 * DAY_MS))
    orders.core.reconfigure(BrokerConfig(timer_delay_max_ms=1_000))
    orders.send("orders", TIMER_DELAY_MS="1000")
    with pytest.raises(MessageError, match="1000ms"):
        orders.send("orders", TIMER_DELAY_MS="1001")


def test_clients_cannot_write_to_the_timer_topic(orders: World) -> None:
    with pytest.raises(TopicPermissionError):
        orders.send(TIMER_TOPIC, REAL_TOPIC="orders", REAL_QID="0", TIMER_OUT_MS="1")


def test_a_committed_message_that_waits_stays_a_committed_one(orders: World) -> None:
    own = encode_properties({"TIMER_DELAY_MS": "100"})
    committed = NewMessage(
        "orders", 0, b"half", own, sys_flag=SysFlag.COMMITTED, prepared_offset=77
    )
    orders.publish(committed)
    orders.end_tick()
    assert orders.messages("orders") == []
    orders.advance(200)
    (delivered,) = orders.messages("orders")
    assert (delivered.sys_flag, delivered.prepared_offset) == (SysFlag.COMMITTED, 77)


def test_a_time_is_an_argument_and_one_that_is_past_means_now(orders: World) -> None:
    for body, wait_ms in ((b"later", 70), (b"now", 0), (b"long ago", -9_000)):
        intent = Intent(orders.clock.now_ms() + wait_ms)
        orders.broker.publish.send(
            SELF, NewMessage("orders", 0, body), orders.on_stored, None, intent
        )
    orders.end_tick()
    assert orders.bodies("orders") == [b"now", b"long ago"]
    orders.advance(80)
    assert orders.bodies("orders") == [b"now", b"long ago", b"later"]


# -- delivering ------------------------------------------------------------------------------------


def test_a_burst_is_delivered_in_rounds_that_do_not_block(orders: World) -> None:
    due_ms = str(orders.clock.now_ms() + 1_000)
    for number in range(1_000):
        own = encode_properties({"TIMER_DELIVER_MS": due_ms})
        orders.publish(NewMessage("orders", 0, b"%d" % number, own))
    orders.end_tick()
    sizes = []
    append = orders.store.append

    def watched(messages: Sequence[NewMessage]) -> list[Appended]:
        sizes.append(len(messages))
        return append(messages)

    with mock.patch.object(orders.store, "append", watched):
        orders.advance(1_000)
    assert orders.bodies("orders") == [b"%d" % number for number in range(1_000)]
    assert max(sizes) <= 257
    assert orders.core.timers.wheel.next_due_ms() is None


def test_large_messages_make_smaller_rounds(orders: World) -> None:
    for number in range(6):
        orders.send("orders", 0, b"%d" % number * 500_000, TIMER_DELAY_MS="100")
    orders.advance(200)
    assert [body[:1] for body in orders.bodies("orders")] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_restart_delivers_what_fell_due_meanwhile_once(orders: World) -> None:
    orders.send("orders", body=b"before", TIMER_DELAY_MS="1000")
    orders.advance(1_100)
    orders.send("orders", body=b"meanwhile", TIMER_DELAY_MS="5000")
    orders.send("orders", body=b"later", TIMER_DELAY_MS="10000")
    orders.close()
    orders.clock.advance(6_000)
    orders.start()
    orders.advance(0)
    assert orders.bodies("orders") == [b"before", b"meanwhile"]
    orders.advance(4_000)
    assert orders.bodies("orders") == [b"before", b"meanwhile", b"later"]
    orders.restart()
    orders.advance(DAY_MS)
    assert len(orders.bodies("orders")) == 3


def test_a_kill_right_after_delivery_does_not_deliver_twice(orders: World) -> None:
    for number in range(5):
        orders.send("orders", body=b"%d" % number, TIMER_DELAY_MS="1000")
    orders.advance(1_100)
    orders.crash()
    orders.advance(10_000)
    assert orders.bodies("orders") == [b"0", b"1", b"2", b"3", b"4"]


def test_a_kill_in_the_middle_of_a_burst_does_not_deliver_twice(orders: World) -> None:
    for number in range(600):
        own = encode_properties({"TIMER_DELAY_MS": "1000"})
        orders.publish(NewMessage("orders", 0, b"%d" % number, own))
    orders.end_tick()
    orders.advance(COLLECT_MS)
    with mock.patch.object(orders.core.timers, "_wake_in"):
        orders.advance(1_000)
    assert len(orders.bodies("orders")) == 256
    orders.crash()
    orders.advance(0)
    assert orders.bodies("orders") == [b"%d" % number for number in range(600)]


def test_without_the_wheel_everything_is_read_from_the_queue(orders: World) -> None:
    for number in range(50):
        orders.send("orders", body=b"%d" % number, TIMER_DELAY_MS=str(1_000 + 100 * number))
    orders.advance(2_000)
    delivered = len(orders.bodies("orders"))
    orders.close()
    for path in (orders.folder / "onelog-timers").iterdir():
        path.unlink()
    orders.start()
    orders.advance(10_000)
    assert 0 < delivered < 50
    assert orders.bodies("orders") == [b"%d" % number for number in range(50)]


def test_a_clean_stop_leaves_nothing_to_read_again(orders: World) -> None:
    for number in range(50):
        orders.send("orders", TIMER_DELAY_MS=str(1_000 + number))
    orders.close()
    with mock.patch.object(TimerQueue, "read", side_effect=AssertionError):
        orders.start()
    orders.advance(2_000)
    assert len(orders.bodies("orders")) == 50


def test_a_store_that_never_had_timed_messages_keeps_none_of_it(orders: World) -> None:
    orders.send("orders")
    orders.restart()
    assert not (orders.folder / "onelog-timers").exists()
    assert entries_of(orders.core.timers) == {}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_whatever_fails_delays_delivery_but_loses_nothing(
    orders: World, trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.send("orders", body=b"x", TIMER_DELAY_MS="1000")

    def refuse(messages: Sequence[NewMessage]) -> list[Appended]:
        raise trouble

    with monkeypatch.context() as patched:
        patched.setattr(orders.store, "append", refuse)
        orders.advance(5_000)
        assert orders.bodies("orders") == []
    orders.advance(1_000)
    assert orders.bodies("orders") == [b"x"]


def test_a_clock_that_was_set_back_neither_stops_nor_repeats_anything(orders: World) -> None:
    orders.send("orders", body=b"before", TIMER_DELAY_MS="1000")
    orders.advance(3_600_000)
    orders.send("orders", body=b"far", TIMER_DELAY_MS="1000")
    orders.advance(COLLECT_MS)
    orders.clock.advance(-3_600_000)
    orders.send("orders", body=b"near", TIMER_DELAY_MS="1000")
    orders.advance(999)
    assert orders.bodies("orders") == [b"before"]
    orders.advance(TICK_MS)
    assert orders.bodies("orders") == [b"before", b"near"]
    orders.crash()
    orders.advance(3_600_000)
    assert orders.bodies("orders") == [b"before", b"near", b"far"]


def test_a_clock_that_was_set_forward_delivers_what_became_due(orders: World) -> None:
    orders.send("orders", TIMER_DELAY_MS="3600000")
    orders.advance(100)
    orders.clock.advance(3_600_000)
    assert orders.bodies("orders") == []
    orders.advance(1_000)
    assert orders.bodies("orders") == [b"x"]


def test_a_record_that_cannot_be_delivered_does_not_block_the_others(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    due = f"0{orders.clock.now_ms() + 1_000}"
    bad: list[dict[str, str]] = [
        {"TIMER_OUT_MS": due},
        {"REAL_TOPIC": "orders", "REAL_QID": "0"},
        {"REAL_TOPIC": "orders", "REAL_QID": "70000", "TIMER_OUT_MS": due},
        {"REAL_TOPIC": "a\nb", "REAL_QID": "0", "TIMER_OUT_MS": due},
    ]
    for properties in bad:
        orders.store.append([NewMessage(TIMER_TOPIC, 0, b"lost", encode_properties(properties))])
    orders.send("orders", TIMER_DELAY_MS="1000")
    orders.advance(2_000)
    assert orders.bodies("orders") == [b"x"]
    assert caplog.text.count("is dropped") == 4
    orders.restart()
    orders.advance(2_000)
    assert orders.bodies("orders") == [b"x"]


def test_record_checksums_do_not_get_in_the_way(tmp_path: Path) -> None:
    world = World(tmp_path / "store", replace(SMALL_STORE, record_crc=True))
    world.topic("orders")
    world.send("orders", UNIQ_KEY="U1", TIMER_DELAY_MS="1234")
    world.send("orders", UNIQ_KEY="U2", TIMER_DELAY_MS="1234")
    recall(world, "U2")
    world.advance(1_233)
    assert world.bodies("orders") == []
    world.advance(TICK_MS)
    (delivered,) = world.messages("orders")
    assert delivered.unique_key == "U1"
    world.close()


def test_what_comes_past_the_timers_is_found_a_second_later(orders: World) -> None:
    message = timed_messages.scheduled(
        NewMessage("orders", 0, b"replicated"), orders.clock.now_ms() + 100
    )
    orders.store.append([message])
    orders.advance(1_100)
    assert orders.bodies("orders") == [b"replicated"]


# -- recalling -------------------------------------------------------------------------------------


def test_a_recalled_message_is_never_delivered(orders: World) -> None:
    orders.send("orders", body=b"keep", UNIQ_KEY="U1", TIMER_DELAY_MS="1000")
    orders.send("orders", body=b"drop", UNIQ_KEY="U2", TIMER_DELAY_MS="1000")
    recall(orders, "U2")
    orders.advance(2_000)
    assert orders.bodies("orders") == [b"keep"]


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_recall_survives(orders: World, how: str) -> None:
    for number in range(4):
        orders.send("orders", body=b"%d" % number, UNIQ_KEY=f"U{number}", TIMER_DELAY_MS="1000")
    recall(orders, "U1")
    getattr(orders, how)()
    recall(orders, "U3")
    getattr(orders, how)()
    orders.advance(2_000)
    assert orders.bodies("orders") == [b"0", b"2"]


def test_a_recall_in_the_last_millisecond_holds(orders: World) -> None:
    orders.send("orders", UNIQ_KEY="U1", TIMER_DELAY_MS="1000")
    orders.send("orders", body=b"other", TIMER_DELAY_MS="1000")
    orders.advance(999)
    orders.core.timers.recall("orders", "U1", orders.on_stored)
    orders.advance(50)
    # The recall is not in the log yet: nothing passes it.
    assert orders.bodies("orders") == []
    orders.end_tick()
    assert orders.told.pop().error is None
    orders.advance(10)
    assert orders.bodies("orders") == [b"other"]


def test_a_recall_that_could_not_be_stored_changes_nothing(
    orders: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.send("orders", UNIQ_KEY="U1", TIMER_DELAY_MS="1000")

    def refuse(messages: Sequence[NewMessage]) -> list[Appended]:
        raise StoreFullError("disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(orders.store, "append", refuse)
        orders.core.timers.recall("orders", "U1", orders.on_stored)
        orders.end_tick()
    assert isinstance(orders.told.pop().error, StoreFullError)
    orders.advance(2_000)
    assert orders.bodies("orders") == [b"x"]


def test_a_recall_holds_when_the_disk_is_full_in_the_middle_of_a_burst(
    orders: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        own = encode_properties({"UNIQ_KEY": f"U{number}", "TIMER_DELAY_MS": "1000"})
        orders.publish(NewMessage("orders", 0, b"%d" % number, own))
    orders.end_tick()
    orders.told.clear()
    recall(orders, "U280")
    append = orders.store.append
    refused: list[int] = []

    def refuse_once(messages: Sequence[NewMessage]) -> list[Appended]:
        if messages[0].body == b"255" and not refused:
            refused.append(len(messages))
            raise StoreFullError("disk is full")
        return append(messages)

    monkeypatch.setattr(orders.store, "append", refuse_once)
    orders.advance(5_000)
    assert refused
    assert orders.bodies("orders") == [b"%d" % number for number in range(300) if number != 280]


def test_what_cannot_be_recalled_is_refused_and_nothing_is_written(orders: World) -> None:
    orders.send("orders", UNIQ_KEY="plain")
    orders.send("orders", UNIQ_KEY="done", TIMER_DELAY_MS="100")
    orders.advance(200)
    orders.send("orders", UNIQ_KEY="waits", TIMER_DELAY_MS="100")
    orders.send("orders", UNIQ_KEY="twice", TIMER_DELAY_MS="100")
    recall(orders, "twice")
    end = orders.store.log_end
    for topic, key in (
        ("orders", "plain"),
        ("orders", "done"),
        ("orders", "unknown"),
        ("orders", "twice"),
        ("other", "waits"),
    ):
        assert not orders.core.timers.recall(topic, key, orders.on_stored)
    orders.core.timers.recall("orders", "waits", orders.on_stored)
    with pytest.raises(RecallError, match="being recalled"):
        orders.core.timers.recall("orders", "waits", orders.on_stored)
    assert orders.store.log_end == end


def test_a_message_whose_time_has_come_is_not_recalled(orders: World) -> None:
    orders.send("orders", UNIQ_KEY="U1", TIMER_DELAY_MS="100")
    orders.clock.advance(100)
    with pytest.raises(RecallError, match="being delivered"):
        orders.core.timers.recall("orders", "U1", orders.on_stored)
    orders.advance(10)
    assert orders.bodies("orders") == [b"x"]


def test_a_recall_takes_all_copies_that_a_producer_sent_again(orders: World) -> None:
    for _ in range(3):
        orders.send("orders", UNIQ_KEY="U1", TIMER_DELAY_MS="1000")
        orders.advance(10)
    recall(orders, "U1")
    orders.advance(2_000)
    assert orders.bodies("orders") == []


@pytest.mark.parametrize("key", ["orders+U1", "U1"])
def test_a_message_with_a_delete_key_deletes(orders: World, key: str) -> None:
    orders.send("orders", body=b"drop", UNIQ_KEY="U1", TIMER_DELAY_MS="1000")
    orders.send("orders", body=b"keep", UNIQ_KEY="U2", TIMER_DELAY_MS="1000")
    orders.send("orders", body=b"d", UNIQ_KEY="D", TIMER_DEL_UNIQKEY=key, TIMER_DELAY_MS="1000")
    orders.crash()
    orders.advance(2_000)
    assert orders.bodies("orders") == [b"keep"]


def test_a_deletion_that_comes_too_late_is_refused(orders: World) -> None:
    with pytest.raises(MessageError):
        orders.send("orders", TIMER_DEL_UNIQKEY="orders+U1", TIMER_DELIVER_MS="1600000000000")
