"""Deduplication: a topic copied to another one without the messages that repeat an earlier one.

Producers that try again, and consumers that answer twice, leave messages twice in a topic. Of those
with the same key (see `topics.key_of`), the first one is copied, and what follows while the key is
remembered is left out. Messages that have no such key are all copied.

A key is remembered for a span of time after it was read (`READ`), or by the time of the messages
(`store_time`, `born_time`). The latter gives the same result whenever it is run, but leaves out
messages that are older, by the whole span, than others that were read before (`Ran.late`).

Invariant: no two copies of one key within the span; each message that is copied is copied once,
also after a crash. Messages of different keys may change their order.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as f

from onelog.spark.jobs import topics
from onelog.spark.jobs.topics import Link, key_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

READ: Literal["read"] = "read"
Clock = Literal["read", "born_time", "store_time"]


def start(
    spark: "SparkSession",
    link: Link,
    source: str,
    to: str,
    checkpoint: Path,
    *,
    by: str = "key",
    remember_seconds: int = 3600,
    clock: Clock = READ,
    every: float | None = None,
    **options: str,
) -> "StreamingQuery":
    """Begin to copy, in the background."""
    columns = [*topics.CONTENT, "message_id", *([] if clock == READ else [clock])]
    messages = topics.follow(spark, link, source, columns, **options)
    kept = unique(messages, by, clock, remember_seconds).select(*topics.copied())
    return topics.start(kept, link, f"deduplicate-{source}-{to}", checkpoint, every, topic=to)


def unique(messages: "DataFrame", by: str, clock: Clock, remember_seconds: int) -> "DataFrame":
    """The messages of a stream without repetitions."""
    identity = f.coalesce(
        f.concat(f.lit("key "), key_of(by)), f.concat(f.lit("id "), f.col("message_id"))
    )
    time = f.current_timestamp() if clock == READ else f.col(clock)
    return (
        messages.withColumn("_identity", identity)
        .withColumn("_time", time)
        .withWatermark("_time", f"{remember_seconds} seconds")
        .dropDuplicatesWithinWatermark(["_identity"])
    )
