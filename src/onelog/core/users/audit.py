"""What administrators did, and what others tried: one line each, in a file that people can keep.

    <store>/audit/audit.jsonl        the newest; when it is full it becomes audit.1.jsonl, and so on
    {"time": ms, "user", "protocol", "address", "action", "thing", "result"}

`result` is "allowed", "refused", or "done" where it is known that something was changed. Names of
things are kept, and never a password, a token or a message. A worker writes the lines; of too many
at a time the number is kept, and not the lines.

Invariant: lines are in the order in which things were asked, and whole, but for the last one after
a crash.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Lock

import msgspec

from onelog.clock import Clock
from onelog.core.access import SELF, Principal, Resource
from onelog.private_files import make_folder, opener

log = logging.getLogger(__name__)

NAME = "audit"
FILE_BYTES_MAX = 8 << 20
FILES_MAX = 8
WAITING_MAX = 10_000
MADE_MAX = 10_000


class Entry(msgspec.Struct, frozen=True):
    """One line."""

    time: int
    user: str
    protocol: str
    address: str
    action: str
    thing: str
    result: str


_decode = msgspec.json.Decoder(Entry).decode


class Audit:
    """The lines of one broker. Without a folder nothing is kept."""

    def __init__(
        self, folder: Path | None, clock: Clock, offload: Callable[[Callable[[], None]], None]
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._offload = offload
        self._waiting: list[bytes] = []
        self._lost = 0
        self._is_writing = False
        self._made: set[tuple[str, str, Resource]] = set()
        """What who was allowed to make: clients declare the same things whenever they connect."""
        self._lock = Lock()
        """Of what waits, for a moment; the loop takes it, too."""
        self._file_lock = Lock()
        """Files are turned and read by workers, one at a time."""

    # -- writing -------------------------------------------------------------------------------

    def decided(self, principal: Principal, action: str, resource: Resource, allowed: bool) -> None:
        """Somebody wants to make, change or delete something, and may or may not."""
        if principal is SELF:
            return
        if action == "create" and allowed:
            key = principal.name, principal.protocol, resource
            if key in self._made:
                return
            if len(self._made) >= MADE_MAX:
                self._made.clear()
            self._made.add(key)
        elif action == "delete":
            self._made = {each for each in self._made if each[2] != resource}
        result = "allowed" if allowed else "refused"
        self.note(principal, action, f"{resource[0]}:{resource[1]}", result)

    def note(self, principal: Principal, action: str, thing: str, result: str) -> None:
        """Write one line."""
        if self._folder is None:
            return
        entry = Entry(
            self._clock.now_ms(),
            principal.name,
            principal.protocol,
            principal.address,
            action,
            thing,
            result,
        )
        with self._lock:
            if len(self._waiting) >= WAITING_MAX:
                self._lost += 1
            else:
                self._waiting.append(msgspec.json.encode(entry) + b"\n")
            starts, self._is_writing = not self._is_writing, True
        if starts:
            self._offload(self._write)

    def _write(self) -> None:
        while True:
            with self._lock:
                lines, self._waiting = self._waiting, []
                lost, self._lost = self._lost, 0
                if not lines:
                    self._is_writing = False
                    return
            if lost:
                line = Entry(self._clock.now_ms(), "", "", "", "lost", f"{lost} lines", "done")
                lines.append(msgspec.json.encode(line) + b"\n")
            self._append(b"".join(lines))

    def _append(self, data: bytes) -> None:
        assert self._folder is not None
        newest = self._path(0)
        try:
            with self._file_lock:
                make_folder(self._folder)
                if newest.exists() and newest.stat().st_size + len(data) > FILE_BYTES_MAX:
                    for number in range(FILES_MAX - 1, 0, -1):
                        if self._path(number - 1).exists():
                            self._path(number - 1).replace(self._path(number))
                with open(newest, "ab", opener=opener) as file:
                    file.write(data)
        except OSError as error:
            log.error("the audit log cannot be written: %s: %s", error, data.decode().strip())

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / (f"{NAME}.{number}.jsonl" if number else f"{NAME}.jsonl")

    # -- reading -------------------------------------------------------------------------------

    def last(self, count: int, wanted: Callable[[Entry], bool] = lambda entry: True) -> list[Entry]:
        """The last lines that are wanted, newest first; for a worker to ask."""
        found: list[Entry] = []
        if self._folder is None:
            return found
        with self._file_lock:
            for number in range(FILES_MAX):
                try:
                    lines = self._path(number).read_bytes().splitlines()
                except FileNotFoundError:
                    break
                for line in reversed(lines):
                    try:
                        entry = _decode(line)
                    except msgspec.MsgspecError:
                        continue  # Half a line: the broker died when it was written.
                    if wanted(entry):
                        found.append(entry)
                        if len(found) == count:
                            return found
        return found
