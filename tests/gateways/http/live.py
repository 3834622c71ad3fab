"""A real broker with its HTTP port, and a client for it."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from onelog.config import Value
from onelog.server import BrokerServer
from tests.gateways.remoting.live import broker

SECONDS = 30.0
"""The longest that a client waits for anything, on a machine that is busy."""


def url(server: BrokerServer) -> str:
    """Where it is."""
    return f"http://127.0.0.1:{server.config.http.port}"


@contextlib.asynccontextmanager
async def http(
    folder: Path, **settings: Value
) -> AsyncIterator[tuple[BrokerServer, httpx.AsyncClient]]:
    """A broker with HTTP on a free port, and somebody who calls it."""
    async with (
        broker(folder, **{"http__port": -1, **settings}) as server,
        httpx.AsyncClient(base_url=url(server), timeout=SECONDS) as client,
    ):
        yield server, client
