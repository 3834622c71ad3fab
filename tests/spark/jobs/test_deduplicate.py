"""Topics without repetitions."""

from pathlib import Path
from typing import TYPE_CHECKING

from onelog.spark.jobs import copies
from onelog.spark.jobs.queries import Ran, run
from tests.commands.running import run as onelog
from tests.spark.jobs.stored import bodies, link, messages, send_born
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_repeats_a_key_is_left_out_also_in_a_later_run(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.topic("payments", 2)
    cluster.topic("once", 1)
    for number, key in enumerate("abcab"):
        cluster.send("payments", [b"%d" % number], queue=number % 2, KEYS=key, TAGS="paid")
    cluster.send("payments", [b"no key", b"no key"])

    given = link(cluster)
    run(copies.deduplicate(spark, given, "payments", "once", tmp_path, remember_seconds=600))
    assert sorted(bodies(cluster, "once"))[-2:] == [b"no key", b"no key"]
    found = {each.keys[0]: bytes(each.body) for each in messages(cluster, "once") if each.keys}
    assert found.keys() == {"a", "b", "c"}
    assert len(bodies(cluster, "once")) == 5
    cluster.send("payments", [b"late"], KEYS="a")
    cluster.send("payments", [b"new"], KEYS="d")
    ended = onelog(
        "job",
        "deduplicate",
        "payments",
        "--to",
        "once",
        "--remember",
        "600",
        "--checkpoint",
        str(tmp_path),
        "-n",
        cluster.nameserver,
        "--json",
    )
    assert ended.document == {"messages": 2, "batches": 1, "late": 0}
    assert bodies(cluster, "once")[5:] == [b"new"]
    assert messages(cluster, "once")[-1].keys == ["d"]


def test_a_field_of_the_body_can_be_the_key(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.topic("payments", 1)
    cluster.topic("once", 1)
    cluster.send("payments", [b'{"id": 1}', b'{"id": 2}', b'{"id":1, "try": 2}', b"no JSON"])
    run(copies.deduplicate(spark, link(cluster), "payments", "once", tmp_path, by="$.id"))
    assert len(bodies(cluster, "once")) == 3
    assert {b'{"id": 2}', b"no JSON"} <= set(bodies(cluster, "once"))


def test_by_the_time_of_messages_what_is_older_than_the_span_is_late(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.topic("payments", 1)
    cluster.topic("once", 1)

    def copy() -> Ran:
        query = copies.deduplicate(
            spark,
            link(cluster),
            "payments",
            "once",
            tmp_path,
            remember_seconds=60,
            clock="born_time",
        )
        return run(query)

    for born_ms, late in ((1_000_000, 0), (500_000, 1), (1_000_001, 0)):
        send_born(cluster, "payments", born_ms, b"%d" % born_ms)
        assert copy().late == late
    assert bodies(cluster, "once") == [b"1000000", b"1000001"]
