import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onelog.core.access import SELF
from onelog.core.publish import Intent
from onelog.core.schedule.records import restored
from onelog.errors import MessageError
from onelog.message import (
    PROPERTIES_BYTES_MAX,
    Appended,
    NewMessage,
    decode_properties,
    encode_properties,
)
from onelog.names import SCHEDULE_TOPIC
from tests.core.world import SMALL_STORE, TROUBLES, World


@pytest.fixture
def orders(world: World) -> World:
    world.topic("orders", 4)
    return world


@pytest.mark.parametrize(
    ("level", "delay_ms"), [(1, 1_000), (2, 5_000), (3, 10_000), (5, 60_000), (18, 7_200_000)]
)
def test_a_message_is_delivered_when_its_level_says_and_not_before(
    orders: World, level: int, delay_ms: int
) -> None:
    orders.send("orders", 2, b"later", DELAY=str(level), TAGS="a")
    assert orders.bodies("orders", 2) == []
    orders.advance(delay_ms - 1)
    assert orders.bodies("orders", 2) == []
    orders.advance(1)
    assert orders.bodies("orders", 2) == [b"later"]
    orders.advance(10 * delay_ms)
    assert orders.bodies("orders", 2) == [b"later"]


def test_a_message_comes_although_the_limit_on_bodies_was_lowered_while_it_waited(
    orders: World,
) -> None:
    orders.send("orders", 0, b"b" * 5_000, DELAY="1")
    orders.send("orders", 0, b"t" * 5_000, TIMER_DELAY_MS="1000")
    orders.close()
    orders.store_config = replace(SMALL_STORE, body_bytes_max=1_000)
    orders.start()
    orders.advance(2_000)
    assert sorted(orders.bodies("orders")) == [b"b" * 5_000, b"t" * 5_000]


def test_what_is_delivered_is_what_was_sent_with_a_new_store_time(orders: World) -> None:
    message = NewMessage(
        "orders",
        1,
        b"x",
        encode_properties({"DELAY": "1", "TAGS": "a", "UNIQ_KEY": "u"}),
        5,
        born_ms=99,
        born_host=b"\x0a\x00\x00\x01\x00\x00\x00\x09",
        store_host=b"\x0a\x00\x00\x02\x00\x00\x00\x08",
        reconsume_times=3,
    )
    orders.publish(message)
    orders.end_tick()
    sent_ms = orders.clock.now_ms()
    orders.advance(1_000)
    (found,) = orders.messages("orders", 1)
    assert decode_properties(found.properties) == {
        "TAGS": "a",
        "UNIQ_KEY": "u",
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
    }
    assert (found.flag, found.born_ms, found.reconsume_times) == (5, 99, 3)
    assert (found.born_host, found.store_host) == (message.born_host, message.store_host)
    assert found.store_ms == sent_ms + 1_000
    assert next(iter(orders.store.entries("orders", 1, 0, 1)))[2] == 97, "the hash of its tag"


def test_who_waits_is_woken_by_a_delayed_message(orders: World) -> None:
    woken: list[bool] = []
    orders.core.waiting.wait((("orders", 0),), 60_000, lambda wait, late: woken.append(late))
    orders.send("orders", DELAY="1")
    assert woken == []
    orders.advance(1_000)
    assert woken == [False]


def test_levels_beyond_the_last_are_the_last(orders: World) -> None:
    orders.send("orders", DELAY="77")
    assert orders.store.max_offset(SCHEDULE_TOPIC, 17) == 1
    assert decode_properties(orders.messages(SCHEDULE_TOPIC, 17)[0].properties)["DELAY"] == "18"


def test_no_delay_is_no_delay(orders: World) -> None:
    orders.send("orders", body=b"zero", DELAY="0")
    orders.send("orders", body=b"negative", DELAY="-1")
    orders.send("orders", body=b"other", MY_DELAY="3")
    assert orders.bodies("orders") == [b"zero", b"negative", b"other"]
    with pytest.raises(MessageError):
        orders.send("orders", DELAY="soon")


def test_what_only_looks_like_a_delay_to_rocketmq_is_none_without_an_intent(orders: World) -> None:
    names = {"DELAY": "3", "TIMER_DELAY_MS": "9000", "TRAN_MSG": "true", "PGROUP": "g"}
    for number, headers in enumerate(({"DELAY": "soon"}, names), 1):
        message = NewMessage("orders", 0, b"at once", encode_properties(headers))
        orders.broker.publish.send(SELF, message, orders.on_stored)
        orders.end_tick()
        assert len(orders.bodies("orders")) == number
        assert decode_properties(orders.messages("orders")[-1].properties) == headers


