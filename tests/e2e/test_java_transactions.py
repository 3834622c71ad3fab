"""Transactions and request-reply with the official Java clients, on OneLog and on RocketMQ.

A server of this module's own: after any transaction a thread of RocketMQ 5.5.0 keeps one core busy
(apache/rocketmq issue 10966), which would slow down whoever uses it next.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Server
from tests.e2e.java_clients import Facts, Scenario, run_scenario
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.rocketmq_peer import RocketmqPeer

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(500)]

SERVERS: dict[str, type[OnelogPeer] | type[RocketmqPeer]] = {
    "onelog": OnelogPeer,
    "rocketmq": RocketmqPeer,
}
STORES = {"onelog": "data/store", "rocketmq": "store"}
"""Where in its folder each of them has its store."""


@pytest.fixture(scope="module", params=list(SERVERS))
def transaction_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


def run(
    server: Server, client: str, topic: str, home: Path, name: str, timeout_s: float, **given: int
) -> Facts:
    return run_scenario(home, client, name, server.nameservers, timeout_s, topic=topic, **given)[-1]


def test_every_course_of_a_transaction_ends_as_its_producer_says(
    transaction_server: Server, client: str, topic: str, tmp_path: Path
) -> None:
    done = run(transaction_server, client, topic, tmp_path, "transactions", 300, messages=50)
    assert done["accepted"] == 50
    assert done["in_time"]
    assert done["received"] == {
        "COMMIT": 10,
        "ROLL_BACK": 0,
        "ASKED_THEN_COMMIT": 10,
        "ASKED_THEN_ROLL_BACK": 0,
        "ASKED_TWICE_THEN_COMMIT": 10,
    }
    assert done["duplicates"] == 0
    assert done["asked"] == {
        "COMMIT": 0,
        "ROLL_BACK": 0,
        "ASKED_THEN_COMMIT": 10,
        "ASKED_THEN_ROLL_BACK": 10,
        "ASKED_TWICE_THEN_COMMIT": 20,
    }
    assert done["wrong_counts"] == 0


def test_a_producer_that_is_killed_before_the_commit_has_its_transactions_ended_by_another(
    transaction_server: Server, client: str, topic: str, tmp_path: Path
) -> None:
    nameservers = transaction_server.nameservers
    with Scenario(
        tmp_path, client, "transactions-victim", nameservers, topic=topic, messages=20
    ) as victim:
        assert victim.wait_for("halves")["stored"] == 20
    done = run(transaction_server, client, topic, tmp_path, "transactions-heir", 200, messages=20)
    assert done["asked"] == 20
    assert done["received"] == 10
    assert done["duplicates"] == 0
    assert done["rolled_back_but_received"] == 0


@pytest.mark.parametrize(("first", "second"), [("rocketmq", "onelog"), ("onelog", "rocketmq")])
def test_open_transactions_go_on_under_the_other_broker(
    first: str, second: str, topic: str, tmp_path: Path
) -> None:
    with SERVERS[first](tmp_path / "first") as killed:
        with Scenario(
            tmp_path, "5.5.0", "transactions-victim", killed.nameservers, topic=topic, messages=20
        ) as victim:
            victim.wait_for("halves")
        # While the broker runs: what the other one finds is what a kill would leave.
        place = tmp_path / "second" / STORES[second]
        place.parent.mkdir(parents=True)
        source = tmp_path / "first" / STORES[first]
        subprocess.run(["cp", "-r", "--sparse=always", source, place], check=True)
    with SERVERS[second](tmp_path / "second") as server:
        done = run(server, "5.5.0", topic, tmp_path, "transactions-heir", 200, messages=20)
    assert done["asked"] == 20
    assert done["received"] == 10
    assert done["duplicates"] == 0
    assert done["rolled_back_but_received"] == 0


def test_each_of_four_threads_gets_the_replies_to_its_own_requests(
    transaction_server: Server, client: str, topic: str, tmp_path: Path
) -> None:
    done = run(transaction_server, client, topic, tmp_path, "replies", 200, threads=4, requests=100)
    assert done["asked"] == 400
    assert done["wrong"] == 0
    assert done["failed"] == 0
    assert done["refused_replies"] == 0
    assert done["timed_out"]
