"""Groups of commands that are made when somebody wants one of them.

Typer makes every command with all its options before it looks at the command line, which for a
hundred commands takes longer than some of them run. Invariant: a group that is added here looks and
works as with `add_typer`.
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup
from typer.main import get_group

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
