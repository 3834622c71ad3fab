"""`onelog job`: jobs on topics that run on Spark."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from onelog.commands.options import Yes
from onelog.commands.spark_options import Job, on_spark
from onelog.rocketmq.names import TRACE_TOPIC

app = typer.Typer()

Source = Annotated[str, typer.Argument(help="The topic to read.")]
To = Annotated[str, typer.Option("--to", help="The topic to write to.")]
Every = Annotated[
    float | None, typer.Option(min=0, help="Go on, every so many seconds, until Ctrl-C; else once.")
]
By = Annotated[
    str,
    typer.Option(
        help="key, message_id, a field of a JSON body as $.order.id, or the name of a property."
    ),
]
Start = Annotated[str, typer.Option(help="Where to begin: earliest, latest, or a time as -2h.")]
Since = Annotated[
    str | None, typer.Option(help="Only from this time on: 2026-05-01T10:30:00Z, or -2h.")
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        help="Folder in which the job remembers how far it is.",
        show_default="onelog-jobs/NAME-SOURCE-TO",
    ),
]
RowsPerBatch = Annotated[int, typer.Option(min=1, help="At most so many messages at once.")]
Samples = Annotated[int, typer.Option(min=0, help="Show so many of each kind.")]
ROWS_PER_BATCH = 1_000_000


@on_spark(app, "job", "sales-board")
def sales_board(
    job: Job,
    orders: Annotated[str, typer.Argument(help="The topic of orders.")],
    folder: Annotated[Path, typer.Option(help="Where the board's table is.")],
    result_topic: Annotated[str | None, typer.Option(help="Send results there, too.")] = None,
    window: Annotated[int, typer.Option(min=1, help="Seconds in one window of time.")] = 10,
    late: Annotated[int, typer.Option(min=0, help="How many seconds orders may be late.")] = 60,
    page: Annotated[Path | None, typer.Option(help="Write a page (HTML) with a chart.")] = None,
    every: Every = None,
    start: Start = "earliest",
    rows_per_batch: RowsPerBatch = ROWS_PER_BATCH,
) -> None:
    """Revenue and orders per category and window of time, live."""
    from onelog_examples import board_view
    from onelog_examples import sales_board as work

    query = work.start(
        job.spark,
        job.link,
        orders,
        folder,
        result_topic=result_topic,
        window_seconds=window,
        late_seconds=late,
        every=every,
        startingOffsets=start,
        maxOffsetsPerTrigger=str(rows_per_batch),
    )
    board_view.follow(query, folder, orders, page, every, job.as_json)


@on_spark(app, "job", "redistribute")
def redistribute(
    job: Job,
    source: Source,
    to: To,
    times: Annotated[
        int, typer.Option(min=1, help="How many times the queues the new topic gets.")
    ] = 4,
    by: By = "key",
    group: Annotated[
        str | None, typer.Option(help="Begin where this consumer group is, and move it along.")
    ] = None,
    checkpoint: Checkpoint = None,
    every: Every = None,
    rows_per_batch: RowsPerBatch = ROWS_PER_BATCH,
) -> None:
    """Copy a backlog to a topic with more queues; messages of one key keep their order."""
    from onelog.commands.job import running
    from onelog.spark.jobs import copies

    query = copies.redistribute(
        job.spark,
        job.link,
        source,
        to,
        running.checkpoint(checkpoint, "redistribute", source, to),
        times=times,
        by=by,
        group=group,
        every=every,
        maxOffsetsPerTrigger=str(rows_per_batch),
    )
    running.run(query, f"{source} to {to}", job.as_json)


@on_spark(app, "job", "deduplicate")
def deduplicate(
    job: Job,
    source: Source,
    to: To,
    by: By = "key",
    remember: Annotated[
        int, typer.Option(min=1, help="For how many seconds a key is remembered.")
    ] = 3600,
    clock: Annotated[
        Literal["read", "store_time", "born_time"],
        typer.Option(help="Seconds since when it was read, or of the messages' own times."),
    ] = "read",
    checkpoint: Checkpoint = None,
    every: Every = None,
    start: Start = "earliest",
    rows_per_batch: RowsPerBatch = ROWS_PER_BATCH,
) -> None:
    """Copy a topic without the messages that repeat an earlier one."""
    from onelog.commands.job import running
    from onelog.spark.jobs import copies

    query = copies.deduplicate(
        job.spark,
        job.link,
        source,
        to,
        running.checkpoint(checkpoint, "deduplicate", source, to),
        by=by,
        remember_seconds=remember,
        clock=clock,
        every=every,
        startingOffsets=start,
        maxOffsetsPerTrigger=str(rows_per_batch),
    )
    running.run(query, f"{source} to {to}", job.as_json)


@on_spark(app, "job", "reconcile")
def reconcile(
    job: Job,
    first: Annotated[str, typer.Argument(help="One topic.")],
    second: Annotated[str, typer.Argument(help="The other one.")],
    second_nameserver: Annotated[
        str | None, typer.Option(help="Name servers of the other one, if it is elsewhere.")
    ] = None,
    by: By = "key",
    samples: Samples = 10,
    since: Since = None,
) -> None:
    """Compare two topics by key and content; the exit code is 1 if they differ."""
    from onelog.commands.job import views
    from onelog.spark.jobs import reconcile as work

    other = {**job.link, "nameserver": second_nameserver} if second_nameserver else None
    found = work.reconcile(
        job.spark,
        job.link,
        first,
        second,
        second_link=other,
        by=by,
        samples=samples,
        **_from(since),
    )
    views.reconciliation(found, first, second, job.as_json)
    if not found.is_same:
        raise typer.Exit(1)


@on_spark(app, "job", "clean-logs")
def clean_logs(
    job: Job,
    source: Source,
    to: Annotated[str | None, typer.Option("--to", help="The topic for clean lines.")] = None,
    rejects: Annotated[
        str | None, typer.Option(help="The topic for the others.", show_default="TO-rejects")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Lines in each part of the statistics.")] = 10,
    checkpoint: Checkpoint = None,
    every: Every = None,
    rows_per_batch: RowsPerBatch = ROWS_PER_BATCH,
) -> None:
    """Make log lines uniform and safe to read; without --to, only count what they say."""
    from onelog.commands.job import running, views
    from onelog.spark.jobs import clean_logs as work

    if to is None:
        views.log_statistics(work.statistics(job.spark, job.link, source, top), source, job.as_json)
        return
    query = work.start(
        job.spark,
        job.link,
        source,
        to,
        rejects or f"{to}-rejects",
        running.checkpoint(checkpoint, "clean-logs", source, to),
        every=every,
        maxOffsetsPerTrigger=str(rows_per_batch),
    )
    running.run(query, f"{source} to {to}", job.as_json)


@on_spark(app, "job", "trace-latency")
def trace_latency(
    job: Job,
    trace_topic: Annotated[
        str, typer.Option(help="Where clients write their traces.")
    ] = TRACE_TOPIC,
    since: Since = None,
) -> None:
    """How long sending, waiting and consuming took, in percentiles, from message traces."""
    from onelog.commands.job import views
    from onelog.spark.jobs import trace_latency as work

    found = work.report(job.spark, job.link, trace_topic, **_from(since))
    views.latencies(found, job.as_json)


@on_spark(app, "job", "triage")
def triage(
    job: Job,
    group: Annotated[str, typer.Argument(help="The consumer group that gave messages up.")],
    reason_property: Annotated[
        str | None, typer.Option(help="A property in which consumers say what was wrong.")
    ] = None,
    traces: Annotated[
        bool, typer.Option("--traces", help="Look into message traces for the reason.")
    ] = False,
    expect_json: Annotated[
        bool, typer.Option("--expect-json", help="A body that is no JSON is a reason.")
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(help="Only these, in SQL: \"reason = 'no stock' and tags = 'paid'\"."),
    ] = None,
    samples: Samples = 3,
    resend: Annotated[bool, typer.Option("--resend", help="Send these again.")] = False,
    to_topic: Annotated[
        str | None, typer.Option(help="Not to their own topics, but to this one.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count what --resend would send.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Why messages died, in groups with samples; and sending chosen ones again, once each."""
    from onelog.commands.job import views
    from onelog.spark.jobs import triage as work

    letters = work.letters(
        job.spark,
        job.link,
        group,
        reason_property=reason_property,
        with_traces=traces,
        expect_json=expect_json,
    )
    chosen = views.only_where(letters, where)
    if resend:
        views.resend_letters(job.link, group, chosen, to_topic, dry_run, yes, job.as_json)
    else:
        views.show_heaps(group, chosen, samples, job.as_json)


def _from(since: str | None) -> dict[str, str]:
    return {} if since is None else {"startingTimestamp": since}
