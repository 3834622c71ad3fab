"""A live cluster, and `onelog` commands that are told where it is."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.client.live_cluster import LiveCluster, live_cluster
from tests.commands.running import Ended, run_beside

Run = Callable[..., Awaitable[Ended]]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same output everywhere: no colours, wide enough."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        yield running


@pytest.fixture
def onelog(cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command against the cluster."""
    monkeypatch.setenv("ONELOG_NAMESERVER", cluster.addresses)
    return run_beside
