"""What jobs found, for people and for programs: reports, dead letters, the sales board."""

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
from rich.text import Text

from onelog.commands.job.running import until_interrupted, warn_of_late
from onelog.commands.session import complain, confirm
from onelog.commands.terminal import console, show_count, show_text, table
from onelog.errors import InvalidRequestError
from onelog.spark.jobs import board_page, queries, sales_board, triage
from onelog.spark.jobs.sales_board import Cell
from onelog.spark.jobs.topics import Link

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from onelog.spark.jobs.clean_logs import Statistics
    from onelog.spark.jobs.reconcile import Reconciliation
    from onelog.spark.jobs.trace_latency import Latency

_BLOCKS = " ▁▂▃▄▅▆▇█"
_WINDOWS_MAX = 40
_BAR_CHARACTERS = 30


def reconciliation(found: "Reconciliation", first: str, second: str, as_json: bool) -> None:
    """How two topics compare."""
    if as_json:
        typer.echo(json.dumps({"same": found.is_same, **asdict(found)}))
        return
    out = console()
    out.print(
        f"{first}: {show_count(found.first_messages)} messages, "
        f"{second}: {show_count(found.second_messages)} messages, {show_count(found.keys)} keys"
    )
    if found.is_same:
        out.print("They hold the same.")
        return
    meanings = {
        "missing": f"only in {first}",
        "extra": f"only in {second}",
        "different": "in both, but not the same",
    }
    kinds = ((kind, count, meanings[kind]) for kind, count in found.counts.items())
    out.print(table("keys that differ", "", "#keys", "meaning", rows=kinds))
    if found.samples:
        samples = (
            (each.kind, "(none)" if each.key is None else each.key, each.first_count,
             each.second_count)
            for each in found.samples
        )  # fmt: skip
        columns = ("", "key", f"#in {first}", f"#in {second}")
        out.print(table("some of them", *columns, rows=samples))


def log_statistics(found: "Statistics", source: str, as_json: bool) -> None:
    """What log lines say."""
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    out = console()
    levels = [*found.levels.items()]
    if found.rejected:
        levels.append(("(of no known form)", found.rejected))
    title = f"{source}: {show_count(found.lines)} lines"
    out.print(table(title, "level", "#lines", rows=levels))
    origins = ((origin or "(none)", *counts) for origin, *counts in found.origins)
    out.print(table("who writes", "origin", "#lines", "#errors", rows=origins))
    if found.patterns:
        patterns = ((count, text) for text, count in found.patterns)
        out.print(table("errors and warnings", "#lines", "text", rows=patterns))


def latencies(found: "Sequence[Latency]", as_json: bool) -> None:
    """How long things took."""
    document = [asdict(each) for each in found]
    if as_json:
        typer.echo(json.dumps(document))
        return
    percentiles = {f">{name}": f"{name}_ms" for name in ("p50", "p95", "p99", "max")}
    shown = table(
        "latency in ms", "topic", "span", "group", "#count", "#failed", *percentiles.items(),
        rows=document,
    )  # fmt: skip
    console().print(shown)


def only_where(letters: "DataFrame", where: str | None) -> "DataFrame":
    """The letters that a condition in SQL leaves."""
    from pyspark.errors import AnalysisException, ParseException

    if where is None:
        return letters
    try:
        chosen = letters.where(where)
        _ = chosen.schema  # Over Connect, mistakes are found when something is asked for.
    except (AnalysisException, ParseException) as error:
        first_line = str(error).strip().splitlines()[0]
        raise InvalidRequestError(
            f"--where {where!r}: {first_line} (columns: {', '.join(letters.columns)})"
        ) from None
    return chosen


def show_heaps(group: str, chosen: "DataFrame", samples: int, as_json: bool) -> None:
    """Print the heaps."""
    heaps = triage.heaps(chosen, samples)
    if as_json:
        document = [
            {**asdict(heap), "first": heap.first.isoformat(), "last": heap.last.isoformat()}
            for heap in heaps
        ]
        typer.echo(json.dumps(document))
        return
    total = sum(heap.count for heap in heaps)
    shown = table(
        f"dead letters of {group}: {show_count(total)}",
        ("#letters", "count"), "reason", ("topic", "origin_topic"), "tags", "first", "last",
        "samples",
        rows=(
            {
                **asdict(heap), "first": f"{heap.first:%Y-%m-%d %H:%M:%S}",
                "last": f"{heap.last:%Y-%m-%d %H:%M:%S}",
                "samples": Text("\n".join(map(show_text, heap.samples))),
            }
            for heap in heaps
        ),
    )  # fmt: skip
    console().print(shown)


def resend_letters(
    link: Link,
    group: str,
    chosen: "DataFrame",
    to_topic: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Send letters again, after a question."""
    if not (yes or dry_run):
        confirm(f"send {show_count(chosen.count())} letters of {group} again?", yes)
    done = triage.resend(link, group, chosen, to_topic=to_topic, dry_run=dry_run)
    if as_json:
        document = {
            "resent": len(done.resent), "already": done.already, "dry_run": dry_run,
            "failures": [f"{each.who}: {each.reason}" for each in done.failures],
        }  # fmt: skip
        typer.echo(json.dumps(document))
    else:
        would = "would be" if dry_run else "were"
        typer.echo(
            f"{group}: {show_count(len(done.resent))} letters {would} sent again, "
            f"{show_count(done.already)} had been before"
        )
    for each in done.failures:
        complain(f"{each.who}: {each.reason}")
    if done.failures:
        raise typer.Exit(2)


def show_board(
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
            {**asdict(cell), "window_start": cell.window_start.isoformat(),
             "revenue": float(cell.revenue)}
            for cell in cells
        ]  # fmt: skip
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
