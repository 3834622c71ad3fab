"""Which permission each request of each protocol asks for: a table that has every handler.

Somebody without any permission sends every request of every protocol, well made, and what the core
is asked about him is noted. A new request is in no line of the table, and fails here until somebody
has looked at what it asks. What asks nothing is in a line of its own, with the reason.
"""

import asyncio
import contextlib
import itertools
import json
import re
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple, cast, get_args, get_type_hints

import grpc.aio
import httpx
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from starlette.routing import WebSocketRoute
from websockets.sync.client import connect as open_websocket

from onelog.config import Value
from onelog.config_sources import load
from onelog.core.access import SELF, Action, Kind, Principal, Resource
from onelog.core.users.permissions import Rule
from onelog.errors import ConfigError
from onelog.gateways.amqp.session import _BY_NAME as AMQP_HANDLERS
from onelog.gateways.http.app import make_app
from onelog.gateways.kafka.handlers import HANDLERS as KAFKA_HANDLERS
from onelog.gateways.kafka.handlers import VERSIONS
from onelog.gateways.kafka.names import topic_id
from onelog.gateways.mqtt.session import HANDLERS as MQTT_HANDLERS
from onelog.gateways.remoting.admin import client_relay
from onelog.gateways.remoting.gateway import HANDLERS as REMOTING_HANDLERS
from onelog.gateways.stomp.gateway import handlers as stomp_handlers
from onelog.message import NewMessage
from onelog.nameserver.session import HANDLERS as NAMESERVER_HANDLERS
from onelog.net.connection import Connection
from onelog.replication.node import Followers
from onelog.server import BrokerServer
from onelog.wire.grpc import messages
from onelog.wire.kafka import schema
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.mqtt.codes import V5, Packet, Reason
from onelog.wire.mqtt.packets import Unsubscribe, encode_unsubscribe
from onelog.wire.remoting.administration import KINDS as REMOTING_KINDS
from onelog.wire.remoting.administration import RequestKind as Doing
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.replication.epoch_ha import FollowerReader
from tests.gateways.grpc.live import address
from tests.gateways.http.live import SECONDS, url
from tests.gateways.kafka.raw import raw
from tests.gateways.mqtt.raw import Raw
from tests.gateways.remoting.live import client as connected
from tests.gateways.stomp.live import Bare
from tests.security import test_sweep_grpc as calls
from tests.security import test_sweep_http as routes
from tests.security import test_sweep_kafka as kafka
from tests.security import test_sweep_queues as queues
from tests.security import test_sweep_remoting as remoting
from tests.security.secrets import ADMIN, NOBODY, OWNER, SECRET, context, state
from tests.security.verbs import NAMESERVER, REPLICATION, TABLES

Login = tuple[str, str]


@contextlib.contextmanager
def noted(server: BrokerServer, name: str) -> Iterator[list[str]]:
    """What the core is asked about somebody; with a + what everybody may."""
    users, asked = server.broker.users, list[str]()
    may, may_some = users.may, users.may_some

    def noting(principal: Principal, action: Action, resource: Resource) -> bool:
        allowed = may(principal, action, resource)
        if principal.name == name:
            asked.append(f"{action} {resource[0]}{'+' * allowed}")
        return allowed

    def noting_some(principal: Principal, kinds: Sequence[Kind]) -> bool:
        if principal.name == name:
            asked.append(f"anything {'/'.join(kinds)}")
        return may_some(principal, kinds)

    users.may, users.may_some = noting, noting_some  # type: ignore[method-assign]
    try:
        yield asked
    finally:
        del users.may, users.may_some


def taken(asked: list[str]) -> str:
    """What was asked since the last time."""
    found = ", ".join(sorted(set(asked)))
    asked.clear()
    return found or "nothing"


def check_table(protocol: str, found: dict[str, str]) -> None:
    """The table must say what was found, of everything and of nothing else."""
    told = {
        name.strip(): verbs.partition(":")[0]
        for verbs, names in TABLES[protocol].items()
        for name in names.strip().split("\n" if protocol == "http" else None)
    }
    wrong = {
        name: f"asks {found.get(name)!r}, and the table says {told.get(name)!r}"
        for name in {**found, **told}
        if found.get(name) != told.get(name)
    }
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in sorted(wrong.items()))


