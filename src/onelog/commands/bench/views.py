"""What `onelog bench` found, for people and for programs."""

from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from onelog.commands.bench.job import Outcome
from onelog.commands.bench.latencies import Latencies
from onelog.commands.terminal import show_count


@dataclass(frozen=True, slots=True)
class Result:
    """What the workers measured, together."""

    mode: str
    topic: str
    size: int
    outcomes: list[Outcome]
    stored: int | None
    """Messages that are in the topic now and were not before; None if nobody can know."""
    latencies: Latencies = field(init=False)

    def __post_init__(self) -> None:
        latencies = Latencies()
        for outcome in self.outcomes:
            latencies.include(Latencies(outcome.latencies))
        object.__setattr__(self, "latencies", latencies)

    @property
    def messages(self) -> int:
        """All that was sent, or heard."""
        return sum(outcome.messages for outcome in self.outcomes)

    @property
    def failed(self) -> int:
        """Requests, or round trips, that came to nothing."""
        return sum(outcome.failed for outcome in self.outcomes)

    @property
    def error(self) -> str | None:
        """The first failure."""
        return next((each.error for each in self.outcomes if each.error is not None), None)

    @property
    def seconds(self) -> float:
        """From the first beginning to the last end."""
        busy = [outcome for outcome in self.outcomes if outcome.messages]
        if not busy:
            return 0.0
        first_ns = min(outcome.began_ns for outcome in busy)
        return (max(outcome.ended_ns for outcome in busy) - first_ns) / 1e9

    @property
    def per_second(self) -> float:
        """Messages."""
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def client_cpu_us(self) -> float | None:
        """CPU time of the clients for one message."""
        cpu_s = sum(outcome.cpu_seconds for outcome in self.outcomes)
        return cpu_s / self.messages * 1e6 if self.messages else None


def document(result: Result) -> dict[str, Any]:
    """For programs; latencies are in milliseconds."""
    cpu_us = result.client_cpu_us
    return {
        "mode": result.mode,
        "topic": result.topic,
        "processes": len(result.outcomes),
        "size": result.size,
        "messages": result.messages,
        "failed": result.failed,
        "error": result.error,
        "stored": result.stored,
        "seconds": round(result.seconds, 3),
        "per_second": round(result.per_second, 1),
        "mib_per_second": round(result.per_second * result.size / (1 << 20), 3),
        "client_cpu_us": None if cpu_us is None else round(cpu_us, 2),
        "latency_ms": result.latencies.document(),
    }


def result_table(result: Result) -> Table:
    """For people."""
    made = Table.grid(padding=(0, 2))
    per_second = result.per_second
    rows = {
        result.mode: f"{show_count(result.messages)} messages of {show_count(result.size)} bytes "
        f"in {result.seconds:.2f} s by {_processes(len(result.outcomes))}",
        "throughput": f"{show_count(round(per_second))} messages/s, "
        f"{per_second * result.size / (1 << 20):.1f} MiB/s",
    }
    latencies = result.latencies.document()
    if latencies is not None:
        rows["latency"] = ", ".join(f"{name} {ms:.3g} ms" for name, ms in latencies.items())
    if result.client_cpu_us is not None:
        rows["clients' CPU"] = f"{result.client_cpu_us:.1f} us a message"
    if result.stored is not None:
        rows["stored"] = f"{show_count(result.stored)} messages"
    if result.failed:
        rows["failed"] = show_count(result.failed)
    for name, value in rows.items():
        made.add_row(name, value)
    return made


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"
