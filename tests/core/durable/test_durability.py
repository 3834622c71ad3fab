from collections.abc import Callable

import pytest

from onelog.clock import ManualClock
from onelog.core.durable.durability import Acks, Durability
from onelog.errors import (
    FlushTimeoutError,
    NotMasterError,
    OnelogError,
    ReplicaTimeoutError,
    StoreError,
    StoreFailedError,
)
from tests.core.replicas import Replicas
from tests.core.world import ManualTimer, plain_runtime


class SlowDisk:
    """Stands in for the store's flush thread, which tests cannot make slow or broken."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Callable[[StoreError | None], None]]] = []

    def when_flushed(self, log_offset: int, callback: Callable[[StoreError | None], None]) -> None:
        self.waiting.append((log_offset, callback))


class Desk:
    def __init__(self, *, sync_flush: bool, replicas: Replicas | None = None) -> None:
        self.clock = ManualClock()
        self.timer = ManualTimer(self.clock)
        self.disk = SlowDisk()
        self.posted: list[Callable[[], None]] = []
        self.heard: list[tuple[str, OnelogError | None]] = []
        self.durability = Durability(
            self.disk,  # type: ignore[arg-type]
            plain_runtime(self.clock, self.timer, self.posted.append),
            immediate=not sync_flush,
            replicas=replicas,
            replicates=replicas is not None,
        )

    def ask(self, name: str, log_offset: int = 10) -> None:
        self.durability.when_safe(lambda error: self.heard.append((name, error)), log_offset)


def test_with_asynchronous_flush_everything_may_be_acknowledged_at_once() -> None:
    desk = Desk(sync_flush=False)
    desk.ask("a")
    assert desk.heard == [("a", None)]
    assert desk.disk.waiting == []
    assert len(desk.timer) == 0


def test_with_synchronous_flush_the_answer_comes_over_from_the_flush_thread() -> None:
    desk = Desk(sync_flush=True)
    desk.ask("a", 77)
    ((offset, flushed),) = desk.disk.waiting
    assert offset == 77
    flushed(None)
    assert desk.heard == []
    desk.posted.pop()()
    assert desk.heard == [("a", None)]


def test_a_failed_flush_is_told() -> None:
    desk = Desk(sync_flush=True)
    desk.ask("a")
    desk.disk.waiting[0][1](StoreFailedError("disk on fire"))
    desk.posted.pop()()
    assert isinstance(desk.heard[0][1], StoreFailedError)


def test_a_disk_that_does_not_answer_in_time_is_not_waited_for() -> None:
    desk = Desk(sync_flush=True)
    desk.ask("a")
    desk.timer.advance(2_000)
    desk.ask("b")
    desk.timer.advance(2_999)
    assert desk.heard == []
    desk.timer.advance(1)
    assert [(name, type(error)) for name, error in desk.heard] == [("a", FlushTimeoutError)]
    desk.timer.advance(2_000)
    assert [name for name, _ in desk.heard] == ["a", "b"]


def test_what_the_disk_says_after_the_time_out_is_ignored() -> None:
    desk = Desk(sync_flush=True)
    desk.ask("a")
    desk.timer.advance(5_000)
    desk.disk.waiting[0][1](None)
    desk.posted.pop()()
    assert len(desk.heard) == 1


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_tickets_that_were_answered_leave_no_timers_behind(answered: int) -> None:
    desk = Desk(sync_flush=True)
    for name in ("a", "b", "c")[: answered + 1]:
        desk.ask(name)
    for _, flushed in desk.disk.waiting:
        flushed(None)
    for call in desk.posted:
        call()
    desk.timer.advance(10_000)
    assert len(desk.timer) == 0
    assert all(error is None for _, error in desk.heard)


def test_both_the_disk_and_replicas_are_waited_for() -> None:
    replicas = Replicas()
    desk = Desk(sync_flush=True, replicas=replicas)
    for name, log_offset in (("a", 10), ("b", 20)):
        desk.ask(name, log_offset)
    replicas.confirmed(10)
    assert desk.heard == []
    for _, flushed in desk.disk.waiting:
        flushed(None)
    for call in desk.posted:
        call()
    assert desk.heard == [("a", None)]
    replicas.confirmed(20)
    assert desk.heard == [("a", None), ("b", None)]


def test_a_time_out_says_who_has_not_answered() -> None:
    replicas = Replicas()
    desk = Desk(sync_flush=True, replicas=replicas)
    desk.ask("no replica", 10)
    desk.disk.waiting[0][1](None)
    desk.posted.pop()()
    desk.ask("no disk", 20)
    desk.timer.advance(5_000)
    assert [(name, type(error)) for name, error in desk.heard] == [
        ("no replica", ReplicaTimeoutError),
        ("no disk", FlushTimeoutError),
    ]


def test_after_a_refusal_nothing_is_confirmed_any_more() -> None:
    replicas = Replicas()
    desk = Desk(sync_flush=False, replicas=replicas)
    desk.ask("a")
    desk.durability.refuse(NotMasterError("deposed"))
    replicas.confirmed(10)
    desk.ask("b")
    desk.durability.when_safe(lambda error: desk.heard.append(("c", error)), 10, Acks.MASTER)
    assert [(name, type(error)) for name, error in desk.heard] == [
        (name, NotMasterError) for name in "abc"
    ]
