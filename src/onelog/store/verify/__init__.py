"""Verification: is every byte of a store what the format says, and do its parts agree?

    log      lengths, checksums and places of all records
    queues   each entry leads to the record that belongs there; each record has its entries
    index    each entry leads to a record with such a key; chains and slots are right

The store is only read, and may be in use: then it is checked up to the last message that was in
its queue when the verification began. After a crash that nobody has recovered from, queues and
index are checked up to the checkpoint's safe offset, because recovery makes the rest anew.

A broken record does not end it: the next whole one is found, in a later segment if need be, and the
range that was skipped is reported.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from onelog.config import StoreConfig
from onelog.store.folder import look
from onelog.store.segment import disk_error
from onelog.store.verify.checking import Checking, OnProgress
from onelog.store.verify.findings import Findings, Problem

__all__ = ["Problem", "Verification", "verify"]

_PROBLEMS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Verification:
    """What was looked at, and what was found."""

    folder: str
    state: str
    """stopped, crashed or running"""
    log_start: int
    log_end: int
    """Of a running store: up to where it was checked."""
    segments: int
    records: int
    queues: int
    queue_entries: int
    index_files: int
    index_entries: int
    problems: tuple[Problem, ...]
    """The first ones; `problems_total` counts all."""
    problems_total: int
    notes: tuple[str, ...]
    took_ms: int

    @property
    def clean(self) -> bool:
        """Whether everything is as it should be."""
        return self.problems_total == 0


def verify(
    folder: Path,
    *,
    index_slots: int | None = None,
    index_entries: int | None = None,
    delay_levels: str = StoreConfig().delay_levels,
    problems_max: int = _PROBLEMS_MAX,
    on_progress: OnProgress = lambda done, total: None,
) -> Verification:
    """Check a store from one end to the other.

    `delay_levels` are the broker's: the queues of delayed messages say when each one is due.
    """
    began = time.monotonic()

    def opened() -> Checking:
        checking = Checking(folder, Findings(problems_max), delay_levels, on_progress)
        checking.open_index(index_slots, index_entries)
        return checking

    checking = look(folder, opened)
    try:
        checking.walk()
        checking.sum_up()
    except OSError as error:
        raise disk_error(error, folder, "read") from error
    findings = checking.findings
    return Verification(
        folder=str(folder),
        state=checking.state,
        log_start=checking.log.log_start,
        log_end=checking.log_end,
        segments=len(checking.log.segments),
        records=checking.records,
        queues=len(checking.queues),
        queue_entries=sum(queue.matched for queue in checking.queues.values()),
        index_files=checking.index_files,
        index_entries=checking.index.matched,
        problems=tuple(findings.problems),
        problems_total=findings.total,
        notes=tuple(findings.notes),
        took_ms=int((time.monotonic() - began) * 1000),
    )
