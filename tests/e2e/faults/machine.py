"""What else a machine has that can fail: a small disk of its own that can be full, and its clock.

The disk is a file with an ext4 file system, mounted through a loop device. The clock is libfaketime
(Debian: libfaketime), which every process of the machine is started with: it adds what a file says
to the time of day, and leaves the monotonic clock alone, as a real jump does. (A time namespace of
the kernel cannot do it: it moves only the clocks that have no date.)
"""

import shutil
import subprocess
from functools import cache
from pathlib import Path

DISK_BYTES = 512 << 20
_FAKETIME = "faketime/libfaketimeMT.so.1"


@cache
def why_no_disk() -> str:
    """Why there can be no disk of a machine here; empty if there can."""
    if shutil.which("mkfs.ext4") is None:
        return "there is no mkfs.ext4 here (Debian: e2fsprogs)"
    ended = subprocess.run(["losetup", "--find"], capture_output=True, text=True, check=False)
    return f"losetup: {ended.stderr.strip()}" if ended.returncode else ""


@cache
def faketime() -> Path | None:
    """The library that fakes the time of day, if it is installed."""
    return next(Path("/usr/lib").glob(f"*/{_FAKETIME}"), None)


class Disk:
    """A file system of its own, small enough to be filled in a moment."""

    def __init__(self, folder: Path, size_bytes: int = DISK_BYTES) -> None:
        self.folder = folder
        self._image = folder.with_suffix(".img")
        self._filler = folder / "filler"
        self._size_bytes = size_bytes

    def mount(self) -> None:
        """Make it, empty."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._image.open("wb") as image:
            image.truncate(self._size_bytes)
        _run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(self._image))
        _run("mount", "-o", "loop", str(self._image), str(self.folder))

    def unmount(self) -> None:
        """Remove it with all that it has."""
        # Lazily: a process that was killed may not have let go of its files yet.
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False, capture_output=True)
        self._image.unlink(missing_ok=True)

    def fill(self, left_bytes: int = 0) -> None:
        """Take all the room that is left, but for this much."""
        size = shutil.disk_usage(self.folder).free - left_bytes
        while size > 0:
            ended = subprocess.run(
                ["fallocate", "--length", str(size), str(self._filler)],
                check=False,
                capture_output=True,
            )
            if ended.returncode == 0:
                return
            size -= 64 << 10  # The file system needs some room to note where its blocks are.

    def empty(self) -> None:
        """Give back what `fill` took."""
        self._filler.unlink(missing_ok=True)


class Clock:
    """The time of day of a machine, as its processes see it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, seconds: int) -> None:
        """Let it be so far ahead of the real time (behind it, if negative), from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)

    def environment(self) -> dict[str, str]:
        """What a process must be started with to live by this clock."""
        library = faketime()
        if library is None:
            return {}
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