# -- RocketMQ ------------------------------------------------------------------------------------

_PART = struct.pack(">iiiii1sh", 27 - 4, 0, 0, 0, 1, b"x", 0)[:21] + struct.pack(">h", 0)
_BATCH = struct.pack(">i", len(_PART)) + _PART[4:]
_CONSUMER = {
    "groupName": SECRET,
    "consumeType": "CONSUME_PASSIVELY",
    "messageModel": "CLUSTERING",
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    "subscriptionDataSet": [{"topic": SECRET, "subString": "*"}],
}
_ACKS = {
    "c": SECRET,
    "t": SECRET,
    "r": "0",
    "so": 0,
    "q": 0,
    "rq": 0,
    "pt": 0,
    "it": 1,
    "b": "AQ==",
}
REMOTING: dict[int, tuple[dict[str, str], bytes]] = {
    RequestCode.HEART_BEAT: (
        {},
        json.dumps(
            {"clientID": "c", "consumerDataSet": [_CONSUMER], "producerDataSet": []}
        ).encode(),
    ),
    RequestCode.SEND_BATCH_MESSAGE: ({}, _BATCH),
    RequestCode.STAGE_MESSAGES: ({}, _BATCH),
    RequestCode.COMMIT_STAGED: ({}, b"[0]"),
    RequestCode.END_TRANSACTION: ({"commitOrRollback": "8"}, b""),
    RequestCode.SEND_REPLY_MESSAGE: ({"properties": "REPLY_TO_CLIENT\x01c\x02"}, b"x"),
    RequestCode.SEND_REPLY_MESSAGE_V2: ({"i": "REPLY_TO_CLIENT\x01c\x02"}, b"x"),
    RequestCode.RECALL_MESSAGE: ({"recallHandle": "x"}, b""),
    RequestCode.BATCH_ACK_MESSAGE: ({}, json.dumps({"brokerName": "b", "acks": [_ACKS]}).encode()),
}
"""Requests that need more than the one for all has."""


async def ask_remoting(server: BrokerServer, principal: Login, asked: list[str]) -> dict[str, str]:
    """What each request asks."""
    found = {}
    async with connected(server) as client:
        for code in map(RequestCode, sorted(REMOTING_HANDLERS)):
            fields, body = REMOTING.get(code, ({}, remoting.body_about(SECRET, SECRET)))
            ext = remoting.about(SECRET, SECRET, 0) | fields
            await remoting.ask(client, principal, code, ext, body)
            found[code.name] = taken(asked)
    return found


def test_every_request_to_a_name_server_is_known_for_what_it_does() -> None:
    """It knows no users: what administers is for its own machine, and the rest is here."""
    kinds: dict[Doing, set[str]] = {}
    for code in NAMESERVER_HANDLERS:
        kinds.setdefault(REMOTING_KINDS[code], set()).add(RequestCode(code).name)
    assert kinds == {kind: set(names.split()) for kind, names in NAMESERVER.items()}


# -- gRPC ----------------------------------------------------------------------------------------


def _call(path: str, server: BrokerServer) -> Any:
    request = calls.about(messages.methods()[path][0], SECRET, SECRET)
    receipt = f"0 1 60000 0 0 {server.broker.admin.config.name} 0 0 0"
    for each in (request, *getattr(request, "entries", ())):
        if hasattr(each, "receipt_handle"):
            each.receipt_handle = receipt
    if hasattr(request, "invisible_duration"):
        request.invisible_duration.seconds = 30
    if path.endswith("ReceiveMessage"):
        request.auto_renew = True
        request.filter_expression.expression = "*"
        request.long_polling_timeout.seconds = 5
    if path.endswith("EndTransaction"):
        request.transaction_id, request.resolution = "0" * 32, 1
    return request


async def ask_grpc(server: BrokerServer, principal: Login, asked: list[str]) -> dict[str, str]:
    """What each call asks."""
    found = {}
    async with grpc.aio.insecure_channel(address(server)) as channel:
        for path in calls.PATHS:
            await calls.called(channel, path, _call(path, server), principal)
            found[path.rpartition("/")[2]] = taken(asked)
    return found


# -- Kafka ---------------------------------------------------------------------------------------

