"""The synchronous administrator, called from threads beside the loop of the brokers."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.client.admin.admin import Admin
from onelog.client.admin.topics import TopicChange
from onelog.client.connection import background
from onelog.client.credentials import Credentials
from onelog.errors import (
    ClientClosedError,
    NameserversUnreachableError,
    TopicNotFoundError,
    WrongLoopError,
)
from onelog.gateways.remoting.session import BrokerSession
from onelog.wire.remoting.command import Command
from tests.client.forking import in_a_child
from tests.client.live_cluster import LiveCluster, live_cluster

PARTS = (
    "clusters",
    "topics",
    "groups",
    "positions",
    "messages",
    "dead_letters",
    "traces",
    "delays",
    "bindings",
    "users",
    "operations",
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        yield running


@pytest.mark.parametrize("name", PARTS)
def test_every_method_for_asyncio_is_there_for_threads(name: str) -> None:
    with Admin.connect("127.0.0.1:1") as admin:
        part, core = getattr(admin, name), getattr(admin._core, name)
        for method, function in inspect.getmembers(type(core), inspect.isfunction):
            if not method.startswith("_"):
                found = getattr(type(part), method)
                assert not inspect.iscoroutinefunction(found), method
                assert inspect.signature(found) == inspect.signature(function)
                assert found.__doc__ == function.__doc__


def test_it_has_all_the_parts() -> None:
    with Admin.connect("127.0.0.1:1") as admin:
        public = {each for each in vars(admin._core) if not each.startswith("_")} - {"nodes"}
        assert public == set(PARTS) == {each for each in vars(admin) if not each.startswith("_")}


async def test_it_asks_and_changes_as_the_other_does(cluster: LiveCluster) -> None:
    def work() -> None:
        with Admin.connect(cluster.addresses) as admin:
            assert admin.topics.create("orders", TopicChange(read_queues=3)) == ("broker-a",)
            assert "orders" in [each.name for each in admin.topics.names()]
            assert len(admin.topics.status("orders").queues) >= 3
            with pytest.raises(TopicNotFoundError):
                admin.topics.describe("none")

    await asyncio.to_thread(work)


async def test_messages_come_one_after_the_other_and_may_be_left(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    for number in range(5):
        await cluster.send("orders", b"%d" % number)

    def work() -> None:
        with Admin.connect(cluster.addresses) as admin:
            bodies = [bytes(found.message.body) for found in admin.messages.by_time("orders", 0)]
            assert bodies == [b"0", b"1", b"2", b"3", b"4"]
            following = admin.messages.follow("orders", 0)
            assert bytes(next(following).message.body) == b"0"
            following.close()  # type: ignore[attr-defined]
            assert len(admin.topics.status("orders").queues) == 1

    await asyncio.to_thread(work)


async def test_its_requests_are_signed_and_encrypted(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, Command]] = []
    handle = BrokerSession.handle

    def spy(session: BrokerSession, command: Command) -> None:
        seen.append((session.connection.secure, command))
        handle(session, command)

    monkeypatch.setattr(BrokerSession, "handle", spy)
    credentials = Credentials("ops", "secret", "token")

    def work() -> None:
        with Admin.connect(cluster.addresses, tls=True, credentials=credentials) as admin:
            admin.topics.create("orders", TopicChange())

    await asyncio.to_thread(work)
    assert seen
    for secure, command in seen:
        assert secure
        assert command.ext == credentials.sign(command.ext, command.body)


async def test_the_environment_says_where_the_cluster_is(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONELOG_NAMESERVER", cluster.addresses)

    def work() -> int:
        with Admin.connect() as admin:
            return len(admin.clusters.brokers())

    assert await asyncio.to_thread(work) == 1


async def test_after_its_end_it_does_nothing_and_says_so(cluster: LiveCluster) -> None:
    def work() -> None:
        admin = Admin.connect(cluster.addresses)
        admin.clusters.brokers()
        admin.close()
        admin.close()
        with pytest.raises(ClientClosedError, match="make a new one"):
            admin.clusters.brokers()

    await asyncio.to_thread(work)


def test_on_the_loop_that_runs_it_it_would_wait_for_itself() -> None:
    async def ask() -> None:
        with Admin.connect("127.0.0.1:1") as admin:
            admin.clusters.brokers()

    with pytest.raises(WrongLoopError):
        background.run(ask())


def test_one_of_the_parent_is_refused_after_a_fork() -> None:
    with Admin.connect("127.0.0.1:1", timeout_ms=200) as admin:
        with pytest.raises(NameserversUnreachableError):
            admin.clusters.brokers()
        assert in_a_child(lambda: str(admin.clusters.brokers())).startswith("ForkedError")
