"""What is in the topics of a cluster, for tests to look at."""

from onelog.message import Message, NewMessage
from tests.spark.threaded_cluster import ThreadedCluster


def link(cluster: ThreadedCluster) -> dict[str, str]:
    """How jobs reach it."""
    return {"nameserver": cluster.nameserver}


def messages(cluster: ThreadedCluster, topic: str, queue: int = 0) -> list[Message]:
    """The messages of a queue, in order."""
    return list(cluster.broker().store.messages(topic, queue, 0, 1_000_000))


def bodies(cluster: ThreadedCluster, topic: str, queues: int = 1) -> list[bytes]:
    """The bodies of a topic, queue by queue."""
    return [
        bytes(message.body)
        for queue in range(queues)
        for message in messages(cluster, topic, queue)
    ]


def send_born(cluster: ThreadedCluster, topic: str, born_ms: int, body: bytes) -> None:
    """Put a message into a queue that was born at a time."""

    async def append() -> None:
        cluster.broker().core.store.append([NewMessage(topic, 0, body, born_ms=born_ms)])

    cluster.run(append())
