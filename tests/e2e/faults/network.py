"""Machines that are namespaces of this one: each has an address of its own, all on one bridge.

The addresses exist inside these namespaces only; the machine itself has none of them and no route
there, so nothing here can reach anything else. A broken way from one machine to another is a wrong
hardware address for the other: packets leave and arrive nowhere, without an error, and only in this
direction.

Invariant: the namespaces of a `Network` are gone when its `with` block ends; what a run that was
killed left behind goes with the next one (their names hold the number of the process).
"""

import ctypes
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

PREFIX = "onelog-faults"
SUBNET = "10.213.7"
NOWHERE = "02:00:00:00:00:01"
_NEW_NETWORK = 0x40000000
_RUNNING = Path("/run/netns")
Found = TypeVar("Found")


@cache
def why_not() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces are made by root only"
    if shutil.which("ip") is None:
        return "there is no `ip` here (Debian: iproute2)"
    probe = f"{PREFIX}-{os.getpid()}-probe"
    for command in (["netns", "add", probe], ["-n", probe, "link", "add", "br0", "type", "bridge"]):
        ended = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            break
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return f"ip {' '.join(command)}: {ended.stderr.strip()}" if ended.returncode else ""


class Network:
    """A bridge with machines on it, by name."""

    def __init__(self, machines: Iterable[str]) -> None:
        self._prefix = f"{PREFIX}-{os.getpid()}"
        self._addresses = {
            name: f"{SUBNET}.{number}" for number, name in enumerate(machines, start=1)
        }

    def address(self, machine: str) -> str:
        """The address that a machine has on the bridge."""
        return self._addresses[machine]

    def command(self, machine: str, argv: Sequence[str]) -> list[str]:
        """A command line that runs there."""
        return ["ip", "netns", "exec", self._space(machine), *argv]

    def inside(self, machine: str, ask: Callable[[], Found]) -> Found:
        """Call something there: its sockets are the machine's."""
        answers: list[Found] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                with (_RUNNING / self._space(machine)).open() as space:
                    libc = ctypes.CDLL(None, use_errno=True)
                    if libc.setns(space.fileno(), _NEW_NETWORK) != 0:
                        raise OSError(ctypes.get_errno(), "setns")
                answers.append(ask())
            except BaseException as error:
                errors.append(error)

        # A thread of its own, which takes the namespace along when it ends.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return answers[0]

    def cut(self, begin: str, end: str) -> None:
        """Let nothing get from one machine to the other; the way back is not touched."""
        self._ip(
            begin,
            "neigh",
            "replace",
            self.address(end),
            "lladdr",
            NOWHERE,
            "dev",
            "eth0",
            "nud",
            "permanent",
        )

    def mend(self, begin: str, end: str) -> None:
        """Take back a `cut`."""
        self._ip(begin, "neigh", "del", self.address(end), "dev", "eth0")

    def _space(self, machine: str) -> str:
        return f"{self._prefix}-{machine}"

    def _ip(self, machine: str, *arguments: str) -> None:
        _ip("-n", self._space(machine), *arguments)

    def __enter__(self) -> Self:
        remove_abandoned()
        _ip("netns", "add", self._space("switch"))
        self._ip("switch", "link", "add", "bridge", "type", "bridge")
        self._ip("switch", "link", "set", "bridge", "up")
        for number, machine in enumerate(self._addresses):
            port = f"port{number}"
            _ip("netns", "add", self._space(machine))
            _ip(
                "link",
                "add",
                "eth0",
                "netns",
                self._space(machine),
                "type",
                "veth",
                "peer",
                "name",
                port,
                "netns",
                self._space("switch"),
            )
            self._ip("switch", "link", "set", port, "master", "bridge", "up")
            self._ip(machine, "addr", "add", f"{self.address(machine)}/24", "dev", "eth0")
            self._ip(machine, "link", "set", "eth0", "up")
            self._ip(machine, "link", "set", "lo", "up")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _remove(self._prefix)


def remove_abandoned() -> None:
    """Remove namespaces of this kind whose process is no more."""
    names = [path.name for path in _RUNNING.iterdir()] if _RUNNING.exists() else []
    for name in names:
        made_by = re.fullmatch(rf"({PREFIX}-(\d+))-\w+", name)
        if made_by and not Path("/proc", made_by[2]).exists():
            _remove(made_by[1])


def _remove(prefix: str) -> None:
    for path in _RUNNING.iterdir():
        if path.name.startswith(f"{prefix}-"):
            _ip("netns", "del", path.name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
