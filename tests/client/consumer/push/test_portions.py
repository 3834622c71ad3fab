"""A portion's messages go through the listener once each, whoever takes some of them away."""

import asyncio
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.client.consumer.push.dispatch import Portion, consume_portion, consume_portion_async
from onelog.client.message import ReceivedMessage
from tests.client.consuming import Told, heard_by, offsets, several


def portion_of(
    count: int, call: object, batch_size: int = 1, in_order: bool = False, waits: bool = False
) -> Portion:
    listening = heard_by(call, batch_size, waits)
    return Portion(Told(), "orders", listening, several(count), in_order)


async def run(portion: Portion, way: str) -> None:
    if way == "thread":
        await asyncio.to_thread(consume_portion, portion)
    else:
        await consume_portion_async(portion)


def given_offsets(given: list[ReceivedMessage] | ReceivedMessage) -> list[int]:
    return offsets(given if isinstance(given, list) else [given])


WAYS = pytest.mark.parametrize("way", ["thread", "task"])


@WAYS
async def test_messages_are_consumed_in_their_order(way: str) -> None:
    heard: list[int] = []
    portion = portion_of(5, lambda message: heard.append(message.offset))
    await run(portion, way)
    assert heard == [0, 1, 2, 3, 4]
    assert [given_offsets(each) for each in portion.done] == [[0], [1], [2], [3], [4]]
    assert (portion.running, portion.waiting, portion.failed) == (None, [], [])
    assert portion.seconds > 0


@WAYS
async def test_a_failure_keeps_nobody_else_from_being_consumed(way: str) -> None:
    def listener(message: ReceivedMessage) -> None:
        if message.offset == 1:
            raise ValueError("no")

    portion = portion_of(3, listener)
    await run(portion, way)
    assert [given_offsets(each) for each in portion.done] == [[0], [2]]
    assert [(given_offsets(each), str(error)) for each, error in portion.failed] == [([1], "no")]


@WAYS
async def test_in_order_nothing_is_begun_after_a_failure(way: str) -> None:
    def listener(message: ReceivedMessage) -> None:
        if message.offset == 1:
            raise ValueError("no")

    portion = portion_of(4, listener, in_order=True)
    await run(portion, way)
    assert [given_offsets(each) for each in portion.done] == [[0]]
    assert offsets(portion.take_back()) == [2, 3]


@WAYS
async def test_batches_are_as_long_as_wanted_and_fail_as_a_whole(way: str) -> None:
    heard: list[list[int]] = []

    def listener(batch: list[ReceivedMessage]) -> None:
        heard.append(offsets(batch))
        if batch[0].offset == 3:
            raise ValueError("no")

    portion = portion_of(7, listener, batch_size=3)
    await run(portion, way)
    assert heard == [[0, 1, 2], [3, 4, 5], [6]]
    assert [given_offsets(each) for each, _ in portion.failed] == [[3, 4, 5]]


@WAYS
async def test_a_source_that_is_dropped_has_nothing_more_begun(way: str) -> None:
    def listener(message: ReceivedMessage) -> None:
        portion.source.dropped = message.offset == 1

    portion = portion_of(4, listener)
    await run(portion, way)
    assert [given_offsets(each) for each in portion.done] == [[0], [1]]
    assert offsets(portion.take_back()) == [2, 3]


def test_a_listener_that_wants_to_end_the_program_only_fails() -> None:
    portion = portion_of(2, lambda message: sys.exit("enough"))
    consume_portion(portion)
    assert [type(error) for _, error in portion.failed] == [SystemExit, SystemExit]


async def test_coroutines_are_waited_for() -> None:
    heard: list[int] = []

    async def listener(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        heard.append(message.offset)

    await consume_portion_async(portion_of(3, listener, waits=True))
    assert heard == [0, 1, 2]


async def test_what_a_listener_cancelled_itself_is_a_failure() -> None:
    async def listener(message: ReceivedMessage) -> None:
        raise asyncio.CancelledError

    portion = portion_of(1, listener, waits=True)
    await consume_portion_async(portion)
    assert [type(error) for _, error in portion.failed] == [asyncio.CancelledError]


async def test_a_worker_that_is_cancelled_ends() -> None:
    began = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        began.set()
        await asyncio.Event().wait()

    portion = portion_of(2, listener, waits=True)
    task = asyncio.ensure_future(consume_portion_async(portion))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert offsets(portion.take_back()) == [1]


@given(st.integers(0, 40), st.integers(1, 5), st.lists(st.integers(0, 39), max_size=4))
def test_what_is_taken_away_meanwhile_is_not_consumed_and_nothing_is_lost(
    count: int, batch_size: int, failing: list[int]
) -> None:
    def listener(given: list[ReceivedMessage] | ReceivedMessage) -> None:
        if set(given_offsets(given)) & set(failing):
            raise ValueError

    portion = portion_of(count, listener, batch_size)
    worker = threading.Thread(target=consume_portion, args=(portion,))
    worker.start()
    taken = offsets(portion.take_back())
    worker.join()
    told = [given_offsets(each) for each in portion.done]
    told += [given_offsets(each) for each, _ in portion.failed]
    assert sorted(taken + [offset for some in told for offset in some]) == list(range(count))
    assert taken == sorted(taken)
