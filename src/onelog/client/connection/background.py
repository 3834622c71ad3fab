"""The one event loop on which the synchronous clients run their asyncio clients.

It is in a daemon thread that starts when it is first needed. Invariants: a process has at most one.
Whoever waits for it can be interrupted (Ctrl-C). After a fork the child makes its own loop; clients
of the parent's loop raise `ForkedError` there. The end of the interpreter stops it without waiting
for anybody.
"""

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from onelog.client.connection.nodes import end_all
from onelog.errors import ClientClosedError, ForkedError, WrongLoopError

STOP_SECONDS_MAX = 2.0
LOOK_SECONDS = 0.5
"""How often a waiting thread looks whether somebody pressed Ctrl-C."""

T = TypeVar("T")


class BackgroundLoop:
    """A background loop, its thread, and the process that they belong to."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name="onelog-client", daemon=True)
        self._thread.start()
        self._ident = self._thread.ident

    @property
    def is_usable(self) -> bool:
        """Whether it is this process's own, and alive."""
        return self is _current and self._thread.is_alive()

    def check_usable(self) -> None:
        """Raise an error that says why, if this thread cannot run something there and wait."""
        if self is not _current:
            raise ForkedError(
                f"this client was made before the process forked, and its connections stayed with "
                f"the parent: make a new one in the child (process {os.getpid()})"
            )
        if threading.get_ident() == self._ident:
            raise WrongLoopError(
                "a synchronous client was called on the event loop that runs it, where it would "
                "wait for itself: call it from another thread, or use the asyncio client"
            )
        if not self._thread.is_alive():
            raise ClientClosedError("the background loop has ended: the interpreter is exiting")

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def stop(self) -> None:
        """Cancel what runs, and end the thread; give up on it after a while."""
        if not self._thread.is_alive():
            return
        # The loop is not closed: what users left open on it goes with the process.
        self.loop.call_soon_threadsafe(self._end)
        self._thread.join(STOP_SECONDS_MAX)

    def _end(self) -> None:
        self._last = self.loop.create_task(_cancel_everything())
        self._last.add_done_callback(lambda _: self.loop.stop())


_current: BackgroundLoop | None = None
_left: list[BackgroundLoop] = []
"""Those of parent processes. They are kept, because the parent still uses what they hold."""
_making = threading.Lock()


def current() -> BackgroundLoop:
    """The background loop of this process with its thread; it is started if there is none."""
    global _current
    found = _current
    if found is None:
        with _making:
            if _current is None:
                _current = BackgroundLoop()
            found = _current
    return found


def loop() -> asyncio.AbstractEventLoop:
    return current().loop


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for what it returns or raises.

    What ends the waiting early, such as Ctrl-C, cancels the coroutine.
    """
    try:
        where = current()
        where.check_usable()
        future = asyncio.run_coroutine_threadsafe(coroutine, where.loop)
    except BaseException:
        coroutine.close()
        raise
    try:
        return _result(future)
    except BaseException:
        future.cancel()
        raise


def _result(future: Future[T]) -> T:
    """The result of a future.

    Ctrl-C does not end the waiting if it comes just as the waiting begins, or if the system tells
    another thread of it. Python notices it only when it looks again, so this looks now and then.
    """
    while True:
        try:
            return future.result(LOOK_SECONDS)
        except TimeoutError:
            if future.done():  # Its own, or it was done just now.
                return future.result()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # Not on Windows.
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _cancel_everything() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    with contextlib.suppress(asyncio.CancelledError):
        await end_all(others)


def _forget() -> None:
    """After a fork: neither the thread nor the lock's holder came along."""
    global _current, _making
    if _current is not None:
        _left.append(_current)
    _current = None
    _making = threading.Lock()


def _stop() -> None:
    if _current is not None:
        _current.stop()


os.register_at_fork(after_in_child=_forget)
atexit.register(_stop)
