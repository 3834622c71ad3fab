"""Timed messages through restarts and kills, and in the hands of RocketMQ."""

import contextlib
import struct
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onelog.core.schedule import wheel as timer_wheel
from onelog.core.schedule.timers import COLLECT_MS, TICK_MS
from onelog.errors import (
    RecallError,
)
from onelog.message import (
    NewMessage,
    encode_properties,
)
from onelog.names import TIMER_TOPIC
from onelog.rocketmq import config_files
from tests.core.world import SMALL_STORE, World


@pytest.fixture
def orders(world: World) -> World:
    world.topic("orders")
    return world


def recall(world: World, key: str, topic: str = "orders") -> None:
    world.core.timers.recall(topic, key, world.on_stored)
    world.end_tick()
    assert world.told.pop().error is None


# -- from and to RocketMQ --------------------------------------------------------------------------


def rocketmq_scheduled(topic: str, wanted_ms: int, **properties: str) -> NewMessage:
    """A scheduled message as RocketMQ stores it: rounded to the second before."""
    own = {
        "REAL_TOPIC": topic,
        "REAL_QID": "0",
        "TIMER_DELIVER_MS": str(wanted_ms),
        "TIMER_OUT_MS": str((wanted_ms - 1) // 1000 * 1000),
        **properties,
    }
    body = own["UNIQ_KEY"].encode()
    return NewMessage(TIMER_TOPIC, 0, body, encode_properties(own))


def test_a_store_of_rocketmq_is_taken_over(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    now = world.clock.now_ms()
    world.topic("orders")
    world.close()
    (world.folder / "config" / "onelog-tables.json").unlink()
    store = world.store.open(world.folder, SMALL_STORE, world.clock)
    store.append(
        [
            rocketmq_scheduled("orders", now - 60_000, UNIQ_KEY="done"),
            rocketmq_scheduled("orders", now - 500, UNIQ_KEY="due"),
            rocketmq_scheduled("orders", now + 700, UNIQ_KEY="soon"),
            rocketmq_scheduled("orders", now + 5_000, UNIQ_KEY="rolled"),
            rocketmq_scheduled("orders", now + 5_000, UNIQ_KEY="rolled", TIMER_ROLL_TIMES="1"),
        ]
    )
    store.close()
    read_ms = (now // 1000 - 5) * 1000
    checkpoint = read_ms.to_bytes(8, "big") + bytes(4_088)
    (world.folder / "config" / "timercheck").write_bytes(checkpoint)
    world.start()
    world.advance(0)
    assert world.bodies("orders") == [b"due"]
    world.advance(699)
    assert world.bodies("orders") == [b"due"]
    world.crash()
    world.advance(10_000)
    assert world.bodies("orders") == [b"due", b"soon", b"rolled"]
    world.close()


def test_rocketmq_can_go_on_where_we_were(orders: World) -> None:
    config = orders.folder / "config"
    config_files.export(orders.core)
    assert not (config / "timercheck").exists()
    (orders.folder / "timerlog").mkdir()
    (orders.folder / "timerlog" / "00000000000000000000").touch()
    (orders.folder / "timerwheel").touch()
    for delay_ms in (100, 200, 5_000):
        orders.send("orders", TIMER_DELAY_MS=str(delay_ms))
    orders.advance(1_000)
    config_files.export(orders.core)
    data = (config / "timercheck").read_bytes()
    read_ms, _, offset, master_offset, *_ = struct.unpack(">512q", data)
    assert (read_ms, offset, master_offset) == (orders.begin_ms + 200, 0, 0)
    assert not (orders.folder / "timerlog").exists()
    assert not (orders.folder / "timerwheel").exists()
    orders.advance(10_000)
    assert orders.core.timers.checkpoint == (orders.begin_ms + 5_000, 3)


# -- the model -------------------------------------------------------------------------------------


class TimedMessages(RuleBasedStateMachine):
    """Nothing early, nothing lost, nothing twice, nothing recalled: over restarts and kills."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = mock.patch.multiple(timer_wheel, FILE_COUNT=8, NEAR_COUNT=4, MERGE_FILES=3)
        self._patch.start()
        self._temporary = tempfile.TemporaryDirectory()
        self.world = World(Path(self._temporary.name) / "store")
        self.world.topic("orders", 1)
        self.due: dict[bytes, int] = {}
        self.recalled: set[bytes] = set()

    @rule(delays_ms=st.lists(st.integers(1, 20_000), min_size=1, max_size=10))
    def send(self, delays_ms: list[int]) -> None:
        for delay_ms in delays_ms:
            body = b"%d" % len(self.due)
            own = {"UNIQ_KEY": body.decode(), "TIMER_DELAY_MS": str(delay_ms)}
            message = NewMessage("orders", 0, body, encode_properties(own))
            self.world.publish(message)
            self.due[body] = self.world.clock.now_ms() + delay_ms
        self.world.end_tick()

    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        if not self.due:
            return
        body = data.draw(st.sampled_from(sorted(self.due)))
        key, now = body.decode(), self.world.clock.now_ms()
        if body in self.recalled or self.due[body] <= now:
            with contextlib.suppress(RecallError):
                assert not self.world.core.timers.recall("orders", key, self.world.on_stored)
        else:
            recall(self.world, key)
            self.recalled.add(body)

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
        delivered = self.world.messages("orders")
        bodies = [bytes(message.body) for message in delivered]
        assert len(bodies) == len(set(bodies))
        assert not self.recalled & set(bodies)
        for message in delivered:
            assert message.store_ms >= self.due[bytes(message.body)]
        late = COLLECT_MS + TICK_MS
        expected = {body for body, due_ms in self.due.items() if due_ms + late <= now}
        assert expected - self.recalled <= set(bodies)

    def teardown(self) -> None:
        self.world.close()
        self._patch.stop()
        self._temporary.cleanup()


TimedMessages.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTimedMessages = TimedMessages.TestCase
