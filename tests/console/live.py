"""A broker with a name server, the HTTP port and somebody who calls it."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from onelog.config import Value
from onelog.config_sources import load
from onelog.server import BrokerServer, running_nameserver
from tests.gateways.http.live import SECONDS, url
from tests.gateways.remoting.live import broker


@contextlib.asynccontextmanager
async def cluster(
    folder: Path, **settings: Value
) -> AsyncIterator[tuple[BrokerServer, httpx.AsyncClient, str]]:
    """A broker, a client of its HTTP port, and the name server's address."""
    names = load(
        overrides={"nameserver.port": 0, "nameserver.kv_path": str(folder / "kv" / "kv.json")}
    )
    async with running_nameserver(names) as nameserver:
        host, port = nameserver.address
        usual: dict[str, Value] = {"http__port": -1, "broker__nameservers": f"{host}:{port}"}
        async with (
            broker(folder / "store", **{**usual, **settings}) as server,
            httpx.AsyncClient(base_url=url(server), timeout=SECONDS) as client,
        ):
            yield server, client, f"{host}:{port}"
