"""Every protocol reads what every protocol sends: key, headers and body, of one stored message.

Each sender has a topic, and a queue for readers of AMQP and STOMP. What is published to `amq.topic`
(AMQP, STOMP, MQTT) flows into the topic by a binding; what is sent to the topic itself (RocketMQ,
Kafka, HTTP, Spark) flows back to `amq.topic`. One broker serves all 49 pairs.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import kafka
import paho.mqtt.client
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import onelog
from onelog.client.message import Message
from onelog.embedded_broker import EmbeddedBroker
from onelog.spark.brokers import disconnect
from tests.gateways.stomp.live import connected
from tests.ports import free_port
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROTOCOLS = ("rocketmq", "kafka", "amqp", "stomp", "mqtt", "http", "spark")
BY_EXCHANGE = ("amqp", "stomp", "mqtt")
"""These publish to `amq.topic`; the others send to the topic."""
HEADERS = {"color": "red", "größe": "7"}
SECONDS = 60


class Told(NamedTuple):
    """A message as somebody read it."""

    key: str | None
    body: str
    headers: dict[str, str]


def topic(sender: str) -> str:
    return f"from-{sender}"


def queue(sender: str) -> str:
    return f"read-{sender}"


def body(sender: str) -> str:
    return f"hällo from {sender}"


class Bench:
    """A broker with all protocols, and a client of each."""

    def __init__(self, mq: EmbeddedBroker, http_port: int, spark: "SparkSession") -> None:
        self.mq, self.spark = mq, spark
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{http_port}", timeout=SECONDS)
        # Spark may take minutes on a busy machine, in which nobody sends heart-beats.
        self.amqp = pika.BlockingConnection(pika.URLParameters(f"{mq.amqp_url}?heartbeat=0"))
        self.channel = self.amqp.channel()
        self.arrived: dict[str, Told] = {}
        self.mqtt = paho.mqtt.client.Client(
            CallbackAPIVersion.VERSION2, "matrix", protocol=paho.mqtt.client.MQTTv5
        )
        self.mqtt.on_message = self._heard
        subscribed: list[bool] = []
        self.mqtt.on_connect = self._subscribe
        self.mqtt.on_subscribe = lambda *_: subscribed.append(True)
        self.mqtt.connect("127.0.0.1", mq.mqtt_port)
        self.mqtt.loop_start()
        wait_until(lambda: bool(subscribed))

    def declare(self) -> None:
        with self.mq.admin() as admin:
            for sender in PROTOCOLS:
                self.mq.create_topic(topic(sender), 1)
                admin.bindings.change(
                    f"from/{sender}", topic(sender), back=sender not in BY_EXCHANGE
                )
                self.channel.queue_declare(queue(sender), durable=True)
                self.channel.queue_bind(queue(sender), "amq.topic", f"from.{sender}")

    def close(self) -> None:
        self.http.close()
        self.amqp.close()
        self.mqtt.disconnect()
        self.mqtt.loop_stop()
        disconnect()

    def _subscribe(self, *_: object) -> None:
        self.mqtt.subscribe("from/#", 1)

    def _heard(self, client: object, data: object, message: Any) -> None:
        pairs = dict(getattr(message.properties, "UserProperty", []))
        sender = message.topic.removeprefix("from/")
        self.arrived[sender] = Told(pairs.pop("__key", None), message.payload.decode(), pairs)


# -- senders ---------------------------------------------------------------------------------------


def send_rocketmq(bench: Bench, key: str) -> None:
    with bench.mq.producer("matrix") as producer:
        producer.send(
            Message(topic("rocketmq"), body("rocketmq").encode(), keys=[key], properties=HEADERS)
        )


def send_kafka(bench: Bench, key: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bench.mq.bootstrap_servers)
    headers = [(name, value.encode()) for name, value in HEADERS.items()]
    sent = producer.send(topic("kafka"), body("kafka").encode(), key.encode(), headers)
    sent.get(SECONDS)
    producer.close()


def send_amqp(bench: Bench, key: str) -> None:
    properties = pika.BasicProperties(message_id=key, headers=HEADERS, delivery_mode=2)
    bench.channel.basic_publish("amq.topic", "from.amqp", body("amqp").encode(), properties)


def send_stomp(bench: Bench, key: str) -> None:
    with connected(bench.mq.stomp_address) as client:
        headers = {"amqp-message-id": key, **HEADERS}
        client.send("/topic/from.stomp", body("stomp"), **headers)


def send_mqtt(bench: Bench, key: str) -> None:
    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = [("__key", key), *HEADERS.items()]
    sent = bench.mqtt.publish("from/mqtt", body("mqtt"), 1, properties=properties)
    sent.wait_for_publish(SECONDS)


def send_http(bench: Bench, key: str) -> None:
    message = {"key": key, "body": body("http"), "headers": HEADERS}
    answer = bench.http.post(
        f"/v1/topics/{topic('http')}/produce-json", json={"messages": [message]}
    )
    assert answer.status_code == 200, answer.text


def send_spark(bench: Bench, key: str) -> None:
    rows = bench.spark.createDataFrame(
        [(key, body("spark"), HEADERS)], "key string, body string, properties map<string, string>"
    )
    rows.write.format("onelog").mode("append").options(
        nameserver=bench.mq.nameserver, topic=topic("spark")
    ).save()


SENDERS = {name: globals()[f"send_{name}"] for name in PROTOCOLS}

# -- readers ---------------------------------------------------------------------------------------


def read_rocketmq(bench: Bench) -> dict[str, Told]:
    found: dict[str, Told] = {}
    with bench.mq.pull_consumer("readers", start="first") as consumer:
        for sender in PROTOCOLS:
            consumer.subscribe(topic(sender))
        while len(found) < len(PROTOCOLS):
            for message in consumer.poll(timeout=SECONDS):
                key = " ".join(message.keys) or None
                sender = message.topic.removeprefix("from-")
                found[sender] = Told(key, message.body.decode(), dict(message.properties))
    return found


def read_kafka(bench: Bench) -> dict[str, Told]:
    consumer = kafka.KafkaConsumer(
        *map(topic, PROTOCOLS),
        bootstrap_servers=bench.mq.bootstrap_servers,
        auto_offset_reset="earliest",
        group_id=None,
        consumer_timeout_ms=SECONDS * 1000,
    )
    found = {}
    for each in consumer:
        key = None if each.key is None else each.key.decode()
        headers = {name: (value or b"").decode("utf-8", "replace") for name, value in each.headers}
        found[each.topic.removeprefix("from-")] = Told(key, each.value.decode(), headers)
        if len(found) == len(PROTOCOLS):
            break
    consumer.close()
    return found


def read_amqp(bench: Bench) -> dict[str, Told]:
    found = {}
    for sender in PROTOCOLS:
        method, properties, content = bench.channel.basic_get(queue(sender))
        assert method is not None, sender
        bench.channel.basic_nack(method.delivery_tag, requeue=True)
        headers = {name: str(value) for name, value in (properties.headers or {}).items()}
        found[sender] = Told(properties.message_id, content.decode(), headers)
    return found


def read_stomp(bench: Bench) -> dict[str, Told]:
    found = {}
    with connected(bench.mq.stomp_address) as client:
        for sender in PROTOCOLS:
            client.subscribe(f"/queue/{queue(sender)}", sender, browser="true")
            heard = client.get()
            assert client.get().headers["browser"] == "end"
            key = heard.headers.get("amqp-message-id")
            found[sender] = Told(key, heard.body, heard.headers)
    return found


def read_mqtt(bench: Bench) -> dict[str, Told]:
    wait_until(lambda: len(bench.arrived) == len(PROTOCOLS))
    return bench.arrived


def read_http(bench: Bench) -> dict[str, Told]:
    found = {}
    for sender in PROTOCOLS:
        (message,) = bench.http.get(f"/v1/topics/{topic(sender)}/peek").json()["messages"]
        found[sender] = Told(message["key"], message["body"], message["headers"])
    return found


def read_spark(bench: Bench) -> dict[str, Told]:
    found = {}
    table = bench.spark.read.format("onelog").options(
        nameserver=bench.mq.nameserver, topic=",".join(map(topic, PROTOCOLS))
    )
    columns = ("topic", "key", "cast(body as string) body", "properties")
    for row in table.load().selectExpr(*columns).collect():
        sender = row["topic"].removeprefix("from-")
        found[sender] = Told(row["key"], row["body"], dict(row["properties"]))
    return found


READERS = {name: globals()[f"read_{name}"] for name in PROTOCOLS}


@pytest.fixture(scope="module")
def told(spark: "SparkSession") -> Iterator[dict[str, dict[str, Told]]]:
    """What each protocol reads, by reader and sender."""
    port = free_port()
    with onelog.embedded(
        port=0, kafka=True, amqp=True, stomp=True, mqtt=True, http__port=port
    ) as mq:
        bench = Bench(mq, port, spark)
        try:
            bench.declare()
            for sender, send in SENDERS.items():
                send(bench, f"key-{sender}")
            yield {reader: read(bench) for reader, read in READERS.items()}
        finally:
            bench.close()


@pytest.mark.parametrize("reader", PROTOCOLS)
@pytest.mark.parametrize("sender", PROTOCOLS)
def test_what_one_sends_the_other_reads(
    told: dict[str, dict[str, Told]], sender: str, reader: str
) -> None:
    found = told[reader][sender]
    assert (found.key, found.body) == (f"key-{sender}", body(sender))
    assert {name: found.headers.get(name) for name in HEADERS} == HEADERS
