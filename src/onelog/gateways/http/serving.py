"""uvicorn's protocol with the application, without its server: sockets are `net`'s.

Imported in a worker thread. Not to be imported before there is a client.
"""

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, cast

from starlette.applications import Starlette
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from onelog.gateways import GatewayContext
from onelog.gateways.http.app import make_app

KEEP_ALIVE_SECONDS = 75
CLOSE_SECONDS_MAX = 1.0
PING_SECONDS = 20.0
"""Keeps WebSockets from being closed for being idle."""
MESSAGE_BYTES_MAX = 16 << 20


class Serving:
    """What all sessions share."""

    def __init__(self, config: Config, app: Starlette) -> None:
        self._config = config
        self._app = app
        self._state = ServerState()
        self._second = 0

    def protocol(self) -> HttpToolsProtocol:
        """The protocol of one more connection."""
        return _Dated(self)

    def make(self) -> tuple[Config, ServerState]:
        """What a protocol is made of."""
        return self._config, self._state

    def date(self) -> None:
        """Answers carry the time, to the second."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            date = formatdate(second, usegmt=True).encode()
            self._state.default_headers = [(b"server", b"onelog"), (b"date", date)]

    async def close(self) -> None:
        """Close what is idle, and give the rest a moment to come to its end."""
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=CLOSE_SECONDS_MAX)
        for task in list(self._state.tasks):
            task.cancel()


class _Dated(HttpToolsProtocol):
    """With the date in its answers, which uvicorn's own server would look after, and with the
    connection and its certificate in each request's state."""

    def __init__(self, serving: Serving) -> None:
        config, state = serving.make()
        super().__init__(config, state, {})
        self._serving = serving

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state["certificate"] = transport.get_extra_info("peercert")
        self.app_state["connection"] = transport.get_extra_info("onelog")

    def data_received(self, data: bytes) -> None:
        self._serving.date()
        super().data_received(data)


def prepare(context: GatewayContext) -> Callable[[], Serving]:
    """Import everything, and read the routes; what is returned is to be called in the loop."""
    app = make_app(context)
    config = Config(
        cast(Any, app),
        http=HttpToolsProtocol,
        ws="websockets-sansio",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        # Nobody else may say where a request comes from.
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PING_SECONDS,
        ws_max_size=MESSAGE_BYTES_MAX,
        # Small messages may become large ones.
        ws_per_message_deflate=False,
    )
    config.load()
    return lambda: Serving(config, app)
