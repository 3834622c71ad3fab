"""Streams: topics that are read and not emptied."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, UnroutableError

import onelog
from onelog.embedded_broker import EmbeddedBroker
from onelog.gateways.amqp.streams import _SECONDS
from tests.gateways.amqp.live import SECONDS, channel, connected, ours_only, ready, send, url
from tests.waiting import wait_until

__all__ = ["channel", "url"]


@pytest.fixture
def stream(channel: BlockingChannel) -> str:
    """A stream of ten messages."""
    channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    send(channel, "log", *(b"%d" % number for number in range(10)))
    return "log"


def read(channel: BlockingChannel, start: Any, count: int, *, prefetch: int = 3) -> list[bytes]:
    """What a consumer gets that begins there."""
    found: list[bytes] = []
    offsets: list[int] = []

    def heard(_: object, method: Any, properties: Any, body: bytes) -> None:
        found.append(body)
        offsets.append(properties.headers["x-stream-offset"])
        own.basic_ack(method.delivery_tag)

    own = channel.connection.channel()
    own.basic_qos(prefetch_count=prefetch)
    arguments = {} if start is None else {"x-stream-offset": start}
    own.basic_consume("log", heard, arguments=arguments)
    if start in (None, "next"):
        send(channel, "log", b"new")
    until = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < until:
        channel.connection.process_data_events(0.01)
    channel.connection.process_data_events(0.05)
    own.close()
    assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    return found


def test_a_stream_is_read_from_where_one_likes(channel: BlockingChannel, stream: str) -> None:
    everything = [b"%d" % number for number in range(10)]
    for _ in range(2):
        assert read(channel, "first", 10) == everything
    assert read(channel, 7, 3) == everything[7:]
    assert read(channel, "last", 1) == everything[-1:]
    assert read(channel, "1h", 10) == everything
    assert read(channel, None, 1) == [b"new"]
    assert ready(channel, stream) >= 0


def test_prefetch_limits_a_reader(channel: BlockingChannel, stream: str) -> None:
    found: list[bytes] = []
    own = channel.connection.channel()
    own.basic_qos(prefetch_count=4)
    arguments = {"x-stream-offset": "first"}
    own.basic_consume(stream, lambda *told: found.append(told[3]), arguments=arguments)
    wait_until(lambda: channel.connection.process_data_events(0.01) or len(found) == 4)
    channel.connection.process_data_events(0.1)
    assert len(found) == 4
    own.basic_ack(4, multiple=True)
    wait_until(lambda: channel.connection.process_data_events(0.01) or len(found) == 8)


@pytest.mark.parametrize(
    ("options", "prefetch"),
    [
        ({}, 0),
        ({"auto_ack": True}, 5),
        ({"arguments": {"x-stream-offset": "whenever"}}, 5),
        pytest.param({"arguments": {"x-stream-offset": -3}}, 5, marks=ours_only),
    ],
)
def test_how_a_stream_cannot_be_read(
    channel: BlockingChannel, stream: str, options: dict[str, Any], prefetch: int
) -> None:
    own = channel.connection.channel()
    own.basic_qos(prefetch_count=prefetch)
    with pytest.raises(AMQPError):
        own.basic_consume(stream, print, **options)


def test_intervals_are_of_known_length() -> None:
    assert _SECONDS["D"] == 24 * _SECONDS["h"]


@pytest.fixture
def kafka_too() -> Iterator[EmbeddedBroker]:
    """A broker of both protocols."""
    with onelog.embedded(amqp=True, kafka=True) as mq:
        yield mq


def _produce(mq: EmbeddedBroker, topic: str, partition: int, *bodies: bytes) -> None:
    sender = Producer({"bootstrap.servers": mq.bootstrap_servers})
    for body in bodies:
        sender.produce(topic, body, b"key", partition=partition, headers={"size": b"7"})
    assert sender.flush(SECONDS) == 0


def _heard(channel: BlockingChannel, topic: str, start: Any, count: int) -> list[tuple[Any, ...]]:
    """Of so many messages: where each lies, and its body."""
    found: list[tuple[Any, ...]] = []

    def heard(_: object, method: Any, properties: Any, body: bytes) -> None:
        headers = properties.headers
        place = headers.get("x-stream-partition"), headers["x-stream-offset"]
        found.append((*place, body, method.routing_key, headers.get("size")))
        own.basic_ack(method.delivery_tag)

    own = channel.connection.channel()
    own.basic_qos(prefetch_count=2)
    own.basic_consume(topic, heard, arguments={"x-stream-offset": start})
    wait_until(lambda: channel.connection.process_data_events(0.01) or len(found) >= count)
    own.close()
    return found


def test_a_topic_of_another_protocol_is_a_stream(kafka_too: EmbeddedBroker) -> None:
    kafka_too.create_topic("bills", queues=1)
    _produce(kafka_too, "bills", 0, b"one", b"two", b"three")
    with connected(kafka_too.amqp_url) as connection:
        channel = connection.channel()
        assert channel.queue_declare("bills", passive=True).method.message_count == 3
        found = _heard(channel, "bills", "first", 3)
        assert [each[2] for each in found] == [b"one", b"two", b"three"]
        assert found[0] == (None, 0, b"one", "bills", "7")
        assert [each[1:3] for each in _heard(channel, "bills", 1, 2)] == [
            (1, b"two"),
            (2, b"three"),
        ]
        for wrong in (channel.basic_get, channel.queue_purge):
            with pytest.raises(AMQPError):
                wrong("bills")
            channel = connection.channel()


def test_a_topic_with_several_queues_is_read_whole(kafka_too: EmbeddedBroker) -> None:
    kafka_too.create_topic("many", queues=3)
    for partition in range(3):
        _produce(kafka_too, "many", partition, *(b"%d" % number for number in range(5)))
    with connected(kafka_too.amqp_url) as connection:
        found = _heard(connection.channel(), "many", "first", 15)
    for partition in range(3):
        mine = [each[1:3] for each in found if each[0] == partition]
        assert mine == [(number, b"%d" % number) for number in range(5)]


def test_a_topic_is_published_to_by_its_name_and_by_bindings(kafka_too: EmbeddedBroker) -> None:
    kafka_too.create_topic("bills", queues=1)
    reader = Consumer(
        {
            "bootstrap.servers": kafka_too.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
    )
    reader.subscribe(["bills"])
    with connected(kafka_too.amqp_url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "bills", b"by name", mandatory=True)
        channel.queue_bind("bills", "amq.topic", "bill.#")
        channel.basic_publish("amq.topic", "bill.new", b"by binding", mandatory=True)
        found = _heard(channel, "bills", "first", 2)
        assert [each[2] for each in found] == [b"by name", b"by binding"]
        channel.queue_unbind("bills", "amq.topic", "bill.#")
        with pytest.raises(UnroutableError):
            channel.basic_publish("amq.topic", "bill.new", b"nowhere", mandatory=True)
        with pytest.raises(UnroutableError):
            channel.basic_publish("", "no topic", b"nowhere", mandatory=True)
    values: list[bytes | None] = []
    until = time.monotonic() + SECONDS
    while len(values) < 2 and time.monotonic() < until:
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value())
    reader.close()
    assert values == [b"by name", b"by binding"]


def test_what_a_transaction_of_kafkas_did_not_commit_is_not_delivered(
    kafka_too: EmbeddedBroker,
) -> None:
    kafka_too.create_topic("paid", queues=1)
    sender = Producer({"bootstrap.servers": kafka_too.bootstrap_servers, "transactional.id": "t"})
    sender.init_transactions(SECONDS)
    for body, end in ((b"no", sender.abort_transaction), (b"yes", sender.commit_transaction)):
        sender.begin_transaction()
        sender.produce("paid", body, partition=0)
        sender.flush(SECONDS)
        end(SECONDS)
    with connected(kafka_too.amqp_url) as connection:
        found = _heard(connection.channel(), "paid", "first", 1)
    assert [each[2] for each in found] == [b"yes"]
