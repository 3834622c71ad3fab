"""Push consumers: listeners are called with messages as they arrive.

    async with AsyncPushConsumer("billing", nameserver="127.0.0.1:9876") as consumer:

        @consumer.subscribe("orders", tags="paid || refunded")
        async def bill(message: ReceivedMessage) -> None:
            ...                                         # raise = retry later

        await consumer.run()

With asyncio, a listener that is a plain function is called on the event loop and must not block it.
`PushConsumer` is for threads: its listeners are plain functions, called in `threads` that do
nothing else. All other work is done on the background loop.

Both are a `PushCore`, which puts together the instance (connections, heartbeats), the fetching side
(`pulling` or `popping`) and the consuming side (`dispatch`).

Invariants: `close` leaves nothing behind, whenever it is called: messages in hand are finished or
left to others, positions are committed, brokers are notified, connections are closed. Whatever ends
`run` (`stop`, Ctrl-C, SIGTERM), the consumer is closed when it returns; a second Ctrl-C ends the
waiting for listeners.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Self, Unpack, overload

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
from onelog.client.consumer.settings import ConsumerSettings, check_group, consumer_settings
from onelog.client.consumer.topic_filters import TopicFilter, topic_filter
from onelog.client.hooks import close_hooks, start_hooks
from onelog.client.message import Queue
from onelog.client.options import ConsumerOptions, check_names
from onelog.errors import (
    ClientClosedError,
    ConfigError,
    ForkedError,
    TopicNotFoundError,
    WrongLoopError,
)
from onelog.jobs import Job

CLOSE_SECONDS = 10.0

MakeWorkers = Callable[[int, Dispatch], ThreadWorkers | TaskWorkers]

log = logging.getLogger(__name__)


class PushCore:
    """One push consumer on one event loop. Only `start` and what follows it need the loop."""

    def __init__(self, group: str, options: ConsumerOptions, make_workers: MakeWorkers) -> None:
        check_group(group)
        self.settings: ConsumerSettings = consumer_settings(options)
        self.instance = Instance(options)
        self.group = self.instance.wrap(group)
        self._options = options
        self._make_workers = make_workers
        self._filters: dict[str, TopicFilter] = {}
        self._listeners: dict[str, Listening] = {}
        self._rates = ConsumeRates()
        self._dispatch: Dispatch | None = None
        self._member: Membership | None = None
        self._fetching: Fetching | None = None
        self._closing: asyncio.Task[None] | None = None

    # Subscribing.

    def subscribe(self, topic: str, tags: str, sql: str | None, listener: AnyListener) -> None:
        """Have a listener called with messages of a topic. A running consumer goes on from here."""
        name = self.instance.wrap(topic)
        made = topic_filter(name, tags, sql=sql)
        self._listeners[name] = listening(
            listener,
            self.group,
            self.settings.batch_size,
            self.settings.hooks,
            self.settings.consume_timeout_ms,
        )
        self._filters[name] = made
        if self._fetching is not None and self._member is not None:
            self.instance.spawn(self._subscribed(made, self._member, self._fetching))

    async def _subscribed(self, made: TopicFilter, member: Membership, fetching: Fetching) -> None:
        await self._prepare(member, made)
        await self.instance.heartbeat()
        fetching.rebalance()

    # Life.

    @property
    def is_running(self) -> bool:
        return self._fetching is not None and self._closing is None

    async def start(self) -> None:
        """Join the group and begin to consume."""
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
        settings, instance = self.settings, self.instance
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
        dispatch.begin(self._make_workers(settings.concurrency, dispatch))
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
        instance.spawn(self._keep_looking())
        await fetching.start()

    def _make_fetching(self, member: Membership) -> Fetching:
        if self.settings.pop:
            # Few programs pop; the others need not wait for what that takes to be loaded.
            from onelog.client.consumer.push.popping import PopFetching

            return PopFetching(member)
        kind = OrderedFetching if self.settings.orderly else PullFetching
        return kind(member, self._options.get("client_id"))

    async def _prepare(self, member: Membership, wanted: TopicFilter) -> None:
        """Find a topic's brokers, and have one of them check the condition on it."""
        try:
            await member.check(wanted)
        except TopicNotFoundError as error:
            if wanted.topic in self._listeners:
                log.warning("%s; it is consumed once it exists", error)

    async def _keep_looking(self) -> None:
        job = Job(f"counting what group {self.group} consumes")
        while True:
            with job:
                self._rates.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self, limit_seconds: float = CLOSE_SECONDS) -> None:
        """Finish what is in hand, for so long at the most; commit, leave the group, disconnect.

        A second call waits for the same end; a caller that stops waiting does not stop it.
        """
        if not self.instance.can_close():
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(limit_seconds))
        await asyncio.shield(self._closing)

    async def _close(self, limit_seconds: float) -> None:
        if self._fetching is not None:
            await self._fetching.stop()
        if self._dispatch is not None:
            await self._dispatch.close(limit_seconds)
        if self._fetching is not None:
            await self._fetching.close()
        await close_hooks(self.settings.hooks)
        await self.instance.close()

    # Asking.

    @property
    def assigned(self) -> tuple[Queue, ...]:
        """The queues that this member consumes now, of the topics that were subscribed to."""
        if self._fetching is None:
            return ()
        return tuple(each for each in self._fetching.assigned if each.topic in self._listeners)

    async def commit(self) -> None:
        await self._running().commit()

    async def lag(self) -> dict[Queue, int]:
        lag = await self._running().lag()
        return {queue: count for queue, count in lag.items() if queue.topic in self._listeners}

    def _running(self) -> Fetching:
        if self._fetching is None or self._closing is not None:
            raise ClientClosedError(f"the consumer of group {self.group} is not running")
        self.instance.check_open()
        return self._fetching


class PushFace:
    """What users see of a push consumer, with threads and with asyncio."""

    _core: PushCore

    def _add(self, topic: str, tags: str, sql: str | None, listener: AnyListener) -> None:
        self._core.subscribe(topic, tags, sql, listener)

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

    @property
    def group(self) -> str:
        """The group, with its namespace if there is one."""
        return self._core.group

    @property
    def client_id(self) -> str:
        """What brokers know this member by."""
        return self._core.instance.client_id

    @property
    def assigned(self) -> tuple[Queue, ...]:
        """The queues that this member consumes now."""
        return self._core.assigned


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

    def _make_workers(self, count: int, dispatch: Dispatch) -> TaskWorkers:
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
        """Whether a second Ctrl-C ended the waiting for the end."""

    def _make_workers(self, count: int, dispatch: Dispatch) -> ThreadWorkers:
        self._workers = ThreadWorkers(count, dispatch.finished, self._core.group)
        return self._workers

    def _add(self, topic: str, tags: str, sql: str | None, listener: AnyListener) -> None:
        if is_coroutine(listener):
            raise TypeError(
                "the listeners of a PushConsumer run in threads and are plain functions; for "
                "coroutine functions there is AsyncPushConsumer"
            )
        self._check_fork()

        async def subscribe() -> None:
            self._core.subscribe(topic, tags, sql, listener)

        if self._core.is_running:
            background.run(subscribe())
        else:
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
