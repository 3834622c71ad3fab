"""A broker or name server in a process of its own; its memory and complaints are looked at."""

import resource
import subprocess
import sys
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
from tests.e2e.stall_probe import computed_s
from tests.ports import free_port

COMMAND = Path(sys.executable).parent / "onelog"
SETTINGS = {
    "broker.vip_port": 0,
    "kafka.port": 0,
    "http.port": 0,
    "amqp.port": 0,
    "stomp.port": 0,
    "mqtt.port": 0,
    "grpc.port": 0,
    "broker.nameservers": "",
    "store.segment_bytes": 64 << 20,
    "store.queue_file_entries": 1_000,
    "store.index_slots": 10_000,
    "store.index_entries": 40_000,
    "store.disk_clean_percent": 98,
    "store.disk_force_percent": 99,
    "store.disk_refuse_percent": 99,
}
ALL_PORTS = ("kafka", "http", "amqp", "stomp", "mqtt", "grpc", "replication")
BUGS = ("Traceback", "its session failed")
"""What a log says only where our own code failed."""


class WatchedBroker:
    """`onelog broker`, without a name server."""

    _greeting = b"broker  "

    def __init__(self, folder: Path, **settings: object) -> None:
        self._folder = folder
        self._settings = SETTINGS | {
            key.replace("__", "."): value for key, value in settings.items()
        }
        self.port = free_ports()[1]

    def _arguments(self) -> list[str]:
        arguments = ["broker", "--port", str(self.port), "--data", str(self._folder / "store")]
        for key, value in self._settings.items():
            arguments += ["--set", f"{key}={value}"]
        return arguments

    def __enter__(self) -> Self:
        self._child: subprocess.Popen[bytes] = spawn([str(COMMAND), *self._arguments()], self.log)
        try:
            wait_until(self._is_ready, "a broker")
        except ChildError as error:
            stop(self._child)
            raise ChildError(f"{error}\n{log_tail(self.log)}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.status = stop(self._child)
        if kind is None and (stalls := stalls_in(self.log)):
            raise ChildError("\n".join(stalls))

    @property
    def log(self) -> Path:
        """What it writes to standard output and standard error."""
        return self._folder / "broker.log"

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._child.poll() is None

    def _is_ready(self) -> bool:
        if not self.is_running:
            raise ChildError("the broker ended by itself")
        return self._greeting in self.log.read_bytes()

    def computed_s(self) -> float:
        """How long the thread that serves everybody has computed."""
        return computed_s(self.pid)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.pid

    def anonymous_bytes(self) -> int:
        """RssAnon: memory of its own, without files that it has mapped."""
        status = Path(f"/proc/{self._child.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024

    def open_files(self) -> int:
        """How many descriptors it holds, of sockets and of files."""
        return len(list(Path(f"/proc/{self._child.pid}/fd").iterdir()))

    def bugs(self) -> list[str]:
        """What its log says of our own mistakes."""
        text = self.log.read_text(errors="replace")
        lines = text.splitlines()
        return [
            "\n".join(lines[max(0, number - 2) : number + 25])
            for number, line in enumerate(lines)
            if any(word in line for word in BUGS)
        ]


class ServingEverything(WatchedBroker):
    """`onelog broker` with all its ports, that of followers, too."""

    def __init__(self, folder: Path, **settings: object) -> None:
        first = free_port()
        self.ports = {section: first + at for at, section in enumerate(ALL_PORTS)}
        given = {f"{section}.port": port for section, port in self.ports.items()}
        super().__init__(folder, **{**given, **settings})
        self.port = first + len(ALL_PORTS)
        self.ports["broker"] = self.port


class WatchedNameserver(WatchedBroker):
    """`onelog nameserver`."""

    _greeting = b"name server  "

    def _arguments(self) -> list[str]:
        return ["nameserver", "--port", str(self.port), "--data", str(self._folder / "store")]


def raise_file_limit(wanted: int) -> int:
    """Let this process open that many files if the system lets it; how many it may open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = min(wanted, hard) if hard != resource.RLIM_INFINITY else wanted
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
