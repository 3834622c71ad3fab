"""`onelog lake sync`: running it, and showing how far it is."""

import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from onelog.commands.terminal import console, show_count
from onelog.spark import lake
from onelog.spark.lake.tables import Form

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    topics: Sequence[str],
    to: Path,
    spark: "SparkSession",
    options: Mapping[str, str],
    form: Form,
    every: float | None,
    as_json: bool,
) -> None:
    """Sync, and say what was done."""
    stopped: list[int] = []
    before = {
        number: signal.signal(number, lambda signum, _: stopped.append(signum))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    rows = 0
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(), transient=True, disable=as_json) as progress:
        bar = progress.add_task(f"{', '.join(topics)} to {to}")

        def noted(batch: Mapping[str, Any]) -> None:
            nonlocal rows
            rows += int(batch["numInputRows"])
            progress.update(bar, description=f"{show_count(rows)} messages to {to}")

        try:
            done = lake.sync(
                topics, to, spark=spark, options=options, form=form, every=every,
                on_progress=noted, should_stop=lambda: bool(stopped),
            )  # fmt: skip
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if as_json:
        typer.echo(json.dumps({"topics": list(topics), "rows": done.rows, "batches": done.batches}))
    else:
        typer.echo(f"{show_count(done.rows)} messages in {done.batches} batches, in {to}")
