"""Two topics compared."""

from typing import TYPE_CHECKING

from onelog.spark.jobs.reconcile import Difference, differences, reconcile
from tests.commands.running import run as onelog
from tests.spark.jobs.stored import link
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_is_missing_extra_and_different_is_counted_and_shown(
    spark: "SparkSession", cluster: ThreadedCluster
) -> None:
    for topic, queues in (("one", 2), ("other", 3)):
        cluster.topic(topic, queues)
        for key in "abc":
            cluster.send(topic, [b"1", b"2"], queue=ord(key) % queues, KEYS=key)
    same = reconcile(spark, link(cluster), "one", "other")
    assert same.is_same
    assert (same.first_messages, same.second_messages, same.keys) == (6, 6, 3)
    assert same.samples == []

    cluster.send("one", [b"x"], KEYS="m")
    cluster.send("other", [b"x", b"x"], KEYS="e")
    cluster.send("one", [b"x"], KEYS="d")
    cluster.send("other", [b"y"], KEYS="d")
    # Twice the same is not the same as twice something else.
    cluster.send("one", [b"p", b"p"], KEYS="t")
    cluster.send("other", [b"q", b"q"], KEYS="t")
    cluster.send("other", [b"no key"])
    found = reconcile(spark, link(cluster), "one", "other", samples=2)
    assert not found.is_same
    assert found.counts == {"missing": 1, "extra": 2, "different": 2}
    assert list(found.samples) == [
        Difference("missing", "m", 1, 0),
        Difference("extra", None, 0, 1),
        Difference("extra", "e", 0, 2),
        Difference("different", "d", 1, 1),
        Difference("different", "t", 2, 2),
    ]
    assert differences(spark, link(cluster), "one", "other").count() == 5

    ended = onelog("job", "reconcile", "one", "other", "-n", cluster.nameserver, "--json")
    assert (ended.code, ended.document["counts"]) == (1, found.counts)
    ended = onelog("job", "reconcile", "one", "one", "-n", cluster.nameserver)
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "They hold the same.")
