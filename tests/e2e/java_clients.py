"""Runs the Java side: the scenario program with the official clients, and mqadmin.

Everything that Java code would write to the home of its user goes to a folder of the test.
"""

import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.e2e.java_toolchain import PROJECTS, build
from tests.e2e.processes import ChildError, log_tail, spawn, stop

SCENARIOS = "onelog.clients.Main"
CLIENT_VERSIONS = ("4.9.8", "5.5.0")
PEER_VERSION = "5.5.0"
QUIET = PROJECTS / "clients" / "peer" / "quiet"
# Short runs: start fast rather than become fast.
SHORT_JVM = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

Facts = dict[str, Any]


@cache
def client_classpath(version: str) -> str:
    """The class path of the scenario program with this version of the official client."""
    return build("clients", version, SCENARIOS, Path()).classpath


@cache
def peer_classpath() -> str:
    """The class path of the real name server, broker, mqadmin and benchmarks."""
    return build("clients/peer", PEER_VERSION, "", Path()).classpath


def jvm(home: Path, classpath: str, main: str, *args: str, options: tuple[str, ...]) -> list[str]:
    """A command line whose process keeps its hands off the real home."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    redirections = [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
    return ["java", *options, *redirections, "-cp", classpath, main, *args]


class Scenario:
    """One run of the Java program: its JSON lines, as they come."""

    def __init__(
        self,
        home: Path,
        version: str,
        name: str,
        nameservers: str,
        options: tuple[str, ...] = SHORT_JVM,
        **arguments: object,
    ) -> None:
        flat = [f"--{key.replace('_', '-')}={value}" for key, value in arguments.items()]
        pairs = [part for pair in flat for part in pair.split("=", 1)]
        self.name = name
        self.log = home / f"{name}.log"
        command = jvm(
            home,
            client_classpath(version),
            SCENARIOS,
            name,
            "--nameservers",
            nameservers,
            *pairs,
            options=options,
        )
        self._child = spawn(command, self.log, pipes=True)
        self._last: Facts = {}
        self._lines: queue.Queue[Facts | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(b"{"):
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def lines(self, timeout_s: float) -> Iterator[Facts]:
        """The facts as they are reported, until the program ends."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                facts = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise self._error(f"said nothing final within {timeout_s:.0f} s") from None
            if facts is None:
                raise self._error("ended early")
            if facts["event"] == "failed":
                raise self._error(f"failed: {facts['error']}")
            self._last = facts
            yield facts

    def wait_for(self, event: str, timeout_s: float = 60) -> Facts:
        """The next line with this event; lines before it are dropped."""
        return next(facts for facts in self.lines(timeout_s) if facts["event"] == event)

    def _error(self, what: str) -> ChildError:
        said = f"scenario {self.name} {what}; the last it said was {self._last}"
        return ChildError(f"{said}\n{log_tail(self.log)}")

    def kill(self) -> None:
        """End it as a power cut would; what it said before can still be read."""
        stop(self._child, signal.SIGKILL)
        self._reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stop(self._child, timeout_s=5)
        self._reader.join()


def run_scenario(
    home: Path, version: str, name: str, nameservers: str, timeout_s: float = 100, **args: object
) -> list[Facts]:
    """Run a scenario to its end; the last line is the `done` one."""
    seen: list[Facts] = []
    with Scenario(home, version, name, nameservers, SHORT_JVM, **args) as scenario:
        for facts in scenario.lines(timeout_s):
            seen.append(facts)
            if facts["event"] == "done":
                break
    return seen


def mqadmin(
    home: Path,
    nameservers: str,
    *command: str,
    timeout_s: float = 60,
    options: tuple[str, ...] = (),
) -> str:
    """What mqadmin prints for one sub-command (both outputs; it reports errors on either)."""
    argv = jvm(
        home,
        f"{QUIET}:{peer_classpath()}",
        "org.apache.rocketmq.tools.command.MQAdminStartup",
        *command,
        "-n",
        nameservers,
        options=(*SHORT_JVM, *options),
    )
    # Some sub-commands leave files where they are.
    done = subprocess.run(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
        text=True,
        cwd=home,
    )
    return done.stdout
