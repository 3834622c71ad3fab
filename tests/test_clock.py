import time

import pytest

from onelog.clock import Clock, ManualClock, SystemClock


def test_the_system_clock_tells_wall_time_in_milliseconds() -> None:
    before = time.time()
    now_ms = SystemClock().now_ms()
    after = time.time()
    assert int(before * 1000) - 1 <= now_ms <= int(after * 1000) + 1


def test_a_manual_clock_stands_still() -> None:
    clock = ManualClock(5_000)
    assert [clock.now_ms(), clock.now_ms()] == [5_000, 5_000]


@pytest.mark.parametrize(("step_ms", "now_ms"), [(250, 1_250), (0, 1_000), (-300, 700)])
def test_a_manual_clock_moves_when_told_also_backwards(step_ms: int, now_ms: int) -> None:
    clock: Clock = ManualClock(1_000)
    assert isinstance(clock, ManualClock)
    clock.advance(step_ms)
    assert clock.now_ms() == now_ms


def test_manual_clocks_do_not_share_time() -> None:
    one, other = ManualClock(), ManualClock()
    one.advance(1)
    assert one.now_ms() == other.now_ms() + 1
