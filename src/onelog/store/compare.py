"""Do two stores have the same log? Byte for byte, over the range that both of them have.

Replicas begin where retention has brought them, and end where they have got to; in between they
must not differ. Each may be OneLog's or RocketMQ's, in use or not, and have segments of its own
size: of a store in use, one moment is looked at.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onelog.store.commitlog import CommitLog
from onelog.store.readonly import open_readonly

_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two stores have in common."""

    first: str
    second: str
    first_range: tuple[int, int]
    """Log offsets: where its log begins, and where it ends."""
    second_range: tuple[int, int]
    start: int
    end: int
    """What both have; nothing, if that is empty."""
    differs_at: int | None
    """The first log offset where they have different bytes."""
    first_record: str
    second_record: str
    """In which file that is, and at which byte."""
    took_ms: int

    @property
    def same(self) -> bool:
        """Whether nothing differs, and there was something to compare, or nothing in one."""
        empty = any(begin == end for begin, end in (self.first_range, self.second_range))
        return self.differs_at is None and (self.end > self.start or empty)


def compare(
    first: Path, second: Path, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Comparison:
    """Compare the logs of the stores in two folders."""
    began = time.monotonic()
    one, other = open_readonly(first).log, open_readonly(second).log
    start = max(int(one.start), int(other.start))
    end = max(start, min(int(one.end), int(other.end)))
    at, differs_at = start, None
    while at < end and differs_at is None:
        size = min(_READ_BYTES, end - at, _room(one, at), _room(other, at))
        mine, its = one.read_cold(at, size), other.read_cold(at, size)
        if mine != its:
            unequal = np.frombuffer(mine, np.uint8) != np.frombuffer(its, np.uint8)
            differs_at = at + int(unequal.argmax())
        at += size
        on_progress(at - start, end - start)
    return Comparison(
        first=str(first),
        second=str(second),
        first_range=(int(one.start), int(one.end)),
        second_range=(int(other.start), int(other.end)),
        start=start,
        end=end,
        differs_at=differs_at,
        first_record="" if differs_at is None else _describe(one, differs_at),
        second_record="" if differs_at is None else _describe(other, differs_at),
        took_ms=int((time.monotonic() - began) * 1000),
    )


def _room(log: CommitLog, at: int) -> int:
    """How much of a segment follows from a log offset on."""
    segment = log.segment_at(at)
    return segment.start + segment.size - at


def _describe(log: CommitLog, at: int) -> str:
    segment = log.segment_at(at)
    return f"{segment.path} byte {at - segment.start}"
