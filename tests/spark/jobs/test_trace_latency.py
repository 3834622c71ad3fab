"""Latencies from traces."""

from typing import TYPE_CHECKING

from onelog.rocketmq.names import TRACE_TOPIC
from onelog.spark.jobs.trace_latency import CONSUME, SEND, UNKNOWN, WAIT, Latency, report
from onelog.wire.remoting.trace import Consumed, Delivered, Published, TraceRecord, encode_trace
from tests.commands.running import run as onelog
from tests.spark.jobs.stored import link
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def sent(ids: str, time_ms: int, cost_ms: int, success: bool = True) -> Published:
    return Published(time_ms, "", "shop", "orders", ids, "", "", "h:1", 5, cost_ms, 0, "", success)


def test_percentiles_of_sending_waiting_and_consuming(
    spark: "SparkSession", cluster: ThreadedCluster
) -> None:
    traced: list[TraceRecord] = [sent(f"m{each}", 1_000, each) for each in range(1, 100)]
    traced.append(sent("m100,m101", 1_000, 500, success=False))
    for number in range(1, 101):
        request = f"r{number}"
        traced.append(Delivered(1_000 + number, "", "readers", request, f"m{number}", 0, ""))
        traced.append(Consumed(request, f"m{number}", 2 * number, number != 7, ""))
    # A second delivery is no wait; clocks may differ; not every message was traced when sent.
    traced.append(Delivered(90_000, "", "readers", "again", "m1", 1, ""))
    traced.append(Delivered(400, "", "early", "e1", "m1", 0, ""))
    traced.append(Consumed("x", "elsewhere", 3, True, "", 0, 5, "others"))
    cluster.send(
        TRACE_TOPIC, [encode_trace(traced[:50]), b"Pub\x01x\x02", encode_trace(traced[50:])]
    )
    found = {(each.span, each.topic, each.group): each for each in report(spark, link(cluster))}
    assert found.keys() == {
        (SEND, "orders", "shop"),
        (WAIT, "orders", "readers"),
        (WAIT, "orders", "early"),
        (CONSUME, "orders", "readers"),
        (CONSUME, UNKNOWN, "others"),
    }
    sending = found[SEND, "orders", "shop"]
    assert (sending.count, sending.failed, sending.p50_ms, sending.max_ms) == (101, 2, 51, 500)
    assert found[WAIT, "orders", "readers"] == Latency(
        WAIT, "orders", "readers", 100, 0, 50.5, 95.05, 99.01, 100
    )
    assert found[WAIT, "orders", "early"].max_ms == 0
    consuming = found[CONSUME, "orders", "readers"]
    assert (consuming.count, consuming.failed, consuming.p50_ms) == (100, 1, 101)
    ended = onelog("job", "trace-latency", "-n", cluster.nameserver)
    assert ended.code == 0
    assert "95.0" in ended.out
