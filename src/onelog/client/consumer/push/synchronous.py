"""Consuming in threads: listeners are plain functions, called with messages as they arrive.

    with PushConsumer("billing", nameserver="127.0.0.1:9876") as consumer:

        @consumer.subscribe("orders", tags="paid || refunded")
        def bill(message: ReceivedMessage) -> None:
            ...                                         # raise = retry later

        consumer.run()

Fetching, committing and everything else that waits happens on the SDK's background loop; the
`threads` do nothing but call listeners.

Invariant: whatever ends `run` (`stop`, Ctrl-C, SIGTERM), the consumer is closed when it returns; a
second Ctrl-C ends the waiting for listeners.
"""

import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Self, Unpack

from onelog.client.connection import background
from onelog.client.consumer.listening import AnyListener, is_coroutine
from onelog.client.consumer.push.core import CLOSE_SECONDS, PushCore, PushFace
from onelog.client.consumer.push.dispatch import Dispatch, ThreadWorkers, Workers
from onelog.client.message import Queue
from onelog.client.options import ConsumerOptions, check_names
from onelog.errors import ForkedError, WrongLoopError


class PushConsumer(PushFace):
    """A member of a consumer group, whose listeners run in threads.

    Entering its context starts nothing: `run` or `start` do, after the subscriptions were made.
    Leaving it closes the consumer.
    """

    def __init__(self, group: str, **options: Unpack[ConsumerOptions]) -> None:
        check_names(type(self).__name__, options, ConsumerOptions)
        self._core = PushCore(group, options, self._make_workers)
        self._workers: ThreadWorkers | None = None
        self._stopped = threading.Event()
        self._is_abandoned = False
        """Whether somebody was too impatient to wait for the end."""

    def _make_workers(self, count: int, dispatch: Dispatch) -> Workers:
        self._workers = ThreadWorkers(count, dispatch.finished, self._core.group)
        return self._workers

    def _add(self, topic: str, tags: str, sql: str | None, listener: AnyListener) -> None:
        if is_coroutine(listener):
            raise TypeError(
                "the listeners of a PushConsumer run in threads and are plain functions; for "
                "coroutine functions there is AsyncPushConsumer"
            )
        self._check_fork()
        if self._core.is_running:
            background.run(self._subscribe(topic, tags, sql, listener))
        else:
            self._core.subscribe(topic, tags, sql, listener)

    async def _subscribe(
        self, topic: str, tags: str, sql: str | None, listener: AnyListener
    ) -> None:
        self._core.subscribe(topic, tags, sql, listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def start(self) -> None:
        """Join the group and begin to consume, in the background."""
        self._check_fork()
        background.run(self._core.start())

    def run(self) -> None:
        """Consume until `stop` is called, or Ctrl-C or SIGTERM come; then close."""
        restore = self._take_sigterm()
        try:
            self.start()
            while not self._stopped.wait(background.LOOK_SECONDS):
                pass  # See there.
        except KeyboardInterrupt:
            pass
        finally:
            try:
                self.close()
            finally:
                restore()

    def stop(self) -> None:
        """Have `run` come to its end. May be called by a listener, and from any thread."""
        self._stopped.set()

    def close(self, timeout: timedelta | float = CLOSE_SECONDS) -> None:
        """Finish what is in hand, for so long at the most; commit, and leave the group.

        Messages that are not finished come again, to this group's next member.
        """
        if self._workers is not None and self._workers.is_mine(threading.current_thread()):
            raise WrongLoopError("a listener cannot close its own consumer: call stop() there")
        self._stopped.set()
        if self._core.instance.is_forked or self._is_abandoned:
            return
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        try:
            background.run(self._core.close(seconds))
        except KeyboardInterrupt:
            self._is_abandoned = True
            raise

    def _check_fork(self) -> None:
        if self._core.instance.is_forked:
            raise ForkedError("the consumer was made before this process forked: make a new one")

    def _take_sigterm(self) -> Callable[[], None]:
        """Stop on SIGTERM, unless the program has its own idea of it; the way back."""
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            return lambda: None

        def stop(number: int, frame: FrameType | None) -> None:
            self.stop()

        def restore() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

        signal.signal(signal.SIGTERM, stop)
        return restore

    def commit(self) -> None:
        """Tell the brokers now how far this member is, and not only within the next seconds."""
        self._check_fork()
        background.run(self._core.commit())

    def lag(self) -> dict[Queue, int]:
        """How many messages of each assigned queue are not consumed yet."""
        self._check_fork()
        return background.run(self._core.lag())
