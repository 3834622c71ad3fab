"""The disks of the simulated nodes: real files; a loss of power takes what was not flushed.

For each file its content at the last flush is remembered, for each folder the names that it had at
its last flush. What was written since is on disk or not, each sector for itself; a name that was
made or removed since is there or not. A disk can also refuse to write or to flush for a while.

Whose disk is meant, the node that runs now says: one node runs at a time.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from unittest import mock

from onelog.store import flush as store_flush

SECTOR = 512


class KilledError(BaseException):
    """The process ends here, in the middle of whatever it does."""


Buffer = bytes | bytearray | memoryview


@dataclass(eq=False)
class Disk:
    """The disk of one node."""

    folder: Path
    refuses_writes: int = 0
    """The error number of every write; 0 for none."""
    refuses_flushes: bool = False
    writes_in_order: bool = False
    """Whether of what was not flushed the beginning is there, if anything is."""
    is_slow: bool = False
    kills_at: int = 0
    """At which write from now on the process is killed; 0 for none."""
    contents: dict[int, bytes] = field(default_factory=dict)
    """By inode, what a file had when it was flushed last."""
    names: dict[str, dict[str, int]] = field(default_factory=dict)
    """By folder, the names that it had when it was flushed last, and their inodes."""

    def heal(self) -> None:
        """Be a good disk again."""
        self.refuses_writes, self.refuses_flushes, self.is_slow = 0, False, False
        self.kills_at = 0

    def flushed(self, fd: int) -> None:
        """Remember what is on disk now."""
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            path = os.readlink(f"/proc/self/fd/{fd}")
            with os.scandir(path) as entries:
                self.names[path] = {entry.name: entry.inode() for entry in entries}
        else:
            try:
                content = os.pread(fd, found.st_size, 0)
            except OSError:  # It is open for writing only.
                content = Path(f"/proc/self/fd/{fd}").read_bytes()
            self.contents[found.st_ino] = content

    def flush_all(self) -> None:
        """What `syncfs` does."""
        for path, _, files in os.walk(self.folder):
            for name in [".", *files]:
                fd = os.open(os.path.join(path, name), os.O_RDONLY)
                try:
                    self.flushed(fd)
                finally:
                    os.close(fd)

    def lose_power(self, random: Random) -> None:
        """Turn the files into what might be found when the power is back."""
        keep = random.choice((0.0, 0.5, 0.5, 0.9, 1.0))
        for path, folders, files in os.walk(self.folder, topdown=False):
            durable = self.names.get(path)
            kept = keep
            for name in sorted(files):
                torn = self._lose(os.path.join(path, name), name, durable, random, kept)
                if torn and self.writes_in_order:
                    kept = 0.0  # Nothing behind it either.
            if durable is None:
                continue  # A new folder lives on: what is lost of it, its files show.
            for name in sorted(durable.keys() - {*files, *folders}):
                # It was removed, or moved away; perhaps that was not to last.
                content = self.contents.get(durable[name])
                if content is not None and random.random() > keep:
                    _write(os.path.join(path, name), content)
        self.contents.clear()
        self.names.clear()
        self.flush_all()

    def _lose(
        self, path: str, name: str, durable: dict[str, int] | None, random: Random, keep: float
    ) -> bool:
        """Take from a file what it may lose; whether that was something."""
        inode = os.stat(path).st_ino
        before = None if durable is None else durable.get(name)
        if before != inode and random.random() > keep:
            content = None if before is None else self.contents.get(before)
            os.unlink(path)
            if content is not None:  # The name has another file again.
                _write(path, content)
            return True
        with open(path, "rb") as file:
            now = file.read()
        old = self.contents.get(inode)
        if old == now:
            return False
        if not name.isdigit():  # Small files are written as a whole.
            _write(path, now if random.random() < keep else old or b"")
            return False
        in_order = self.writes_in_order or random.random() < 0.5
        mixed = _mixed(old or b"", now, random, keep, in_order)
        _write(path, mixed)
        return mixed != now


def _mixed(old: bytes, now: bytes, random: Random, keep: float, in_order: bool) -> bytes:
    """What was written since the flush is there in part: up to a place, or here and there."""
    old = old.ljust(len(now), b"\0")[: len(now)]
    mixed = bytearray(old)
    for at in range(0, len(now), SECTOR):
        if old[at : at + SECTOR] == now[at : at + SECTOR]:
            continue
        if random.random() < keep:
            mixed[at : at + SECTOR] = now[at : at + SECTOR]
        elif in_order:
            torn = random.randrange(SECTOR)
            mixed[at : at + torn] = now[at : at + torn]
            break
    return bytes(mixed)


def _write(path: str, content: bytes) -> None:
    if os.path.exists(path):
        os.unlink(path)  # Whoever still has a map of it keeps what it was.
    with open(path, "wb") as file:
        file.write(content)


@dataclass(eq=False)
class Disks:
    """All disks, in the place of the system calls that write and flush."""

    random: Random
    current: Disk | None = None
    """That of the node that runs."""

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """While it lasts, every write and flush goes through here."""
        pwrite, reserve = os.pwrite, os.posix_fallocate

        def flush(fd: int) -> None:
            disk = self.current
            if disk is not None:
                if disk.refuses_flushes:
                    raise OSError(errno.EIO, "simulated: cannot flush")
                disk.flushed(fd)

        def flush_all(folder: Path) -> None:
            if self.current is not None:
                self.current.flush_all()

        def ready() -> bool:
            """Whether a write may be made as a whole."""
            disk = self.current
            if disk is None:
                return True
            if disk.refuses_writes:
                raise OSError(disk.refuses_writes, "simulated: cannot write")
            disk.kills_at -= 1
            return disk.kills_at != 0

        def write(fd: int, data: Buffer, at: int) -> int:
            if ready():
                return pwrite(fd, data, at)
            pwrite(fd, memoryview(data)[: self.random.randint(0, len(data))], at)
            raise KilledError

        def writev(fd: int, buffers: Sequence[Buffer], at: int) -> int:
            return write(fd, b"".join(buffers), at)

        def allocate(fd: int, at: int, size: int) -> None:
            ready()
            reserve(fd, at, size)

        with (
            mock.patch.multiple(
                os,
                fsync=flush,
                fdatasync=flush,
                pwrite=write,
                pwritev=writev,
                posix_fallocate=allocate,
            ),
            mock.patch.object(store_flush, "sync_filesystem", flush_all),
        ):
            yield
