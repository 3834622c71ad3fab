"""The broker's own records: no port reads them, writes among them, or deletes them, for anybody."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.names import (
    COMPACTED_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TABLES_TOPIC,
    TIMER_TOPIC,
)
from onelog.server import BrokerServer
from onelog.wire.kafka.codes import ApiKey
from tests.gateways.amqp.live import connected
from tests.gateways.kafka.raw import batch_of, raw
from tests.gateways.mqtt.raw import Raw as MqttClient
from tests.gateways.remoting.live import broker
from tests.gateways.stomp.live import Bare
from tests.security.secrets import PORTS

MARK = b"smuggled among the broker's own"
TOPICS = (
    TABLES_TOPIC,
    "onelog_sys_leases",
    COMPACTED_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[BrokerServer]:
    """A broker without users: everybody may do everything that anybody may."""
    async with broker(folder, **PORTS) as server:
        server.broker.topics.create(SELF, TopicConfig("one", 1, 1))
        yield server
        store = server.core.store
        for topic in TOPICS:
            for queue_id in store.queues().get(topic, ()):
                assert store.min_offset(topic, queue_id) == 0
                found = store.messages(topic, queue_id, 0, 10_000)
                assert not [each for each in found if MARK in bytes(each.body)], topic


async def over_kafka(server: BrokerServer, topic: str) -> None:
    async with raw(server) as client:
        assert (await client.fetch(topic, 0))["error_code"]
        assert (await client.produce(topic, batch_of(MARK)))["error_code"]
        told = await client.ask(
            ApiKey.DELETE_RECORDS,
            2,
            {
                "topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": 1}]}],
                "timeout_ms": 1_000,
            },
        )
        assert told["topics"][0]["partitions"][0]["error_code"]
        wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1}
        told = await client.ask(ApiKey.CREATE_TOPICS, 5, {"topics": [wanted], "timeout_ms": 1_000})
        assert told["topics"][0]["error_code"]
        told = await client.ask(
            ApiKey.DELETE_TOPICS, 5, {"topic_names": [topic], "timeout_ms": 1_000}
        )
        assert told["responses"][0]["error_code"]


def over_amqp(server: BrokerServer, topic: str) -> None:
    with connected(f"amqp://127.0.0.1:{server.config.amqp.port}/%2f") as connection:

        def tried(act: Callable[[BlockingChannel], None]) -> None:
            channel = connection.channel()
            with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
                act(channel)
                channel.close()

        def as_queue(channel: BlockingChannel) -> None:
            assert channel.queue_declare(topic, durable=True).method.message_count == 0
            channel.basic_publish("", topic, MARK)
            channel.queue_delete(topic)

        def as_stream(channel: BlockingChannel) -> None:
            how = {"x-queue-type": "stream"}
            channel.queue_declare(topic, durable=True, arguments=how)
            channel.basic_qos(prefetch_count=100)
            first = {"x-stream-offset": "first"}
            got: list[bytes] = []
            channel.basic_consume(topic, lambda *each: got.append(each[-1]), arguments=first)
            connection.process_data_events(0.3)
            assert got == []

        def as_exchange(channel: BlockingChannel) -> None:
            channel.exchange_declare(topic, "fanout", durable=True)
            channel.basic_publish(topic, "", MARK)

        def as_dead_letters(channel: BlockingChannel) -> None:
            how = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": topic}
            channel.queue_declare("limited", arguments={**how, "x-max-length": 0})
            channel.basic_publish("", "limited", MARK)

        for act in (as_queue, as_stream, as_exchange, as_dead_letters):
            tried(act)


def over_stomp(server: BrokerServer, topic: str) -> None:
    address = ("127.0.0.1", server.config.stomp.port)
    for kind in ("/topic/", "/queue/", "/exchange/amq.topic/", "/amq/queue/", "/exchange/", ""):
        with Bare(address) as client:
            client.connect()
            with contextlib.suppress(EOFError, OSError):
                where = f"destination:{kind}{topic}"
                client.say(f"SUBSCRIBE\nid:1\n{where}\nreceipt:a\n\n\0".encode())
                assert client.hear().command in ("RECEIPT", "ERROR"), kind
                client.say(f"SEND\n{where}\nreceipt:b\n\n".encode() + MARK + b"\0")
                for _ in range(2):
                    frame = client.hear()
                    if frame.command != "MESSAGE":
                        break
                    assert frame.body == MARK, kind  # Its own: it is an ordinary place.


def over_mqtt(server: BrokerServer, topic: str) -> None:
    with MqttClient(server.config.mqtt.port) as client:
        client.connect("thief")
        client.subscribe((topic, 1), (f"{topic}/#", 1), (f"$share/thieves/{topic}", 1), ("#", 1))
        assert client.is_quiet()
        with contextlib.suppress(OSError):
            client.publish(topic, MARK, 1, 7, retain=True)
            client.is_quiet()


@pytest.mark.parametrize("topic", TOPICS)
async def test_no_port_reads_or_writes_among_the_brokers_own(tmp_path: Path, topic: str) -> None:
    async with opened(tmp_path) as server:
        await over_kafka(server, topic)
        for talk in (over_amqp, over_stomp, over_mqtt):
            await asyncio.to_thread(talk, server, topic)
