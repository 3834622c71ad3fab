"""Pull consumers: the program says when it wants more messages.

    async with AsyncPullConsumer("billing", nameserver="127.0.0.1:9876") as consumer:
        consumer.subscribe("orders", tags="paid || refunded")
        while True:
            for message in await consumer.poll():
                ...

`PullConsumer` is the same for threads, without `async` and `await`.

A consumer either subscribes to topics, and shares them with the other members of its group. Or it
is assigned single queues: then it takes nothing from the members of its group, and only uses the
group's name to keep its positions.

Messages are fetched ahead. Unless `auto_commit` is off, asking for more says that the messages of
the last poll are done, and this is committed every few seconds and at the end. A consumer that
leaves its context by an error commits nothing of the last poll; those messages come again. So do
the messages of a poll in a thread that is interrupted (Ctrl-C).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Literal, Self, Unpack

from onelog.client.connection import background
from onelog.client.connection.instance import Instance
from onelog.client.connection.nodes import at_once
from onelog.client.consumer.consume_rates import ConsumeRates
from onelog.client.consumer.fetching import Membership, Source
from onelog.client.consumer.pull.queues import PullQueues
from onelog.client.consumer.requests import ConsumerRequests
from onelog.client.consumer.settings import check_group, consumer_settings
from onelog.client.consumer.topic_filters import ALL, TopicFilter, topic_filter
from onelog.client.hooks import (
    ConsumeContext,
    after_consume,
    before_consume,
    close_hooks,
    start_hooks,
)
from onelog.client.message import Queue, ReceivedMessage
from onelog.client.options import ClientOptions, check_names
from onelog.client.synchronous import SyncClient, calling, waiting
from onelog.errors import (
    ConfigError,
    FilterSyntaxError,
    OffsetOutOfRangeError,
    OnelogError,
    TopicNotFoundError,
)
from onelog.wire.remoting.codes import RequestCode

if TYPE_CHECKING:
    import os

    from onelog.client.consumer.allocation import AllocationStrategy
    from onelog.client.hooks import ConsumeHook

POLL_SECONDS = 5.0
BATCH_SIZE = 256

log = logging.getLogger(__name__)


class PullConsumerOptions(ClientOptions, total=False):
    """What pull consumers take besides."""

    model: Literal["clustering", "broadcasting"]
    """Whether the members of the group share the messages, or each gets all. clustering."""
    start: Literal["first", "last"] | datetime
    """Where a group begins that has no position yet. last."""
    batch_size: int
    """How many messages a poll gives at the most. 256."""
    allocation: "AllocationStrategy"
    """How queues are shared out among the members of the group. Evenly."""
    prefetch_count: int
    """Messages of a queue that wait at which no more are fetched. 1000."""
    prefetch_bytes: int
    """The same, in bytes of bodies. 100 MiB."""
    auto_commit: bool
    """Whether positions are committed without `commit` being called. True."""
    commit_interval: timedelta | float
    """How often. 5 s."""
    hooks: "Sequence[ConsumeHook]"
    """Called for the messages of every poll, one queue at a time."""
    offsets_path: "str | os.PathLike[str]"
    """Broadcasting: the file of this client's positions."""


