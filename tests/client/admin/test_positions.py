"""Moving consumer groups over the network."""

import asyncio
from pathlib import Path

import pytest

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.groups import TO_THE_END, GroupChange
from onelog.client.connection.address import Address
from onelog.clock import SystemClock
from onelog.errors import GroupNotFoundError, GroupOnlineError, OnelogError, TopicNotFoundError
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.client.live_cluster import LiveCluster, live_cluster


async def fill(cluster: LiveCluster, brokers: int = 1) -> int:
    """Three messages in queue 0 of each broker, two more after the time that is returned."""
    for broker in range(brokers):
        await cluster.create_topic("orders", 2, broker=broker)
        for number in range(3):
            await cluster.send("orders", b"%d" % number, broker=broker)
    await asyncio.sleep(0.005)
    middle_ms = SystemClock().now_ms()
    for broker in range(brokers):
        for number in range(3, 5):
            await cluster.send("orders", b"%d" % number, broker=broker)
    return middle_ms


def positions(cluster: LiveCluster, group: str, broker: int = 0) -> dict[int, int]:
    return cluster.brokers[broker].core.offsets.of(group, "orders")


async def test_a_group_is_moved_to_a_time_on_every_broker(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        middle_ms = await fill(cluster, 2)
        await admin.groups.create("readers", GroupChange())
        moves = await admin.positions.reset("readers", "orders", middle_ms)
        assert [(m.broker, m.queue_id, m.after) for m in moves.queues] == [
            ("broker-a", 0, 3),
            ("broker-a", 1, 0),
            ("broker-b", 0, 3),
            ("broker-b", 1, 0),
        ]
        assert moves.failures == ()
        assert positions(cluster, "readers") == positions(cluster, "readers", 1) == {0: 3, 1: 0}
        moves = await admin.positions.reset("readers", "orders", 0)
        assert [(m.before, m.after) for m in moves.queues] == [(3, 0), (0, 0), (3, 0), (0, 0)]


async def test_a_backlog_is_skipped(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await fill(cluster)
    await admin.groups.create("readers", GroupChange())
    moves = await admin.positions.skip("readers", "orders")
    assert [(m.topic, m.queue_id, m.after) for m in moves.queues] == [
        ("orders", 0, 5),
        ("orders", 1, 0),
    ]
    assert positions(cluster, "readers") == {0: 5, 1: 0}


async def test_a_preview_tells_the_same_and_moves_nothing(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    middle_ms = await fill(cluster)
    await admin.groups.create("readers", GroupChange())
    for time_ms in (0, middle_ms, TO_THE_END):
        before = positions(cluster, "readers")
        preview = await admin.positions.preview("readers", "orders", time_ms)
        assert positions(cluster, "readers") == before
        assert await admin.positions.reset("readers", "orders", time_ms) == preview


async def test_live_members_go_to_where_their_group_is_moved(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    middle_ms = await fill(cluster)
    client = await cluster.client()
    await client.heartbeat("c1", "readers", "orders")
    await admin.positions.reset("readers", "orders", middle_ms)
    answer = await client.pull("orders", 5, consumerGroup="readers")
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext["nextBeginOffset"] == "3"


@pytest.mark.parametrize("code", [ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR])
async def test_positions_are_written_where_a_broker_cannot_move_an_idle_group(
    admin: AsyncAdmin, cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch, code: ResponseCode
) -> None:
    middle_ms = await fill(cluster)
    await admin.groups.create("readers", GroupChange())
    ask = admin.nodes._ask

    async def as_before_5_0(address: Address, request: RequestCode, *rest: object) -> Command:
        if request == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
            return Command(code, remark="not online")
        return await ask(address, request, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(admin.nodes, "_ask", as_before_5_0)
    moves = await admin.positions.reset("readers", "orders", middle_ms)
    assert [move.after for move in moves.queues] == [3, 0]
    assert positions(cluster, "readers") == {0: 3, 1: 0}
    await admin.positions.skip("readers", "orders")
    assert positions(cluster, "readers") == {0: 5, 1: 0}
    await (await cluster.client()).heartbeat("c1", "readers", "orders")
    with pytest.raises(OnelogError, match="not online"):
        await admin.positions.reset("readers", "orders", 0)
    assert positions(cluster, "readers") == {0: 5, 1: 0}


async def test_only_what_exists_can_be_moved(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await fill(cluster)
    await admin.groups.create("readers", GroupChange())
    with pytest.raises(TopicNotFoundError):
        await admin.positions.reset("readers", "nope", 0)
    for move in (admin.positions.reset, admin.positions.preview):
        with pytest.raises(GroupNotFoundError, match="nope"):
            await move("nope", "orders", 0)


async def test_a_broker_that_cannot_be_reached_is_named_and_the_others_move(
    tmp_path: Path,
) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        await fill(cluster, 2)
        await admin.groups.create("readers", GroupChange())
        for listener in cluster.brokers[0]._listeners:
            await listener.close()
        moves = await admin.positions.skip("readers", "orders")
        assert [(m.broker, m.after) for m in moves.queues] == [("broker-b", 5), ("broker-b", 0)]
        assert [failure.who for failure in moves.failures] == ["broker-a"]


async def test_a_clone_has_the_settings_and_positions_of_its_source(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        middle_ms = await fill(cluster, 2)
        await admin.groups.create("readers", GroupChange(retry_times_max=3))
        await admin.positions.reset("readers", "orders", middle_ms)
        moves = await admin.positions.clone("readers", "others")
        assert moves.group == "others"
        assert [(m.broker, m.queue_id, m.before, m.after) for m in moves.queues] == [
            ("broker-a", 0, None, 3),
            ("broker-a", 1, None, 0),
            ("broker-b", 0, None, 3),
            ("broker-b", 1, None, 0),
        ]
        assert positions(cluster, "others") == positions(cluster, "others", 1) == {0: 3, 1: 0}
        settings = (await admin.groups.describe("others")).settings
        assert [(s.broker, s.retry_times_max) for s in settings] == [
            ("broker-a", 3),
            ("broker-b", 3),
        ]


async def test_a_clone_of_one_topic_into_a_group_that_exists(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await fill(cluster)
    await cluster.create_topic("other", 1)
    for name, retries in (("readers", 3), ("others", 7)):
        await admin.groups.create(name, GroupChange(retry_times_max=retries))
    await admin.positions.skip("readers", "orders")
    await admin.positions.skip("readers", "other")
    moves = await admin.positions.clone("readers", "others", "orders")
    assert {move.topic for move in moves.queues} == {"orders"}
    assert positions(cluster, "others") == {0: 5, 1: 0}
    assert cluster.brokers[0].core.offsets.of("others", "other") == {}
    (settings,) = (await admin.groups.describe("others")).settings
    assert settings.retry_times_max == 7


async def test_a_group_with_live_members_is_not_overwritten(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await fill(cluster)
    await admin.groups.create("readers", GroupChange())
    await admin.positions.skip("readers", "orders")
    await (await cluster.client()).heartbeat("c1", "others", "orders")
    with pytest.raises(GroupOnlineError, match="others has live members"):
        await admin.positions.clone("readers", "others")
    assert positions(cluster, "others") == {}
    with pytest.raises(GroupNotFoundError, match="nope has no position"):
        await admin.positions.clone("nope", "others")
