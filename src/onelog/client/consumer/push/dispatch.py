"""Between fetching and listeners: who gets which messages, and what became of them.

Messages are handed to workers (threads or tasks) in chunks. A chunk is one message long as long as
the listener takes its time, so that messages run side by side, and grows while it is quick, because
then handing over is what costs. A worker that is held up has the rest of its chunk taken away.

Invariant: see `fetching`: of each message its source is told once. All state is the loop's; workers
only give back chunks, through `settle`, or `finished` if they are in threads.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol, cast

from onelog.client.consumer.consume_rates import ConsumeRates
from onelog.client.consumer.listening import Listening, NobodyListensError, RetryLater
from onelog.client.consumer.push.fetching import Source
from onelog.client.consumer.push.portions import Chunk, Given
from onelog.client.message import ReceivedMessage
from onelog.errors import MessageInProgressError
from onelog.jobs import Job
from onelog.names import RETRY_PREFIX

CHUNK_MAX = 256
QUICK_SECONDS = 0.000_5
"""A chunk that takes less is too short."""
SLOW_SECONDS = 0.002
"""A chunk that takes more is too long."""
SWEEP_SECONDS = 0.05

log = logging.getLogger(__name__)


class Workers(Protocol):
    """Those who call listeners. They give each chunk back when they are through with it."""

    busy: set[Chunk]
    """The chunks that are being worked on."""

    def put(self, chunk: Chunk, open_chunks: int) -> None:
        """Have a chunk consumed; so many are given out, this one counted."""
        ...

    async def close(self) -> None:
        """End those that are idle, and as far as possible the others."""
        ...


class Dispatch:
    """The loop's side of consuming."""

    def __init__(
        self,
        listeners: Mapping[str, Listening],
        rates: ConsumeRates,
        *,
        in_order: bool,
        timeout_seconds: float,
    ) -> None:
        self._listeners = listeners
        self._rates = rates
        self._in_order = in_order
        self._timeout_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._workers: Workers | None = None
        self._open: set[Chunk] = set()
        self._chunk_size = 1
        self._finished: deque[Chunk] = deque()
        self._is_woken = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweeping = Job("looking after listeners")
        self._idle: asyncio.Event | None = None
        self._is_closing = False

    def begin(self, workers: Workers) -> None:
        """Use these workers."""
        self._workers = workers

    @property
    def chunk_size(self) -> int:
        """How many messages a worker is given at a time, at present."""
        return self._chunk_size

    def submit(self, source: Source, messages: list[ReceivedMessage]) -> None:
        """Have messages consumed that came from one queue."""
        if self._is_closing or source.dropped:
            source.returned(messages)
            return
        if messages and messages[0].raw.topic.startswith(RETRY_PREFIX):
            for topic, some in itertools.groupby(messages, lambda message: message.topic):
                self._submit(source, topic, list(some))
        elif messages:
            self._submit(source, messages[0].raw.topic, messages)

    def _submit(self, source: Source, topic: str, messages: list[ReceivedMessage]) -> None:
        listening = self._listeners.get(topic)
        if listening is None:
            error = NobodyListensError(f"topic {topic!r} is not subscribed to")
            _log_failure(messages, error)
            source.failed(messages, error)
            return
        # An ordered source submits as much at a time as is to be consumed in one go.
        size = len(messages) if self._in_order else max(self._chunk_size, listening.batch_size)
        for start in range(0, len(messages), size):
            some = messages[start : start + size]
            self._put(Chunk(source, topic, listening, some, self._in_order))

    def _put(self, chunk: Chunk) -> None:
        assert self._workers is not None
        self._open.add(chunk)
        self._workers.put(chunk, len(self._open))
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    # Called by workers.

    def finished(self, chunk: Chunk) -> None:
        """A worker in a thread is through with a chunk."""
        self._finished.append(chunk)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self.take_finished)
            except RuntimeError:
                log.debug("a listener ended after its event loop was closed")

    def take_finished(self) -> None:
        """Settle the chunks that workers in threads are through with. On the loop."""
        self._is_woken = False
        finished = self._finished
        while finished:
            self.settle(finished.popleft())

    def settle(self, chunk: Chunk) -> None:
        """A worker is through with a chunk: tell its source. On the loop."""
        self._open.discard(chunk)
        self._adapt(chunk)
        done, chunk.done = chunk.done, []
        if done:
            self._settle_done(chunk, done)
        if chunk.failed:
            self._settle_failed(chunk)
        if chunk.waiting:
            chunk.source.returned(chunk.take_back())
        self._rates.took(chunk.topic, chunk.seconds, chunk.size)
        if self._idle is not None and not self._open:
            self._idle.set()

    # Inside.

    def _adapt(self, chunk: Chunk) -> None:
        size = self._chunk_size
        if chunk.seconds > SLOW_SECONDS:
            self._chunk_size = max(1, min(size, chunk.size) // 4)
        elif chunk.seconds < QUICK_SECONDS and chunk.size >= size:
            self._chunk_size = min(CHUNK_MAX, size * 2)

    def _settle_done(self, chunk: Chunk, done: list[Given]) -> None:
        if chunk.expired:
            done = [each for each in done if not _is_among(each, chunk.expired)]
        messages = _flat(done, chunk.listening.batch_size)
        if messages:
            self._rates.consumed(chunk.topic, len(messages))
            chunk.source.done(messages)

    def _settle_failed(self, chunk: Chunk) -> None:
        while chunk.failed:
            given, error = chunk.failed.pop(0)
            if not _is_among(given, chunk.expired):
                messages = _flat([given], chunk.listening.batch_size)
                self._rates.failed(chunk.topic, len(messages))
                _log_failure(messages, error)
                chunk.source.failed(messages, error)

    def _sweep(self) -> None:
        """Look after workers that are held up: in every sweep while there is something open."""
        self._sweeper = None
        assert self._workers is not None
        now = time.monotonic()
        for chunk in tuple(self._workers.busy):
            with self._sweeping:
                self._look_after(chunk, now)
        if self._open:
            self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _look_after(self, chunk: Chunk, now: float) -> None:
        if chunk.in_order:
            return
        if done := _popped(chunk.done):
            chunk.collected = done[-1]
            self._settle_done(chunk, done)
        self._settle_failed(chunk)
        running = chunk.running
        if running is None or running is chunk.collected or _is_among(running, chunk.expired):
            return
        if running is not chunk.seen:
            chunk.seen, chunk.seen_at = running, now
            return
        # It runs since the last sweep at least.
        self._chunk_size = 1
        for message in chunk.take_back():
            self._put(Chunk(chunk.source, chunk.topic, chunk.listening, [message]))
        if now - chunk.seen_at > self._timeout_seconds:
            chunk.expired.append(running)
            messages = _flat([running], chunk.listening.batch_size)
            log.warning("a listener has had %s for over %.0f s", messages[0], self._timeout_seconds)
            chunk.source.expired(messages)

    # The end.

    async def close(self, limit_seconds: float) -> bool:
        """Finish what is in hand; whether everything was finished within the limit.

        Messages are begun with for half of the limit; those that run then have the other half.
        """
        finished = await self._wait_until_idle(limit_seconds / 2)
        self._stop_beginning()
        if not finished:
            finished = await self._wait_until_idle(limit_seconds / 2)
        if not finished:
            log.warning("%d listeners are left behind: they did not end in time", len(self._open))
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._workers is not None:
            await self._workers.close()
        return finished

    def _stop_beginning(self) -> None:
        """Begin with nothing more."""
        self._is_closing = True
        for chunk in tuple(self._open):
            if left := chunk.take_back():
                chunk.source.returned(left)

    async def _wait_until_idle(self, seconds: float) -> bool:
        self.take_finished()
        if not self._open:
            return True
        self._idle = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        finally:
            self._idle = None
        return True


def _popped(done: list[Given]) -> list[Given]:
    """What was in a list that a worker may be appending to; all of it is out afterwards."""
    return [done.pop(0) for _ in range(len(done))]


def _flat(given: list[Given], batch_size: int) -> list[ReceivedMessage]:
    if batch_size == 1:
        return cast(list[ReceivedMessage], given)
    return [message for batch in cast(list[list[ReceivedMessage]], given) for message in batch]


def _is_among(given: Given, others: list[Given]) -> bool:
    return any(given is other for other in others)


def _log_failure(messages: list[ReceivedMessage], error: BaseException) -> None:
    # What another delivery is at (`idempotent`) is no more of a failure than what is put off.
    if isinstance(error, RetryLater | MessageInProgressError):
        log.info("%s is wanted later: %s", messages[0], error or "no reason given")
    elif isinstance(error, NobodyListensError):
        log.warning("nobody consumes %s: %s", messages[0], error)
    else:
        log.warning("a listener failed with %s", messages[0], exc_info=error)
