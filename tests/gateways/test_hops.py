"""How many files of the broker a request passes on its way to the log, and its answer back.

A request is followed from its connection's `data_received` to the call of the store's append, and
from the end of that to the socket's `write`. A file below `src/onelog` counts if a function of it
is called on that way in the event loop's thread; the clients are in threads of their own.

Not counted is what a queue's consumers get of the message (`BESIDE`): that is another way, which
begins at the same append, and whoever follows the answer does not read it.

The limits are what the requests pass today: they may only get lower. Wanted are 10 files up and 5
back, for all of them.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import confluent_kafka
import pika
import pytest

import onelog
from onelog.core.durable.writer import Writer
from onelog.core.queues.delivery_loop import DeliveryLoop
from onelog.net.connection import Connection
from onelog.server import BrokerServer
from onelog.store.appender import Appender
from onelog.wire.mqtt.codes import Packet
from tests.gateways.mqtt.raw import Raw
from tests.gateways.remoting.live import Client, client
from tests.gateways.remoting.popping import TOPIC, Popper, popping

SECONDS = 60.0
SOURCES = Path(onelog.__file__).parent
RECEIVED = Connection.data_received.__code__
APPENDS = (Appender.append.__code__,)
BESIDE = (
    Writer._tell_watchers.__code__,
    DeliveryLoop._run.__code__,
)
REQUESTS = 8
"""Of a kind; the shortest way counts, so that what happens beside one of them does not."""

Ways = list[tuple[set[str], set[str]]]
Send = Callable[[BrokerServer, Callable[[], None]], None]


class Followed:
    """A profiler that keeps which files requests pass, up to the append and back."""

    def __init__(self) -> None:
        self.ways: Ways = []
        self._up: set[str] | None = None
        self._back: set[str] | None = None
        self._append: FrameType | None = None
        self._beside: FrameType | None = None
        self._is_awaited = False
        self._files: dict[str, str] = {}

    def _file_of(self, frame: FrameType) -> str:
        """Its path below the sources; empty if it is elsewhere."""
        name = frame.f_code.co_filename
        if name not in self._files:
            path = Path(name)
            is_ours = path.is_relative_to(SOURCES)
            self._files[name] = str(path.relative_to(SOURCES)) if is_ours else ""
        return self._files[name]

    def begin(self) -> None:
        """Forget the request before; the next one starts with its first bytes."""
        self._up = self._back = self._append = None
        self._is_awaited = True

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self._beside is not None:
            if event == "return" and frame is self._beside:
                self._beside = None
        elif event == "call":
            if frame.f_code in BESIDE:
                self._beside = frame
            else:
                self._called(frame)
        elif event == "return" and frame is self._append:
            self._append, self._back = None, set()

    def _called(self, frame: FrameType) -> None:
        file = self._file_of(frame)
        if self._back is not None:
            code = frame.f_code
            if code.co_name == "write" and code.co_filename.endswith("selector_events.py"):
                assert self._up is not None
                self.ways.append((self._up, self._back))
                self._up = self._back = None
            elif file:
                self._back.add(file)
        elif not file or self._append is not None:
            return
        elif self._is_awaited and frame.f_code is RECEIVED:
            self._up, self._is_awaited = {file}, False
        elif self._up is not None:
            self._up.add(file)
            if frame.f_code in APPENDS:
                self._append = frame


def _remoting(
    act: Callable[[Client, Callable[[], None]], Awaitable[None]],
) -> Send:
    """A client of RocketMQ's protocol, in a loop of its own."""

    def send(server: BrokerServer, begin: Callable[[], None]) -> None:
        async def run() -> None:
            async with client(server) as words:
                await act(words, begin)

        asyncio.run(run())

    return send


async def _rocketmq_send(words: Client, begin: Callable[[], None]) -> None:
    for number in range(REQUESTS):
        begin()
        assert (await words.send(TOPIC, b"%d" % number, {"KEYS": f"k{number}"})).code == 0


async def _pop_acknowledgement(words: Client, begin: Callable[[], None]) -> None:
    for number in range(REQUESTS):
        assert (await words.send(TOPIC, b"%d" % number)).code == 0
    popper = Popper(words)
    popped = await popper.pop()
    assert len(popped) == REQUESTS
    for each in popped:
        begin()
        assert (await popper.ack(each)).code == 0


def _kafka_produce(server: BrokerServer, begin: Callable[[], None]) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": f"127.0.0.1:{server.config.kafka.port}", "acks": "all"}
    )
    for number in range(REQUESTS):
        begin()
        producer.produce(TOPIC, b"%d" % number, b"key", partition=0)
        assert producer.flush(SECONDS) == 0


def _amqp_publish(server: BrokerServer, begin: Callable[[], None]) -> None:
    parameters = pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{server.config.amqp.port}/")
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("queue", durable=True)
        channel.confirm_delivery()
        durable = pika.BasicProperties(delivery_mode=2)
        for number in range(REQUESTS):
            begin()
            channel.basic_publish("", "queue", b"%d" % number, durable, mandatory=True)


def _mqtt_publish(server: BrokerServer, begin: Callable[[], None]) -> None:
    with Raw(server.config.mqtt.port) as raw:
        raw.connect("reader", clean=False)
        raw.subscribe(("orders/#", 1))
    with Raw(server.config.mqtt.port) as raw:
        raw.connect("writer")
        for number in range(1, REQUESTS + 1):
            begin()
            raw.publish("orders/new", b"%d" % number, qos=1, packet_id=number)
            assert raw.expect(Packet.PUBACK).packet_id == number


@pytest.mark.parametrize(
    ("send", "up_max", "back_max"),
    [
        pytest.param(_remoting(_rocketmq_send), 10, 4, id="RocketMQ send"),
        pytest.param(_kafka_produce, 9, 7, id="Kafka produce"),
        pytest.param(_amqp_publish, 9, 4, id="AMQP publish with confirm"),
        pytest.param(_mqtt_publish, 9, 3, id="MQTT QoS 1"),
        pytest.param(_remoting(_pop_acknowledgement), 13, 11, id="POP acknowledgement"),
    ],
)
async def test_a_request_passes_no_more_files_than_it_does_today(
    tmp_path: Path, send: Send, up_max: int, back_max: int
) -> None:
    ports = {"kafka__port": -1, "amqp__port": -1, "mqtt__port": -1}
    async with popping(tmp_path, **ports) as (server, _):
        followed = Followed()
        sys.setprofile(followed)
        try:
            await asyncio.to_thread(send, server, followed.begin)
        finally:
            sys.setprofile(None)
    assert len(followed.ways) >= REQUESTS // 2, "too few of the requests were seen"
    up, back = (min(files, key=len) for files in zip(*followed.ways, strict=True))
    assert len(up) <= up_max, f"{len(up)} files up to the append: {sorted(up)}"
    assert len(back) <= back_max, f"{len(back)} files back to the answer: {sorted(back)}"
