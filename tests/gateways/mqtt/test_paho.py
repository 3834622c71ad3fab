"""Other people's clients: paho-mqtt and aiomqtt, through sockets and WebSockets."""

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import onelog
from tests.ports import free_port

SECONDS = 20


class Client:
    """A paho client, its messages in a queue."""

    def __init__(
        self,
        port: int,
        client_id: str = "",
        protocol: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv5,
        transport: Any = "tcp",
        **connect: Any,
    ) -> None:
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=protocol, transport=transport
        )
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._events: queue.Queue[str] = queue.Queue()
        self.client.on_message = lambda client, data, message: self.messages.put(message)
        self.client.on_connect = lambda *given: self._events.put("connected")
        self.client.on_subscribe = lambda *given: self._events.put("subscribed")
        self.client.connect("127.0.0.1", port, **connect)
        self.client.loop_start()
        assert self._events.get(timeout=SECONDS) == "connected"

    def subscribe(self, *given: Any, **options: Any) -> None:
        self.client.subscribe(*given, **options)
        assert self._events.get(timeout=SECONDS) == "subscribed"

    def publish(self, *given: Any, **options: Any) -> None:
        self.client.publish(*given, **options).wait_for_publish(SECONDS)

    def get(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=SECONDS)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    http = free_port()
    with onelog.embedded(mqtt=True, http__port=http) as mq:
        yield mq.mqtt_port, http


@pytest.mark.parametrize("protocol", list(MQTTProtocolVersion))
@pytest.mark.parametrize("transport", ["tcp", "websockets"])
def test_all_versions_on_both_transports(
    ports: tuple[int, int], protocol: MQTTProtocolVersion, transport: str
) -> None:
    port = ports[transport == "websockets"]
    client = Client(port, "both", protocol, transport)
    client.subscribe("paho/#", 2)
    for qos in (0, 1, 2):
        client.publish("paho/x", b"%d" % qos * 1_000, qos=qos)
        message = client.get()
        assert (message.topic, message.qos, message.payload) == ("paho/x", qos, b"%d" % qos * 1_000)
    client.close()


def test_request_and_response(ports: tuple[int, int]) -> None:
    server, client = Client(ports[0], "server"), Client(ports[0], "client")
    server.subscribe("rpc/square", 1)
    client.subscribe("rpc/answers/7", 1)
    about: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    about.ResponseTopic = "rpc/answers/7"
    about.CorrelationData = b"4711"
    about.UserProperty = ("trace", "abc")
    client.publish("rpc/square", b"12", qos=1, properties=about)
    asked: Any = server.get()
    assert asked.properties.UserProperty == [("trace", "abc")]
    back: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    back.CorrelationData = asked.properties.CorrelationData
    answer = b"%d" % int(asked.payload) ** 2
    server.publish(asked.properties.ResponseTopic, answer, qos=1, properties=back)
    answered: Any = client.get()
    assert answered.payload == b"144"
    assert answered.properties.CorrelationData == b"4711"
    server.close()
    client.close()


def test_many_messages_keep_their_order(ports: tuple[int, int]) -> None:
    client = Client(ports[0], "order")
    client.subscribe("order/#", 2)
    infos = [
        client.client.publish("order/x", b"%d" % number, qos=1 + number % 2)
        for number in range(1_000)
    ]
    for info in infos:
        info.wait_for_publish(SECONDS)
    found = [int(client.get().payload) for _ in range(1_000)]
    for remainder in (0, 1):
        assert [each for each in found if each % 2 == remainder] == list(range(remainder, 1_000, 2))
    client.close()


def test_aiomqtt_follows_a_topic(ports: tuple[int, int]) -> None:
    async def follow() -> list[bytes]:
        found: list[bytes] = []
        async with aiomqtt.Client("127.0.0.1", ports[0]) as client:
            await client.subscribe("aio/+", qos=1)
            for number in range(3):
                await client.publish(f"aio/{number}", b"%d" % number, qos=1)
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                found.append(message.payload)
                if len(found) == 3:
                    break
        return found

    assert asyncio.run(asyncio.wait_for(follow(), SECONDS)) == [b"0", b"1", b"2"]


def test_the_fixture_has_a_port(onelog_mqtt: Any) -> None:
    client = Client(onelog_mqtt.mqtt_port)
    client.subscribe("fixture")
    client.publish("fixture", b"works")
    assert client.get().payload == b"works"
    client.close()
