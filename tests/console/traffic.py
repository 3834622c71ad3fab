"""Traffic of every protocol, by other people's clients, for pages that show it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx

from onelog.client import AsyncProducer, Message
from onelog.config import Value
from onelog.server import BrokerServer
from tests.console.live import cluster

PORTS: dict[str, Value] = {
    "kafka__port": -1,
    "amqp__port": -1,
    "stomp__port": -1,
    "mqtt__port": -1,
    "grpc__port": -1,
}


@contextlib.asynccontextmanager
async def busy(
    folder: Path, count: int = 3, **settings: Value
) -> AsyncIterator[tuple[BrokerServer, httpx.AsyncClient, str]]:
    """A broker to which clients of all protocols have sent something, and still are connected."""
    async with cluster(folder, **{**PORTS, **settings}) as (server, web, names):
        await web.post("/v1/topics", json={"name": "orders", "queues": 2})
        async with AsyncProducer("shop", nameserver=names) as producer:
            for number in range(count):
                body = f'{{"order": {number}}}'.encode()
                message = Message(
                    "orders",
                    body,
                    keys=(f"rocketmq-{number}",),
                    tags="paid",
                    properties={"colour": "red"},
                )
                await producer.send(message)
            async with contextlib.AsyncExitStack() as stack:
                for client in (kafka, amqp, stomp, mqtt):
                    made = await asyncio.to_thread(_entered, client(server, count))
                    stack.push_async_callback(asyncio.to_thread, _left, made)
                for number in range(count):
                    sent = await web.post(
                        "/v1/topics/orders/produce",
                        content=b"http",
                        headers={
                            "onelog-key": f"http-{number}",
                            "onelog-header-colour": "white",
                            "content-type": "application/octet-stream",
                        },
                    )
                    assert sent.status_code < 300, sent.text
                yield server, web, names


def _entered(steps: Iterator[None]) -> Iterator[None]:
    next(steps)
    return steps


def _left(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def kafka(server: BrokerServer, count: int) -> Iterator[None]:
    """librdkafka: a producer, and a consumer in a group."""
    from confluent_kafka import Consumer, Producer

    at = {"bootstrap.servers": f"127.0.0.1:{server.config.kafka.port}"}
    producer = Producer({**at, "linger.ms": 50})
    for number in range(count):
        headers: list[Any] = [("colour", b"blue")]
        producer.produce("orders", b"kafka", f"kafka-{number}".encode(), headers=headers)
    producer.flush(30)
    consumer = Consumer({**at, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    for _ in range(200):
        found = consumer.poll(0.3)
        if found is not None and found.error() is None:
            consumer.commit(message=found, asynchronous=False)
            break
    yield
    consumer.close()


def amqp(server: BrokerServer, count: int) -> Iterator[None]:
    """pika: a queue, an exchange, a binding and messages."""
    import pika

    connection = pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", server.config.amqp.port, heartbeat=0)
    )
    channel = connection.channel()
    channel.queue_declare("jobs", durable=True)
    channel.exchange_declare("shop", "topic", durable=True)
    channel.queue_bind("jobs", "shop", "order.*")
    channel.queue_bind("jobs", "amq.topic", "shop.*")
    for number in range(count):
        properties = pika.BasicProperties(
            content_type="text/plain",
            message_id=f"amqp-{number}",
            delivery_mode=2,
            headers={"colour": "green", "size": 7},
        )
        channel.basic_publish("shop", "order.new", b"amqp", properties)
    channel.queue_declare("jobs", passive=True)
    yield
    connection.close()


def stomp(server: BrokerServer, count: int) -> Iterator[None]:
    """stomp.py: messages to the same queue."""
    import stomp as client

    connection = client.Connection12([("127.0.0.1", server.config.stomp.port)])
    connection.connect("guest", "guest", wait=True)
    for number in range(count):
        headers = {"amqp-message-id": f"stomp-{number}", "colour": "yellow", "receipt": f"{number}"}
        connection.send("/queue/jobs", "stomp", "text/plain", headers)
    yield
    connection.disconnect()


def mqtt(server: BrokerServer, count: int) -> Iterator[None]:
    """paho: messages of version 5 to a topic to which the queue is bound."""
    import paho.mqtt.client as paho
    from paho.mqtt.enums import CallbackAPIVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    client = paho.Client(CallbackAPIVersion.VERSION2, "sensor-1", protocol=paho.MQTTv5)
    said: list[str] = []
    client.on_log = lambda client, data, level, text: said.append(text)
    client.connect("127.0.0.1", server.config.mqtt.port)
    client.loop_start()
    for _ in range(count):
        properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.UserProperty = [("colour", "black")]
        properties.ContentType = "text/plain"
        sent = client.publish("shop/mqtt", b"mqtt", 1, properties=properties)
        sent.wait_for_publish(30)
        assert sent.is_published(), said
    yield
    client.disconnect()
    client.loop_stop()
