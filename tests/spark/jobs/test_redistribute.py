"""Backlogs that are copied to more queues."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onelog.errors import ConfigError, TopicNotFoundError
from onelog.spark.jobs import copies, topics
from onelog.spark.jobs.queries import run
from tests.commands.running import run as onelog
from tests.spark.jobs.stored import bodies, link, messages
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_each_key_keeps_its_order_in_four_times_the_queues(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.topic("orders", 2)
    for number in range(120):
        key = number % 12
        cluster.send(
            "orders",
            [b"%d" % number],
            queue=key % 2,
            KEYS=f"k{key} all",
            TAGS=f"t{key}",
            colour="blue",
        )
    for rows in (120, 0):  # A second run has nothing to do.
        ended = onelog(
            "job",
            "redistribute",
            "orders",
            "--to",
            "wide",
            "--times",
            "4",
            "--json",
            "--rows-per-batch",
            "50",
            "--checkpoint",
            str(tmp_path / "c"),
            "-n",
            cluster.nameserver,
        )
        assert ended.document["messages"] == rows, ended.err
    assert topics.queues(link(cluster), "wide") == 8
    assert sorted(map(int, bodies(cluster, "wide", 8))) == list(range(120))
    used = 0
    for queue in range(8):
        found = messages(cluster, "wide", queue)
        used += bool(found)
        for name in {message.keys[0] for message in found}:
            numbers = [int(bytes(each.body)) for each in found if each.keys[0] == name]
            assert len(numbers) == 10
            assert numbers == sorted(numbers)
    assert used > 2
    copy = next(each for each in messages(cluster, "wide", 0) or messages(cluster, "wide", 1))
    assert copy.keys[1] == "all"
    assert copy.tags == copy.keys[0].replace("k", "t")
    assert b"colour\x01blue" in copy.properties


def test_a_group_is_taken_along_from_where_it_is(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.topic("orders", 1)
    cluster.fill("orders", 10, 1)
    cluster.topic("wide", 3)
    offsets = cluster.broker().core.offsets

    async def commit() -> None:
        offsets.commit("readers", "orders", 0, 4)

    cluster.run(commit())
    query = copies.redistribute(
        spark, link(cluster), "orders", "wide", tmp_path / "c", group="readers"
    )
    assert run(query).rows == 6
    assert sorted(map(int, bodies(cluster, "wide", 3))) == [4, 5, 6, 7, 8, 9]

    assert offsets.get("readers", "orders", 0) == 10


def test_mistakes_are_named(cluster: ThreadedCluster) -> None:
    with pytest.raises(TopicNotFoundError, match="nothing"):
        copies.target(link(cluster), "nothing", "wide", 2)
    cluster.topic("orders", 1)
    with pytest.raises(ConfigError, match="to itself"):
        copies.target(link(cluster), "orders", "orders", 2)
