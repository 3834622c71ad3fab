"""Turns: at the end of the tick; many queues wait for one tick more, and have theirs in rounds."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import cast

import pytest

from onelog.clock import SystemClock
from onelog.core.queues import delivery_loop
from onelog.core.queues.delivery_loop import DeliveryLoop
from onelog.core.queues.queue import WorkQueue
from onelog.core.stats import Stats
from tests.core.queues.yard import Yard


@dataclass(eq=False)
class Queue:
    """Delivers a message each turn, as long as it has any."""

    ready: int = 1
    delivered: int = 0
    is_pending: bool = False
    label: str = "queue"

    def run(self) -> bool:
        if self.ready < 0:
            raise ValueError("on purpose")
        self.ready -= 1
        self.delivered += 1
        return self.ready > 0


class Ticks(list[Callable[[], None]]):
    """What was asked for, done tick by tick."""

    def end(self) -> None:
        calls = self.copy()
        self.clear()
        for call in calls:
            call()


def test_a_few_have_their_turn_at_once_and_again_in_the_next_tick() -> None:
    ticks, stats = Ticks(), Stats(SystemClock(), "c")
    made = DeliveryLoop(ticks.append, stats, perf_counter)
    queues = [Queue(ready=2), Queue(ready=-1), Queue()]
    for queue in queues:
        made.pend(cast(WorkQueue, queue))
    assert (len(ticks), len(made.pending)) == (1, 3)
    ticks.end()
    # The one that fails costs the others nothing.
    assert [queue.delivered for queue in queues] == [1, 0, 1]
    assert [queue.is_pending for queue in queues] == [True, False, False]
    ticks.end()
    assert queues[0].delivered == 2
    assert (list(ticks), made.pending, stats.totals.get_count) == ([], {}, 3)


def test_many_wait_for_one_tick_more_and_have_their_turns_in_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_loop, "GATHERED_QUEUES", 2)
    monkeypatch.setattr(delivery_loop, "ROUND_QUEUES", 4)
    ticks = Ticks()
    made = DeliveryLoop(ticks.append, Stats(SystemClock(), "c"), perf_counter)
    queues = [Queue() for _ in range(5)]
    for queue in queues[:3]:
        made.pend(cast(WorkQueue, queue))
    ticks.end()
    assert sum(queue.delivered for queue in queues) == 0
    for queue in queues[3:]:
        made.pend(cast(WorkQueue, queue))
    ticks.end()
    assert [queue.delivered for queue in queues] == [1, 1, 1, 1, 0]
    ticks.end()
    assert [queue.delivered for queue in queues] == [1] * 5
    assert list(ticks) == []


@pytest.mark.parametrize("round_queues", [3, 4])
def test_a_round_ends_when_its_time_is_over_and_who_had_no_turn_is_the_next(
    round_queues: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_loop, "ROUND_QUEUES", round_queues)
    monkeypatch.setattr(delivery_loop, "ROUND_SECONDS", 1.5)
    ticks, seconds = Ticks(), count()
    made = DeliveryLoop(ticks.append, Stats(SystemClock(), "c"), lambda: next(seconds))
    queues = [Queue(ready=9) for _ in range(4)]
    for queue in queues:
        made.pend(cast(WorkQueue, queue))
    for expected in ([1, 1, 0, 0], [1, 1, 1, 1], [2, 2, 1, 1]):
        ticks.end()
        assert [queue.delivered for queue in queues] == expected


def test_a_queue_that_is_settled_out_of_turn_counts_what_it_hands_out(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    yard.queue("q")
    taker = yard.consume("q")
    totals = yard.works._catalog.counters.totals
    before = totals.get_count
    yard.put(b"a", b"b")
    yard.works.settle(yard.find("q"))
    assert taker.bodies == [b"a", b"b"]
    assert totals.get_count == before + 2
    yard.close()
