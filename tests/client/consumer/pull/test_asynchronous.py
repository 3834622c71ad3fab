"""Pull consumers on live brokers."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from onelog.client.consumer.pull.consumer import AsyncPullConsumer
from onelog.client.hooks import ConsumeContext
from onelog.client.message import Queue
from onelog.core.access import SELF
from onelog.errors import (
    ClientClosedError,
    ConfigError,
    FilterSyntaxError,
    OnelogError,
    PeerTimeoutError,
    QueueNotAssignedError,
    TopicNotFoundError,
)
from onelog.message import NewMessage
from onelog.record.forms import rocketmq
from onelog.record.forms.kafka import Codec
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.pull_reader import FIRST, GROUP, SECOND, bodies, consumer, polled, send
from tests.record.forms.samples import kafka_batch, neutrals
from tests.waiting import eventually


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        await running.create_topic("orders", queues=2)
        yield running


# Subscribing.


async def test_the_messages_of_a_topic_come_in_the_order_of_their_queues(
    cluster: LiveCluster,
) -> None:
    first = await send(cluster, 40)
    second = await send(cluster, 40, queue=1, begin=100)
    async with consumer(cluster) as reading:
        reading.subscribe("orders")
        messages = await polled(reading, 80)
        assert [each.body for each in messages if each.queue == FIRST] == first
        assert [each.body for each in messages if each.queue == SECOND] == second
        assert reading.assigned == (FIRST, SECOND)
        assert await reading.lag() == {FIRST: 0, SECOND: 0}


async def test_messages_without_a_body_are_messages(cluster: LiveCluster) -> None:
    broker = cluster.brokers[0].broker
    for body in (b"", b"x", b""):
        broker.publish.send(SELF, NewMessage("orders", 0, body), lambda token, where, error: None)
    async with consumer(cluster) as reading:
        reading.subscribe("orders")
        assert bodies(await polled(reading, 3)) == [b"", b"x", b""]


async def test_a_poll_waits_until_a_message_arrives(cluster: LiveCluster) -> None:
    async with consumer(cluster) as reading:
        reading.subscribe("orders")
        waiting = asyncio.ensure_future(reading.poll(20))
        await eventually(lambda: bool(cluster.brokers[0].core.waiting.keys), "a held pull")
        assert not waiting.done()
        await cluster.send("orders", b"late")
        assert bodies(await waiting) == [b"late"]


async def test_a_poll_that_finds_nothing_gives_nothing_when_its_time_is_up(
    cluster: LiveCluster,
) -> None:
    async with consumer(cluster) as reading:
        reading.subscribe("orders")
        assert await reading.poll(0) == []
        assert await reading.poll(timedelta(milliseconds=50)) == []


async def test_a_poll_gives_no_more_than_it_is_asked_for(cluster: LiveCluster) -> None:
    sent = await send(cluster, 10)
    async with consumer(cluster, batch_size=4) as reading:
        reading.assign([FIRST])
        assert len(await reading.poll(20)) == 4
        assert bodies(await reading.poll(20, count=1)) == sent[4:5]
        assert await reading.position(FIRST) == 5
        with pytest.raises(ConfigError, match="1 message or more"):
            await reading.poll(count=0)


async def test_messages_can_be_iterated_over(cluster: LiveCluster) -> None:
    sent = await send(cluster, 5)
    async with consumer(cluster) as reading:
        reading.subscribe("orders")
        found = []
        async for message in reading:
            found.append(message.body)
            if len(found) == 5:
                break
        assert found == sent


async def test_members_share_the_queues_and_take_over_from_those_that_leave(
    cluster: LiveCluster,
) -> None:
    async with consumer(cluster) as staying:
        staying.subscribe("orders")
        await eventually(lambda: len(staying.assigned) == 2, "all queues for the only member")
        async with consumer(cluster) as leaving:
            leaving.subscribe("orders")
            await eventually(
                lambda: len(staying.assigned) == len(leaving.assigned) == 1, "a queue for each"
            )
            assert {*staying.assigned, *leaving.assigned} == {FIRST, SECOND}
            for queue in (0, 1):
                await send(cluster, 3, queue, begin=10 * queue)
            mine, yours = await polled(staying, 3), await polled(leaving, 3)
            assert not {*bodies(mine)} & {*bodies(yours)}
        await eventually(lambda: len(staying.assigned) == 2, "the queue of the one that left")
        for queue in (0, 1):
            await send(cluster, 1, queue, begin=100 + queue)
        assert sorted(bodies(await polled(staying, 2))) == [b"100", b"101"]


async def test_only_wanted_tags_are_given_and_the_others_are_passed(cluster: LiveCluster) -> None:
    # "BBBB" has the hash of "AaAa", so that the broker lets it pass.
    for tag in ("AaAa", "BBBB", "unpaid", "paid", "BBBB"):
        await cluster.send("orders", tag.encode(), TAGS=tag)
    async with consumer(cluster) as reading:
        reading.subscribe("orders", "AaAa || paid")
        assert bodies(await polled(reading, 2)) == [b"AaAa", b"paid"]
        await eventually(lambda: _is_at(reading, 5), "the end of the queue")
        await reading.commit()
        assert await reading.committed(FIRST) == 5


async def _is_at(reading: AsyncPullConsumer, offset: int) -> bool:
    return await reading.position(FIRST) == offset


async def test_a_condition_that_no_broker_understands_is_an_error_of_the_poll(
    tmp_path: Path,
) -> None:
    async with live_cluster(tmp_path, broker__property_filter=True) as cluster:
        await cluster.create_topic("orders", queues=1)
        await cluster.send("orders", b"cheap", price="3")
        await cluster.send("orders", b"dear", price="30")
        async with consumer(cluster) as reading:
            reading.subscribe("orders", sql="price > 10")
            assert bodies(await polled(reading, 1)) == [b"dear"]
        async with consumer(cluster, "others") as reading:
            reading.subscribe("orders", sql="price >")
            with pytest.raises(FilterSyntaxError, match="the filter on orders"):
                await reading.poll(20)


async def test_a_topic_that_comes_into_being_later_is_consumed_then(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with consumer(cluster) as reading:
        reading.subscribe("parcels")
        await eventually(lambda: "consumed once it exists" in caplog.text, "a warning")
        await cluster.create_topic("parcels", queues=1)
        await cluster.send("parcels", b"first")
        assert bodies(await polled(reading, 1)) == [b"first"]


async def test_a_topic_that_is_given_up_is_left_to_others(cluster: LiveCluster) -> None:
    async with consumer(cluster) as reading:
        reading.subscribe("orders")
        await eventually(lambda: len(reading.assigned) == 2, "queues")
        reading.unsubscribe("orders")
        await eventually(lambda: not reading.assigned, "no queues")


# Assigning.


async def test_an_assigned_queue_is_read_without_joining_the_group(cluster: LiveCluster) -> None:
    await send(cluster, 2)
    other = await send(cluster, 2, queue=1, begin=10)
    async with consumer(cluster) as member, consumer(cluster) as alone:
        member.subscribe("orders")
        await eventually(lambda: len(member.assigned) == 2, "both queues for the only member")
        assert await alone.queues("orders") == (FIRST, SECOND)
        alone.assign([SECOND])
        assert bodies(await polled(alone, 2)) == other
        assert len(member.assigned) == 2


async def test_queues_that_stay_assigned_go_on_where_they_were(cluster: LiveCluster) -> None:
    sent = await send(cluster, 4)
    async with consumer(cluster) as reading:
        reading.assign([FIRST])
        assert bodies(await reading.poll(20, count=2)) == sent[:2]
        reading.assign([FIRST, SECOND])
        assert bodies(await polled(reading, 2)) == sent[2:]
        reading.assign([SECOND])
        assert reading.assigned == (SECOND,)
        with pytest.raises(QueueNotAssignedError, match="queue 0 of orders on broker-a"):
            await reading.position(FIRST)


async def test_a_consumer_has_subscriptions_or_an_assignment(cluster: LiveCluster) -> None:
    async with consumer(cluster) as reading:
        with pytest.raises(ConfigError, match="subscribe to a topic, or assign"):
            await reading.poll()
        reading.assign([FIRST])
        with pytest.raises(ConfigError, match="but not both"):
            reading.subscribe("orders")
    async with consumer(cluster) as reading:
        reading.subscribe("orders")
        with pytest.raises(ConfigError, match="but not both"):
            reading.assign([FIRST])


async def test_a_queue_of_a_topic_that_is_missing_is_an_error_of_the_poll(
    cluster: LiveCluster,
) -> None:
    async with consumer(cluster) as reading:
        with pytest.raises(TopicNotFoundError, match="parcels"):
            await reading.queues("parcels")
        reading.assign([Queue("parcels", "broker-a", 0)])
        with pytest.raises(TopicNotFoundError, match="parcels"):
            await reading.poll(20)


# Pausing.


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(cluster: LiveCluster) -> None:
    sent = await send(cluster, 4)
    other = await send(cluster, 2, queue=1, begin=10)
    async with consumer(cluster) as reading:
        reading.assign([FIRST, SECOND])
        reading.pause(FIRST)
        assert list(reading.paused) == [FIRST]
        assert bodies(await polled(reading, 2)) == other
        assert await reading.poll(0.1) == []
        reading.resume()
        assert not reading.paused
        assert bodies(await polled(reading, 4)) == sent
        with pytest.raises(QueueNotAssignedError):
            reading.pause(Queue("orders", "broker-a", 7))


async def test_no_more_is_fetched_than_may_wait(cluster: LiveCluster) -> None:
    sent = await send(cluster, 30)
    async with consumer(cluster, prefetch_count=10) as reading:
        reading.assign([FIRST])
        await reading.position(FIRST)
        (waiting,) = reading._queues.queue_table().values()
        await asyncio.sleep(0.1)
        (waiting,) = reading._queues.queue_table().values()
        assert waiting.cached_msg_count <= 10
        assert bodies(await polled(reading, 30)) == sent


# Trouble.


async def test_connections_that_break_are_made_anew(cluster: LiveCluster) -> None:
    sent = await send(cluster, 2)
    async with consumer(cluster) as reading:
        reading.subscribe("orders")
        assert bodies(await polled(reading, 2)) == sent
        for address in (*reading.instance.nodes.nameservers, *reading.instance.versions):
            peer = reading.instance.nodes.open_peer(address)
            if peer is not None:
                peer.connection.abort()
        await cluster.send("orders", b"again")
        assert bodies(await polled(reading, 1)) == [b"again"]


async def test_a_broker_that_is_gone_is_nothing_to_a_poll_but_to_a_question(
    tmp_path: Path,
) -> None:
    async with live_cluster(tmp_path / "one", nameservers=1) as cluster:
        await cluster.create_topic("orders", queues=1)
        await send(cluster, 1)
        reading = consumer(cluster, timeout=0.3)
        await reading.start()
        reading.assign([FIRST])
        await polled(reading, 1)
    try:
        assert await reading.poll(0.1) == []
        with pytest.raises(OnelogError, match=r"127[.]0[.]0[.]1"):
            await reading.end_offsets()
        reading.assign([FIRST, SECOND])
        with pytest.raises(PeerTimeoutError, match="broker-a has not said so"):
            await reading.position(SECOND)
    finally:
        await reading.close()


async def test_a_consumer_that_is_not_open_says_so(cluster: LiveCluster) -> None:
    reading = consumer(cluster)
    reading.subscribe("orders")
    with pytest.raises(ClientClosedError):
        await reading.poll()
    async with reading:
        await eventually(lambda: len(reading.assigned) == 2, "queues of a subscription made before")
    with pytest.raises(ClientClosedError):
        await reading.poll()
    with pytest.raises(ClientClosedError):
        reading.subscribe("orders")
    await reading.close()


def test_options_that_do_not_exist_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="AsyncPullConsumer\\(\\) has no option 'autocommit'; did"):
        AsyncPullConsumer("g", autocommit=True)  # type: ignore[call-arg]


# Others.


async def test_an_administrator_sees_the_consumer_and_moves_it(cluster: LiveCluster) -> None:
    sent = await send(cluster, 4)
    async with consumer(cluster) as reading, cluster.admin() as admin:
        reading.subscribe("orders")
        await polled(reading, 4)
        await reading.commit()
        (member,) = (await admin.groups.members(GROUP)).members
        assert member.client_id == reading.client_id
        description = await admin.groups.describe(GROUP)
        assert description.settings is not None
        await admin.positions.reset(GROUP, "orders", 0)
        await cluster.send("orders", b"new")
        assert bodies(await polled(reading, 5)) == [*sent, b"new"]


async def test_a_broadcast_is_read_by_each_and_kept_in_a_file(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    sent = await send(cluster, 4)
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in paths:
        async with consumer(cluster, model="broadcasting", offsets_path=path) as reading:
            reading.subscribe("orders")
            assert bodies(await polled(reading, 4)) == sent
    async with consumer(cluster, model="broadcasting", offsets_path=paths[0]) as reading:
        reading.subscribe("orders")
        await cluster.send("orders", b"new")
        assert bodies(await polled(reading, 1)) == [b"new"]


async def test_hooks_hear_of_what_a_poll_gives(cluster: LiveCluster) -> None:
    class Ears:
        def __init__(self) -> None:
            self.heard: list[tuple[str, Queue, int]] = []

        def before_consume(self, context: ConsumeContext) -> None:
            self.heard.append(("before", context.queue, len(context.messages)))

        def after_consume(self, context: ConsumeContext) -> None:
            self.heard.append(("after", context.queue, len(context.messages)))

    await send(cluster, 2)
    ears = Ears()
    async with consumer(cluster, hooks=[ears]) as reading:
        reading.assign([FIRST])
        await reading.poll(20, count=2)
    assert ears.heard == [("before", FIRST, 2), ("after", FIRST, 2)]


async def test_a_namespace_keeps_topics_and_groups_apart(cluster: LiveCluster) -> None:
    await cluster.create_topic("shop%orders", queues=1)
    await cluster.send("shop%orders", b"in the shop")
    await cluster.send("orders", b"outside")
    async with consumer(cluster, namespace="shop") as reading:
        reading.subscribe("orders")
        assert bodies(await polled(reading, 1)) == [b"in the shop"]
        assert reading.group == "shop%readers"
        (queue,) = await reading.queues("orders")
        await reading.commit({queue._replace(topic="orders"): 1})
        assert await reading.committed(queue) == 1


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
async def test_a_kafka_batch_of_a_thousand_messages_is_read_as_any_others(
    cluster: LiveCluster, codec: Codec
) -> None:
    sent = neutrals(1_000)
    cluster.brokers[0].core.marked.mark("orders")
    cluster.brokers[0].core.store.append([kafka_batch(sent, codec=codec)])
    async with consumer(cluster) as reading:
        reading.subscribe("orders")
        messages = await polled(reading, 1_000)
    assert [each.offset for each in messages] == list(range(1_000))
    assert len({each.message_id for each in messages}) == 1_000
    for received, message in zip(messages, sent, strict=True):
        assert received.body == (message.body or b"")
        assert received.tags == (message.headers[0][1] or b"").decode()
        assert received.keys == ([] if message.key is None else [message.key.decode()])
        raw = received.raw
        found = rocketmq.to_neutral(received.body, raw.properties, raw.born_ms)
        assert [header for header in found.headers if header[0] != "UNIQ_KEY"] == [*message.headers]
        assert found._replace(headers=()) == message._replace(headers=())
