"""The watch over the event loop: what held it, and for how long."""

import asyncio
import time

import pytest

from onelog.net import stall_watch
from onelog.net.stall_watch import StallWatch


def rest_on_the_loop(seconds: float) -> None:
    time.sleep(seconds)


async def a_beat(watch: StallWatch) -> None:
    due = watch._due
    async with asyncio.timeout(10):
        while watch._due == due:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


async def test_a_call_that_blocks_the_loop_is_counted_and_told_with_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with StallWatch() as watch:
        await a_beat(watch)
        rest_on_the_loop(0.3)
        await a_beat(watch)
    assert watch.stalls.count >= 1
    # The machine may have been busy, and what it took is not counted.
    assert 200 <= watch.stalls.longest_ms < 10_000
    assert watch.stalls.total_ms >= watch.stalls.longest_ms
    assert "the event loop was held for" in caplog.text
    assert "test_stall_watch.py:13 rest_on_the_loop" in caplog.text


async def test_a_loop_that_computes_is_told_to_have_computed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with StallWatch() as watch:
        await a_beat(watch)
        until = time.thread_time() + 0.3
        while time.thread_time() < until:
            pass
        await a_beat(watch)
    held, _, computing = caplog.messages[0].partition(" ms (")
    assert int(held.rpartition(" ")[2]) >= 200
    assert int(computing.partition(" ")[0]) >= 200


async def test_what_the_thread_waits_for_a_processor_does_not_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    delay_ns = iter(range(0, 10**12, 10**9))
    monkeypatch.setattr(StallWatch, "_cpu_and_delay", lambda self: (0, next(delay_ns)))
    with StallWatch() as watch:
        await a_beat(watch)
        rest_on_the_loop(0.3)
        await a_beat(watch)
    assert watch.stalls.count == 0
    assert caplog.text == ""


async def test_reports_come_one_at_a_time_and_count_what_came_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with StallWatch() as watch:
        for _ in range(4):
            rest_on_the_loop(0.2)
            await a_beat(watch)
            await asyncio.sleep(2 * stall_watch._LOOK_SECONDS)
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
        rest_on_the_loop(0.5)
        assert "the event loop is held, since" in caplog.text
        assert "rest_on_the_loop" in caplog.text


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
