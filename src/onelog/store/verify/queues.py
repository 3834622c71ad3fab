"""Queues against the log: each entry leads to its record, each record has its entries.

The records that name a queue come in the order of the log, and so do the entries of a queue. So the
two are held next to each other, stretch by stretch. An entry that no record laid claim to is looked
at by itself.

A record may rightly have no entry: the topic was deleted, and perhaps made anew since, which begins
its queues again at 0. Such records lie before everything that the queue now has. And an entry may
rightly have no record: its segment was deleted, or it is padding.
"""

import itertools
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onelog.errors import StoreFailedError
from onelog.message import Message
from onelog.record.columns import Ints
from onelog.record.decode import Broken
from onelog.record.entries import ENTRY_BYTES, ENTRY_DTYPE, PADDING_SIZE
from onelog.store.mending import occupies
from onelog.store.queue_folders import QUEUES_FOLDER, folder_of, parents_of
from onelog.store.segment import Segment, file_name, numbered_files
from onelog.store.verify.findings import Findings
from onelog.store.verify.logview import LogView

Entries = npt.NDArray[np.void]

_BLOCK_ENTRIES = 65_536
_LOOKED_AT_MAX = 100
"""Entries of one gap that are looked at one by one; the rest is told in one line."""
_EXTENSION_BELOW = -(1 << 31)
"""Tags codes below any hash are addresses in RocketMQ's consumequeue_ext."""


