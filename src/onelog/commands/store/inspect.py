"""`onelog store inspect`: the facts about a store that cost little to find out."""

import dataclasses
import json
import os
from pathlib import Path

from rich.console import Console

from onelog.commands.terminal import console, show_bytes, show_count, show_text, table
from onelog.commands.times import show_time
from onelog.errors import StoreError
from onelog.message import Message
from onelog.store.checkpoint import AbortMark, Checkpoint
from onelog.store.commitlog import record_at
from onelog.store.damage import known_damage
from onelog.store.folder import index_files, lock_holder, written_by
from onelog.store.reader import StoreReader
from onelog.store.readonly import open_readonly
from onelog.store.retention import SpaceUsage, space_usage


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A file of the log."""

    start: int
    size: int
    allocated_bytes: int
    first_store_ms: int | None
    last_store_ms_at_most: int | None
    """When the next segment's first message was stored; of the last one, the newest message."""


@dataclasses.dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue of a topic."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    messages: int
    last_store_ms: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class IndexFacts:
    """An index file."""

    name: str
    entries: int
    entries_max: int
    first_store_ms: int
    last_store_ms: int


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """What the checkpoint says."""

    log_ms: int
    queues_ms: int
    index_ms: int
    safe_offset: int
    written_by_onelog: bool


@dataclasses.dataclass(frozen=True, slots=True)
class DamageFacts:
    """A range of the log that recovery found to be no use, and left."""

    start: int
    end: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class StoreFacts:
    """Everything that `inspect` shows."""

    folder: str
    state: str
    """running, crashed or stopped"""
    in_use_by: int | None
    """The process, 0 if it cannot be named."""
    abort_mark: bool
    written_by: str
    log_start: int
    log_end: int
    segment_bytes: int
    segments: list[SegmentFacts]
    queues: list[QueueFacts]
    index_files: list[IndexFacts]
    index_files_unreadable: int
    checkpoint: CheckpointFacts
    space: SpaceUsage
    damage: list[DamageFacts]
    """As far as is known; `onelog store verify` finds all."""


def inspect(
    folder: Path, index_slots: int | None, index_entries: int | None, *, as_json: bool
) -> None:
    """Print the facts about a store."""
    facts = find_facts(folder, index_slots, index_entries)
    if as_json:
        print(json.dumps(dataclasses.asdict(facts), indent=2))
    else:
        _show(facts, console())


def find_facts(folder: Path, index_slots: int | None, index_entries: int | None) -> StoreFacts:
    """Look at a store once."""
    reader = open_readonly(folder, index_slots, index_entries)
    checkpoint = Checkpoint(folder / "checkpoint")
    holder = lock_holder(folder)
    abort_mark = AbortMark(folder / "abort").present()
    queues = [
        _queue_facts(reader, topic, queue_id)
        for topic, queue_ids in reader.queues().items()
        for queue_id in queue_ids
    ]
    index = [
        IndexFacts(
            file.path.name, file.next_entry - 1, file.entries_count - 1, file.first_ms, file.last_ms
        )
        for file in reader.index.files
    ]
    newest_ms = max((queue.last_store_ms or 0 for queue in queues), default=0)
    return StoreFacts(
        folder=str(folder),
        state="running" if holder is not None else "crashed" if abort_mark else "stopped",
        in_use_by=holder,
        abort_mark=abort_mark,
        written_by=_writers(folder, checkpoint),
        log_start=int(reader.log_min),
        log_end=int(reader.log_end),
        segment_bytes=reader.log.segment_bytes,
        segments=_segment_facts(reader, newest_ms),
        queues=queues,
        index_files=index,
        index_files_unreadable=len(index_files(folder)) if not index else 0,
        checkpoint=CheckpointFacts(
            checkpoint.log_ms,
            checkpoint.queues_ms,
            checkpoint.index_ms,
            checkpoint.safe_offset,
            checkpoint.ours,
        ),
        space=space_usage(folder),
        damage=[DamageFacts(*each) for each in known_damage(folder) if each.end > reader.log_min],
    )


def _writers(folder: Path, checkpoint: Checkpoint) -> str:
    signature = written_by(folder)
    if signature is None:
        return "RocketMQ"
    return signature if checkpoint.ours else f"{signature}, and RocketMQ after it"


