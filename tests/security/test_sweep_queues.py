"""AMQP, STOMP, MQTT: nothing a client can say tells him of what he has no permission for."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from onelog.gateways.amqp.session import _BY_NAME
from onelog.gateways.stomp.gateway import handlers as stomp_handlers
from onelog.server import BrokerServer
from onelog.wire.mqtt.codes import V5, Packet, Reason
from tests.gateways.mqtt.raw import Raw
from tests.gateways.stomp.live import Bare
from tests.security.secrets import ABSENT, NOBODY, OWNER, SECRET, TRACE, context, hidden, state

SAID: dict[str, Callable[[BlockingChannel, str], Any]] = {
    "exchange.declare": lambda c, name: c.exchange_declare(name, "topic", durable=True),
    "exchange.declare passive": lambda c, name: c.exchange_declare(name, passive=True),
    "exchange.declare other": lambda c, name: c.exchange_declare(
        "own.new", arguments={"alternate-exchange": name}
    ),
    "exchange.delete": lambda c, name: c.exchange_delete(name),
    "exchange.bind": lambda c, name: c.exchange_bind("own", name, "k"),
    "exchange.bind from own": lambda c, name: c.exchange_bind(name, "own", "k"),
    "exchange.unbind": lambda c, name: c.exchange_unbind("own", name, "k"),
    "queue.declare": lambda c, name: c.queue_declare(f"{name}.queue", durable=True),
    "queue.declare passive": lambda c, name: c.queue_declare(f"{name}.queue", passive=True),
    "queue.declare dead letters": lambda c, name: c.queue_declare(
        "", exclusive=True, arguments={"x-dead-letter-exchange": name}
    ),
    "queue.bind": lambda c, name: c.queue_bind("own.queue", name, "k"),
    "queue.bind from own": lambda c, name: c.queue_bind(f"{name}.queue", "own", "k"),
    "queue.unbind": lambda c, name: c.queue_unbind("own.queue", name, "k"),
    "queue.purge": lambda c, name: c.queue_purge(f"{name}.queue"),
    "queue.delete": lambda c, name: c.queue_delete(f"{name}.queue"),
    "basic.consume": lambda c, name: c.basic_consume(f"{name}.queue", print, consumer_tag="t"),
    "basic.get": lambda c, name: c.basic_get(f"{name}.queue"),
    "basic.publish": lambda c, name: _published(c, name, "k"),
    "basic.publish default": lambda c, name: _published(c, "", f"{name}.queue"),
    "tx.commit": lambda c, name: _committed(c, name),
}
NAMELESS = {
    "channel.open",
    "channel.flow",
    "channel.flow-ok",
    "channel.close",
    "access.request",
    "basic.qos",
    "basic.cancel",
    "basic.cancel-ok",
    "basic.nack",
    "basic.reject",
    "basic.recover",
    "basic.recover-async",
    "confirm.select",
    "tx.select",
    "tx.rollback",
    "basic.publish",
}
"""Methods that name no thing, but at most what the same channel has got."""


def _published(channel: BlockingChannel, exchange: str, key: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish(exchange, key, b"x", mandatory=True)


def _committed(channel: BlockingChannel, name: str) -> None:
    channel.tx_select()
    channel.basic_publish(name, "k", b"x")
    channel.tx_commit()


def test_every_method_is_tried() -> None:
    assert {each.partition(" ")[0] for each in SAID} | NAMELESS == {*_BY_NAME, "basic.publish"}


def entered(server: BrokerServer, account: tuple[str, str], vhost: str) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(*account)
    port = server.config.amqp.port
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port, vhost, credentials, socket_timeout=20)
    )


def outcome(connection: pika.BlockingConnection, said: str, name: str) -> bytes:
    """What comes of a method, but for the name."""
    channel = connection.channel()
    try:
        told = repr(SAID[said](channel, name))
    except pika.exceptions.AMQPError as error:
        told = repr(error)
    with contextlib.suppress(pika.exceptions.AMQPError):
        channel.close()
    return hidden(told.encode(), name)


def amqp(server: BrokerServer) -> dict[str, str]:
    """What AMQP tells that it should not."""
    wrong = {}
    for vhost in ("/", SECRET, ABSENT, "own"):
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="refused for user"):
            entered(server, NOBODY, vhost)
    for vhost in (SECRET, ABSENT):
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="refused for user"):
            entered(server, OWNER, vhost)
    connection = entered(server, OWNER, "/")
    for said in SAID:
        answers = [outcome(connection, said, name) for name in (SECRET, ABSENT)]
        if answers[0] != answers[1] or TRACE in answers[0]:
            wrong[said] = str(answers)
        if not connection.is_open:
            connection = entered(server, OWNER, "/")
    connection.close()
    return wrong


DESTINATIONS = ("/queue/{}.queue", "/topic/{}", "/exchange/{}/k", "/amq/queue/{}.queue", "/topic/>")


def stomp(server: BrokerServer) -> dict[str, str]:
    """What STOMP tells that it should not."""
    wrong = {}
    address = ("127.0.0.1", server.config.stomp.port)
    for account in (NOBODY, OWNER):
        for command in stomp_handlers():
            for destination in DESTINATIONS:
                answers = []
                for name in (SECRET, ABSENT):
                    with Bare(address) as client:
                        login = f"login:{account[0]}\npasscode:{account[1]}\nhost:{name}\n"
                        client.say(f"CONNECT\naccept-version:1.2\n{login}\n\0".encode())
                        assert client.hear().command == "CONNECTED"
                        place = destination.format(name)
                        head = f"{command}\ndestination:{place}\nid:1\nreceipt:r\ntransaction:t\n"
                        if command in ("SEND", "SUBSCRIBE"):
                            head = head.replace("transaction:t\n", "")
                        client.say(f"{head}\n\0".encode())
                        frame = client.hear()
                        told = f"{frame.command} {sorted(frame.headers.items())}".encode()
                        answers.append(hidden(told + bytes(frame.body), name))
                if answers[0] != answers[1] or TRACE in answers[0]:
                    wrong[f"{account[0]} {command} {destination}"] = str(answers)
    return wrong


def mqtt(server: BrokerServer) -> dict[str, str]:
    """What MQTT tells that it should not."""
    wrong = {}
    for user, password in (NOBODY, OWNER):
        with Raw(server.config.mqtt.port, V5) as client:
            assert client.connect("sweep", user=user, password=password.encode()).reason == 0
            for filter_ in (SECRET, "#", f"+/{SECRET}", f"$share/{SECRET}/{SECRET}", "$SYS/#"):
                absent = filter_.replace(SECRET, ABSENT)
                told = [client.subscribe((each, 1)) for each in (filter_, absent)]
                if told[0] != told[1] or told[0][0] < Reason.UNSPECIFIED:
                    wrong[f"{user} SUBSCRIBE {filter_}"] = str(told)
            answers = []
            for topic in (SECRET, ABSENT):
                client.publish(topic, b"x", 1, 1, retain=True)
                answers.append(client.expect(Packet.PUBACK).reason)
            if answers != [Reason.NOT_AUTHORIZED] * 2:
                wrong[f"{user} PUBLISH"] = str(answers)
    return wrong


@pytest.mark.parametrize("sweep", [amqp, stomp, mqtt])
async def test_nothing_tells_what_is_there(
    tmp_path: Path, sweep: Callable[[BrokerServer], dict[str, str]]
) -> None:
    async with context(tmp_path) as server:
        before = state(server)
        wrong = await asyncio.to_thread(sweep, server)
        assert state(server) == before
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())
