"""Popping from live brokers; what listeners would do is done by hand, through the seam."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from onelog.client.consumer.listening import RetryLater
from onelog.client.consumer.push.consumer import AsyncPushConsumer
from onelog.client.consumer.push.popping import PopFetching
from onelog.client.consumer.topic_filters import topic_filter
from onelog.client.message import Queue, ReceivedMessage
from onelog.errors import ConfigError, RequestRefusedError
from onelog.wire.remoting.clients import RequestMode
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.pop_member import GROUP, Member, member
from tests.client.watching import bodies
from tests.waiting import eventually


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        await running.create_topic("orders", queues=2)
        yield running


async def set_to_pop(cluster: LiveCluster, share: int = 0) -> None:
    """What an administrator does to a group."""
    answer = await (await cluster.client()).peer.ask(
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        None,
        RequestMode(
            consumer_group=GROUP, mode="POP", pop_share_queue_num=share, topic="orders"
        ).encode(),
    )
    assert answer.code == 0, answer.remark


async def test_messages_of_all_queues_arrive_and_are_gone_once_they_are_done(
    cluster: LiveCluster,
) -> None:
    sent = [b"%d" % number for number in range(50)]
    for number, body in enumerate(sent):
        await cluster.send("orders", body, number % 2)
    async with member(cluster) as one:
        await one.has(*sent)
        assert one.fetching.assigned == (Queue("orders", "broker-a", -1),)
        assert {message.queue.queue_id for _, message in one.taken} == {0, 1}
        one.done()
        await one.fetching.commit()
        assert await one.fetching.lag() == {
            Queue("orders", "broker-a", 0): 0,
            Queue("orders", "broker-a", 1): 0,
        }
    async with member(cluster) as other:
        await cluster.send("orders", b"last")
        await other.has(b"last")
        assert other.taken[0][1].delivery_attempt == 1
        other.done()


async def test_a_message_that_arrives_later_is_handed_over_at_once(cluster: LiveCluster) -> None:
    async with member(cluster) as one:
        await eventually(lambda: one.asked[RequestCode.POP_MESSAGE])
        await cluster.send("orders", b"late")
        await one.has(b"late", seconds=5)


async def test_messages_are_acknowledged_together(cluster: LiveCluster) -> None:
    for number in range(20):
        await cluster.send("orders", b"%d" % number)
    async with member(cluster) as one:
        await eventually(lambda: len(one.taken) == 20)
        one.done()
        await one.fetching.commit()
        assert len(one.asked[RequestCode.BATCH_ACK_MESSAGE]) == 1
        assert not one.asked[RequestCode.ACK_MESSAGE]
        await cluster.send("orders", b"single")
        await one.has(b"single")
        one.done()
        await one.fetching.commit()
        assert len(one.asked[RequestCode.ACK_MESSAGE]) == 1


async def test_members_share_the_messages_of_one_queue(cluster: LiveCluster) -> None:
    async with member(cluster, prefetch_count=4) as one, member(cluster, prefetch_count=4) as two:
        for number in range(16):
            await cluster.send("orders", b"%d" % number)
        await eventually(lambda: len(one.taken) + len(two.taken) == 8)
        assert len(one.taken) == 4
        assert not {*one.bodies} & {*two.bodies}


async def test_nothing_more_is_asked_for_than_may_be_in_hand(cluster: LiveCluster) -> None:
    for number in range(40):
        await cluster.send("orders", b"%d" % number)
    async with member(cluster, prefetch_count=10) as one:
        await eventually(lambda: len(one.taken) == 10)
        (info,) = one.fetching.queue_table().values()
        assert info.wait_ack_count == 10
        assert info.last_pop_timestamp > 0
        asked = len(one.asked[RequestCode.POP_MESSAGE])
        await asyncio.sleep(0.2)
        assert len(one.asked[RequestCode.POP_MESSAGE]) == asked
        one.done()
        await eventually(lambda: len(one.taken) == 10)


async def test_a_message_of_a_member_that_was_killed_comes_to_another_one(
    cluster: LiveCluster,
) -> None:
    async with member(cluster, invisible_ms=2_000) as killed:
        await cluster.send("orders", b"orphan", TAGS="x")
        await killed.has(b"orphan")
        await killed.die()
        async with member(cluster) as heir:
            await heir.has(b"orphan")
            ((_, message),) = heir.taken
            assert message.delivery_attempt == 2
            assert message.topic == "orders"
            assert message.tags == "x"
            heir.done()
            await heir.fetching.commit()
            assert sum((await heir.fetching.lag()).values()) == 0


async def test_a_message_that_a_listener_has_for_long_comes_to_nobody_else(
    cluster: LiveCluster,
) -> None:
    await cluster.send("orders", b"hard")
    async with member(cluster, invisible_ms=2_000) as one:
        await one.has(b"hard")
        async with member(cluster) as other:
            await eventually(lambda: len(one.asked[RequestCode.CHANGE_MESSAGE_INVISIBLETIME]) >= 3)
            assert one.bodies == [b"hard"]
            assert not other.taken
            one.done()
            await one.fetching.commit()
            assert sum((await one.fetching.lag()).values()) == 0


async def test_a_message_that_failed_comes_again_when_its_delay_is_over(
    cluster: LiveCluster,
) -> None:
    await cluster.send("orders", b"flaky")
    async with member(cluster) as one:
        await one.has(b"flaky")
        one.failed(RetryLater(delay_level=1))
        await one.has(b"flaky")
        assert one.taken[0][1].delivery_attempt == 2
        one.done()


async def test_without_a_delay_of_its_own_a_failed_message_waits_as_long_as_in_java(
    cluster: LiveCluster,
) -> None:
    await cluster.send("orders", b"flaky")
    async with member(cluster) as one:
        await one.has(b"flaky")
        one.failed(ValueError("no"))
        await one.fetching.commit()
        (change,) = one.asked[RequestCode.CHANGE_MESSAGE_INVISIBLETIME]
        assert change["invisibleTime"] == "10000"


async def test_a_message_that_failed_too_often_becomes_a_dead_letter(cluster: LiveCluster) -> None:
    async with member(cluster, retries_max=1) as one:
        await cluster.send("orders", b"poison")
        await one.has(b"poison")
        one.failed(RetryLater(delay_level=1))
        await one.has(b"poison")
        one.failed(ValueError("never"))
        await one.fetching.commit()
        assert await bodies(cluster, f"%DLQ%{GROUP}", 1) == [b"poison"]
        await asyncio.sleep(0.3)
        assert not one.taken


async def test_a_listener_may_ask_for_a_dead_letter_at_once(cluster: LiveCluster) -> None:
    async with member(cluster) as one:
        await cluster.send("orders", b"poison")
        await one.has(b"poison")
        one.failed(RetryLater(delay_level=-1))
        await one.fetching.commit()
        assert one.asked[RequestCode.CONSUMER_SEND_MSG_BACK]
        assert one.asked[RequestCode.ACK_MESSAGE]


async def test_what_is_in_hand_at_the_end_comes_to_another_member_at_once(
    cluster: LiveCluster,
) -> None:
    async with member(cluster) as leaving:
        for number in range(5):
            await cluster.send("orders", b"%d" % number)
        await eventually(lambda: len(leaving.taken) == 5)
    async with member(cluster) as staying:
        await staying.has(*(b"%d" % number for number in range(5)))


async def test_what_comes_after_the_stop_is_given_back(cluster: LiveCluster) -> None:
    async with member(cluster) as leaving:
        await eventually(lambda: leaving.asked[RequestCode.POP_MESSAGE])
        await leaving.fetching.stop()
        await cluster.send("orders", b"late")
        async with member(cluster) as staying:
            await staying.has(b"late")
        assert not leaving.taken


async def test_messages_of_other_tags_are_not_handed_over(cluster: LiveCluster) -> None:
    async with member(cluster, tags="AaAa || paid") as one:
        # "BBBB" has the hash of "AaAa", so that the broker lets it pass.
        for tag in ("BBBB", "unpaid", "AaAa", "paid"):
            await cluster.send("orders", tag.encode(), TAGS=tag)
        await one.has(b"AaAa", b"paid")
        one.done()
        await one.fetching.commit()
        assert sum((await one.fetching.lag()).values()) == 0


@pytest.mark.parametrize(("start", "mode"), [("first", "0"), ("last", "1")])
async def test_the_broker_is_told_where_a_new_group_starts(
    cluster: LiveCluster, start: str, mode: str
) -> None:
    async with member(cluster, start=start) as one:
        await eventually(lambda: one.asked[RequestCode.POP_MESSAGE])
        assert one.asked[RequestCode.POP_MESSAGE][0]["initMode"] == mode


def test_a_group_cannot_start_at_a_time() -> None:
    with pytest.raises(ConfigError, match="'first' or 'last'"):
        PopFetching(Member("127.0.0.1:9", {}, {"start": datetime.now(UTC)}).membership)


async def test_the_broker_says_which_queues_a_member_pops_from(cluster: LiveCluster) -> None:
    async with contextlib.AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(cluster)) for _ in range(4)]
        everything = (Queue("orders", "broker-a", -1),)
        assert [each.fetching.assigned for each in members] == [everything] * 4
        await set_to_pop(cluster, share=1)
        for each in members:
            each.fetching.rebalance()
        one_of_two = {(Queue("orders", "broker-a", number),) for number in (0, 1)}
        await eventually(lambda: {each.fetching.assigned for each in members} == one_of_two)
        for number in range(8):
            await cluster.send("orders", b"%d" % number, number % 2)
        await eventually(lambda: sum(len(each.taken) for each in members) == 8)
        # A request for all queues may have been open when the queues were shared out; not later.
        for each in members:
            each.done()
        for number in range(8):
            await cluster.send("orders", b"%d" % number, number % 2)
        await eventually(lambda: sum(len(each.taken) for each in members) == 8)
        for each in members:
            mine = {queue.queue_id for queue in each.fetching.assigned}
            assert {message.queue.queue_id for _, message in each.taken} <= mine


async def test_ordered_messages_come_in_order_and_again_after_a_failure(
    cluster: LiveCluster,
) -> None:
    for number in range(6):
        await cluster.send("orders", b"%d" % number, 1)
    async with member(cluster, orderly=True) as one:
        await eventually(lambda: len(one.taken) == 6)
        assert one.bodies == [b"%d" % number for number in range(6)]
        taken, one.taken = one.taken, []
        source = taken[0][0]
        source.done([message for _, message in taken[:2]])
        source.failed([taken[2][1]], ValueError("not yet"))
        source.returned([message for _, message in taken[3:]])
        await eventually(lambda: len(one.taken) == 4)
        assert one.bodies == [b"2", b"3", b"4", b"5"]
        assert one.taken[0][1].delivery_attempt == 2
        one.done()
        await cluster.send("orders", b"6", 1)
        await one.has(b"6")


async def test_another_member_gets_nothing_of_an_ordered_queue_in_hand(
    cluster: LiveCluster,
) -> None:
    async with member(cluster, orderly=True) as one:
        await cluster.send("orders", b"0", 1)
        await one.has(b"0")
        async with member(cluster, orderly=True) as two:
            await cluster.send("orders", b"1", 1)
            await cluster.send("orders", b"other queue", 0)
            await eventually(lambda: len(one.taken) + len(two.taken) == 2)
            assert {*one.bodies, *two.bodies} == {b"0", b"other queue"}
            one.done()
            await eventually(lambda: b"1" in one.bodies + two.bodies)


async def test_a_broker_that_comes_back_is_popped_from_again(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster:
        for number in range(2):
            await cluster.create_topic("orders", 1, number)
        async with member(cluster) as one:
            assert [queue.broker for queue in one.fetching.assigned] == ["broker-a", "broker-b"]
            await cluster.send("orders", b"a", 0, broker=0)
            await cluster.send("orders", b"b", 0, broker=1)
            await one.has(b"a", b"b")
            one.done()
            await one.fetching.commit()
            for address in list(one.instance.nodes._peers):
                peer = one.instance.nodes.open_peer(address)
                if peer is not None:
                    peer.connection.abort()
            await cluster.send("orders", b"again", 0, broker=1)
            await one.has(b"again")


# With everything that a push consumer has.


async def test_a_push_consumer_pops_with_all_that_belongs_to_it(cluster: LiveCluster) -> None:
    for number in range(30):
        await cluster.send("orders", b"%d" % number, number % 2)
    found: list[tuple[bytes, int]] = []
    async with AsyncPushConsumer(
        GROUP, nameserver=cluster.addresses, pop=True, start="first", invisible_time=2.0
    ) as consumer:

        @consumer.subscribe("orders")
        async def listen(message: ReceivedMessage) -> None:
            found.append((message.body, message.delivery_attempt))
            if message.body == b"7" and message.delivery_attempt == 1:
                raise RetryLater(delay_level=1)
            if message.body == b"8":
                await asyncio.sleep(3)

        await consumer.start()
        wanted = {(b"%d" % number, 1) for number in range(30)} | {(b"7", 2)}
        await eventually(lambda: {*found} == wanted)
        assert Queue("orders", "broker-a", -1) in consumer.assigned
    assert sorted(found) == sorted(wanted), "a long listener keeps its message"
    assert [lag for lag in (await _lag(cluster)) if lag] == []


async def _lag(cluster: LiveCluster) -> list[int]:
    async with cluster.admin() as admin:
        return [queue.lag for queue in (await admin.groups.progress(GROUP, "orders")).queues]


async def test_what_was_given_back_before_the_group_popped_is_popped(cluster: LiveCluster) -> None:
    retry = f"%RETRY%{GROUP}"
    async with member(cluster):
        await eventually(lambda: cluster.brokers[0].core.topics.get(retry))
    await cluster.send(retry, b"waiting", RETRY_TOPIC="orders")
    found: list[str] = []
    async with AsyncPushConsumer(GROUP, nameserver=cluster.addresses, pop=True) as consumer:
        consumer.subscribe("orders", listener=lambda message: found.append(message.topic))
        await consumer.start()
        await eventually(lambda: found)
        await consumer.commit()
        assert sum((await consumer.lag()).values()) == 0
    assert found == ["orders"]


async def test_a_broker_that_is_too_old_for_pop_is_named(cluster: LiveCluster) -> None:
    async def refuse() -> Command:
        return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="400 not supported")

    old = Member(cluster.addresses, {"orders": topic_filter("orders")}, {})
    old.interfere[RequestCode.QUERY_ASSIGNMENT] = refuse
    try:
        with pytest.raises(RequestRefusedError, match=r"broker-a is too old for pop: .*400"):
            await old.start()
    finally:
        await old.instance.close()
