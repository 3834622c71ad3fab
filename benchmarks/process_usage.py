"""What processes have used so far: CPU time and memory, from /proc.

A server may have started others: each figure is the sum over the given processes and all their
descendants.
"""

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def family(pids: Iterable[int]) -> list[int]:
    """The processes and their descendants that are alive."""
    parents = {}
    for folder in Path("/proc").iterdir():
        fields = _stat(int(folder.name)) if folder.name.isdigit() else None
        if fields is not None:
            parents[int(folder.name)] = int(fields[1])
    found = [pid for pid in pids if pid in parents]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; the name before it may contain anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of all threads."""
    ticks = 0
    for pid in family(pids):
        fields = _stat(pid)
        if fields is not None:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_SECOND


def anonymous_bytes(pids: Iterable[int]) -> int:
    """RssAnon: memory of their own, without files that they have mapped."""
    kib = 0
    for pid in family(pids):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        kib += sum(
            int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:")
        )
    return kib * 1024