class QueueCheck:
    """One queue, and how far the log has confirmed it."""

    def __init__(
        self, folder: Path, topic: str, queue_id: int, file_entries: int, findings: Findings
    ) -> None:
        self.folder = folder
        self.topic = topic
        self.queue_id = queue_id
        self._findings = findings
        self._file_entries = file_entries
        self._extended = (parents_of(folder)[-1] / "consumequeue_ext" / folder_of(topic)).is_dir()
        self._files = self._find_files()
        self.first = min(self._files) * file_entries if self._files else 0
        self.end = self._find_end()
        self.cursor = self.first
        self.matched = 0
        self.padded = 0
        self.stale = 0
        self.former = 0
        """Records of an earlier topic of the same name."""
        self._front_next = self._front_count = 0

    # -- files ---------------------------------------------------------------------------------

    def _find_files(self) -> set[int]:
        size_expected = self._file_entries * ENTRY_BYTES
        numbers: set[int] = set()
        files = numbered_files(self.folder)
        for described, (byte_offset, size) in enumerate(files):
            number, odd = divmod(byte_offset, size_expected)
            where = self._describe_file(file_name(byte_offset))
            if odd:
                self._findings.add(where, f"the name is no multiple of {size_expected}")
                continue
            if numbers and number - 1 not in numbers:
                self._findings.add(where, "the file before it is missing")
            if size != size_expected and (size or described < len(files) - 1):
                self._findings.add(where, f"has {size} bytes; queue files have {size_expected}")
            numbers.add(number)
        return numbers

    def _find_end(self) -> int:
        """One past the last entry that is not all zeros."""
        size = self._file_entries * ENTRY_BYTES
        for file in sorted(self._files, reverse=True):
            try:
                used = Segment(self._path(file), 0, size, writable=False).data_end(0)
            except StoreFailedError:
                continue  # Retention took it.
            if used:
                return file * self._file_entries + -(-used // ENTRY_BYTES)
        return self.first

    def read(self, low: int, high: int) -> Entries:
        """Entries as the files have them; zeros where they have nothing."""
        rows = np.zeros(high - low, ENTRY_DTYPE)
        at = low
        while at < high:
            file, slot = divmod(at, self._file_entries)
            here = min(high - at, self._file_entries - slot)
            if file in self._files:
                try:
                    with open(self._path(file), "rb", buffering=0) as raw:
                        part = os.pread(raw.fileno(), here * ENTRY_BYTES, slot * ENTRY_BYTES)
                except FileNotFoundError:
                    self._files.discard(file)  # Retention took it.
                    part = b""
                whole = len(part) // ENTRY_BYTES
                rows[at - low : at - low + whole] = np.frombuffer(part, ENTRY_DTYPE, whole)
            at += here
        return rows

    def _path(self, file: int) -> Path:
        return self.folder / file_name(file * self._file_entries * ENTRY_BYTES)

    def _describe_file(self, name: str) -> str:
        return f"{QUEUES_FOLDER}/{folder_of(self.topic)}/{self.queue_id}/{name}"

    def described(self, offset: int, until: int | None = None) -> str:
        """Names an entry, or a range of them, for people."""
        file = offset // self._file_entries * self._file_entries * ENTRY_BYTES
        entries = f"entry {offset}" if until in (None, offset) else f"entries {offset}..{until}"
        return f"{self._describe_file(file_name(file))} {entries}"

    # -- what the log says ---------------------------------------------------------------------

    def match(self, log_view: LogView, offset: Ints, log: Ints, size: Ints, code: Ints) -> None:
        """The next records of the queue, in the order of the log."""
        cuts = [0, *(np.flatnonzero(np.diff(offset) != 1) + 1).tolist(), len(offset)]
        for start, end in itertools.pairwise(cuts):
            at = int(offset[start])
            if at < self.first:
                start = self._before_first(at, start, end)
                at = self.first
            if start < end:
                part = slice(start, end)
                self._match_run(log_view, at, log[part], size[part], code[part])

    def _before_first(self, at: int, start: int, end: int) -> int:
        """Count records that are older than the queue's first file."""
        count = min(end - start, self.first - at)
        if at != self._front_next:
            self._front_count = 0
        self._front_count += count
        self._front_next = at + count
        return start + count

    def _match_run(self, log_view: LogView, at: int, log: Ints, size: Ints, code: Ints) -> None:
        """Records with consecutive offsets from `at` on."""
        count = len(log)
        # The log is written first, then one queue after the other.
        while at + count > self.end and log_view.wait():
            self.end = self._find_end()
        inside = max(0, min(self.end - at, count))
        rows = self.read(at, at + inside)
        same_code = rows["code"] == code[:inside]
        if self._extended:
            same_code |= rows["code"] < _EXTENSION_BELOW
        same = (rows["log"] == log[:inside]) & (rows["size"] == size[:inside]) & same_code
        if not self.matched and not same.any() and self._is_former(log_view, at, rows, int(log[0])):
            self.former += count
            return
        if at > self.cursor:
            self._explain(log_view, self.cursor, at, is_tail=False)
        for row in np.flatnonzero(~same).tolist():
            if self._findings.full:
                self._findings.total += 1
                continue
            expected = int(log[row]), int(size[row]), int(code[row])
            self._report_difference(log_view, at + row, rows[row], expected)
        if inside < count and not (log_view.running and not self._files):
            self._findings.add(
                self.described(at + inside, at + count - 1),
                f"missing, though the log has the record at log offset {log[inside]}",
                count - inside,
            )
        self.matched += int(same.sum())
        self.cursor = max(self.cursor, at + inside)

    def _is_former(self, log_view: LogView, at: int, rows: Entries, log: int) -> bool:
        """Whether records belong to an earlier topic of the same name.

        Then what the queue has at their places, or as its last entry, is right, and lies later in
        the log.
        """
        if self.end == self.first:
            return False
        offset = at if len(rows) else self.end - 1
        entry = rows[0] if len(rows) else self.read(offset, offset + 1)[0]
        if int(entry["log"]) <= log or int(entry["size"]) == PADDING_SIZE:
            return False
        found = log_view.at(int(entry["log"]))
        return isinstance(found, Message) and occupies(found, self.topic, self.queue_id, offset)

    def _report_difference(
        self, log_view: LogView, offset: int, entry: np.void, expected: tuple[int, int, int]
    ) -> None:
        found = int(entry["log"]), int(entry["size"]), int(entry["code"])
        if found == (0, 0, 0):
            if log_view.running and offset // self._file_entries not in self._files:
                return  # Deleted while we looked.
            what = f"empty, though the log has its record at log offset {expected[0]}"
        elif found[1] == PADDING_SIZE:
            what = f"padding, though the log has its record at log offset {expected[0]}"
        elif found[0] != expected[0]:
            what = f"points at log offset {found[0]}; its record is at {expected[0]}"
        elif found[1] != expected[1]:
            what = (
                f"says that the record at log offset {found[0]} has {found[1]} bytes; "
                f"it has {expected[1]}"
            )
        else:
            what = (
                f"has tags code {found[2]}; the record at log offset {found[0]} gives {expected[2]}"
            )
        self._findings.add(self.described(offset), what)

    # -- entries without a record --------------------------------------------------------------

    def finish(self, log_view: LogView) -> None:
        """The log has been walked: look at what is left over."""
        if self._front_count and self._front_next == self.first and not log_view.running:
            self._findings.add(
                self.described(self.first - self._front_count, self.first - 1),
                "missing, though the log has their records",
                self._front_count,
            )
        else:
            self.former += self._front_count
        self._explain(log_view, self.cursor, self.end, is_tail=True)
        self.cursor = self.end

    def _explain(self, log_view: LogView, low: int, high: int, *, is_tail: bool) -> None:
        """Entries that no record laid claim to: why, and is it a problem?"""
        for start in range(low, high, _BLOCK_ENTRIES):
            rows = self.read(start, min(start + _BLOCK_ENTRIES, high))
            padding = (rows["size"] == PADDING_SIZE) & (rows["log"] == 0)
            self.padded += int(padding.sum())
            deleted = (rows["log"] < log_view.log_start) & (rows["size"] > 0)
            pending = (rows["log"] >= log_view.trusted_end) & (not log_view.settled)
            if log_view.running:
                files = np.arange(start, start + len(rows)) // self._file_entries
                deleted |= np.isin(files, list(self._files), invert=True)
            left = np.flatnonzero(~(padding | deleted | pending)).tolist()
            if is_tail and log_view.stale_tails:
                self.stale += len(left)
                continue
            for row in left[:_LOOKED_AT_MAX]:
                self._explain_one(log_view, start + row, rows[row])
            if len(left) > _LOOKED_AT_MAX:
                rest = left[_LOOKED_AT_MAX:]
                self._findings.add(
                    self.described(start + rest[0], start + rest[-1]),
                    f"{len(rest)} more that lead to no record of this queue",
                    len(rest),
                )

    def _explain_one(self, log_view: LogView, offset: int, entry: np.void) -> None:
        log, size = int(entry["log"]), int(entry["size"])
        if (log, size) == (0, 0):
            self._findings.add(self.described(offset), "empty, between entries that are not")
            return
        found = log_view.at(log)
        if isinstance(found, Message):
            if occupies(found, self.topic, self.queue_id, offset):
                what = "comes after entries that point further back in the log"
            else:
                what = (
                    f"there lies the record of {found.topic!r} queue {found.queue_id} "
                    f"offset {found.queue_offset}"
                )
        else:
            what = found.reason if isinstance(found, Broken) else "there a segment is closed"
        self._findings.add(self.described(offset), f"points at log offset {log}: {what}")
