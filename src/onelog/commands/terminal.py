"""How values look to people: times, sizes, and a console that takes text as it is."""

import sys
import time

from rich.console import Console
from rich.table import Table

_WIDTH_WITHOUT_TERMINAL = 160


def console() -> Console:
    """Prints tables to stdout; names and bodies are not searched for markup."""
    width = None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(markup=False, highlight=False, emoji=False, width=width)


def table(title: str, *columns: str) -> Table:
    """An empty table. Columns whose name begins with `>` are numbers, and lean to the right."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    for column in columns:
        made.add_column(
            column.lstrip(">"),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
        )
    return made


def show_time(ms: int | None) -> str:
    """A time of the store in local time, to the millisecond."""
    if ms is None or ms <= 0:
        return "-"
    try:
        local = time.localtime(ms // 1000)
    except (OverflowError, OSError, ValueError):
        return f"{ms} ms"
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', local)}.{ms % 1000:03d}"


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
