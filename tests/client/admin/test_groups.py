"""Consumer groups, seen and changed over the network."""

from pathlib import Path

import pytest

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.groups import (
    NOBODY,
    GroupChange,
    GroupProgress,
    QueueProgress,
    is_system,
)
from onelog.core.catalog.groups import GroupConfig
from onelog.errors import (
    BrokerNotFoundError,
    GroupExistsError,
    GroupNotFoundError,
    RequestRefusedError,
    TopicNotFoundError,
)
from onelog.net.peer import Peer
from onelog.wire.remoting import fastjson
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.codes import VERSION, RequestCode
from onelog.wire.remoting.command import Command
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.gateways.remoting.live import Client


async def commit(client: Client, group: str, topic: str, queue: int, offset: int) -> None:
    answer = await client.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup=group,
        topic=topic,
        queueId=queue,
        commitOffset=offset,
    )
    assert answer.code == 0, answer.remark


async def test_a_new_group_has_its_settings_on_every_broker(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        change = GroupChange(False, False, True, 3, 5, 7)
        assert await admin.groups.create("readers", change) == ("broker-a", "broker-b")
        found = await admin.groups.describe("readers")
        for settings, broker in zip(found.settings, ("broker-a", "broker-b"), strict=True):
            assert settings.broker == broker
            assert not settings.consume_enable
            assert not settings.broadcast_enable
            assert settings.orderly
            assert (settings.retry_queues, settings.retry_times_max) == (3, 5)
            assert settings.consume_timeout_minutes == 7
        with pytest.raises(GroupExistsError, match="broker-a, broker-b"):
            await admin.groups.create("readers", GroupChange())


async def test_a_group_on_one_broker_only(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        await admin.groups.create("readers", GroupChange(), broker="broker-b")
        assert (await admin.groups.names()).answers["readers"] == ("broker-b",)
        assert await admin.groups.update("readers", GroupChange(orderly=True)) == ("broker-b",)
        with pytest.raises(GroupNotFoundError, match="none of broker-a"):
            await admin.groups.update("readers", GroupChange(orderly=True), broker="broker-a")
        assert await admin.groups.create("readers", GroupChange(), broker="broker-a") == (
            "broker-a",
        )


async def test_an_update_leaves_the_rest_as_it_is(cluster: LiveCluster, admin: AsyncAdmin) -> None:
    brought = GroupConfig("readers", retry_times_max=5, attributes={"priority.factor": "50"})
    cluster.brokers[0].core.groups.put(brought)
    await admin.groups.update("readers", GroupChange(retry_queues=4))
    (settings,) = (await admin.groups.describe("readers")).settings
    assert (settings.retry_queues, settings.retry_times_max) == (4, 5)
    assert settings.attributes == {"priority.factor": "50"}
    await admin.groups.update("readers", GroupChange(attributes={"priority.factor": None}))
    (settings,) = (await admin.groups.describe("readers")).settings
    assert (settings.retry_times_max, settings.attributes) == (5, {})
    with pytest.raises(RequestRefusedError, match=r"lite\.bind\.topic: this broker does not impl"):
        await admin.groups.update("readers", GroupChange(attributes={"lite.bind.topic": "orders"}))


async def test_a_name_that_brokers_refuse(admin: AsyncAdmin) -> None:
    with pytest.raises(RequestRefusedError, match="illegal characters"):
        await admin.groups.create("no such name!", GroupChange())


async def test_members_are_those_of_all_brokers(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        assert await admin.groups.members("readers") == NOBODY
        for broker in (0, 1):
            await cluster.create_topic("orders", broker=broker)
            for client_id in (f"only-{broker}", "both"):
                client = await cluster.client(broker)
                await client.heartbeat(client_id, "readers", "orders", "a || b")
        found = await admin.groups.members("readers")
        assert [member.client_id for member in found.members] == ["both", "only-0", "only-1"]
        member = found.members[1]
        assert (member.language, member.version) == ("JAVA", VERSION)
        assert member.address.startswith("127.0.0.1:")
        assert (found.consume_type, found.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
        assert found.start_from == "CONSUME_FROM_FIRST_OFFSET"
        assert found.subscriptions["orders"] == "a || b"


async def test_lag_is_what_the_broker_has_beyond_the_position(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        for broker in (0, 1):
            await cluster.create_topic("orders", broker=broker)
        await admin.groups.create("readers", GroupChange())
        for _ in range(5):
            await cluster.send("orders", b"x", queue=1)
            await cluster.send("orders", b"x", queue=0, broker=1)
        await commit(await cluster.client(0), "readers", "orders", 1, 2)
        await commit(await cluster.client(1), "readers", "orders", 0, 5)
        progress = await admin.groups.progress("readers")
        assert [
            (q.topic, q.broker, q.queue_id, q.max_offset, q.position, q.lag)
            for q in progress.queues
        ] == [
            ("orders", "broker-a", 0, 0, 0, 0),
            ("orders", "broker-a", 1, 5, 2, 3),
            ("orders", "broker-b", 0, 5, 5, 0),
            ("orders", "broker-b", 1, 0, 0, 0),
        ]
        assert progress.lag == 3
        assert progress.consumed_ms == progress.queues[1].consumed_ms > 0
        assert (await admin.groups.progress("readers", "other")).queues == ()


async def test_a_summary_of_every_group(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    for name in ("a", "b"):
        await admin.groups.create(name, GroupChange())
    await cluster.send("orders", b"x")
    client = await cluster.client()
    await commit(client, "a", "orders", 0, 0)
    await client.heartbeat("c1", "b", "orders")
    summaries = await admin.groups.summaries()
    assert [(each.name, each.progress.lag, len(each.members.members)) for each in summaries] == [
        ("a", 1, 0),
        ("b", 0, 1),
    ]
    everything = await admin.groups.summaries(with_system=True)
    assert {each.name for each in everything if each.is_system} >= {"TOOLS_CONSUMER"}
    assert [each.name for each in everything] == sorted(each.name for each in everything)


async def test_a_broker_that_does_not_answer_is_named_beside_the_others(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        await cluster.create_topic("orders", 1, broker=1)
        await admin.groups.create("readers", GroupChange())
        await commit(await cluster.client(1), "readers", "orders", 0, 0)
        for listener in cluster.brokers[0]._listeners:
            await listener.close()
        found = await admin.groups.describe("readers")
        assert [settings.broker for settings in found.settings] == ["broker-b"]
        assert [queue.broker for queue in found.progress.queues] == ["broker-b"]
        assert [failure.who for failure in found.failures] == ["broker-a"]


def running_info(queues: list[int]) -> bytes:
    table = {
        MessageQueue(broker_name="broker-a", queue_id=queue, topic="orders"): {"cachedMsgCount": 0}
        for queue in queues
    }
    return fastjson.dumps({"mqTable": table, "properties": {}})


async def test_owners_are_what_the_members_say(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 3)
    await admin.groups.create("readers", GroupChange())
    peers = []
    for client_id, body in (("c1", running_info([0, 1])), ("c2", b"{}"), ("c3", b"nonsense")):

        def respond(peer: Peer, command: Command, body: bytes = body) -> None:
            peer.reply(command, body=body)

        peer = await Peer.connect(
            "127.0.0.1", cluster.brokers[0].config.broker.port, on_request=respond
        )
        peers.append(peer)
        await Client(peer, []).heartbeat(client_id, "readers", "orders")
    await commit(Client(peers[0], []), "readers", "orders", 0, 0)
    found = await admin.groups.describe("readers", with_owners=True)
    owners = {q.queue_id: q.client_id for q in found.progress.queues if q.topic == "orders"}
    assert owners == {0: "c1", 1: "c1", 2: ""}
    assert not any(q.client_id for q in (await admin.groups.describe("readers")).progress.queues)
    for peer in peers:
        await peer.close()


async def test_deleting_removes_settings_positions_and_the_retry_topic(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders", 1)
    await cluster.create_topic("%DLQ%readers", 1)
    client = await cluster.client()
    await client.heartbeat("c1", "readers", "orders")
    await commit(client, "readers", "orders", 0, 0)
    assert await admin.topics.route("%RETRY%readers")
    assert await admin.groups.delete("readers") == ("broker-a",)
    assert "readers" not in (await admin.groups.names()).answers
    with pytest.raises(TopicNotFoundError):
        await admin.topics.route("%RETRY%readers")
    assert await admin.topics.route("%DLQ%readers")
    assert cluster.brokers[0].core.offsets.of("readers", "orders") == {}


async def test_deleting_can_keep_positions_and_take_dead_letters(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders", 1)
    await cluster.create_topic("%DLQ%readers", 1)
    await admin.groups.create("readers", GroupChange())
    await cluster.send("orders", b"x")
    await commit(await cluster.client(), "readers", "orders", 0, 1)
    await admin.groups.delete("readers", keep_positions=True, dead_letters=True)
    with pytest.raises(TopicNotFoundError):
        await admin.topics.route("%DLQ%readers")
    assert cluster.brokers[0].core.offsets.of("readers", "orders") == {0: 1}


async def test_what_does_not_exist_is_not_found(admin: AsyncAdmin) -> None:
    with pytest.raises(GroupNotFoundError, match="no broker knows a consumer group nope"):
        await admin.groups.describe("nope")
    with pytest.raises(GroupNotFoundError):
        await admin.groups.delete("nope")
    with pytest.raises(GroupNotFoundError):
        await admin.groups.update("nope", GroupChange(orderly=True))
    with pytest.raises(BrokerNotFoundError):
        await admin.groups.create("readers", GroupChange(), cluster="Elsewhere")


def test_lag_counts_from_nothing_where_there_is_no_position() -> None:
    queue = QueueProgress("t", "b", 0, 10, -1, 4, 0)
    assert (queue.lag, queue.in_flight) == (10, 4)
    assert QueueProgress("t", "b", 0, 10, 12, 12, 0).lag == 0


def test_the_slowest_queue_that_lags_tells_how_far_a_group_is() -> None:
    queues = (
        QueueProgress("t", "b", 0, 10, 10, 10, 100),
        QueueProgress("t", "b", 1, 10, 5, 5, 300),
        QueueProgress("t", "b", 2, 10, 6, 6, 200),
        QueueProgress("t", "b", 3, 10, 0, 0, 0),
    )
    assert GroupProgress("g", queues, 0.0, ()).consumed_ms == 200
    assert GroupProgress("g", queues[:1], 0.0, ()).consumed_ms == 0


def test_system_groups_are_known_by_name() -> None:
    assert is_system("CID_RMQ_SYS_TRANS")
    assert is_system("TOOLS_CONSUMER")
    assert not is_system("readers")
