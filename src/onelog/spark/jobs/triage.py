"""Triage of dead letters: why they died, in groups with samples, and sending chosen ones again.

Nobody writes into a dead letter why it died. The reason is taken from where there is one: a
property that the consumers set (`reason_property`), else the outcome of its last delivery in the
traces, if clients write them, else what is wrong with its body, if it should be JSON.

Invariant: looking changes nothing; a letter is sent again once, however often it is asked for (see
`client.admin.resending`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.dead_letters import Letter, Resending, origin_topic
from onelog.client.connection.nodes import at_once
from onelog.errors import GroupNotFoundError
from onelog.names import DEAD_LETTER_PREFIX
from onelog.rocketmq.names import TRACE_TOPIC
from onelog.spark.jobs import topics, trace_latency
from onelog.spark.jobs.topics import Link
from onelog.wire.remoting.trace import Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOT_TOLD = "not told"
COLUMNS = (
    "broker",
    "queue",
    "offset",
    "key",
    "tags",
    "body",
    "properties",
    "born_time",
    "store_time",
    "message_id",
)
SAMPLE_CHARACTERS = 200
LETTERS_AT_ONCE = 200
_OUTCOMES = {
    Outcome.SUCCESS: "consumed, but given up",
    Outcome.TIME_OUT: "the listener took too long",
    Outcome.EXCEPTION: "the listener raised an error",
    Outcome.RETURNED_NULL: "the listener returned nothing",
    Outcome.FAILED: "the listener said: later",
}


@dataclass(frozen=True, slots=True)
class Heap:
    """Letters that died of the same reason."""

    reason: str
    origin_topic: str
    tags: str
    count: int
    first: datetime
    last: datetime
    samples: Sequence[str]
    """Bodies of some, cut where they are long."""


def letters(
    spark: "SparkSession",
    link: Link,
    group: str,
    *,
    reason_property: str | None = None,
    with_traces: bool = False,
    expect_json: bool = False,
    **options: str,
) -> "DataFrame":
    """The dead letters of a group, those done with included: columns, `reason`, `origin_topic`."""
    topic = DEAD_LETTER_PREFIX + group
    if not topics.queues(link, topic):
        raise GroupNotFoundError(f"consumer group {group} has no dead letters")
    found = topics.read(spark, link, topic, COLUMNS, **options)
    properties = f.col("properties")
    found = found.withColumn(
        "origin_topic",
        f.coalesce(properties["RETRY_TOPIC"], properties["DLQ_ORIGIN_TOPIC"], f.lit("")),
    )
    reasons = [
        f.lit(None).cast("string") if reason_property is None else properties[reason_property]
    ]
    if with_traces:
        found = found.join(_outcomes(spark, link, group), "message_id", "left")
        names = [f.lit(each) for pair in _OUTCOMES.items() for each in (int(pair[0]), pair[1])]
        reasons.append(f.create_map(*names)[f.col("outcome")])
    if expect_json:
        text = f.col("body").cast("string")
        reasons.append(f.when(f.try_parse_json(text).isNull(), "the body is no JSON"))
    return found.withColumn("reason", f.coalesce(*reasons, f.lit(NOT_TOLD)))


def _outcomes(spark: "SparkSession", link: Link, group: str) -> "DataFrame":
    """How the last delivery of each message to a group ended."""
    if not topics.queues(link, TRACE_TOPIC):
        return spark.createDataFrame([], "message_id string, outcome int")
    return (
        trace_latency.records(spark, link)
        .where(f.col("kind") == trace_latency.CONSUME)
        .where(f.col("group").isNull() | (f.col("group") == group))
        .groupBy("message_id")
        .agg(f.max_by("outcome", "time_ms").alias("outcome"))
    )


def heaps(dead: "DataFrame", samples: int = 3) -> Sequence[Heap]:
    """The letters by reason, topic and tags; the largest heap first."""
    by = ["reason", "origin_topic", "tags"]
    order = Window.partitionBy(*by).orderBy("store_time", "broker", "queue", "offset")
    text = f.substring(f.col("body").cast("string"), 1, SAMPLE_CHARACTERS)
    numbered = dead.withColumn("_number", f.row_number().over(order))
    rows = (
        numbered.groupBy(*by)
        .agg(
            f.count("*").alias("count"),
            f.min("store_time").alias("first"),
            f.max("store_time").alias("last"),
            f.collect_list(f.when(f.col("_number") <= samples, text)).alias("samples"),
        )
        .orderBy(f.desc("count"), *by)
        .collect()
    )
    return [
        Heap(
            row["reason"],
            row["origin_topic"],
            row["tags"] or "",
            row["count"],
            row["first"],
            row["last"],
            tuple(row["samples"]),
        )
        for row in rows
    ]


def resend(
    link: Link,
    group: str,
    chosen: "DataFrame",
    *,
    to_topic: str | None = None,
    dry_run: bool = False,
) -> Resending:
    """Send the letters of a frame again, which has at least broker, queue and offset."""
    addresses = sorted(tuple(row) for row in chosen.select("broker", "queue", "offset").collect())

    async def send(admin: AsyncAdmin) -> Resending:
        total = Resending((), 0, ())
        for begin in range(0, len(addresses), LETTERS_AT_ONCE):
            part = addresses[begin : begin + LETTERS_AT_ONCE]
            found = await at_once(lambda row: _letter(admin, group, *row), part)
            done = await admin.dead_letters.resend(found, to_topic=to_topic, dry_run=dry_run)
            total = Resending(
                total.resent + done.resent,
                total.already + done.already,
                total.failures + done.failures,
            )
        if not dry_run:
            await admin.dead_letters.settle(group)
        return total

    return topics.ask(link, send)


async def _letter(admin: AsyncAdmin, group: str, broker: str, queue: int, offset: int) -> Letter:
    topic = DEAD_LETTER_PREFIX + group
    (found,) = await admin.messages.by_offset(topic, queue, offset, broker=broker, count=1)
    return Letter(found, origin_topic(found.message), "", found.message.reconsume_times, False)
