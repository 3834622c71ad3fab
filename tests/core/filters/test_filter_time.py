from collections.abc import Callable
from functools import partial

import pytest

from onelog.core.filters.filter_time import WAITING_MAX, FilterTime
from onelog.errors import BrokerBusyError


class Loop:
    """Ticks and time that tests move by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looked: list[tuple[str, int]] = []
        self._soon: list[Callable[[], None]] = []
        self.time = FilterTime(
            self._soon.append, lambda: self.now, lambda *queue: self.looked.append(queue), 10
        )

    def tick(self) -> None:
        soon, self._soon[:] = list(self._soon), []
        for call in soon:
            call()

    def use_up(self) -> None:
        """A filter takes all the time that there is."""
        assert self.time.left()
        self.now += 0.010
        assert not self.time.left()


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_each_tick_has_its_time(loop: Loop) -> None:
    for _ in range(3):
        assert loop.time.left()
        loop.now += 0.009
        assert loop.time.left()
        loop.now += 0.002
        assert not loop.time.left()
        loop.tick()


def test_the_budget_can_change(loop: Loop) -> None:
    loop.time.budget_ms = 100
    assert loop.time.left()
    loop.now += 0.099
    assert loop.time.left()


def test_turns_come_in_order_and_as_many_in_a_tick_as_there_is_time_for(loop: Loop) -> None:
    done: list[int] = []

    def turn(number: int) -> None:
        assert loop.time.left()
        loop.now += 0.004
        done.append(number)

    loop.use_up()
    for number in range(5):
        loop.time.later(partial(turn, number))
    assert done == []
    loop.tick()
    assert done == [0, 1, 2]
    loop.tick()
    assert done == [0, 1, 2, 3, 4]


def test_who_comes_while_others_wait_waits_behind_them(loop: Loop) -> None:
    done: list[str] = []
    loop.use_up()
    loop.time.later(lambda: done.append("first"))
    loop.time.later(lambda: done.append("second"))
    assert not loop.time.left()
    loop.time.later(lambda: done.append("third"))
    loop.tick()
    assert done == ["first", "second", "third"]
    assert loop.time.left()


def test_one_that_has_to_wait_again_goes_to_the_end(loop: Loop) -> None:
    done: list[str] = []

    def greedy() -> None:
        done.append("greedy")
        loop.now += 0.020
        loop.time.later(greedy)

    loop.use_up()
    loop.time.later(greedy)
    loop.time.later(lambda: done.append("modest"))
    for _ in range(2):
        loop.tick()
    assert done == ["greedy", "modest", "greedy"]


def test_a_turn_that_fails_does_not_take_the_others_along(loop: Loop) -> None:
    done: list[str] = []

    def fail() -> None:
        raise ValueError("it went wrong")

    loop.use_up()
    loop.time.later(fail)
    loop.time.later(lambda: done.append("served"))
    with pytest.raises(ValueError, match="it went wrong"):
        loop.tick()
    loop.tick()
    assert done == ["served"]
    loop.tick()
    assert loop.time.left()


def test_too_many_that_wait_are_told_what_to_do(loop: Loop) -> None:
    for _ in range(WAITING_MAX):
        loop.time.later(lambda: None)
    with pytest.raises(BrokerBusyError, match=r"raise broker\.filter_budget_ms"):
        loop.time.later(lambda: None)


def test_the_held_pulls_of_a_queue_are_looked_at_once_for_all(loop: Loop) -> None:
    loop.use_up()
    for _ in range(3):
        loop.time.look_later("orders", 1)
    loop.time.look_later("orders", 2)
    loop.tick()
    assert loop.looked == [("orders", 1), ("orders", 2)]
    loop.time.look_later("orders", 1)
    loop.tick()
    loop.tick()
    assert loop.looked == [("orders", 1), ("orders", 2), ("orders", 1)]
