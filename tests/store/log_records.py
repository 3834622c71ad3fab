"""The records of a log, one by one, as they lie there."""

from collections.abc import Iterator

from onelog.message import Message
from onelog.record.decode import Blank, Broken
from onelog.store.commitlog import CommitLog, next_record, record_at


def scan_log(log: CommitLog, offset: int) -> Iterator[Message | Broken]:
    """Every whole record from an offset on and, where there are none, why; not up to `end` only."""
    for segment in log.segments:
        at = max(0, offset - segment.start)
        while at < segment.size:
            found = record_at(segment, at)
            if not isinstance(found, Blank):
                yield found
            at = next_record(segment, at) if isinstance(found, Broken) else at + found.size
