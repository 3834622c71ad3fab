"""Asks a server small questions all the time, from a process of its own, and times the answers.

    python -m tests.e2e.stall_probe PORT PID

For each line of its standard input it prints one line of JSON, of what was seen since the last one,
and ends when that ends.

What counts is how long the server kept everybody waiting. So the time is taken off in which server
or probe were ready to run and the kernel had others run: that a machine has too much to do is no
mistake of the server's. Surer still is how long the server's first thread, which serves everybody,
has computed between a question and its answer.
"""

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.e2e.processes import spawn, stop

PAUSE_S = 0.005
ANSWER_SECONDS_MAX = 60.0
GET_ROUTEINFO_BY_TOPIC = 105


@dataclass
class Probed:
    """What was seen."""

    asked: int = 0
    lost: int = 0
    """Connections that ended; a server that is up has no reason to."""
    slowest_ms: float = 0.0
    stalled_ms: float = 0.0
    """The longest time of an answer, without what the machine had to do with it."""
    cpu_ms: float = 0.0
    """The most that the server's first thread has computed until an answer came."""


def question() -> bytes:
    """A name server knows no such topic, and a broker no such request: both say so at once."""
    header = json.dumps(
        {
            "code": GET_ROUTEINFO_BY_TOPIC,
            "flag": 0,
            "language": "JAVA",
            "opaque": 1,
            "version": 409,
            "extFields": {"topic": "no-such-topic"},
        }
    ).encode()
    return struct.pack(">ii", 4 + len(header), len(header)) + header


def answered(connection: socket.socket, request: bytes) -> bool:
    """Whether a question got its answer."""
    try:
        connection.sendall(request)
        wanted, received = 4, b""
        while len(received) < wanted:
            more = connection.recv(65_536)
            if not more:
                return False
            received += more
            if len(received) >= 4:
                wanted = 4 + int.from_bytes(received[:4], "big")
    except OSError:
        return False
    return True


def waited_s(pid: int | str) -> float:
    """How long the first thread of a process was ready to run, and others ran."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def computed_s(pid: int | str) -> float:
    """How long the first thread of a process has run."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def probe(port: int, pid: int) -> None:
    """Ask until standard input ends."""
    with contextlib.suppress(OSError):  # Only root may. Else what others run counts as well,
        os.setpriority(os.PRIO_PROCESS, 0, -15)  # while an answer is here and nobody reads it.
    found, request = Probed(), question()
    connection: socket.socket | None = None
    while True:
        if select.select([sys.stdin], [], [], PAUSE_S)[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps(asdict(found)), flush=True)
            found = Probed()
        computed = computed_s(pid)
        began, waited = time.perf_counter(), waited_s(pid) + waited_s("self")
        if connection is None:
            connection = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX)
        if not answered(connection, request):
            connection.close()
            connection = None
            found.lost += 1
        taken_s = time.perf_counter() - began
        waited = waited_s(pid) + waited_s("self") - waited
        found.asked += 1
        found.slowest_ms = max(found.slowest_ms, taken_s * 1000)
        found.stalled_ms = max(found.stalled_ms, (taken_s - waited) * 1000)
        found.cpu_ms = max(found.cpu_ms, (computed_s(pid) - computed) * 1000)


class Probe:
    """A probe that asks in a process of its own."""

    def __init__(self, port: int, pid: int, log: Path) -> None:
        command = [sys.executable, "-m", "tests.e2e.stall_probe", str(port), str(pid)]
        self._child: subprocess.Popen[bytes] = spawn(command, log, pipes=True)

    def seen(self) -> Probed:
        """What was seen since this was called last."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(b"\n")
        self._child.stdin.flush()
        return Probed(**json.loads(self._child.stdout.readline()))

    def stop(self) -> None:
        """Ask no more."""
        stop(self._child, timeout_s=1)


@contextlib.contextmanager
def probing(port: int, pid: int, log: Path) -> Iterator[Probed]:
    """Probe while the block lasts; what was seen is there after it."""
    asking = Probe(port, pid, log)
    found = Probed()
    try:
        asking.seen()  # It asks from now on.
        yield found
        for name, value in asdict(asking.seen()).items():
            setattr(found, name, value)
    finally:
        asking.stop()


if __name__ == "__main__":
    probe(int(sys.argv[1]), int(sys.argv[2]))
