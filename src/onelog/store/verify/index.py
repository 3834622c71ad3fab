"""The key index against the log, and against itself.

Each entry must lead to a record that has a key with that hash, and say when it was stored. Entries
are made in the order of the log, so they are held next to the records stretch by stretch; an entry
that is out of that order (RocketMQ indexes the last message again after a restart) is looked up.

Within a file, each entry must name the one before it in the same slot, and each slot the newest.

Keys that no entry has are counted, not called a problem: RocketMQ loses some after every crash.
"""

import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onelog.message import Message, java_hash, property_bytes
from onelog.record.columns import Ints
from onelog.record.decode import Broken, decode_message
from onelog.record.dispatch import TAGS_NEEDLE
from onelog.store.folder import IndexGeometry
from onelog.store.keyindex import ENTRY_DTYPE, HEADER, SLOT_BYTES, key_hash, message_keys
from onelog.store.verify.findings import Findings
from onelog.store.verify.logview import LogView
from onelog.store.walk import Stretch

Rows = npt.NDArray[np.void]

_BLOCK_ENTRIES = 1 << 20
_WINDOW_ENTRIES = 1 << 17
_SECONDS_MAX = 0x7FFFFFFF
_IN_A_ROW = 3
"""So many entries past a stretch end it; fewer are taken for broken ones in between."""


@functools.lru_cache(maxsize=4096)
def tag_hash(topic: str, tags: bytes | None) -> int:
    """The hash under which RocketMQ 5.5 also indexes a message's tags."""
    text = (tags or b"").decode("utf-8", "replace")
    return abs(java_hash(f"{topic}#T#{text}")) & 0x7FFFFFFF


class IndexCheck:
    """One index file, and how far the log has confirmed it."""

    def __init__(self, path: Path, geometry: IndexGeometry, findings: Findings) -> None:
        self.path = path
        self._geometry = geometry
        self._findings = findings
        self.cursor = 1
        self.next_entry = 1
        self.readable = False
        size = path.stat().st_size
        if size != geometry.size:
            findings.add(self.described(), f"has {size} bytes; its geometry needs {geometry.size}")
            return
        content = np.memmap(path, np.uint8, "r")
        self._slots = np.frombuffer(content, ">i4", geometry.slots, HEADER.size)
        self.entries = np.frombuffer(
            content, ENTRY_DTYPE, geometry.entries, HEADER.size + geometry.slots * SLOT_BYTES
        )
        (
            self.first_ms,
            self._last_ms,
            self._first_log,
            self._last_log,
            self._used_slots,
            next_entry,
        ) = HEADER.unpack_from(content.data)
        self.readable = next_entry <= geometry.entries and next_entry >= 0
        if self.readable:
            self.next_entry = max(1, next_entry)
        else:
            findings.add(
                self.described(),
                f"claims {next_entry} entries; there is room for {geometry.entries}",
            )

    def described(self, entry: int | None = None) -> str:
        """Names the file, or an entry in it, for people."""
        return f"index/{self.path.name}" + ("" if entry is None else f" entry {entry}")

    def _check_header(self, slots_used: int) -> None:
        """The header sums up what the entries say."""
        if self.next_entry == 1:
            return
        first, last = self.entries[1].item(), self.entries[self.next_entry - 1].item()
        last_ms = self.first_ms + last[2] * 1000
        claims = [
            ("the first log offset", self._first_log, first[1], first[1]),
            ("the last log offset", self._last_log, last[1], last[1]),
            ("the used slots", self._used_slots, slots_used, slots_used),
        ]
        if self.next_entry > 2 and last[2] < _SECONDS_MAX:
            claims.append(("the last store time", self._last_ms, last_ms, last_ms + 999))
        for name, claimed, low, high in claims:
            if not low <= claimed <= high:
                self._findings.add(
                    f"{self.described()} header", f"{name}: {claimed}; by the entries it is {low}"
                )

    def check_chains(self, *, running: bool) -> None:
        """Each entry names the one before it in its slot, each slot the newest."""
        newest = np.zeros(self._geometry.slots, np.int64)
        for low in range(1, self.next_entry, _BLOCK_ENTRIES):
            block = self.entries[low : min(low + _BLOCK_ENTRIES, self.next_entry)]
            numbers = np.arange(low, low + len(block))
            hashes = block["hash"].astype(np.int64)
            slots = hashes % self._geometry.slots
            older = newest[slots]
            order = np.argsort(slots, kind="stable")
            same = slots[order][1:] == slots[order][:-1]
            older[order[1:][same]] = numbers[order[:-1][same]]
            newest[slots] = numbers
            for row in np.flatnonzero((block["older"] != older) | (hashes < 0)).tolist():
                self._findings.add(
                    self.described(low + row),
                    f"says that the entry before it in its slot is {block['older'][row]}; "
                    f"by the hashes it is {older[row]}",
                )
        self._check_slots(newest)
        if not running:
            self._check_header(int(np.count_nonzero(newest)))

    def _check_slots(self, newest: Ints) -> None:
        found = self._slots.astype(np.int64)
        # A writer at work may have linked further entries than the header said: step over them.
        for _ in range(self._geometry.entries):
            newer = np.flatnonzero((found >= self.next_entry) & (found < self._geometry.entries))
            if not len(newer):
                break
            older = self.entries["older"][found[newer]].astype(np.int64)
            found[newer] = np.where(older < found[newer], older, -1)
        for slot in np.flatnonzero(found != newest).tolist():
            self._findings.add(
                f"{self.described()} slot {slot}",
                f"leads to entry {self._slots[slot]}; the newest with such a hash is "
                f"{newest[slot]}",
            )


