"""Kafka's clients and RocketMQ's on one log: the same messages, in the same order."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message as KafkaMessage
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition

import onelog
from onelog.client import Message
from onelog.config_sources import load
from onelog.embedded_broker import EmbeddedBroker
from onelog.server import BrokerServer, nth_broker
from tests.gateways.kafka.live import SECONDS, address, consumer, kafka, produce, take
from tests.gateways.remoting.live import broker


def kafka_messages(mq: EmbeddedBroker, topic: str, count: int) -> list[KafkaMessage]:
    reader = consumer(mq.bootstrap_servers, "readers")
    reader.assign([TopicPartition(topic, 0, 0)])
    found = take(reader, count)
    reader.close()
    return found


def sdk_messages(mq: EmbeddedBroker, topic: str, count: int) -> list[Any]:
    found: list[Any] = []
    with mq.pull_consumer("readers") as reader:
        (queue,) = reader.queues(topic)
        reader.assign([queue])
        reader.seek(queue, 0)
        while len(found) < count:
            found += reader.poll(timeout=SECONDS)
    return found


def test_what_the_sdk_sends_kafkas_consumers_read(onelog_kafka: EmbeddedBroker) -> None:
    mq = onelog_kafka
    mq.create_topic("orders", 1)
    began_ms = int(time.time() * 1000) - 1
    with mq.producer("shop") as producer:
        for each in range(3):
            producer.send(
                Message("orders", b"body-%d" % each, keys=f"k{each}", properties={"colour": "red"})
            )
    found = kafka_messages(mq, "orders", 3)
    assert [each.value() for each in found] == [b"body-0", b"body-1", b"body-2"]
    assert [each.key() for each in found] == [b"k0", b"k1", b"k2"]
    assert dict(found[0].headers() or [])["colour"] == b"red"
    assert began_ms <= found[0].timestamp()[1] <= int(time.time() * 1000) + 1


def test_what_kafkas_producers_send_the_sdk_reads(onelog_kafka: EmbeddedBroker) -> None:
    mq = onelog_kafka
    mq.create_topic("orders", 1)
    producer = KafkaProducer({"bootstrap.servers": mq.bootstrap_servers, "compression.type": "lz4"})
    for each in range(3):
        producer.produce(
            "orders",
            b"body-%d" % each,
            f"k{each}",
            timestamp=1_700_000_000_000 + each,
            headers=[("colour", b"red"), ("raw", b"\xff")],
        )
    producer.produce("orders", None, "gone")
    assert producer.flush(SECONDS) == 0
    found = sdk_messages(mq, "orders", 4)
    assert [bytes(each.body) for each in found] == [b"body-0", b"body-1", b"body-2", b""]
    assert [each.keys for each in found][:3] == [["k0"], ["k1"], ["k2"]]
    assert found[0].properties["colour"] == "red"
    assert [each.born_ms for each in found[:3]] == [1_700_000_000_000 + each for each in range(3)]
    assert [each.offset for each in found] == [0, 1, 2, 3]


def test_both_write_one_topic_and_both_read_the_same_order(onelog_kafka: EmbeddedBroker) -> None:
    mq = onelog_kafka
    mq.create_topic("orders", 1)
    with mq.producer("shop") as producer:
        for each in range(5):
            produce(mq.bootstrap_servers, "orders", [b"kafka-%d" % each])
            producer.send(Message("orders", b"sdk-%d" % each))
    expected = [b"%b-%d" % (client, each) for each in range(5) for client in (b"kafka", b"sdk")]
    assert [each.value() for each in kafka_messages(mq, "orders", 10)] == expected
    assert [bytes(each.body) for each in sdk_messages(mq, "orders", 10)] == expected


def test_positions_of_a_group_are_the_same_for_both(onelog_kafka: EmbeddedBroker) -> None:
    mq = onelog_kafka
    mq.create_topic("orders", 1)
    produce(mq.bootstrap_servers, "orders", [b"%d" % each for each in range(6)])
    reader = consumer(mq.bootstrap_servers, "readers")
    reader.subscribe(["orders"])
    take(reader, 4)
    reader.commit(asynchronous=False)
    reader.close()
    with mq.admin() as admin:
        (progress,) = admin.groups.progress("readers").queues
        assert (progress.position, progress.max_offset) == (4, 6)


def test_an_embedded_broker_has_no_port_for_kafka_unless_it_is_asked_for() -> None:
    with onelog.embedded() as mq:
        assert mq.bootstrap_servers == ""


# -- its place in the server ---------------------------------------------------------------------


async def test_a_port_that_is_taken_is_left_out_unless_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kafka(tmp_path) as first:
        port = first.config.kafka.port
        monkeypatch.setattr(
            BrokerServer, "_has_configured_port", lambda self, section: section != "kafka"
        )
        async with broker(tmp_path / "second", kafka__port=port) as second:
            assert second.left_out.keys() == {"kafka"}
            assert "kafka.port" in second.left_out["kafka"]
        monkeypatch.undo()
        with pytest.raises(onelog.errors.ListenError, match=r"kafka\.port"):
            await BrokerServer(
                load(
                    overrides={
                        "broker.port": 0,
                        "broker.vip_port": 0,
                        "broker.nameservers": "",
                        "broker.store_path": str(tmp_path / "third"),
                        "kafka.port": port,
                    }
                )
            ).start()


def test_each_of_several_brokers_has_the_next_port() -> None:
    loaded = load(overrides={"kafka.port": 9092})
    assert nth_broker(loaded, 2).config.kafka.port == 9094
    assert nth_broker(load(overrides={"kafka.port": 0}), 2).config.kafka.port == 0


async def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    values: list[bytes | None] = [b"%d" % each for each in range(100)]
    async with kafka(tmp_path) as server:
        await asyncio.to_thread(produce, address(server), "orders", values)
    async with kafka(tmp_path) as server:
        reader = consumer(address(server), "readers")
        reader.assign([TopicPartition("orders", 0, 0)])
        found = await asyncio.to_thread(take, reader, 100)
        assert [each.value() for each in found] == values
        await asyncio.to_thread(reader.close)
