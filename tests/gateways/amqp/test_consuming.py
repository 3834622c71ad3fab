"""Consuming: deliveries, prefetch, acknowledgements, and what comes again."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

import onelog
from onelog.core.queues import consumers
from tests.gateways.amqp.live import (
    SECONDS,
    Raw,
    bodies,
    channel,
    connected,
    got,
    name,
    ours_only,
    ready,
    send,
    url,
)
from tests.waiting import wait_until

__all__ = ["channel", "url"]


@pytest.fixture
def queue(channel: BlockingChannel) -> Iterator[str]:
    """A durable queue."""
    queue = name(channel, exclusive=False, durable=True)
    yield queue
    if channel.is_open:
        channel.queue_delete(queue)


class Heard:
    """What a consumer of pika was delivered."""

    def __init__(self, channel: BlockingChannel, queue: str, **options: Any) -> None:
        self.channel = channel
        self.methods: list[Any] = []
        self.bodies: list[bytes] = []
        self.tag = channel.basic_consume(queue, self._heard, **options)

    def _heard(self, _: object, method: Any, properties: Any, body: bytes) -> None:
        self.methods.append(method)
        self.bodies.append(body)

    def wait(self, count: int) -> list[bytes]:
        """Once there are so many, and a little longer."""
        until = time.monotonic() + SECONDS
        while len(self.bodies) < count and time.monotonic() < until:
            self.channel.connection.process_data_events(0.01)
        self.channel.connection.process_data_events(0.05)
        return list(self.bodies)


def test_a_consumer_gets_messages_in_order(channel: BlockingChannel, queue: str) -> None:
    send(channel, queue, *(b"%d" % number for number in range(20)))
    heard = Heard(channel, queue)
    send(channel, queue, *(b"%d" % number for number in range(20, 40)))
    assert heard.wait(40) == [b"%d" % number for number in range(40)]
    assert [method.delivery_tag for method in heard.methods] == list(range(1, 41))
    assert not any(method.redelivered for method in heard.methods)
    channel.basic_ack(40, multiple=True)
    channel.basic_cancel(heard.tag)
    assert ready(channel, queue) == 0


def test_prefetch_limits_what_is_out(channel: BlockingChannel, queue: str) -> None:
    channel.basic_qos(prefetch_count=3)
    send(channel, queue, *(b"%d" % number for number in range(10)))
    heard = Heard(channel, queue)
    assert len(heard.wait(3)) == 3
    channel.basic_ack(1)
    assert len(heard.wait(4)) == 4
    channel.basic_ack(4, multiple=True)
    assert len(heard.wait(7)) == 7
    channel.basic_nack(0, multiple=True, requeue=False)
    assert len(heard.wait(10)) == 10


def test_a_global_prefetch_is_shared(channel: BlockingChannel, queue: str) -> None:
    channel.basic_qos(prefetch_count=4, global_qos=True)
    send(channel, queue, *(b"%d" % number for number in range(10)))
    first, second = Heard(channel, queue), Heard(channel, queue)
    first.wait(4)
    second.wait(0)
    assert len(first.bodies) + len(second.bodies) == 4
    channel.basic_ack(0, multiple=True)
    wait_until(
        lambda: (
            channel.connection.process_data_events(0.01)
            or len(first.bodies) + len(second.bodies) == 8
        )
    )


def _has(channel: BlockingChannel, queue: str, count: int) -> bool:
    return ready(channel, queue) == count


@pytest.mark.parametrize("limit", [1, 5])
def test_a_global_prefetch_starves_no_queue(channel: BlockingChannel, limit: int) -> None:
    queues = [name(channel) for _ in range(3)]
    for each in queues:
        send(channel, each, *[b"x"] * 90)
        wait_until(partial(_has, channel, each, 90))
    counts: Counter[str] = Counter()

    def take(on: Any, method: Any, properties: Any, body: bytes) -> None:
        counts[method.consumer_tag] += 1
        if counts.total() <= 90:
            on.basic_ack(method.delivery_tag)

    channel.basic_qos(prefetch_count=limit, global_qos=True)
    for each in queues:
        channel.basic_consume(each, take, consumer_tag=each)
    wait_until(lambda: channel.connection.process_data_events(0.01) or counts.total() >= 90 + limit)
    assert min(counts[each] for each in queues) >= 15, counts


def test_a_full_global_window_holds_who_acknowledges_nothing_too(channel: BlockingChannel) -> None:
    acked, plain = name(channel), name(channel)
    for each in (acked, plain):
        send(channel, each, *[b"x"] * 5)
        wait_until(partial(_has, channel, each, 5))
    channel.basic_qos(prefetch_count=2, global_qos=True)
    first = Heard(channel, acked)
    first.wait(2)
    second = Heard(channel, plain, auto_ack=True)
    channel.connection.process_data_events(0.3)
    assert (len(first.bodies), len(second.bodies)) == (2, 0)
    channel.basic_qos(prefetch_count=100, global_qos=True)
    assert len(second.wait(5)) == 5


def test_consumers_take_turns(channel: BlockingChannel, queue: str) -> None:
    first, second = Heard(channel, queue, auto_ack=True), Heard(channel, queue, auto_ack=True)
    send(channel, queue, *(b"%d" % number for number in range(10)))
    first.wait(5)
    second.wait(5)
    assert len(first.bodies) == len(second.bodies) == 5


def test_what_is_requeued_comes_again_in_its_place(channel: BlockingChannel, queue: str) -> None:
    send(channel, queue, *(b"%d" % number for number in range(6)))
    tags = [got(channel, queue, auto_ack=False)[0].delivery_tag for _ in range(4)]
    channel.basic_nack(tags[2], requeue=True)
    channel.basic_reject(tags[0], requeue=True)
    channel.basic_ack(tags[1])
    found = [got(channel, queue) for _ in range(4)]
    assert [body for _, _, body in found] == [b"0", b"2", b"4", b"5"]
    assert [method.redelivered for method, _, _ in found] == [True, True, False, False]
    channel.basic_ack(tags[3])
    assert ready(channel, queue) == 0


def test_what_a_lost_connection_had_comes_again(
    channel: BlockingChannel, queue: str, url: str
) -> None:
    send(channel, queue, b"1", b"2", b"3")
    with connected(url) as connection:
        other = connection.channel()
        assert len(Heard(other, queue).wait(3)) == 3
        assert ready(channel, queue) == 0
    found = [got(channel, queue) for _ in range(3)]
    assert [body for _, _, body in found] == [b"1", b"2", b"3"]
    assert all(method.redelivered for method, _, _ in found)


def test_cancelling_does_not_give_back(channel: BlockingChannel, queue: str, url: str) -> None:
    send(channel, queue, b"1", b"2")
    with Raw(url) as raw:
        raw.shake_hands().open()
        raw.say(1, "basic.consume", queue, "t", False, False, False, False, {})
        raw.hear_of("basic.consume-ok")
        for _ in range(2):
            raw.hear_of("basic.deliver")
        raw.say(1, "basic.cancel", "t", False)
        raw.hear_of("basic.cancel-ok")
        assert ready(channel, queue) == 0
        raw.say(1, "basic.recover", True)
        raw.hear_of("basic.recover-ok")
        wait_until(lambda: ready(channel, queue) == 2)


def test_a_tag_that_is_not_out_ends_the_channel(channel: BlockingChannel, queue: str) -> None:
    send(channel, queue, b"1")
    method, _, _ = got(channel, queue, auto_ack=False)
    channel.basic_ack(method.delivery_tag)
    channel.basic_ack(method.delivery_tag)
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare("", exclusive=True)
    assert caught.value.reply_code == 406
    assert "unknown delivery tag 1" in caught.value.reply_text


def test_a_consumer_hears_that_its_queue_is_gone(channel: BlockingChannel, url: str) -> None:
    gone: list[Any] = []
    channel.add_on_cancel_callback(gone.append)
    queue = name(channel, exclusive=False)
    Heard(channel, queue)
    with connected(url) as connection:
        connection.channel().queue_delete(queue)
    wait_until(lambda: channel.connection.process_data_events(0.01) or gone)


def test_exclusive_consumers_and_priorities(channel: BlockingChannel, queue: str, url: str) -> None:
    low = Heard(channel, queue, auto_ack=True, arguments={"x-priority": -1})
    high = Heard(channel, queue, auto_ack=True, arguments={"x-priority": 10})
    send(channel, queue, *(b"%d" % number for number in range(5)))
    assert len(high.wait(5)) == 5
    assert low.bodies == []
    with connected(url) as connection, pytest.raises(ChannelClosedByBroker) as caught:
        Heard(connection.channel(), queue, exclusive=True)
    assert caught.value.reply_code == 403


def test_a_single_active_consumer(channel: BlockingChannel) -> None:
    queue = name(channel, arguments={"x-single-active-consumer": True})
    first, second = Heard(channel, queue), Heard(channel, queue)
    send(channel, queue, *(b"%d" % number for number in range(5)))
    assert len(first.wait(5)) == 5
    assert second.bodies == []
    channel.basic_ack(0, multiple=True)
    channel.basic_cancel(first.tag)
    send(channel, queue, b"last")
    assert second.wait(1) == [b"last"]


def test_a_tag_is_used_once(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open()
        raw.say(1, "queue.declare", "", False, False, True, False, False, {})
        raw.hear_of("queue.declare-ok")
        for _ in range(2):
            raw.say(1, "basic.consume", "", "tag", False, False, False, False, {})
        raw.hear_of("basic.consume-ok")
        code, text, _, _ = raw.hear_of("connection.close")
        assert (code, text) == (530, "NOT_ALLOWED - attempt to reuse consumer tag 'tag'")


def test_messages_expire_and_are_dead_letters(channel: BlockingChannel) -> None:
    dead = name(channel)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = name(channel, arguments={**arguments, "x-message-ttl": 20})
    send(channel, queue, b"late")
    method, properties, body = got(channel, dead)
    assert (body, method.exchange, method.routing_key) == (b"late", "", dead)
    (death,) = properties.headers["x-death"]
    assert death["queue"] == queue
    assert (death["reason"], death["count"], death["exchange"]) == ("expired", 1, "")
    assert isinstance(death["count"], pika.compat.long)  # Java's clients cast it to `Long`.
    assert death["routing-keys"] == [queue]
    assert properties.headers["x-first-death-queue"] == queue
    other = name(channel, arguments=arguments)
    channel.basic_publish("", other, b"no", pika.BasicProperties(expiration="60000"))
    method, _, _ = got(channel, other, auto_ack=False)
    channel.basic_reject(method.delivery_tag, requeue=False)
    _, properties, body = got(channel, dead)
    assert (body, properties.expiration) == (b"no", None)
    (death,) = properties.headers["x-death"]
    assert (death["reason"], death["original-expiration"]) == ("rejected", "60000")
    short = name(channel, arguments={**arguments, "x-max-length": 2})
    send(channel, short, b"1", b"2", b"3")
    _, properties, body = got(channel, dead)
    assert (body, properties.headers["x-death"][0]["reason"]) == (b"1", "maxlen")
    assert bodies(channel, short) == [b"2", b"3"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_message_that_came_back_expires_when_it_says(
    channel: BlockingChannel, durable: bool
) -> None:
    queue = name(channel, durable=durable, exclusive=not durable)
    channel.basic_publish("", queue, b"x", pika.BasicProperties(expiration="300"))
    method, _, _ = got(channel, queue, auto_ack=False)
    channel.basic_nack(method.delivery_tag, requeue=True)
    wait_until(lambda: not ready(channel, queue))
    channel.queue_delete(queue)


def test_urgent_messages_come_first(channel: BlockingChannel) -> None:
    queue = name(channel, arguments={"x-max-priority": 5})
    for number, priority in enumerate((None, 1, 5, 9, 3)):
        properties = pika.BasicProperties(priority=priority)
        channel.basic_publish("", queue, b"%d" % number, properties)
    assert bodies(channel, queue) == [b"2", b"3", b"4", b"1", b"0"]


@ours_only
def test_a_quorum_queue_counts_and_gives_up(channel: BlockingChannel) -> None:
    dead = name(channel)
    arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    channel.queue_declare("quorum", durable=True, arguments=arguments)
    send(channel, "quorum", b"poison")
    counts = []
    for _ in range(3):
        method, properties, _ = got(channel, "quorum", auto_ack=False)
        counts.append(properties.headers["x-delivery-count"])
        channel.basic_nack(method.delivery_tag, requeue=True)
    assert counts == [0, 1, 2]
    # Java's clients cast it to `Long`.
    assert {type(each) for each in counts} == {pika.compat.long}
    _, properties, body = got(channel, dead)
    assert (body, properties.headers["x-death"][0]["reason"]) == (b"poison", "delivery_limit")


def test_get_counts_what_is_left(channel: BlockingChannel, queue: str) -> None:
    assert channel.basic_get(queue) == (None, None, None)
    send(channel, queue, b"1", b"2", b"3")
    wait_until(lambda: ready(channel, queue) == 3)
    method, _, body = got(channel, queue, auto_ack=False)
    assert (body, method.message_count, method.delivery_tag) == (b"1", 2, 1)
    channel.basic_ack(1)


def test_a_queue_is_as_it_was_after_a_restart(tmp_path: Any) -> None:
    persistent = pika.BasicProperties(delivery_mode=2)
    with onelog.embedded(tmp_path, amqp=True) as mq, connected(mq.amqp_url) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", "topic", durable=True)
        channel.queue_declare("kept", durable=True, arguments={"x-max-length": 100})
        channel.queue_declare("gone", durable=False)
        channel.queue_bind("kept", "x", "a.#")
        channel.confirm_delivery()
        for number in range(10):
            channel.basic_publish("x", "a.b", b"%d" % number, persistent)
        tags = [got(channel, "kept", auto_ack=False)[0].delivery_tag for _ in range(5)]
        channel.basic_ack(tags[0])
        channel.basic_ack(tags[2])
        ready(channel, "kept")
    with onelog.embedded(tmp_path, amqp=True) as mq, connected(mq.amqp_url) as connection:
        channel = connection.channel()
        found = [got(channel, "kept") for _ in range(8)]
        assert [body for _, _, body in found] == [b"%d" % n for n in (1, 3, 4, 5, 6, 7, 8, 9)]
        assert [method.redelivered for method, _, _ in found] == [True] * 3 + [False] * 5
        send(channel, "a.c", b"more", exchange="x")
        assert got(channel, "kept")[2] == b"more"
        with pytest.raises(ChannelClosedByBroker):
            channel.queue_declare("gone", passive=True)


def test_a_consumer_that_does_not_read_does_not_stop_its_own_publishing(url: str) -> None:
    """As RabbitMQ: who writes before it reads is still read from."""
    body = bytes(100_000)
    with Raw(url) as raw:
        raw.shake_hands().open()
        raw.say(1, "queue.declare", "", False, False, True, False, False, {})
        queue = raw.hear_of("queue.declare-ok")[0]
        raw.say(1, "basic.consume", queue, "t", False, True, False, False, {})
        raw.hear_of("basic.consume-ok")
        from onelog.wire.amqp.frame import content_frames
        from onelog.wire.amqp.methods import ENCODERS

        payload = ENCODERS["basic.publish"]("", queue, False, False)
        frames = b"".join(content_frames(1, payload, b"\0\0", body, 131_072))
        for _ in range(200):
            raw.socket.sendall(frames)
        for _ in range(200):
            raw.hear_of("basic.deliver")


def test_a_consumer_is_not_held_up_by_another_that_does_not_read(url: str) -> None:
    with connected(url) as connection, Raw(url) as raw:
        channel = connection.channel()
        queue = name(channel, exclusive=False, auto_delete=True)
        heard = Heard(channel, queue, auto_ack=True)
        raw.shake_hands().open()
        raw.say(1, "basic.consume", queue, "t", False, True, False, False, {})
        raw.hear_of("basic.consume-ok")
        done = threading.Event()

        def publish() -> None:
            with connected(url) as own:
                publisher = own.channel()
                for _ in range(400):
                    publisher.basic_publish("", queue, bytes(100_000))
            done.set()

        thread = threading.Thread(target=publish)
        thread.start()
        heard.wait(100)
        wait_until(lambda: channel.connection.process_data_events(0.01) or done.is_set())
        thread.join()
        assert len(heard.bodies) >= 100


@ours_only
def test_a_consumer_that_never_acknowledges_has_so_many_and_no_more(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "UNACKED_MAX", 50)
    with connected(url) as connection:
        channel, greedy = connection.channel(), connection.channel()
        channel.queue_declare("q", durable=True)
        send(channel, "q", *(b"%d" % number for number in range(120)))
        heard: list[int] = []
        greedy.basic_consume("q", lambda _, method, *rest: heard.append(method.delivery_tag))
        wait_until(lambda: connection.process_data_events(0.01) or len(heard) == 50)
        connection.process_data_events(0.05)
        assert len(heard) == 50
        assert got(channel, "q")[2] == b"50"  # Others are not held up.
        greedy.basic_ack(heard[9], multiple=True)
        wait_until(lambda: connection.process_data_events(0.01) or len(heard) == 60)
