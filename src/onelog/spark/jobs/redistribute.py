"""Redistribution of a backlog: from a topic with few queues to one with many more.

A topic is consumed by as many consumers as it has queues. When a backlog grows faster than they
work, it is copied to a topic with N times the queues, which N times the consumers then share.

Invariant: each message is copied once, also after a crash; messages of one key come from one queue
in its order (a task reads a queue from front to back), go to one queue, and so keep their order.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from onelog.errors import ConfigError, TopicNotFoundError
from onelog.spark.jobs import topics
from onelog.spark.jobs.topics import Link, key_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

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


def start(
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
