"""Between fetching and listeners: which worker gets which messages, and what became of them.

Workers (threads or tasks) get messages in portions, and consume the messages of a portion one after
the other. A portion is one message while the listener is slow, so that messages run side by side.
It grows while the listener is quick, because then handing over is what costs. A worker that is held
up loses the rest of its portion to others.

A worker may be in a thread of its own. Nothing here needs a lock: lists are only appended to and
popped from, which the interpreter does in one step. The worker pops `waiting` at its end; who takes
messages back from a worker pops it at its beginning.

Invariants: the source of each message learns once what became of it (see `fetching`). A message of
a portion is in one place: waiting, running, done, failed, or with whoever popped it from there. All
other state belongs to the loop; workers only give portions back, by `settle`, or from a thread by
`finished`. Never more than `count` listeners run at the same time.
"""

import asyncio
import functools
import inspect
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import cast

from onelog.client.connection.nodes import end_all
from onelog.client.consumer.consume_rates import ConsumeRates
from onelog.client.consumer.fetching import Source
from onelog.client.consumer.listening import Listening, NobodyListensError, RetryLater
from onelog.client.message import ReceivedMessage
from onelog.errors import MessageInProgressError
from onelog.jobs import Job
from onelog.names import RETRY_PREFIX
from onelog.net.tasks import is_set

Given = ReceivedMessage | list[ReceivedMessage]
"""What a listener is called with."""

PORTION_MAX = 256
QUICK_SECONDS = 0.000_5
"""A portion that takes less is too short."""
SLOW_SECONDS = 0.002
"""A portion that takes more is too long."""
SWEEP_SECONDS = 0.05

log = logging.getLogger(__name__)

_names = itertools.count(1)


class Portion:
    """Messages of one source on their way through one listener."""

    __slots__ = (
        "collected done expired failed in_order listening running seconds seen seen_at size "
        "source topic waiting"
    ).split()

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


def consume_portion(portion: Portion) -> None:
    """Consume a portion in this thread."""
    began = time.perf_counter()
    source, call, take = portion.source, portion.listening.call, _taker(portion)
    done = portion.done.append
    while not source.dropped:
        try:
            portion.running = given = take()
        except IndexError:
            break
        try:
            call(given)
        except BaseException as error:
            # sys.exit() in a listener ends neither this thread nor the program.
            portion.failed.append((given, error))
            if portion.in_order:
                break
        else:
            done(given)
    portion.running = None
    portion.seconds = time.perf_counter() - began


async def consume_portion_async(portion: Portion) -> None:
    """Consume a portion in this task; the listener may be a function or a coroutine function."""
    began = time.perf_counter()
    source, call, take = portion.source, portion.listening.call, _taker(portion)
    done = portion.done.append
    waits = portion.listening.is_coroutine
    while not source.dropped:
        try:
            portion.running = given = take()
        except IndexError:
            break
        try:
            result = call(given)
            if waits or (result is not None and inspect.isawaitable(result)):
                await cast(Awaitable[object], result)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise  # The worker itself is, and not something that the listener waited for.
            portion.failed.append((given, error))
            if portion.in_order:
                break
        else:
            done(given)
    portion.running = None
    portion.seconds = time.perf_counter() - began


