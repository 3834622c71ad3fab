"""Writing to topics from a real Spark."""

import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from onelog.client.connection.nodes import Nodes
from onelog.errors import OnelogError
from onelog.spark.brokers import disconnect
from onelog.spark.options import WriteOptions, write_options
from onelog.spark.write import deciders, sink
from onelog.spark.write.sink import OnelogWriter, TopicStream
from onelog.wire.remoting.codes import RequestCode
from tests.spark.conftest import StartCluster
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)


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
    assert json.loads((checkpoint / deciders.NAME).read_text())["decider"] == "broker-a"
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
    ]:
        with pytest.raises(Exception, match=reason):
            write(wrong, cluster, **options)
    with pytest.raises(Exception, match="cannot be overwritten"):
        frame.write.format("onelog").mode("overwrite").options(
            nameserver=cluster.nameserver, topic="out"
        ).save()


# -- who decides, without a JVM: what Spark's tasks and its driver do ----------------------------


BODY = StructType([StructField("body", BinaryType())])


def in_a_new_process(cluster: ThreadedCluster, options: dict[str, str]) -> WriteOptions:
    """What a sink is told whose process knows nothing of earlier ones."""
    sink._deciders.clear()
    disconnect()
    given = {"nameserver": cluster.nameserver, "topic": "out", "retryTimeoutMs": "0", **options}
    return write_options(given)


def run_batch(
    cluster: ThreadedCluster, batch: int = 0, query: str = "spark-q", **options: str
) -> None:
    """One batch of a stream, with one row, as tasks and driver write it."""
    stream = TopicStream(in_a_new_process(cluster, options), BODY)
    stream.commit(batch, [stream.write(query, batch, iter([_rows(batch)]))])


def run_write(cluster: ThreadedCluster, **options: str) -> None:
    """The same for a batch write."""
    writer = OnelogWriter(in_a_new_process(cluster, options), BODY)
    writer.commit([writer.write(iter([_rows(int(options.get("txnVersion", 0)))]))])


def _rows(batch: int) -> pa.RecordBatch:
    return pa.record_batch({"body": [b"%d" % batch]})


def stored(cluster: ThreadedCluster, *brokers: int) -> list[bytes]:
    return sorted(
        bytes(message.body)
        for broker in brokers
        for queue in range(4)
        for message in cluster.broker(broker).store.messages("out", queue, 0, 1_000)
    )


@pytest.fixture
def pair(start_cluster: StartCluster) -> ThreadedCluster:
    """Two brokers, which both have the topic, so that it can be written with one of them away."""
    cluster = start_cluster(2)
    cluster.topic("out", 2)
    return cluster


def test_while_the_decider_of_a_query_is_away_nobody_else_decides(pair: ThreadedCluster) -> None:
    for batch in (0, 1):
        run_batch(pair, batch)
    pair.stop_broker(0)
    for again in range(2):  # As a query that is started again, and again.
        with pytest.raises(OnelogError, match="broker 'broker-a' decides for query 'spark-q'"):
            run_batch(pair, 1 + again)
    assert stored(pair, 1) == []
    pair.start_broker(0)
    for batch in (1, 2):
        run_batch(pair, batch)
    assert stored(pair, 0, 1) == [b"0", b"1", b"2"]


def test_a_broker_that_comes_later_does_not_take_over_the_decisions(pair: ThreadedCluster) -> None:
    pair.stop_broker(0)
    run_batch(pair)
    pair.start_broker(0)
    run_batch(pair)
    assert stored(pair, 0, 1) == [b"0"]


def test_brokers_that_never_heard_of_a_running_query_do_not_decide(pair: ThreadedCluster) -> None:
    pair.stop_broker(0)
    for batch in (0, 1):
        run_batch(pair, batch)
    pair.stop_broker(1)
    pair.start_broker(0)
    with pytest.raises(OnelogError, match=r"no broker knows query spark-q, .* at batch 1 already"):
        run_batch(pair, 1)
    assert stored(pair, 0) == []


