"""MQTT and the others on one log: what flows into topics, and back to subscribers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer

import onelog
from onelog.client import Message
from onelog.embedded_broker import EmbeddedBroker
from onelog.wire.mqtt.codes import Packet
from onelog.wire.mqtt.properties import Properties, Property
from tests.gateways.mqtt.raw import properties_of, v5

KEPT: Properties = {Property.SESSION_EXPIRY: 1_000}


@pytest.fixture(scope="module")
def mq() -> Iterator[EmbeddedBroker]:
    with onelog.embedded(port=0, mqtt=True, kafka=True) as broker:
        yield broker


def bind(mq: EmbeddedBroker, *words: str) -> str:
    """`onelog bind`."""
    command = [sys.executable, "-m", "onelog", "bind", *words, "--nameserver", mq.nameserver]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_topics_of_mqtt_flow_into_a_topic_that_others_read(mq: EmbeddedBroker) -> None:
    assert "bound" in bind(mq, "sensors/+/temperature", "sensors")
    assert "sensors/+/temperature" in bind(mq)
    with v5(mq.mqtt_port) as client:
        client.connect("thermometer")
        about: Properties = {
            Property.USER_PROPERTY: [("unit", "C")],
            Property.CONTENT_TYPE: "text/plain",
        }
        client.publish("sensors/7/temperature", b"21.5", 1, 1, about=about)
        assert client.expect(Packet.PUBACK).reason == 0
        client.publish("sensors/7/humidity", b"40", 1, 2)
        client.expect(Packet.PUBACK)
    consumer = KafkaConsumer(
        "sensors",
        bootstrap_servers=mq.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    record = next(consumer)
    consumer.close()
    assert record.value == b"21.5"
    headers = dict(record.headers)
    assert headers["mqtt.topic"] == b"sensors/7/temperature"
    assert headers["unit"] == b"C"
    assert headers["content-type"] == b"text/plain"
    with mq.pull_consumer("readers", start="first") as reader:
        reader.subscribe("sensors")
        found = reader.poll(20)
        assert found[0].body == b"21.5"
        assert found[0].properties["mqtt.topic"] == "sensors/7/temperature"
    bind(mq, "sensors/+/temperature", "sensors", "--remove")
    assert "sensors/+/temperature" not in bind(mq)


def test_what_others_send_to_a_topic_reaches_subscribers(mq: EmbeddedBroker) -> None:
    bind(mq, "commands/all", "commands", "--back")
    with v5(mq.mqtt_port) as away:
        away.connect("away", properties=KEPT)
        away.subscribe(("commands/#", 1))
    with v5(mq.mqtt_port) as live:
        live.connect("live")
        live.subscribe(("commands/#", 1), ("devices/+/do", 1))
        producer = KafkaProducer(bootstrap_servers=mq.bootstrap_servers)
        producer.send("commands", b"on", headers=[("by", b"kafka")]).get(20)
        to_one = [("mqtt.topic", b"devices/7/do")]
        producer.send("commands", b"blink", headers=to_one).get(20)
        producer.close()
        with mq.producer("shop") as sender:
            sender.send(Message("commands", b"off", properties={"by": "rocketmq"}))
        first, second, third = (live.message() for _ in range(3))
        assert (first.topic, first.payload) == (b"commands/all", b"on")
        assert properties_of(first)[Property.USER_PROPERTY] == [("by", "kafka")]
        assert (second.topic, second.payload) == (b"devices/7/do", b"blink")
        assert (third.topic, third.payload) == (b"commands/all", b"off")
        assert ("by", "rocketmq") in properties_of(third)[Property.USER_PROPERTY]
    with v5(mq.mqtt_port) as away:
        away.connect("away", clean=False, properties=KEPT)
        assert [each.payload for each in away.messages(2)] == [b"on", b"off"]


def test_both_ways_at_once_make_no_circle(mq: EmbeddedBroker) -> None:
    bind(mq, "circle/#", "circle")
    bind(mq, "circle/back", "circle", "--back")
    with v5(mq.mqtt_port) as client:
        client.connect("circle")
        client.subscribe(("circle/#", 1))
        client.publish("circle/x", b"1", 1, 1)
        client.publish("circle/x", b"2", 1, 2)
        with mq.producer("shop") as sender:
            sender.send(Message("circle", b"3"))
        found: set[bytes] = set()
        while len(found) < 3:
            head, body = client.read()
            if head >> 4 == Packet.PUBLISH:
                found.add(body[-1:])
        assert found == {b"1", b"2", b"3"}
        assert client.is_quiet()
    with mq.admin() as admin:
        queues = admin.topics.status("circle").queues
        assert sum(each.max_offset - each.min_offset for each in queues) == 3


def test_bindings_are_there_after_a_restart(tmp_path: Path) -> None:
    with onelog.embedded(tmp_path, port=0, mqtt=True) as mq:
        bind(mq, "kept/#", "kept")
        bind(mq, "out", "sent", "--back")
    with onelog.embedded(tmp_path, port=0, mqtt=True) as mq, v5(mq.mqtt_port) as client:
        client.connect("c")
        client.subscribe(("out", 0))
        client.publish("kept/x", b"kept", 1, 1)
        assert client.expect(Packet.PUBACK).reason == 0
        with mq.producer("shop") as sender:
            sender.send(Message("sent", b"out"))
        assert client.message().payload == b"out"
