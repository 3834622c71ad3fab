"""Topics, seen and changed over the network."""

from pathlib import Path

import pytest

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.topics import TopicChange, TopicKind
from onelog.client.connection.address import Address
from onelog.client.connection.nodes import Nodes
from onelog.errors import (
    BrokerNotFoundError,
    KeyNotFoundError,
    PartlyDoneError,
    RequestRefusedError,
    TopicExistsError,
    TopicNotFoundError,
)
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.client.live_cluster import LiveCluster, live_cluster


async def pinned(admin: AsyncAdmin, topic: str) -> str | None:
    """The queues that name servers keep for an ordered topic."""
    ext = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic}
    try:
        _, answer = await admin.nodes.ask_nameserver(RequestCode.GET_KV_CONFIG, ext)
    except KeyNotFoundError:
        return None
    return answer.ext["value"]


async def test_a_new_topic_is_on_every_broker_and_routed_when_create_returns(
    tmp_path: Path,
) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        made = await admin.topics.create("orders", TopicChange(read_queues=3, write_queues=2))
        assert made == ("broker-a", "broker-b")
        route = await admin.topics.route("orders")
        assert [
            (each.brokers.name, each.read_queues, each.write_queues, each.perm)
            for each in route.brokers
        ] == [("broker-a", 3, 2, 6), ("broker-b", 3, 2, 6)]
        assert {k: str(v) for k, v in route.sources.items()} == {
            "broker-a": cluster.brokers[0].address,
            "broker-b": cluster.brokers[1].address,
        }


