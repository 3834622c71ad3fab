"""Who wrote which part of the log: each master begins an epoch, where its log ended then.

    epoch 3 from 0        epoch 4 from 7,000      epoch 7 from 7,900
    |---------------------|-----------------------|-------------- end of the log

Two logs that have the same epoch from the same place are equal up to where the epoch ends in either
of them: it had one master, who only appended. So the newest such epoch tells the last place that
two histories have in common, and what a replica has behind it was never confirmed.

The file is RocketMQ's `epochFileCheckpoint`: a line with the count, one with a checksum of the
rest, then `epoch-start` in a line each.

Invariant: epochs and their starts grow; the file says the same as memory before anything of a new
epoch is written to the log.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from zlib import crc32

from onelog.errors import StoreCorruptError
from onelog.store.segment import disk_error, write_whole

FILE = "epochFileCheckpoint"
EPOCHS_MAX = 1_000
"""What RocketMQ's greeting has room for; the oldest ones are forgotten."""

Entries = Sequence[tuple[int, int]]


def last_shared(mine: Entries, my_end: int, others: Entries, other_end: int) -> int | None:
    """The last place up to which two logs are equal; None if their histories do not meet."""
    ends = _with_ends(others, other_end)
    for epoch, (start, end) in reversed(_with_ends(mine, my_end).items()):
        other = ends.get(epoch)
        if other is not None and other[0] == start:
            return min(end, other[1])
    return None


def _with_ends(entries: Entries, end: int) -> dict[int, tuple[int, int]]:
    after = [start for _, start in entries[1:]] + [end]
    return {epoch: (start, upto) for (epoch, start), upto in zip(entries, after, strict=False)}


class Epochs:
    """The epochs of a log."""

    def __init__(self, folder: Path | None = None) -> None:
        """Read what the store in `folder` has; None keeps them in memory only."""
        self._path = None if folder is None else folder / FILE
        self.entries: list[tuple[int, int]] = []
        if self._path is not None and self._path.exists():
            self.entries = _parsed(self._path)

    @property
    def last(self) -> int:
        """The epoch of the log's end; 0 if there is none."""
        return self.entries[-1][0] if self.entries else 0

    def begin(self, epoch: int, start: int) -> None:
        """What follows from `start` on is of this epoch. One of which nothing is written goes."""
        assert epoch > self.last, (epoch, self.entries[-1:])
        kept = [entry for entry in self.entries if entry[1] < start]
        assert len(kept) >= len(self.entries) - 1, (start, self.entries[-2:])
        self._save([*kept, (epoch, start)][-EPOCHS_MAX:])

    def at(self, offset: int) -> tuple[int, int, int | None]:
        """The epoch of a place of the log, where it begins, and where it ends: None for the last.

        A log may begin before its first epoch is known to have begun: then it counts as that one.
        """
        entries = self.entries
        number = len(entries) - 1
        while number > 0 and entries[number][1] > offset:
            number -= 1
        epoch, start = entries[number] if entries else (0, 0)
        upto = entries[number + 1][1] if number + 1 < len(entries) else None
        return epoch, start, upto

    def cut(self, end: int) -> None:
        kept = [entry for entry in self.entries if entry[1] < end]
        if len(kept) < len(self.entries):
            self._save(kept)

    def forget(self, log_start: int) -> None:
        """The log begins here now: epochs that ended before are of no use."""
        kept = [
            entry
            for entry, after in zip(self.entries, self.entries[1:], strict=False)
            if after[1] > log_start
        ]
        kept += self.entries[-1:]
        if len(kept) < len(self.entries):
            self._save(kept)

    def _save(self, entries: list[tuple[int, int]]) -> None:
        if self._path is not None:
            lines = "".join(f"{epoch}-{start}\n" for epoch, start in entries)
            text = f"{len(entries)}\n{_checksum(lines)}\n{lines}"
            write_whole(self._path, text)
        self.entries = entries


def _checksum(lines: str) -> int:
    return crc32(lines.encode()) & 0x7FFF_FFFF


def _parsed(path: Path) -> list[tuple[int, int]]:
    try:
        count, checksum, *lines = path.read_text().splitlines()
        entries = [(int(epoch), int(start)) for epoch, start in (line.split("-") for line in lines)]
        text = "".join(f"{line}\n" for line in lines)
        if int(count) != len(entries) or int(checksum) not in (0, _checksum(text)):
            raise ValueError("its checksum or count is another")
        if any(one >= two for one, two in pairwise(entries)):
            raise ValueError("its epochs do not grow")
    except OSError as error:
        raise disk_error(error, path, "read") from error
    except ValueError as error:
        raise StoreCorruptError(
            f"{path} is no list of epochs ({error}): if this node has replicas, move its store "
            "away and start it again, and it is copied from the master"
        ) from None
    return entries
