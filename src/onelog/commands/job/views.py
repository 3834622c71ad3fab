"""What jobs found, for people and for programs: reports and dead letters."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from onelog.commands.session import complain, confirm
from onelog.commands.terminal import console, show_count, show_text, table
from onelog.errors import InvalidRequestError
from onelog.spark.jobs import triage
from onelog.spark.jobs.topics import Link

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    meanings = {
        "missing": f"only in {first}",
        "extra": f"only in {second}",
        "different": "in both, but not the same",
    }
    kinds = ((kind, count, meanings[kind]) for kind, count in found.counts.items())
    out.print(table("keys that differ", ", #keys, meaning", rows=kinds))
    if found.samples:
        samples = (
            (
                each.kind,
                "(none)" if each.key is None else each.key,
                each.first_count,
                each.second_count,
            )
            for each in found.samples
        )
        columns = (("", ""), ("key", ""), (f"#in {first}", ""), (f"#in {second}", ""))
        out.print(table("some of them", *columns, rows=samples))


def log_statistics(found: "Statistics", source: str, as_json: bool) -> None:
    """What log lines say."""
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    out = console()
    levels = [*found.levels.items()]
    if found.rejected:
        levels.append(("(of no known form)", found.rejected))
    title = f"{source}: {show_count(found.lines)} lines"
    out.print(table(title, "level, #lines", rows=levels))
    origins = ((origin or "(none)", *counts) for origin, *counts in found.origins)
    out.print(table("who writes", "origin, #lines, #errors", rows=origins))
    if found.patterns:
        patterns = ((count, text) for text, count in found.patterns)
        out.print(table("errors and warnings", "#lines, text", rows=patterns))


def latencies(found: "Sequence[Latency]", as_json: bool) -> None:
    """How long things took."""
    document = [asdict(each) for each in found]
    if as_json:
        typer.echo(json.dumps(document))
        return
    percentiles = {f">{name}": f"{name}_ms" for name in ("p50", "p95", "p99", "max")}
    shown = table(
        "latency in ms",
        "topic",
        "span",
        "group",
        "#count",
        "#failed",
        *percentiles.items(),
        rows=document,
    )
    console().print(shown)


def only_where(letters: "DataFrame", where: str | None) -> "DataFrame":
    """The letters that a condition in SQL leaves."""
    from pyspark.errors import AnalysisException, ParseException

    if where is None:
        return letters
    try:
        chosen = letters.where(where)
        _ = chosen.schema  # Over Connect, mistakes are found when something is asked for.
    except (AnalysisException, ParseException) as error:
        first_line = str(error).strip().splitlines()[0]
        raise InvalidRequestError(
            f"--where {where!r}: {first_line} (columns: {', '.join(letters.columns)})"
        ) from None
    return chosen


def show_heaps(group: str, chosen: "DataFrame", samples: int, as_json: bool) -> None:
    """Print the heaps."""
    heaps = triage.heaps(chosen, samples)
    if as_json:
        document = [
            {**asdict(heap), "first": heap.first.isoformat(), "last": heap.last.isoformat()}
            for heap in heaps
        ]
        typer.echo(json.dumps(document))
        return
    total = sum(heap.count for heap in heaps)
    shown = table(
        f"dead letters of {group}: {show_count(total)}",
        "#letters=count, reason, topic=origin_topic, tags, first, last, samples",
        rows=(
            {
                **asdict(heap),
                "first": f"{heap.first:%Y-%m-%d %H:%M:%S}",
                "last": f"{heap.last:%Y-%m-%d %H:%M:%S}",
                "samples": Text("\n".join(map(show_text, heap.samples))),
            }
            for heap in heaps
        ),
    )
    console().print(shown)


def resend_letters(
    link: Link,
    group: str,
    chosen: "DataFrame",
    to_topic: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Send letters again, after a question."""
    if not (yes or dry_run):
        confirm(f"send {show_count(chosen.count())} letters of {group} again?", yes)
    done = triage.resend(link, group, chosen, to_topic=to_topic, dry_run=dry_run)
    if as_json:
        document = {
            "resent": len(done.resent),
            "already": done.already,
            "dry_run": dry_run,
            "failures": [f"{each.who}: {each.reason}" for each in done.failures],
        }
        typer.echo(json.dumps(document))
    else:
        would = "would be" if dry_run else "were"
        typer.echo(
            f"{group}: {show_count(len(done.resent))} letters {would} sent again, "
            f"{show_count(done.already)} had been before"
        )
    for each in done.failures:
        complain(f"{each.who}: {each.reason}")
    if done.failures:
        raise typer.Exit(2)
