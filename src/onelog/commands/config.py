"""`onelog config`: every setting, its value, and where that came from."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.commands.serve import ConfigFile, Set
from onelog.commands.session import Output

if TYPE_CHECKING:
    from rich.table import Table


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
    from onelog.config_sources import describe

    rows = describe(settings(config_file, set_, {}))
    if keys:
        rows = [row for key in keys for row in _named(key, rows)]
    if changed:
        rows = [row for row in rows if row["source"] != "default"]
    Output(as_json=json, utc=False).show(rows, _table(rows))


def _named(key: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from onelog.config import Config
    from onelog.config_sources import value_of

    section = [row for row in rows if row["key"].startswith(key.rstrip(".") + ".")]
    if section:
        return section
    value_of(Config(), key)  # Refuses a key that does not exist, and says what is near it.
    return [row for row in rows if row["key"] == key]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Values as one would write them; an empty text would look like nothing at all."""
    value = row["value"]
    shown = str(value).lower() if isinstance(value, bool) else str(value) or '""'
    more = " (can change while running)" if row["reloadable"] else ""
    return {**row, "value": shown, "help": row["help"] + more}


def _table(rows: list[dict[str, Any]]) -> "Table":
    from onelog.commands.terminal import table

    columns = "setting=key, value, source, accepts, meaning=help"
    made = table(f"settings: {len(rows)}", columns, rows=map(_shown, rows))
    made.columns[0].no_wrap = True
    for shown, row in zip(made.rows, rows, strict=True):
        shown.style = None if row["source"] == "default" else "bold"
    return made
