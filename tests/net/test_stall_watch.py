"""The watch over the event loop: what held it, and for how long."""

import asyncio
import contextlib
import gc
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import pytest

from onelog.net import stall_watch
from onelog.net.stall_watch import StallWatch
from tests.waiting import eventually, wait_until


def rest_on_the_loop(seconds: float, has_been_seen: Callable[[], object] = lambda: True) -> None:
    """Hold the loop, and longer if the other thread has not looked yet: it may have to wait."""
    time.sleep(seconds)
    wait_until(has_been_seen)


async def a_beat(watch: StallWatch) -> None:
    due = watch._due
    async with asyncio.timeout(30):
        while watch._due == due:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


async def test_a_call_that_blocks_the_loop_is_counted_and_told_with_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with StallWatch() as watch:
        await a_beat(watch)
        rest_on_the_loop(0.3, lambda: watch._sample[0] == watch._due)
        await a_beat(watch)
    assert watch.stalls.count >= 1
    # The machine may have been busy, and what it took is not counted.
    assert 200 <= watch.stalls.longest_ms < 30_000
    assert watch.stalls.total_ms >= watch.stalls.longest_ms
    assert "the event loop was held for" in caplog.text
    assert re.search(r"test_stall_watch.py:\d+ rest_on_the_loop", caplog.text)


async def test_a_loop_that_computes_is_told_to_have_computed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stall_watch, "QUIET_SECONDS", 0.0)
    with StallWatch() as watch:
        await a_beat(watch)
        deadline = time.thread_time() + 0.3
        while time.thread_time() < deadline:
            pass
        await a_beat(watch)
    # The machine may have held the loop too, and for longer.
    told = re.findall(r"held for (\d+) ms \((\d+) ms of them computing", caplog.text)
    assert any(int(held) >= int(computing) >= 200 for held, computing in told)


async def test_what_the_thread_waits_for_a_processor_does_not_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    delay_ns = iter(range(0, 10**15, 10**11))
    monkeypatch.setattr(StallWatch, "_cpu_and_delay", lambda self: (0, next(delay_ns)))
    with StallWatch() as watch:
        await a_beat(watch)
        rest_on_the_loop(0.3)
        await a_beat(watch)
    assert watch.stalls.count == 0
    assert caplog.text == ""


async def test_reports_come_one_at_a_time_and_count_what_came_between(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # What the machine adds of its own is shorter, and not told.
    monkeypatch.setattr(stall_watch, "REPORT_MS", 1_000_000)
    monkeypatch.setattr(stall_watch, "QUIET_SECONDS", 600.0)
    with StallWatch() as watch:
        for number in range(4):
            watch._note(1_000_000 + number, 0)
            await eventually(lambda: caplog.messages)
    assert watch.stalls.count >= 4
    first, second = caplog.messages
    assert "others" not in first
    assert "2 others for less" in second


async def test_a_loop_that_does_not_come_back_is_told_of_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stall_watch, "STUCK_SECONDS", 0.1)
    with StallWatch() as watch:
        await a_beat(watch)
        rest_on_the_loop(0.2, lambda: "the event loop is held, since" in caplog.text)
        assert "rest_on_the_loop" in caplog.text


async def test_a_stack_is_of_one_moment() -> None:
    stop, running = threading.Event(), threading.Event()

    async def leaf() -> None:
        running.set()

    async def middle() -> None:
        await leaf()

    def compute() -> None:
        while not stop.is_set():
            with contextlib.suppress(StopIteration):
                middle().send(None)

    thread = threading.Thread(target=compute)
    thread.start()
    assert running.wait(30)
    watch, interval = StallWatch(), sys.getswitchinterval()
    watch._thread_id = thread.ident or 0
    sys.setswitchinterval(1e-6)
    try:
        stacks = [watch._stack() for _ in range(500)]
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    assert {stack[-1].rpartition(" ")[2] for stack in stacks} == {"_bootstrap"}


async def test_where_the_system_does_not_tell_of_waiting_the_watch_works_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: str, flags: int) -> int:
        raise FileNotFoundError(path)

    monkeypatch.setattr("onelog.net.stall_watch.os.open", refuse)
    with StallWatch() as watch:
        await a_beat(watch)
        rest_on_the_loop(0.2)
        await a_beat(watch)
    assert watch.stalls.longest_ms >= 100


def test_the_collector_does_not_run_while_a_stack_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it frees may be Python, and then the thread would run on meanwhile."""
    seen: list[bool] = []

    def looked(*steps: Any) -> Iterator[Any]:
        seen.append(gc.isenabled())
        return accumulate(*steps)

    monkeypatch.setattr(stall_watch, "accumulate", looked)
    assert stall_watch._frames(threading.get_ident())
    assert seen == [False]
    assert gc.isenabled()
