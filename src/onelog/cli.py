"""The `onelog` command: what it can do, and how it ends.

Each group of commands has a module under `commands`, which only declares names, options and help. A
command imports what it works with when it runs. Typer makes every command with all its options
before it looks at the command line, which for a hundred commands takes longer than some of them
run; so groups are added with `add_lazily`, and their commands are made when somebody wants one. A
group that is added so looks and works as with `add_typer`.

Exit codes: 0 done; 1 something is wrong with what was looked at; 2 the command could not be carried
out, and one line on stderr says why; 130 interrupted.
"""

import os
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup
from typer.main import get_group

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
from onelog.errors import OnelogError

if TYPE_CHECKING:
    from typer._click import Command


class LazyGroup(TyperGroup):
    """A group whose commands are those of `source`, made at first sight."""

    source: typer.Typer
    _made: "MutableMapping[str, Command] | None" = None

    @property
    def commands(self) -> "MutableMapping[str, Command]":
        """The commands by name."""
        if self._made is None:
            self._made = get_group(self.source).commands
        return self._made

    @commands.setter
    def commands(self, given: "MutableMapping[str, Command]") -> None:
        """Takes none: the group was made of an empty application."""
        assert not given, "a lazy group has the commands of its source"


def add_lazily(app: typer.Typer, name: str, source: typer.Typer) -> None:
    """Add a group of commands under a name."""
    kind = type(f"LazyGroup_{name}", (LazyGroup,), {"source": source})
    app.add_typer(typer.Typer(help=source.info.help, no_args_is_help=True, cls=kind), name=name)


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
