"""What tests of the SDK look at from outside: what is in a topic, and what comes true at last."""

import random

from onelog.message import Message
from tests.client.live_cluster import LiveCluster
from tests.gateways.remoting.live import messages

TOO_LARGE = random.Random(1).randbytes(200_000)
"""A body that the brokers of these tests refuse, and that does not shrink."""


async def stored(cluster: LiveCluster, topic: str, queues: int = 4) -> list[Message]:
    """All that consumers of a topic can see, on all brokers, in the order it was stored."""
    found: list[Message] = []
    for number in range(len(cluster.brokers)):
        client = await cluster.client(number)
        for queue in range(queues):
            offset = 0
            while fresh := messages(await client.pull(topic, offset, queueId=queue)):
                found += fresh
                offset = fresh[-1].queue_offset + 1
    return sorted(found, key=lambda message: (message.store_ms, message.log_offset))


async def bodies(cluster: LiveCluster, topic: str, queues: int = 4) -> list[bytes]:
    """The bodies of all that consumers of a topic can see."""
    return [bytes(message.body) for message in await stored(cluster, topic, queues)]
