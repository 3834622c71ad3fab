"""The log as a verification sees it: its files one by one, whatever their state.

The store's own log refuses to open when a file is short or missing. Here that is a problem to
report, and the other files are still looked at.
"""

import bisect
import time
from pathlib import Path

from onelog.errors import StoreError
from onelog.message import Message
from onelog.record.decode import Blank, Broken
from onelog.store.commitlog import record_at
from onelog.store.segment import Segment, file_name, numbered_files
from onelog.store.verify.findings import Findings

_WAIT_S = 0.02
_WAITS_MAX = 100


class LogView:
    """The segments, and how far the rest of the store can be relied on to agree with them."""

    def __init__(
        self, folder: Path, segment_bytes: int, findings: Findings, *, crashed: bool = False
    ) -> None:
        self.segments: list[Segment] = []
        self._skipped: list[tuple[int, int]] = []
        files = numbered_files(folder) if folder.is_dir() else []
        expected = files[0][0] if files else 0
        for number, (start, size) in enumerate(files):
            where = f"commitlog/{file_name(start)}"
            if start != expected:
                findings.add(where, f"the file before it should end at {start}, not at {expected}")
            # The last one is empty when it is made, and short while its end is cut off.
            may_be_short = number == len(files) - 1 and (crashed or not size)
            if size != segment_bytes and not (may_be_short and size < segment_bytes):
                findings.add(where, f"has {size} bytes; segments have {segment_bytes}")
            if size:
                size = min(size, segment_bytes)
                path = folder / file_name(start)
                self.segments.append(Segment(path, start, size, writable=False))
            expected = start + segment_bytes
        self._starts = [segment.start for segment in self.segments]
        self.log_start = self._starts[0] if self._starts else 0
        last = self.segments[-1] if self.segments else None
        self.limit = last.start + last.size if last else 0
        self.trusted_end = self.limit
        """Below this log offset queues and index must be complete and right."""
        self.settled = True
        """Stopped cleanly: behind `trusted_end` is nothing that a recovery would put right."""
        self.stale_tails = False
        """RocketMQ wrote last; after a crash it leaves old entries behind a queue's end."""
        self.running = False
        self._waits_left = _WAITS_MAX

    def wait(self) -> bool:
        """Give a writer at work a moment to finish what it is doing; False if it had enough."""
        if not self.running or not self._waits_left:
            return False
        self._waits_left -= 1
        time.sleep(_WAIT_S)
        return True

    def segment_of(self, log_offset: int) -> Segment | None:
        """The file that has this log offset."""
        described = bisect.bisect_right(self._starts, log_offset) - 1
        if described < 0 or log_offset >= self._starts[described] + self.segments[described].size:
            return None
        return self.segments[described]

    def at(self, log_offset: int) -> Message | Blank | Broken:
        """What lies at a log offset."""
        segment = self.segment_of(log_offset)
        if segment is None:
            return Broken(log_offset, f"the log has {self.log_start}..{self.limit}")
        try:
            return record_at(segment, log_offset - segment.start)
        except StoreError as error:
            return Broken(log_offset, str(error))

    def described(self, log_offset: int) -> str:
        """Names a place of the log for people."""
        segment = self.segment_of(log_offset)
        name = segment.path.name if segment else "?"
        return f"commitlog/{name} log offset {log_offset}"

    def skip(self, start: int, end: int) -> None:
        """Remember a range that holds no whole records."""
        self._skipped.append((start, end))

    def is_skipped(self, log_offset: int) -> bool:
        """Whether a log offset lies in a range that was found broken."""
        return any(start <= log_offset < end for start, end in self._skipped)
