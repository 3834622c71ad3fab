"""Workers run as many listeners at a time as they may, and give every portion back."""

import asyncio
import threading

from onelog.client.consumer.push.dispatch import Portion, TaskWorkers, ThreadWorkers
from onelog.client.message import ReceivedMessage
from tests.client.consuming import Told, heard_by, several
from tests.waiting import eventually


def portions(count: int, call: object, waits: bool = False) -> list[Portion]:
    listening = heard_by(call, 1, waits)
    return [Portion(Told(), "orders", listening, [message]) for message in several(count)]


async def test_threads_run_as_many_listeners_as_they_may_and_no_more() -> None:
    finished: list[Portion] = []
    go_on, lock = threading.Semaphore(0), threading.Lock()
    running = most = 0

    def listener(message: ReceivedMessage) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        assert go_on.acquire(timeout=30)
        with lock:
            running -= 1

    workers = ThreadWorkers(3, finished.append, "test")
    for number, portion in enumerate(portions(9, listener), 1):
        workers.put(portion, number)
    await eventually(lambda: running == 3, "three listeners run")
    assert len(workers.busy) == 3
    for _ in range(9):
        go_on.release()
    await eventually(lambda: len(finished) == 9, "all are through")
    assert most == 3
    await workers.close()
    await eventually(
        lambda: not any(thread.name.startswith("onelog-test") for thread in threading.enumerate()),
        "the threads end",
    )


async def test_threads_are_started_when_they_are_needed() -> None:
    finished: list[Portion] = []
    workers = ThreadWorkers(20, finished.append, "few")
    for number, portion in enumerate(portions(50, lambda message: None)):
        workers.put(portion, 1)
        await eventually(lambda number=number: len(finished) > number, "it is through")  # type: ignore[misc]
    mine = [each for each in threading.enumerate() if each.name.startswith("onelog-few")]
    assert len(mine) == 1
    assert workers.is_mine(mine[0])
    assert not workers.is_mine(threading.current_thread())
    await workers.close()


async def test_a_portion_that_comes_just_when_the_last_task_ends_is_consumed() -> None:
    loop = asyncio.get_running_loop()
    left = portions(20, lambda message: None)
    finished: list[Portion] = []

    def settle(portion: Portion) -> None:
        finished.append(portion)
        if left:
            # After the task's last step, and before anybody is told that it is done.
            loop.call_soon(workers.put, left.pop(), 1)

    workers = TaskWorkers(1, settle)
    workers.put(left.pop(), 1)
    await eventually(lambda: len(finished) == 20, "all are through")
    await workers.close()


async def test_tasks_run_as_many_listeners_as_they_may_and_no_more() -> None:
    finished: list[Portion] = []
    go_on = asyncio.Semaphore(0)
    running = most = 0

    async def listener(message: ReceivedMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go_on.acquire()
        running -= 1

    workers = TaskWorkers(3, finished.append)
    for number, portion in enumerate(portions(9, listener, waits=True), 1):
        workers.put(portion, number)
    await eventually(lambda: running == 3, "three listeners run")
    for _ in range(9):
        go_on.release()
    await eventually(lambda: len(finished) == 9, "all are through")
    assert most == 3
    assert not workers.busy


async def test_listeners_that_wait_for_nothing_leave_room_for_others() -> None:
    finished: list[Portion] = []
    workers = TaskWorkers(1, finished.append)
    for portion in portions(50, lambda message: None):
        workers.put(portion, 1)
    while len(finished) < 50:
        before = len(finished)
        await asyncio.sleep(0)
        assert len(finished) - before <= 2


async def test_tasks_that_hang_are_cancelled_at_the_end() -> None:
    cancelled: list[int] = []

    async def listener(message: ReceivedMessage) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(message.offset)

    workers = TaskWorkers(2, lambda portion: None)
    for portion in portions(3, listener, waits=True):
        workers.put(portion, 1)
    await asyncio.sleep(0)
    assert not workers.is_mine(asyncio.current_task())
    await workers.close()
    assert sorted(cancelled) == [0, 1]
