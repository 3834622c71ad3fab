"""Fixtures, `onelog_broker` and others by protocol: a broker for each test, in its process.

    def test_orders_are_billed(onelog_broker):
        with onelog_broker.producer("shop") as producer:
            producer.send(Message("orders", b"42"))

    def test_bills_are_sent(onelog_kafka):
        producer = KafkaProducer(bootstrap_servers=onelog_kafka.bootstrap_servers)

    def test_mails_are_queued(onelog_amqp):
        connection = pika.BlockingConnection(pika.URLParameters(onelog_amqp.amqp_url))

    def test_parcels_are_sent(onelog_stomp):
        connection = stomp.Connection12([onelog_stomp.stomp_address])

    def test_lamps_are_switched(onelog_mqtt):
        client.connect("127.0.0.1", onelog_mqtt.mqtt_port)

pytest loads this module in every run, before it measures coverage: so it imports nothing of OneLog
until a test asks for the fixture. Tests that are coroutines can use it, too: they give
`onelog_broker.nameserver` to the asyncio clients.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from onelog.embedded_broker import EmbeddedBroker


@pytest.fixture
def onelog_broker() -> "Iterator[EmbeddedBroker]":
    """A fresh broker and its name server, without sockets; gone when the test ends."""
    import onelog

    with onelog.embedded() as mq:
        yield mq


@pytest.fixture
def onelog_kafka() -> "Iterator[EmbeddedBroker]":
    """The same with a port for Kafka's clients, at its `bootstrap_servers`."""
    import onelog

    with onelog.embedded(kafka=True) as mq:
        yield mq


@pytest.fixture
def onelog_amqp() -> "Iterator[EmbeddedBroker]":
    """The same with a port for RabbitMQ's clients, at its `amqp_url`."""
    import onelog

    with onelog.embedded(amqp=True) as mq:
        yield mq


@pytest.fixture
def onelog_stomp() -> "Iterator[EmbeddedBroker]":
    """The same with a port for STOMP's clients, at its `stomp_address`."""
    import onelog

    with onelog.embedded(stomp=True) as mq:
        yield mq


@pytest.fixture
def onelog_mqtt() -> "Iterator[EmbeddedBroker]":
    """The same with a port for MQTT's clients, its `mqtt_port`."""
    import onelog

    with onelog.embedded(mqtt=True) as mq:
        yield mq
