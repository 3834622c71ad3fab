"""A member of a group that pulls, whose listeners are the test itself."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from onelog.client.connection.instance import Instance
from onelog.client.consumer.consume_rates import ConsumeRates
from onelog.client.consumer.fetching import Membership, Source
from onelog.client.consumer.push.pulling import PulledQueue, PullFetching
from onelog.client.consumer.push.send_back import retry_topic
from onelog.client.consumer.settings import ConsumerSettings
from onelog.client.consumer.topic_filters import topic_filter
from onelog.client.message import Queue, ReceivedMessage
from onelog.net.peer import Peer
from onelog.wire.remoting.clients import ConsumerData
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command
from tests.client.live_cluster import LiveCluster

GROUP = "readers"


class Member:
    """What was handed to the listeners, and what was asked of brokers meanwhile."""

    def __init__(self, nameserver: str, topic: str, tags: str, settings: dict[str, Any]) -> None:
        self.instance = Instance({"nameserver": nameserver})
        self.taken: list[tuple[Source, ReceivedMessage]] = []
        filters = {topic: topic_filter(topic, tags)}
        given = ConsumerSettings(**{"start": "first", **settings})
        if not given.broadcasting:
            filters[retry_topic(GROUP)] = topic_filter(retry_topic(GROUP))
        self.membership = Membership(
            GROUP, self.instance, given, filters, self.submit, ConsumeRates()
        )
        self.asked: dict[int, list[dict[str, str]]] = defaultdict(list)
        self.answers: dict[int, Callable[[], Command]] = {}
        """By code: what is answered in the broker's place."""

    def submit(self, source: Source, messages: list[ReceivedMessage]) -> None:
        self.taken += [(source, message) for message in messages]

    def intercept(self, patch: pytest.MonkeyPatch) -> None:
        """See, and maybe answer, what this member asks."""
        passed_on = Peer.request

        def request(peer: Peer, code: RequestCode, ext: Any, body: Any, *more: Any) -> None:
            mine = peer in self.instance.nodes._peers.values()
            if mine:
                self.asked[code].append(ext or {})
            if mine and code in self.answers and (ext or {}).get("topic") != retry_topic(GROUP):
                asyncio.get_running_loop().call_soon(more[-1], self.answers[code]())
            else:
                passed_on(peer, code, ext, body, *more)

        patch.setattr(Peer, "request", request)

    def describe(self) -> ConsumerData:
        return ConsumerData(
            group_name=GROUP,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=[each.data() for each in self.membership.filters.values()],
        )

    async def start(self) -> None:
        await self.instance.start()
        self.instance.consumers[GROUP] = self.describe
        for topic in self.membership.filters:
            with contextlib.suppress(Exception):
                await self.instance.routes.get(topic)
        await self.instance.heartbeat()
        self.fetching = PullFetching(self.membership)
        await self.fetching.start()

    def queue(self, queue_id: int = 0, topic: str = "orders") -> PulledQueue:
        return self.fetching._queues[Queue(topic, "broker-a", queue_id)]

    @property
    def numbers(self) -> list[int]:
        return [int(message.body.split()[0]) for _, message in self.taken]

    def finish(self, count: int | None = None) -> None:
        taken, self.taken = self.taken[:count], self.taken[len(self.taken[:count]) :]
        for source, message in taken:
            source.done([message])


@contextlib.asynccontextmanager
async def pulling(
    cluster: LiveCluster,
    topic: str = "orders",
    tags: str = "*",
    *,
    patch: pytest.MonkeyPatch | None = None,
    answers: dict[int, Callable[[], Command]] | None = None,
    **settings: Any,
) -> AsyncIterator[Member]:
    member = Member(cluster.addresses, topic, tags, settings)
    if patch is not None:
        member.answers = {} if answers is None else answers
        member.intercept(patch)
    try:
        await member.start()
        yield member
        await member.fetching.stop()
        await member.fetching.close()
    finally:
        await member.instance.close()
