"""Spark's own Kafka connector against OneLog: in batches, and streaming with a checkpoint.

Spark and its connector come from Maven, in a version whose jars are all there.
"""

from pathlib import Path

import pytest

from tests.e2e.java_toolchain import build
from tests.e2e.kafka_java import Facts, RunningJava
from tests.e2e.onelog_kafka import OnelogKafka

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(900)]

SPARK_VERSION = "4.0.0"
COUNT = 1_000
# What `spark-submit` opens for it.
OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)


def test_spark_writes_reads_and_copies_topics_exactly(tmp_path: Path) -> None:
    program = build("kafka/spark", SPARK_VERSION, "onelog.kafka.SparkJob", tmp_path)
    flags = [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in OPENED]
    flags += ["-Xmx1g", "-XX:+UseSerialGC", "-XX:+IgnoreUnrecognizedVMOptions"]
    told: dict[str, Facts] = {}
    with (
        OnelogKafka(tmp_path / "onelog") as broker,
        RunningJava(
            program, tmp_path / "spark.log", flags, broker.bootstrap, tmp_path, COUNT
        ) as job,
    ):
        while (line := job.next_line(300)) is not None:
            told[line.pop("event")] = line

    def first(count: int) -> Facts:
        return {
            "rows": count,
            "distinct": count,
            "sum": count * (count - 1) // 2,
            "whole": True,
        }

    assert told == {
        "written": first(COUNT),
        "copied": first(COUNT),
        "copied again": first(2 * COUNT),
    }
