"""Other people's clients: kombu, aio-pika, Celery; and the same messages in other protocols."""

import contextlib
import importlib
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import aio_pika
import pytest
from celery.canvas import chord, group
from confluent_kafka import Consumer, Producer

import onelog
from onelog.client import Message
from onelog.embedded_broker import EmbeddedBroker
from tests.gateways.amqp.live import SECONDS, bodies, connected, got, name, ready, send
from tests.waiting import wait_until

# Its types are not all there.
kombu: Any = importlib.import_module("kombu")


@pytest.fixture
def mq() -> Iterator[EmbeddedBroker]:
    """A broker with all ports that these tests need."""
    with onelog.embedded(amqp=True, kafka=True) as mq:
        yield mq


def test_kombu_sends_and_receives(mq: EmbeddedBroker) -> None:
    exchange = kombu.Exchange("media", "topic", durable=True)
    queue = kombu.Queue("video", exchange=exchange, routing_key="video.#")
    found: list[Any] = []

    def heard(body: Any, message: Any) -> None:
        found.append(body)
        message.ack()

    with kombu.Connection(mq.amqp_url) as connection:
        assert connection.connection.server_properties["product"] == "RabbitMQ"
        producer = connection.Producer(serializer="json")
        for number in range(3):
            producer.publish(
                {"name": number}, exchange=exchange, routing_key=f"video.{number}", declare=[queue]
            )
        with connection.Consumer(queue, callbacks=[heard]):
            while len(found) < 3:
                connection.drain_events(timeout=SECONDS)
        assert found == [{"name": number} for number in range(3)]
        simple = connection.SimpleQueue("simple")
        simple.put("hello")
        message = simple.get(timeout=SECONDS)
        assert message.payload == "hello"
        message.ack()
        simple.close()


async def test_aio_pika_sends_and_receives() -> None:
    async with onelog.embedded(amqp=True) as mq:
        connection = await aio_pika.connect_robust(mq.amqp_url)
        async with connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.set_qos(prefetch_count=5)
            exchange = await channel.declare_exchange("x", aio_pika.ExchangeType.TOPIC)
            queue = await channel.declare_queue("aio", durable=True)
            await queue.bind(exchange, "a.*")
            for number in range(20):
                message = aio_pika.Message(b"%d" % number, headers={"n": number})
                await exchange.publish(message, "a.b")
            found = []
            async with queue.iterator() as messages:
                async for each in messages:
                    async with each.process():
                        found.append((each.body, each.headers["n"]))
                    if len(found) == 20:
                        break
            assert found == [(b"%d" % number, number) for number in range(20)]
            own = await connection.channel(publisher_confirms=False)
            async with own.transaction():
                await own.default_exchange.publish(aio_pika.Message(b"tx"), "aio")
            assert (await queue.get(timeout=SECONDS)).body == b"tx"


# -- Celery --------------------------------------------------------------------------------------


@contextlib.contextmanager
def working(url: str, backend: str, folder: Path, queues: str = "classic") -> Iterator[Any]:
    """The tasks of a shop, and a worker that does them."""
    settings = {"SHOP_BROKER": url, "SHOP_BACKEND": backend, "SHOP_QUEUES": queues}
    environment = {**os.environ, **settings}
    command = [sys.executable, "-m", "celery", "-A", "celery_shop", "worker", "-l", "INFO"]
    command += ["--concurrency", "2", "-P", "threads", "--without-mingle", "--without-gossip"]
    with mock.patch.dict(os.environ, settings):
        module = runpy.run_path(str(Path(__file__).parent / "celery_shop.py"))
    app = module["app"]
    app.conf.update(broker_url=url, result_backend=backend)
    # In a folder of the tests, so that the worker finds the module of its tasks.
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            command, cwd=Path(__file__).parent, env=environment, stdout=log, stderr=log
        )
    try:
        yield module
    finally:
        worker.kill()
        worker.wait()
        app.close()


