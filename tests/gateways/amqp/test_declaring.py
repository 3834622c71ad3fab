"""Exchanges and queues: declared, bound, purged, deleted."""

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from onelog.record.forms.amqp_fields import Long
from tests.gateways.amqp.live import Raw, bodies, channel, connected, name, ready, send, url
from tests.waiting import wait_until

__all__ = ["channel", "url"]


def refused(call: Any, *arguments: Any, **options: Any) -> tuple[int, str]:
    """How the broker ended the channel."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        call(*arguments, **options)
    return caught.value.reply_code, caught.value.reply_text


def test_a_queue_without_a_name_gets_one(channel: BlockingChannel) -> None:
    found = channel.queue_declare("", exclusive=True).method
    assert found.queue.startswith("amq.gen-")
    assert (found.message_count, found.consumer_count) == (0, 0)
    channel.queue_bind("", "amq.direct", "")
    send(channel, found.queue, b"x", exchange="amq.direct")
    assert bodies(channel, found.queue) == [b"x"]


def test_a_queue_is_declared_once_and_again_if_it_is_the_same(channel: BlockingChannel) -> None:
    for _ in range(2):
        channel.queue_declare("declared", durable=True, arguments={"x-max-length": 5})
    send(channel, "declared", b"1", b"2")
    wait_until(lambda: ready(channel, "declared") == 2)
    assert channel.queue_purge("declared").method.message_count == 2
    send(channel, "declared", b"3")
    wait_until(lambda: ready(channel, "declared") == 1)
    assert channel.queue_delete("declared").method.message_count == 1
    assert channel.queue_delete("declared").method.message_count == 0


@pytest.mark.parametrize("argument", ["x-message-ttl", "x-expires", "x-max-length"])
def test_10_and_10_0_are_not_the_same(url: str, argument: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open(1)
        declared = ("queue.declare", "tens", False, False, True, False, False)
        for value in (10, Long(10)):
            raw.say(1, *declared, {argument: value})
            raw.hear_of("queue.declare-ok")
        raw.say(1, *declared, {argument: 10.0})
        assert raw.hear_of("channel.close")[0] == 406


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durable": False}, "inequivalent arg 'durable' for queue 'same' in vhost '/'"),
        ({"auto_delete": True}, "inequivalent arg 'auto_delete' for queue 'same' in vhost '/'"),
        ({"arguments": {"x-max-length": 6}}, "inequivalent arg 'x-max-length' for queue 'same'"),
        ({"arguments": {}}, "inequivalent arg 'x-max-length' for queue 'same' in vhost '/'"),
    ],
)
def test_a_queue_that_is_another_is_refused(
    channel: BlockingChannel, options: dict[str, Any], text: str
) -> None:
    usual = {"durable": True, "arguments": {"x-max-length": 5}}
    channel.queue_declare("same", **usual)
    code, found = refused(channel.queue_declare, "same", **{**usual, **options})
    assert code == 406
    assert text in found
    fresh = channel.connection.channel()
    fresh.queue_delete("same")


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": -1},
        {"x-message-ttl": "soon"},
        {"x-expires": 0},
        {"x-max-length": -5},
        {"x-max-priority": 256},
        {"x-overflow": "drop-tail"},
        {"x-dead-letter-exchange": 3},
        {"x-dead-letter-routing-key": "alone"},
        {"x-queue-type": "clay-tablet"},
    ],
)
def test_arguments_that_cannot_be_are_refused(
    channel: BlockingChannel, arguments: dict[str, Any]
) -> None:
    code, _ = refused(channel.queue_declare, "odd", durable=True, arguments=arguments)
    assert code == 406


def test_an_exclusive_queue_is_its_connections_own(channel: BlockingChannel, url: str) -> None:
    channel.queue_declare("mine", exclusive=True)
    with connected(url) as connection:
        for call, arguments, options in (
            ("queue_declare", ("mine",), {"passive": True}),
            ("queue_declare", ("mine",), {"exclusive": True}),
            ("queue_delete", ("mine",), {}),
            ("queue_purge", ("mine",), {}),
            ("basic_get", ("mine",), {}),
            ("queue_bind", ("mine", "amq.direct", "k"), {}),
            ("basic_consume", ("mine", print), {}),
        ):
            other = connection.channel()
            code, text = refused(getattr(other, call), *arguments, **options)
            assert code == 405
            assert "cannot obtain exclusive access to locked queue 'mine' in vhost '/'" in text
    channel.connection.close()
    with connected(url) as connection:
        other = connection.channel()
        assert refused(other.queue_declare, "mine", passive=True)[0] == 404


def test_an_auto_delete_queue_goes_with_its_last_consumer(channel: BlockingChannel) -> None:
    channel.queue_declare("brief", auto_delete=True)
    send(channel, "brief", b"x")
    tags = [channel.basic_consume("brief", lambda *told: None) for _ in range(2)]
    channel.basic_cancel(tags[0])
    ready(channel, "brief")
    channel.basic_cancel(tags[1])
    assert refused(channel.queue_declare, "brief", passive=True)[0] == 404


def test_a_queue_expires(channel: BlockingChannel) -> None:
    channel.queue_declare("short-lived", arguments={"x-expires": 50})

    def is_gone() -> bool:
        # To ask for a queue is to use it; to publish to it is not.
        other = channel.connection.channel()
        other.confirm_delivery()
        try:
            other.basic_publish("", "short-lived", b"", mandatory=True)
        except UnroutableError:
            return True
        finally:
            other.close()
        return False

    wait_until(is_gone)


@pytest.mark.parametrize(
    ("call", "arguments", "options", "code", "text"),
    [
        ("queue_declare", ("nowhere",), {"passive": True}, 404, "no queue 'nowhere' in vhost '/'"),
        ("queue_declare", ("amq.mine",), {}, 403, "queue name 'amq.mine' contains reserved prefix"),
        ("queue_bind", ("nowhere", "amq.direct", "k"), {}, 404, "no queue 'nowhere'"),
        ("queue_purge", ("nowhere",), {}, 404, "no queue 'nowhere'"),
        ("basic_get", ("nowhere",), {}, 404, "no queue 'nowhere'"),
        ("basic_consume", ("nowhere", print), {}, 404, "no queue 'nowhere'"),
        ("queue_purge", ("",), {}, 404, "no previously declared queue"),
        ("exchange_declare", ("nowhere",), {"passive": True}, 404, "no exchange 'nowhere'"),
        ("exchange_declare", ("amq.mine", "direct"), {}, 403, "contains reserved prefix 'amq.*'"),
        ("exchange_declare", ("", "direct"), {}, 403, "not permitted on the default exchange"),
        ("exchange_delete", ("amq.direct",), {}, 403, "deletion of system exchange"),
        ("exchange_delete", ("",), {}, 403, "not permitted on the default exchange"),
        ("exchange_bind", ("nowhere", "amq.direct", "k"), {}, 404, "no exchange 'nowhere'"),
        ("exchange_bind", ("amq.direct", "", "k"), {}, 403, "default exchange"),
        ("exchange_declare", ("amq.direct", "topic"), {"durable": True}, 406, "inequivalent arg"),
    ],
)
def test_what_cannot_be_done_ends_the_channel(
    channel: BlockingChannel,
    call: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    code: int,
    text: str,
) -> None:
    found = refused(getattr(channel, call), *arguments, **options)
    assert found[0] == code
    assert text in found[1]
    # The connection, and its other channels, live on.
    channel.connection.channel().queue_declare("", exclusive=True)


def test_conditions_of_deleting(channel: BlockingChannel) -> None:
    channel.queue_declare("used")
    send(channel, "used", b"x")
    wait_until(lambda: ready(channel, "used") == 1)
    assert refused(channel.queue_delete, "used", if_empty=True)[0] == 406
    again = channel.connection.channel()
    again.basic_consume("used", lambda *told: None)
    assert refused(again.queue_delete, "used", if_unused=True)[0] == 406
    again = channel.connection.channel()
    again.queue_delete("used")
    again.exchange_declare("bound", "fanout")
    queue = name(again)
    again.queue_bind(queue, "bound")
    assert refused(again.exchange_delete, "bound", if_unused=True)[0] == 406
    again = channel.connection.channel()
    again.exchange_delete("bound")
    again.exchange_delete("bound")


def test_an_auto_delete_exchange_goes_with_its_last_binding(channel: BlockingChannel) -> None:
    channel.exchange_declare("brief", "direct", auto_delete=True)
    queue = name(channel)
    channel.queue_bind(queue, "brief", "a")
    channel.queue_bind(queue, "brief", "b")
    channel.queue_unbind(queue, "brief", "a")
    channel.queue_unbind(queue, "brief", "never-was")
    channel.exchange_declare("brief", passive=True)
    channel.queue_delete(queue)
    assert refused(channel.exchange_declare, "brief", passive=True)[0] == 404


def test_whoever_does_not_wait_is_not_answered(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open()
        raw.say(1, "exchange.declare", "quiet", "direct", False, False, True, False, True, {})
        raw.say(1, "queue.declare", "quiet", False, False, True, False, True, {})
        raw.say(1, "queue.bind", "quiet", "quiet", "k", True, {})
        raw.say(1, "queue.purge", "quiet", True)
        raw.say(1, "basic.consume", "quiet", "t", False, False, False, True, {})
        raw.say(1, "basic.cancel", "t", True)
        raw.say(1, "queue.delete", "quiet", False, False, True)
        raw.say(1, "access.request", "/data", False, False, True, True, True)
        raw.hear_of("access.request-ok")


def test_line_ends_are_no_part_of_a_name(url: str) -> None:
    with Raw(url) as raw:
        raw.shake_hands().open()
        raw.say(1, "queue.declare", "a\r\nb", False, False, True, False, False, {})
        assert raw.hear_of("queue.declare-ok") == ("ab", 0, 0)


def test_a_thousand_queues(channel: BlockingChannel) -> None:
    channel.exchange_declare("many", "fanout", auto_delete=True)
    queues = [name(channel) for _ in range(1000)]
    for queue in queues:
        channel.queue_bind(queue, "many")
    send(channel, "", b"to all", exchange="many")
    assert all(bodies(channel, queue) == [b"to all"] for queue in queues)
