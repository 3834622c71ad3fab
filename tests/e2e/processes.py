"""Child processes of the tests: started apart, logged to a file, and never left behind.

Invariant: a child that was started here is dead when this process ends, however it ends: its own
session makes it and its children one target, an exit hook takes what a test forgot, and where the
system can (setpriv), the kernel kills it when we are killed ourselves.
"""

import atexit
import os
import random
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tests import waiting

HELD_MS_MAX = 500
COMPUTED_MS_MAX = 100
_HELD = re.compile(r"event loop was held for (\d+) ms \((\d+) ms of them computing\)")
_alive: set[subprocess.Popen[bytes]] = set()


class ChildError(Exception):
    """A child process did not do what it was started for."""


wait_until = partial(waiting.wait_until, error=ChildError)


def spawn(
    argv: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    *,
    pipes: bool = False,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own; without `pipes` all its output goes to the log."""
    parent_bound = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        child = subprocess.Popen(
            [*parent_bound, *argv],
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else sink,
            stderr=sink,
            env={**os.environ, **(environment or {})},
            cwd=cwd,
            start_new_session=True,
        )
    _alive.add(child)
    return child


def stop(
    child: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM, timeout_s: float = 20
) -> int:
    """End a child with a signal (SIGKILL after the time-out) and return its exit status."""
    if child.poll() is None:
        child.send_signal(how)
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
    _kill_session(child)
    status = child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    _alive.discard(child)
    return status


def _kill_session(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and whatever it left behind in its session."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@atexit.register
def _stop_everything() -> None:
    for child in list(_alive):
        _kill_session(child)


def log_tail(log: Path, lines: int = 30) -> str:
    """The end of a log, for error messages."""
    if not log.exists():
        return f"(no file {log.name})"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def stalls_in(log: Path) -> list[str]:
    """Where a server's log says that our own code held its event loop for long, with the stack.

    The limits are far over the 20 ms from which a server counts: its thread shares the machine's
    processors, memory and disk with whatever else is tested, and only computing is all its own.
    """
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    found = []
    for number, line in enumerate(lines):
        held = _HELD.search(line)
        if held is not None and (int(held[1]) >= HELD_MS_MAX or int(held[2]) >= COMPUTED_MS_MAX):
            end = number + 1
            while end < len(lines) and lines[end].startswith("  "):
                end += 1
            found.append("\n".join(lines[number:end]))
    return found


def free_ports() -> tuple[int, int]:
    """A port for a name server and one for a broker.

    A broker also takes some around its own: VIP (- 2), replication (+ 1) and Kafka (+ 2).
    Picked below the range from which the system serves outgoing connections.
    """
    for _ in range(1000):
        nameserver = random.randrange(20_000, 31_000)
        broker = nameserver + 5
        if all(_is_free(port) for port in (nameserver, *range(broker - 2, broker + 3))):
            return nameserver, broker
    raise ChildError("found no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as attempt:
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
