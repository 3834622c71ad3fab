"""Between sources and listeners: everything is told once, whatever the listeners do."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator

import pytest

from onelog.client.consumer.consume_rates import ConsumeRates
from onelog.client.consumer.listening import RetryLater
from onelog.client.consumer.push.dispatch import PORTION_MAX, Dispatch, TaskWorkers, ThreadWorkers
from onelog.client.message import ReceivedMessage
from onelog.errors import MessageInProgressError
from tests.client.consuming import Told, heard_by, received, several
from tests.waiting import eventually

WAYS = pytest.mark.parametrize("way", ["threads", "tasks"])


@contextlib.asynccontextmanager
async def dispatching(
    call: object,
    way: str = "threads",
    *,
    batch_size: int = 1,
    workers: int = 4,
    in_order: bool = False,
    timeout_seconds: float = 900.0,
    waits: bool = False,
) -> AsyncIterator[Dispatch]:
    listeners = {"orders": heard_by(call, batch_size, waits)}
    dispatch = Dispatch(
        listeners, ConsumeRates(), in_order=in_order, timeout_seconds=timeout_seconds
    )
    if way == "threads":
        dispatch.begin(ThreadWorkers(workers, dispatch.finished, "dispatch"))
    else:
        dispatch.begin(TaskWorkers(workers, dispatch.settle))
    try:
        yield dispatch
    finally:
        await dispatch.close(0.1)


@WAYS
async def test_every_message_is_told_once(way: str) -> None:
    def listener(message: ReceivedMessage) -> None:
        if message.offset % 7 == 0:
            raise ValueError("no sevens")

    source = Told()
    async with dispatching(listener, way) as dispatch:
        messages = several(500)
        for start in range(0, 500, 25):
            dispatch.submit(source, messages[start : start + 25])
            await asyncio.sleep(0)
        await eventually(lambda: len(source.all_told) == 500, "all are told")
    assert source.all_told == list(range(500))
    assert sorted(offset for some, _ in source.failures for offset in some) == list(
        range(0, 500, 7)
    )


@WAYS
async def test_portions_grow_while_the_listener_is_quick_and_shrink_when_not(
    way: str,
) -> None:
    is_slow = False

    def listener(message: ReceivedMessage) -> None:
        if is_slow:
            time.sleep(0.003)

    source, messages = Told(), several(400)
    async with dispatching(listener, way) as dispatch:
        assert dispatch.portion_size == 1
        for _ in range(500):
            source.consumed.clear()
            dispatch.submit(source, messages)
            await eventually(lambda: len(source.consumed) == 400, "all are consumed")
            if dispatch.portion_size >= 64:
                break
        assert 64 <= dispatch.portion_size <= PORTION_MAX
        is_slow = True
        dispatch.submit(source, messages[: dispatch.portion_size])
        await eventually(lambda: dispatch.portion_size <= 16, "portions are shorter")


async def test_a_listener_that_is_held_up_holds_up_no_other_message() -> None:
    hold = threading.Event()
    source = Told()

    def listener(message: ReceivedMessage) -> None:
        if message.offset == 1000:
            hold.wait(30)

    async with dispatching(listener) as dispatch:
        while dispatch.portion_size < 32:
            dispatch.submit(source, several(32))
            await asyncio.sleep(0.005)
        await eventually(lambda: not dispatch._open, "the warming up is over")
        before = len(source.consumed)
        portion = [received(offset) for offset in range(990, 1020)]
        dispatch.submit(source, portion)
        await eventually(lambda: len(source.consumed) == before + 29, "the others are consumed")
        assert dispatch.portion_size < 32
        assert 1000 not in source.consumed
        hold.set()
        await eventually(lambda: 1000 in source.consumed, "it is consumed at last")


@WAYS
async def test_a_listener_that_has_a_message_for_too_long_loses_it(way: str) -> None:
    hold = asyncio.Event()
    holding = threading.Event()

    async def wait(message: ReceivedMessage) -> None:
        await hold.wait()

    def block(message: ReceivedMessage) -> None:
        holding.wait(30)

    source = Told()
    async with dispatching(
        block if way == "threads" else wait, way, timeout_seconds=0.1, waits=way == "tasks"
    ) as dispatch:
        dispatch.submit(source, several(1))
        await eventually(lambda: source.overdue == [0], "it is overdue")
        hold.set()
        holding.set()
        await eventually(lambda: not dispatch._open, "the listener has ended")
    assert source.all_told == [0]


async def test_what_was_wanted_later_is_a_failure_that_says_when() -> None:
    def listener(message: ReceivedMessage) -> None:
        raise RetryLater("closed on Sundays", delay_level=5)

    source = Told()
    async with dispatching(listener) as dispatch:
        dispatch.submit(source, several(1))
        await eventually(lambda: bool(source.failures), "it failed")
    ((some, error),) = source.failures
    assert some == [0]
    assert isinstance(error, RetryLater)
    assert error.delay_level == 5


@pytest.mark.parametrize("error", [RetryLater("later"), MessageInProgressError("another has it")])
async def test_what_is_put_off_is_no_warning(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def listener(message: ReceivedMessage) -> None:
        raise error

    source = Told()
    async with dispatching(listener) as dispatch:
        dispatch.submit(source, several(1))
        await eventually(lambda: bool(source.failures), "it failed")
    assert [each for each in caplog.records if each.levelname == "WARNING"] == []


async def test_batches_go_to_one_listener_each() -> None:
    heard: list[int] = []
    source = Told()
    async with dispatching(lambda batch: heard.append(len(batch)), batch_size=8) as dispatch:
        dispatch.submit(source, several(20))
        await eventually(lambda: len(source.consumed) == 20, "all are consumed")
    assert sorted(heard) == [4, 8, 8]


async def test_messages_that_are_retried_go_to_the_listener_of_their_topic() -> None:
    heard: list[tuple[str, int]] = []
    source = Told()
    async with dispatching(lambda message: heard.append((message.topic, message.offset))) as it:
        it.submit(
            source,
            [
                received(0, "%RETRY%g", RETRY_TOPIC="orders"),
                received(1, "%RETRY%g", RETRY_TOPIC="gone"),
                received(2, "%RETRY%g", RETRY_TOPIC="orders"),
            ],
        )
        await eventually(lambda: len(source.all_told) == 3, "all are told")
    assert sorted(heard) == [("orders", 0), ("orders", 2)]
    ((some, error),) = source.failures
    assert some == [1]
    assert "gone" in str(error)


async def test_in_order_what_follows_a_failure_is_given_back() -> None:
    heard: list[int] = []

    def listener(message: ReceivedMessage) -> None:
        heard.append(message.offset)
        if message.offset == 2:
            raise ValueError

    source = Told()
    async with dispatching(listener, in_order=True) as dispatch:
        dispatch.submit(source, several(5))
        await eventually(lambda: len(source.all_told) == 5, "all are told")
    assert heard == [0, 1, 2]
    assert (source.consumed, source.given_back) == ([0, 1], [3, 4])


async def test_messages_of_a_source_that_is_dropped_come_back() -> None:
    source = Told()
    source.dropped = True
    async with dispatching(lambda message: None) as dispatch:
        dispatch.submit(source, several(3))
    assert source.given_back == [0, 1, 2]


@WAYS
async def test_at_the_end_what_is_in_hand_is_finished(way: str) -> None:
    source = Told()
    async with dispatching(lambda message: time.sleep(0.001), way) as dispatch:
        dispatch.submit(source, several(50))
        assert await dispatch.close(30)
    assert sorted(source.consumed) == list(range(50))


async def test_at_the_end_of_patience_the_rest_comes_back_and_what_runs_may_finish() -> None:
    hold = threading.Event()
    heard: list[int] = []

    def listener(message: ReceivedMessage) -> None:
        heard.append(message.offset)
        hold.wait(30)

    source = Told()
    async with dispatching(listener, workers=2) as dispatch:
        dispatch.submit(source, several(10))
        await eventually(lambda: len(heard) == 2, "two listeners run")
        closing = asyncio.ensure_future(dispatch.close(20))
        dispatch_later = asyncio.get_running_loop().call_later(0, dispatch._stop_beginning)
        await eventually(lambda: len(source.given_back) == 8, "the rest is back")
        dispatch_later.cancel()
        hold.set()
        assert await closing
        dispatch.submit(source, [received(77)])
    assert sorted(source.consumed) == sorted(heard)
    assert source.all_told == [*range(10), 77]


async def test_a_listener_that_never_ends_is_left_behind() -> None:
    hold = threading.Event()
    source = Told()
    async with dispatching(lambda message: hold.wait(60)) as dispatch:
        dispatch.submit(source, several(1))
        await eventually(lambda: bool(dispatch._workers and dispatch._workers.busy), "it runs")
        assert not await dispatch.close(0.05)
    assert source.all_told == []
    hold.set()