def _taker(portion: Portion) -> Callable[[], Given]:
    """What gives the listener its next message or batch; it raises IndexError at the end."""
    if portion.listening.batch_size == 1:
        return portion.waiting.pop
    return functools.partial(_next_batch, portion.waiting, portion.listening.batch_size)


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
        self._workers: ThreadWorkers | TaskWorkers | None = None
        self._open: set[Portion] = set()
        self.portion_size = 1
        """How many messages a worker is given at a time, at present."""
        self._finished: deque[Portion] = deque()
        self._is_woken = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweeping = Job("looking after listeners")
        self._idle: asyncio.Event | None = None
        self._is_closing = False

    def begin(self, workers: "ThreadWorkers | TaskWorkers") -> None:
        self._workers = workers

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
        size = len(messages) if self._in_order else max(self.portion_size, listening.batch_size)
        for start in range(0, len(messages), size):
            some = messages[start : start + size]
            self._put(Portion(source, topic, listening, some, self._in_order))

    def _put(self, portion: Portion) -> None:
        assert self._workers is not None
        self._open.add(portion)
        self._workers.put(portion, len(self._open))
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    # Called by workers.

    def finished(self, portion: Portion) -> None:
        """A worker in a thread is through with a portion."""
        self._finished.append(portion)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self.take_finished)
            except RuntimeError:
                log.debug("a listener ended after its event loop was closed")

    def take_finished(self) -> None:
        """Settle the portions that workers in threads are through with. On the loop."""
        self._is_woken = False
        finished = self._finished
        while finished:
            self.settle(finished.popleft())

    def settle(self, portion: Portion) -> None:
        """A worker is through with a portion: report to its source. On the loop."""
        self._open.discard(portion)
        self._adapt(portion)
        done, portion.done = portion.done, []
        if done:
            self._settle_done(portion, done)
        if portion.failed:
            self._settle_failed(portion)
        if portion.waiting:
            portion.source.returned(portion.take_back())
        self._rates.took(portion.topic, portion.seconds, portion.size)
        if self._idle is not None and not self._open:
            self._idle.set()

    # Inside.

    def _adapt(self, portion: Portion) -> None:
        size = self.portion_size
        if portion.seconds > SLOW_SECONDS:
            self.portion_size = max(1, min(size, portion.size) // 4)
        elif portion.seconds < QUICK_SECONDS and portion.size >= size:
            self.portion_size = min(PORTION_MAX, size * 2)

    def _settle_done(self, portion: Portion, done: list[Given]) -> None:
        if portion.expired:
            done = [each for each in done if not _is_among(each, portion.expired)]
        messages = _flat(done, portion.listening.batch_size)
        if messages:
            self._rates.consumed(portion.topic, len(messages))
            portion.source.done(messages)

    def _settle_failed(self, portion: Portion) -> None:
        while portion.failed:
            given, error = portion.failed.pop(0)
            if not _is_among(given, portion.expired):
                messages = _flat([given], portion.listening.batch_size)
                self._rates.failed(portion.topic, len(messages))
                _log_failure(messages, error)
                portion.source.failed(messages, error)

    def _sweep(self) -> None:
        """Look after workers that are held up: in every sweep while there is something open."""
        self._sweeper = None
        assert self._workers is not None
        now = time.monotonic()
        for portion in tuple(self._workers.busy):
            with self._sweeping:
                self._look_after(portion, now)
        if self._open:
            self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _look_after(self, portion: Portion, now: float) -> None:
        if portion.in_order:
            return
        if done := _popped(portion.done):
            portion.collected = done[-1]
            self._settle_done(portion, done)
        self._settle_failed(portion)
        running = portion.running
        if running is None or running is portion.collected or _is_among(running, portion.expired):
            return
        if running is not portion.seen:
            portion.seen, portion.seen_at = running, now
            return
        # It runs since the last sweep at least.
        self.portion_size = 1
        for message in portion.take_back():
            self._put(Portion(portion.source, portion.topic, portion.listening, [message]))
        if now - portion.seen_at > self._timeout_seconds:
            portion.expired.append(running)
            messages = _flat([running], portion.listening.batch_size)
            log.warning("a listener has had %s for over %.0f s", messages[0], self._timeout_seconds)
            portion.source.expired(messages)

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
        self._is_closing = True
        for portion in tuple(self._open):
            if left := portion.take_back():
                portion.source.returned(left)

    async def _wait_until_idle(self, seconds: float) -> bool:
        self.take_finished()
        if not self._open:
            return True
        self._idle = asyncio.Event()
        try:
            return await is_set(self._idle, seconds)
        finally:
            self._idle = None


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


class ThreadWorkers:
    """Threads that start when they are needed, up to a number, and stay.

    They are daemons: a listener that never ends must not keep the interpreter from ending.
    """

    def __init__(self, count: int, finished: Callable[[Portion], None], name: str) -> None:
        self._count = count
        self._finished = finished
        self._name = name
        self._queue: SimpleQueue[Portion | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.busy: set[Portion] = set()

    def put(self, portion: Portion, open_portions: int) -> None:
        """Have a portion consumed; so many are given out, this one counted."""
        self._queue.put(portion)
        if open_portions > len(self._threads) < self._count:
            name = f"onelog-{self._name}-{next(_names)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def is_mine(self, caller: object) -> bool:
        return caller in self._threads

    async def close(self) -> None:
        """End the threads that are idle; the others end with their listener."""
        for _ in self._threads:
            self._queue.put(None)

    def _work(self) -> None:
        while (portion := self._queue.get()) is not None:
            self.busy.add(portion)
            consume_portion(portion)
            self.busy.discard(portion)
            self._finished(portion)


class TaskWorkers:
    """Tasks that live as long as there is something to do."""

    def __init__(self, count: int, settle: Callable[[Portion], None]) -> None:
        self._count = count
        self._settle = settle
        self._waiting: deque[Portion] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self.busy: set[Portion] = set()

    def put(self, portion: Portion, open_portions: int) -> None:
        self._waiting.append(portion)
        if len(self._tasks) < self._count:
            self._tasks.add(asyncio.ensure_future(self._work()))

    def is_mine(self, caller: object) -> bool:
        return caller in self._tasks

    async def close(self) -> None:
        """Cancel the listeners that still run."""
        await end_all(tuple(self._tasks))
        self._tasks.clear()

    async def _work(self) -> None:
        try:
            await self._work_off()
        finally:
            # Now, and not when the loop gets to it: what is put meanwhile needs another task.
            self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _work_off(self) -> None:
        while self._waiting:
            portion = self._waiting.popleft()
            self.busy.add(portion)
            try:
                await consume_portion_async(portion)
            finally:
                self.busy.discard(portion)
            self._settle(portion)
            if self._waiting:
                # Listeners that wait for nothing must not keep the loop from its other work.
                await asyncio.sleep(0)
