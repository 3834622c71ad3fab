"""`onelog store compare`: whether two stores have the same log, with a progress bar."""

import dataclasses
import json
from pathlib import Path

from rich.console import Console
from rich.progress import DownloadColumn, TransferSpeedColumn

from onelog.commands.terminal import console, progress_bar
from onelog.store.compare import Comparison
from onelog.store.compare import compare as compare_stores


def compare(first: Path, second: Path, *, as_json: bool) -> bool:
    """Compare two stores and print what was found; whether they have the same log."""
    columns = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    with progress_bar("comparing", None, *columns) as on_progress:
        found = compare_stores(first, second, on_progress)
    if as_json:
        print(json.dumps({"same": found.same, **dataclasses.asdict(found)}, indent=2))
    else:
        _show(found, console())
    return found.same


def _show(found: Comparison, out: Console) -> None:
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
