"""What `onelog lake` does: syncing tables with Spark, and looking after them without."""

import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import typer

from onelog.commands.spark_options import spark_extra
from onelog.commands.terminal import console, show_bytes, show_count, table
from onelog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from onelog.spark.lake.tables import Form, TableInfo


def show_tables(folder: Path, as_json: bool) -> None:
    """Print the tables."""
    found = [asdict(each) for _, each in _tables(folder, [])]
    if as_json:
        typer.echo(json.dumps(found))
        return
    columns = (("table", "name"), ("format", "form"), "#files", ">size", "#rows")
    rows = ({**each, "size": show_bytes(each["size_bytes"])} for each in found)
    console().print(table(str(folder), *columns, rows=rows))


def compact(folder: Path, only: Sequence[str], target_bytes: int) -> None:
    """Join small files."""
    _each(folder, only, "files joined", lambda lake, path: lake.compact(path, target_bytes))


def vacuum(folder: Path, only: Sequence[str], hours: int) -> None:
    """Delete what is no part of a table."""
    _each(folder, only, "files deleted", lambda lake, path: lake.vacuum(path, hours))


def retain(folder: Path, only: Sequence[str], days: int) -> None:
    """Drop old days."""
    today = datetime.datetime.now(datetime.UTC).date()
    for lake, each in _tables(folder, only):
        unit = "rows" if each.form == "delta" else "files"
        gone = lake.retain(folder / each.name, days, today)
        typer.echo(f"{each.name}: {show_count(gone)} {unit} dropped")


def _each(
    folder: Path, only: Sequence[str], what: str, work: Callable[[ModuleType, Path], int]
) -> None:
    for lake, each in _tables(folder, only):
        if each.form == "delta":
            typer.echo(f"{each.name}: {show_count(work(lake, folder / each.name))} {what}")
        else:
            typer.echo(f"{each.name}: plain Parquet, nothing to do")


def _tables(folder: Path, only: Sequence[str]) -> "Iterator[tuple[ModuleType, TableInfo]]":
    """The module that works on tables, and each of these tables."""
    with spark_extra():
        from onelog.spark.lake import tables as lake_tables
    found = {each.name: each for each in lake_tables.tables(folder)}
    missing = [name for name in only if name not in found]
    if missing or not found:
        there = ", ".join(found) or "none"
        raise ConfigError(
            f"{folder} has no table {missing[0] if missing else ''}; there are {there}"
        )
    yield from ((lake_tables, each) for name, each in found.items() if not only or name in only)


def sync(
    topics: Sequence[str],
    to: Path,
    spark: "SparkSession",
    options: Mapping[str, str],
    form: "Form",
    every: float | None,
    as_json: bool,
) -> None:
    """Bring tables up to date, and say what was done."""
    from onelog.commands.job.running import counting, until_interrupted
    from onelog.spark import lake

    with until_interrupted() as stopped, counting(f"{', '.join(topics)} to {to}", as_json) as noted:
        done = lake.sync(
            topics, to, spark=spark, options=options, form=form, every=every, on_progress=noted,
            should_stop=stopped,
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps({"topics": list(topics), "rows": done.rows, "batches": done.batches}))
    else:
        typer.echo(f"{show_count(done.rows)} messages in {done.batches} batches, in {to}")
