"""`onelog store inspect`: the facts about a store that cost little to find out."""

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from onelog.commands.terminal import console, show_bytes, show_count, show_text, table
from onelog.commands.times import show_time
from onelog.core.durable.tables import LEASES_TOPIC, Table
from onelog.core.queues.declared import DeclaredQueues
from onelog.core.queues.journal import LEASES_FILE
from onelog.core.queues.ledger import TABLE, Ledger, ledger_of
from onelog.core.queues.retention_holds import RetentionHold, all_ledgers, holds_of
from onelog.errors import OnelogError, StoreError
from onelog.message import Message
from onelog.names import TABLES_FILE, TABLES_TOPIC
from onelog.record.decode import decode_messages
from onelog.store.checkpoint import AbortMark, Checkpoint
from onelog.store.commitlog import record_at
from onelog.store.damage import known_damage
from onelog.store.folder import index_files, lock_holder, written_by
from onelog.store.reader import StoreReader
from onelog.store.readonly import open_readonly
from onelog.store.retention import space_usage

Document = dict[str, Any]


def inspect(
    folder: Path, index_slots: int | None, index_entries: int | None, *, as_json: bool
) -> None:
    """Print the facts about a store."""
    facts = find_facts(folder, index_slots, index_entries)
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        _show(facts, console())


def find_facts(folder: Path, index_slots: int | None, index_entries: int | None) -> Document:
    """Look at a store once; the document that programs get."""
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
        {
            "name": file.path.name,
            "entries": file.next_entry - 1,
            "entries_max": file.entries_count - 1,
            "first_store_ms": file.first_ms,
            "last_store_ms": file.last_ms,
        }
        for file in reader.index.files
    ]
    newest_ms = max((queue["last_store_ms"] or 0 for queue in queues), default=0)
    damage = [each for each in known_damage(folder) if each.end > reader.log_min]
    return {
        "folder": str(folder),
        "state": "running" if holder is not None else "crashed" if abort_mark else "stopped",
        # The process, 0 if it cannot be named.
        "in_use_by": holder,
        "abort_mark": abort_mark,
        "written_by": _writers(folder, checkpoint),
        "log_start": int(reader.log_min),
        "log_end": int(reader.log_end),
        "segment_bytes": reader.log.segment_bytes,
        "segments": _segment_facts(reader, newest_ms),
        "queues": queues,
        # Declared queues whose messages are not all done: for them old log is kept.
        "log_held_by": [hold._asdict() for hold in holds_in(reader)],
        "index_files": index,
        "index_files_unreadable": len(index_files(folder)) if not index else 0,
        "checkpoint": {
            "log_ms": checkpoint.log_ms,
            "queues_ms": checkpoint.queues_ms,
            "index_ms": checkpoint.index_ms,
            "safe_offset": checkpoint.safe_offset,
            "written_by_onelog": checkpoint.ours,
        },
        "space": dataclasses.asdict(space_usage(folder)),
        # As far as is known; `onelog store verify` finds all.
        "damage": [each._asdict() for each in damage],
    }


def _writers(folder: Path, checkpoint: Checkpoint) -> str:
    signature = written_by(folder)
    if signature is None:
        return "RocketMQ"
    return signature if checkpoint.ours else f"{signature}, and RocketMQ after it"


def _segment_facts(reader: StoreReader, newest_ms: int) -> list[Document]:
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
        facts.append(
            {
                "start": segment.start,
                "size": segment.size,
                "allocated_bytes": allocated,
                "first_store_ms": first_ms,
                # When the next one's first message was stored; of the last one, the newest message.
                "last_store_ms_at_most": next_ms or (None if first_ms is None else newest_ms),
            }
        )
    return facts


def _queue_facts(reader: StoreReader, topic: str, queue_id: int) -> Document:
    low, high = int(reader.min_offset(topic, queue_id)), int(reader.max_offset(topic, queue_id))
    last_ms = None
    if high > low:
        try:
            last_ms = reader.store_time(topic, queue_id, high - 1)
        except StoreError:
            pass  # Retention took the file meanwhile.
    return {
        "topic": topic,
        "queue_id": queue_id,
        "min_offset": low,
        "max_offset": high,
        "messages": high - low,
        "last_store_ms": last_ms,
    }


# -- for people --------------------------------------------------------------------------------


