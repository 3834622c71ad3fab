"""Streams: topics that are read and not emptied."""

import time
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from onelog.gateways.amqp.streams import _SECONDS
from tests.gateways.amqp.live import SECONDS, channel, eventually, ours_only, ready, send, url

__all__ = ["channel", "url"]


@pytest.fixture
def stream(channel: BlockingChannel) -> str:
    """A stream of ten messages."""
    channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    send(channel, "log", *(b"%d" % number for number in range(10)))
    return "log"


def read(channel: BlockingChannel, start: Any, count: int, *, prefetch: int = 3) -> list[bytes]:
    """What a consumer gets that begins there."""
    found: list[bytes] = []
    offsets: list[int] = []

    def heard(_: object, method: Any, properties: Any, body: bytes) -> None:
        found.append(body)
        offsets.append(properties.headers["x-stream-offset"])
        own.basic_ack(method.delivery_tag)

    own = channel.connection.channel()
    own.basic_qos(prefetch_count=prefetch)
    arguments = {} if start is None else {"x-stream-offset": start}
    own.basic_consume("log", heard, arguments=arguments)
    if start in (None, "next"):
        send(channel, "log", b"new")
    until = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < until:
        channel.connection.process_data_events(0.01)
    channel.connection.process_data_events(0.05)
    own.close()
    assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    return found


def test_a_stream_is_read_from_where_one_likes(channel: BlockingChannel, stream: str) -> None:
    everything = [b"%d" % number for number in range(10)]
    for _ in range(2):
        assert read(channel, "first", 10) == everything
    assert read(channel, 7, 3) == everything[7:]
    assert read(channel, "last", 1) == everything[-1:]
    assert read(channel, "1h", 10) == everything
    assert read(channel, None, 1) == [b"new"]
    assert ready(channel, stream) >= 0


def test_prefetch_limits_a_reader(channel: BlockingChannel, stream: str) -> None:
    found: list[bytes] = []
    own = channel.connection.channel()
    own.basic_qos(prefetch_count=4)
    arguments = {"x-stream-offset": "first"}
    own.basic_consume(stream, lambda *told: found.append(told[3]), arguments=arguments)
    eventually(lambda: channel.connection.process_data_events(0.01) or len(found) == 4)
    channel.connection.process_data_events(0.1)
    assert len(found) == 4
    own.basic_ack(4, multiple=True)
    eventually(lambda: channel.connection.process_data_events(0.01) or len(found) == 8)


@pytest.mark.parametrize(
    ("options", "prefetch"),
    [
        ({}, 0),
        ({"auto_ack": True}, 5),
        ({"arguments": {"x-stream-offset": "whenever"}}, 5),
        pytest.param({"arguments": {"x-stream-offset": -3}}, 5, marks=ours_only),
    ],
)
def test_how_a_stream_cannot_be_read(
    channel: BlockingChannel, stream: str, options: dict[str, Any], prefetch: int
) -> None:
    own = channel.connection.channel()
    own.basic_qos(prefetch_count=prefetch)
    with pytest.raises(AMQPError):
        own.basic_consume(stream, print, **options)


def test_intervals_are_of_known_length() -> None:
    assert _SECONDS["D"] == 24 * _SECONDS["h"]
