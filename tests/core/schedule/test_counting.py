"""How many timed messages of each topic wait."""

from collections.abc import Callable
from typing import Any

import pytest

from onelog.core.schedule import timers
from tests.core.world import World


class Worker:
    """Finds things out when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def __call__(self, find: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.waiting.append((find, then))

    def finish(self) -> int:
        count = 0
        while self.waiting:
            find, then = self.waiting.pop()
            then(find())
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
    monkeypatch.setattr(timers, "COUNTED_TOGETHER", 4)
    worker = Worker()
    monkeypatch.setattr(orders.core.cold_reads, "find", worker)
    count = orders.core.timers.count_by_topic
    for number in range(10):
        orders.send("payments" if number % 5 == 0 else "orders", TIMER_DELAY_MS=str(1000 + number))
    told: list[dict[str, int]] = []
    count(told.append)
    count(told.append)
    assert told == []
    assert worker.finish() == 3 + 1, "three parts, and a look for a fourth"
    assert told == [{"orders": 8, "payments": 2}] * 2
    orders.advance(5_000)
    count(told.append)
    worker.finish()
    assert told[2] == {}


def test_what_was_recalled_does_not_count(orders: World) -> None:
    for key in ("a", "b"):
        orders.send("orders", UNIQ_KEY=key, TIMER_DELAY_MS="60000")
    orders.core.timers.recall("orders", "a", orders.on_stored)
    orders.end_tick()
    told: list[dict[str, int]] = []
    orders.core.timers.count_by_topic(told.append)
    assert told == [{"orders": 1}]


def test_a_restart_changes_nothing(orders: World) -> None:
    for _ in range(3):
        orders.send("payments", TIMER_DELAY_MS="60000")
    orders.restart()
    told: list[dict[str, int]] = []
    orders.core.timers.count_by_topic(told.append)
    assert told == [{"payments": 3}]
