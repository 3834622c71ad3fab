"""Who connects: with users there is a password, and what is not permitted has its reason."""

import asyncio
from pathlib import Path
from typing import Any

from onelog.core.access import SELF
from onelog.core.users.passwords import prove
from onelog.server import BrokerServer
from onelog.wire.mqtt.codes import V5, V311, Packet, Reason
from onelog.wire.mqtt.packets import Will
from tests.gateways.mqtt.raw import Raw
from tests.gateways.remoting.live import broker


def use(server: BrokerServer) -> None:
    """Clients that have the password, and some that do not."""
    port = server.config.mqtt.port
    with Raw(port, V5) as client:
        assert client.connect("a").reason == Reason.BAD_USER_OR_PASSWORD
        assert client.ends()
    with Raw(port, V311) as client:
        assert client.connect("a", user="ann", password=b"wrong").reason == 4
    with Raw(port, V5) as client:
        # What follows CONNECT at once waits for the answer to it.
        from onelog.wire.mqtt.packets import Connect, encode_connect

        connect = Connect(V5, "a", True, 0, None, "ann", b"secret")
        client.send(encode_connect(connect) + b"\xc0\0" * 3)
        assert client.read()[1][1] == 0
        assert [client.read()[0] for _ in range(3)] == [0xD0] * 3
        client.subscribe(("t", 1))
        client.publish("t", b"mine", 1, 1)
        assert {client.read()[0] >> 4 for _ in range(2)} == {Packet.PUBLISH, Packet.PUBACK}
    with Raw(port, V5) as client:
        assert client.connect("b", user="bob", password=b"b").reason == 0
        assert client.subscribe(("t", 1)) == bytes((Reason.NOT_AUTHORIZED,))
        client.publish("t", b"not his", 1, 1)
        assert client.expect(Packet.PUBACK).reason == Reason.NOT_AUTHORIZED


async def test_users_have_passwords_and_rules(tmp_path: Path) -> None:
    async with broker(tmp_path, mqtt__port=-1) as server:
        server.broker.users.create_user(SELF, "ann", prove("secret"), ("admin",))
        server.broker.users.create_user(SELF, "bob", prove("b"))
        await asyncio.to_thread(use, server)


def take_over(server: BrokerServer) -> None:
    """Somebody with the client id of another user, and one who leaves a will that he may not."""
    port = server.config.mqtt.port
    with Raw(port, V5) as ann, Raw(port, V5) as bob:
        assert ann.connect("hers", clean=False, user="ann", password=b"secret").reason == 0
        login: dict[str, Any] = {"user": "bob", "password": b"b"}
        assert bob.connect("hers", clean=False, **login).reason == Reason.NOT_AUTHORIZED
        assert bob.ends()
        ann.publish("t", b"still there", 1, 1)
        assert ann.expect(Packet.PUBACK).reason in (0, Reason.NO_MATCHING_SUBSCRIBERS)
    with Raw(port, V5) as bob:
        will = Will("t", b"not his", 1, False, {})
        assert bob.connect("his", will=will, **login).reason == Reason.NOT_AUTHORIZED


async def test_a_client_id_is_its_users_and_so_is_a_will(tmp_path: Path) -> None:
    async with broker(tmp_path, mqtt__port=-1) as server:
        server.broker.users.create_user(SELF, "ann", prove("secret"), ("admin",))
        server.broker.users.create_user(SELF, "bob", prove("b"))
        await asyncio.to_thread(take_over, server)
