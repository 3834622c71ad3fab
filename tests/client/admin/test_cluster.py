"""Clusters and brokers as name servers and brokers tell of them."""

from pathlib import Path

import pytest

from onelog import __version__
from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.cluster import BrokerSet, broker_set, masters_of
from onelog.client.connection.address import Address
from onelog.errors import BrokerNotFoundError, InvalidRequestError
from onelog.wire.remoting.routes import BrokerData
from tests.client.live_cluster import LiveCluster, live_cluster

A1, A2 = Address("10.0.0.1", 1), Address("10.0.0.2", 2)


async def test_brokers_are_listed_by_cluster_and_name(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        brokers = await admin.clusters.brokers()
        assert [(each.cluster, each.name) for each in brokers] == [
            ("DefaultCluster", "broker-a"),
            ("DefaultCluster", "broker-b"),
        ]
        assert [str(each.master) for each in brokers] == [b.address for b in cluster.brokers]
        assert await admin.clusters.brokers("DefaultCluster") == brokers
        assert list(await admin.clusters.masters()) == ["broker-a", "broker-b"]
        assert list(await admin.clusters.masters(broker="broker-b")) == ["broker-b"]


async def test_a_cluster_or_broker_that_nobody_knows(admin: AsyncAdmin) -> None:
    with pytest.raises(BrokerNotFoundError, match=r"'nope'.*DefaultCluster"):
        await admin.clusters.brokers("nope")
    with pytest.raises(BrokerNotFoundError, match="no broker 'nope'"):
        await admin.clusters.masters(broker="nope")


async def test_with_several_clusters_a_change_must_name_one(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as first:
        other = live_cluster(
            tmp_path / "other",
            broker__cluster="Other",
            broker__name="broker-z",
            broker__nameservers=first.addresses,
        )
        async with other, first.admin() as admin:
            assert [each.cluster for each in await admin.clusters.brokers()] == [
                "DefaultCluster",
                "Other",
            ]
            with pytest.raises(InvalidRequestError, match="DefaultCluster, Other"):
                await admin.clusters.masters()
            assert list(await admin.clusters.masters("Other")) == ["broker-z"]


async def test_a_broker_reports_its_own_state(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    for number in range(3):
        await cluster.send("orders", b"%d" % number)
    status = await admin.clusters.status()
    (broker,) = status.brokers
    assert (broker.name, broker.cluster, broker.broker_id) == ("broker-a", "DefaultCluster", 0)
    assert str(broker.address) == cluster.brokers[0].address
    assert broker.version == f"OneLog {__version__}"
    assert broker.put_today == 3
    assert broker.booted_ms <= broker.oldest_message_ms
    assert 0 < broker.disk_used_ratio <= 1
    assert broker.details["msgPutTotalTodayNow"] == "3"
    assert status.failures == ()


async def test_a_broker_tells_how_often_its_event_loop_was_held(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    stalls = cluster.brokers[0].stalls
    stalls.count, stalls.longest_ms = 3, 45
    (broker,) = (await admin.clusters.status()).brokers
    assert broker.stalls >= 3
    assert broker.longest_stall_ms >= 45


async def test_a_broker_that_does_not_answer_is_named_beside_the_others(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        for listener in cluster.brokers[1]._listeners:
            await listener.close()
        status = await admin.clusters.status()
        assert [each.name for each in status.brokers] == ["broker-a"]
        assert [failure.who for failure in status.failures] == [cluster.brokers[1].address]
        assert cluster.brokers[1].address in status.failures[0].reason


def test_questions_go_to_the_master_or_else_to_the_first_slave() -> None:
    both = broker_set(BrokerData(broker_addrs={1: str(A2), 0: str(A1)}, broker_name="b"))
    assert (both.master, both.preferred) == (A1, A1)
    slave = broker_set(BrokerData(broker_addrs={2: str(A1), 1: str(A2)}, broker_name="b"))
    assert (slave.master, slave.preferred) == (None, A2)


def test_a_change_needs_every_master() -> None:
    whole = BrokerSet("a", "c", ((0, A1),))
    assert masters_of((whole,)) == {"a": A1}
    with pytest.raises(BrokerNotFoundError, match="b has no master now"):
        masters_of((whole, BrokerSet("b", "c", ((1, A2),))))
    with pytest.raises(BrokerNotFoundError, match="there are no brokers"):
        masters_of(())