def _segment_facts(reader: StoreReader, newest_ms: int) -> list[SegmentFacts]:
    firsts: list[int | None] = []
    for segment in reader.log.segments:
        first = record_at(segment, 0)
        firsts.append(first.store_ms if isinstance(first, Message) else None)
    facts = []
    for segment, first_ms, next_ms in zip(
        reader.log.segments, firsts, [*firsts, None][1:], strict=True
    ):
        try:
            allocated = os.stat(segment.path).st_blocks * 512
        except FileNotFoundError:
            continue  # Retention took it meanwhile.
        last_ms = next_ms or (newest_ms if first_ms is not None else None)
        facts.append(SegmentFacts(segment.start, segment.size, allocated, first_ms, last_ms))
    return facts


def _queue_facts(reader: StoreReader, topic: str, queue_id: int) -> QueueFacts:
    low, high = int(reader.min_offset(topic, queue_id)), int(reader.max_offset(topic, queue_id))
    last_ms = None
    if high > low:
        try:
            last_ms = reader.store_time(topic, queue_id, high - 1)
        except StoreError:
            pass  # Retention took the file meanwhile.
    return QueueFacts(topic, queue_id, low, high, high - low, last_ms)


# -- for people --------------------------------------------------------------------------------


def _show(facts: StoreFacts, out: Console) -> None:
    out.print(facts.folder, style="bold")
    out.print(f"  {_state_line(facts)}")
    out.print(f"  written by {facts.written_by}")
    size = show_bytes(facts.log_end - facts.log_start)
    out.print(f"  log {facts.log_start} .. {facts.log_end} ({size})")
    checkpoint = facts.checkpoint
    out.print(
        f"  checkpoint: log {show_time(checkpoint.log_ms)}, queues "
        f"{show_time(checkpoint.queues_ms)}, index {show_time(checkpoint.index_ms)}, "
        f"safe offset {checkpoint.safe_offset or '-'}"
    )
    space = facts.space
    out.print(
        f"  on disk: log {show_bytes(space.log_bytes)}, queues {show_bytes(space.queue_bytes)}, "
        f"index {show_bytes(space.index_bytes)}, other {show_bytes(space.other_bytes)}; "
        f"free {show_bytes(space.disk_free_bytes)} of {show_bytes(space.disk_total_bytes)}"
    )
    if facts.damage:
        damaged_bytes = sum(each.end - each.start for each in facts.damage)
        first = facts.damage[0]
        out.print(
            f"  damaged: {show_bytes(damaged_bytes)} of the log in "
            f"{show_count(len(facts.damage))} places, the first from {first.start} to {first.end}: "
            f"{show_text(first.reason)}",
            style="red",
            soft_wrap=True,
        )
    _show_tables(facts, out)


def _state_line(facts: StoreFacts) -> str:
    if facts.state == "running":
        return f"in use by process {facts.in_use_by}" if facts.in_use_by else "in use by a process"
    if facts.state == "crashed":
        return "not stopped cleanly: the next start recovers it (there is a file `abort`)"
    return "stopped cleanly"


def _show_tables(facts: StoreFacts, out: Console) -> None:
    segments = table(
        "Segments", ">start", ">size", ">on disk", ("first stored", "first_store_ms"),
        ("last stored by", "last_store_ms_at_most"),
        rows=(
            {
                **dataclasses.asdict(each), "size": show_bytes(each.size),
                "on_disk": show_bytes(each.allocated_bytes),
            }
            for each in facts.segments
        ),
    )  # fmt: skip
    queues = table(
        "Queues", "topic", (">queue", "queue_id"), (">min", "min_offset"), (">max", "max_offset"),
        "#messages", ("last stored", "last_store_ms"),
        rows=map(dataclasses.asdict, facts.queues),
    )  # fmt: skip
    index = table(
        "Index files", "name", "#entries", ("#of", "entries_max"),
        ("first stored", "first_store_ms"), ("last stored", "last_store_ms"),
        rows=map(dataclasses.asdict, facts.index_files),
    )  # fmt: skip
    for made in (segments, queues, index):
        if made.row_count:
            out.print()
            out.print(made)
    if facts.index_files_unreadable:
        out.print(f"{facts.index_files_unreadable} index files of an unknown geometry")
