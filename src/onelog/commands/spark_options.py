"""Options that all commands on Spark share, and the session that they get.

Invariant: secrets go to Spark as options of the data source, whose names make Spark hide them; they
are on no command line, in no message and in no file.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from onelog.commands import link
from onelog.commands.session import for_typer
from onelog.errors import ConfigError, OnelogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PANEL = "Spark"

_TIMEOUT_SECONDS = 5.0
_LINK = {**link.LINK, "timeout": (link.LINK["timeout"][0], _TIMEOUT_SECONDS)}
_LINK_OF_CHILD = {name: each for name, each in _LINK.items() if name != "timeout"}
Master = Annotated[
    str | None, typer.Option(help="Spark's master, as spark://host:7077.", rich_help_panel=_PANEL)
]
Remote = Annotated[
    str | None,
    typer.Option(
        envvar="SPARK_REMOTE",
        help="A Spark Connect server, as sc://host:15002.",
        rich_help_panel=_PANEL,
    ),
]


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Job(NamedTuple):
    """What a job on Spark gets: a session, how the data source reaches the cluster, and the way to
    show what comes out."""

    spark: "SparkSession"
    link: dict[str, str]
    as_json: bool


def on_spark(
    app: typer.Typer, group: str, name: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function whose first argument is a `Job`."""
    options: dict[str, tuple[Any, Any]] = {"as_json": (Json, False), **_LINK}
    options |= {"master": (Master, None), "remote": (Remote, None)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(chosen: dict[str, Any], given: dict[str, Any]) -> None:
            link = source_options(chosen)
            title = f"onelog {group} {name}"
            with spark_session(title, chosen["master"], chosen["remote"]) as spark:
                command(Job(spark, link, chosen["as_json"]), **given)

        return app.command(name)(for_typer(command, options, run))

    return decorate


def linked_by_environment(command: Callable[..., None]) -> Callable[..., None]:
    """Make a function for typer of one that tells the environment of a program how to connect."""
    return for_typer(
        command, _LINK_OF_CHILD, lambda options, given: command(source_options(options), **given)
    )


def source_options(given: Mapping[str, Any]) -> dict[str, str]:
    """What the options of a command line mean to the data source."""
    given = {"timeout": _TIMEOUT_SECONDS, **given}
    client = link.client_options(given)
    options = {
        "nameserver": client["nameserver"],
        "requestTimeoutMs": str(max(1, round(given["timeout"] * 1000))),
        # Said in any case: what the command was told goes before what Spark's environment says.
        "tls": str("tls" in client).lower(),
    }
    if given["tls_ca"] and not given["tls_hostname"]:
        options["tlsHostname"] = "false"
    for name, path in (("tlsCa", "tls_ca"), ("tlsCert", "tls_cert"), ("tlsKey", "tls_key")):
        if given[path]:
            options[name] = str(Path(given[path]).expanduser().absolute())
    if (credentials := client.get("credentials")) is not None:
        options |= {"accessKey": credentials.access_key, "secretKey": credentials.secret_key}
        if credentials.security_token:
            options["securityToken"] = credentials.security_token
    return options


@contextmanager
def spark_extra() -> Iterator[None]:
    """What is imported within it comes with the `spark` extra: if not, what to install."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"this needs the spark extra: pip install 'onelog[spark]' ({error.name} is missing)"
        ) from None


@contextmanager
def spark_session(
    name: str, master: str | None = None, remote: str | None = None, *, log: Path | None = None
) -> "Iterator[SparkSession]":
    """A session for as long as a command runs.

    A session that is there already is used, and left to whoever made it. With `log`, what Spark's
    processes write to stderr goes there: its workers show the tracebacks of pipes that were
    closed, which mean nothing.
    """
    with spark_extra():
        from pyspark.sql import SparkSession

        from onelog.spark import session
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
