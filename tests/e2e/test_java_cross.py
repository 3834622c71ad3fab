"""One half of OneLog with the other half of the real RocketMQ: each cannot tell who it talks to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Server
from tests.e2e.java_clients import Facts, mqadmin, run_scenario
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import wait_until
from tests.e2e.remoting_probe import has_route, is_answering
from tests.e2e.rocketmq_peer import RocketmqPeer

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]


def smoke(broker: Server, home: Path, version: str, topic: str) -> Facts:
    return run_scenario(home, version, "smoke", broker.nameservers, topic=topic)[-1]


@pytest.fixture
def java_nameserver(tmp_path: Path) -> Iterator[RocketmqPeer]:
    peer = RocketmqPeer(tmp_path / "nameserver")
    try:
        peer.start_nameserver()
        yield peer
    finally:
        peer.close()


@pytest.fixture
def onelog_nameserver(tmp_path: Path) -> Iterator[OnelogPeer]:
    peer = OnelogPeer(tmp_path / "nameserver")
    try:
        peer.start_nameserver()
        yield peer
    finally:
        peer.close()


def test_a_onelog_broker_serves_java_clients_through_a_java_name_server(
    java_nameserver: RocketmqPeer, client: str, tmp_path: Path
) -> None:
    wait_until(lambda: is_answering(java_nameserver.nameservers), "the Java name server")
    nameservers = java_nameserver.nameservers
    with OnelogPeer(tmp_path / "broker", nameservers=nameservers) as broker:
        assert smoke(broker, tmp_path, client, "Crossed")["stored"] == 50
        listed = mqadmin(tmp_path, nameservers, "clusterList")
        assert broker.broker_address in listed, listed
    # A clean stop unregisters: nobody waits for a time-out.
    wait_until(lambda: not has_route(nameservers), "the end of the route", 10)


def test_a_java_broker_serves_java_clients_through_a_onelog_name_server(
    onelog_nameserver: OnelogPeer, client: str, tmp_path: Path
) -> None:
    wait_until(lambda: is_answering(onelog_nameserver.nameservers), "OneLog's name server")
    nameservers = onelog_nameserver.nameservers
    with RocketmqPeer(tmp_path / "broker", nameservers=nameservers) as broker:
        assert smoke(broker, tmp_path, client, "Crossed")["stored"] == 50
        listed = mqadmin(tmp_path, nameservers, "clusterList")
        assert broker.broker_address in listed, listed
        assert "V5_5_0" in listed


def test_both_kinds_of_broker_form_one_cluster(
    java_nameserver: RocketmqPeer, tmp_path: Path
) -> None:
    wait_until(lambda: is_answering(java_nameserver.nameservers), "the Java name server")
    nameservers = java_nameserver.nameservers
    with (
        OnelogPeer(tmp_path / "ours", nameservers=nameservers, broker_name="ours") as ours,
        RocketmqPeer(tmp_path / "theirs", nameservers=nameservers) as theirs,
    ):
        wait_until(
            lambda: all(
                peer.broker_address in mqadmin(tmp_path, nameservers, "clusterList")
                for peer in (ours, theirs)
            ),
            "both brokers in the cluster",
        )
        arguments = ["-c", ours.cluster, "-t", "Both", "-r", "2", "-w", "2"]
        created = mqadmin(tmp_path, nameservers, "updateTopic", *arguments)
        assert ours.broker_address in created, created
        assert theirs.broker_address in created, created
        done = run_scenario(tmp_path, "5.5.0", "spread", nameservers, topic="Both")[-1]
    assert done["sent"] == {"ours": 50, "broker-a": 50}
    assert done["received"] == 100
