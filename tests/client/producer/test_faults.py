"""Fault avoidance: RocketMQ's table, and that being avoided ends."""

import pytest

from onelog.client.producer.send_targets import Faults, avoided_for_ms
from onelog.clock import ManualClock


@pytest.mark.parametrize(
    ("latency_ms", "avoided_s"),
    [
        (0, 0),
        (49, 0),
        (50, 0),
        (100, 0),
        (549.9, 0),
        (550, 30),
        (999, 30),
        (1_000, 60),
        (2_000, 120),
        (2_999, 120),
        (3_000, 180),
        (14_999, 180),
        (15_000, 600),
        (99_999, 600),
    ],
)
def test_the_table_is_rocketmqs(latency_ms: float, avoided_s: int) -> None:
    assert avoided_for_ms(latency_ms) == avoided_s * 1_000


def test_a_slow_broker_is_avoided_until_its_time_is_over() -> None:
    clock = ManualClock()
    faults = Faults(clock)
    faults.answered("a", 600)
    faults.answered("b", 20)
    assert faults.is_avoided("a")
    assert not faults.is_avoided("b")
    assert not faults.is_avoided("never seen")
    clock.advance(29_999)
    assert faults.is_avoided("a")
    clock.advance(1)
    assert not faults.is_avoided("a")


def test_a_fast_answer_ends_the_avoidance() -> None:
    faults = Faults(ManualClock())
    faults.failed("a")
    assert faults.is_avoided("a")
    faults.answered("a", 3)
    assert not faults.is_avoided("a")


def test_of_brokers_that_are_all_avoided_the_least_avoided_is_used() -> None:
    faults = Faults(ManualClock())
    faults.failed("a")
    faults.answered("b", 600)
    faults.answered("c", 1_500)
    assert faults.least_avoided(["a", "b", "c"]) == "b"
    assert faults.least_avoided(["a", "b", "c", "d"]) == "d"
