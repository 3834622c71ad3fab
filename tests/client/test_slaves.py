"""Consumers of a broker that has a slave: they go on there when the master is gone, and return."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.client.connection import nodes as nodes_module
from onelog.client.connection import routes as routes_module
from onelog.client.consumer.pull.consumer import AsyncPullConsumer
from onelog.client.consumer.push import pop_fetching, pulling
from onelog.client.consumer.push.consumer import AsyncPushConsumer
from onelog.client.message import ReceivedMessage
from onelog.config import Value, load
from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.nameserver.routes import RouteTable
from onelog.nameserver.server import NameServer
from onelog.server import BrokerServer, running_broker, running_nameserver
from tests.client.watching import eventually
from tests.gateways.remoting.live import SMALL, client
from tests.ports import free_port

KINDS = ("push", "orderly", "pop", "pull")


@contextlib.asynccontextmanager
async def one_of_a_set(
    folder: Path, names: NameServer, broker_id: int, port: int = 0
) -> AsyncIterator[BrokerServer]:
    """A broker that shares its name with others."""
    overrides: dict[str, Value] = {
        **SMALL,
        "broker.store_path": str(folder / f"store-{broker_id}"),
        "broker.nameservers": "{}:{}".format(*names.address),
        "broker.broker_id": broker_id,
        "broker.port": port,
    }
    async with running_broker(load(overrides=overrides)) as server:
        if server.broker.find_topic(SELF, "orders") is None:
            server.broker.admin.create_topic(SELF, TopicConfig("orders", 2, 2))
        yield server


async def send(numbers: range, *servers: BrokerServer) -> None:
    """The same messages, in the same order, on each of these."""
    for server in servers:
        async with client(server) as sender:
            for number in numbers:
                answer = await sender.send("orders", b"%d" % number, e=number % 2)
                assert answer.code == 0, answer.remark


@contextlib.asynccontextmanager
async def consuming(kind: str, names: NameServer, heard: list[int]) -> AsyncIterator[None]:
    """A consumer that notes what it gets."""
    nameserver = "{}:{}".format(*names.address)

    async def listen(message: ReceivedMessage) -> None:
        heard.append(int(message.body))

    if kind == "pull":
        async with AsyncPullConsumer("g", nameserver=nameserver, start="first") as reading:
            reading.subscribe("orders")

            async def read() -> None:
                async for message in reading:
                    await listen(message)

            task = asyncio.create_task(read())
            yield
            task.cancel()
        return

    consumer = AsyncPushConsumer(
        "g", nameserver=nameserver, start="first", pop=kind == "pop", orderly=kind == "orderly"
    )
    async with consumer:
        consumer.subscribe("orders", listener=listen)
        await consumer.start()
        yield


@pytest.mark.parametrize("still_listed", [False, True], ids=["unlisted", "still listed"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_consumer_goes_on_at_the_slave_and_returns_to_the_master(
    tmp_path: Path, kind: str, still_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(routes_module, "MASTERLESS_SECONDS", 0.5)
    monkeypatch.setattr(pulling, "HOLD_MS", 1_000)
    monkeypatch.setattr(pop_fetching, "POLL_MS", 1_000)
    settings: dict[str, Value] = {
        "nameserver.port": 0, "nameserver.kv_path": str(tmp_path / "kv.json"),
    }  # fmt: skip
    heard: list[int] = []
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        names = await stack.enter_async_context(running_nameserver(load(overrides=settings)))
        slave = await stack.enter_async_context(one_of_a_set(tmp_path, names, 1))
        async with one_of_a_set(tmp_path, names, 0, port) as master:
            await send(range(10), master, slave)
            await stack.enter_async_context(consuming(kind, names, heard))
            await eventually(lambda: set(heard) == set(range(10)), "it is all read")
            if still_listed:
                monkeypatch.setattr(RouteTable, "_drop", lambda *_: None)
                monkeypatch.setattr(RouteTable, "unregister", lambda *_: True)
        await send(range(10, 20), slave)
        await eventually(lambda: set(heard) == set(range(20)), "it goes on at the slave")
        async with one_of_a_set(tmp_path, names, 0, port) as master:
            await send(range(10, 30), master)
            await eventually(lambda: set(heard) == set(range(30)), "it returns to the master")
            if kind == "orderly":
                for queue in (0, 1):
                    first = list(dict.fromkeys(n for n in heard if n % 2 == queue))
                    assert first == sorted(first)