def test_a_level_is_an_argument_and_needs_no_property(orders: World) -> None:
    message = NewMessage("orders", 2, b"later")
    orders.broker.publish.send(SELF, message, orders.on_stored, None, Intent(delay_level=1))
    orders.end_tick()
    assert orders.bodies("orders", 2) == []
    orders.advance(1_000)
    assert orders.bodies("orders", 2) == [b"later"]
    assert "DELAY" not in decode_properties(orders.messages("orders", 2)[0].properties)


def test_a_restart_delivers_what_fell_due_meanwhile_once(orders: World) -> None:
    orders.send("orders", body=b"before", DELAY="1")
    orders.advance(1_000)
    orders.send("orders", body=b"meanwhile", DELAY="2")
    orders.send("orders", body=b"later", DELAY="3")
    orders.close()
    orders.clock.advance(6_000)
    orders.start()
    orders.advance(0)
    assert orders.bodies("orders") == [b"before", b"meanwhile"]
    orders.advance(4_000)
    assert orders.bodies("orders") == [b"before", b"meanwhile", b"later"]
    orders.restart()
    orders.advance(100_000)
    assert len(orders.bodies("orders")) == 3


def test_a_kill_right_after_delivery_does_not_deliver_twice(orders: World) -> None:
    for number in range(5):
        orders.send("orders", body=b"%d" % number, DELAY="1")
    orders.advance(1_000)
    orders.crash()
    orders.advance(10_000)
    assert orders.bodies("orders") == [b"0", b"1", b"2", b"3", b"4"]


