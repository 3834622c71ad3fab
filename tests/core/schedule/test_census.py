"""How many timed messages of each topic wait."""

from collections.abc import Callable

import pytest

from onelog.core.schedule import census as timer_census
from onelog.core.schedule.census import TimerCensus
from tests.core.world import World


class Worker:
    """Does work when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def __call__(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        self.waiting.append((work, then))

    def finish(self) -> int:
        count = 0
        while self.waiting:
            work, then = self.waiting.pop()
            work()
            then()
            count += 1
        return count


@pytest.fixture
def orders(world: World) -> World:
    for topic in ("orders", "payments"):
        world.topic(topic)
    return world


def test_messages_are_counted_once_in_parts_and_everybody_who_asks_is_told(
    orders: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_census, "PART_COUNT", 4)
    worker = Worker()
    census = TimerCensus(orders.broker.timers, orders.store, worker)
    for number in range(10):
        orders.send("payments" if number % 5 == 0 else "orders", TIMER_DELAY_MS=str(1000 + number))
    told: list[dict[str, int]] = []
    census.count(told.append)
    census.count(told.append)
    assert told == []
    assert worker.finish() == 3 + 1, "three parts, and a look for a fourth"
    assert told == [{"orders": 8, "payments": 2}] * 2
    orders.advance(5_000)
    census.count(told.append)
    worker.finish()
    assert told[2] == {}


def test_what_was_recalled_does_not_count(orders: World) -> None:
    worker = Worker()
    census = TimerCensus(orders.broker.timers, orders.store, worker)
    for key in ("a", "b"):
        orders.send("orders", UNIQ_KEY=key, TIMER_DELAY_MS="60000")
    orders.broker.timers.recall("orders", "a", orders.on_stored)
    orders.end_tick()
    told: list[dict[str, int]] = []
    census.count(told.append)
    worker.finish()
    assert told == [{"orders": 1}]


def test_a_restart_changes_nothing(orders: World) -> None:
    for _ in range(3):
        orders.send("payments", TIMER_DELAY_MS="60000")
    orders.restart()
    told: list[dict[str, int]] = []
    worker = Worker()
    TimerCensus(orders.broker.timers, orders.store, worker).count(told.append)
    worker.finish()
    assert told == [{"payments": 3}]
