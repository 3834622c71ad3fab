"""Waiting for what nobody reports: `eventually` in a coroutine, `wait_until` in a thread."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

SECONDS = 60.0
"""The longest that anything is waited for, on a machine that is busy."""

_Found = TypeVar("_Found")


async def eventually(
    condition: Callable[[], Any], what: str = "what is waited for", seconds: float = SECONDS
) -> Any:
    """What the condition gives, awaited or not, as soon as that is true; fail if it never is."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.01)


def wait_until(
    condition: Callable[[], _Found],
    what: str = "what is waited for",
    seconds: float = SECONDS,
    error: type[Exception] = AssertionError,
) -> _Found:
    """The same in a thread, of a condition that is no coroutine."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise error(f"never: {what} (waited {seconds:.0f} s)")
        time.sleep(0.01)
    return found
