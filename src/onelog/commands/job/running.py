"""Streaming jobs, as a command runs them: progress on the terminal, Ctrl-C ends them well."""

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from onelog.commands.session import complain
from onelog.commands.terminal import console, show_count
from onelog.spark.jobs import queries

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def checkpoint(given: Path | None, job: str, source: str, to: str) -> Path:
    """The folder that was given, or one that the same job finds again."""
    return given or Path("onelog-jobs", f"{job}-{source}-{to}")


@contextmanager
def until_interrupted() -> "Iterator[Callable[[], bool]]":
    """While this is open, Ctrl-C makes what it gives true, and nothing else."""
    stopped: list[int] = []
    before = {
        number: signal.signal(number, lambda signum, _: stopped.append(signum))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: bool(stopped)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def counting(what: str, as_json: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A line on the terminal that says how many messages the batches had that it is told of."""
    rows = 0
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(), transient=True, disable=as_json) as progress:
        bar = progress.add_task(what)

        def noted(batch: Mapping[str, Any]) -> None:
            nonlocal rows
            rows += int(batch["numInputRows"])
            progress.update(bar, description=f"{what}: {show_count(rows)} messages read")

        yield noted


def run(query: "StreamingQuery", what: str, as_json: bool) -> None:
    """Run a job to its end, and say what it did."""
    with until_interrupted() as stopped, counting(what, as_json) as noted:
        done = queries.run(query, noted, stopped)
    if as_json:
        document = {"messages": done.rows, "batches": done.batches, "late": done.late}
        typer.echo(json.dumps(document))
    else:
        typer.echo(f"{what}: {show_count(done.rows)} messages read in {done.batches} batches")
    warn_of_late(done)


def warn_of_late(done: queries.Ran) -> None:
    """Say so if something was left out because it came too late."""
    if done.late:
        complain(f"{show_count(done.late)} rows came too late and were left out")
