"""A member's queues come and go, move when they are told to, and survive their broker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.client.consumer import fetching as fetching_module
from onelog.client.consumer.push import pulling as pulling_module
from onelog.client.message import Queue
from onelog.config import Value
from onelog.config_sources import load
from onelog.server import running_broker, running_nameserver
from onelog.wire.remoting.codes import RequestCode
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.pull_member import GROUP, pulling
from tests.gateways.remoting.live import SMALL, client
from tests.ports import free_port
from tests.waiting import eventually


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        await running.create_topic("orders", 4)
        yield running


def queues(*numbers: int) -> tuple[Queue, ...]:
    return tuple(Queue("orders", "broker-a", number) for number in numbers)


def of_orders(assigned: tuple[Queue, ...]) -> tuple[Queue, ...]:
    return tuple(queue for queue in assigned if queue.topic == "orders")


async def test_members_share_the_queues_and_take_over_what_another_leaves(
    cluster: LiveCluster,
) -> None:
    async with pulling(cluster) as first:
        assert of_orders(first.fetching.assigned) == queues(0, 1, 2, 3)
        async with pulling(cluster) as second:
            first.fetching.rebalance()
            await eventually(
                lambda: len(of_orders(first.fetching.assigned)) == 2, "the first gives up two"
            )
            both = of_orders(first.fetching.assigned) + of_orders(second.fetching.assigned)
            assert sorted(both) == list(queues(0, 1, 2, 3))
        first.fetching.rebalance()
        await eventually(
            lambda: of_orders(first.fetching.assigned) == queues(0, 1, 2, 3), "it has all again"
        )


async def test_a_queue_that_is_left_is_committed_and_its_messages_are_not_begun(
    cluster: LiveCluster,
) -> None:
    for queue in range(4):
        for number in range(10):
            await cluster.send("orders", b"%d" % number, queue)
    async with pulling(cluster) as member:
        await eventually(lambda: len(member.taken) == 40, "all are here")
        leaving = member.queue(3)
        done = [(s, m) for s, m in member.taken if m.queue.queue_id == 3][:4]
        for source, message in done:
            source.done([message])
        await member.fetching._release([Queue("orders", "broker-a", 3)])
        assert leaving.dropped
        assert cluster.brokers[0].core.offsets.get(GROUP, "orders", 3) == 4
        # What comes of it later changes nothing any more.
        for source, message in member.taken:
            if message.queue.queue_id == 3:
                source.failed([message], ValueError())
        assert not leaving._returning
        member.fetching.rebalance()
        await eventually(lambda: len(member.taken) == 40 + 6, "who is next goes on there")
        assert [int(message.body) for _, message in member.taken[40:]] == list(range(4, 10))


async def test_a_start_at_the_end_of_a_queue_is_remembered(cluster: LiveCluster) -> None:
    cluster.brokers[
        0
    ].core.offsets._near_bytes = 0  # The queues count as old: then the broker knows no beginning.
    for number in range(10):
        await cluster.send("orders", b"%d" % number)
    async with pulling(cluster, start="last") as member:
        assert member.queue().process_queue.committable == 10
        await member.fetching.commit()
        assert cluster.brokers[0].core.offsets.get(GROUP, "orders", 0) == 10
        await cluster.send("orders", b"10")
        await eventually(lambda: member.numbers == [10], "only what is new")


async def test_an_administrator_can_move_a_group_while_it_consumes(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The broker tells with the next pull, and may hold one that finds nothing.
    monkeypatch.setattr(pulling_module, "HOLD_MS", 200)
    for number in range(20):
        await cluster.send("orders", b"%d" % number)
    async with pulling(cluster) as member, cluster.admin() as admin:
        await eventually(lambda: len(member.taken) == 20, "all are here")
        old = member.queue()
        member.finish(15)
        await member.fetching.commit()
        moves = await admin.positions.reset(GROUP, "orders", 0)
        assert {move.after for move in moves.queues} == {0}
        await eventually(lambda: len(member.taken) == 5 + 20, "all come again")
        assert old.dropped
        # What was in hand is the past; it must not move the group.
        for source, message in member.taken[:5]:
            source.done([message])
        assert member.queue().process_queue.committable == 0
        del member.taken[:5]
        member.finish()
        await admin.positions.skip(GROUP, "orders")
        await cluster.send("orders", b"20")
        await eventually(lambda: member.numbers == [20], "it is at the end")


async def test_a_move_that_is_told_to_a_pull_of_the_past_is_followed(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling_module, "HOLD_MS", 300)
    for number in range(5):
        await cluster.send("orders", b"%d" % number)
    async with pulling(cluster) as member, cluster.admin() as admin:
        await eventually(lambda: len(member.taken) == 5, "all are here")
        member.finish()
        monkeypatch.setattr(pulling_module, "HOLD_MS", 15_000)
        # The queue goes and comes, and the broker still holds the pull of before.
        await member.fetching._release([Queue("orders", "broker-a", 0)])
        member.fetching.rebalance()
        await eventually(lambda: len(of_orders(member.fetching.assigned)) == 4, "it is back")
        await admin.positions.reset(GROUP, "orders", 0)
        await eventually(lambda: member.numbers == list(range(5)), "all come again", 10)


async def test_brokers_that_leave_the_moving_to_members_are_obeyed(cluster: LiveCluster) -> None:
    for number in range(10):
        await cluster.send("orders", b"%d" % number)
    async with pulling(cluster) as member:
        await eventually(lambda: len(member.taken) == 10, "all are here")
        member.finish()
        member.fetching.moved(Queue("orders", "broker-a", 0), 7)
        member.fetching.moved(Queue("elsewhere", "broker-a", 0), 3)
        await eventually(lambda: member.numbers == [7, 8, 9], "the last three come again")
        await eventually(
            lambda: cluster.brokers[0].core.offsets.get(GROUP, "orders", 0) == 7,
            "the broker knows",
        )


async def test_what_was_deleted_is_passed_over(cluster: LiveCluster) -> None:
    cluster.brokers[0].core.groups.require(GROUP)
    for number in range(3):
        await cluster.send("orders", b"%d" % number)
    cluster.brokers[0].core.offsets.commit(GROUP, "orders", 0, 1000)
    async with pulling(cluster) as member:
        # 1000 is past the end, so the broker sends us back there.
        await eventually(lambda: member.queue().process_queue.next_offset == 3, "it is at the end")
        await cluster.send("orders", b"3")
        await eventually(lambda: member.numbers == [3], "it goes on")


async def test_positions_are_committed_every_few_seconds(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling_module, "COMMIT_SECONDS", 0.05)
    await cluster.send("orders", b"1")
    async with pulling(cluster, prefetch_count=1) as member:
        await eventually(lambda: len(member.taken) == 1, "it is here")
        member.finish()
        await eventually(
            lambda: cluster.brokers[0].core.offsets.get(GROUP, "orders", 0) == 1, "the broker knows"
        )
        assert member.fetching.positions("orders")[Queue("orders", "broker-a", 0)] == 1
        assert member.queue().committed == member.queue().process_queue.committable


async def test_a_broker_that_is_gone_for_a_while_is_consumed_from_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching_module, "RETRY_SECONDS", 0.05)
    given: dict[str, Value] = {
        "nameserver.port": 0,
        "nameserver.kv_path": str(tmp_path / "kv.json"),
    }
    async with running_nameserver(load(overrides=given)) as nameserver:
        host, port = nameserver.address
        settings: dict[str, Value] = {
            **SMALL,
            "broker.name": "broker-a",
            "broker.nameservers": f"{host}:{port}",
            "broker.store_path": str(tmp_path / "store"),
            "broker.port": free_port(),
        }
        cluster = LiveCluster([nameserver], [])
        async with running_broker(load(overrides=settings)) as first:
            async with client(first) as sender:
                await sender.send("orders", b"1")
            stack = pulling(cluster)
            member = await stack.__aenter__()
            await eventually(lambda: member.numbers == [1], "it works")
            member.finish()
        await asyncio.sleep(0.2)
        async with running_broker(load(overrides=settings)) as second, client(second) as sender:
            answer = await sender.send("orders", b"2")
            assert answer.code == 0, answer.remark
            await eventually(lambda: member.numbers == [2], "it works again")
            member.finish()
            answer = await sender.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=GROUP)
            assert answer.code == 0
            await stack.__aexit__(None, None, None)
