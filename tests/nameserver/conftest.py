"""A name server on a free port with a clock that stands still, on both event loops."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from onelog.clock import ManualClock
from onelog.config import NameserverConfig
from onelog.nameserver.server import NameServer, serve_nameserver
from onelog.net.peer import Peer


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def config(tmp_path: Path) -> NameserverConfig:
    return NameserverConfig(port=0, kv_path=str(tmp_path / "kv" / "kvConfig.json"))


@pytest.fixture
async def server(config: NameserverConfig, clock: ManualClock) -> AsyncIterator[NameServer]:
    server = await serve_nameserver(config, clock=clock)
    yield server
    await server.close()


@pytest.fixture
async def peer(server: NameServer) -> AsyncIterator[Peer]:
    peer = await Peer.connect(*server.address)
    yield peer
    await peer.close()