def _show(facts: Document, out: Console) -> None:
    start, end, checkpoint = facts["log_start"], facts["log_end"], facts["checkpoint"]
    out.print(facts["folder"], style="bold")
    out.print(f"  {_state_line(facts)}")
    out.print(f"  written by {facts['written_by']}")
    out.print(f"  log {start} .. {end} ({show_bytes(end - start)})")
    out.print(
        f"  checkpoint: log {show_time(checkpoint['log_ms'])}, queues "
        f"{show_time(checkpoint['queues_ms'])}, index {show_time(checkpoint['index_ms'])}, "
        f"safe offset {checkpoint['safe_offset'] or '-'}"
    )
    space = {name: show_bytes(size) for name, size in facts["space"].items()}
    out.print(
        f"  on disk: log {space['log_bytes']}, queues {space['queue_bytes']}, "
        f"index {space['index_bytes']}, other {space['other_bytes']}; "
        f"free {space['disk_free_bytes']} of {space['disk_total_bytes']}"
    )
    if damage := facts["damage"]:
        damaged_bytes = sum(each["end"] - each["start"] for each in damage)
        out.print(
            f"  damaged: {show_bytes(damaged_bytes)} of the log in "
            f"{show_count(len(damage))} places, the first from {damage[0]['start']} to "
            f"{damage[0]['end']}: {show_text(damage[0]['reason'])}",
            style="red",
            soft_wrap=True,
        )
    for hold in facts["log_held_by"]:
        out.print(
            f"  queue {show_text(hold['queue'])} of vhost {show_text(hold['vhost'])} keeps the log "
            f"from {hold['log_offset']} on: {show_count(hold['messages'])} messages are not done",
            soft_wrap=True,
        )
    _show_tables(facts, out)


def _state_line(facts: Document) -> str:
    if facts["state"] == "running":
        holder = facts["in_use_by"]
        return f"in use by process {holder}" if holder else "in use by a process"
    if facts["state"] == "crashed":
        return "not stopped cleanly: the next start recovers it (there is a file `abort`)"
    return "stopped cleanly"


def _show_tables(facts: Document, out: Console) -> None:
    segments = table(
        "Segments",
        ">start, >size, >on disk, first stored=first_store_ms, last stored "
        "by=last_store_ms_at_most",
        rows=(
            {
                **each,
                "size": show_bytes(each["size"]),
                "on_disk": show_bytes(each["allocated_bytes"]),
            }
            for each in facts["segments"]
        ),
    )
    queues = table(
        "Queues",
        "topic, >queue=queue_id, >min=min_offset, >max=max_offset, #messages, last "
        "stored=last_store_ms",
        rows=facts["queues"],
    )
    index = table(
        "Index files",
        "name, #entries, #of=entries_max, first stored=first_store_ms, last stored=last_store_ms",
        rows=facts["index_files"],
    )
    for made in (segments, queues, index):
        if made.row_count:
            out.print()
            out.print(made)
    if facts["index_files_unreadable"]:
        out.print(f"{facts['index_files_unreadable']} index files of an unknown geometry")


_READ_COUNT, _READ_BYTES = 1_000, 1 << 20


class _Ledgers:
    """The table of ledgers, as far as it is needed here."""

    name = TABLE

    def __init__(self) -> None:
        self.known: dict[str, Ledger] = {}

    def apply(self, key: str, value: Any) -> None:
        if value is None:
            self.known.pop(key, None)
        else:
            if key not in self.known:
                self.known[key] = ledger_of(key)
            self.known[key].apply(value)

    def parts(self) -> list[dict[str, Any]]:
        return []


def holds_in(store: StoreReader) -> list[RetentionHold]:
    """Queues with messages that are not done; none, if what is recorded of them is unreadable."""
    ledgers, declared = _Ledgers(), DeclaredQueues()
    try:
        _read(store, LEASES_FILE, LEASES_TOPIC, ledgers)
        _read(store, TABLES_FILE, TABLES_TOPIC, declared)
        return holds_of(store, all_ledgers(store, ledgers.known, declared))
    except (OnelogError, msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return []


def _read(store: StoreReader, file: str, topic: str, table: Table) -> None:
    """Bring a table to its last recorded state: the snapshot in a file, and what came since."""
    offset, needle = 0, b'["%b",' % table.name.encode()
    with contextlib.suppress(FileNotFoundError):
        snapshot = msgspec.json.decode((store.folder / "config" / file).read_bytes())
        offset = snapshot["next_offset"]
        for key, value in snapshot["tables"].get(table.name, {}).items():
            table.apply(key, value)
    offset = max(offset, int(store.min_offset(topic, 0)))
    while offset < store.max_offset(topic, 0):
        read = store.read_now(topic, 0, offset, _READ_COUNT, _READ_BYTES)
        for part in read.slices:
            for message in decode_messages(part):
                body = bytes(message.body)
                for name, key, value in msgspec.json.decode(body) if needle in body else ():
                    if name == table.name:
                        table.apply(key, value)
        if read.next_offset <= offset:
            break
        offset = read.next_offset
