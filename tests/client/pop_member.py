"""A member of a group that pops, whose listeners are the test itself."""

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from onelog.client.connection.address import Address
from onelog.client.connection.instance import Instance
from onelog.client.consumer.consume_rates import ConsumeRates
from onelog.client.consumer.fetching import Membership, Source
from onelog.client.consumer.push.popping import PopFetching
from onelog.client.consumer.settings import ConsumerSettings
from onelog.client.consumer.topic_filters import TopicFilter, topic_filter
from onelog.client.message import ReceivedMessage
from onelog.net.peer import Peer
from onelog.wire.remoting.clients import ConsumerData
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command
from tests.client.live_cluster import LiveCluster
from tests.waiting import eventually

GROUP = "readers"


class Member:
    """A member of the group, and what was handed to its listeners."""

    def __init__(
        self, nameserver: str, filters: dict[str, TopicFilter], settings: dict[str, Any]
    ) -> None:
        self.instance = Instance({"nameserver": nameserver})
        self.asked: dict[int, list[dict[str, str]]] = defaultdict(list)
        self.interfere: dict[int, Callable[[], Awaitable[Command | None]]] = {}
        """By code: what happens before a request goes out, or instead of that."""
        self._ask = self.instance.ask
        self.instance.ask = self.ask  # type: ignore[assignment]
        self.taken: list[tuple[Source, ReceivedMessage]] = []
        given = {"pop": True, "start": "first", "invisible_ms": 30_000, **settings}
        self.membership = Membership(
            GROUP, self.instance, ConsumerSettings(**given), filters, self.submit, ConsumeRates()
        )

    async def ask(
        self,
        address: Address,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        **more: Any,
    ) -> Command:
        """Asks, and remembers what it asked; unless somebody interferes."""
        self.asked[code].append(ext or {})
        interfere = self.interfere.get(code)
        if interfere is not None:
            refused = await interfere()
            if refused is not None:
                return refused
        return await self._ask(address, code, ext, body, **more)

    def intercept(self, patch: pytest.MonkeyPatch) -> None:
        """Remember what it pops, which takes no awaited request."""
        passed_on = Peer.request

        def request(peer: Peer, code: RequestCode, ext: Any, body: Any, *more: Any) -> None:
            if code == RequestCode.POP_MESSAGE and peer in self.instance.nodes._peers.values():
                self.asked[code].append(ext)
            passed_on(peer, code, ext, body, *more)

        patch.setattr(Peer, "request", request)

    def submit(self, source: Source, messages: list[ReceivedMessage]) -> None:
        self.taken += [(source, message) for message in messages]

    async def start(self) -> None:
        await self.instance.start()
        self.instance.consumers[GROUP] = lambda: ConsumerData(
            group_name=GROUP,
            consume_type="CONSUME_POP",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=[each.data() for each in self.membership.filters.values()],
        )
        for topic in self.membership.filters:
            await self.instance.routes.get(topic)
        await self.instance.heartbeat()
        self.fetching = PopFetching(self.membership)
        await self.fetching.start()

    async def die(self) -> None:
        """End without a word to the broker about the messages in hand."""
        await self.instance.close()

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for _, message in self.taken]

    async def has(self, *bodies: bytes, seconds: float = 60.0) -> None:
        """Wait until it was handed these, in any order."""
        wanted = sorted(bodies)
        try:
            await eventually(lambda: len(self.taken) >= len(wanted), seconds=seconds)
        finally:
            assert sorted(self.bodies) == wanted

    def done(self) -> None:
        taken, self.taken = self.taken, []
        for source, message in taken:
            source.done([message])

    def failed(self, error: BaseException) -> None:
        taken, self.taken = self.taken, []
        for source, message in taken:
            source.failed([message], error)


@contextlib.asynccontextmanager
async def member(
    cluster: LiveCluster, topic: str = "orders", tags: str = "*", **settings: Any
) -> AsyncIterator[Member]:
    joined = Member(cluster.addresses, {topic: topic_filter(topic, tags)}, settings)
    with pytest.MonkeyPatch.context() as patch:
        joined.intercept(patch)
        try:
            await joined.start()
            yield joined
            await joined.fetching.close()
        finally:
            await joined.instance.close()
