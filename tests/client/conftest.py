"""A small cluster, and an administrator of it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.client.admin.admin import AsyncAdmin
from tests.client.live_cluster import LiveCluster, live_cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        yield running


@pytest.fixture
async def admin(cluster: LiveCluster) -> AsyncIterator[AsyncAdmin]:
    async with cluster.admin() as connected:
        yield connected
