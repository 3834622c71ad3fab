"""Reconciliation: whether two topics hold the same, and if not, where they differ.

For each key (`topics.key_of`): how many messages each topic has, and whether their bodies are the
same, by their hashes and whatever their order. A key is `missing` if only the first topic has it,
`extra` if only the second one has, and `different` if its messages are not the same, or not as
many.

Invariant: topics without a difference hold the same bodies equally often under each key. Hashes of
64 bits tell bodies apart that differ by accident, not by intent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from onelog.errors import ConfigError
from onelog.spark.jobs import topics
from onelog.spark.jobs.topics import Link, key_of, source_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MISSING, EXTRA, DIFFERENT = "missing", "extra", "different"
KINDS = (MISSING, EXTRA, DIFFERENT)


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose messages are not the same in both topics."""

    kind: str
    key: str | None
    first_count: int
    second_count: int


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What was found."""

    first_messages: int
    second_messages: int
    keys: int
    counts: dict[str, int]
    """Keys, by kind of difference."""
    samples: Sequence[Difference]

    @property
    def is_same(self) -> bool:
        """Whether there is no difference."""
        return not any(self.counts.values())


def reconcile(
    spark: "SparkSession",
    link: Link,
    first: str,
    second: str,
    *,
    second_link: Link | None = None,
    by: str = "key",
    samples: int = 10,
    **options: str,
) -> Reconciliation:
    """Compare two topics, also of two clusters; at most so many samples of each kind."""
    columns = [*source_columns(by), "body"]
    one = topics.read(spark, link, first, columns, **options)
    other = topics.read(spark, second_link or link, second, columns, **options)
    compared = compare(one, other, by).persist()
    try:
        sums = compared.groupBy("kind").agg(
            f.count("*").alias("keys"),
            f.sum("first_count").alias("first"),
            f.sum("second_count").alias("second"),
        )
        found = {row["kind"]: row for row in sums.collect()}
        shown: list[Difference] = []
        for kind in KINDS if samples else ():
            if kind in found:
                of_kind = compared.where(f.col("kind") == kind).orderBy("key").limit(samples)
                shown += [Difference(kind, *row) for row in of_kind.drop("kind").collect()]
    finally:
        compared.unpersist()
    return Reconciliation(
        sum(row["first"] for row in found.values()),
        sum(row["second"] for row in found.values()),
        sum(row["keys"] for row in found.values()),
        {kind: found[kind]["keys"] if kind in found else 0 for kind in KINDS},
        shown,
    )


def differences(
    spark: "SparkSession", link: Link, first: str, second: str, by: str = "key", **options: str
) -> "DataFrame":
    """All keys that differ, as a frame: key, first_count, second_count, kind."""
    columns = [*source_columns(by), "body"]
    frames = [topics.read(spark, link, each, columns, **options) for each in (first, second)]
    return compare(frames[0], frames[1], by).where("kind <> 'same'")


def compare(first: "DataFrame", second: "DataFrame", by: str) -> "DataFrame":
    """Each key, with its messages in both frames, and how they differ."""
    if not by:
        raise ConfigError("by is empty: say what messages are told apart by")
    one, other = _by_key(first, by, "first"), _by_key(second, by, "second")
    # Also messages without a key are compared, as if no key were one.
    joined = one.join(other, f.col("first_key").eqNullSafe(f.col("second_key")), "full")
    kind = (
        f.when(f.col("second_count").isNull(), MISSING)
        .when(f.col("first_count").isNull(), EXTRA)
        .when(
            (f.col("first_count") != f.col("second_count"))
            | (f.col("first_hash") != f.col("second_hash")),
            DIFFERENT,
        )
        .otherwise("same")
    )
    return joined.select(
        f.coalesce("first_key", "second_key").alias("key"),
        f.coalesce("first_count", f.lit(0)).alias("first_count"),
        f.coalesce("second_count", f.lit(0)).alias("second_count"),
        kind.alias("kind"),
    )


def _by_key(messages: "DataFrame", by: str, which: str) -> "DataFrame":
    # A sum does not depend on the order, and unlike XOR counts what is there twice.
    hashes = f.sum(f.xxhash64("body").cast("decimal(38,0)"))
    return messages.groupBy(key_of(by).alias(f"{which}_key")).agg(
        f.count("*").alias(f"{which}_count"), hashes.alias(f"{which}_hash")
    )
