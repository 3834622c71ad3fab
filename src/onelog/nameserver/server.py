"""A running name server: its port, its clean-up, its file.

Nodes do not know one another: brokers register with each, and clients ask any.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from onelog.clock import Clock, SystemClock
from onelog.config import NameserverConfig, TlsConfig
from onelog.errors import NotSavedError
from onelog.jobs import Job
from onelog.nameserver.kv import KvConfig, load_kv, save_kv
from onelog.nameserver.routes import RouteTable
from onelog.nameserver.session import NameserverSession, Registry
from onelog.net.connection import Limits
from onelog.net.listener import Listener
from onelog.net.tasks import repeat
from onelog.net.tls import Tls

log = logging.getLogger(__name__)

Saved = Callable[[NotSavedError | None], None]


class NameServer:
    """A name server that is being served. Made by `serve_nameserver`, ended by `close`."""

    def __init__(
        self,
        config: NameserverConfig,
        kv: KvConfig,
        clock: Clock,
        config_updates: bool,
        remote_admin: bool = False,
    ) -> None:
        self._clock = clock
        self._listeners: list[Listener] = []
        self._scan_seconds = config.scan_interval_ms / 1000
        self._file = _File(kv_path(config), kv.to_json)
        self.registry = Registry(
            RouteTable(),
            kv,
            clock,
            config.broker_expiry_ms,
            self._file.save,
            config_updates=config_updates,
            remote_admin=remote_admin,
        )

    async def start(
        self,
        host: str,
        port: int,
        tls: Tls | None,
        limits: Limits,
        listening: Sequence[type[Listener]] = (Listener,),
    ) -> None:
        """Listen, on the same address in each of these ways."""
        for kind in listening:
            listener = await kind.open(
                host,
                port,
                lambda connection: NameserverSession(connection, self.registry),
                clock=self._clock,
                limits=limits,
                tls=tls,
            )
            self._listeners.append(listener)
            host, port = listener.address
        scanning = repeat("dropping silent brokers", self._scan_seconds, lambda: self.scan())
        self._scanning = asyncio.create_task(scanning)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        return self._listeners[0].address

    def scan(self) -> None:
        """Drop the brokers that were silent for too long. Runs by itself."""
        for endpoint, session in self.registry.routes.expire(self._clock.now_ms()):
            log.warning("broker %r of %r dropped: it was silent for too long", *reversed(endpoint))
            assert isinstance(session, NameserverSession)
            session.connection.abort()

    async def close(self) -> None:
        self._scanning.cancel()
        for listener in self._listeners:
            await listener.close()
        await self._file.close()


def kv_path(config: NameserverConfig) -> Path:
    """The key-value file."""
    return Path(config.kv_path).expanduser()


class _File:
    """Writes the key-value file in a worker thread; what comes meanwhile shares the next write."""

    def __init__(self, path: Path, content: Callable[[], bytes]) -> None:
        self._path = path
        self._content = content
        self._waiting: list[Saved] = []
        self._writing: asyncio.Task[None] | None = None
        self._saving = Job("saving the key-value configuration")

    def save(self, saved: Saved) -> None:
        self._waiting.append(saved)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            with self._saving:
                await asyncio.to_thread(save_kv, self._path, self._content())
            error = None
            if self._saving.failed:
                error = NotSavedError(f"in force, but not saved: {self._saving.error}")
            for saved in waiting:
                saved(error)
        self._writing = None


async def serve_nameserver(
    config: NameserverConfig,
    *,
    tls: TlsConfig | None = None,
    clock: Clock | None = None,
    limits: Limits | None = None,
    config_updates: bool = False,
    remote_admin: bool = False,
    listening: Sequence[type[Listener]] = (Listener,),
) -> NameServer:
    """Start a name server. `config_updates` lets its switches change, `remote_admin` lets
    administrators on other machines do what they can.
    """
    encryption = None if tls is None else Tls(tls)
    if encryption is not None:
        await encryption.open()
    server = NameServer(
        config,
        await asyncio.to_thread(load_kv, kv_path(config)),
        clock or SystemClock(),
        config_updates,
        remote_admin,
    )
    await server.start(config.host, config.port, encryption, limits or Limits(), listening)
    return server
