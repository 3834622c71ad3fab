"""The record of the long runs: which suite ran when, on which commit and machine, and how it ended.

    | 2026-11-16 07:40 | make soak | 12 passed, 1 skipped in 0:20:34 | 09417da | 2 cores, ... |

Invariant: what is kept of a machine is what explains the run, never its name or its paths.
"""

import re
import subprocess
from collections.abc import Mapping, Sized
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.table import RESULTS, machine_facts

FILE = RESULTS / "runs.md"
HEAD = """# Runs of the long suites

Each run of `make e2e`, `make e2e-java` and `make soak` adds its line. A commit with a + had changes
that were not committed.

| UTC | suite | result | commit | machine |
| --- | --- | --- | --- | --- |
"""
OUTCOMES = ("failed", "error", "passed", "skipped", "xfailed")


def result(stats: Mapping[str, Sized], seconds: float) -> str:
    """What pytest says in its last line."""
    counts = [f"{len(stats[name])} {name}" for name in OUTCOMES if stats.get(name)]
    took = timedelta(seconds=round(seconds))
    return f"{', '.join(counts) or 'nothing run'} in {took}"


def commit(folder: Path = RESULTS) -> str:
    """The commit that was tested; what such runs leave in `folder` does not count as a change."""
    name = _said("git", "rev-parse", "--short", "HEAD", folder=folder).strip()
    changed = _said("git", "status", "--porcelain", "--", ":/", ":!.", folder=folder)
    return name + ("+" if changed else "")


def machine() -> str:
    """What the run depended on."""
    facts = machine_facts()
    version = re.search(r'version "(.+?)"', _said("java", "-version"))
    java = f"Java {version[1]}" if version else "no Java"
    return (
        f"{facts['cores']} cores ({facts['cpu']}), {facts['memory_gib']} GiB, {facts['kernel']}, "
        f"{facts['python']}, {java}"
    )


def _said(*command: str, folder: Path = RESULTS) -> str:
    try:
        ended = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except OSError:
        return ""
    return ended.stdout.decode(errors="replace")


def add(suite: str, ended: str, file: Path = FILE) -> None:
    """Append a line; the file is made if there is none."""
    if not file.exists():
        file.write_text(HEAD)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    with file.open("a") as out:
        out.write(f"| {now} | {suite} | {ended} | {commit()} | {machine()} |\n")