def test_the_checkpoint_of_a_stream_remembers_who_decides(
    pair: ThreadedCluster, tmp_path: Path
) -> None:
    (tmp_path / "metadata").write_text('{"id": "q"}')
    pair.stop_broker(0)
    run_batch(pair, checkpointLocation=str(tmp_path))
    pair.stop_broker(1)
    pair.start_broker(0)
    # Batch 0 again: nobody who is there can tell whether it is a new query.
    with pytest.raises(OnelogError, match="broker 'broker-b' decides for query 'spark-q'"):
        run_batch(pair, checkpointLocation=f"file://{tmp_path}")
    pair.start_broker(1)
    run_batch(pair, checkpointLocation=str(tmp_path))
    assert stored(pair, 0, 1) == [b"0"]


def test_who_lost_the_decider_for_good_names_another_one(pair: ThreadedCluster) -> None:
    for batch in (0, 1):
        run_batch(pair, batch)
    pair.stop_broker(0)
    run_batch(pair, 2, decidingBroker="broker-b")
    assert stored(pair, 1) == [b"2"]
    # Should it come back after all, the decisions of the other one count.
    pair.start_broker(0)
    for batch in (2, 3):
        run_batch(pair, batch)
    assert stored(pair, 0, 1) == [b"0", b"1", b"2", b"3"]
    pair.stop_broker(1)
    with pytest.raises(OnelogError, match="broker 'broker-b' decides"):
        run_batch(pair, 3)


def test_a_decider_that_lost_its_store_decides_nothing(pair: ThreadedCluster) -> None:
    for batch in (0, 1):
        run_batch(pair, batch)
    pair.stop_broker(0)
    shutil.rmtree(pair.store_folder(0))
    pair.start_broker(0)
    with pytest.raises(OnelogError, match=r"'broker-b' has batch 1, of which 'broker-a' knows not"):
        run_batch(pair, 1)
    run_batch(pair, 1, decidingBroker="broker-b")
    assert stored(pair, 1) == []


def test_numbered_batches_of_a_job_keep_their_decider_too(pair: ThreadedCluster) -> None:
    run_write(pair, txnAppId="job", txnVersion="20260501")
    pair.stop_broker(0)
    with pytest.raises(OnelogError, match="broker 'broker-a' decides for query 'job'"):
        run_write(pair, txnAppId="job", txnVersion="20260501")
    assert stored(pair, 1) == []


def test_a_batch_write_is_forgotten_soon_and_needs_no_broker_but_those_it_writes_to(
    pair: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[RequestCode, dict[str, str]]] = []
    ask = Nodes.ask

    async def noted(
        self: Nodes, address: Any, code: RequestCode, ext: Any, *more: Any, **options: Any
    ) -> Any:
        asked.append((code, dict(ext)))
        return await ask(self, address, code, ext, *more, **options)

    monkeypatch.setattr(Nodes, "ask", noted)
    run_write(pair)
    assert stored(pair, 0) == [b"0"]
    changes = [ext for code, ext in asked if code is not RequestCode.QUERY_STAGED]
    assert [ext["oneOff"] for ext in changes] == ["true", "true"]
    (query,) = {ext["query"] for ext in changes}
    assert pair.broker(0).core.prepared_batches.last_batch(query) == 0
    assert pair.broker(1).core.prepared_batches.last_batch(query) is None


def test_a_query_that_0_1_began_keeps_the_decider_that_it_had(pair: ThreadedCluster) -> None:
    for broker, note in ((0, ""), (1, '{"broker-a": []}')):  # As if broker-a had come later.
        commit_as_0_1(pair, broker, 3, note)
    run_batch(pair, 3)
    assert stored(pair, 0, 1) == []
    pair.stop_broker(1)
    with pytest.raises(OnelogError, match=r"another broker decides .* know now \(broker-a\)"):
        run_batch(pair, 4)
    pair.start_broker(1)
    run_batch(pair, 4)
    assert stored(pair, 0, 1) == [b"4"]
    pair.stop_broker(1)
    with pytest.raises(OnelogError, match="broker 'broker-b' decides"):
        run_batch(pair, 4)


def commit_as_0_1(cluster: ThreadedCluster, broker: int, batch: int, note: str) -> None:
    committed = threading.Event()

    async def commit() -> None:
        cluster.broker(broker).core.prepared_batches.commit(
            "spark-q", batch, [], lambda *_: committed.set(), note=note
        )

    cluster.run(commit())
    assert committed.wait(60)
