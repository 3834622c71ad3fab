"""The sales board on a terminal, and for programs; live while its query runs."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.live import Live
from rich.table import Table

from onelog.commands.job.running import until_interrupted, warn_of_late
from onelog.commands.terminal import console, show_count, show_text, table
from onelog.spark.jobs import queries
from onelog_examples import board_page, sales_board
from onelog_examples.sales_board import Cell

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_BLOCKS = " ▁▂▃▄▅▆▇█"
_WINDOWS_MAX = 40
_BAR_CHARACTERS = 30


def follow(
    query: "StreamingQuery",
    folder: Path,
    title: str,
    page: Path | None,
    every: float | None,
    as_json: bool,
) -> None:
    """Show the board while the query runs, and at its end."""
    out = console()
    refresh = None if every is None else max(1, round(every))
    is_live = out.is_terminal and not as_json

    def noted(_: Mapping[str, Any]) -> None:
        cells = sales_board.read(folder)
        if is_live:
            live.update(board_table(cells, title))
        if page is not None:
            board_page.write(page, cells, title, refresh)

    with until_interrupted() as stopped, Live(console=out, transient=True) as live:
        if not is_live:
            live.stop()
        done = queries.run(query, noted, stopped)
    cells = sales_board.read(folder)
    if page is not None:
        board_page.write(page, cells, title)
    if as_json:
        board = [
            {
                **asdict(cell),
                "window_start": cell.window_start.isoformat(),
                "revenue": float(cell.revenue),
            }
            for cell in cells
        ]
        typer.echo(json.dumps({"messages": done.rows, "board": board}))
    else:
        out.print(board_table(cells, title))
    warn_of_late(done)


def board_table(cells: Sequence[Cell], title: str) -> Table:
    """A line for each category: its sums, a bar to compare them, and how it went over time."""
    by_category: dict[str, dict[datetime, Cell]] = defaultdict(dict)
    for cell in cells:
        by_category[cell.category][cell.window_start] = cell
    windows = sorted({cell.window_start for cell in cells})[-_WINDOWS_MAX:]
    sums = {
        name: (
            sum(cell.orders for cell in found.values()),
            sum((cell.revenue for cell in found.values()), Decimal(0)),
        )
        for name, found in by_category.items()
    }
    most = max((revenue for _, revenue in sums.values()), default=Decimal(0)) or Decimal(1)
    made = table(title, "category", ">orders", ">revenue", "", f"last {len(windows)} windows")
    for name, (orders, revenue) in sorted(sums.items(), key=lambda item: -item[1][1]):
        found = by_category[name]
        made.add_row(
            show_text(name),
            show_count(orders),
            f"{revenue:,.2f}",
            "█" * round(float(revenue / most) * _BAR_CHARACTERS),
            sparkline([float(found[at].revenue) if at in found else 0.0 for at in windows]),
        )
    total = sum((revenue for _, revenue in sums.values()), Decimal(0))
    made.add_section()
    made.add_row("all", show_count(sum(orders for orders, _ in sums.values())), f"{total:,.2f}")
    return made


def sparkline(values: Sequence[float]) -> str:
    """Values as a line of blocks, the largest one full."""
    top = max(values, default=0.0) or 1.0
    return "".join(_BLOCKS[round(value / top * (len(_BLOCKS) - 1))] for value in values)
