"""Options that all commands on Spark share, and the session that they get."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from onelog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PANEL = "Spark"

Nameserver = Annotated[
    str,
    typer.Option(
        "--nameserver",
        "-n",
        envvar="ONELOG_NAMESERVER",
        help="Name servers, host:port between semicolons.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(help="Spark's master, as spark://host:7077.", rich_help_panel=_PANEL),
]
Remote = Annotated[
    str | None,
    typer.Option(
        envvar="SPARK_REMOTE",
        help="A Spark Connect server, as sc://host:15002.",
        rich_help_panel=_PANEL,
    ),
]


@contextmanager
def spark_session(
    name: str, master: str | None = None, remote: str | None = None
) -> "Iterator[SparkSession]":
    """A session for as long as a command runs; without the `spark` extra, what to install.

    A session that is there already is used, and left to whoever made it.
    """
    try:
        from pyspark.sql import SparkSession

        from onelog.spark import session
    except ImportError as error:
        raise ConfigError(
            f"this needs Spark: pip install 'onelog[spark]' ({error.name} is missing)"
        ) from None
    before = SparkSession.getActiveSession()
    spark = session(name, master=master, remote=remote)
    try:
        yield spark
    finally:
        if spark is not before:
            spark.stop()
