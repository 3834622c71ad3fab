"""uvicorn's protocol with the application, without its server: sockets are `net`'s.

Imported in a worker thread. Not to be imported before there is a client.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, cast

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from onelog.gateways import GatewayContext
from onelog.gateways.http.app import make_app
from onelog.net.connection import BUSY_SECONDS, Connection

KEEP_ALIVE_SECONDS = 75
CLOSE_SECONDS_MAX = 1.0
PING_SECONDS = 20.0
"""Keeps WebSockets from being closed for being idle."""
MESSAGE_BYTES_MAX = 16 << 20
AT_ONCE = 8
"""Requests that had to wait and begin in one tick."""


class InTurns:
    """An application that begins with so many requests in a tick as there is time for.

    uvicorn makes a task of each, and those of very many connections would all run in one tick.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._ends = 0.0
        """Until when requests may begin in this tick."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._waiting or not self._has_time():
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        await self._app(scope, receive, send)

    def _has_time(self) -> bool:
        now = time.monotonic()
        if not self._ends:
            self._ends = now + BUSY_SECONDS
            asyncio.get_running_loop().call_soon(self._next_tick)
        return now < self._ends

    def _next_tick(self) -> None:
        self._ends = 0.0
        for _ in range(min(AT_ONCE, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next_tick)


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


class _PeerLog(logging.Logger):
    """uvicorn's log of one connection. What it warns of is the peer's doing, who may go on and on:
    that is said with the others' warnings."""

    def __init__(self, connection: Connection) -> None:
        super().__init__("uvicorn.error")
        self.parent = logging.getLogger(self.name)
        self._connection = connection

    def warning(self, msg: object, *args: object, **options: Any) -> None:
        """Say it, unless enough was said."""
        self._connection.warn(f"%s: {msg}", self._connection, *args)


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
        connection = self.app_state["connection"] = transport.get_extra_info("onelog")
        self.logger = _PeerLog(connection)

    def data_received(self, data: bytes) -> None:
        self._serving.date()
        super().data_received(data)


def prepare(context: GatewayContext) -> Callable[[], Serving]:
    """Import everything, and read the routes; what is returned is to be called in the loop."""
    app = make_app(context)
    config = Config(
        cast(Any, InTurns(app)),
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
