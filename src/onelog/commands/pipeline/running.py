"""What `onelog pipeline` does."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from onelog.commands.spark_options import spark_extra
from onelog.commands.terminal import console, show_count
from onelog.commands.terminal import table as new_table
from onelog.errors import ConfigError
from onelog.spark import pipelines

DEMO_QUEUES = 4


def init(folder: Path) -> None:
    """Write the files of a pipeline, and say what to do with them."""
    for path in pipelines.init(folder):
        typer.echo(f"{path}")
    typer.echo(f"try it: onelog pipeline run {folder} --demo 20000")


def run(
    folder: Path,
    link: dict[str, str],
    master: str | None,
    remote: str | None,
    full_refresh: bool,
    dry_run: bool,
    demo: int,
) -> int:
    """Run a pipeline; how it ended."""
    words = pipelines.command(
        folder, master=master, remote=remote, full_refresh=full_refresh, dry_run=dry_run
    )
    if not demo:
        return _run(words, folder, link)
    # The orders of a demonstration are gone afterwards: each has its own, and begins anew.
    pipelines.forget(folder)
    with _demo_server(demo) as address:
        code = _run(words, folder, {"nameserver": address})
    if code == 0 and not dry_run and (folder / pipelines.WAREHOUSE / "sales_by_category").is_dir():
        show(folder, "sales_by_category", 20)
    return code


def _run(words: list[str], folder: Path, link: dict[str, str]) -> int:
    environment = pipelines.environment(os.environ, link)
    return subprocess.run(words, cwd=folder, env=environment, check=False).returncode


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


def show(folder: Path, table: str, rows: int) -> None:
    """Print a table, from its files."""
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
