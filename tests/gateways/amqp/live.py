"""A broker with AMQP's port, and pika as a client of it.

With AMQP_URL in the environment the tests run against the broker that is there: what is expected of
OneLog was seen of RabbitMQ that way.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import onelog
from onelog.wire.amqp.frame import GREETING, Event, EventReader, method_frame
from onelog.wire.amqp.methods import ENCODERS, NAMES

SECONDS = 20.0
"""The longest that a client waits for anything, on a machine that is busy."""
REAL = os.environ.get("AMQP_URL", "")

ours_only = pytest.mark.skipif(bool(REAL), reason="RabbitMQ is another one here")


@pytest.fixture
def url() -> Iterator[str]:
    """Where a broker is."""
    if REAL:
        yield REAL
    else:
        with onelog.embedded(amqp=True) as mq:
            yield mq.amqp_url


@pytest.fixture
def channel(url: str) -> Iterator[BlockingChannel]:
    """A channel of pika."""
    with connected(url) as connection:
        yield connection.channel()


@contextlib.contextmanager
def connected(url: str, **options: Any) -> Iterator[pika.BlockingConnection]:
    """A connection of pika."""
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = parameters.blocked_connection_timeout = SECONDS
    for name, value in options.items():
        setattr(parameters, name, value)
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def name(channel: BlockingChannel, **options: Any) -> str:
    """A queue of its own."""
    options.setdefault("exclusive", True)
    return str(channel.queue_declare("", **options).method.queue)


def send(channel: BlockingChannel, key: str, *bodies: bytes | str, exchange: str = "") -> None:
    """Publish plain messages."""
    for body in bodies:
        channel.basic_publish(exchange, key, body)


def got(channel: BlockingChannel, queue: str, *, auto_ack: bool = True) -> Any:
    """The next message, as pika gives it: method, properties and body, once there is one."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        found = channel.basic_get(queue, auto_ack=auto_ack)
        if found[0] is not None:
            return found
        time.sleep(0.01)
    raise AssertionError(f"nothing came to {queue}")


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    """All that is ready, taken."""
    found = []
    while (one := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(one[2])
    return found


def ready(channel: BlockingChannel, queue: str) -> int:
    """How many messages are ready."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


class Raw:
    """A client that says what it is told to."""

    def __init__(self, url: str, greeting: bytes = GREETING) -> None:
        parameters = pika.URLParameters(url)
        self.socket = socket.create_connection((parameters.host, parameters.port), SECONDS)
        self.socket.settimeout(SECONDS)
        self.reader = EventReader(1 << 24, 1 << 28)
        self._events: list[Event] = []
        self.socket.sendall(greeting)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *raised: object) -> None:
        self.socket.close()

    def say(self, channel: int, method: str, *arguments: Any) -> None:
        """Send a method."""
        self.socket.sendall(method_frame(channel, ENCODERS[method](*arguments)))

    def hear(self) -> tuple[int, str, tuple[Any, ...]]:
        """The next method that is no sign of life; its name is empty at the end."""
        while True:
            while not self._events:
                try:
                    data = self.socket.recv(1 << 16)
                except ConnectionResetError:
                    data = b""
                if not data:
                    return 0, "", ()
                self.reader.feed(data)
                self._events += self.reader.events()
            number, method, arguments, _, _ = self._events.pop(0)
            if method:
                return number, NAMES[method], arguments

    def hear_of(self, method: str) -> tuple[Any, ...]:
        """The arguments of the next method, which is this one."""
        _, found, arguments = self.hear()
        assert found == method, (found, arguments)
        return arguments

    def shake_hands(self, frame_max: int = 131_072, heartbeat: int = 0) -> "Raw":
        """Connect as anybody would."""
        self.hear_of("connection.start")
        client = {"capabilities": {"authentication_failure_close": True}}
        self.say(0, "connection.start-ok", client, "PLAIN", b"\0guest\0guest", "en_US")
        self.hear_of("connection.tune")
        self.say(0, "connection.tune-ok", 2047, frame_max, heartbeat)
        self.say(0, "connection.open", "/")
        self.hear_of("connection.open-ok")
        return self

    def open(self, channel: int = 1) -> "Raw":
        """Open a channel."""
        self.say(channel, "channel.open")
        self.hear_of("channel.open-ok")
        return self
