"""`onelog pipeline`: tables and sinks that are declared, and kept up to date by Spark."""

from pathlib import Path
from typing import Annotated

import typer

from onelog.commands.spark_options import Master, Remote, linked_by_environment

app = typer.Typer()

Folder = Annotated[Path, typer.Argument(help="The folder of the pipeline.")]


@app.command("init")
def init(folder: Folder) -> None:
    """Make a pipeline that works, to be changed into another one."""
    from onelog.commands.pipeline import running

    running.init(folder)


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
    from onelog.commands.pipeline import running

    code = running.run(folder, link, master, remote, full_refresh, dry_run, demo)
    if code:
        raise typer.Exit(code)


@app.command("show")
def show(
    table: Annotated[str, typer.Argument(help="The table.")],
    folder: Annotated[Path, typer.Option(help="The folder of the pipeline.")] = Path(),
    rows: Annotated[int, typer.Option(min=1, help="At most so many rows.")] = 20,
) -> None:
    """Show a table that a pipeline has made."""
    from onelog.commands.pipeline import running

    running.show(folder, table, rows)
