"""An administrator of a live cluster: parts that share connections, and how they end."""

from pathlib import Path

import pytest

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.topics import TopicChange
from onelog.errors import InvalidAddressError, NameserversUnreachableError, PeerClosedError
from tests.client.live_cluster import LiveCluster, live_cluster


async def test_all_parts_share_one_connection_to_each_node(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await admin.topics.create("orders", TopicChange())
    await admin.topics.describe("orders")
    await admin.groups.summaries(with_system=True)
    await admin.clusters.status()
    broker = cluster.brokers[0]
    (listener,) = broker._listeners
    assert len(listener.connections) == 1


async def test_a_text_that_names_no_server_is_refused() -> None:
    with pytest.raises(InvalidAddressError):
        AsyncAdmin.connect("localhost")


async def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=0) as cluster:
        addresses = cluster.addresses
    async with AsyncAdmin.connect(addresses) as admin:
        with pytest.raises(NameserversUnreachableError, match=addresses):
            await admin.clusters.brokers()


async def test_closing_ends_every_connection(cluster: LiveCluster) -> None:
    admin = cluster.admin()
    await admin.clusters.status()
    peers = list(admin.nodes._peers.values())
    await admin.close()
    assert len(peers) == 2
    assert not any(peer.is_open for peer in peers)


async def test_everything_goes_over_tls_where_that_is_required(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, tls__mode="enforcing") as cluster:
        async with AsyncAdmin.connect(cluster.addresses, tls=True) as admin:
            assert await admin.topics.create("orders", TopicChange()) == ("broker-a",)
        async with AsyncAdmin.connect(cluster.addresses, timeout_ms=500) as admin:
            with pytest.raises((NameserversUnreachableError, PeerClosedError)):
                await admin.topics.names()
