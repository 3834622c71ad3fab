"""Writing to topics from a real Spark."""

import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import StartCluster
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(180)


def bodies(cluster: ThreadedCluster, topic: str, queues: int = 4, brokers: int = 1) -> list[bytes]:
    return [
        bytes(message.body)
        for broker in range(brokers)
        for queue in range(queues)
        for message in cluster.broker(broker).store.messages(topic, queue, 0, 100_000)
    ]


def numbers(spark: "SparkSession", count: int) -> "DataFrame":
    return spark.range(0, count, 1, 3).selectExpr(
        "cast(id as string) body", "cast(id % 7 as string) key"
    )


def write(frame: "DataFrame", cluster: ThreadedCluster, **options: str) -> None:
    writer = frame.write.format("onelog").mode("append")
    writer.options(nameserver=cluster.nameserver, **options).save()


def copy(spark: "SparkSession", cluster: ThreadedCluster, checkpoint: Path, **options: str) -> None:
    """One run of a stream from topic `in` to topic `out`."""
    rows = (
        spark.readStream.format("onelog")
        .options(nameserver=cluster.nameserver, subscribe="in", startingOffsets="earliest")
        .options(maxOffsetsPerTrigger="40")
        .load()
        .select("body", "key")
    )
    query = (
        rows.writeStream.format("onelog")
        .options(nameserver=cluster.nameserver, topic="out", **options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_a_frame_becomes_messages_and_one_key_stays_in_one_queue(
    spark: "SparkSession", cluster: ThreadedCluster
) -> None:
    cluster.topic("out", 4)
    write(numbers(spark, 100), cluster, topic="out")
    assert sorted(map(int, bodies(cluster, "out"))) == list(range(100))
    for queue in range(4):
        keys = Counter(
            message.keys[0] for message in cluster.broker().store.messages("out", queue, 0, 1_000)
        )
        for other in range(queue):
            messages = cluster.broker().store.messages("out", other, 0, 1_000)
            assert not keys.keys() & {message.keys[0] for message in messages}


def test_a_stream_is_copied_once_however_often_it_is_run(
    spark: "SparkSession", cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.topic("in", 2)
    cluster.topic("out", 4)
    cluster.fill("in", 100)
    checkpoint = tmp_path / "checkpoint"
    copy(spark, cluster, checkpoint)
    assert sorted(map(int, bodies(cluster, "out"))) == list(range(100))
    # As if the driver had died after the last commit, before Spark wrote it down.
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    for extra in (checkpoint / "commits").glob(f".{commits[-1].name}*"):
        extra.unlink()
    cluster.fill("in", 20)
    copy(spark, cluster, checkpoint)
    assert len(bodies(cluster, "out")) == 120


def test_a_numbered_batch_of_a_job_is_written_once(
    spark: "SparkSession", cluster: ThreadedCluster
) -> None:
    cluster.topic("out", 1)
    for version in ("7", "7", "8", "3"):
        write(numbers(spark, 10), cluster, topic="out", txnAppId="job", txnVersion=version)
    assert len(bodies(cluster, "out", 1)) == 20
    write(numbers(spark, 10), cluster, topic="out", txnAppId="other", txnVersion="7")
    assert len(bodies(cluster, "out", 1)) == 30


def test_two_brokers_get_their_parts_of_a_batch(
    spark: "SparkSession", start_cluster: StartCluster
) -> None:
    cluster = start_cluster(2)
    cluster.topic("out", 2)
    write(numbers(spark, 200), cluster, topic="out")
    assert sorted(map(int, bodies(cluster, "out", 2, 2))) == list(range(200))
    assert all(
        bodies(cluster, "out", 2),
    )


def test_a_task_that_fails_leaves_nothing_behind(
    spark: "SparkSession", cluster: ThreadedCluster
) -> None:
    cluster.topic("out", 2)
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "if(id < 99, cast(id as string), raise_error('row 99')) body"
    )
    with pytest.raises(Exception, match="row 99"):
        write(frame, cluster, topic="out")
    assert bodies(cluster, "out", 2) == []


def test_a_broker_that_is_away_for_a_moment_ends_no_write(
    spark: "SparkSession", cluster: ThreadedCluster
) -> None:
    cluster.topic("out", 2)
    write(numbers(spark, 10), cluster, topic="out")
    cluster.stop_broker()
    with pytest.raises(Exception, match="retryTimeoutMs"):
        write(numbers(spark, 10), cluster, topic="out", retryTimeoutMs="200")
    back = threading.Timer(2, cluster.start_broker)
    back.start()
    write(numbers(spark, 50), cluster, topic="out", retryTimeoutMs="60000")
    back.join()
    assert len(bodies(cluster, "out", 2)) == 60


def test_at_least_once_needs_no_commit(spark: "SparkSession", cluster: ThreadedCluster) -> None:
    cluster.topic("out", 2)
    write(numbers(spark, 50), cluster, topic="out", delivery="at-least-once")
    assert sorted(map(int, bodies(cluster, "out", 2))) == list(range(50))
    assert cluster.broker().store.max_offset("onelog_sys_staged", 0) == 0


def test_mistakes_are_named_with_their_remedy(
    spark: "SparkSession", cluster: ThreadedCluster
) -> None:
    frame = numbers(spark, 3)
    for wrong, options, reason in [
        (frame, {}, "option `topic`"),
        (frame.withColumn("colour", frame.key), {"topic": "out"}, "colour means nothing"),
        (frame.drop("body"), {"topic": "out"}, "rename one to `body`"),
        (frame.selectExpr("body", "9 queue"), {"topic": "out"}, "drop the column `queue`"),
        (frame, {"topic": "out", "delivery": "never"}, "delivery"),
        (frame, {"topic": "out", "topik": "x"}, "did you mean topic"),
    ]:  # fmt: skip
        with pytest.raises(Exception, match=reason):
            write(wrong, cluster, **options)
    with pytest.raises(Exception, match="cannot be overwritten"):
        frame.write.format("onelog").mode("overwrite").options(
            nameserver=cluster.nameserver, topic="out"
        ).save()
