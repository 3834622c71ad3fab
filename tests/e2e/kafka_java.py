"""Java programs that talk to Kafka's port: their lines of JSON, as they come."""

import json
import queue
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.e2e.java_clients import SHORT_JVM
from tests.e2e.java_toolchain import JavaProgram, build
from tests.e2e.processes import ChildError, log_tail, spawn, stop

CLIENT_VERSIONS = ("3.9.1", "4.3.1")
Facts = dict[str, Any]
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


def kafka_client(home: Path, version: str, main: str, *arguments: str) -> "RunningJava":
    """A program with Kafka's own client of a version."""
    program = build("kafka/clients", version, f"onelog.kafka.{main}", home)
    return RunningJava(program, home / f"{main}.log", [*SHORT_JVM, _QUIET], *arguments)


class RunningJava:
    """A program that runs; it ends with the `with` block, by the end of its input if it can."""

    def __init__(
        self, program: JavaProgram, log: Path, flags: Sequence[str], *arguments: str | int | Path
    ) -> None:
        self._log = log
        java, heap, *rest = program.command(*arguments)
        # What it leaves where it was started goes to its home, too.
        command = ["env", "-C", str(program.home), java, heap, *flags, *rest]
        self._child = spawn(command, log, pipes=True)
        self._lines: queue.Queue[Facts | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(b"{"):
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def next_line(self, timeout_s: float = 120) -> Facts | None:
        """What it says next; None if it has ended well."""
        try:
            facts = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise ChildError(f"it said nothing\n{log_tail(self._log)}") from None
        if facts is None and self._child.wait() != 0:
            raise ChildError(f"it ended early\n{log_tail(self._log)}")
        return facts

    def wait_for(self, event: str, count: int = 1, timeout_s: float = 120) -> None:
        """Return when it has said so, so many times."""
        deadline = time.monotonic() + timeout_s
        while count:
            facts = self.next_line(deadline - time.monotonic())
            if facts is None:
                raise ChildError(f"it ended without {event}\n{log_tail(self._log)}")
            count -= facts["event"] == event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child.stdin is not None and kind is None:
            self._child.stdin.close()
            try:
                self._child.wait(60)
            except subprocess.TimeoutExpired:
                pass
        stop(self._child, timeout_s=5)
        self._reader.join()
