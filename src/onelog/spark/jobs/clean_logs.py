r"""Log lines made clean: from a topic of raw lines to one of uniform JSON, with statistics.

Three forms are understood: JSON objects, access logs of web servers (common and combined), and
lines that begin with a time and a level:

    {"time": "2026-05-01T10:30:00Z", "level": "warn", "logger": "shop", "message": "slow"}
    10.0.0.7 - - [01/May/2026:10:30:00 +0000] "GET /cart HTTP/1.1" 200 512
    2026-05-01 10:30:00,123 ERROR shop.cart: no stock for 4711

Cleaning takes away what terminals obey and what nobody should read: colours, control characters,
addresses of mail, long numbers, and values of passwords, tokens and the like. Blank lines are left
out; a line of no known form goes to the topic for rejects, as it is, with the reason.

Invariant: each line that is not blank is in one of the two topics, once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from onelog.message import TAGS
from onelog.spark.jobs import topics
from onelog.spark.jobs.topics import Link

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = ["body", "key", "key_bytes", "tags", "headers", "born_time"]
REASON = "reason"
"""The property of a reject that says what is wrong with it."""
_ACCESS = r'^(\S+) \S+ \S+ \[([^\]]+)\] "([^"]*)" (\d{3}) (\d+|-)'
_PLAIN = (
    r"^(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)\s+"
    r"\[?([A-Za-z]+)\]?\s+(?:([\w.$/-]+):\s+)?(.*)$"
)
_JSON = (
    "time string, timestamp string, `@timestamp` string, level string, severity string, "
    "logger string, source string, message string, msg string"
)
_MASKS = (
    (r"\x1b\[[0-9;]*[A-Za-z]", ""),
    (r"[\p{Cntrl}]+", " "),
    (
        r"(?i)\b(password|passwd|token|secret|api[_-]?key|authorization)(\s*[=:]\s*)"
        r"(?:(?:bearer|basic)\s+)?\S+",
        "$1$2***",
    ),
    (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "<mail>"),
    (r"\b(?:\d[ -]?){12,18}\d\b", "<number>"),
    (r" {2,}", " "),
)
_LEVELS = {
    "WARNING": "WARN",
    "ERR": "ERROR",
    "CRITICAL": "FATAL",
    "CRIT": "FATAL",
    "EMERG": "FATAL",
    "NOTICE": "INFO",
    "FINE": "DEBUG",
    "SEVERE": "ERROR",
}
KNOWN_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a topic of log lines holds."""

    lines: int
    rejected: int
    levels: dict[str, int]
    origins: Sequence[tuple[str, int, int]]
    """Who wrote most: its name, lines, and errors among them."""
    patterns: Sequence[tuple[str, int]]
    """What errors and warnings say most often, with numbers left out."""


def start(
    spark: "SparkSession",
    link: Link,
    source: str,
    to: str,
    rejects: str,
    checkpoint: Path,
    *,
    every: float | None = None,
    **options: str,
) -> "StreamingQuery":
    """Begin to clean, in the background."""
    lines = parsed(topics.follow(spark, link, source, COLUMNS, **options))
    is_good = f.col("reason").isNull()
    clean = f.to_json(f.struct("time", "level", "origin", "text", "status", "bytes"))
    reason = f.create_map(f.lit(REASON), f.col("reason"))
    messages = lines.select(
        f.when(is_good, f.lit(to)).otherwise(f.lit(rejects)).alias("topic"),
        f.when(is_good, clean.cast("binary")).otherwise(f.col("body")).alias("body"),
        "key",
        "key_bytes",
        f.filter("headers", lambda each: each["key"] != TAGS).alias("headers"),
        f.when(is_good, f.col("level")).otherwise(f.col("tags")).alias("tags"),
        f.when(~is_good, reason).alias("properties"),
    )
    return topics.start(messages, link, f"clean-logs-{source}", checkpoint, every)


