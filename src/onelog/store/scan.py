"""Reading on in a log, record by record and over damage, from a place to the end of its files.

What is no whole record is told and stepped over. What it means is for others to say: behind the
last record it is where the log ends, between two of them it is damage.
"""

from collections.abc import Iterator, Sequence

from onelog.record.decode import Blank, Broken
from onelog.store.columns import RecordWalk, Stretch
from onelog.store.commitlog import next_record
from onelog.store.damage import Damage
from onelog.store.segment import Segment


def scan(segments: Sequence[Segment], start: int, walk: RecordWalk) -> Iterator[Stretch | Damage]:
    """Whole records from log offset `start` on, many at a time, and what lies between them."""
    for segment in segments:
        at = max(0, start - segment.start)
        while at < segment.size:
            stretch, at, stop = walk.read(segment, at, segment.size)
            if stretch is not None:
                yield stretch
            if isinstance(stop, Blank):
                break
            if isinstance(stop, Broken):
                found = next_record(segment, at, walk.require_crc)
                yield Damage(segment.start + at, segment.start + found, stop.reason)
                at = found
