"""Push consumers: listeners are called with messages as they arrive.

    async with AsyncPushConsumer("billing", nameserver="127.0.0.1:9876") as consumer:

        @consumer.subscribe("orders", tags="paid || refunded")
        async def bill(message: ReceivedMessage) -> None:
            ...                                         # raise = retry later

        await consumer.run()

With asyncio, a listener that is a plain function is called on the event loop and must not block it.
`PushConsumer` is for threads: its listeners are plain functions, called in `threads` that do
nothing else. All other work is done on the background loop.

A consumer puts together the instance (connections, heartbeats), the fetching side (`pulling` or
`popping`) and the consuming side (`dispatch`).

Invariants: `close` leaves nothing behind, whenever it is called: messages in hand are finished or
left to others, positions are committed, brokers are notified, connections are closed. Whatever ends
`run` (`stop`, Ctrl-C, SIGTERM), the consumer is closed when it returns; a second Ctrl-C ends the
waiting for listeners.
"""

import asyncio
import logging
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from datetime import timedelta
from types import FrameType
from typing import Any, Self, TypeVar, Unpack, overload

from onelog.client.connection import background
from onelog.client.connection.instance import Instance
from onelog.client.connection.nodes import at_once
from onelog.client.consumer.consume_rates import LOOK_SECONDS, ConsumeRates
from onelog.client.consumer.fetching import Fetching, Membership
from onelog.client.consumer.listening import AnyListener, L, Listening, is_coroutine, listening
from onelog.client.consumer.push.dispatch import Dispatch, TaskWorkers, ThreadWorkers
from onelog.client.consumer.push.orderly import OrderedFetching
from onelog.client.consumer.push.pulling import PullFetching
from onelog.client.consumer.push.send_back import retry_topic
from onelog.client.consumer.requests import ConsumerRequests
from onelog.client.consumer.settings import check_group, consumer_settings
from onelog.client.consumer.topic_filters import TopicFilter, topic_filter
from onelog.client.hooks import close_hooks, start_hooks
from onelog.client.message import Queue
from onelog.client.options import ConsumerOptions, check_names
from onelog.client.synchronous import Waiter, waiting
from onelog.errors import (
    ClientClosedError,
    ConfigError,
    ForkedError,
    TopicNotFoundError,
    WrongLoopError,
)
from onelog.net.tasks import repeat

CLOSE_SECONDS = 10.0

T = TypeVar("T")

log = logging.getLogger(__name__)


class Subscribing(ABC):
    """Subscriptions, as they are made with threads and with asyncio."""

    @abstractmethod
    def _add(self, topic: str, tags: str, sql: str | None, listener: AnyListener) -> None:
        """Have a listener called with messages of a topic. A running consumer goes on from here."""

    @overload
    def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None
    ) -> Callable[[L], L]: ...

    @overload
    def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, listener: L
    ) -> L: ...

    def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, listener: L | None = None
    ) -> L | Callable[[L], L]:
        """Have a listener called with messages of a topic; without one this is a decorator.

        `tags` is as in `paid || refunded`; `sql` is a condition on properties. A topic has one
        listener; to subscribe again replaces it.
        """

        def add(listener: L) -> L:
            self._add(topic, tags, sql, listener)
            return listener

        return add if listener is None else add(listener)


