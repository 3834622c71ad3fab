"""A real broker with Kafka's port, and other people's clients for it, in threads of their own."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer

from onelog.config import Value
from onelog.server import BrokerServer
from tests.gateways.remoting.live import broker

SECONDS = 20.0
"""The longest that a client waits for anything, on a machine that is busy."""


@contextlib.asynccontextmanager
async def kafka(folder: Path, **settings: Value) -> AsyncIterator[BrokerServer]:
    """A broker with Kafka's protocol on a free port; settings as `kafka__topic_partitions=4`."""
    usual: dict[str, Value] = {
        "kafka__port": -1,
        "kafka__heartbeat_ms": 100,
        "store__body_bytes_max": 2 << 20,
        "store__segment_bytes": 16 << 20,
        "store__queue_file_entries": 10_000,
    }
    async with broker(folder, **{**usual, **settings}) as server:
        yield server


def address(server: BrokerServer) -> str:
    """Where clients begin."""
    return f"127.0.0.1:{server.config.kafka.port}"


class Sent:
    """What a producer was told of its messages."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []
        self.errors: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.places.append((partition, offset))


def produce(
    at: str, topic: str, values: list[bytes | None], *, partition: int = 0, **settings: Any
) -> Sent:
    """Send values with librdkafka; settings as `enable_idempotence=True`."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    producer = Producer({"bootstrap.servers": at, "linger.ms": 5, **given})
    sent = Sent()
    for number, value in enumerate(values):
        producer.produce(topic, value, f"k{number}".encode(), partition=partition, on_delivery=sent)
    assert producer.flush(SECONDS) == 0
    return sent


def consumer(at: str, group: str, **settings: Any) -> Consumer:
    """A consumer of librdkafka that begins at the beginning."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    return Consumer(
        {
            "bootstrap.servers": at,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            **given,
        }
    )


def take(reader: Consumer, count: int) -> list[Message]:
    """The next so many messages; fewer if they do not come."""
    found: list[Message] = []
    while len(found) < count:
        some = reader.consume(count - len(found), SECONDS)
        if not some:
            break
        for each in some:
            error = each.error()
            assert error is None, error
        found += some
    return found


def until(ready: Callable[[], Any], reader: Consumer) -> Any:
    """Poll a consumer until something is so."""
    for _ in range(int(SECONDS * 20)):
        found = ready()
        if found:
            return found
        reader.poll(0.05)
    raise AssertionError("it never came to that")