KAFKA: dict[int, dict[str, Any]] = {
    ApiKey.INIT_PRODUCER_ID: {"enable2_pc": False, "keep_prepared_txn": False},
    ApiKey.SHARE_FETCH: {"is_renew_ack": False},
}
"""Fields that are otherwise than in the request for all."""


async def ask_kafka(server: BrokerServer, principal: Login, asked: list[str]) -> dict[str, str]:
    """What each request asks."""
    found = {}
    id_ = topic_id(server.broker.topics.require(SELF, SECRET))
    async with raw(server) as client:
        await kafka.log_in(client, principal)
        for key in sorted(KAFKA_HANDLERS.keys() - kafka.BEFORE_LOGIN):
            version, request = VERSIONS[key][-1], schema.apis()[key].request
            fields = kafka.fill(request, version, SECRET, SECRET, id_, False)
            fields |= KAFKA.get(key, {})
            if key == ApiKey.CREATE_ACLS:
                fields["creations"][0] |= {"operation": 3, "permission_type": 3}
            await asyncio.wait_for(client.ask(key, version, fields), SECONDS)
            found[key.name] = taken(asked)
    return found


# -- AMQP, STOMP, MQTT ---------------------------------------------------------------------------


async def test_amqp_asks_what_the_table_says(tmp_path: Path) -> None:
    """By who may enter the vhost: without any permission nobody can."""
    found: dict[str, str] = {}

    def say(server: BrokerServer, asked: list[str]) -> None:
        connection = queues.entered(server, OWNER, "/")
        found["connection.open"] = taken(asked)
        for said in queues.SAID:
            queues.outcome(connection, said, SECRET)
            found[said.replace(" ", "-")] = taken(asked)
            if not connection.is_open:
                connection = queues.entered(server, OWNER, "/")
                asked.clear()
        connection.close()

    async with context(tmp_path) as server:
        with noted(server, OWNER[0]) as asked:
            await asyncio.to_thread(say, server, asked)
    tried = {re.sub("-(passive|other|from|default|dead).*", "", name) for name in found}
    assert tried | queues.NAMELESS == {*AMQP_HANDLERS, "basic.publish", "connection.open"}
    check_table("amqp", found)


async def test_stomp_asks_what_the_table_says(tmp_path: Path) -> None:
    found: dict[str, str] = {}

    def say(server: BrokerServer, asked: list[str]) -> None:
        for command in stomp_handlers():
            with Bare(("127.0.0.1", server.config.stomp.port)) as client:
                client.say(
                    f"CONNECT\naccept-version:1.2\nlogin:{NOBODY[0]}\npasscode:{NOBODY[1]}\n"
                    f"host:/\n\n\0".encode()
                )
                assert client.hear().command == "CONNECTED"
                found.setdefault("CONNECT", taken(asked))
                asked.clear()
                in_one = "" if command in ("SEND", "SUBSCRIBE") else "transaction:t\n"
                place = f"destination:/queue/{SECRET}.queue\n"
                client.say(f"{command}\n{place}id:1\nreceipt:r\n{in_one}\n\0".encode())
                client.hear()
                found[command] = taken(asked)

    async with context(tmp_path) as server:
        with noted(server, NOBODY[0]) as asked:
            await asyncio.to_thread(say, server, asked)
    check_table("stomp", found)


def _publish(client: Raw) -> None:
    client.publish(SECRET, b"x", 1, 1)
    client.expect(Packet.PUBACK)


def _said(client: Raw, packet: bytes) -> None:
    client.send(packet)
    client.read()


async def test_mqtt_asks_what_the_table_says(tmp_path: Path) -> None:
    found: dict[str, str] = {}
    said: dict[int, Callable[[Raw], Any]] = {
        Packet.PUBLISH: _publish,
        Packet.SUBSCRIBE: lambda client: client.subscribe((SECRET, 1)),
        Packet.UNSUBSCRIBE: lambda client: _said(
            client, encode_unsubscribe(V5, Unsubscribe(2, [SECRET], {}))
        ),
        Packet.PINGREQ: lambda client: _said(client, b"\xc0\0"),
    }
    settled = {Packet.PUBACK, Packet.PUBREC, Packet.PUBREL, Packet.PUBCOMP}
    ending = {Packet.DISCONNECT, Packet.AUTH}
    assert said.keys() - {Packet.PUBLISH} | settled | ending == MQTT_HANDLERS.keys()

    def say(server: BrokerServer, asked: list[str]) -> None:
        with Raw(server.config.mqtt.port, V5) as client:
            user, password = NOBODY
            assert client.connect("verbs", user=user, password=password.encode()).reason == 0
            found["CONNECT"] = taken(asked)
            for packet, act in said.items():
                act(client)
                found[Packet(packet).name] = taken(asked)

    async with context(tmp_path) as server:
        with noted(server, NOBODY[0]) as asked:
            await asyncio.to_thread(say, server, asked)
    check_table("mqtt", found)