class AsyncPushConsumer(Subscribing):
    """A member of a consumer group, on one event loop.

    Entering its context starts nothing: `run` or `start` do, after the subscriptions were made.
    Leaving it closes the consumer.
    """

    def __init__(self, group: str, **options: Unpack[ConsumerOptions]) -> None:
        check_names(type(self).__name__, options, ConsumerOptions)
        check_group(group)
        self._settings = consumer_settings(options)
        self.instance = Instance(options)
        self.group = self.instance.wrap(group)
        """The group, with its namespace if there is one."""
        self._options = options
        self._filters: dict[str, TopicFilter] = {}
        self._listeners: dict[str, Listening] = {}
        self._rates = ConsumeRates()
        self._dispatch: Dispatch | None = None
        self._workers: ThreadWorkers | TaskWorkers | None = None
        self._member: Membership | None = None
        self._fetching: Fetching | None = None
        self._has_threads = False
        """Whether listeners run in threads, and all else on the background loop."""
        self._stopped = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    def _add(self, topic: str, tags: str, sql: str | None, listener: AnyListener) -> None:
        name = self.instance.wrap(topic)
        made = topic_filter(name, tags, sql=sql)
        self._listeners[name] = listening(
            listener,
            self.group,
            self._settings.batch_size,
            self._settings.hooks,
            self._settings.consume_timeout_ms,
        )
        self._filters[name] = made
        if self._fetching is not None and self._member is not None:
            self.instance.spawn(self._subscribed(made, self._member, self._fetching))

    async def _subscribed(self, made: TopicFilter, member: Membership, fetching: Fetching) -> None:
        await self._prepare(member, made)
        await self.instance.heartbeat()
        fetching.rebalance()

    # Life.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    @property
    def _is_running(self) -> bool:
        return self._fetching is not None and self._closing is None

    async def start(self) -> None:
        """Join the group and begin to consume, in the background."""
        if self._closing is not None:
            raise ClientClosedError(f"the consumer of group {self.group} was closed")
        if self._fetching is not None:
            return
        if not self._listeners:
            raise ConfigError("nothing is subscribed to: call subscribe before the consumer runs")
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        settings, instance = self._settings, self.instance
        if not settings.broadcasting:
            retries = retry_topic(self.group)
            self._filters.setdefault(retries, topic_filter(retries))
        await instance.start()
        await start_hooks(settings.hooks, instance)
        dispatch = self._dispatch = Dispatch(
            self._listeners,
            self._rates,
            in_order=settings.orderly,
            timeout_seconds=settings.consume_timeout_ms / 1000,
        )
        if self._has_threads:
            self._workers = ThreadWorkers(settings.concurrency, dispatch.finished, self.group)
        else:
            self._workers = TaskWorkers(settings.concurrency, dispatch.settle)
        dispatch.begin(self._workers)
        member = self._member = Membership(
            self.group, instance, settings, self._filters, dispatch.submit, self._rates
        )
        fetching = self._fetching = self._make_fetching(member)
        # Tools see the options, but no secrets.
        shown = {name: str(each) for name, each in self._options.items() if name != "credentials"}
        requests = ConsumerRequests(member, fetching, "CONSUME_PASSIVELY", shown)
        requests.register()
        await at_once(lambda each: self._prepare(member, each), list(self._filters.values()))
        await instance.heartbeat()
        requests.watch_routes()
        self._rates.look()
        counting = f"counting what group {self.group} consumes"
        instance.spawn(repeat(counting, LOOK_SECONDS, self._rates.look))
        await fetching.start()

    def _make_fetching(self, member: Membership) -> Fetching:
        if self._settings.pop:
            # Few programs pop; the others need not wait for what that takes to be loaded.
            from onelog.client.consumer.push.popping import PopFetching

            return PopFetching(member)
        kind = OrderedFetching if self._settings.orderly else PullFetching
        return kind(member, self._options.get("client_id"))

    async def _prepare(self, member: Membership, wanted: TopicFilter) -> None:
        """Find a topic's brokers, and have one of them check the condition on it."""
        try:
            await member.check(wanted)
        except TopicNotFoundError as error:
            if wanted.topic in self._listeners:
                log.warning("%s; it is consumed once it exists", error)

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
        check_end(self._workers, asyncio.current_task())
        self._stopped.set()
        if not self.instance.can_close():
            return
        # A second call waits for the same end; a caller that stops waiting does not stop it.
        if self._closing is None:
            seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
            self._closing = asyncio.ensure_future(self._close(seconds))
        await asyncio.shield(self._closing)

    async def _close(self, limit_seconds: float) -> None:
        if self._fetching is not None:
            await self._fetching.stop()
        if self._dispatch is not None:
            await self._dispatch.close(limit_seconds)
        if self._fetching is not None:
            await self._fetching.close()
        await close_hooks(self._settings.hooks)
        await self.instance.close()

    # Asking.

    @property
    def client_id(self) -> str:
        """What brokers know this member by."""
        return self.instance.client_id

    @property
    def assigned(self) -> tuple[Queue, ...]:
        """The queues that this member consumes now."""
        if self._fetching is None:
            return ()
        return tuple(each for each in self._fetching.assigned if each.topic in self._listeners)

    async def commit(self) -> None:
        """Tell the brokers now how far this member is, and not only within the next seconds."""
        await self._running().commit()

    async def lag(self) -> dict[Queue, int]:
        """How many messages of each assigned queue are not consumed yet."""
        lag = await self._running().lag()
        return {queue: count for queue, count in lag.items() if queue.topic in self._listeners}

    def _running(self) -> Fetching:
        if self._fetching is None or self._closing is not None:
            raise ClientClosedError(f"the consumer of group {self.group} is not running")
        self.instance.check_open()
        return self._fetching


class PushConsumer(Waiter[AsyncPushConsumer], Subscribing):
    """A member of a consumer group, whose listeners run in threads.

    Entering its context starts nothing: `run` or `start` do, after the subscriptions were made.
    Leaving it closes the consumer.
    """

    def __init__(self, group: str, **options: Unpack[ConsumerOptions]) -> None:
        check_names(type(self).__name__, options, ConsumerOptions)
        super().__init__(AsyncPushConsumer(group, **options))
        self._core._has_threads = True
        self._stopped = threading.Event()
        self._is_abandoned = False
        """Whether a second Ctrl-C ended the waiting for the end."""

    def _add(self, topic: str, tags: str, sql: str | None, listener: AnyListener) -> None:
        if is_coroutine(listener):
            raise TypeError(
                "the listeners of a PushConsumer run in threads and are plain functions; for "
                "coroutine functions there is AsyncPushConsumer"
            )
        self._check_fork()
        if self._core._is_running:
            self._call(lambda: self._core.subscribe(topic, tags, sql=sql, listener=listener))
        else:
            self._core.subscribe(topic, tags, sql=sql, listener=listener)

    @property
    def group(self) -> str:
        """The group, with its namespace if there is one."""
        return self._core.group

    @property
    def client_id(self) -> str:
        """What brokers know this member by."""
        return self._core.client_id

    @property
    def assigned(self) -> tuple[Queue, ...]:
        """The queues that this member consumes now."""
        return self._core.assigned

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    start = waiting(AsyncPushConsumer.start)

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
        check_end(self._core._workers, threading.current_thread())
        self._stopped.set()
        if self._core.instance.is_forked or self._is_abandoned:
            return
        try:
            background.run(self._core.close(timeout))
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

    commit = waiting(AsyncPushConsumer.commit)
    lag = waiting(AsyncPushConsumer.lag)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_fork()
        except ForkedError:
            work.close()
            raise
        return background.run(work)


def check_end(workers: ThreadWorkers | TaskWorkers | None, caller: object) -> None:
    """`WrongLoopError` for a listener that closes its own consumer."""
    if workers is not None and workers.is_mine(caller):
        raise WrongLoopError("a listener cannot close its own consumer: call stop() there")
