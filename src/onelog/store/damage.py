"""Damage in the log: reading on over it, and what is remembered of it.

What is no whole record is told and stepped over. What it means is for the reader to say: behind the
last record it is where the log ends, between two of them it is damage. Recovery leaves it there:

    onelog-damage.json = {"damage": [[start, end, reason], ...]}, in log offsets

A later opening has no reason to read those places again, and would not know of them. The file is
for people (`onelog store inspect`), and for who mends queues: what was left out of them stays out.
It may be deleted.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from onelog.private_files import write
from onelog.record.decode import Blank, Broken
from onelog.store.commitlog import next_record
from onelog.store.segment import Segment
from onelog.store.walk import RecordWalk, Stretch

_log = logging.getLogger(__name__)

FILE = "onelog-damage.json"
RANGES_MAX = 1_000


class Damage(NamedTuple):
    """Bytes of the log, from one log offset to another, that are no use, and why."""

    start: int
    end: int
    reason: str

    @property
    def size(self) -> int:
        """How many bytes."""
        return self.end - self.start


class Damages:
    """Ranges, the first ones of them by name and all of them by number."""

    def __init__(self) -> None:
        self.ranges: list[Damage] = []
        self.count = 0
        self.size = 0

    def add(self, damage: Damage) -> None:
        """Count a range in."""
        self.count += 1
        self.size += damage.size
        if len(self.ranges) < RANGES_MAX:
            self.ranges.append(damage)


def known_damage(store: Path) -> tuple[Damage, ...]:
    try:
        found = json.loads((store / FILE).read_bytes())["damage"]
        return tuple(Damage(int(start), int(end), str(why)) for start, end, why in found)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("%s cannot be read, and is ignored: %s", store / FILE, error)
        return ()


def remember_damage(
    store: Path, found: Iterable[Damage], log_start: int, log_end: int
) -> tuple[Damage, ...]:
    """Add to what is known, and forget what is gone from the log; returns what is known now."""
    before = known_damage(store)
    by_start = {
        each.start: each
        for each in (*before, *found)
        if each.end > log_start and each.start < log_end
    }
    known = tuple(sorted(by_start.values()))[-RANGES_MAX:]
    if known != before:
        path = store / FILE
        try:
            if known:
                text = json.dumps({"damage": known}, indent=1)
                write(path.with_suffix(".tmp"), text.encode())
                os.replace(path.with_suffix(".tmp"), path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s cannot be written: %s", path, error)
    return known


def scan(
    segments: Sequence[Segment], start: int, walk: RecordWalk, end: int | None = None
) -> Iterator[Stretch | Damage]:
    """Whole records from log offset `start` on, many at a time, and what lies between them.

    Only those that begin before `end`, if that is given.
    """
    for segment in segments:
        at = max(0, start - segment.start)
        limit = segment.size if end is None else min(segment.size, end - segment.start)
        while at < limit:
            stretch, at, stop = walk.read(segment, at, limit)
            if stretch is not None:
                yield stretch
            if isinstance(stop, Blank):
                break
            if isinstance(stop, Broken):
                found = next_record(segment, at, walk.require_crc)
                yield Damage(segment.start + at, segment.start + found, stop.reason)
                at = found
