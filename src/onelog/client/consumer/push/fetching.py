"""The seam inside a push consumer: one side fetches messages, the other calls the listeners.

Fetching pulls from the queues that were assigned to this member (`pulling`), or pops
(`pop_consumer`, with the option `pop`). What it got it hands to `Membership.submit`; how consuming
went is told to the `Source` that it handed over with the messages.

Invariant: of every submitted message its source is told exactly once, with `done`, `failed`,
`expired` or `returned`, unless a listener still has it when the consumer gives up waiting at its
end. Everything here is called on the consumer's loop, and nothing of it blocks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from onelog.client.connection.instance import Instance
from onelog.client.consumer.consume_rates import ConsumeRates
from onelog.client.consumer.settings import ConsumerSettings
from onelog.client.consumer.topic_filters import TopicFilter
from onelog.client.message import Queue, ReceivedMessage
from onelog.wire.remoting.running_info import PopQueueInfo, ProcessQueueInfo


class Source(Protocol):
    """Who fetched some messages: one queue, or whatever else is committed together."""

    dropped: bool
    """Whether messages of it that no listener has begun with are better left alone."""

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        """A listener has consumed them."""
        ...

    def failed(self, messages: Sequence[ReceivedMessage], error: BaseException) -> None:
        """A listener raised; a batch fails as a whole. `RetryLater` may say when to retry."""
        ...

    def expired(self, messages: Sequence[ReceivedMessage]) -> None:
        """A listener has had them for longer than `consume_timeout`, and has them still."""
        ...

    def returned(self, messages: Sequence[ReceivedMessage]) -> None:
        """No listener has begun with them, nor will: the source is dropped, the consumer ends, or
        it consumes in order and a message before them failed."""
        ...


@dataclass(frozen=True, slots=True)
class Membership:
    """One client's part in one consumer group: what both ways of fetching need."""

    group: str
    instance: Instance
    settings: ConsumerSettings
    filters: Mapping[str, TopicFilter]
    """What is subscribed to, by topic."""
    submit: Callable[[Source, list[ReceivedMessage]], None]
    """Hand messages of one queue to the listeners. If the consumer is `orderly` they are consumed
    in their order; to submit more before they are settled would undo that."""
    rates: ConsumeRates


class Fetching(Protocol):
    """What a push consumer needs of its fetching side."""

    @property
    def assigned(self) -> tuple[Queue, ...]:
        """The queues that this member consumes now."""
        ...

    async def start(self) -> None:
        """Begin, once the first heartbeat went out; share out the queues and fetch."""
        ...

    def rebalance(self) -> None:
        """The members of the group, or a topic's queues, changed: share out anew, soon."""
        ...

    async def stop(self) -> None:
        """Fetch nothing more. Results of what was submitted are still taken."""
        ...

    async def commit(self) -> None:
        """Tell the brokers now how far this member is."""
        ...

    async def close(self) -> None:
        """After `stop`: commit, and give back what the brokers keep for this member."""
        ...

    async def lag(self) -> dict[Queue, int]:
        """How many messages of each assigned queue are not consumed yet."""
        ...

    def positions(self, topic: str) -> dict[Queue, int]:
        """How far each assigned queue of a topic is consumed."""
        ...

    async def reset(self, offsets: Mapping[Queue, int]) -> None:
        """Go on from these offsets, in those of the queues that are assigned."""
        ...

    def queue_table(self) -> dict[Queue, ProcessQueueInfo]:
        """How each pulled queue stands, for the tools."""
        ...

    def pop_table(self) -> dict[Queue, PopQueueInfo]:
        """How each popped queue stands, for the tools."""
        ...