async def test_a_topic_can_be_created_on_one_broker_and_later_on_another(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        assert await admin.topics.create("t", TopicChange(), broker="broker-b") == ("broker-b",)
        with pytest.raises(TopicExistsError, match="t exists already on broker-b"):
            await admin.topics.create("t", TopicChange())
        assert await admin.topics.create("t", TopicChange(), broker="broker-a") == ("broker-a",)
        assert list((await admin.topics.route("t")).sources) == ["broker-a", "broker-b"]


async def test_a_name_that_brokers_refuse_creates_nothing(admin: AsyncAdmin) -> None:
    with pytest.raises(RequestRefusedError, match="illegal characters"):
        await admin.topics.create("no such name!", TopicChange())
    with pytest.raises(RequestRefusedError, match="conflict with system topic"):
        await admin.topics.update("SCHEDULE_TOPIC_XXXX", TopicChange(perm=6))


async def test_topics_are_told_apart_by_whose_they_are(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    for name in ("orders", "%RETRY%readers", "%DLQ%readers"):
        await cluster.create_topic(name)
    kinds = {each.name: each.kind for each in await admin.topics.names()}
    assert kinds["orders"] is TopicKind.USER
    assert kinds["%RETRY%readers"] is TopicKind.RETRY
    assert kinds["%DLQ%readers"] is TopicKind.DEAD_LETTER
    assert {name for name, kind in kinds.items() if kind is TopicKind.SYSTEM} >= {
        "TBW102",
        "DefaultCluster",
        "broker-a",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
    }
    assert [each.name for each in await admin.topics.names()] == sorted(kinds)
    assert await admin.topics.names("DefaultCluster") == await admin.topics.names()
    with pytest.raises(BrokerNotFoundError):
        await admin.topics.names("Elsewhere")


async def test_status_has_every_queue_of_every_broker(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        await admin.topics.create("orders", TopicChange(read_queues=2, write_queues=2))
        for number in range(3):
            await cluster.send("orders", b"%d" % number, queue=1, broker=1)
        status = await admin.topics.status("orders")
        assert [
            (q.broker, q.queue_id, q.min_offset, q.max_offset, q.count) for q in status.queues
        ] == [
            ("broker-a", 0, 0, 0, 0),
            ("broker-a", 1, 0, 0, 0),
            ("broker-b", 0, 0, 0, 0),
            ("broker-b", 1, 0, 3, 3),
        ]
        assert [q.updated_ms > 0 for q in status.queues] == [False, False, False, True]
        assert status.failures == ()


async def test_status_of_the_brokers_that_answer(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        await admin.topics.create("orders", TopicChange(read_queues=1, write_queues=1))
        for listener in cluster.brokers[0]._listeners:
            await listener.close()
        status = await admin.topics.status("orders")
        assert [queue.broker for queue in status.queues] == ["broker-b"]
        assert [failure.who for failure in status.failures] == ["broker-a"]
        assert cluster.brokers[0].address in status.failures[0].reason
        description = await admin.topics.describe("orders")
        assert [failure.who for failure in description.failures] == ["broker-a"]


async def test_a_description_has_settings_and_groups(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    change = TopicChange(2, 3, 4, attributes={"message.type": "NORMAL"})
    await admin.topics.create("orders", change)
    client = await cluster.client()
    await client.heartbeat("c1", "readers", "orders")
    description = await admin.topics.describe("orders")
    (settings,) = description.settings
    assert (settings.broker, settings.read_queues, settings.write_queues) == ("broker-a", 2, 3)
    assert (settings.perm, settings.order, settings.filter_type) == (4, False, "SINGLE_TAG")
    assert settings.attributes == {"message.type": "NORMAL"}
    assert description.groups == ("readers",)
    assert len(description.status.queues) == 3
    assert await admin.topics.groups("orders") == ("readers",)


async def test_an_update_leaves_the_rest_as_it_is(admin: AsyncAdmin) -> None:
    await admin.topics.create("orders", TopicChange(2, 3, attributes={"message.type": "FIFO"}))
    assert await admin.topics.update("orders", TopicChange(perm=4)) == ("broker-a",)
    (settings,) = (await admin.topics.describe("orders")).settings
    assert (settings.read_queues, settings.write_queues, settings.perm) == (2, 3, 4)
    assert settings.attributes == {"message.type": "FIFO"}
    await admin.topics.update("orders", TopicChange(attributes={"message.type": None}))
    (settings,) = (await admin.topics.describe("orders")).settings
    assert (settings.perm, settings.attributes) == (4, {})


async def test_an_update_on_one_of_several_brokers(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        await admin.topics.create("orders", TopicChange())
        assert await admin.topics.update("orders", TopicChange(perm=2), broker="broker-b") == (
            "broker-b",
        )
        settings = (await admin.topics.describe("orders")).settings
        assert [(each.broker, each.perm) for each in settings] == [("broker-a", 6), ("broker-b", 2)]
        with pytest.raises(BrokerNotFoundError, match="not on broker 'broker-x'"):
            await admin.topics.update("orders", TopicChange(perm=2), broker="broker-x")


async def test_the_queues_of_an_ordered_topic_are_pinned_at_every_name_server(
    tmp_path: Path,
) -> None:
    async with live_cluster(tmp_path, brokers=2, nameservers=2) as cluster:
        async with cluster.admin() as admin:
            await admin.topics.create("orders", TopicChange(4, 4, order=True), broker="broker-a")
            await admin.topics.create("orders", TopicChange(2, 2, order=True), broker="broker-b")
        for server in cluster.nameservers:
            async with AsyncAdmin(Nodes([Address(*server.address)])) as admin:
                assert await pinned(admin, "orders") == "broker-a:4;broker-b:2"
        async with cluster.admin() as admin:
            await admin.topics.update("orders", TopicChange(order=False))
            assert await pinned(admin, "orders") is None
            assert not any(each.order for each in (await admin.topics.describe("orders")).settings)


async def test_deleting_removes_a_topic_from_brokers_and_name_servers(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2, nameservers=2) as cluster:
        async with cluster.admin() as admin:
            await admin.topics.create("orders", TopicChange(order=True))
            await cluster.send("orders", b"x")
            assert await admin.topics.delete("orders") == ("broker-a", "broker-b")
            assert await pinned(admin, "orders") is None
        for server in cluster.nameservers:
            async with AsyncAdmin(Nodes([Address(*server.address)])) as admin:
                with pytest.raises(TopicNotFoundError):
                    await admin.topics.route("orders")
        for broker in cluster.brokers:
            assert broker.core.topics.get("orders") is None


async def test_a_topic_in_another_cluster_is_not_deleted(admin: AsyncAdmin) -> None:
    await admin.topics.create("orders", TopicChange())
    with pytest.raises(TopicNotFoundError, match="not in cluster 'Other'"):
        await admin.topics.delete("orders", cluster="Other")
    assert await admin.topics.delete("orders", cluster="DefaultCluster") == ("broker-a",)
    with pytest.raises(TopicNotFoundError, match="there is no topic orders"):
        await admin.topics.delete("orders")


async def test_a_name_server_that_is_gone_makes_deleting_incomplete(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, nameservers=2) as cluster, cluster.admin() as admin:
        await admin.topics.create("orders", TopicChange())
        gone = "{}:{}".format(*cluster.nameservers[1].address)
        await cluster.nameservers[1]._listeners[0].close()
        with pytest.raises(PartlyDoneError, match=gone):
            await admin.topics.delete("orders")
        assert cluster.brokers[0].core.topics.get("orders") is None


async def test_what_does_not_exist_is_not_found(admin: AsyncAdmin) -> None:
    for asked in (
        admin.topics.route("nope"),
        admin.topics.status("nope"),
        admin.topics.describe("nope"),
        admin.topics.update("nope", TopicChange(perm=4)),
        admin.topics.groups("nope"),
    ):
        with pytest.raises(TopicNotFoundError, match="there is no topic nope"):
            await asked


async def test_settings_come_from_the_whole_table_where_a_broker_is_too_old(
    admin: AsyncAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.topics.create("orders", TopicChange(5, 6))
    ask = admin.nodes._ask
    asked = []

    async def as_before_5_0(address: Address, code: RequestCode, *rest: object) -> Command:
        asked.append(code)
        if code == RequestCode.GET_TOPIC_CONFIG:
            return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        return await ask(address, code, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(admin.nodes, "_ask", as_before_5_0)
    (settings,) = (await admin.topics.describe("orders")).settings
    assert (settings.read_queues, settings.write_queues) == (5, 6)
    assert RequestCode.GET_ALL_TOPIC_CONFIG in asked
