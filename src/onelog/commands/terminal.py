"""How values look to people: tables, sizes, and a console that takes text as it is."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

_WIDTH_WITHOUT_TERMINAL = 160


def console() -> Console:
    """Prints tables to stdout; names and bodies are not searched for markup."""
    width = None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(markup=False, highlight=False, emoji=False, width=width)


def table(
    title: str,
    *columns: str,
    rows: Iterable[Sequence[str]] = (),
    footer: Mapping[int, str] | None = None,
) -> Table:
    """A table. Columns whose name begins with `>` are numbers, and lean to the right.

    `footer` has texts below some of the columns, by their number.
    """
    made = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    made.show_footer = footer is not None
    for number, column in enumerate(columns):
        made.add_column(
            column.lstrip(">"),
            footer=(footer or {}).get(number, ""),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
        )
    for row in rows:
        made.add_row(*row)
    return made


def attributes_text(attributes: Mapping[str, str]) -> str:
    """Attributes of a topic or group, on one line."""
    return show_text(" ".join(f"{k}={v}" for k, v in sorted(attributes.items()))) or "-"


@contextmanager
def progress_counts(what: str, *columns: ProgressColumn) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr if that is a terminal; it is told how much is done, and how much there is."""
    screen = Console(stderr=True)
    shown = (TextColumn(what), BarColumn(), *columns, TimeRemainingColumn())
    with Progress(
        *shown, console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


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
