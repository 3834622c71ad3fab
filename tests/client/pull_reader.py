"""Pull consumers of a live cluster, and what they are to read."""

import asyncio
from typing import Unpack

from onelog.client.consumer.pull.consumer import AsyncPullConsumer, PullConsumerOptions
from onelog.client.message import Queue, ReceivedMessage
from tests.client.live_cluster import LiveCluster

GROUP = "readers"
FIRST, SECOND = Queue("orders", "broker-a", 0), Queue("orders", "broker-a", 1)


def consumer(
    cluster: LiveCluster, group: str = GROUP, **options: Unpack[PullConsumerOptions]
) -> AsyncPullConsumer:
    given: PullConsumerOptions = {"nameserver": cluster.addresses, "start": "first", **options}
    return AsyncPullConsumer(group, **given)


async def send(cluster: LiveCluster, count: int, queue: int = 0, begin: int = 0) -> list[bytes]:
    sent = [b"%d" % number for number in range(begin, begin + count)]
    for body in sent:
        await cluster.send("orders", body, queue)
    return sent


async def polled(reading: AsyncPullConsumer, count: int) -> list[ReceivedMessage]:
    """So many messages, in as many polls as it takes."""
    messages: list[ReceivedMessage] = []
    async with asyncio.timeout(60):
        while len(messages) < count:
            messages += await reading.poll(1.0, count=count - len(messages))
    return messages


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]
