"""The last look: everything that topics hold, queue by queue from the beginning.

    python -m tests.e2e.faults.reader NAMESERVERS BOOTSTRAP FOLDER sdk:TOPIC|kafka:TOPIC...

Writes the history FOLDER/TOPIC-reader.jsonl of each; ends when every queue is read up to where it
ended at the beginning.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from onelog.client import PullConsumer, Queue
from onelog.errors import TopicNotFoundError
from tests.e2e.faults.history import History, now_ns
from tests.e2e.faults.sdk_client import parsed

TIMEOUT_S = 60.0
Read = tuple[bytes, int, int]
"""Body, queue and offset."""


def by_sdk(nameservers: str, topic: str) -> Iterator[Read]:
    """Read with the SDK."""
    with PullConsumer(
        "last-readers", nameserver=nameservers, start="first", auto_commit=False
    ) as consumer:
        queues = _queues(consumer, topic)
        ends = {queue: end for queue, end in consumer.end_offsets(*queues).items() if end}
        consumer.assign(ends)
        consumer.seek_to_begin()
        deadline = time.monotonic() + TIMEOUT_S
        while ends and time.monotonic() < deadline:
            for message in consumer.poll(1.0):
                yield message.body, message.queue.queue_id, message.offset
                if message.offset + 1 >= ends.get(message.queue, 1 << 62):
                    del ends[message.queue]
        if ends:
            raise TimeoutError(f"{topic}: {ends} were not read to their end")


def _queues(consumer: PullConsumer, topic: str) -> Sequence[Queue]:
    """The queues, once the name servers know: those that have just started know nothing."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return consumer.queues(topic)
        except TopicNotFoundError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def by_kafka(bootstrap: str, topic: str) -> Iterator[Read]:
    """Read with librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "last-readers",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    left = set(partitions)
    deadline = time.monotonic() + TIMEOUT_S
    while left and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            left.discard(message.partition())
            continue
        body, queue, offset = message.value(), message.partition(), message.offset()
        assert isinstance(body, bytes)
        assert queue is not None
        assert offset is not None
        yield body, queue, offset
    consumer.close()
    if left:
        raise TimeoutError(f"{topic}: partitions {left} were not read to their end")


def main(nameservers: str, bootstrap: str, folder: Path, topics: list[str]) -> None:
    """Read them all."""
    for each in topics:
        kind, _, topic = each.partition(":")
        found = by_kafka(bootstrap, topic) if kind == "kafka" else by_sdk(nameservers, topic)
        path = folder / f"{topic}-reader.jsonl"
        with History(path, name="reader", kind=kind, topic=topic, role="reader") as history:
            for body, queue, offset in found:
                at = now_ns()
                history.add("read", **parsed(body), begin=at, end=at, queue=queue, offset=offset)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