def test_a_large_backlog_is_delivered_in_rounds(orders: World) -> None:
    for number in range(1_000):
        orders.publish(NewMessage("orders", 0, b"%d" % number, encode_properties({"DELAY": "1"})))
    orders.end_tick()
    orders.advance(1_000)
    assert orders.bodies("orders") == [b"%d" % number for number in range(1_000)]
    assert orders.core.delay.progress()[1] == (1_000, 1_000)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_whatever_fails_delays_delivery_but_loses_nothing(
    orders: World, trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.send("orders", body=b"x", DELAY="1")

    def refuse(messages: Sequence[NewMessage]) -> list[Appended]:
        raise trouble

    with monkeypatch.context() as patched:
        patched.setattr(orders.store, "append", refuse)
        orders.advance(5_000)
        assert orders.bodies("orders") == []
    orders.advance(1_000)
    assert orders.bodies("orders") == [b"x"]


def test_a_clock_that_was_set_back_does_not_block_a_level(orders: World) -> None:
    orders.send("orders", body=b"x", DELAY="1")
    orders.close()
    orders.clock.advance(-3_600_000)
    orders.start()
    orders.advance(0)
    assert orders.bodies("orders") == [b"x"]


def test_a_message_that_names_no_target_is_dropped_and_does_not_block_the_others(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    delayed = encode_properties({"DELAY": "1"})
    half = encode_properties(
        {"DELAY": "1", "REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"}
    )
    orders.store.append(
        [NewMessage(SCHEDULE_TOPIC, 0, b"lost", delayed), NewMessage(SCHEDULE_TOPIC, 0, b"h", half)]
    )
    orders.send("orders", body=b"x", DELAY="1")
    orders.advance(2_000)
    assert orders.bodies("orders") == [b"x"]
    assert caplog.text.count("is dropped") == 2


def test_a_message_that_the_store_refuses_does_not_block_the_others(orders: World) -> None:
    far = encode_properties({"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "70000"})
    orders.store.append([NewMessage(SCHEDULE_TOPIC, 0, b"lost", far)])
    orders.send("orders", body=b"x", DELAY="1")
    orders.advance(2_000)
    assert orders.bodies("orders") == [b"x"]
    orders.restart()
    orders.advance(10_000)
    assert orders.bodies("orders") == [b"x"]


def fill_segments(world: World) -> None:
    for _ in range(30):
        world.send("orders", 3, b"x" * 100_000)


def test_files_that_go_while_messages_wait_in_them_are_reported(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    orders.send("orders", DELAY="18")
    fill_segments(orders)
    orders.send("orders", body=b"kept", DELAY="18")
    orders.clock.advance(SMALL_STORE.retention_ms * 2)
    orders.store.retention.kept_from = None  # As if somebody had deleted the files by hand.
    orders.store.retention.run({}, manual=True)
    orders.advance(0)
    assert orders.bodies("orders") == [b"kept"]
    assert "1 delayed messages of level 18 were deleted" in caplog.text


def test_a_level_that_is_longer_than_the_log_is_kept_loses_nothing(tmp_path: Path) -> None:
    hour_ms = 3_600_000
    config = replace(SMALL_STORE, delay_levels="1s 30h", retention_ms=6 * hour_ms)
    world = World(tmp_path / "store", config)
    world.topic("orders")
    begin_ms = world.clock.now_ms()
    for number in range(600):
        world.send("orders", 1, b"%d" % number, DELAY="2", TAGS="t", KEYS=f"k{number}")
        world.advance(1_000)
    for hours in range(29):
        fill_segments(world)
        world.advance(hour_ms)
        world.retain()
        if hours == 10:
            world.crash()
    assert world.bodies("orders", 1) == []
    assert world.store.log_min > 50 << 20, "the log is not kept for as long as that"
    world.advance(2 * hour_ms)
    messages = world.messages("orders", 1)
    assert [bytes(each.body) for each in messages] == [b"%d" % number for number in range(600)]
    for number, each in enumerate(messages):
        assert 0 <= each.store_ms - (begin_ms + number * 1_000 + 30 * hour_ms) <= 10
        assert (each.tags, each.keys) == ("t", [f"k{number}"])
    world.close()


def test_a_full_disk_that_forces_files_out_does_not_take_delayed_messages_along(
    orders: World,
) -> None:
    orders.send("orders", body=b"waits", DELAY="18")
    fill_segments(orders)
    percents = [92.0]
    orders.store.retention.disk = lambda folder: percents[0]
    orders.store.retain()
    assert orders.retain().segments_deleted > 0
    assert orders.store.min_offset(SCHEDULE_TOPIC, 17) == 1
    percents[0] = 10.0
    orders.store.retain()
    orders.advance(7_200_000 - 1)
    assert orders.bodies("orders") == []
    orders.advance(10)
    assert orders.bodies("orders") == [b"waits"]
    orders.crash()
    orders.advance(7_200_000)
    assert orders.bodies("orders") == [b"waits"]


def test_without_head_room_the_files_with_delayed_messages_stay(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    orders.send("orders", body=b"waits", DELAY="18")
    fill_segments(orders)
    orders.store.retention.disk = lambda folder: 99.0
    orders.store.retain()
    assert orders.retain().segments_deleted == 0
    assert "handing over delayed messages" in caplog.text
    orders.crash()
    orders.advance(7_200_000)
    assert orders.bodies("orders") == [b"waits"]


def test_a_message_that_cannot_become_a_timed_one_is_delivered_early_instead_of_lost(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    orders.send("orders", body=b"large", DELAY="18", KEYS="k" * (PROPERTIES_BYTES_MAX - 90))
    fill_segments(orders)
    orders.store.retention.disk = lambda folder: 88.0
    orders.retain()
    assert orders.bodies("orders") == [b"large"]
    assert "a delayed message to orders is delivered early: properties of" in caplog.text


def test_restoring_wants_a_topic_and_a_queue(orders: World) -> None:
    stored = orders.send("orders", REAL_TOPIC="orders", REAL_QID="x")
    with pytest.raises(MessageError):
        restored(orders.store.message_at(stored.log_offset))


def test_own_levels_are_used(tmp_path: Path) -> None:
    world = World(tmp_path / "store", replace(SMALL_STORE, delay_levels="2s 1m"))
    world.topic("orders")
    world.send("orders", DELAY="1")
    world.send("orders", DELAY="9")
    world.advance(2_000)
    assert len(world.bodies("orders")) == 1
    world.advance(58_000)
    assert len(world.bodies("orders")) == 2
    world.close()


class DelayedMessages(RuleBasedStateMachine):
    """Nothing early, nothing lost, nothing twice: over restarts and kills."""

    def __init__(self) -> None:
        super().__init__()
        self._temporary = tempfile.TemporaryDirectory()
        self.world = World(
            Path(self._temporary.name) / "store", replace(SMALL_STORE, delay_levels="1s 3s 10s")
        )
        self.world.topic("orders", 1)
        self.due: dict[bytes, int] = {}

    @rule(level=st.integers(1, 3))
    def send(self, level: int) -> None:
        body = b"%d" % len(self.due)
        self.world.send("orders", body=body, DELAY=str(level))
        self.due[body] = self.world.clock.now_ms() + (1_000, 3_000, 10_000)[level - 1]

    @rule(ms=st.integers(1, 6_000))
    def time_passes(self, ms: int) -> None:
        self.world.advance(ms)

    @rule(ms=st.integers(0, 6_000))
    def restart(self, ms: int) -> None:
        self.world.close()
        self.world.clock.advance(ms)
        self.world.start()
        self.world.advance(0)

    @rule()
    def kill(self) -> None:
        self.world.crash()
        self.world.advance(0)

    @invariant()
    def exactly_the_due_ones_are_delivered(self) -> None:
        now = self.world.clock.now_ms()
        expected = sorted(body for body, due_ms in self.due.items() if due_ms <= now)
        assert sorted(self.world.bodies("orders")) == expected

    def teardown(self) -> None:
        self.world.close()
        self._temporary.cleanup()


DelayedMessages.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestDelayedMessages = DelayedMessages.TestCase
