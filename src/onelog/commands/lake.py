"""`onelog lake`: topics as tables that Spark, DuckDB and pandas read without a broker."""

import datetime
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from onelog.commands.job.running import counting, until_interrupted
from onelog.commands.spark_options import Job, Json, on_spark, spark_extra
from onelog.commands.terminal import console, show_bytes, show_count, table
from onelog.errors import ConfigError
from onelog.spark.folders import local_folder

if TYPE_CHECKING:
    from onelog.spark.lake.tables import TableInfo

app = typer.Typer()

Folder = Annotated[Path, typer.Argument(help="The folder of the tables.")]
Only = Annotated[
    list[str] | None, typer.Option("--table", help="Only this table; may be given several times.")
]


@on_spark(app, "lake", "sync")
def sync_topics(
    job: Job,
    topics: Annotated[list[str], typer.Argument(help="The topics.")],
    to: Annotated[Path, typer.Option("--to", help="The folder of the tables.")],
    form: Annotated[
        Literal["delta", "parquet"], typer.Option("--format", help="What the tables are.")
    ] = "delta",
    every: Annotated[
        float | None, typer.Option(min=0, help="Go on, every so many seconds, until Ctrl-C.")
    ] = None,
    start: Annotated[
        str, typer.Option(help="Where new tables begin: earliest, latest, or a time as -2h.")
    ] = "earliest",
    decode: Annotated[
        Literal["json", "avro", "protobuf", "string"] | None,
        typer.Option(help="Turn bodies into columns; what cannot be is a dead letter."),
    ] = None,
    schema: Annotated[str | None, typer.Option(help="What bodies look like, as DDL.")] = None,
    schema_file: Annotated[
        Path | None, typer.Option(help="The same, from a file.", exists=True, dir_okay=False)
    ] = None,
    rows_per_batch: Annotated[
        int, typer.Option(min=1, help="At most so many messages in one commit.")
    ] = 1_000_000,
) -> None:
    """Bring the tables of topics up to date: each message once, also after a crash."""
    to = local_folder("--to", to)
    from onelog.spark import lake

    options = {
        **job.link,
        "startingOffsets": start,
        "decode": decode,
        "schema": schema,
        "schemaFile": None if schema_file is None else str(schema_file.absolute()),
        "maxOffsetsPerTrigger": str(rows_per_batch),
    }
    given = {name: value for name, value in options.items() if value is not None}
    what = f"{', '.join(topics)} to {to}"
    with until_interrupted() as stopped, counting(what, job.as_json) as noted:
        done = lake.sync(
            topics,
            to,
            spark=job.spark,
            options=given,
            form=form,
            every=every,
            on_progress=noted,
            should_stop=stopped,
        )
    if job.as_json:
        typer.echo(json.dumps({"topics": topics, "rows": done.rows, "batches": done.batches}))
    else:
        typer.echo(f"{show_count(done.rows)} messages in {done.batches} batches, in {to}")


@app.command("list")
def list_tables(folder: Folder, as_json: Json = False) -> None:
    """List the tables of a folder, with their sizes."""
    found = [asdict(each) for _, each in _tables(folder, None)]
    if as_json:
        typer.echo(json.dumps(found))
        return
    columns = "table=name, format=form, #files, >size, #rows"
    rows = ({**each, "size": show_bytes(each["size_bytes"])} for each in found)
    console().print(table(str(folder), columns, rows=rows))


@app.command("compact")
def compact_tables(
    folder: Folder,
    only: Only = None,
    mib: Annotated[int, typer.Option(min=1, help="How large files should become.")] = 128,
) -> None:
    """Join small files into larger ones (Delta)."""
    _each(folder, only, "files joined", lambda lake, path: lake.compact(path, mib << 20))


@app.command("vacuum")
def vacuum_tables(
    folder: Folder,
    only: Only = None,
    hours: Annotated[
        int, typer.Option(min=0, help="Keep files that left their table later than this ago.")
    ] = 168,
) -> None:
    """Delete files that are no part of their table any more (Delta)."""
    _each(folder, only, "files deleted", lambda lake, path: lake.vacuum(path, hours))


@app.command("retain")
def retain_days(
    folder: Folder,
    days: Annotated[int, typer.Option(min=1, help="How many days to keep, beside today.")],
    only: Only = None,
) -> None:
    """Drop old days from tables; `vacuum` deletes their files later (Delta)."""
    folder = local_folder("lake", folder)
    today = datetime.datetime.now(datetime.UTC).date()
    for lake, each in _tables(folder, only):
        unit = "rows" if each.form == "delta" else "files"
        gone = lake.retain(folder / each.name, days, today)
        typer.echo(f"{each.name}: {show_count(gone)} {unit} dropped")


def _each(
    folder: Path, only: Sequence[str] | None, what: str, work: Callable[[ModuleType, Path], int]
) -> None:
    folder = local_folder("lake", folder)
    for lake, each in _tables(folder, only):
        if each.form == "delta":
            typer.echo(f"{each.name}: {show_count(work(lake, folder / each.name))} {what}")
        else:
            typer.echo(f"{each.name}: plain Parquet, nothing to do")


def _tables(folder: Path, only: Sequence[str] | None) -> "Iterator[tuple[ModuleType, TableInfo]]":
    """The module that works on tables, and each of these tables."""
    with spark_extra():
        from onelog.spark.lake import tables as lake_tables
    found = {each.name: each for each in lake_tables.tables(folder)}
    missing = [name for name in only or () if name not in found]
    if missing or not found:
        there = ", ".join(found) or "none"
        raise ConfigError(
            f"{folder} has no table {missing[0] if missing else ''}; there are {there}"
        )
    yield from ((lake_tables, each) for name, each in found.items() if not only or name in only)
