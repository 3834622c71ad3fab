"""Consuming by asking, in threads: the program says when it wants more.

    with PullConsumer("billing", nameserver="127.0.0.1:9876") as consumer:
        consumer.subscribe("orders", tags="paid || refunded")
        while True:
            for message in consumer.poll():
                ...

What `AsyncPullConsumer` says about queues, positions and committing holds here, too. Invariant: if
a poll is interrupted (Ctrl-C), the messages that it was about to give come again.
"""

from collections.abc import Iterable, Iterator
from typing import Unpack

from onelog.client.connection import background
from onelog.client.consumer.pull.asynchronous import AsyncPullConsumer, PullConsumerOptions
from onelog.client.consumer.topic_filters import ALL
from onelog.client.message import Queue, ReceivedMessage
from onelog.client.options import check_names
from onelog.client.synchronous import SyncClient, calling, waiting


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
        if self._home is None and not self._is_closed:
            self._core.subscribe(topic, tags, sql=sql)
        else:
            self._call(lambda: self._core.subscribe(topic, tags, sql=sql))

    unsubscribe = calling(AsyncPullConsumer.unsubscribe)

    def assign(self, queues: Iterable[Queue], tags: str = ALL, *, sql: str | None = None) -> None:
        """Read these queues, and no others. Queues that were assigned before go on as they are."""
        chosen = tuple(queues)
        self._call(lambda: self._core.assign(chosen, tags, sql=sql))

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
