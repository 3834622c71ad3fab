"""Users of RocketMQ's protocol: signed requests, and the requests that administer users."""

import asyncio
from pathlib import Path

import pytest

from onelog.client.admin.admin import Admin
from onelog.client.admin.topics import TopicChange
from onelog.client.credentials import Credentials
from onelog.client.message import Message
from onelog.client.producer.producer import AsyncProducer
from onelog.config import Value
from onelog.config_sources import load
from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.core.users.passwords import prove
from onelog.core.users.permissions import Rule
from onelog.errors import OnelogError
from onelog.server import running_broker, running_nameserver
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.users import PolicyEntry
from tests.gateways.remoting.live import SMALL, broker, client

ANN, BOB = Credentials("ann", "secret"), Credentials("bob", "b")


async def test_requests_are_signed_as_soon_as_there_is_a_user(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        assert (await one.send("orders", b"1")).code == 0
        server.broker.users.create_user(SELF, "ann", prove("secret", signing=True), ("admin",))
        answer = await one.send("orders", b"2")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "have to be signed" in str(answer.remark)
        ext = ANN.sign({"topic": "orders"})
        assert (await one.ask(RequestCode.GET_TOPIC_STATS_INFO, **ext)).code == 0
        for wrong in (
            {**ext, "Signature": "AAAA"},
            {**ext, "topic": "other"},
            {**ext, "AccessKey": "eve"},
            Credentials("ann", "guess").sign({"topic": "orders"}),
        ):
            answer = await one.ask(RequestCode.GET_TOPIC_STATS_INFO, **wrong)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "signature-failed" in str(answer.remark)
        # A signature is of one request: the next one needs its own.
        answer = await one.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="orders")
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_the_body_is_signed_too(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        server.broker.topics.create(SELF, TopicConfig("orders", 1, 1))
        server.broker.users.create_user(SELF, "ann", prove("secret", signing=True), ("admin",))
        ext = {
            "a": "group",
            "b": "orders",
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "g": "1700000000000",
            "h": "7",
            "i": "",
            "j": "0",
            "k": "false",
        }
        signed = ANN.sign(ext, b"body")
        assert (await one.ask(RequestCode.SEND_MESSAGE_V2, b"body", **signed)).code == 0
        answer = await one.ask(RequestCode.SEND_MESSAGE_V2, b"bodY", **signed)
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_the_broker_itself_is_for_administrators(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        users = server.broker.users
        users.create_user(SELF, "ann", prove("secret", signing=True), ("admin",))
        users.create_user(SELF, "bob", prove("b", signing=True))
        users.set_rules(SELF, "bob", (Rule(("admin",), "topic"), Rule(("admin",), "group")))
        for code, body in (
            (RequestCode.UPDATE_BROKER_CONFIG, b"security.anonymous=true"),
            (RequestCode.GET_BROKER_CONFIG, b""),
            (RequestCode.DELETE_EXPIRED_COMMITLOG, b""),
            (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, b""),
        ):
            answer = await one.ask(code, body, **BOB.sign({}, body))
            assert answer.code == ResponseCode.NO_PERMISSION, code
            assert "bob may not" in str(answer.remark)
            assert (await one.ask(code, body, **ANN.sign({}, body))).code == 0, code


async def test_an_administrator_makes_users_who_may_some_things(tmp_path: Path) -> None:
    settings: dict[str, Value] = {
        "nameserver.port": 0,
        "nameserver.kv_path": str(tmp_path / "kv.json"),
    }
    async with running_nameserver(load(overrides=settings)) as names:
        where = "{}:{}".format(*names.address)
        overrides = {
            **SMALL,
            "broker.store_path": str(tmp_path / "store"),
            "broker.nameservers": where,
        }
        async with running_broker(load(overrides=overrides)) as server:
            server.broker.topics.create(SELF, TopicConfig("orders", 1, 1))
            await asyncio.to_thread(administer, where)
            async with AsyncProducer("app", nameserver=where, credentials=BOB) as producer:
                await producer.send(Message("orders", b"1"))
                with pytest.raises(OnelogError, match="bob may not"):
                    await producer.send(Message("payments", b"1"))
            with pytest.raises(OnelogError, match="signature-failed"):
                await asyncio.to_thread(lambda: names_of(where, Credentials("bob", "guess")))


def names_of(where: str, credentials: Credentials) -> None:
    with Admin.connect(where, credentials=credentials) as admin:
        admin.topics.describe("orders")


def administer(where: str) -> None:
    with Admin.connect(where) as admin:
        with pytest.raises(OnelogError, match="the first user must have the role admin"):
            admin.users.create("bob", "b")
        assert admin.users.create("ann", "secret", is_admin=True)
        with pytest.raises(OnelogError, match="have to be signed"):
            admin.users.list()
    with Admin.connect(where, credentials=ANN) as admin:
        admin.topics.create("payments", TopicChange())
        admin.users.put_role("readers")
        admin.users.create("bob", "b", roles=("readers",))
        admin.users.grant("bob", PolicyEntry(resource="Topic:ord*", actions=["Pub"]))
        admin.users.grant("role:readers", PolicyEntry(resource="Group:*", actions=["Sub"]))
        users = {each.username: each for each in admin.users.list()}
        assert (users["ann"].user_type, users["bob"].user_type) == ("Super", "Normal")
        assert (users["bob"].roles, users["bob"].password) == (["readers"], None)
        acls = {each.subject: each for each in admin.users.permissions()}
        assert acls["User:bob"].policies[0].entries[0].resource == "Topic:ord*"
        assert acls["Role:readers"].policies[0].entries[0].actions == ["Sub"]
        with pytest.raises(OnelogError, match="the last user with the role admin"):
            admin.users.delete("ann")
        for wrong in (
            PolicyEntry(resource="Planet:x", actions=["Pub"]),
            PolicyEntry(resource="Topic:x", actions=["Fly"]),
            PolicyEntry(resource="Topic:x", actions=[]),
            PolicyEntry(resource="Topic:x", actions=["Pub"], decision="Perhaps"),
        ):
            with pytest.raises(OnelogError):
                admin.users.grant("bob", wrong)
        admin.users.create("carl", "c")
        admin.users.update("carl", enabled=False, password="d")
        assert {each.username: each.user_status for each in admin.users.list()}["carl"] == "disable"
        admin.users.delete("carl")
        admin.users.revoke("role:readers", "Group:*")
        admin.users.revoke("role:readers")
        assert {each.username: each.roles for each in admin.users.list()}["bob"] == []
