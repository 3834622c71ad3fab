from hypothesis import given
from hypothesis import strategies as st

from onelog.clock import ManualClock
from onelog.core.durable.deadlines import Deadlines
from tests.core.world import ManualTimer

TICK_MS = 100


class Bench:
    """Deadlines on a clock that tests move, and what it handed over when."""

    def __init__(self, round_max: int = 32) -> None:
        self.clock = ManualClock(1_000_000)
        self.timer = ManualTimer(self.clock)
        self.handed: list[tuple[int, list[str]]] = []
        self.deadlines: Deadlines[str] = Deadlines(
            self.clock, self.timer.schedule, self._due, tick_ms=TICK_MS, round_max=round_max
        )

    def _due(self, things: list[str]) -> None:
        self.handed.append((self.clock.now_ms() - 1_000_000, things))

    def add(self, thing: str, in_ms: int) -> None:
        self.deadlines.add(thing, self.clock.now_ms() + in_ms)


def test_things_are_handed_over_at_their_time_and_together_if_they_share_a_tick() -> None:
    bench = Bench()
    for thing, in_ms in (("late", 250), ("soon", 110), ("too", 190)):
        bench.add(thing, in_ms)
    bench.timer.advance(1_000)
    assert bench.handed == [(200, ["soon", "too"]), (300, ["late"])]


def test_what_is_past_is_handed_over_as_soon_as_possible_but_not_at_once() -> None:
    bench = Bench()
    bench.add("old", -5_000)
    assert bench.handed == []
    bench.timer.advance(0)
    assert bench.handed == [(0, ["old"])]


def test_a_thing_that_was_taken_out_is_not_handed_over() -> None:
    bench = Bench()
    bench.add("stays", 100)
    bench.add("goes", 100)
    bench.deadlines.remove("goes", bench.clock.now_ms() + 100)
    bench.deadlines.remove("never there", bench.clock.now_ms() + 900)
    assert len(bench.deadlines) == 1
    bench.timer.advance(1_000)
    assert bench.handed == [(100, ["stays"])]


def test_many_things_of_one_moment_come_in_rounds_in_their_order() -> None:
    bench = Bench(round_max=3)
    for n in range(7):
        bench.add(str(n), 100)
    bench.deadlines.remove("4", bench.clock.now_ms() + 100)
    bench.timer.advance(100)
    assert bench.handed == [(100, ["0", "1", "2"]), (100, ["3", "5", "6"])]


def test_an_earlier_deadline_overtakes_without_leaving_timers_behind() -> None:
    bench = Bench()
    for in_ms in range(5_000, 0, -100):
        bench.add(str(in_ms), in_ms)
    for _ in range(50):
        bench.timer.advance(100)
        bench.add("another", 3_000)
    assert [at for at, _ in bench.handed] == list(range(100, 5_001, 100))
    assert len(bench.timer) <= 2


def test_a_closed_one_is_silent() -> None:
    bench = Bench()
    bench.add("x", 100)
    bench.deadlines.close()
    bench.timer.advance(1_000)
    assert bench.handed == []


@given(st.lists(st.tuples(st.integers(-500, 5_000), st.integers(0, 300)), max_size=40))
def test_nothing_is_early_and_nothing_is_more_than_a_tick_late(
    plan: list[tuple[int, int]],
) -> None:
    bench = Bench(round_max=4)
    due: dict[str, int] = {}
    for n, (in_ms, pause_ms) in enumerate(plan):
        now = bench.clock.now_ms() - 1_000_000
        due[str(n)] = max(now, now + in_ms)
        bench.add(str(n), in_ms)
        bench.timer.advance(pause_ms)
    bench.timer.advance(6_000)
    got = {thing: at for at, things in bench.handed for thing in things}
    assert got.keys() == due.keys()
    for thing, at in got.items():
        assert due[thing] <= at < due[thing] + TICK_MS
