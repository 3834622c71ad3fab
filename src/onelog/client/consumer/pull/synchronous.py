"""Consuming by asking, in threads: the program says when it wants more.

    with PullConsumer("billing", nameserver="127.0.0.1:9876") as consumer:
        consumer.subscribe("orders", tags="paid || refunded")
        while True:
            for message in consumer.poll():
                ...

The work is done by an `AsyncPullConsumer` on the background loop; what is said there about queues,
positions and committing holds here, too. Invariant: any thread may call any method, and whoever
waits can be interrupted (Ctrl-C); what a poll was about to give then comes again.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from onelog.client.connection import background
from onelog.client.consumer.pull.asynchronous import (
    POLL_SECONDS,
    AsyncPullConsumer,
    PullConsumerOptions,
)
from onelog.client.consumer.topic_filters import ALL
from onelog.client.message import Queue, ReceivedMessage
from onelog.client.options import check_names
from onelog.errors import ClientClosedError

T = TypeVar("T")


class PullConsumer:
    """A consumer that is asked for messages; `AsyncPullConsumer` is the same for asyncio."""

    def __init__(self, group: str, **options: Unpack[PullConsumerOptions]) -> None:
        check_names(type(self).__name__, options, PullConsumerOptions)
        self._core = AsyncPullConsumer(group, **options)
        self._home: background.Home | None = None
        self._is_closed = False

    @property
    def group(self) -> str:
        """The group, with its namespace if there is one."""
        return self._core.group

    @property
    def client_id(self) -> str:
        """What brokers know this consumer by."""
        return self._core.client_id

    # Life.

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(lambda: self._core.__aexit__(kind, error, trace))

    def start(self) -> None:
        """Begin. Nothing is connected before something is subscribed to, assigned or asked."""
        if self._is_closed:
            raise ClientClosedError("the consumer was closed: make a new one")
        if self._home is None:
            background.run(self._core.start())
            self._home = background.home()

    def close(self) -> None:
        """Commit, unless `auto_commit` is off, and leave the group. What was given is done with."""
        self._close(self._core.close)

    def _close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._home is not None and self._home.is_usable:
            background.run(close())

    # Which queues.

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """Consume a topic with the other members of the group.

        `tags` is as in `paid || refunded`; `sql` is a condition on properties. To subscribe again
        replaces them for what is not fetched yet.
        """
        if self._home is None and not self._is_closed:
            self._core.subscribe(topic, tags, sql=sql)
        else:
            self._call(lambda: self._core.subscribe(topic, tags, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        """Leave a topic to the other members of the group."""
        self._call(lambda: self._core.unsubscribe(topic))

    def assign(self, queues: Iterable[Queue], tags: str = ALL, *, sql: str | None = None) -> None:
        """Read these queues, and no others. Queues that were assigned before go on as they are."""
        chosen = tuple(queues)
        self._call(lambda: self._core.assign(chosen, tags, sql=sql))

    @property
    def assigned(self) -> tuple[Queue, ...]:
        """The queues that this consumer reads now."""
        return self._call(lambda: self._core.assigned)

    def queues(self, topic: str) -> tuple[Queue, ...]:
        """All queues of a topic, to choose from; `TopicNotFoundError` if there is none."""
        return self._run(lambda: self._core.queues(topic))

    # Messages.

    def poll(
        self, timeout: timedelta | float = POLL_SECONDS, *, count: int | None = None
    ) -> list[ReceivedMessage]:
        """The next messages, `count` at the most; an empty list if none come within the time-out.

        Messages of one queue are in its order. Raises what a broker has refused, and why; what is
        only out of reach is tried again in the background.
        """
        return self._run(lambda: self._core.poll(timeout, count=count))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Every message, as long as the consumer is open."""
        while not self._is_closed:
            yield from self.poll()

    def pause(self, *queues: Queue) -> None:
        """Give no messages of these queues, or of any, until `resume`; they stay assigned."""
        self._call(lambda: self._core.pause(*queues))

    def resume(self, *queues: Queue) -> None:
        """Go on with these queues, or with all."""
        self._call(lambda: self._core.resume(*queues))

    @property
    def paused(self) -> tuple[Queue, ...]:
        """The queues that are paused."""
        return self._call(lambda: self._core.paused)

    # Where it is.

    def position(self, queue: Queue) -> int:
        """The offset of the next message of a queue that a poll will give."""
        return self._run(lambda: self._core.position(queue))

    def seek(self, queue: Queue, offset: int) -> None:
        """Go on from an offset; `OffsetOutOfRangeError` if the queue has no such place."""
        self._run(lambda: self._core.seek(queue, offset))

    def seek_to_begin(self, *queues: Queue) -> None:
        """Go on from the oldest messages of these queues, or of all."""
        self._run(lambda: self._core.seek_to_begin(*queues))

    def seek_to_end(self, *queues: Queue) -> None:
        """Go on after the newest messages of these queues, or of all."""
        self._run(lambda: self._core.seek_to_end(*queues))

    def seek_to_time(self, time: datetime, *queues: Queue) -> None:
        """Go on from the first messages that were stored at a time or later."""
        self._run(lambda: self._core.seek_to_time(time, *queues))

    def begin_offsets(self, *queues: Queue) -> dict[Queue, int]:
        """The offsets of the oldest messages of these queues, or of those assigned."""
        return self._run(lambda: self._core.begin_offsets(*queues))

    def end_offsets(self, *queues: Queue) -> dict[Queue, int]:
        """The offsets that the next messages of these queues, or of those assigned, will get."""
        return self._run(lambda: self._core.end_offsets(*queues))

    def offsets_for_time(self, time: datetime, *queues: Queue) -> dict[Queue, int]:
        """The offsets of the first messages that were stored at a time or later."""
        return self._run(lambda: self._core.offsets_for_time(time, *queues))

    def lag(self) -> dict[Queue, int]:
        """How many messages of each assigned queue no poll has given yet."""
        return self._run(self._core.lag)

    # Committing.

    def commit(self, offsets: Mapping[Queue, int] | None = None) -> None:
        """Keep for the group where it is: after everything that polls gave, or as `offsets` say.

        An offset is that of the next message to consume. An error says who did not take it.
        """
        self._run(lambda: self._core.commit(offsets))

    def committed(self, queue: Queue) -> int | None:
        """What is kept of a queue for the group; None if nothing is."""
        return self._run(lambda: self._core.committed(queue))

    # Inside.

    def _run(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._is_closed:
            raise ClientClosedError("the consumer was closed: make a new one")
        if self._home is None:
            raise ClientClosedError("the consumer is not started: use it in `with`, or start()")
        self._home.check_usable()
        return background.run(begin())

    def _call(self, do: Callable[[], T]) -> T:
        """Do something that does not wait, but belongs on the loop."""

        async def done() -> T:
            return do()

        return self._run(done)
