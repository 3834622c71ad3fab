"""The table that a suite fills: one row per measurement, on screen and in `benchmarks/results/`.

Invariant: a ratio above 1 is always in OneLog's favour, whether more or less is better, and what is
kept of the machine is what explains the numbers, never its name or its paths.
"""

import json
import os
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"
CAPTION = "a ratio above 1 is in OneLog's favour; CPU time is that of all threads, for one message"


@dataclass(frozen=True, slots=True)
class Options:
    """What a suite is told. `announce` shows people what is being measured now."""

    folder: Path
    quick: bool = False
    announce: Callable[[str], None] = field(default=lambda text: None)
    only: str = ""
    """The part of the suite that is wanted, if it has parts."""
    seconds: int | None = None
    rounds: int | None = None

    def chosen(self, *parts: str) -> list[str]:
        """Those parts of a suite that are wanted."""
        if self.only and self.only not in parts:
            raise SystemExit(f"--only {self.only}: the parts are {', '.join(parts)}")
        return [self.only] if self.only else list(parts)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    `value` is None if it could not be measured; the note says why.
    `reference` is what the value is held against: what is required, or what the peer named by
    `peer` reached in the same run (None if there is no such peer here). `ratio_min` is the ratio
    that is required; None if the row only informs.
    """

    measurement: str
    value: float | None
    unit: str
    reference: float | None = None
    peer: str = ""
    ratio_min: float | None = None
    less_is_better: bool = False
    cpu_us: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How much better than the reference; None without one."""
        if not self.reference or not self.value:
            return None
        return self.reference / self.value if self.less_is_better else self.value / self.reference

    @property
    def verdict(self) -> str:
        """Whether what is required was reached."""
        if self.value is None:
            return "NOT RUN"
        if self.ratio is None:
            return "-"
        if self.ratio_min is None:
            return "faster" if self.ratio >= 1 else "slower"
        return "ok" if self.ratio >= self.ratio_min else "MISSED"


def at_least(
    measurement: str, value: float, unit: str, limit: float, cpu_us: float | None, note: str = ""
) -> Row:
    """A row for something that must reach a limit."""
    return Row(measurement, value, unit, limit, "", 1.0, cpu_us=cpu_us, note=note)


def under(
    measurement: str,
    value: float,
    unit: str,
    limit: float,
    cpu_us: float | None = None,
    note: str = "",
) -> Row:
    """A row for something that must stay under a limit."""
    return Row(measurement, value, unit, limit, "", 1.0, True, cpu_us, note)


def not_run(measurement: str, reason: str) -> Row:
    """A row for something that could not be measured."""
    return Row(measurement, None, "", note=reason)


def amount(value: float | None, unit: str) -> str:
    """A value for people: three digits that mean something."""
    if value is None:
        return "-"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f} {unit}"


def cells(row: Row) -> tuple[str, ...]:
    """The texts of a row, in the order of `COLUMNS`."""
    against = amount(row.reference, row.unit)
    if row.peer:
        against = f"{row.peer}: {against}" if row.reference is not None else row.peer
    elif row.reference is not None:
        against = ("< " if row.less_is_better else ">= ") + against
    if row.peer and row.ratio_min is not None:
        against += f" (>= {row.ratio_min:.0%})"
    return (
        row.measurement,
        amount(row.value, row.unit),
        against,
        "-" if row.ratio is None else f"{row.ratio:.{3 if row.ratio < 1.1 else 2}f}",
        "-" if row.cpu_us is None else f"{row.cpu_us:,.2f}",
        row.verdict,
        row.note,
    )


COLUMNS = (
    "measurement",
    "OneLog",
    "required / peer",
    "ratio",
    "CPU us each",
    "verdict",
    "note",
)


def machine_facts() -> dict[str, str | int]:
    """What the numbers depend on."""
    cpuinfo, meminfo = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    model = memory = None
    if cpuinfo.exists() and meminfo.exists():
        model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        memory = re.search(r"^MemTotal:\s*(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    return {
        "cpu": model[1].strip() if model else platform.machine(),
        "cores": os.cpu_count() or 0,
        "memory_gib": int(memory[1]) >> 20 if memory else 0,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load_before": f"{os.getloadavg()[0]:.2f}",
    }


def show(suite: str, rows: Sequence[Row], console: Console) -> None:
    """Print the table; a row's note stands under what was measured."""
    table = Table(title=f"OneLog: {suite}", caption=CAPTION, header_style="bold")
    for column in COLUMNS[:-1]:
        numeric = column in ("OneLog", "ratio", "CPU us each")
        table.add_column(column, justify="right" if numeric else "left")
    colours = {
        "ok": "green",
        "MISSED": "bold red",
        "NOT RUN": "bold red",
        "faster": "green",
        "slower": "yellow",
    }
    for row in rows:
        measurement, *numbers, verdict, note = cells(row)
        colour = colours.get(verdict, "dim")
        noted = f"\n  [dim]{note}[/]" if note else ""
        table.add_row(measurement + noted, *numbers, f"[{colour}]{verdict}[/]")
    console.print(table)


def keep(suite: str, date: str, facts: dict[str, str | int], rows: Sequence[Row]) -> list[Path]:
    """Write the table as Markdown and as JSON, and say where."""
    RESULTS.mkdir(exist_ok=True)
    lines = [f"# {suite}, {date}", ""]
    lines += [f"- {name.replace('_', ' ')}: {value}" for name, value in facts.items()]
    lines += ["", f"{CAPTION[0].upper()}{CAPTION[1:]}.", ""]
    lines += [_markdown(COLUMNS), _markdown(["---"] * len(COLUMNS))]
    lines += [_markdown(cells(row)) for row in rows]
    text = RESULTS / f"{suite}-{date}.md"
    text.write_text("\n".join(lines) + "\n")
    document = {
        "suite": suite,
        "date": date,
        "machine": facts,
        "rows": [{**asdict(row), "ratio": row.ratio, "verdict": row.verdict} for row in rows],
    }
    data = RESULTS / f"{suite}-{date}.json"
    data.write_text(json.dumps(document, indent=2) + "\n")
    return [text, data]


def _markdown(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
