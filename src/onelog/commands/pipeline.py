"""`onelog pipeline`: tables and sinks that are declared, and kept up to date by Spark."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from onelog.commands.spark_options import Master, Remote, linked_by_environment, spark_extra
from onelog.commands.terminal import console, show_count
from onelog.commands.terminal import table as new_table
from onelog.errors import ConfigError
from onelog.spark import pipelines

DEMO_QUEUES = 4

app = typer.Typer()

Folder = Annotated[Path, typer.Argument(help="The folder of the pipeline.")]


@app.command("init")
def init(folder: Folder) -> None:
    """Make a pipeline that works, to be changed into another one."""
    for path in pipelines.init(folder):
        typer.echo(f"{path}")
    typer.echo(f"try it: onelog pipeline run {folder} --demo 20000")


@app.command("run")
@linked_by_environment
def run(
    link: dict[str, str],
    folder: Folder = Path(),
    full_refresh: Annotated[
        bool, typer.Option("--full-refresh", help="Make all tables anew, from the beginning.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check what is declared.")
    ] = False,
    demo: Annotated[
        int, typer.Option(min=0, help="Start a server for this run, with so many orders in it.")
    ] = 0,
    master: Master = None,
    remote: Remote = None,
) -> None:
    """Bring all tables and sinks of a pipeline up to date."""
    words = pipelines.command(
        folder, master=master, remote=remote, full_refresh=full_refresh, dry_run=dry_run
    )
    if demo:
        # The orders of a demonstration are gone afterwards: each has its own, and begins anew.
        pipelines.forget(folder)
        with _demo_server(demo) as address:
            _run(words, folder, {"nameserver": address})
        if not dry_run and (folder / pipelines.WAREHOUSE / "sales_by_category").is_dir():
            show("sales_by_category", folder)
    else:
        _run(words, folder, link)


def _run(words: list[str], folder: Path, link: dict[str, str]) -> None:
    environment = pipelines.environment(os.environ, link)
    code = subprocess.run(words, cwd=folder, env=environment, check=False).returncode
    if code:
        raise typer.Exit(code)


@contextmanager
def _demo_server(orders: int) -> Iterator[str]:
    from onelog.client import Producer
    from onelog.spark.jobs import topics
    from onelog_examples.shop import Shop, running_server

    with (
        tempfile.TemporaryDirectory(prefix="onelog-pipeline-") as folder,
        running_server(Path(folder)) as nameserver,
    ):
        for topic in ("orders", "large-orders"):
            topics.create({"nameserver": nameserver, "tls": "false"}, topic, DEMO_QUEUES)
        with Producer("demo-shop", nameserver=nameserver) as producer:
            Shop(nameserver, "orders", orders, orders).send(producer, orders)
        typer.echo(f"a server for this run, with {show_count(orders)} orders: {nameserver}")
        yield nameserver


@app.command("show")
def show(
    table: Annotated[str, typer.Argument(help="The table.")],
    folder: Annotated[Path, typer.Option(help="The folder of the pipeline.")] = Path(),
    rows: Annotated[int, typer.Option(min=1, help="At most so many rows.")] = 20,
) -> None:
    """Show a table that a pipeline has made."""
    with spark_extra():
        import pyarrow.dataset as ds

    path = folder / pipelines.WAREHOUSE / table
    if not path.is_dir():
        there = sorted(each.name for each in path.parent.glob("*") if each.is_dir())
        raise ConfigError(f"{folder} has no table {table}; there are {', '.join(there) or 'none'}")
    found = ds.dataset(path, format="parquet").head(rows)
    cells = ([str(value) for value in row.values()] for row in found.to_pylist())
    columns = [(name, name) for name in found.column_names]
    console().print(new_table(table, *columns, rows=cells))