def statistics(
    spark: "SparkSession", link: Link, source: str, top: int = 10, **options: str
) -> Statistics:
    """Count what a topic of raw lines holds now."""
    lines = parsed(topics.read(spark, link, source, COLUMNS, **options)).persist()
    try:
        good = lines.where(f.col("reason").isNull())
        levels = {row["level"]: row["count"] for row in good.groupBy("level").count().collect()}
        is_error = f.col("level").isin("ERROR", "FATAL")
        origins = (
            good.groupBy("origin")
            .agg(f.count("*").alias("lines"), f.count(f.when(is_error, 1)).alias("errors"))
            .orderBy(f.desc("lines"), "origin")
            .limit(top)
            .collect()
        )
        pattern = f.regexp_replace("text", r"[0-9a-fA-F-]*\d[0-9a-fA-F-]*", "#").alias("pattern")
        patterns = (
            good.where(is_error | (f.col("level") == "WARN"))
            .groupBy(pattern)
            .count()
            .orderBy(f.desc("count"), "pattern")
            .limit(top)
            .collect()
        )
        rejected = lines.where(f.col("reason").isNotNull()).count()
    finally:
        lines.unpersist()
    return Statistics(
        sum(levels.values()) + rejected,
        rejected,
        dict(sorted(levels.items())),
        [(row["origin"], row["lines"], row["errors"]) for row in origins],
        [(row["pattern"], row["count"]) for row in patterns],
    )


def parsed(messages: "DataFrame") -> "DataFrame":
    """Messages with `time`, `level`, `origin`, `text`, `status`, `bytes`; or a `reason`, if bad."""
    line = f.trim(f.col("body").cast("string"))
    lines = messages.withColumn("_line", line).where(f.length("_line") > 0)
    lines = lines.withColumn("_json", f.from_json("_line", _JSON))
    is_json = f.col("_line").startswith("{")
    access, plain = (f.col("_line").rlike(form) for form in (_ACCESS, _PLAIN))
    status = _part(_ACCESS, 4).try_cast("int")
    text = (
        f.when(is_json, f.coalesce("_json.message", "_json.msg"))
        .when(access, _part(_ACCESS, 3))
        .when(plain, _part(_PLAIN, 4))
    )
    shaped = lines.select(
        "*",
        _time(is_json, access, plain).alias("time"),
        _level(is_json, access, plain, status).alias("level"),
        (
            f.when(is_json, f.coalesce("_json.logger", "_json.source"))
            .when(access, _part(_ACCESS, 1))
            .when(plain, f.nullif(_part(_PLAIN, 3), f.lit("")))
        ).alias("origin"),
        _masked(text).alias("text"),
        f.when(access, status).alias("status"),
        f.when(access, _part(_ACCESS, 5).try_cast("bigint")).alias("bytes"),
    )
    reason = (
        f.when(~(is_json | access | plain), "a form that is not known")
        .when(f.col("text").isNull(), "no message")
        .when(f.col("time").isNull(), "a time that is none")
        .when(~f.col("level").isin(*KNOWN_LEVELS), f.concat(f.lit("level "), f.col("level")))
    )
    return shaped.withColumn("reason", reason).drop("_line", "_json")


def _part(form: str, number: int) -> "Column":
    return f.regexp_extract("_line", form, number)


def _time(is_json: "Column", access: "Column", plain: "Column") -> "Column":
    named = f.coalesce("_json.time", "_json.timestamp", "_json.@timestamp")
    written = f.when(is_json, named).when(plain, f.translate(_part(_PLAIN, 1), ",", "."))
    of_access = f.try_to_timestamp(_part(_ACCESS, 2), f.lit("dd/MMM/yyyy:HH:mm:ss Z"))
    # Whoever writes JSON without a time leaves it to the message to have one.
    missing = f.when(is_json & named.isNull(), f.col("born_time"))
    return f.coalesce(f.when(access, of_access), written.try_cast("timestamp"), missing)


def _level(is_json: "Column", access: "Column", plain: "Column", status: "Column") -> "Column":
    by_status = f.when(status >= 500, "ERROR").when(status >= 400, "WARN").otherwise("INFO")
    named = f.when(is_json, f.coalesce("_json.level", "_json.severity", f.lit("INFO"))).when(
        plain, _part(_PLAIN, 2)
    )
    upper = f.upper(named)
    names = f.create_map(*[f.lit(word) for pair in _LEVELS.items() for word in pair])
    return f.when(access, by_status).otherwise(f.coalesce(names[upper], upper))


def _masked(text: "Column") -> "Column":
    for pattern, instead in _MASKS:
        text = f.regexp_replace(text, pattern, instead)
    return f.trim(text)
