"""The `onelog` command: what it can do, and how it ends.

Each group of commands has a module under `commands`, which only declares names, options and help. A
command imports what it works with when it runs, so that `onelog --help` answers at once.

Exit codes: 0 done; 1 something is wrong with what was looked at; 2 the command could not be carried
out, and one line on stderr says why; 130 interrupted.
"""

import os
import sys
from typing import Annotated

import typer

from onelog import __version__
from onelog.commands import (
    bench,
    cluster,
    config,
    consume,
    delay,
    demo,
    dlq,
    group,
    job,
    lake,
    message,
    pipeline,
    produce,
    serve,
    store,
    topic,
)
from onelog.commands.lazy_group import add_lazily
from onelog.errors import OnelogError

app = typer.Typer(
    help="OneLog: one log, every queue.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve.up)
app.command()(serve.broker)
app.command()(serve.nameserver)
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("bench")(bench.bench)
app.command("config")(config.config)
app.command("demo")(demo.demo)
add_lazily(app, "topic", topic.app)
add_lazily(app, "group", group.app)
add_lazily(app, "message", message.app)
add_lazily(app, "dlq", dlq.app)
add_lazily(app, "delay", delay.app)
add_lazily(app, "cluster", cluster.app)
add_lazily(app, "store", store.app)
add_lazily(app, "lake", lake.app)
add_lazily(app, "job", job.app)
add_lazily(app, "pipeline", pipeline.app)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"onelog {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command line."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OnelogError as error:
        typer.secho(f"onelog: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has seen enough. The interpreter must not stumble over it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