@pytest.mark.filterwarnings("ignore")
def test_celery_runs_a_canvas(mq: EmbeddedBroker, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    with working(mq.amqp_url, f"file://{results}", tmp_path) as shop:
        add, total, flaky = shop["add"], shop["total"], shop["flaky"]
        assert add.delay(1, 2).get(timeout=SECONDS) == 3
        both = group(add.s(number, number) for number in range(5))()
        assert both.get(timeout=SECONDS) == [0, 2, 4, 6, 8]
        began = time.monotonic()
        assert add.apply_async((3, 4), countdown=0.5).get(timeout=SECONDS) == 7
        assert time.monotonic() - began >= 0.4
        assert flaky.delay(str(tmp_path / "notes")).get(timeout=SECONDS) == 3
        assert (add.s(1, 1) | add.s(10)).delay().get(timeout=SECONDS) == 12
        asked = chord((add.s(number, 1) for number in range(4)), total.s())()
        assert asked.get(timeout=SECONDS) == 10


@pytest.mark.filterwarnings("ignore")
def test_celery_delays_tasks_in_quorum_queues(mq: EmbeddedBroker, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    with working(mq.amqp_url, f"file://{results}", tmp_path, "quorum") as shop:
        add = shop["add"]
        assert add.delay(1, 2).get(timeout=SECONDS) == 3
        began = time.monotonic()
        due = datetime.now(UTC) + timedelta(seconds=2)
        waiting = [add.apply_async((3, 4), countdown=1), add.apply_async((3, 5), eta=due)]
        assert [each.get(timeout=SECONDS) for each in waiting] == [7, 8]
        assert time.monotonic() - began >= 1
        assert shop["flaky"].delay(str(tmp_path / "notes")).get(timeout=SECONDS) == 3
        with connected(mq.amqp_url) as connection:
            years = {
                "x-message-ttl": 2**27 * 1000,
                "x-queue-type": "quorum",
                "x-overflow": "reject-publish",
                "x-dead-letter-exchange": "celery_delayed_26",
                "x-dead-letter-strategy": "at-least-once",
            }
            connection.channel().queue_declare("celery_delayed_27", durable=True, arguments=years)
        add.apply_async((1, 1), countdown=2**27)
        asked = add.apply_async((5, 6), countdown=2)
    time.sleep(2.5)  # Nobody works while it falls due.
    with working(mq.amqp_url, f"file://{results}", tmp_path, "quorum"):
        assert asked.get(timeout=SECONDS) == 11
    assert b"PRECONDITION" not in (tmp_path / "worker.log").read_bytes()


@pytest.mark.filterwarnings("ignore")
def test_celery_gets_results_by_rpc(mq: EmbeddedBroker, tmp_path: Path) -> None:
    with working(mq.amqp_url, "rpc://", tmp_path) as shop:
        asked = [shop["add"].delay(number, number) for number in range(20)]
        assert [each.get(timeout=SECONDS) for each in asked] == [2 * n for n in range(20)]


# -- other protocols -----------------------------------------------------------------------------


def test_what_amqp_publishes_others_read(mq: EmbeddedBroker) -> None:
    with connected(mq.amqp_url) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        send(channel, "orders", b"1", b"2", b"3")
        with mq.pull_consumer("readers", start="first") as consumer:
            found: list[bytes] = []
            consumer.subscribe("orders")
            until = time.monotonic() + SECONDS
            while len(found) < 3 and time.monotonic() < until:
                found += [message.body for message in consumer.poll(1.0)]
            assert found == [b"1", b"2", b"3"]
        reader = Consumer(
            {
                "bootstrap.servers": mq.bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
            }
        )
        reader.subscribe(["orders"])
        values: list[bytes | None] = []
        until = time.monotonic() + SECONDS
        while len(values) < 3 and time.monotonic() < until:
            message = reader.poll(0.5)
            if message is not None:
                assert message.error() is None
                values.append(message.value())
        reader.close()
        assert values == [b"1", b"2", b"3"]
        assert bodies(channel, "orders") == [b"1", b"2", b"3"]


def test_what_others_send_amqp_consumes(mq: EmbeddedBroker) -> None:
    with connected(mq.amqp_url) as connection:
        channel = connection.channel()
        channel.queue_declare("bills", durable=True)
        with mq.producer("shop") as producer:
            producer.send(Message("bills", b"rocket", keys="k", properties={"colour": "red"}))
        sender = Producer({"bootstrap.servers": mq.bootstrap_servers})
        sender.produce("bills", b"kafka", b"key", partition=0, headers={"size": b"7"})
        assert sender.flush(SECONDS) == 0
        wait_until(lambda: ready(channel, "bills") == 2)
        method, properties, body = got(channel, "bills", auto_ack=False)
        assert (body, method.exchange, method.routing_key) == (b"rocket", "", "bills")
        assert properties.headers["colour"] == "red"
        channel.basic_ack(method.delivery_tag)
        _, properties, body = got(channel, "bills")
        assert body == b"kafka"
        assert properties.message_id == "key"
        assert properties.headers["size"] == "7"
        assert ready(channel, "bills") == 0


def test_the_fixture_gives_a_url(onelog_amqp: EmbeddedBroker) -> None:
    with connected(onelog_amqp.amqp_url) as connection:
        channel = connection.channel()
        queue = name(channel)
        send(channel, queue, b"x")
        assert got(channel, queue)[2] == b"x"
