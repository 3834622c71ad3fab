"""Spans of the broker, received by a collector that speaks OTLP."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from onelog.client import AsyncProducer, Message
from onelog.errors import OnelogError
from onelog.server import BrokerServer
from onelog.wire.remoting.codes import ResponseCode
from tests.console.live import cluster
from tests.console.traffic import PORTS
from tests.gateways.http.live import SECONDS, http
from tests.gateways.remoting.live import broker, client
from tests.ports import free_port
from tests.waiting import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"
PROTOCOLS = ("rocketmq", "kafka", "amqp", "stomp", "mqtt", "http", "rest")


def parent(protocol: str, flags: str = "01") -> str:
    """A trace context of its own for each."""
    return f"00-{TRACE}-{PROTOCOLS.index(protocol) + 1:016x}-{flags}"


@contextlib.contextmanager
def collector(takes_seconds: float = 0) -> Iterator[tuple[str, list[Any]]]:
    """A collector, and the spans that came."""
    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in part.scope_spans:
                    spans.extend((part.resource, span) for span in scope.spans)
            time.sleep(takes_seconds)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", spans
    finally:
        server.shutdown()
        server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


async def test_every_protocol_continues_its_senders_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests keep the collector from its answer for seconds.
    monkeypatch.setattr("onelog.gateways.tracing.EXPORT_SECONDS_MAX", 60)
    with collector() as (endpoint, spans):
        settings = {**PORTS, "grpc__port": 0, "telemetry__traces": endpoint}
        async with cluster(tmp_path, **settings) as (server, web, names):
            await web.post("/v1/topics", json={"name": "orders", "queues": 1})
            async with AsyncProducer("shop", nameserver=names) as producer:
                for flags in ("01", "00"):
                    properties = {"traceparent": parent("rocketmq", flags)}
                    await producer.send(Message("orders", b"x", properties=properties))
                await producer.send(Message("orders", b"not traced"))
            for each in (by_kafka, by_amqp, by_stomp, by_mqtt):
                await asyncio.to_thread(each, server.config)
            traced = {"traceparent": parent("http")}
            sent = await web.post("/v1/topics/orders/produce", content=b"x", headers=traced)
            assert sent.status_code == 200
            sent = await web.post(
                "/v1/topics/orders/messages",
                json={"body": "x"},
                headers={"traceparent": parent("rest")},
            )
            assert sent.status_code == 201
        # On a busy machine the broker may be gone before the collector has read what it sent.
        await eventually(lambda: len(spans) >= len(PROTOCOLS))
        found = {int.from_bytes(span.parent_span_id, "big"): span for _, span in spans}
        assert sorted(found) == [1, 2, 3, 4, 5, 6, 7]
        assert len(spans) == len(found)
        for resource, span in spans:
            assert span.trace_id.hex() == TRACE
            assert span.end_time_unix_nano >= span.start_time_unix_nano
            assert "onelog" in str(resource)
        systems = {number: attributes(span)["messaging.system"] for number, span in found.items()}
        assert systems == {
            1: "rocketmq",
            2: "kafka",
            3: "rabbitmq",
            4: "rabbitmq",
            5: "mqtt",
            6: "rocketmq",
            7: "rocketmq",
        }
        assert found[1].name == "store orders"
        assert attributes(found[7])["messaging.message.id"] == sent.json()["id"]


def by_kafka(config: Any) -> None:
    from confluent_kafka import Producer

    at = f"127.0.0.1:{config.kafka.port}"
    producer = Producer({"bootstrap.servers": at, "compression.type": "lz4", "linger.ms": 20})
    headers: list[Any] = [("traceparent", parent("kafka").encode())]
    producer.produce("orders", b"x" * 2000, headers=headers)
    producer.produce("orders", b"y" * 2000)
    producer.flush(30)


def by_amqp(config: Any) -> None:
    import pika

    at = pika.ConnectionParameters("127.0.0.1", config.amqp.port)
    with pika.BlockingConnection(at) as connection:
        channel = connection.channel()
        channel.queue_declare("jobs", durable=True)
        channel.queue_bind("jobs", "amq.topic", "shop.*")
        channel.confirm_delivery()
        headers = {"traceparent": parent("amqp")}
        channel.basic_publish("", "jobs", b"x", pika.BasicProperties(headers=headers))


def by_stomp(config: Any) -> None:
    import stomp

    connection = stomp.Connection12([("127.0.0.1", config.stomp.port)])
    connection.connect("guest", "guest", wait=True)
    connection.send("/queue/jobs", "x", headers={"traceparent": parent("stomp")})
    connection.disconnect("bye")


def by_mqtt(config: Any) -> None:
    import paho.mqtt.client as paho
    from paho.mqtt.enums import CallbackAPIVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    client = paho.Client(CallbackAPIVersion.VERSION2, "sensor", protocol=paho.MQTTv5)
    client.connect("127.0.0.1", config.mqtt.port)
    client.loop_start()
    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = [("traceparent", parent("mqtt"))]
    client.publish("shop/mqtt", b"x", 1, properties=properties).wait_for_publish(30)
    client.disconnect()
    client.loop_stop()


@pytest.mark.parametrize(
    "given", ["", "00-0-0-01", parent("http")[:-1], f"00-{'0' * 32}-{'0' * 16}-01", "x" * 600]
)
async def test_what_is_no_trace_context_is_no_trace(tmp_path: Path, given: str) -> None:
    with collector() as (endpoint, spans):
        async with http(tmp_path, telemetry__traces=endpoint) as (server, web):
            await web.post("/v1/topics", json={"name": "orders"})
            body = {"body": "x", "properties": {"traceparent": given}}
            assert (await web.post("/v1/topics/orders/messages", json=body)).status_code == 201
            async with client(server) as peer:
                await peer.send("orders", b"x")
        assert spans == []


async def test_a_collector_that_is_gone_keeps_nobody_waiting(tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}/v1/traces"
    async with http(tmp_path, telemetry__traces=endpoint) as (_, web):
        await web.post("/v1/topics", json={"name": "orders"})
        traced = {"traceparent": parent("http")}
        for _ in range(3):
            sent = await web.post("/v1/topics/orders/produce", content=b"x", headers=traced)
            assert sent.status_code == 200


async def test_what_is_stored_while_the_broker_stops_has_a_span(tmp_path: Path) -> None:
    with collector(takes_seconds=0.2) as (endpoint, spans):
        stored = asyncio.Event()
        async with broker(tmp_path, telemetry__traces=endpoint) as server:
            sending = asyncio.create_task(send_until_it_stops(server, stored))
            await asyncio.wait_for(stored.wait(), SECONDS)
        count = await asyncio.wait_for(sending, SECONDS)
        assert count > 0
        await eventually(lambda: len(spans) >= count)


async def send_until_it_stops(server: BrokerServer, stored: asyncio.Event) -> int:
    """How many messages were acknowledged."""
    count = 0
    async with client(server) as peer:
        with contextlib.suppress(OnelogError):
            while True:
                sent = await peer.send("orders", b"x", {"traceparent": parent("rocketmq")})
                count += sent.code == ResponseCode.SUCCESS
                stored.set()
                await asyncio.sleep(0.005)
    return count


async def test_while_it_is_off_nobody_is_told_of_what_is_stored(tmp_path: Path) -> None:
    async with http(tmp_path) as (server, _):
        assert server.broker.publish.on_stored == []
        assert "telemetry" not in server.gateways
