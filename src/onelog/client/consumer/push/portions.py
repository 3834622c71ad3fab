"""Chunks: messages that one worker consumes one after the other.

Handing over costs as much as many quick listeners, so fetched messages go to the workers in
chunks; how long those are depends on how quick the listener is (see `dispatch`). A worker may be in
a thread of its own. So that nothing here needs a lock, lists are only appended to and popped from,
which the interpreter does as one step: the worker pops `waiting` at its end, and whoever takes
messages back from a worker that is held up pops it at its beginning.

Invariant: a message of a chunk is in exactly one place: waiting, running, done, or failed, or with
whoever popped it from there.
"""

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from onelog.client.consumer.listening import Listening
from onelog.client.consumer.push.fetching import Source
from onelog.client.message import ReceivedMessage

Given = ReceivedMessage | list[ReceivedMessage]
"""What a listener is called with."""


class Chunk:
    """Messages of one source on their way through one listener."""

    __slots__ = (
        "collected",
        "done",
        "expired",
        "failed",
        "in_order",
        "listening",
        "running",
        "seconds",
        "seen",
        "seen_at",
        "size",
        "source",
        "topic",
        "waiting",
    )

    def __init__(
        self,
        source: Source,
        topic: str,
        listening: Listening,
        messages: Sequence[ReceivedMessage],
        in_order: bool = False,
    ) -> None:
        self.source = source
        self.topic = topic
        self.listening = listening
        self.in_order = in_order
        """Whether nothing may be begun after a failure."""
        self.size = len(messages)
        self.waiting = list(messages)
        self.waiting.reverse()
        self.running: Given | None = None
        """What the listener has in hand."""
        self.done: list[Given] = []
        self.failed: list[tuple[Given, BaseException]] = []
        self.seconds = 0.0
        """How long all of it took."""
        # What the loop knows about a worker that is held up.
        self.seen: Given | None = None
        self.seen_at = 0.0
        self.expired: list[Given] = []
        self.collected: Given | None = None

    def take_back(self) -> list[ReceivedMessage]:
        """Take what was not begun with, in its order."""
        taken: list[ReceivedMessage] = []
        try:
            while True:
                taken.append(self.waiting.pop(0))
        except IndexError:
            taken.reverse()
            return taken


def run_chunk(chunk: Chunk) -> None:
    """Consume a chunk in this thread."""
    began = time.perf_counter()
    source, call, take, done = chunk.source, chunk.listening.call, _taker(chunk), chunk.done.append
    while not source.dropped:
        try:
            chunk.running = given = take()
        except IndexError:
            break
        try:
            call(given)
        except BaseException as error:
            # sys.exit() in a listener ends neither this thread nor the program.
            chunk.failed.append((given, error))
            if chunk.in_order:
                break
        else:
            done(given)
    chunk.running = None
    chunk.seconds = time.perf_counter() - began


async def run_chunk_async(chunk: Chunk) -> None:
    """Consume a chunk in this task; a listener may be a plain function or a coroutine function."""
    began = time.perf_counter()
    source, call, take, done = chunk.source, chunk.listening.call, _taker(chunk), chunk.done.append
    waits = chunk.listening.is_coroutine
    while not source.dropped:
        try:
            chunk.running = given = take()
        except IndexError:
            break
        try:
            result = call(given)
            if waits or (result is not None and inspect.isawaitable(result)):
                await cast(Awaitable[object], result)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise  # The worker itself is, and not something that the listener waited for.
            chunk.failed.append((given, error))
            if chunk.in_order:
                break
        else:
            done(given)
    chunk.running = None
    chunk.seconds = time.perf_counter() - began


def _taker(chunk: Chunk) -> Callable[[], Given]:
    """What gives the listener its next message or batch; it raises IndexError at the end."""
    if chunk.listening.batch_size == 1:
        return chunk.waiting.pop
    return functools.partial(_next_batch, chunk.waiting, chunk.listening.batch_size)


def _next_batch(waiting: list[ReceivedMessage], size: int) -> list[ReceivedMessage]:
    batch = [waiting.pop()]
    try:
        while len(batch) < size:
            batch.append(waiting.pop())
    except IndexError:
        pass
    return batch


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