# -- WebSockets: what is said inside is MQTT's or STOMP's ----------------------------------------


def _by_mqtt(server: BrokerServer, asked: list[str]) -> dict[str, str]:
    found, told = dict[str, str](), Queue[Any]()
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5, transport="websockets")
    client.username_pw_set(*NOBODY)
    client.on_connect = lambda *given: told.put(given[3].value)
    client.on_subscribe = lambda *given: told.put(given[3][0].value)
    client.on_publish = lambda *given: told.put(given[3].value)
    client.connect("127.0.0.1", server.config.http.port)
    client.loop_start()
    assert told.get(timeout=SECONDS) == 0
    for name, act in (
        ("SUBSCRIBE", lambda: client.subscribe(SECRET, 1)),
        ("PUBLISH", lambda: client.publish(SECRET, b"x", 1)),
    ):
        asked.clear()
        act()
        assert told.get(timeout=SECONDS) == Reason.NOT_AUTHORIZED
        found[f"/mqtt:{name}"] = taken(asked)
    client.disconnect()
    client.loop_stop()
    return found


def _by_stomp(server: BrokerServer, asked: list[str]) -> dict[str, str]:
    found = {}
    for path, command in itertools.product(("/stomp", "/ws"), ("SEND", "SUBSCRIBE")):
        with open_websocket(url(server).replace("http", "ws") + path) as client:
            login = f"login:{NOBODY[0]}\npasscode:{NOBODY[1]}"
            client.send(f"CONNECT\naccept-version:1.2\n{login}\nhost:/\n\n\0")
            assert str(client.recv(SECONDS)).startswith("CONNECTED")
            asked.clear()
            client.send(f"{command}\ndestination:/queue/{SECRET}.queue\nid:1\n\n\0")
            assert str(client.recv(SECONDS)).startswith("ERROR\nmessage:access refused")
            found[f"{path}:{command}"] = taken(asked)
    return found


async def test_websockets_ask_what_the_table_says(tmp_path: Path) -> None:
    found: dict[str, str] = {}
    async with context(tmp_path) as server:
        paths = {
            each.path
            for each in make_app(server.context).routes
            if isinstance(each, WebSocketRoute)
        }
        assert paths == {
            each.partition(":")[0] for each in " ".join(TABLES["websocket"].values()).split()
        }
        with noted(server, NOBODY[0]) as asked:
            for by in (_by_mqtt, _by_stomp):
                found |= await asyncio.to_thread(by, server, asked)
    check_table("websocket", found)


async def test_who_follows_a_topic_is_told_no_more_when_he_may_not(tmp_path: Path) -> None:
    async with (
        context(tmp_path) as server,
        httpx.AsyncClient(base_url=url(server), timeout=SECONDS, auth=NOBODY) as client,
    ):
        users = server.broker.users
        users.set_rules(SELF, NOBODY[0], (Rule(("consume",), "topic", SECRET, "literal"),))
        async with client.stream("GET", f"/v1/topics/{SECRET}/follow?from=latest") as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == ": following"
            for _ in range(20):
                await asyncio.sleep(0)  # It waits for messages by now.
            users.set_rules(SELF, NOBODY[0], ())
            message = NewMessage(SECRET, 0, b"not for him")
            server.broker.publish.send(SELF, message, lambda *_: None)
            told = [line async for line in lines]
        assert "event: error" in told
        assert "not for him" not in str(told)


# -- replication ---------------------------------------------------------------------------------


def test_what_followers_say_is_known() -> None:
    said = get_type_hints(FollowerReader.feed)["return"]
    (words,) = get_args(said)
    assert {each.__name__ for each in get_args(words)} == REPLICATION


