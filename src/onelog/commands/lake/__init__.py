"""`onelog lake`: topics as tables that Spark, DuckDB and pandas read without a broker."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from onelog.commands.spark_options import Job, Json, on_spark

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
    from onelog.commands.lake import tables

    options = {
        **job.link, "startingOffsets": start, "decode": decode, "schema": schema,
        "schemaFile": None if schema_file is None else str(schema_file.absolute()),
        "maxOffsetsPerTrigger": str(rows_per_batch),
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    tables.sync(topics, to, job.spark, given, form, every, job.as_json)


@app.command("list")
def list_tables(folder: Folder, as_json: Json = False) -> None:
    """List the tables of a folder, with their sizes."""
    from onelog.commands.lake import tables

    tables.show_tables(folder, as_json)


@app.command("compact")
def compact_tables(
    folder: Folder,
    only: Only = None,
    mib: Annotated[int, typer.Option(min=1, help="How large files should become.")] = 128,
) -> None:
    """Join small files into larger ones (Delta)."""
    from onelog.commands.lake import tables

    tables.compact(folder, only or [], mib << 20)


@app.command("vacuum")
def vacuum_tables(
    folder: Folder,
    only: Only = None,
    hours: Annotated[
        int, typer.Option(min=0, help="Keep files that left their table later than this ago.")
    ] = 168,
) -> None:
    """Delete files that are no part of their table any more (Delta)."""
    from onelog.commands.lake import tables

    tables.vacuum(folder, only or [], hours)


@app.command("retain")
def retain_days(
    folder: Folder,
    days: Annotated[int, typer.Option(min=1, help="How many days to keep, beside today.")],
    only: Only = None,
) -> None:
    """Drop old days from tables; `vacuum` deletes their files later (Delta)."""
    from onelog.commands.lake import tables

    tables.retain(folder, only or [], days)
