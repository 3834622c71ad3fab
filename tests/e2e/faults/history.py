"""Histories: what a client did and saw, a JSON object a line, in the order in which it knew it.

Every file begins with who writes it: {"op": "client", "name", "kind", "topic", "role"}; a consumer
adds "group" and "ordered" (whether its group takes the messages of a key in order). Then, with
times in nanoseconds of the machine's monotonic clock, which all processes here share:

    send     id key number begin end result [error] [queue offset]   an attempt; ok or failed
    receive  id key number begin end queue offset                    a consumer is done with it
    read     id key number begin end queue offset                    the last look, at everything
    fault    kind target hit alive begin end                         what was done to the servers

`hit` says who suffers: master, follower or all; `alive` whether enough is left to go on: if not,
the time without acknowledgements counts from the fault's end. An attempt that is repeated has the
same id again. Invariant: a line is written whole, and only after what it says has happened.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Line = dict[str, Any]


class History:
    """A history that is being written; any thread may add to it."""

    def __init__(self, path: Path, **about: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        self._lock = threading.Lock()
        self.add("client", **about)

    def add(self, op: str, **facts: object) -> None:
        """One line, in one write: a killed process leaves whole lines."""
        data = json.dumps({"op": op, **facts}, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            os.write(self._file, data)

    def close(self) -> None:
        """No more lines."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def lines(path: Path) -> Iterator[Line]:
    """What a history says; half a line at its end is one that never happened."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def message_id(name: str, key: str, number: int) -> str:
    """What a message is called, and its body: unique among all histories of a run."""
    return f"{name}/{key}/{number}"


def now_ns() -> int:
    """The clock of all histories."""
    return time.monotonic_ns()
