"""What goes on beside everything else on an event loop: once, again and again, until something
happens.

Invariant: a task that runs is kept from being collected; one that has ended is forgotten.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from onelog.jobs import Job

T = TypeVar("T")


class Tasks(set["asyncio.Task[Any]"]):
    """The tasks of one owner that have not ended."""

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    def cancel(self) -> None:
        for task in list(self):
            task.cancel()


async def repeat(name: str, seconds: float, act: Callable[[], Awaitable[object] | None]) -> None:
    """Act again and again, as the job of that name, until this is cancelled."""
    job = Job(name)
    while True:
        await asyncio.sleep(seconds)
        with job:
            if (rest := act()) is not None:
                await rest


async def is_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, but not for longer; whether it came."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
