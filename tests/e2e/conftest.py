"""Servers and clients of the end-to-end tests: every test sees each server with each client."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.java_clients import CLIENT_VERSIONS, Facts, run_scenario
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.rocketmq_peer import RocketmqPeer

Server = OnelogPeer | RocketmqPeer
RunScenario = Callable[..., list[Facts]]

_SERVERS: dict[str, type[OnelogPeer] | type[RocketmqPeer]] = {
    "onelog": OnelogPeer,
    "rocketmq": RocketmqPeer,
}


@pytest.fixture(scope="session", params=list(_SERVERS))
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One server of each kind for the whole run; a test uses topics of its own."""
    with _SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as running:
        if isinstance(running, RocketmqPeer):
            # From its first transaction on it spins on a whole core (its issue 10966), until the
            # run ends: let the others go first.
            for pid in running.broker_pids:
                os.setpriority(os.PRIO_PGRP, pid, 19)
        yield running


@pytest.fixture(params=list(_SERVERS))
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server for one test alone, which may restart it."""
    with _SERVERS[request.param](tmp_path / "server") as running:
        yield running


@pytest.fixture(params=CLIENT_VERSIONS)
def client(request: pytest.FixtureRequest) -> str:
    """The version of the official Java client."""
    return str(request.param)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses."""
    name = request.node.name
    return "".join(letter if letter.isalnum() else "-" for letter in name)[:100]


@pytest.fixture
def scenario(server: Server, client: str, topic: str, tmp_path: Path) -> RunScenario:
    """Runs a named scenario of the Java program against the server, on the test's own topic."""

    def run(name: str, timeout_s: float = 100, **arguments: object) -> list[Facts]:
        return run_scenario(
            tmp_path, client, name, server.nameservers, timeout_s, topic=topic, **arguments
        )

    return run
