"""Jobs that copy a topic to another one: without repetitions, or to more queues.

Deduplication: producers that try again, and consumers that answer twice, leave messages twice in a
topic. Of those with the same key (see `topics.key_of`), the first one is copied, and what follows
while the key is remembered is left out. Messages that have no such key are all copied.

A key is remembered for a span of time after it was read (`READ`), or by the time of the messages
(`store_time`, `born_time`). The latter gives the same result whenever it is run, but leaves out
messages that are older, by the whole span, than others that were read before (`Ran.late`).

Redistribution: a topic is consumed by as many consumers as it has queues. When a backlog grows
faster than they work, it is copied to a topic with N times the queues, which N times the consumers
then share.

Invariants: each message that is copied is copied once, also after a crash. There are no two copies
of one key within the span, and then messages of different keys may change their order. To more
queues, messages of one key come from one queue in its order (a task reads a queue from front to
back), go to one queue, and so keep their order.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as f

from onelog.errors import ConfigError, TopicNotFoundError
from onelog.spark.jobs import topics
from onelog.spark.jobs.topics import Link, key_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

READ: Literal["read"] = "read"
Clock = Literal["read", "born_time", "store_time"]


def deduplicate(
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


SHARDING_KEY = "__SHARDINGKEY"
"""The property in which RocketMQ's newer clients name what keeps messages in order."""


def target(link: Link, source: str, to: str, times: int) -> int:
    """Make the target topic, unless it exists; how many queues it has."""
    here = topics.queues(link, source)
    if not here:
        raise TopicNotFoundError(f"there is no topic {source}")
    if source == to:
        raise ConfigError(f"topic {to} cannot be copied to itself: name another one")
    if not topics.queues(link, to):
        per_broker = topics.ask(link, lambda admin: admin.topics.route(source))
        most = max(each.write_queues for each in per_broker.brokers)
        topics.create(link, to, most * times)
    return topics.queues(link, to)


def redistribute(
    spark: "SparkSession",
    link: Link,
    source: str,
    to: str,
    checkpoint: Path,
    *,
    times: int = 4,
    by: str = "key",
    group: str | None = None,
    every: float | None = None,
    **options: str,
) -> "StreamingQuery":
    """Begin to copy, in the background.

    `by` says what keeps messages in order (see `topics.key_of`); those that have no such thing go
    anywhere. With a group, the copy begins where that group is, and moves it along.
    """
    queues = target(link, source, to, times)
    if group is not None:
        options |= {"group": group, "startingOffsets": "group", "commitOffsets": "true"}
    columns = [*topics.CONTENT, "message_id"]
    messages = topics.follow(spark, link, source, columns, **options)
    order = key_of(by)
    if by == "key":
        order = f.coalesce(f.col("properties")[SHARDING_KEY], order)
    queue = f.pmod(f.xxhash64(order), f.lit(queues)).cast("int")
    moved = messages.select(*topics.copied(), f.when(order.isNotNull(), queue).alias("queue"))
    return topics.start(moved, link, f"redistribute-{source}-{to}", checkpoint, every, topic=to)
