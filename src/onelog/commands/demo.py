"""`onelog demo`: a shop with its orders, the broker, and the pipeline on Spark, in one go."""

from pathlib import Path
from typing import Annotated

import typer

from onelog.commands.spark_options import Master, Remote, spark_extra


def demo(
    rate: Annotated[int, typer.Option(min=1, max=100_000, help="Orders in a second.")] = 2_000,
    seconds: Annotated[int, typer.Option(min=1, max=86_400, help="For how long.")] = 30,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where everything is kept.", show_default="a new one for temporary files"
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="The page with the chart.", show_default="sales-board.html, in there"),
    ] = None,
    master: Master = None,
    remote: Remote = None,
) -> None:
    """Start a server, send it orders, count them live and keep them as a table; then compare."""
    with spark_extra():
        from onelog_examples.demo import run

    if not run(rate, seconds, folder, page, master, remote):
        raise typer.Exit(1)
