"""Routes of several brokers: each has an endpoint of its own, and clients are told all of them."""

from pathlib import Path
from typing import Any

import pytest

from onelog.rocketmq import routes
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import Code, MessageType
from tests.client.live_cluster import live_cluster
from tests.gateways.grpc.live import (
    address,
    in_thread,
    make_group,
    make_topic,
    message,
    producer,
    receive,
    simple_consumer,
)
from tests.gateways.grpc.raw import RawClient

GRPC = {"grpc__port": -1, "grpc__poll_min_ms": 100, "grpc__invisible_min_ms": 100}


def places(queues: Any) -> list[tuple[str, int, int]]:
    return [(each.broker.name, each.broker.endpoints.addresses[0].port, each.id) for each in queues]


async def test_a_route_names_the_endpoint_of_each_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "KEPT_MS", 0)
    async with live_cluster(tmp_path, 2, **GRPC) as cluster:
        first, second = cluster.brokers
        topic, there = make_topic(first, "both", queues=1), make_topic(second, "there", "FIFO", 1)
        make_topic(second, topic, queues=2)
        make_group(first, "ordered", consume_message_orderly=True)
        for server in cluster.brokers:
            await server.gateways["broker"]._registrar.register()  # type: ignore[attr-defined]
        names = [each.config.broker.name for each in cluster.brokers]
        ports = [each.config.grpc.port for each in cluster.brokers]
        here, *others = [(names[0], ports[0], 0), (names[1], ports[1], 0), (names[1], ports[1], 1)]
        async with RawClient(address(first)) as client:

            async def ask(kind: str, name: str, group: str = "") -> Any:
                request = getattr(messages, f"{kind}Request")()
                request.topic.name = name
                if group:
                    request.group.name = group
                return await client.call(kind, request)

            route = await ask("QueryRoute", topic)
            assert places(route.message_queues) == [here, *others]
            route = await ask("QueryRoute", there)
            assert places(route.message_queues) == others[:1]
            assert MessageType.FIFO in route.message_queues[0].accept_message_types
            assert (await ask("QueryRoute", "nowhere")).status.code == Code.TOPIC_NOT_FOUND
            given = await ask("QueryAssignment", topic, "any")
            found = places(each.message_queue for each in given.assignments)
            assert found == [(names[0], ports[0], -1), (names[1], ports[1], -1)]
            given = await ask("QueryAssignment", topic, "ordered")
            assert places(each.message_queue for each in given.assignments) == [here, *others]


async def test_clients_use_all_brokers_by_the_endpoint_of_one(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, 2, **GRPC) as cluster:
        for server in cluster.brokers:
            topic = make_topic(server, "spread", queues=2)
            make_group(server, "readers")
            await server.gateways["broker"]._registrar.register()  # type: ignore[attr-defined]
        at = address(cluster.brokers[0])

        def work() -> list[bytes]:
            with producer(at, topic) as sending, simple_consumer(at, "readers", topic) as reading:
                receive(reading, 1, seconds=0.3)
                for number in range(40):
                    sending.send(message(topic, b"%d" % number))
                got = receive(reading, 40)
                for each in got:
                    reading.ack(each)
                return [bytes(each.body) for each in got]

        assert sorted(await in_thread(work)) == sorted(b"%d" % each for each in range(40))
        for server in cluster.brokers:
            assert server.store.max_offset(topic, 0) + server.store.max_offset(topic, 1) > 0
            assert not server.core.leases
