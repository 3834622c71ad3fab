"""Measuring, and telling: histograms, and pages in Prometheus' text format.

A histogram counts how many values were at most so large; whoever measures does so once for many
messages, never for each. A page is a list of lines, made by plain formatting.
"""

import os
import resource
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

SECONDS = (
    0.000_05,
    0.000_1,
    0.000_25,
    0.000_5,
    0.001,
    0.002_5,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Bounds of what takes microseconds to seconds."""
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_LINES_TOGETHER = 5_000
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Number = int | float


class ProcessState(NamedTuple):
    """What this process has of the machine."""

    memory_bytes: int
    processor_seconds: float
    open_files: int


def process_state() -> ProcessState:
    """What it has now; on systems without /proc less is known."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = round(used.ru_utime + used.ru_stime, 3)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return ProcessState(
            pages * resource.getpagesize(), seconds, len(os.listdir("/proc/self/fd"))
        )
    except OSError:
        return ProcessState(used.ru_maxrss * 1024, seconds, 0)


class Histogram:
    """Counts of values by their size. One thread observes; any may read."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many values were in each range; the last has no upper bound."""
        self.total = 0.0
        """The sum of all values."""

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def quantile(self, part: float) -> float:
        """The bound below which such a part of the values is; the last one, if above all."""
        wanted = part * sum(self.counts)
        seen = 0
        for count, bound in zip(self.counts, self.bounds, strict=False):
            seen += count
            if seen >= wanted:
                return bound
        return self.bounds[-1]


def escaped(value: str) -> str:
    """A label's value as it stands between quotes."""
    return value.translate(_ESCAPES)


class Page:
    """What one scrape is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def about(self, name: str, kind: str, text: str, samples: Iterable[str] = ()) -> None:
        """Say what samples are: these, and those that follow."""
        self.lines += (f"# HELP {name} {text}", f"# TYPE {name} {kind}", *samples)

    def one(
        self,
        name: str,
        kind: str,
        text: str,
        value: Number,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.about(name, kind, text)
        self.lines.append(f"{name}{_shown(labels or {})} {value}")

    def many(
        self, name: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, str], Number]]
    ) -> None:
        """A metric with a sample for each set of labels."""
        self.about(name, kind, text)
        self.lines += [f"{name}{_shown(labels)} {value}" for labels, value in samples]

    def histogram(self, name: str, text: str, measured: Histogram) -> None:
        """A histogram, with the buckets adding up as the format wants it."""
        self.about(name, "histogram", text)
        seen = 0
        for count, bound in zip(measured.counts, (*measured.bounds, "+Inf"), strict=True):
            seen += count
            self.lines.append(f'{name}_bucket{{le="{bound}"}} {seen}')
        self.lines += (f"{name}_sum {measured.total:.6f}", f"{name}_count {seen}")

    def parts(self) -> Iterator[bytes]:
        """The page, some lines at a time."""
        for at in range(0, len(self.lines), _LINES_TOGETHER):
            yield ("\n".join(self.lines[at : at + _LINES_TOGETHER]) + "\n").encode()

    def text(self) -> bytes:
        return b"".join(self.parts())


def _shown(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"