class AsyncPullConsumer:
    """A consumer that is asked for messages; `PullConsumer` is the same for threads."""

    def __init__(self, group: str, **options: Unpack[PullConsumerOptions]) -> None:
        check_names(type(self).__name__, options, PullConsumerOptions)
        check_group(group)
        self._settings = consumer_settings({"batch_size": BATCH_SIZE, **options})
        self.instance = Instance(options)
        self.group = self.instance.wrap(group)
        """The group, with its namespace if there is one."""
        self._filters: dict[str, TopicFilter] = {}
        self._member = Membership(
            self.group, self.instance, self._settings, self._filters, _refuse, ConsumeRates()
        )
        self._queues = PullQueues(self._member, options.get("client_id"))
        self._is_started = False
        self._is_member = False
        self._is_assigned = False
        self._problem: FilterSyntaxError | None = None
        """Why this consumer cannot join its group."""

    # Life.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._close(all_is_done=raised[0] is None)

    async def start(self) -> None:
        """Begin. Nothing is connected before something is subscribed to, assigned or asked."""
        if not self._is_started:
            await self.instance.start()
            self._is_started = True
            await start_hooks(self._settings.hooks, self.instance)
            await self._queues.start()
            if self._filters:
                self._join()

    async def close(self) -> None:
        """Commit, unless `auto_commit` is off, and leave the group. What was given is done with."""
        await self._close(all_is_done=True)

    async def _close(self, *, all_is_done: bool) -> None:
        if not self.instance.can_close():
            return
        if self.instance.is_open:
            if all_is_done:
                self._queues.settle()
            await self._queues.close()
            await close_hooks(self._settings.hooks)
        await self.instance.close()

    @property
    def client_id(self) -> str:
        """What brokers know this consumer by."""
        return self.instance.client_id

    # Which queues.

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """Consume a topic with the other members of the group.

        `tags` is as in `paid || refunded`; `sql` is a condition on properties. To subscribe again
        replaces them for what is not fetched yet.
        """
        if self._is_assigned:
            raise ConfigError("a consumer has subscriptions or an assignment, but not both")
        if self._is_started:
            self.instance.check_open()
        name = self.instance.wrap(topic)
        self._filters[name] = topic_filter(name, tags, sql=sql)
        if self._is_started:
            self._join()

    def unsubscribe(self, topic: str) -> None:
        """Leave a topic to the other members of the group."""
        self._filters.pop(self.instance.wrap(topic), None)
        if self._is_started:
            self.instance.check_open()
            self._join()

    def assign(self, queues: Iterable[Queue], tags: str = ALL, *, sql: str | None = None) -> None:
        """Read these queues, and no others. Queues that were assigned before go on as they are."""
        self.instance.check_open()
        if self._is_member:
            raise ConfigError("a consumer has subscriptions or an assignment, but not both")
        self._is_assigned = True
        wanted = [self._own(queue) for queue in queues]
        for topic in {queue.topic for queue in wanted}:
            made = topic_filter(topic, tags, sql=sql)
            old = self._filters.get(topic)
            if old is None or (old.expression, old.kind) != (made.expression, made.kind):
                self._filters[topic] = made
        self._queues.assign(wanted, self._filters)

    @property
    def assigned(self) -> tuple[Queue, ...]:
        """The queues that this consumer reads now."""
        return self._queues.assigned

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """All queues of a topic, to choose from; `TopicNotFoundError` if there is none."""
        self.instance.check_open()
        return (await self.instance.routes.refresh(self.instance.wrap(topic))).read_queues

    def _join(self) -> None:
        if not self._is_member:
            self._is_member = True
            requests = ConsumerRequests(self._member, self._queues, "CONSUME_ACTIVELY", {})
            requests.register()
            requests.watch_routes()
        self.instance.spawn(self._joined())

    async def _joined(self) -> None:
        self._problem = None
        for topic, wanted in list(self._filters.items()):
            try:
                await self._member.check(wanted)
            except FilterSyntaxError as error:
                self._problem = error
                self._queues.wake()
                return
            except TopicNotFoundError as error:
                log.warning("%s; it is consumed once it exists", error)
            except OnelogError as error:
                log.info("topic %s is consumed later: %s", topic, error)
        await self.instance.heartbeat()
        self._queues.share()

    # Messages.

    async def poll(
        self, timeout: timedelta | float = POLL_SECONDS, *, count: int | None = None
    ) -> list[ReceivedMessage]:
        """The next messages, `count` at the most; an empty list if none come within the time-out.

        Messages of one queue are in its order. Raises what a broker has refused, and why; what is
        only out of reach is tried again in the background.
        """
        self.instance.check_open()
        if not (self._is_member or self._is_assigned):
            raise ConfigError("nothing to poll: subscribe to a topic, or assign queues first")
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        count_max = self._settings.batch_size if count is None else count
        if count_max < 1:
            raise ConfigError(f"a poll gives 1 message or more, and not {count_max}")
        self._queues.settle()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            messages = self._queues.take(count_max)
            if messages:
                if self._settings.hooks:
                    self._call_hooks(messages)
                return messages
            if self._problem is not None:
                raise self._problem
            self._queues.raise_error()
            left = deadline - loop.time()
            if left <= 0:
                return []
            await self._queues.wait(left)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Every message, as long as the consumer is open."""
        while self.instance.is_open:
            for message in await self.poll():
                yield message

    def _call_hooks(self, messages: list[ReceivedMessage]) -> None:
        for queue, some in groupby(messages, lambda message: message.queue):
            context = ConsumeContext(self.group, queue, list(some))
            before_consume(self._settings.hooks, context)
            after_consume(self._settings.hooks, context)

    def pause(self, *queues: Queue) -> None:
        """Give no messages of these queues, or of any, until `resume`; they stay assigned."""
        for queue in self._chosen(queues):
            self._queues.get(queue).pause()

    def resume(self, *queues: Queue) -> None:
        """Go on with these queues, or with all."""
        for queue in self._chosen(queues):
            self._queues.get(queue).resume()

    @property
    def paused(self) -> tuple[Queue, ...]:
        """The queues that are paused."""
        return tuple(each for each in self.assigned if self._queues.get(each).is_paused)

    # Where it is.

    async def position(self, queue: Queue) -> int:
        """The offset of the next message of a queue that a poll will give."""
        self.instance.check_open()
        return await self._queues.position(self._own(queue))

    async def seek(self, queue: Queue, offset: int) -> None:
        """Go on from an offset; `OffsetOutOfRangeError` if the queue has no such place."""
        self.instance.check_open()
        queue = self._own(queue)
        self._queues.get(queue)
        begin, end = await asyncio.gather(
            self._queues.offset_at(queue, RequestCode.GET_MIN_OFFSET),
            self._queues.offset_at(queue, RequestCode.GET_MAX_OFFSET),
        )
        if not begin <= offset <= end:
            raise OffsetOutOfRangeError(
                f"queue {queue.queue_id} of {queue.topic} on {queue.broker} has the offsets from "
                f"{begin} to {end}, but not {offset}"
            )
        self._queues.seek(queue, offset)

    async def seek_to_begin(self, *queues: Queue) -> None:
        """Go on from the oldest messages of these queues, or of all."""
        self._seek_all(await self.begin_offsets(*self._chosen(queues)))

    async def seek_to_end(self, *queues: Queue) -> None:
        """Go on after the newest messages of these queues, or of all."""
        self._seek_all(await self.end_offsets(*self._chosen(queues)))

    async def seek_to_time(self, time: datetime, *queues: Queue) -> None:
        """Go on from the first messages that were stored at a time or later."""
        self._seek_all(await self.offsets_for_time(time, *self._chosen(queues)))

    def _seek_all(self, offsets: Mapping[Queue, int]) -> None:
        for queue, offset in offsets.items():
            self._queues.seek(queue, offset)

    async def begin_offsets(self, *queues: Queue) -> dict[Queue, int]:
        """The offsets of the oldest messages of these queues, or of those assigned."""
        return await self._offsets(RequestCode.GET_MIN_OFFSET, queues)

    async def end_offsets(self, *queues: Queue) -> dict[Queue, int]:
        """The offsets that the next messages of these queues, or of those assigned, will get."""
        return await self._offsets(RequestCode.GET_MAX_OFFSET, queues)

    async def offsets_for_time(self, time: datetime, *queues: Queue) -> dict[Queue, int]:
        """The offsets of the first messages that were stored at a time or later."""
        if time.tzinfo is None:
            raise ConfigError(f"a time without a zone: write {time!r}.astimezone(), if it is local")
        return await self._offsets(time, queues)

    async def lag(self) -> dict[Queue, int]:
        """How many messages of each assigned queue no poll has given yet."""
        self.instance.check_open()
        return await self._queues.lag()

    # Committing.

    async def commit(self, offsets: Mapping[Queue, int] | None = None) -> None:
        """Keep for the group where it is: after everything that polls gave, or as `offsets` say.

        An offset is that of the next message to consume. An error says who did not take it.
        """
        self.instance.check_open()
        if offsets is None:
            await self._queues.commit()
        else:
            await self._queues.write({self._own(each): at for each, at in offsets.items()})

    async def committed(self, queue: Queue) -> int | None:
        """What is kept of a queue for the group; None if nothing is."""
        self.instance.check_open()
        return await self._queues.committed(self._own(queue))

    # Inside.

    def _own(self, queue: Queue) -> Queue:
        return queue._replace(topic=self.instance.wrap(queue.topic))

    def _chosen(self, queues: Sequence[Queue]) -> tuple[Queue, ...]:
        """These queues, or all that are assigned; an error if one of them is not."""
        chosen = tuple(self._own(queue) for queue in queues)
        for queue in chosen:
            self._queues.get(queue)
        return chosen or self.assigned

    async def _offsets(
        self, target: datetime | RequestCode, queues: Sequence[Queue]
    ) -> dict[Queue, int]:
        chosen = tuple(self._own(queue) for queue in queues) or self.assigned
        self.instance.check_open()
        found = await at_once(lambda queue: self._queues.offset_at(queue, target), chosen)
        return dict(zip(chosen, found, strict=True))


def _refuse(source: Source, messages: list[ReceivedMessage]) -> None:
    source.failed(messages, ConfigError("a pull consumer has no listener to give a message to"))


class PullConsumer(SyncClient[AsyncPullConsumer]):
    """A consumer that is asked for messages; `AsyncPullConsumer` is the same for asyncio."""

    def __init__(self, group: str, **options: Unpack[PullConsumerOptions]) -> None:
        check_names(type(self).__name__, options, PullConsumerOptions)
        super().__init__(AsyncPullConsumer(group, **options), f"the consumer of group {group!r}")

    def _begin(self) -> None:
        background.run(self._core.start())

    def __exit__(self, *raised: object) -> None:
        self._close(lambda: self._core.__aexit__(*raised))

    def close(self) -> None:
        """Commit, unless `auto_commit` is off, and leave the group. What was given is done with."""
        super().close()

    commit = waiting(AsyncPullConsumer.commit)
    committed = waiting(AsyncPullConsumer.committed)

    @property
    def group(self) -> str:
        """The group, with its namespace if there is one."""
        return self._core.group

    @property
    def client_id(self) -> str:
        """What brokers know this consumer by."""
        return self._core.client_id

    # Which queues.

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """Consume a topic with the other members of the group.

        `tags` is as in `paid || refunded`; `sql` is a condition on properties. To subscribe again
        replaces them for what is not fetched yet.
        """
        if self._background is None and not self._is_closed:
            self._core.subscribe(topic, tags, sql=sql)
        else:
            self._call(lambda: self._core.subscribe(topic, tags, sql=sql))

    unsubscribe = calling(AsyncPullConsumer.unsubscribe)

    assign = calling(AsyncPullConsumer.assign)

    @property
    def assigned(self) -> tuple[Queue, ...]:
        """The queues that this consumer reads now."""
        return self._call(lambda: self._core.assigned)

    queues = waiting(AsyncPullConsumer.queues)
    lag = waiting(AsyncPullConsumer.lag)

    # Messages.

    poll = waiting(AsyncPullConsumer.poll)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Every message, as long as the consumer is open."""
        while not self._is_closed:
            yield from self.poll()

    pause = calling(AsyncPullConsumer.pause)
    resume = calling(AsyncPullConsumer.resume)

    @property
    def paused(self) -> tuple[Queue, ...]:
        """The queues that are paused."""
        return self._call(lambda: self._core.paused)

    # Where it is.

    position = waiting(AsyncPullConsumer.position)
    seek = waiting(AsyncPullConsumer.seek)
    seek_to_begin = waiting(AsyncPullConsumer.seek_to_begin)
    seek_to_end = waiting(AsyncPullConsumer.seek_to_end)
    seek_to_time = waiting(AsyncPullConsumer.seek_to_time)
    begin_offsets = waiting(AsyncPullConsumer.begin_offsets)
    end_offsets = waiting(AsyncPullConsumer.end_offsets)
    offsets_for_time = waiting(AsyncPullConsumer.offsets_for_time)