class IndexWalk:
    """All index files of a store, confirmed by the records of the log as they come."""

    def __init__(self, files: list[IndexCheck], findings: Findings) -> None:
        self._files = [file for file in files if file.readable]
        self._findings = findings
        self.matched = 0
        self.keys_missing = 0
        self._began = False

    def match(self, log_view: LogView, stretch: Stretch) -> None:
        """The entries of these records, and whichever others lie between them."""
        wanted_log, wanted_hash = stretch.log[stretch.key_row], stretch.key_hash
        found: list[Rows] = []
        taken = 0
        loosely = False
        for file in self._files:
            if file.cursor >= file.next_entry:
                continue
            stop = _end_of_stretch(file, stretch.end)
            rows = file.entries[file.cursor : stop]
            part = slice(taken, taken + len(rows))
            if np.array_equal(rows["log"], wanted_log[part]) and np.array_equal(
                rows["hash"], wanted_hash[part]
            ):
                every = np.ones(len(rows), np.bool_)
                self._check_times(file, rows, stretch.store_ms[stretch.key_row[part]], every)
            else:
                loosely = True
                self._match_loosely(log_view, stretch, file, rows)
            found.append(rows)
            taken += len(rows)
            file.cursor = stop
            if stop < file.next_entry:
                break
        self._began = self._began or taken > 0
        self.matched += taken
        if self._began and not log_view.running and (loosely or taken < len(wanted_log)):
            self.keys_missing += _count_missing(stretch, found)

    def _check_times(
        self, file: IndexCheck, rows: Rows, store_ms: Ints, chosen: npt.NDArray[np.bool_]
    ) -> None:
        expected = np.clip((store_ms - file.first_ms) // 1000, 0, _SECONDS_MAX)
        wrong = chosen & (rows["seconds"] != expected)
        if file.cursor == 1:
            wrong[:1] = False  # RocketMQ counts the first one from the end of the file before.
        for row in np.flatnonzero(wrong).tolist():
            self._findings.add(
                file.described(file.cursor + row),
                f"says {rows['seconds'][row]} s after the file's first message; the record at log "
                f"offset {rows['log'][row]} was stored {expected[row]} s after it",
            )

    def _match_loosely(
        self,
        log_view: LogView,
        stretch: Stretch,
        file: IndexCheck,
        rows: Rows,
    ) -> None:
        """Entries that are not one by one what the records give: with tags, or damaged."""
        record, here = _records_of(stretch, rows)
        hashes = rows["hash"].astype(np.int64)
        given = (stretch.key_row << 32) + stretch.key_hash
        right = here & np.isin((record << 32) + hashes, given)
        unsure = np.flatnonzero(here & ~right).tolist()
        for row in unsure:
            layout = stretch.layout
            message = decode_message(layout.raw.data, int(layout.at[record[row]]))
            tags = property_bytes(message.properties, TAGS_NEEDLE)
            right[row] = int(hashes[row]) == tag_hash(message.topic, tags)
        self._check_times(file, rows, stretch.store_ms[record], right)
        for row in np.flatnonzero(~right & _must_be_right(log_view, rows)).tolist():
            self._look_up(log_view, file, file.cursor + row)

    def _look_up(self, log_view: LogView, file: IndexCheck, entry: int) -> None:
        hashed, log, _, _ = file.entries[entry].item()
        found = log_view.at(log)
        if isinstance(found, Message):
            hashes = {
                key_hash(f"{found.topic}#{key.decode('utf-8', 'replace')}")
                for key in message_keys(found.properties)
            }
            hashes.add(tag_hash(found.topic, property_bytes(found.properties, TAGS_NEEDLE)))
            if hashed not in hashes:
                self._findings.add(
                    file.described(entry),
                    f"has hash {hashed}, which no key of the record at log offset {log} has",
                )
        elif not log_view.is_skipped(log):
            reason = found.reason if isinstance(found, Broken) else "there a segment is closed"
            self._findings.add(file.described(entry), f"points at log offset {log}: {reason}")

    def finish(self, log_view: LogView) -> None:
        """The log has been walked: entries that are left over lead nowhere, or past its end."""
        for file in self._files:
            for low in range(file.cursor, file.next_entry, _BLOCK_ENTRIES):
                rows = file.entries[low : min(low + _BLOCK_ENTRIES, file.next_entry)]
                for row in np.flatnonzero(_must_be_right(log_view, rows)).tolist():
                    self._look_up(log_view, file, low + row)
            file.cursor = file.next_entry
            file.check_chains(running=log_view.running)


def _end_of_stretch(file: IndexCheck, end: int) -> int:
    """One past the last entry for a record below the log offset `end`."""
    at = file.cursor
    while at < file.next_entry:
        logs = file.entries["log"][at : min(at + _WINDOW_ENTRIES, file.next_entry)]
        past = logs >= end
        for _ in range(_IN_A_ROW - 1):
            # At the end of the block there may be fewer in a row; that ends a stretch as well.
            past = past & np.append(past[1:], True)
        first = int(np.argmax(past)) if past.any() else len(past)
        if first < len(past):
            return at + first
        at += len(past)
    return at


def _must_be_right(log_view: LogView, rows: Rows) -> npt.NDArray[np.bool_]:
    """Which entries are for records that are still there, and not yet to be indexed anew."""
    end = np.inf if log_view.settled else log_view.trusted_end
    wanted: npt.NDArray[np.bool_] = (rows["log"] >= log_view.log_start) & (rows["log"] < end)
    return wanted


def _records_of(stretch: Stretch, rows: Rows) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Which record of the stretch each entry points at, and whether it points at one at all."""
    record = np.searchsorted(stretch.log, rows["log"].astype(np.int64))
    record = np.minimum(record, len(stretch.log) - 1)
    return record, stretch.log[record] == rows["log"]


def _count_missing(stretch: Stretch, found: list[Rows]) -> int:
    """How many keys of the records have no entry."""
    rows = np.concatenate(found) if found else np.zeros(0, ENTRY_DTYPE)
    record, here = _records_of(stretch, rows)
    entered = ((record << 32) + rows["hash"])[here]
    return int(np.isin((stretch.key_row << 32) + stretch.key_hash, entered, invert=True).sum())
