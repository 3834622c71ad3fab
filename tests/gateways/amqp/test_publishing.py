"""Publishing: routes, confirms, returns, transactions."""

import threading
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    UnroutableError,
)

from tests.gateways.amqp.live import Raw, bodies, channel, connected, got, name, ready, send, url
from tests.waiting import wait_until

__all__ = ["channel", "url"]


def test_a_message_comes_as_it_was_published(channel: BlockingChannel) -> None:
    queue = name(channel)
    properties = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=12345,
        type="t",
        user_id="guest",
        app_id="a",
        headers={"n": 1, "s": "x", "l": [1, "two", {"k": 3}]},
    )
    channel.basic_publish("", queue, b"body", properties)
    method, found, body = got(channel, queue)
    assert body == b"body"
    assert found == properties
    assert (method.exchange, method.routing_key, method.redelivered) == ("", queue, False)


def test_a_large_message_comes_in_many_frames(channel: BlockingChannel) -> None:
    queue = name(channel)
    body = bytes(range(256)) * 4096
    channel.basic_publish("", queue, body)
    assert got(channel, queue)[2] == body
    channel.basic_publish("", queue, b"")
    assert got(channel, queue)[2] == b""


def test_confirms_come_when_messages_are_safe(channel: BlockingChannel) -> None:
    queue = name(channel, exclusive=False, durable=True, auto_delete=True)
    channel.confirm_delivery()
    persistent = pika.BasicProperties(delivery_mode=2)
    for number in range(50):
        channel.basic_publish("", queue, b"%d" % number, persistent, mandatory=True)
    assert bodies(channel, queue) == [b"%d" % number for number in range(50)]
    channel.queue_delete(queue)


