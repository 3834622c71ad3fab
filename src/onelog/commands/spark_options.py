"""Options that all commands on Spark share, and the session that they get."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onelog.errors import ConfigError, OnelogError

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
    name: str, master: str | None = None, remote: str | None = None, *, log: Path | None = None
) -> "Iterator[SparkSession]":
    """A session for as long as a command runs; without the `spark` extra, what to install.

    A session that is there already is used, and left to whoever made it. With `log`, what Spark's
    processes write to stderr goes there: its workers show the tracebacks of pipes that were
    closed, which mean nothing.
    """
    try:
        from pyspark.sql import SparkSession

        from onelog.spark import session
    except ImportError as error:
        raise ConfigError(
            f"this needs Spark: pip install 'onelog[spark]' ({error.name} is missing)"
        ) from None
    before = SparkSession.getActiveSession()
    with _stderr_to(log) if log is not None else nullcontext():
        spark = session(name, master=master, remote=remote)
    try:
        yield spark
    finally:
        if spark is not before:
            spark.stop()


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Processes that are started meanwhile keep this stderr, and so do those that they start."""
    sys.stderr.flush()
    own = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(own, 2)
    except OnelogError:
        raise
    except Exception as error:
        raise OnelogError(f"Spark does not start: {error}; what it said is in {log}") from error
    finally:
        os.close(own)
