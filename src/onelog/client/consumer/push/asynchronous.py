"""Consuming with asyncio: listeners are called with messages as they arrive.

    async with AsyncPushConsumer("billing", nameserver="127.0.0.1:9876") as consumer:

        @consumer.subscribe("orders", tags="paid || refunded")
        async def bill(message: ReceivedMessage) -> None:
            ...                                         # raise = retry later

        await consumer.run()

A listener that is a plain function is called on the event loop, and must not block it.
"""

import asyncio
from datetime import timedelta
from typing import Self, Unpack

from onelog.client.consumer.push.core import CLOSE_SECONDS, PushCore, PushFace
from onelog.client.consumer.push.dispatch import Dispatch, TaskWorkers, Workers
from onelog.client.message import Queue
from onelog.client.options import ConsumerOptions, check_names
from onelog.errors import WrongLoopError


class AsyncPushConsumer(PushFace):
    """A member of a consumer group, on one event loop.

    Entering its context starts nothing: `run` or `start` do, after the subscriptions were made.
    Leaving it closes the consumer.
    """

    def __init__(self, group: str, **options: Unpack[ConsumerOptions]) -> None:
        check_names(type(self).__name__, options, ConsumerOptions)
        self._core = PushCore(group, options, self._make_workers)
        self._workers: TaskWorkers | None = None
        self._stopped = asyncio.Event()

    def _make_workers(self, count: int, dispatch: Dispatch) -> Workers:
        self._workers = TaskWorkers(count, dispatch.settle)
        return self._workers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the group and begin to consume, in the background."""
        await self._core.start()

    async def run(self) -> None:
        """Consume until `stop` is called, or this is cancelled; then close."""
        await self.start()
        try:
            await self._stopped.wait()
        finally:
            await self.close()

    def stop(self) -> None:
        """Have `run` come to its end. May be called by a listener."""
        self._stopped.set()

    async def close(self, timeout: timedelta | float = CLOSE_SECONDS) -> None:
        """Finish what is in hand, for so long at the most; commit, and leave the group.

        Messages that are not finished come again, to this group's next member.
        """
        if self._workers is not None and self._workers.is_mine(asyncio.current_task()):
            raise WrongLoopError("a listener cannot close its own consumer: call stop() there")
        self._stopped.set()
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        await self._core.close(seconds)

    async def commit(self) -> None:
        """Tell the brokers now how far this member is, and not only within the next seconds."""
        await self._core.commit()

    async def lag(self) -> dict[Queue, int]:
        """How many messages of each assigned queue are not consumed yet."""
        return await self._core.lag()
