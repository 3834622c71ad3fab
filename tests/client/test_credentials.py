"""Requests are signed as RocketMQ's clients sign them.

The vectors were made by `AclClientRPCHook.doBeforeRequest` of RocketMQ: rocketmq-client 5.5.0, and
rocketmq-acl 4.9.7 with rocketmq-remoting 4.9.8; both gave the same signatures.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from onelog.client.credentials import Credentials
from onelog.client.message import Message
from onelog.client.producer.producer import AsyncProducer
from onelog.client.producer.transactions import TransactionState
from onelog.gateways.remoting.session import BrokerSession
from onelog.nameserver.session import NameserverSession
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command
from tests.client.live_cluster import LiveCluster

REGISTRATIONS = {RequestCode.REGISTER_BROKER, RequestCode.QUERY_DATA_VERSION}
"""What the broker asks of the name server."""

VECTORS = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "acl" / "signatures.json").read_text()
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["access_key"])
def test_a_request_is_signed_as_the_java_client_signs_it(vector: dict[str, Any]) -> None:
    credentials = Credentials(vector["access_key"], vector["secret_key"], vector["security_token"])
    ext = dict(vector["ext"])
    signed = credentials.sign(ext, bytes.fromhex(vector["body"]))
    assert signed["Signature"] == vector["signature"]
    assert signed["AccessKey"] == vector["access_key"]
    assert signed.get("SecurityToken", "") == vector["security_token"]
    assert ext == vector["ext"]  # What was given stays as it was.


def test_every_part_of_a_request_is_covered_by_its_signature() -> None:
    credentials = Credentials("user", "secret", "token")
    signed = credentials.sign({"topic": "orders", "queueId": "3"}, b"body")["Signature"]
    assert signed != credentials.sign({"topic": "orders", "queueId": "4"}, b"body")["Signature"]
    assert signed != credentials.sign({"topic": "orders", "queueId": "3"}, b"bodY")["Signature"]
    assert (
        signed
        != Credentials("user", "secret").sign({"topic": "orders", "queueId": "3"}, b"body")[
            "Signature"
        ]
    )
    assert signed == credentials.sign({"queueId": "3", "topic": "orders"}, b"body")["Signature"]


def test_a_request_that_is_signed_twice_is_signed_as_once() -> None:
    credentials = Credentials("user", "secret")
    once = credentials.sign({"topic": "orders"}, memoryview(b"body"))
    assert credentials.sign(once, b"body") == once


def test_what_is_secret_is_not_printed() -> None:
    shown = repr(Credentials("user", "hush", "psst"))
    assert "user" in shown
    assert "hush" not in shown
    assert "psst" not in shown


@pytest.mark.parametrize(("access_key", "secret_key"), [("", "secret"), ("user", "")])
def test_credentials_without_a_key_are_refused(access_key: str, secret_key: str) -> None:
    with pytest.raises(ValueError, match="need an access key and a secret key"):
        Credentials(access_key, secret_key)


async def test_whatever_a_producer_asks_is_signed(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_topic("orders", 1)
    asked: list[Command] = []
    handle_by_broker, handle_by_nameserver = BrokerSession.handle, NameserverSession.handle

    def spy(session: BrokerSession, command: Command) -> None:
        asked.append(command)
        handle_by_broker(session, command)

    def spy_too(session: NameserverSession, command: Command) -> None:
        asked.append(command)
        handle_by_nameserver(session, command)

    credentials = Credentials("user", "secret", "token")
    monkeypatch.setattr(BrokerSession, "handle", spy)
    monkeypatch.setattr(NameserverSession, "handle", spy_too)
    async with AsyncProducer(
        "shop",
        nameserver=cluster.addresses,
        credentials=credentials,
        checker=lambda message: TransactionState.UNKNOWN,
    ) as producer:
        for body in (b"plain", b"compressed" * 1000):
            await producer.send(Message("orders", body, tags="t", properties={"k": "ü"}))
        await producer.send_oneway(Message("orders", b"one-way"))
        await producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
        await producer.send_transaction(
            Message("orders", b"half"), lambda *_: TransactionState.COMMIT
        )
    asked = [command for command in asked if command.code not in REGISTRATIONS]
    assert {command.code for command in asked} == {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.HEART_BEAT,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.END_TRANSACTION,
        RequestCode.UNREGISTER_CLIENT,
    }
    for command in asked:
        assert command.ext == credentials.sign(command.ext, command.body), command