def test_what_goes_nowhere_is_returned_and_confirmed(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    channel.basic_publish("", "nobody-has-this", b"lost")
    with pytest.raises(UnroutableError) as caught:
        channel.basic_publish("", "nobody-has-this", b"back", mandatory=True)
    (message,) = caught.value.messages
    assert (message.method.reply_code, message.method.reply_text) == (312, "NO_ROUTE")
    assert (message.method.routing_key, message.body) == ("nobody-has-this", b"back")


def test_many_confirms_are_one(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open()
        raw.say(1, "confirm.select", False)
        raw.hear_of("confirm.select-ok")
        raw.say(1, "queue.declare", "", False, False, True, False, False, {})
        queue = raw.hear_of("queue.declare-ok")[0]
        payload = b"".join(bytes(piece) for _ in range(500) for piece in _frames(queue, b"body"))
        raw.socket.sendall(payload)
        confirmed, answers = 0, 0
        while confirmed < 500:
            tag, multiple = raw.hear_of("basic.ack")
            assert tag > confirmed
            assert multiple or tag == confirmed + 1
            confirmed, answers = tag, answers + 1
        assert answers < 400


@pytest.mark.parametrize("durable", [True, False])
def test_many_messages_that_are_alike_come_each_once_and_in_order(url: str, durable: bool) -> None:
    sent = [b"%05d" % number for number in range(1_500)]
    sent[700] = b"one of another length"
    with Raw(url) as raw, connected(url) as other:
        raw.shake_hands().open()
        raw.say(1, "confirm.select", False)
        raw.hear_of("confirm.select-ok")
        raw.say(1, "queue.declare", "alike", False, durable, False, False, False, {})
        raw.hear_of("queue.declare-ok")
        taker = other.channel()
        taker.basic_qos(prefetch_count=300)
        raw.socket.sendall(
            b"".join(bytes(each) for body in sent for each in _frames("alike", body))
        )
        confirmed = 0
        while confirmed < len(sent):
            confirmed, _ = raw.hear_of("basic.ack")
        found = []
        for method, _, body in taker.consume("alike", inactivity_timeout=20):
            assert method is not None
            assert not method.redelivered
            found.append(body)
            if len(found) % 100 == 0:
                taker.basic_ack(method.delivery_tag, multiple=True)
            if len(found) == len(sent):
                break
        assert found == sent
        taker.cancel()
        left = taker.queue_declare("alike", durable=durable, passive=True).method.message_count
        assert left == 0
        taker.queue_delete("alike")


def test_messages_to_many_queues_come_each_once_and_in_order(url: str) -> None:
    names = [f"scattered-{number}" for number in range(20)]
    sent = [(names[at * 7 % 20], b"%05d" % at) for at in range(2_000)]
    with Raw(url) as raw, connected(url) as other:
        raw.shake_hands().open()
        taker = other.channel()
        found: dict[str, list[bytes]] = {each: [] for each in names}

        def take(_: Any, method: Any, __: Any, body: bytes) -> None:
            found[method.routing_key].append(body)

        for at, each in enumerate(names):
            taker.queue_declare(each, durable=at % 4 > 0, auto_delete=True)
            taker.basic_consume(each, take, auto_ack=True)
        raw.socket.sendall(b"".join(bytes(each) for one in sent for each in _frames(*one)))
        while sum(map(len, found.values())) < len(sent):
            other.process_data_events(20)
        assert found == {each: [body for key, body in sent if key == each] for each in names}


def _frames(key: str, body: bytes) -> list[Any]:
    from onelog.wire.amqp.frame import content_frames
    from onelog.wire.amqp.methods import ENCODERS

    payload = ENCODERS["basic.publish"]("", key, False, False)
    return content_frames(1, payload, b"\0\0", body, 131_072)


def test_an_exchange_that_is_not_there_ends_the_channel(channel: BlockingChannel) -> None:
    channel.basic_publish("no-such-exchange", "key", b"x")
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare("", exclusive=True)
    assert caught.value.reply_code == 404
    assert "no exchange 'no-such-exchange' in vhost '/'" in caught.value.reply_text


@pytest.mark.parametrize(
    ("properties", "word"),
    [
        ({"expiration": "soon"}, "expiration"),
        ({"expiration": "-1"}, "expiration"),
        ({"user_id": "somebody"}, "user_id"),
        ({"reply_to": "amq.rabbitmq.reply-to"}, "reply consumer"),
    ],
)
def test_properties_that_cannot_be_end_the_channel(
    channel: BlockingChannel, properties: dict[str, str], word: str
) -> None:
    queue = name(channel)
    channel.basic_publish("", queue, b"x", pika.BasicProperties(**properties))
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare("", exclusive=True)
    assert caught.value.reply_code == 406
    assert word in caught.value.reply_text


def test_immediate_is_not_implemented(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open()
        from onelog.wire.amqp.frame import content_frames
        from onelog.wire.amqp.methods import ENCODERS

        payload = ENCODERS["basic.publish"]("", "q", False, True)
        raw.socket.sendall(b"".join(content_frames(1, payload, b"\0\0", b"x", 4096)))
        code, text, kind, method = raw.hear_of("connection.close")
        assert (code, kind, method) == (540, 60, 40)
        assert text == "NOT_IMPLEMENTED - immediate=true"


def test_a_full_queue_refuses(channel: BlockingChannel) -> None:
    queue = name(channel, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"1")
    # RabbitMQ lets some more in before it is full.
    with pytest.raises(NackError):
        send(channel, queue, *([b"2"] * 10))
    assert channel.basic_get(queue, auto_ack=True)[2] == b"1"


# -- exchanges -----------------------------------------------------------------------------------


def test_fanout_topic_and_headers(channel: BlockingChannel) -> None:
    first, second = name(channel), name(channel)
    for queue in (first, second):
        channel.queue_bind(queue, "amq.fanout")
    send(channel, "", b"all", exchange="amq.fanout")
    assert bodies(channel, first) == bodies(channel, second) == [b"all"]
    channel.queue_bind(first, "amq.topic", "log.*")
    channel.queue_bind(first, "amq.topic", "log.#")
    channel.queue_bind(second, "amq.topic", "#.error")
    for key in ("log.info", "log.db.error", "error", "other"):
        send(channel, key, key, exchange="amq.topic")
    assert bodies(channel, first) == [b"log.info", b"log.db.error"]
    assert bodies(channel, second) == [b"log.db.error", b"error"]
    channel.queue_bind(first, "amq.headers", "", {"x-match": "all", "a": 1, "b": "x"})
    channel.queue_bind(second, "amq.headers", "", {"x-match": "any", "a": 1, "b": "x"})
    for headers in ({"a": 1, "b": "x"}, {"a": 1}, {"c": 1}):
        found = pika.BasicProperties(headers=headers)
        channel.basic_publish("amq.headers", "", repr(headers), found)
    assert len(bodies(channel, first)) == 1
    assert len(bodies(channel, second)) == 2


def test_exchanges_are_bound_to_exchanges_and_have_alternates(channel: BlockingChannel) -> None:
    queue, other = name(channel), name(channel)
    channel.exchange_declare("spare", "fanout", auto_delete=True)
    channel.exchange_declare(
        "front", "direct", auto_delete=True, arguments={"alternate-exchange": "spare"}
    )
    channel.exchange_declare("back", "topic", auto_delete=True, internal=True)
    channel.exchange_bind("back", "front", "k")
    channel.queue_bind(queue, "back", "#")
    channel.queue_bind(other, "spare")
    send(channel, "k", b"1", exchange="front")
    send(channel, "unknown", b"2", exchange="front")
    assert bodies(channel, queue) == [b"1"]
    assert bodies(channel, other) == [b"2"]
    send(channel, "k", b"3", exchange="back")
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare("", exclusive=True)
    assert caught.value.reply_code == 403


def test_carbon_copies(channel: BlockingChannel) -> None:
    queue, copy, blind = name(channel), name(channel), name(channel)
    properties = pika.BasicProperties(headers={"CC": [copy], "BCC": [blind]})
    channel.basic_publish("", queue, b"x", properties)
    for each in (queue, copy, blind):
        _, found, body = got(channel, each)
        assert body == b"x"
        assert "BCC" not in found.headers
        assert found.headers["CC"] == [copy]


# -- transactions --------------------------------------------------------------------------------


def test_a_transaction_is_seen_when_it_is_committed(channel: BlockingChannel, url: str) -> None:
    queue = name(channel, exclusive=False, durable=True, auto_delete=True)
    with connected(url) as connection:
        other = connection.channel()
        channel.tx_select()
        send(channel, queue, b"1", b"2")
        assert ready(other, queue) == 0
        channel.tx_rollback()
        send(channel, queue, b"3", b"4")
        channel.tx_commit()
        assert bodies(other, queue) == [b"3", b"4"]
    channel.queue_delete(queue)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize(("count", "size"), [(6_000, 10), (30, 1 << 20)])
def test_a_large_transaction_comes_whole_and_in_order(
    channel: BlockingChannel, url: str, durable: bool, count: int, size: int
) -> None:
    with connected(url) as other:
        observer = other.channel()
        observer.queue_declare("large", durable=durable)
        channel.tx_select()
        for number in range(count):
            channel.basic_publish("", "large", b"%08d" % number + bytes(size))
        assert ready(observer, "large") == 0
        channel.tx_commit()
        assert ready(observer, "large") == count
        assert [int(each[:8]) for each in bodies(observer, "large")] == list(range(count))
        channel.tx_rollback()
        observer.queue_delete("large")


def test_acknowledgements_of_a_transaction_wait_for_it(channel: BlockingChannel, url: str) -> None:
    queue = name(channel, exclusive=False, durable=True)
    send(channel, queue, b"1", b"2")
    channel.tx_select()
    tags = [got(channel, queue, auto_ack=False)[0].delivery_tag for _ in range(2)]
    channel.basic_ack(tags[0])
    channel.tx_rollback()
    channel.basic_ack(tags[0])
    channel.tx_commit()
    channel.basic_ack(tags[1])
    channel.connection.close()
    with connected(url) as connection:
        after = connection.channel()
        wait_until(lambda: ready(after, queue) == 1)
        assert bodies(after, queue) == [b"2"]
        after.queue_delete(queue)


def test_messages_that_go_nowhere_are_returned_before_the_commit(channel: BlockingChannel) -> None:
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda *told: returned.append(told[3]))
    channel.tx_select()
    channel.basic_publish("", "nobody-has-this", b"x", mandatory=True)
    channel.tx_commit()
    channel.connection.process_data_events(0)
    assert returned == [b"x"]


def test_transactions_and_confirms_exclude_each_other(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open(1).open(2).open(3)
        raw.say(1, "tx.select")
        raw.hear_of("tx.select-ok")
        raw.say(1, "confirm.select", False)
        assert raw.hear_of("channel.close")[:2] == (
            406,
            "PRECONDITION_FAILED - cannot switch from tx to confirm mode",
        )
        raw.say(2, "confirm.select", False)
        raw.hear_of("confirm.select-ok")
        raw.say(2, "tx.select")
        assert raw.hear_of("channel.close")[:2] == (
            406,
            "PRECONDITION_FAILED - cannot switch from confirm to tx mode",
        )
        raw.say(3, "tx.commit")
        assert raw.hear_of("channel.close")[:2] == (
            406,
            "PRECONDITION_FAILED - channel is not transactional",
        )


def test_many_publishers_at_once(url: str) -> None:
    with connected(url) as connection:
        channel = connection.channel()
        queue = name(channel, exclusive=False)

        def publish(number: int) -> None:
            with connected(url) as own:
                publisher = own.channel()
                publisher.confirm_delivery()
                for each in range(50):
                    publisher.basic_publish("", queue, b"%d-%d" % (number, each))

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = bodies(channel, queue)
        assert sorted(found) == sorted(b"%d-%d" % (n, e) for n in range(4) for e in range(50))
        for number in range(4):
            mine = [body for body in found if body.startswith(b"%d-" % number)]
            assert mine == [b"%d-%d" % (number, each) for each in range(50)]
        channel.queue_delete(queue)


def test_a_closed_connection_is_told_why(url: str) -> None:
    with connected(url) as connection:
        channel = connection.channel()
        with pytest.raises(ConnectionClosedByBroker) as caught:
            channel.basic_qos(prefetch_size=10)
        assert caught.value.reply_code == 540
