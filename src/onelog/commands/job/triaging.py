"""`onelog job triage`: what is shown, and what is sent again."""

import json
from typing import TYPE_CHECKING

import typer

from onelog.commands.session import complain
from onelog.commands.terminal import console, show_count, show_text, table
from onelog.errors import InvalidRequestError
from onelog.spark.jobs import triage
from onelog.spark.jobs.topics import Link

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def only(letters: "DataFrame", where: str | None) -> "DataFrame":
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


def show(group: str, chosen: "DataFrame", samples: int, as_json: bool) -> None:
    """Print the heaps."""
    heaps = triage.heaps(chosen, samples)
    if as_json:
        document = [
            {
                "reason": heap.reason, "origin_topic": heap.origin_topic, "tags": heap.tags,
                "count": heap.count, "first": heap.first.isoformat(),
                "last": heap.last.isoformat(), "samples": list(heap.samples),
            }
            for heap in heaps
        ]  # fmt: skip
        typer.echo(json.dumps(document))
        return
    total = sum(heap.count for heap in heaps)
    shown = table(
        f"dead letters of {group}: {show_count(total)}",
        ">letters", "reason", "topic", "tags", "first", "last", "samples",
    )  # fmt: skip
    for heap in heaps:
        shown.add_row(
            show_count(heap.count), show_text(heap.reason), heap.origin_topic or "-", heap.tags,
            f"{heap.first:%Y-%m-%d %H:%M:%S}", f"{heap.last:%Y-%m-%d %H:%M:%S}",
            "\n".join(map(show_text, heap.samples)),
        )  # fmt: skip
    console().print(shown)


def resend(
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
        count = chosen.count()
        try:
            agreed = typer.confirm(f"send {show_count(count)} letters of {group} again?", err=True)
        except typer.Abort:
            raise InvalidRequestError("nobody to ask, nothing was done: say --yes") from None
        if not agreed:
            raise InvalidRequestError("nothing was done")
    done = triage.resend(link, group, chosen, to_topic=to_topic, dry_run=dry_run)
    if as_json:
        document = {
            "resent": len(done.resent), "already": done.already, "dry_run": dry_run,
            "failures": [f"{each.who}: {each.reason}" for each in done.failures],
        }  # fmt: skip
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
