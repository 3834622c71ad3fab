"""OneLog's name server and broker as their users start them: the installed command.

It offers the same few verbs as the real RocketMQ beside it, so that a test cannot tell which of the
two it is given.
"""

import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.e2e.processes import (
    ChildError,
    free_ports,
    log_tail,
    spawn,
    stalls_in,
    stop,
    wait_until,
)
from tests.e2e.remoting_probe import has_route

COMMAND = Path(sys.executable).parent / "onelog"


class OnelogPeer:
    """`onelog up`; with `nameservers`, only a broker that registers there."""

    name = "onelog"
    cluster = "DefaultCluster"

    def __init__(
        self,
        folder: Path,
        *,
        sync_flush: bool = False,
        nameservers: str | None = None,
        delay_levels: str | None = None,
        broker_name: str = "broker-a",
        settings: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        may_stall: bool = False,
        kafka: bool = False,
        grpc: bool = False,
        amqp: bool = False,
    ) -> None:
        """Unless it `may_stall`, it is an error when its event loop was held for long."""
        self.folder = folder
        self._may_stall = may_stall
        self.broker_name = broker_name
        self._nameserver_port, self._broker_port = free_ports()
        self._own_nameserver = nameservers is None
        self.nameservers = nameservers or f"127.0.0.1:{self._nameserver_port}"
        self.broker_address = f"127.0.0.1:{self._broker_port}"
        # Next to the broker's replication port, which belongs to the pair that was found free.
        self._kafka_port = self._broker_port + 2 if kafka else 0
        self.bootstrap = f"127.0.0.1:{self._kafka_port}"
        self._grpc_port = self._broker_port + 3 if grpc else 0
        self.endpoints = f"127.0.0.1:{self._grpc_port}"
        self.amqp_port = self._broker_port + 4 if amqp else 0
        self._environment = {
            "ONELOG_AMQP_PORT": str(self.amqp_port),
            "ONELOG_KAFKA_PORT": str(self._kafka_port),
            "ONELOG_GRPC_PORT": str(self._grpc_port),
            "ONELOG_STORE_FLUSH": "sync" if sync_flush else "async",
            "ONELOG_BROKER_NAME": broker_name,
            "HOME": str(folder),
            **(settings or {}),
        }
        self._tls = tls
        if delay_levels is not None:
            self._environment["ONELOG_STORE_DELAY_LEVELS"] = delay_levels
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start it, and return when a client could work with it."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start it; it is not ready yet when this returns."""
        if self._own_nameserver:
            arguments = ["up", "--data", str(self._data)]
            arguments += ["--nameserver-port", str(self._nameserver_port)]
            arguments += ["--broker-port", str(self._broker_port)]
        else:
            self._environment["ONELOG_BROKER_STORE_PATH"] = str(self._data)
            arguments = ["broker", "--port", str(self._broker_port)]
            arguments += ["--nameservers", self.nameservers]
        self._spawn(*arguments)

    def start_nameserver(self) -> None:
        """Start `onelog nameserver` only."""
        self._spawn("nameserver", "--port", str(self._nameserver_port))

    def _spawn(self, *arguments: str) -> None:
        self._children.append(spawn([str(COMMAND), *arguments], self._log, self._environment))

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _log(self) -> Path:
        return self.folder / "onelog.log"

    def wait_until_ready(self, timeout_s: float = 20) -> None:
        """Return when the name server knows the broker."""
        try:
            wait_until(self._is_ready, "a route to OneLog's broker", timeout_s)
        except ChildError as error:
            raise ChildError(f"{error}\n{log_tail(self._log)}") from None

    def _is_ready(self) -> bool:
        if any(child.poll() is not None for child in self._children):
            raise ChildError(f"{COMMAND.name} ended by itself")
        return has_route(self.nameservers.partition(";")[0], tls=self._tls)

    @property
    def broker_pids(self) -> list[int]:
        """The processes that do the broker's work."""
        return [child.pid for child in self._children]

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it with a signal and start it again on the same store and ports."""
        self._stop(how)
        self.launch()

    def stop_broker(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it with a signal; its store stays."""
        self._stop(how)

    def _stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        while self._children:
            stop(self._children.pop(), how)

    def close(self) -> None:
        """Stop everything and remove the store."""
        self._stop()
        shutil.rmtree(self._data, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if kind is None and not self._may_stall and (stalls := stalls_in(self._log)):
            raise ChildError("\n".join(stalls))
