"""Consumers of a broker that has a slave: they go on there when the master is gone, and return."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.client.connection import nodes as nodes_module
from onelog.client.connection import routes as routes_module
from onelog.client.consumer.pull.consumer import AsyncPullConsumer
from onelog.client.consumer.push import popping, pulling
from onelog.client.consumer.push.consumer import AsyncPushConsumer
from onelog.client.message import Message, ReceivedMessage
from onelog.client.producer.producer import AsyncProducer
from onelog.config import Value
from onelog.config_sources import load
from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.errors import OnelogError
from onelog.nameserver.routes import RouteTable
from onelog.nameserver.server import NameServer
from onelog.server import BrokerServer, running_broker, running_nameserver
from onelog.wire.remoting.codes import ResponseCode
from tests.gateways.remoting.live import SMALL, client
from tests.ports import free_port
from tests.waiting import eventually

KINDS = ("push", "orderly", "pop", "pull")


@contextlib.asynccontextmanager
async def one_of_a_set(
    folder: Path, names: NameServer, broker_id: int, port: int = 0, **settings: Value
) -> AsyncIterator[BrokerServer]:
    """A broker that shares its name with others: 0 is the master."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    overrides: dict[str, Value] = {
        **SMALL,
        "broker.store_path": str(folder / f"store-{broker_id}"),
        "broker.nameservers": "{}:{}".format(*names.address),
        "broker.broker_id": broker_id,
        "broker.port": port,
        "replication.replicas": 2,
        **given,
    }
    async with running_broker(load(overrides=overrides)) as server:
        yield server


@contextlib.asynccontextmanager
async def nameserver(folder: Path) -> AsyncIterator[NameServer]:
    settings: dict[str, Value] = {
        "nameserver.port": 0,
        "nameserver.kv_path": str(folder / "kv.json"),
    }
    async with running_nameserver(load(overrides=settings)) as names:
        yield names


async def send(server: BrokerServer, numbers: range) -> None:
    async with client(server) as sender:
        for number in numbers:
            answer = await sender.send("orders", b"%d" % number, e=number % 2)
            assert answer.code == 0, answer.remark


async def caught_up(slave: BrokerServer, master: BrokerServer) -> None:
    await eventually(lambda: slave.store.confirmed >= master.store.log_end, "the slave has it all")


async def positions(server: BrokerServer, group: str, offset: int) -> None:
    offsets = server.core.offsets
    await eventually(
        lambda: offsets.of(group, "orders") == {0: offset, 1: offset}, f"{group} is at {offset}"
    )


class Reading:
    """What a consumer got, and whether it may have more."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def listen(self, message: ReceivedMessage) -> None:
        self.heard.append(int(message.body))
        await self.go_on.wait()

    async def all_of(self, count: int, what: str) -> None:
        await eventually(lambda: set(self.heard) == set(range(count)), what)

    @property
    def is_ordered(self) -> bool:
        """Whether each message of a queue came for the first time after those before it."""
        of_queue = ([n for n in dict.fromkeys(self.heard) if n % 2 == q] for q in (0, 1))
        return all(numbers == sorted(numbers) for numbers in of_queue)


@contextlib.asynccontextmanager
async def consuming(kind: str, names: NameServer, group: str = "g") -> AsyncIterator[Reading]:
    """A consumer with little in hand, that notes what it gets."""
    address = "{}:{}".format(*names.address)
    reading = Reading()
    if kind == "pull":
        async with AsyncPullConsumer(
            group, nameserver=address, start="first", prefetch_count=1, commit_interval=0.2
        ) as pulled:
            pulled.subscribe("orders")

            async def read() -> None:
                async for message in pulled:
                    await reading.listen(message)

            task = asyncio.create_task(read())
            yield reading
            task.cancel()
        return
    async with AsyncPushConsumer(
        group,
        nameserver=address,
        start="first",
        pop=kind == "pop",
        orderly=kind == "orderly",
        prefetch_count=1,
        concurrency=2,
        invisible_time=10,
    ) as consumer:
        consumer.subscribe("orders", listener=reading.listen)
        await consumer.start()
        yield reading


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done every few seconds is done more often."""
    monkeypatch.setattr(nodes_module, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(routes_module, "MASTERLESS_SECONDS", 0.5)
    monkeypatch.setattr(pulling, "HOLD_MS", 1_000)
    monkeypatch.setattr(popping, "HOLD_MS", 1_000)
    monkeypatch.setattr(pulling, "COMMIT_SECONDS", 0.2)


@pytest.mark.parametrize("still_listed", [False, True], ids=["unlisted", "still listed"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_consumer_goes_on_at_the_slave_and_returns_to_the_master(
    tmp_path: Path, kind: str, still_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        names = await stack.enter_async_context(nameserver(tmp_path))
        async with one_of_a_set(tmp_path, names, 0, port) as master:
            slave = await stack.enter_async_context(one_of_a_set(tmp_path, names, 1))
            master.broker.topics.create(SELF, TopicConfig("orders", 2, 2))
            await send(master, range(10))
            reading = await stack.enter_async_context(consuming(kind, names))
            await reading.all_of(10, "it reads")
            reading.go_on.clear()
            await send(master, range(10, 40))
            await caught_up(slave, master)
            if still_listed:
                monkeypatch.setattr(RouteTable, "_drop", lambda *_: None)
                monkeypatch.setattr(RouteTable, "unregister", lambda *_: True)
        reading.go_on.set()
        await reading.all_of(40, "it goes on at the slave")
        # Also one that comes only now.
        late = await stack.enter_async_context(consuming(kind, names, "late"))
        await late.all_of(40, "it begins at the slave")
        async with one_of_a_set(tmp_path, names, 0, port) as master:
            await send(master, range(40, 50))
            await reading.all_of(50, "it returns to the master")
            await late.all_of(50, "it returns to the master, too")
            for group in ("g", "late"):
                await positions(master, group, 25)
            await caught_up(slave, master)
            if kind == "orderly":
                assert reading.is_ordered
                assert late.is_ordered


async def test_nobody_sends_to_a_slave(tmp_path: Path) -> None:
    port = free_port()
    async with nameserver(tmp_path) as names, contextlib.AsyncExitStack() as stack:
        address = "{}:{}".format(*names.address)
        producer = await stack.enter_async_context(
            AsyncProducer("app", nameserver=address, timeout=1.0)
        )
        async with one_of_a_set(tmp_path, names, 0, port) as master:
            slave = await stack.enter_async_context(one_of_a_set(tmp_path, names, 1))
            master.broker.topics.create(SELF, TopicConfig("orders", 2, 2))
            await producer.send(Message("orders", b"1"))
            await caught_up(slave, master)
            async with client(slave) as stray:
                answer = await stray.send("orders", b"stray")
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        with pytest.raises(OnelogError):
            await producer.send(Message("orders", b"2"))
        async with one_of_a_set(tmp_path, names, 0, port) as master:

            async def sent() -> bool:
                try:
                    await producer.send(Message("orders", b"3"))
                except OnelogError:
                    return False
                return True

            await eventually(sent, "the master takes messages again")
            await caught_up(slave, master)
