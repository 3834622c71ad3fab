"""The two sides of a push consumer: one fetches messages, the other calls the listeners.

Fetching pulls from the queues that were assigned to this member (`pull_fetching`), or pops
(`pop_fetching`, with the option `pop`). It hands messages to `Membership.submit`, together with the
`Source` that wants to know what became of them.

Invariant: the source of every submitted message is told exactly once, by `done`, `failed`,
`expired` or `returned`; unless a listener still has the message when the consumer gives up waiting
at its end. Everything here is called on the consumer's loop and does not block.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from onelog.client.connection.instance import Instance
from onelog.client.connection.nodes import end_all
from onelog.client.consumer.consume_rates import ConsumeRates
from onelog.client.consumer.settings import ConsumerSettings
from onelog.client.consumer.topic_filters import TopicFilter
from onelog.client.message import Queue, ReceivedMessage
from onelog.errors import FilterSyntaxError
from onelog.wire.remoting.clients import CheckClientRequest, ConsumerData
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.running_info import PopQueueInfo, ProcessQueueInfo


class Source(Protocol):
    """Who fetched some messages: one queue, or whatever else is committed together."""

    dropped: bool
    """Whether messages of it that no listener has begun with are better left alone."""

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        """A listener has consumed them."""

    def failed(self, messages: Sequence[ReceivedMessage], error: BaseException) -> None:
        """A listener raised; a batch fails as a whole. `RetryLater` may say when to retry."""

    def expired(self, messages: Sequence[ReceivedMessage]) -> None:
        """A listener has had them for longer than `consume_timeout`, and has them still."""

    def returned(self, messages: Sequence[ReceivedMessage]) -> None:
        """No listener has begun with them, nor will: the source is dropped, the consumer ends, or
        it consumes in order and a message before them failed."""


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

    def describe(self, consume_type: str) -> ConsumerData:
        """What heartbeats say about this member."""
        start = self.settings.start
        where = f"{start.upper()}_OFFSET" if isinstance(start, str) else "TIMESTAMP"
        return ConsumerData(
            consume_from_where=f"CONSUME_FROM_{where}",
            consume_type=consume_type,
            group_name=self.group,
            message_model="BROADCASTING" if self.settings.broadcasting else "CLUSTERING",
            subscription_data_set=[each.data() for each in self.filters.values()],
        )

    async def check(self, wanted: TopicFilter) -> None:
        """Have a broker check the condition on a topic; pulls would not tell what is wrong.

        `TopicNotFoundError` if there is no such topic.
        """
        route = await self.instance.routes.get(wanted.topic)
        if not wanted.is_sql or not route.brokers:
            return
        body = CheckClientRequest(
            client_id=self.instance.client_id,
            group=self.group,
            namespace=self.instance.namespace or None,
            subscription_data=wanted.data(),
        )
        answer = await self.instance.ask_reader(
            route,
            min(route.brokers),
            RequestCode.CHECK_CLIENT_CONFIG,
            None,
            body.encode(),
            accept=frozenset({ResponseCode.SUBSCRIPTION_PARSE_FAILED}),
        )
        if answer.code != ResponseCode.SUCCESS:
            raise FilterSyntaxError(f"the filter on {wanted.topic}: {answer.remark}")


class Fetching(ABC):
    """What a consumer needs of its fetching side, and what all kinds of that have in common."""

    def __init__(self, member: Membership) -> None:
        self._member = member
        self._queues: dict[Queue, Any] = {}
        self._wake = asyncio.Event()
        """Set when the queues are to be shared out anew."""
        self._is_stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        """What goes on until nothing more is to be fetched."""
        self._looking: set[str] = set()

    @property
    def assigned(self) -> tuple[Queue, ...]:
        """The queues that this member consumes now. When it pops, a queue id of -1 stands for all
        queues of a broker."""
        return tuple(sorted(self._queues))

    @abstractmethod
    async def start(self) -> None:
        """Begin, once the first heartbeat went out; share out the queues and fetch."""

    def rebalance(self) -> None:
        """The members of the group, or a topic's queues, changed: share out anew, soon."""
        self._wake.set()

    async def stop(self) -> None:
        """Fetch nothing more. Results of what was submitted are still taken."""
        self._is_stopped = True
        await end_all(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self._member.instance.spawn(work))

    @abstractmethod
    async def commit(self) -> None:
        """Tell the brokers now how far this member is."""

    @abstractmethod
    async def close(self) -> None:
        """After `stop`: commit, and give back what the brokers keep for this member."""

    @abstractmethod
    async def lag(self) -> dict[Queue, int]:
        """How many messages of each assigned queue are not consumed yet."""

    @abstractmethod
    def moved(self, queue: Queue, offset: int) -> None:
        """Somebody sends the group elsewhere in a queue; nothing unless the queue is assigned."""

    # Asked by queues.

    def may_fetch(self) -> bool:
        """Whether more is wanted."""
        return not self._is_stopped

    def look_around(self, topic: str) -> None:
        """Something is wrong: the broker may have moved, or have forgotten who we are."""
        if topic not in self._looking:
            self._looking.add(topic)
            self._member.instance.spawn(self._look_around(topic))

    async def _look_around(self, topic: str) -> None:
        try:
            await self._member.instance.routes.refresh_quietly(topic)
        finally:
            self._looking.discard(topic)
        await self._member.instance.heartbeat()

    def is_locked(self, queue: Queue) -> bool:
        """Whether messages of a queue may be consumed in order here."""
        return True

    # For the tools. Who pops leaves positions to the brokers; the others have no table of pops.

    def positions(self, topic: str) -> dict[Queue, int]:
        """How far each assigned queue of a topic is consumed."""
        return {}

    def queue_table(self) -> dict[Queue, ProcessQueueInfo]:
        """How each pulled queue stands, for the tools."""
        return {}

    def pop_table(self) -> dict[Queue, PopQueueInfo]:
        """How each popped queue stands, for the tools."""
        return {}
