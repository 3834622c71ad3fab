"""`onelog store verify` and `compare`: every record of a store, or of two, with a progress bar."""

import dataclasses
import json
from pathlib import Path

from rich.console import Console
from rich.progress import DownloadColumn, TransferSpeedColumn

from onelog.commands.terminal import console, progress_bar, show_count, show_text
from onelog.config import StoreConfig
from onelog.store.compare import Comparison
from onelog.store.compare import compare as compare_stores
from onelog.store.verify import Verification
from onelog.store.verify import verify as verify_store


def verify(
    folder: Path,
    index_slots: int | None,
    index_entries: int | None,
    delay_levels: str | None,
    *,
    as_json: bool,
) -> bool:
    """Check a store and print what was found; whether it is as it should be."""
    columns = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    with progress_bar("verifying", None, *columns) as on_progress:
        found = verify_store(
            folder,
            index_slots=index_slots,
            index_entries=index_entries,
            delay_levels=delay_levels or StoreConfig().delay_levels,
            on_progress=on_progress,
        )
    if as_json:
        print(json.dumps({"clean": found.clean, **dataclasses.asdict(found)}, indent=2))
    else:
        _show(found, console())
    return found.clean


def _show(found: Verification, out: Console) -> None:
    states = {"stopped": "stopped cleanly", "crashed": "not stopped cleanly", "running": "in use"}
    out.print(f"{found.folder} ({states[found.state]})", style="bold")
    out.print(
        f"  log {found.log_start} .. {found.log_end}: {show_count(found.records)} records in "
        f"{found.segments} segments"
    )
    out.print(f"  {show_count(found.queue_entries)} entries in {show_count(found.queues)} queues")
    out.print(
        f"  {show_count(found.index_entries)} index entries in {show_count(found.index_files)} "
        "files"
    )
    for note in found.notes:
        out.print(f"  note: {show_text(note)}", soft_wrap=True)
    for problem in found.problems:
        out.print(f"  {show_text(str(problem))}", style="red", soft_wrap=True)
    hidden = found.problems_total - len(found.problems)
    if hidden > 0:
        out.print(f"  ... and {show_count(hidden)} more", style="red")
    seconds = found.took_ms / 1000
    if found.clean:
        out.print(f"all right, in {seconds:.1f} s", style="green")
    else:
        out.print(f"{show_count(found.problems_total)} problems, in {seconds:.1f} s", style="red")


def compare(first: Path, second: Path, *, as_json: bool) -> bool:
    """Compare two stores and print what was found; whether they have the same log."""
    columns = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    with progress_bar("comparing", None, *columns) as on_progress:
        found = compare_stores(first, second, on_progress)
    if as_json:
        print(json.dumps({"same": found.same, **dataclasses.asdict(found)}, indent=2))
    else:
        _show_comparison(found, console())
    return found.same


def _show_comparison(found: Comparison, out: Console) -> None:
    for folder, (start, end) in (
        (found.first, found.first_range),
        (found.second, found.second_range),
    ):
        out.print(f"{folder}: log {start} .. {end}", soft_wrap=True)
    if found.differs_at is not None:
        out.print(f"they differ from log offset {found.differs_at} on:", style="red")
        out.print(f"  {found.first_record}\n  {found.second_record}", soft_wrap=True)
    elif found.end > found.start:
        size = f"{found.end - found.start:,} bytes, {found.start} .. {found.end}"
        out.print(
            f"the same in all that both have: {size}, in {found.took_ms / 1000:.1f} s",
            style="green",
        )
    elif found.same:
        out.print("one of the logs is empty: there is nothing to compare", style="green")
    else:
        out.print("they have no part of the log in common", style="red")
