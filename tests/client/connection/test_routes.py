"""RouteCache: what a name server's answer means, that it is kept, and that failures do not hurt."""

import asyncio

import pytest

from onelog.client.connection import routes as routes_module
from onelog.client.connection.address import Address
from onelog.client.connection.nodes import Nodes
from onelog.client.connection.routes import Route, RouteCache, route_of
from onelog.client.message import Queue
from onelog.errors import (
    BrokerNotFoundError,
    ClientClosedError,
    NameserversUnreachableError,
    TopicNotFoundError,
)
from onelog.net.remoting import RemotingSession
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.routes import BrokerData, QueueData, TopicRouteData
from tests.client.live_cluster import LiveCluster
from tests.client.scripted import hang_up, knowing, route_data, scripted, silent
from tests.waiting import eventually

A, B = Address("10.0.0.1", 10911), Address("10.0.0.2", 10911)


def queues(route: Route) -> list[tuple[str, int]]:
    return [(queue.broker, queue.queue_id) for queue in route.publish_queues]


def test_queues_are_in_the_order_of_brokers_and_numbers() -> None:
    route = route_of("orders", route_data({"b": B, "a": A}))
    assert queues(route) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert route.read_queues == route.publish_queues
    assert route.publish_queues[0] == Queue("orders", "a", 0)


def test_only_masters_with_permission_are_written_to() -> None:
    data = TopicRouteData(
        broker_datas=[
            BrokerData(broker_name="a", broker_addrs={0: str(A)}),
            BrokerData(broker_name="b", broker_addrs={1: str(B)}),
            BrokerData(broker_name="c", broker_addrs={0: "10.0.0.3:1"}),
        ],
        queue_datas=[
            QueueData(broker_name="a", perm=4, read_queue_nums=1, write_queue_nums=1),
            QueueData(broker_name="b", perm=6, read_queue_nums=2, write_queue_nums=1),
            QueueData(broker_name="c", perm=2, read_queue_nums=1, write_queue_nums=1),
        ],
    )
    route = route_of("orders", data)
    assert queues(route) == [("c", 0)]
    assert [(q.broker, q.queue_id) for q in route.read_queues] == [("a", 0), ("b", 0), ("b", 1)]


def test_an_ordered_topic_keeps_its_queues_whoever_is_down() -> None:
    route = route_of("orders", route_data({"a": A}, order="b:2;a:1;"))
    assert queues(route) == [("b", 0), ("b", 1), ("a", 0)]


def test_a_topic_to_be_has_as_many_queues_as_wanted_and_allowed() -> None:
    data = route_data({"a": A, "b": B}, queues=8, perm=7)
    assert queues(route_of("new", data, 1)) == [("a", 0), ("b", 0)]
    few = route_of("new", route_data({"a": A}, queues=2), 4)
    assert queues(few) == [("a", 0), ("a", 1)]
    assert few.is_default


def test_addresses_are_found_by_name_and_id() -> None:
    data = TopicRouteData(
        broker_datas=[
            BrokerData(broker_name="a", broker_addrs={0: str(A), 1: str(B)}),
            BrokerData(broker_name="b", broker_addrs={1: str(B)}),
        ]
    )
    route = route_of("orders", data)
    assert route.address("a") == A
    assert route.reading_address("a", broker_id=1) == B
    assert route.reading_address("a", broker_id=2) == A
    with pytest.raises(BrokerNotFoundError, match="'orders' has no master named 'b'"):
        route.address("b")
    with pytest.raises(BrokerNotFoundError, match="'orders' has no broker named 'x'"):
        route.reading_address("x")


async def test_a_route_is_asked_for_once_and_then_remembered() -> None:
    async with scripted(knowing({"orders": route_data({"a": A})})) as nameserver:
        async with Nodes([nameserver.address]) as nodes:
            routes = RouteCache(nodes)
            found = await asyncio.gather(*(routes.get("orders") for _ in range(10)))
            assert len(set(map(id, found))) == 1
            assert await routes.get("orders") is found[0]
            assert routes.known("orders") is found[0]
            assert routes.topics == ("orders",)
            assert list(routes.brokers()) == ["a"]
    assert len(nameserver.requests) == 1


async def test_one_who_gives_up_does_not_take_the_answer_from_the_others() -> None:
    async with scripted(silent) as nameserver:
        async with Nodes([nameserver.address], timeout_ms=20_000) as nodes:
            routes = RouteCache(nodes)
            first = asyncio.create_task(routes.get("orders"))
            second = asyncio.create_task(routes.get("orders"))
            await eventually(lambda: bool(nameserver.requests), "a question")
            first.cancel()
            await asyncio.wait([first])
            answer = knowing({"orders": route_data({"a": A})})
            answer(nameserver.sessions[0], nameserver.requests[0])
            assert queues(await second) == [("a", 0), ("a", 1)]


