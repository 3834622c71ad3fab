"""Topics on several brokers, as one of them knows it."""

import asyncio
from pathlib import Path

import pytest

from onelog.clock import SystemClock
from onelog.config import NameserverConfig, TlsConfig
from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.gateways.remoting.consuming.clients import readable_queues
from onelog.nameserver.server import NameServer, serve_nameserver
from onelog.net.connection import Connection
from onelog.net.listener import Listener
from onelog.rocketmq import routes
from onelog.server import BrokerServer
from tests.gateways.remoting.live import broker, remoting
from tests.waiting import eventually


async def nameserver(folder: Path) -> NameServer:
    return await serve_nameserver(NameserverConfig(port=0, kv_path=str(folder / "kv.json")))


def address(names: NameServer) -> str:
    host, port = names.address
    return f"{host}:{port}"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "TIMEOUT_MS", 30_000)


async def find(server: BrokerServer, topic: str) -> list[tuple[str, int]]:
    found: asyncio.Future[list[tuple[str, int]]] = asyncio.get_running_loop().create_future()
    remoting(server).routes.find(
        topic,
        lambda known: found.set_result(
            [(q.broker_name, q.queue_id) for q in readable_queues(server.broker, topic, known)]
        ),
    )
    return await asyncio.wait_for(found, 60)


async def test_the_queues_of_all_brokers_are_found(tmp_path: Path) -> None:
    names = await nameserver(tmp_path)
    where = address(names)
    async with (
        broker(tmp_path / "a", broker__name="a", broker__nameservers=where) as one,
        broker(tmp_path / "b", broker__name="b", broker__nameservers=where) as two,
    ):
        one.broker.topics.create(SELF, TopicConfig("t", 2, 4))
        two.broker.topics.create(SELF, TopicConfig("t", 1, 1))
        two.broker.topics.create(SELF, TopicConfig("write-only", 3, 3, perm=2))
        await eventually(lambda: _brokers(names, "t") == 2)
        await eventually(lambda: _brokers(names, "write-only") == 1)
        assert await find(one, "t") == await find(two, "t") == [("a", 0), ("a", 1), ("b", 0)]
        assert await find(one, "write-only") == []
        assert await find(one, "nowhere") == []
    await names.close()


def _brokers(names: NameServer, topic: str) -> int:
    route = names.registry.routes.route(topic)
    return 0 if route is None else len(route.queue_datas)


async def test_what_a_broker_knows_of_its_own_topics_is_newer_than_any_answer(
    tmp_path: Path,
) -> None:
    names = await nameserver(tmp_path)
    async with broker(tmp_path, broker__name="a", broker__nameservers=address(names)) as server:
        server.broker.topics.create(SELF, TopicConfig("t", 1, 1))
        assert await find(server, "t") == [("a", 0)]
        server.broker.topics.create(SELF, TopicConfig("t", 2, 2))
        assert await find(server, "t") == [("a", 0), ("a", 1)]
    await names.close()


async def test_questions_at_the_same_time_are_one_question(tmp_path: Path) -> None:
    names = await nameserver(tmp_path)
    async with broker(tmp_path, broker__name="a", broker__nameservers=address(names)) as server:
        server.broker.topics.create(SELF, TopicConfig("t", 1, 1))
        answers = await asyncio.gather(*(find(server, "t") for _ in range(20)))
        assert answers == [[("a", 0)]] * 20
        assert len(remoting(server).routes._tasks) == 0
    await names.close()


async def test_without_name_servers_there_are_the_brokers_own_queues(tmp_path: Path) -> None:
    names = await nameserver(tmp_path)
    where = address(names)
    await names.close()
    async with broker(tmp_path / "1", broker__name="a", broker__nameservers=where) as server:
        server.broker.topics.create(SELF, TopicConfig("t", 1, 1))
        assert await find(server, "t") == [("a", 0)]
    async with broker(tmp_path / "2", broker__name="a") as server:
        server.broker.topics.create(SELF, TopicConfig("t", 1, 1))
        assert await find(server, "t") == [("a", 0)]


class _Mute:
    """Accepts, and never answers; knows how often it was asked for a route."""

    asked = 0

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def data_received(self, data: bytes) -> None:
        _Mute.asked += b"acceptStandardJsonOnly" in data

    def writable(self) -> None:
        return

    def connection_lost(self) -> None:
        return


async def test_a_half_dead_name_server_is_left_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "TIMEOUT_MS", 900)
    monkeypatch.setattr(_Mute, "asked", 0)
    mute = await Listener.open("127.0.0.1", 0, _Mute, clock=SystemClock())
    names = await nameserver(tmp_path)
    where = f"127.0.0.1:{mute.address[1]};{address(names)}"
    async with broker(
        tmp_path, broker__name="a", broker__nameservers=where, broker__register_timeout_ms=300
    ) as server:
        server.broker.topics.create(SELF, TopicConfig("t", 1, 1))
        server.broker.topics.create(SELF, TopicConfig("u", 1, 1))
        assert await find(server, "t") == [("a", 0)]
        assert _Mute.asked == 1
        assert "t" in remoting(server).routes._known
        monkeypatch.setattr(routes, "TIMEOUT_MS", 30_000)
        assert await find(server, "u") == [("a", 0)]
        assert "u" in remoting(server).routes._known
        assert _Mute.asked == 1
    await names.close()
    await mute.close()


async def test_a_name_server_that_demands_tls_is_asked_with_it(tmp_path: Path) -> None:
    names = await serve_nameserver(
        NameserverConfig(port=0, kv_path=str(tmp_path / "kv.json")),
        tls=TlsConfig(mode="enforcing"),
    )
    where = address(names)
    async with (
        broker(tmp_path / "a", broker__name="a", broker__nameservers=where, tls__mode="enforcing"),
        broker(
            tmp_path / "b", broker__name="b", broker__nameservers=where, tls__mode="enforcing"
        ) as two,
    ):
        assert {name for name, _ in await find(two, "TBW102")} == {"a", "b"}
    await names.close()