class Far(NamedTuple):
    """A connection from another machine."""

    remote: tuple[str, int]
    told: list[object]
    certificate: dict[str, object]
    local: tuple[str, int] = ("10.0.0.5", 10_912)

    def warn(self, text: str, *given: object) -> None:
        self.told.append(text % given)

    def close(self) -> None:
        self.told.append("closed")


async def test_only_machines_that_are_named_may_follow(tmp_path: Path) -> None:
    async with context(tmp_path) as server:

        def told(host: str, user: str = "", **settings: Value) -> list[object]:
            given = {key.replace("__", "."): value for key, value in settings.items()}
            shown: dict[str, object] = {"subject": ((("commonName", user),),)} if user else {}
            connection = Far((host, 5), [], shown)
            Followers(load(overrides=given).config, lambda: server.broker).admit(
                cast(Connection, connection)
            )
            return connection.told

        named = {"replication__followers": "10.0.0.6;10.1.0.0/16,fd00::/8"}
        for here in ("127.0.0.1", "10.0.0.5", "::1"):
            assert told(here)[1:] == ["closed"]  # There are users: this machine is many of them.
            assert told(here, replication__followers=here) == []
        for other in ("10.0.0.6", "10.1.2.3", "::ffff:10.1.2.3", "fd00::7"):
            refused = f"{other} wants to follow, and may not: name its machine in replication."
            said, done = told(other)
            assert str(said).startswith(refused + "followers")
            assert done == "closed"
            assert told(other, **named) == []
        assert told("10.0.0.7", **named)[1:] == ["closed"]
        assert told("10.0.0.7", ADMIN[0]) == []
        assert told("10.0.0.7", NOBODY[0])[1:] == told("10.0.0.7", "stranger")[1:] == ["closed"]
        assert told("10.0.0.7", security__anonymous=True)[1:] == ["closed"]  # There are users.
        server.broker.users.users.known.clear()
        server.broker.users._forget()
        assert told("10.0.0.7", security__anonymous=True) == []
        assert told("127.0.0.1") == []
    with pytest.raises(ConfigError, match=r"replication\.followers"):
        Followers(load(overrides={"replication.followers": "10.0.0.999"}).config, lambda: None)


# -- HTTP ----------------------------------------------------------------------------------------


async def ask_http(server: BrokerServer, principal: Login, asked: list[str]) -> dict[str, str]:
    """What each request asks."""
    found = {}
    async with httpx.AsyncClient(base_url=url(server), timeout=SECONDS, auth=principal) as client:
        for method, path in routes.requests(server):
            body = routes.body_about(method, path, SECRET)
            place = routes.filled(path, SECRET, "%2F").replace(
                "/messages/" + SECRET, "/messages/7F000001000027770000000000000000"
            )
            async with client.stream(method, place, json=body) as answer:
                assert answer.status_code in (502, 503, *range(500)), (method, path)
            found[f"{method} {path}"] = taken(asked)
    return found


# -- all of them ---------------------------------------------------------------------------------

WALKS: dict[str, Callable[[BrokerServer, Login, list[str]], Awaitable[dict[str, str]]]] = {
    "remoting": ask_remoting,
    "grpc": ask_grpc,
    "kafka": ask_kafka,
    "http": ask_http,
}


@pytest.mark.parametrize("protocol", WALKS)
async def test_requests_ask_what_the_table_says(tmp_path: Path, protocol: str) -> None:
    async with context(tmp_path) as server:
        with noted(server, NOBODY[0]) as asked:
            found = await WALKS[protocol](server, NOBODY, asked)
    check_table(protocol, found)


@pytest.mark.parametrize("protocol", WALKS)
async def test_who_may_describe_everything_changes_nothing(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The consumer in the house does not answer questions.
    monkeypatch.setattr(client_relay, "RELAY_TIMEOUT_MS", 50)
    monkeypatch.setattr(client_relay, "STATUS_TIMEOUT_MS", 50)
    async with context(tmp_path) as server:
        every = Rule(("describe",), "*")
        server.broker.users.set_rules(SELF, NOBODY[0], (every,))
        before = state(server)
        await WALKS[protocol](server, NOBODY, [])
        assert state(server) == before
