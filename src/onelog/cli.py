"""The `onelog` command: what it can do, and how it ends.

Each group of commands has a module under `commands` of the same name. Typer makes every command
with all its options before it looks at the command line, which for a hundred commands takes longer
than some of them run; so groups are added with `add_lazily`, and their modules are imported when
somebody wants one of their commands. A group that is added so looks and works as with `add_typer`.
Commands that are in no group import what they work with when they run.

Exit codes: 0 done; 1 something is wrong with what was looked at; 2 the command could not be carried
out, and one line on stderr says why; 130 interrupted.
"""

import importlib
import os
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup
from typer.main import get_group

from onelog import __version__
from onelog.commands import bind, consume, produce, serve, trials
from onelog.errors import OnelogError

if TYPE_CHECKING:
    from typer._click import Command


class LazyGroup(TyperGroup):
    """A group whose commands are made, and their modules imported, at first sight."""

    source: str
    _made: "MutableMapping[str, Command] | None" = None

    @property
    def commands(self) -> "MutableMapping[str, Command]":
        """The commands by name."""
        if self._made is None:
            made = importlib.import_module("onelog.commands.operations").group_of(self.source)
            self._made = get_group(made).commands
        return self._made

    @commands.setter
    def commands(self, given: "MutableMapping[str, Command]") -> None:
        """Takes none: the group was made of an empty application."""
        assert not given, "a lazy group has the commands of its source"


def add_lazily(app: typer.Typer, name: str, text: str) -> None:
    """Add a group of commands under the name of its module."""
    kind = type(f"LazyGroup_{name}", (LazyGroup,), {"source": name})
    app.add_typer(typer.Typer(help=text, no_args_is_help=True, cls=kind), name=name)


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
app.command("bind")(bind.bind)
app.command("bench")(trials.bench)
app.command("config")(serve.config)
app.command("console")(serve.console)
app.command("demo")(trials.demo)
for _name, _text in {
    "topic": "Topics: where they are, what is in them, how they are set.",
    "group": "Consumer groups: members, lag, positions, settings.",
    "message": "Messages: find them by id, key, place or time.",
    "dlq": "Dead letters: what consumer groups gave up, resending and dropping it.",
    "delay": "Delayed and timed messages: what waits, and taking it back.",
    "cluster": "Clusters and brokers: who is there, how they are.",
    "exchange": "Exchanges and bindings of RabbitMQ's model.",
    "queue": "Queues that RabbitMQ's clients declare.",
    "transaction": "Transactions that are open, of both kinds.",
    "connection": "Connections of all protocols.",
    "user": "Users: who may log in, and with which roles.",
    "role": "Roles: what several users may do.",
    "permission": "Permissions: what users and roles may do to which topics and groups.",
    "store": "Look into a store's files: read-only, OneLog's or RocketMQ's, also while a broker "
    "runs.",
    "lake": "Topics as lake tables: keep them fresh, and small.",
    "job": "Jobs on topics, on Spark.",
    "pipeline": "Declared pipelines, from topics to tables and back.",
}.items():
    add_lazily(app, _name, _text)


def _print_version(requested: bool) -> None:
    if requested:
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
