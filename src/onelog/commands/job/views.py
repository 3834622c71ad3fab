"""What jobs found, for people and for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from onelog.commands.terminal import console, show_count, show_text, table

if TYPE_CHECKING:
    from onelog.spark.jobs.clean_logs import Statistics
    from onelog.spark.jobs.reconcile import Reconciliation
    from onelog.spark.jobs.trace_latency import Latency


def reconciliation(found: "Reconciliation", first: str, second: str, as_json: bool) -> None:
    """How two topics compare."""
    if as_json:
        typer.echo(json.dumps({"same": found.is_same, **asdict(found)}))
        return
    out = console()
    out.print(
        f"{first}: {show_count(found.first_messages)} messages, "
        f"{second}: {show_count(found.second_messages)} messages, {show_count(found.keys)} keys"
    )
    if found.is_same:
        out.print("They hold the same.")
        return
    shown = table("keys that differ", "", ">keys", "meaning")
    meanings = {
        "missing": f"only in {first}",
        "extra": f"only in {second}",
        "different": "in both, but not the same",
    }
    for kind, count in found.counts.items():
        shown.add_row(kind, show_count(count), meanings[kind])
    out.print(shown)
    if found.samples:
        samples = table("some of them", "", "key", f">in {first}", f">in {second}")
        for each in found.samples:
            key = "(none)" if each.key is None else show_text(each.key)
            samples.add_row(
                each.kind, key, show_count(each.first_count), show_count(each.second_count)
            )
        out.print(samples)


def log_statistics(found: "Statistics", source: str, as_json: bool) -> None:
    """What log lines say."""
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    out = console()
    levels = table(f"{source}: {show_count(found.lines)} lines", "level", ">lines")
    for level, count in found.levels.items():
        levels.add_row(level, show_count(count))
    if found.rejected:
        levels.add_row("(of no known form)", show_count(found.rejected))
    out.print(levels)
    origins = table("who writes", "origin", ">lines", ">errors")
    for origin, lines, errors in found.origins:
        origins.add_row(show_text(origin or "(none)"), show_count(lines), show_count(errors))
    out.print(origins)
    if found.patterns:
        patterns = table("errors and warnings", ">lines", "text")
        for text, count in found.patterns:
            patterns.add_row(show_count(count), show_text(text))
        out.print(patterns)


def latencies(found: "Sequence[Latency]", as_json: bool) -> None:
    """How long things took."""
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found]))
        return
    shown = table(
        "latency in ms", "topic", "span", "group", ">count", ">failed", ">p50", ">p95", ">p99",
        ">max",
    )  # fmt: skip
    for each in found:
        shown.add_row(
            show_text(each.topic), each.span, show_text(each.group), show_count(each.count),
            show_count(each.failed), *(
                f"{value:,.1f}" for value in (each.p50_ms, each.p95_ms, each.p99_ms, each.max_ms)
            ),
        )  # fmt: skip
    console().print(shown)
