"""How values look to people: tables, sizes, and a console that takes text as it is."""

import base64
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from onelog.commands.times import show_time

_WIDTH_WITHOUT_TERMINAL = 160
_BODY_CHARACTERS = 60


def console() -> Console:
    """Prints tables to stdout; names and bodies are not searched for markup."""
    width = None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(markup=False, highlight=False, emoji=False, width=width)


def table(
    title: str,
    *columns: str | tuple[str, str],
    rows: Iterable[Mapping[str, Any] | Sequence[Any]] = (),
    footer: Mapping[str, object] = MappingProxyType({}),
    utc: bool = False,
) -> Table:
    """A table of the documents that programs get, or of rows of values.

    Columns are named in one text, between commas, or one by one. A column has a heading, which is
    also the key in the documents unless another one is given: `heading=key`. One that begins with
    `>` has numbers, which lean to the right; with `#` they are counts, and get separators; with `~`
    they are spans of time. A key may lead into a document within: `message.id`. `footer`
    has values below some of the columns, by heading; True stands for the sum of the column.
    """
    made = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    made.show_footer = bool(footer)
    rows, kinds, keys = list(rows), [], []
    for column in columns:
        parts = [column] if isinstance(column, tuple) else column.split(", ")
        for part in parts:
            heading, key = part if isinstance(part, tuple) else part.partition("=")[::2]
            kind = heading[:1] if heading[:1] in (">", "#", "~") else ""
            heading = heading.removeprefix(kind)
            key = key or heading.replace(" ", "_")
            kinds.append(kind)
            keys.append(key)
            below = footer.get(heading, "")
            if below is True:
                below = sum(_at(row, key) for row in rows if isinstance(row, Mapping))
            justify: Literal["left", "right"] = "right" if kind else "left"
            shown = "" if below == "" else _cell(below, kind, key, utc)
            made.add_column(heading, footer=shown, justify=justify, overflow="fold")
    names = [key.rpartition(".")[2] for key in keys]
    for row in rows:
        values = [_at(row, key) for key in keys] if isinstance(row, Mapping) else row
        made.add_row(*(_cell(*each, utc) for each in zip(values, kinds, names, strict=False)))
    return made


def _at(row: Any, key: str) -> Any:
    for part in key.split("."):
        row = row[part]
    return row


def pick(source: object, names: str) -> dict[str, Any]:
    """Attributes of a value as a document: `name`, or `name=attribute`, between spaces."""
    pairs = (each.partition("=") for each in names.split())
    return {name: getattr(source, other or name) for name, _, other in pairs}


def facts(values: Mapping[str, Any], *, utc: bool = False) -> Table:
    """Names and values, a line each."""
    made = Table.grid(padding=(0, 2))
    for name, value in values.items():
        made.add_row(name.removesuffix("_ms").replace("_", " "), _cell(value, "", name, utc))
    return made


def _cell(value: Any, kind: str, key: str, utc: bool) -> RenderableType:
    """A value as people see it in a column."""
    if kind == "~" and isinstance(value, int):
        # Where clocks differ it may be negative, and people should see that.
        return f"{value:,} ms" if abs(value) < 10_000 else f"{value / 1000:,.1f} s"
    if "_ms" in key and isinstance(value, int):
        return show_time(value, utc=utc)
    if key.endswith("_bytes") and isinstance(value, int):
        return show_bytes(value)
    if key == "note" and str(value).startswith("until "):
        return f"until {show_time(int(value[6:]), utc=utc)}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return show_count(value) if kind == "#" else str(value)
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, Mapping):
        value = " ".join(f"{name}={each}" for name, each in sorted(value.items()))
    if isinstance(value, list | tuple):
        value = (" " if key == "keys" else ", ").join(map(str, value))
    if isinstance(value, Text):
        return value
    shown = show_text(str(value or "-"))
    is_long = key == "body" and len(shown) > _BODY_CHARACTERS
    return shown[:_BODY_CHARACTERS] + "…" if is_long else shown


@contextmanager
def progress_bar(
    what: str, total: float | None = None, *columns: ProgressColumn, wanted: bool = True
) -> Iterator[Callable[..., None]]:
    """A bar on stderr, for those who watch; nothing if that is no terminal.

    It is told how much is done, and if that was not known before, how much there is; without
    columns of its own also what is `said` beside it.
    """
    screen = Console(stderr=True)
    own = (*columns, TimeRemainingColumn())
    usual = (TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    with Progress(
        *(TextColumn("{task.description}"), BarColumn(), *(own if columns else usual)),
        console=screen,
        transient=True,
        redirect_stdout=False,
        disable=not (wanted and screen.is_terminal),
    ) as progress:
        task = progress.add_task(what, total=total, said="")

        def tell(completed: float, total: float | None = None, said: str = "") -> None:
            progress.update(task, completed=completed, total=total, said=said)

        yield tell


def show_bytes(count: int) -> str:
    """A size with three digits that matter."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def show_text(text: str) -> str:
    """A text from a message on one line, with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def show_count(count: int) -> str:
    """A number with separators."""
    return f"{count:,}"


def body_document(body: bytes) -> dict[str, str]:
    """A body, for programs; one that is no text is in base64."""
    try:
        return {"body": body.decode(), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "body_encoding": "base64"}


def text_of(body: bytes, bytes_max: int) -> str | None:
    """The beginning of a body as text; None if it is none."""
    head = body[:bytes_max]
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        # Where the head ends, a character may be cut in two.
        if len(body) > bytes_max and error.start > bytes_max - 4:
            return head[: error.start].decode()
        return None
