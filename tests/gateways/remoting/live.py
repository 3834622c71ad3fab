"""A real broker on a real socket, and clients that speak remoting to it by hand."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.config import Value
from onelog.config_sources import load
from onelog.gateways.remoting.gateway import RemotingGateway
from onelog.message import Message, encode_properties
from onelog.net.peer import Peer
from onelog.record.decode import decode_messages
from onelog.server import BrokerServer, running_broker
from onelog.wire.remoting.clients import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command

PATIENCE_MS = 60_000
"""How long an answer is waited for: the machine may be busy."""

SMALL: dict[str, Value] = {
    "store.segment_bytes": 1 << 20,
    "store.queue_file_entries": 1_000,
    "store.index_slots": 1_000,
    "store.index_entries": 4_000,
    "store.body_bytes_max": 100_000,
    "store.disk_clean_percent": 98,
    "store.disk_force_percent": 99,
    "store.disk_refuse_percent": 99,
    "broker.port": 0,
    "broker.vip_port": 0,
    "kafka.port": 0,
    "kafka.initial_rebalance_delay_ms": 0,
    "http.port": 0,
    "amqp.port": 0,
    "stomp.port": 0,
    "mqtt.port": 0,
    "grpc.port": 0,
    "broker.nameservers": "",
}


@contextlib.asynccontextmanager
async def broker(folder: Path, **settings: Value) -> AsyncIterator[BrokerServer]:
    """A broker without a name server; settings as `broker__port=1`."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    overrides = {**SMALL, "broker.store_path": str(folder / "store"), **given}
    async with running_broker(load(overrides=overrides)) as server:
        yield server


def remoting(server: BrokerServer) -> RemotingGateway:
    """The gateway that speaks RocketMQ's protocol."""
    gateway = server.gateways["broker"]
    assert isinstance(gateway, RemotingGateway)
    return gateway


@contextlib.asynccontextmanager
async def client(server: BrokerServer) -> AsyncIterator["Client"]:
    """A connected client that remembers what the broker asks it."""
    asked: list[Command] = []
    peer = await Peer.connect(
        "127.0.0.1",
        server.config.broker.port,
        timeout_ms=PATIENCE_MS,
        on_request=lambda _, command: asked.append(command),
    )
    try:
        yield Client(peer, asked)
    finally:
        await peer.close()


class Client:
    """A client's words, one by one."""

    def __init__(self, peer: Peer, asked: list[Command]) -> None:
        self.peer = peer
        self.asked = asked

    async def ask(self, code: RequestCode, body: bytes = b"", /, **ext: object) -> Command:
        """Any request."""
        texts = {name: str(value) for name, value in ext.items()}
        return await self.peer.ask(code, texts, body, PATIENCE_MS)

    async def send(
        self,
        topic: str,
        body: bytes,
        properties: dict[str, str] | None = None,
        /,
        **changed: object,
    ) -> Command:
        """SEND_MESSAGE_V2."""
        ext: dict[str, object] = {
            "a": "group",
            "b": topic,
            "c": "TBW102",
            "d": 4,
            "e": 0,
            "f": 0,
            "g": 1_700_000_000_000,
            "h": 7,
            "i": encode_properties(properties or {}).decode(),
            "j": 0,
            "k": "false",
        }
        texts = {name: str(value) for name, value in {**ext, **changed}.items()}
        return await self.peer.ask(RequestCode.SEND_MESSAGE_V2, texts, body, PATIENCE_MS)

    async def pull(self, topic: str, offset: int, **changed: object) -> Command:
        """PULL_MESSAGE with a subscription of its own."""
        ext: dict[str, object] = {
            "consumerGroup": "pullers",
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        texts = {name: str(value) for name, value in {**ext, **changed}.items()}
        return await self.peer.ask(RequestCode.PULL_MESSAGE, texts, b"", PATIENCE_MS)

    async def heartbeat(
        self, client_id: str, group: str, topic: str, expression: str = "*"
    ) -> Command:
        """HEART_BEAT of a push consumer that also produces."""
        subscription = SubscriptionData(topic=topic, sub_string=expression, sub_version=1)
        data = HeartbeatData(
            client_id=client_id,
            consumer_data_set=[
                ConsumerData(
                    group_name=group,
                    consume_type="CONSUME_PASSIVELY",
                    message_model="CLUSTERING",
                    consume_from_where="CONSUME_FROM_FIRST_OFFSET",
                    subscription_data_set=[subscription],
                )
            ],
            producer_data_set=[ProducerData(group_name=f"{group}-producers")],
        )
        return await self.ask(RequestCode.HEART_BEAT, data.encode())


def pass_time(server: BrokerServer, ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the broker it is later at once, and what waits in it for a time is told so."""
    clock = server._clock
    monkeypatch.setattr(clock, "now_ms", lambda now_ms=clock.now_ms: now_ms() + ms)
    server.core.timers.watch()
    deadlines = server.core.waiting._deadlines
    if deadlines._armed is not None:
        deadlines._time_passed(deadlines._armed)


def messages(answer: Command) -> list[Message]:
    """The records in an answer."""
    return list(decode_messages(memoryview(bytes(answer.body))))


def bodies(answer: Command) -> list[bytes]:
    """The bodies of the records in an answer."""
    return [bytes(message.body) for message in messages(answer)]
