"""A report on latency, from the traces that clients write to RMQ_SYS_TRACE_TOPIC.

Three spans, in milliseconds: `send`, how long producers waited for the broker; `wait`, from when a
message was sent until a consumer was first given it; `consume`, how long its listener took. `wait`
is a difference of two machines' clocks and no more exact than they are; where it would be negative
it counts as 0.

Invariant: percentiles are exact, over all records of the traces that were read. A message whose
sending was not traced belongs to the topic `UNKNOWN`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from onelog.errors import WireError
from onelog.rocketmq.names import TRACE_TOPIC
from onelog.spark.jobs import topics
from onelog.spark.jobs.topics import Link
from onelog.wire.remoting.trace import Consumed, Delivered, Published, decode_trace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEND, WAIT, CONSUME, BAD = "send", "wait", "consume", "unreadable"
UNKNOWN = "(unknown)"
PERCENTILES = (0.5, 0.95, 0.99)
_ARROW = pa.schema(
    [
        ("kind", pa.string()),
        ("message_id", pa.string()),
        ("request_id", pa.string()),
        ("topic", pa.string()),
        ("group", pa.string()),
        ("time_ms", pa.int64()),
        ("cost_ms", pa.int64()),
        ("is_first", pa.bool_()),
        ("success", pa.bool_()),
        ("outcome", pa.int32()),
    ]
)
RECORD = from_arrow_schema(_ARROW)
"""A record of a trace: `kind` is `SEND`, `WAIT` (handed to a listener), `CONSUME`, or `BAD`."""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long something took, for one topic (and group)."""

    span: str
    topic: str
    group: str
    """Of the producers for `send`, else of the consumers."""
    count: int
    failed: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


def report(
    spark: "SparkSession", link: Link, trace_topic: str = TRACE_TOPIC, **options: str
) -> Sequence[Latency]:
    """The latencies of everything that was traced, or of what options such as a time leave."""
    rows = latencies(records(spark, link, trace_topic, **options)).collect()
    order = {SEND: 0, WAIT: 1, CONSUME: 2}
    found = []
    for row in rows:
        p50, p95, p99 = map(float, row["percentiles"])
        found.append(
            Latency(
                row["span"],
                row["topic"],
                row["group"],
                row["count"],
                row["failed"],
                p50,
                p95,
                p99,
                float(row["max_ms"]),
            )
        )
    return sorted(found, key=lambda each: (each.topic, order[each.span], each.group))


def records(
    spark: "SparkSession", link: Link, trace_topic: str = TRACE_TOPIC, **options: str
) -> "DataFrame":
    """The records of the traces in a topic, one row for each message that they are about."""
    return topics.read(spark, link, trace_topic, ["body"], **options).mapInArrow(decoded, RECORD)


def decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: bodies of trace messages in, their records out."""
    for batch in batches:
        rows = [row for body in batch.column("body").to_pylist() for row in _rows(body)]
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(_ARROW)
        arrays = [pa.array(each, field.type) for each, field in zip(columns, _ARROW, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _rows(body: bytes) -> Iterator[tuple[object, ...]]:
    try:
        found = decode_trace(body)
    except WireError:
        yield (BAD, *[None] * 9)
        return
    for each in found:
        match each:
            case Published():
                # A batch is one record, with the ids of all its messages.
                for message_id in each.message_id.split(","):
                    yield (
                        SEND,
                        message_id,
                        None,
                        each.topic,
                        each.group,
                        each.time_ms,
                        each.cost_ms,
                        True,
                        each.success,
                        None,
                    )
            case Delivered():
                yield (
                    WAIT,
                    each.message_id,
                    each.request_id,
                    None,
                    each.group,
                    each.time_ms,
                    None,
                    each.retry_times == 0,
                    None,
                    None,
                )
            case Consumed():
                yield (
                    CONSUME,
                    each.message_id,
                    each.request_id,
                    None,
                    each.group or None,
                    each.time_ms or None,
                    each.cost_ms,
                    None,
                    each.success,
                    each.outcome,
                )


def latencies(traced: "DataFrame") -> "DataFrame":
    """span, topic, group, count, failed, percentiles, max_ms."""
    sent = traced.where(f.col("kind") == SEND)
    handed = traced.where(f.col("kind") == WAIT)
    done = traced.where(f.col("kind") == CONSUME)
    first_sent = sent.groupBy("message_id").agg(
        f.min("time_ms").alias("sent_ms"), f.first("topic").alias("topic")
    )
    waits = (
        handed.where("is_first")
        .groupBy("message_id", "group")
        .agg(f.min("time_ms").alias("handed_ms"))
        .join(first_sent, "message_id")
        .select(
            f.lit(WAIT).alias("span"),
            "topic",
            "group",
            f.greatest(f.lit(0), f.col("handed_ms") - f.col("sent_ms")).alias("ms"),
            f.lit(True).alias("success"),
        )
    )
    # Not every client says with what it consumed which group it is of; what it was handed does.
    of_group = handed.groupBy("request_id").agg(f.first("group").alias("handed_group"))
    consumed = (
        done.drop("topic")
        .join(of_group, "request_id", "left")
        .join(first_sent, "message_id", "left")
        .select(
            f.lit(CONSUME).alias("span"),
            f.coalesce("topic", f.lit(UNKNOWN)).alias("topic"),
            f.coalesce("group", "handed_group", f.lit(UNKNOWN)).alias("group"),
            f.col("cost_ms").alias("ms"),
            "success",
        )
    )
    sending = sent.select(
        f.lit(SEND).alias("span"), "topic", "group", f.col("cost_ms").alias("ms"), "success"
    )
    spans = sending.unionByName(waits).unionByName(consumed)
    return spans.groupBy("span", "topic", "group").agg(
        f.count("*").alias("count"),
        f.sum(f.when(f.col("success"), 0).otherwise(1)).alias("failed"),
        f.percentile("ms", list(PERCENTILES)).alias("percentiles"),
        f.max("ms").alias("max_ms"),
    )
