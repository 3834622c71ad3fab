"""A real RabbitMQ beside OneLog, of the machine's own package (Debian: rabbitmq-server).

Invariant: everything it writes is below the folder that it was given, it listens on loopback only,
and it ends with the `with` block.
"""

import shutil
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.e2e.processes import ChildError, log_tail, spawn, stop, wait_until
from tests.ports import free_port

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Not the one of the PATH, which wants to be another user."""
MISSING = "" if SERVER.exists() and shutil.which("epmd") else "rabbitmq-server is not installed"
_SETTINGS = """\
loopback_users = none
log.console = true
log.console.level = warning
vm_memory_high_watermark.relative = 0.8
disk_free_limit.absolute = 50MB
"""


class RabbitmqPeer:
    """One node, with guest/guest and the vhost /."""

    name = "rabbitmq"

    def __init__(self, folder: Path, settings: str = "", plugins: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/"
        self._settings = _SETTINGS + settings
        self._plugins = plugins

    @property
    def version(self) -> str:
        """Of the package."""
        found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        return found[-1].name.partition("-")[2] if found else ""

    @property
    def process_id(self) -> int:
        """Of the process that does the work."""
        return int((self.folder / "node.pid").read_text())

    def __enter__(self) -> Self:
        folder = self.folder
        folder.mkdir(parents=True, exist_ok=True)
        listening = f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
        (folder / "rabbitmq.conf").write_text(listening + self._settings)
        (folder / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n")
        names = str(self.port + 1)
        environment = {
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": names,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"peer{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self.port + 2),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "node.pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none"
            ),
        }
        # Its own would outlive it.
        epmd = [shutil.which("epmd") or "epmd", "-port", names, "-address", "127.0.0.1"]
        self._epmd = spawn(epmd, folder / "epmd.log", {"HOME": str(folder)})
        # Where it is, it leaves what it had in memory when it fails.
        self._child = spawn([str(SERVER)], folder / "server.log", environment, cwd=folder)
        try:
            wait_until(self._is_ready, "RabbitMQ", 120)
        except ChildError as error:
            self.__exit__(None, None, None)
            raise ChildError(f"{error}\n{log_tail(folder / 'server.log')}") from None
        return self

    def _is_ready(self) -> bool:
        if self._child.poll() is not None:
            raise ChildError("RabbitMQ ended by itself")
        with socket.socket() as attempt:
            attempt.settimeout(1)
            return attempt.connect_ex(("127.0.0.1", self.port)) == 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stop(self._child, timeout_s=10)
        stop(self._epmd)
        shutil.rmtree(self.folder / "mnesia", ignore_errors=True)
