"""Those who call listeners: threads for the synchronous consumers, tasks for the asyncio ones.

Invariant: never more than `count` listeners run at the same time, and every chunk that was put is
given back when it is through, unless its listener never ends.
"""

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, cast

from onelog.client.consumer.push.portions import Chunk, run_chunk, run_chunk_async

_names = itertools.count(1)


class ThreadWorkers:
    """Threads that start when they are needed, up to a number, and stay.

    They are daemons: a listener that never ends must not keep the interpreter from ending.
    """

    def __init__(self, count: int, finished: Callable[[Chunk], None], name: str) -> None:
        self._count = count
        self._finished = finished
        self._name = name
        self._queue: SimpleQueue[Chunk | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.busy: set[Chunk] = set()

    def put(self, chunk: Chunk, open_chunks: int) -> None:
        """Have a chunk consumed; so many are given out, this one counted."""
        self._queue.put(chunk)
        if open_chunks > len(self._threads) < self._count:
            name = f"onelog-{self._name}-{next(_names)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def is_mine(self, thread: threading.Thread) -> bool:
        """Whether a thread is one of these."""
        return thread in self._threads

    async def close(self) -> None:
        """End the threads that are idle; the others end with their listener."""
        for _ in self._threads:
            self._queue.put(None)

    def _work(self) -> None:
        while (chunk := self._queue.get()) is not None:
            self.busy.add(chunk)
            run_chunk(chunk)
            self.busy.discard(chunk)
            self._finished(chunk)


class TaskWorkers:
    """Tasks that live as long as there is something to do."""

    def __init__(self, count: int, settle: Callable[[Chunk], None]) -> None:
        self._count = count
        self._settle = settle
        self._waiting: deque[Chunk] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self.busy: set[Chunk] = set()

    def put(self, chunk: Chunk, open_chunks: int) -> None:
        """Have a chunk consumed; so many are given out, this one counted."""
        self._waiting.append(chunk)
        if len(self._tasks) < self._count:
            self._tasks.add(asyncio.ensure_future(self._work()))

    def is_mine(self, task: "asyncio.Task[Any] | None") -> bool:
        """Whether a task is one of these."""
        return task in self._tasks

    async def close(self) -> None:
        """Cancel the listeners that still run."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def _work(self) -> None:
        try:
            await self._work_off()
        finally:
            # Now, and not when the loop gets to it: what is put meanwhile needs another task.
            self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _work_off(self) -> None:
        while self._waiting:
            chunk = self._waiting.popleft()
            self.busy.add(chunk)
            try:
                await run_chunk_async(chunk)
            finally:
                self.busy.discard(chunk)
            self._settle(chunk)
            if self._waiting:
                # Listeners that wait for nothing must not keep the loop from its other work.
                await asyncio.sleep(0)
