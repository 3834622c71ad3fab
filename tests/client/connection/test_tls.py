"""Clients that ask for TLS get it, from name servers and brokers, and check what they were told."""

import ssl
from pathlib import Path

import pytest

from onelog.client.consumer.pull.consumer import AsyncPullConsumer
from onelog.client.message import Message
from onelog.client.options import tls_context
from onelog.client.producer.producer import AsyncProducer
from onelog.errors import NameserversUnreachableError
from onelog.net.tls import client_context, write_self_signed
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.watching import bodies


async def send(cluster: LiveCluster, tls: bool | ssl.SSLContext) -> list[bool]:
    """Send something; whether each of the connections that it took was encrypted."""
    async with AsyncProducer("shop", nameserver=cluster.addresses, tls=tls, timeout=30) as producer:
        await producer.send(Message("orders", b"x"))
        nodes = producer.instance.nodes
        route = await producer.instance.routes.get("orders")
        places = (*nodes.nameservers, route.address("broker-a"))
        peers = [nodes.open_peer(place) for place in places]
        return [peer.connection.secure for peer in peers if peer is not None]


@pytest.mark.parametrize("tls", [True, False])
async def test_one_word_encrypts_everything(cluster: LiveCluster, tls: bool) -> None:
    await cluster.create_topic("orders", 1)
    assert await send(cluster, tls) == [tls, tls]
    assert await bodies(cluster, "orders", 1) == [b"x"]


async def test_a_context_that_trusts_the_certificate_is_content(tmp_path: Path) -> None:
    cert_path, key_path = write_self_signed(tmp_path)
    async with live_cluster(
        tmp_path, tls__cert_path=str(cert_path), tls__key_path=str(key_path)
    ) as cluster:
        await cluster.create_topic("orders", 1)
        context = client_context(cert_path)
        context.check_hostname = False  # The certificate is for localhost, not for 127.0.0.1.
        assert await send(cluster, context) == [True, True]


async def test_a_context_that_verifies_refuses_a_self_signed_certificate(
    cluster: LiveCluster,
) -> None:
    await cluster.create_topic("orders", 1)
    with pytest.raises(NameserversUnreachableError, match="certificate verify failed") as failure:
        await send(cluster, ssl.create_default_context())
    assert cluster.addresses in str(failure.value)


async def test_a_cluster_that_demands_tls_and_proves_itself_is_used_as_any_other(
    tmp_path: Path,
) -> None:
    cert_path, key_path = write_self_signed(tmp_path, ("127.0.0.1",))
    async with live_cluster(
        tmp_path,
        tls__mode="enforcing",
        tls__cert_path=str(cert_path),
        tls__key_path=str(key_path),
        tls__ca_path=str(cert_path),
    ) as cluster:
        tls = client_context(cert_path)
        assert await send(cluster, tls) == [True, True]
        async with AsyncPullConsumer(
            "billing", nameserver=cluster.addresses, tls=tls, start="first"
        ) as consumer:
            consumer.subscribe("orders")
            assert [message.body for message in await consumer.poll(20)] == [b"x"]
        with pytest.raises(NameserversUnreachableError):
            await send(cluster, False)


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(TypeError, match="not 'yes'"):
        tls_context("yes")  # type: ignore[arg-type]
