"""Which queues are a member's, and where it begins in them."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from onelog.client.connection.instance import Instance
from onelog.client.consumer.allocation import circle
from onelog.client.consumer.consume_rates import ConsumeRates
from onelog.client.consumer.fetching import Membership, first_offset, share_of
from onelog.client.consumer.offsets import BrokerOffsets
from onelog.client.consumer.settings import ConsumerSettings
from onelog.client.consumer.topic_filters import topic_filter
from onelog.client.message import Queue
from onelog.errors import RequestRefusedError, TopicNotFoundError
from onelog.wire.remoting.clients import ConsumerData
from tests.client.live_cluster import LiveCluster, live_cluster

QUEUE = Queue("orders", "broker-a", 0)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path, brokers=2) as running:
        await running.create_topic("orders", 2, broker=0)
        await running.create_topic("orders", 3, broker=1)
        yield running


@pytest.fixture
async def instance(cluster: LiveCluster) -> AsyncIterator[Instance]:
    made = Instance({"nameserver": cluster.addresses})
    await made.start()
    yield made
    await made.close()


def member(instance: Instance, *, known: bool = True, **settings: Any) -> Membership:
    filters = {"orders": topic_filter("orders")}
    if known:
        instance.consumers["billing"] = lambda: ConsumerData(
            group_name="billing",
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            subscription_data_set=[each.data() for each in filters.values()],
        )
    return Membership(
        "billing", instance, ConsumerSettings(**settings), filters, lambda *_: None, ConsumeRates()
    )


async def test_a_lonely_member_has_all_queues_of_all_brokers(instance: Instance) -> None:
    share = await share_of(member(instance), "orders")
    assert share == [
        Queue("orders", "broker-a", 0),
        Queue("orders", "broker-a", 1),
        Queue("orders", "broker-b", 0),
        Queue("orders", "broker-b", 1),
        Queue("orders", "broker-b", 2),
    ]


async def test_shares_fit_together(cluster: LiveCluster, instance: Instance) -> None:
    other = Instance({"nameserver": cluster.addresses})
    await other.start()
    members = [member(each, allocation=circle) for each in (instance, other)]
    for each in members:
        await share_of(each, "orders")  # Each introduces itself.
    shares = [await share_of(each, "orders") for each in members]
    assert sorted(map(len, shares)) == [2, 3]
    assert not set(shares[0]) & set(shares[1])
    await other.close()


async def test_a_broadcast_is_not_shared(instance: Instance) -> None:
    assert len(await share_of(member(instance, known=False, broadcasting=True), "orders")) == 5


async def test_a_member_that_nobody_knows_shares_nothing_out(instance: Instance) -> None:
    with pytest.raises(RequestRefusedError, match="not known to have this member"):
        await share_of(member(instance, known=False), "orders")


async def test_a_topic_that_does_not_exist_cannot_be_shared(instance: Instance) -> None:
    with pytest.raises(TopicNotFoundError, match="'gone'"):
        await share_of(member(instance), "gone")


async def test_the_members_are_asked_of_whoever_answers(
    cluster: LiveCluster, instance: Instance
) -> None:
    me = member(instance)
    await share_of(me, "orders")
    await cluster.brokers[0].listeners[0].close()
    share = await share_of(me, "orders")
    assert len(share) == 5


@pytest.mark.parametrize(
    ("start", "begin"),
    [
        ("first", 0),
        ("last", 3),
        (datetime(2000, 1, 1, tzinfo=UTC), 0),
        (datetime(2200, 1, 1, tzinfo=UTC), 3),
    ],
)
async def test_a_group_without_a_position_begins_where_it_wants(
    cluster: LiveCluster, instance: Instance, start: Any, begin: int
) -> None:
    cluster.brokers[0].core.offsets._near_bytes = 0  # Nothing counts as young.
    for _ in range(3):
        await cluster.send("orders", b"x")
    me = member(instance, start=start)
    assert await first_offset(me, BrokerOffsets(instance, "billing"), QUEUE) == begin


async def test_a_group_with_a_position_goes_on_there(
    cluster: LiveCluster, instance: Instance
) -> None:
    cluster.brokers[0].core.groups.require("billing")
    cluster.brokers[0].core.offsets.commit("billing", "orders", 0, 2)
    me = member(instance, start="last")
    assert await first_offset(me, BrokerOffsets(instance, "billing"), QUEUE) == 2


async def test_a_young_queue_is_read_from_its_beginning_whatever_is_wanted(
    cluster: LiveCluster, instance: Instance
) -> None:
    await cluster.send("orders", b"x")
    me = member(instance, start="last")
    assert await first_offset(me, BrokerOffsets(instance, "billing"), QUEUE) == 0


async def test_what_was_given_back_is_never_skipped(
    cluster: LiveCluster, instance: Instance
) -> None:
    cluster.brokers[0].core.groups.require("billing")
    cluster.brokers[0].core.offsets._near_bytes = 0
    await cluster.send("%RETRY%billing", b"x", RETRY_TOPIC="orders")
    me = member(instance, start="last")
    retries = Queue("%RETRY%billing", "broker-a", 0)
    assert await first_offset(me, BrokerOffsets(instance, "billing"), retries) == 0
