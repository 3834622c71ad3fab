"""`onelog config`: every setting, its value, and where that came from."""

from typing import TYPE_CHECKING, Annotated

import typer

from onelog.commands.serve import ConfigFile, Set

if TYPE_CHECKING:
    from rich.table import Table

    from onelog.config import Row, Value


def config(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help="Only these settings, or all of a section."),
    ] = None,
    config_file: ConfigFile = None,
    set_: Set = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that are not at their default.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show every setting, its value and its source: default, file, environment or flag."""
    from onelog.commands.serving import settings
    from onelog.config import describe

    rows = describe(settings(config_file, set_, {}))
    if keys:
        rows = [row for key in keys for row in _named(key, rows)]
    if changed:
        rows = [row for row in rows if row.source != "default"]
    if json:
        import json as json_module

        print(json_module.dumps([row._asdict() for row in rows], indent=2))
        return
    from onelog.commands.terminal import console

    console().print(_table(rows))


def _named(key: str, rows: "list[Row]") -> "list[Row]":
    from onelog.config import Config, value_of

    section = [row for row in rows if row.key.startswith(key.rstrip(".") + ".")]
    if section:
        return section
    value_of(Config(), key)  # Refuses a key that does not exist, and says what is near it.
    return [row for row in rows if row.key == key]


def _shown(value: "Value") -> str:
    """A value as one would write it; an empty text would look like nothing at all."""
    from onelog.commands.terminal import show_text

    if isinstance(value, bool):
        return str(value).lower()
    return show_text(str(value)) or '""'


def _table(rows: "list[Row]") -> "Table":
    from onelog.commands.terminal import table

    made = table(f"settings: {len(rows)}", "setting", "value", "source", "accepts", "meaning")
    made.columns[0].no_wrap = True
    for row in rows:
        made.add_row(
            row.key,
            _shown(row.value),
            row.source,
            row.accepts,
            row.help + (" (can change while running)" if row.reloadable else ""),
            style=None if row.source == "default" else "bold",
        )
    return made