async def test_a_change_is_told_and_a_refresh_without_one_is_not() -> None:
    known = {"orders": route_data({"a": A})}
    told: list[tuple[str, Route]] = []
    async with scripted(knowing(known)) as nameserver, Nodes([nameserver.address]) as nodes:
        routes = RouteCache(nodes)
        routes.on_change.append(lambda topic, route: told.append((topic, route)))
        await routes.get("orders")
        await routes.refresh("orders")
        assert len(told) == 1
        known["orders"] = route_data({"a": A, "b": B})
        fresh = await routes.refresh("orders")
        assert told[1:] == [("orders", fresh)]
        assert await routes.get("orders") is fresh


async def test_routes_in_use_are_refreshed_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes_module, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(routes_module, "MASTERLESS_SECONDS", 0.01)
    known = {"orders": route_data({"a": A})}
    async with scripted(knowing(known)) as nameserver, Nodes([nameserver.address]) as nodes:
        routes = RouteCache(nodes)
        await routes.get("orders")
        changed = asyncio.Event()
        routes.on_change.append(lambda topic, route: changed.set())
        keeping = asyncio.create_task(routes.keep_fresh())
        known.clear()  # A name server that lost everything changes nothing.
        await eventually(lambda: len(nameserver.requests) >= 4, "four questions")
        assert not changed.is_set()
        assert (await routes.get("orders")).publish_queues
        known["orders"] = route_data({"b": B})
        async with asyncio.timeout(30):
            await changed.wait()
        keeping.cancel()
        await asyncio.wait([keeping])
        assert queues(await routes.get("orders")) == [("b", 0), ("b", 1)]


async def test_a_missing_topic_is_named_with_the_name_server() -> None:
    async with scripted(knowing({})) as nameserver, Nodes([nameserver.address]) as nodes:
        with pytest.raises(TopicNotFoundError, match=f"'orders' .* {nameserver.address} knows"):
            await RouteCache(nodes).get("orders")
        with pytest.raises(TopicNotFoundError, match=f"'orders' .* {nameserver.address} .*demand"):
            await RouteCache(nodes).get_for_sending("orders")


async def test_a_topic_to_be_becomes_a_real_one(cluster: LiveCluster) -> None:
    async with Nodes([Address(*cluster.nameservers[0].address)]) as nodes:
        routes = RouteCache(nodes)
        to_be = await routes.get_for_sending("orders", 3)
        assert to_be.is_default
        assert len(to_be.publish_queues) == 3
        assert await routes.get_for_sending("orders", 3) is to_be
        with pytest.raises(TopicNotFoundError):
            await routes.get("orders")
        await cluster.create_topic("orders", queues=5)
        real = await routes.get("orders")
        assert not real.is_default
        assert len(real.publish_queues) == 5
        assert await routes.get_for_sending("orders") is real


async def test_a_broker_that_registers_between_the_questions_is_asked_for_its_own_queues() -> None:
    known: dict[str, TopicRouteData] = {}

    def answer(session: RemotingSession, command: Command) -> None:
        if command.ext["topic"] == "TBW102":
            known["TBW102"] = route_data({"a": A}, queues=8, perm=7)
            known["orders"] = route_data({"a": A}, queues=2)
        knowing(known)(session, command)

    async with scripted(answer) as nameserver, Nodes([nameserver.address]) as nodes:
        route = await RouteCache(nodes).get_for_sending("orders")
        assert not route.is_default
        assert queues(route) == [("a", 0), ("a", 1)]


async def test_where_a_topic_would_come_into_being_is_refreshed_too() -> None:
    known = {"TBW102": route_data({"a": A}, queues=8, perm=7)}
    async with scripted(knowing(known)) as nameserver, Nodes([nameserver.address]) as nodes:
        routes = RouteCache(nodes)
        await routes.get_for_sending("orders", 1)
        known["TBW102"] = route_data({"b": B}, queues=8, perm=7)
        await routes.refresh_quietly("orders")
        assert queues(await routes.get_for_sending("orders", 1)) == [("b", 0)]
        known["orders"] = route_data({"a": A})
        await routes.refresh_quietly("orders")
        assert queues(await routes.get_for_sending("orders", 1)) == [("a", 0), ("a", 1)]


async def test_without_name_servers_a_known_route_is_kept_and_an_unknown_one_is_an_error() -> None:
    async with scripted(knowing({"orders": route_data({"a": A})})) as nameserver:
        async with Nodes([nameserver.address], timeout_ms=10_000) as nodes:
            routes = RouteCache(nodes)
            known = await routes.get("orders")
            nameserver.answer = hang_up
            await routes.refresh_quietly("orders")
            assert await routes.get("orders") is known
            with pytest.raises(NameserversUnreachableError, match=str(nameserver.address)):
                await routes.get("other")
            with pytest.raises(NameserversUnreachableError):
                await routes.refresh("orders")


async def test_closing_ends_what_is_asked() -> None:
    async with scripted(silent) as nameserver:
        async with Nodes([nameserver.address], timeout_ms=60_000) as nodes:
            routes = RouteCache(nodes)
            asking = asyncio.create_task(routes.get("orders"))
            await eventually(lambda: bool(nameserver.requests), "a question")
            await routes.close()
            with pytest.raises(ClientClosedError):
                await asking
