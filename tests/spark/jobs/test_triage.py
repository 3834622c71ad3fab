"""Dead letters, sorted and sent again."""

from typing import TYPE_CHECKING

import pytest

from onelog.errors import GroupNotFoundError
from onelog.rocketmq.names import TRACE_TOPIC
from onelog.spark.jobs import triage
from onelog.wire.remoting.trace import Consumed, Outcome, encode_trace
from tests.commands.running import run as onelog
from tests.spark.jobs.stored import bodies, link
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOX = "%DLQ%readers"


@pytest.fixture
def dead(cluster: ThreadedCluster) -> ThreadedCluster:
    """Six dead letters: three told their reason, one timed out, one is no JSON, one is a riddle."""
    cluster.topic("orders", 1)
    cluster.topic(BOX, 2)
    for number in range(6):
        given = {"RETRY_TOPIC": "orders", "TAGS": "paid", "UNIQ_KEY": f"{number:032X}"}
        if number < 3:
            given["why"] = "no stock"
        body = b"oops" if number == 4 else b'{"order": %d}' % number
        cluster.send(BOX, [body], number % 2, 0, **given)
    traces = [
        Consumed("r1", f"{3:032X}", 9, False, "", Outcome.EXCEPTION, 100, "readers"),
        Consumed("r2", f"{3:032X}", 9, False, "", Outcome.TIME_OUT, 200, "readers"),
        Consumed("r3", f"{5:032X}", 9, False, "", Outcome.TIME_OUT, 200, "others"),
    ]
    cluster.send(TRACE_TOPIC, [encode_trace(traces)])
    return cluster


def test_letters_lie_in_heaps_with_samples(spark: "SparkSession", dead: ThreadedCluster) -> None:
    letters = triage.letters(
        spark, link(dead), "readers", reason_property="why", with_traces=True, expect_json=True
    )
    heaps = triage.heaps(letters, samples=2)
    assert [(heap.reason, heap.count) for heap in heaps] == [
        ("no stock", 3),
        (triage.NOT_TOLD, 1),
        ("the body is no JSON", 1),
        ("the listener took too long", 1),
    ]
    assert {(heap.origin_topic, heap.tags) for heap in heaps} == {("orders", "paid")}
    assert len(heaps[0].samples) == 2
    assert set(heaps[0].samples) < {'{"order": 0}', '{"order": 1}', '{"order": 2}'}
    assert heaps[2].samples == ("oops",)
    assert heaps[0].first <= heaps[0].last
    ended = onelog("job", "triage", "readers", "-n", dead.nameserver, "--reason-property", "why")
    assert "dead letters of readers: 6" in ended.out
    assert "no stock" in ended.out


def test_chosen_letters_are_sent_again_once(spark: "SparkSession", dead: ThreadedCluster) -> None:
    letters = triage.letters(spark, link(dead), "readers", reason_property="why")
    chosen = letters.where("reason = 'no stock'")
    would = triage.resend(link(dead), "readers", chosen, dry_run=True)
    assert (len(would.resent), bodies(dead, "orders")) == (3, [])
    assert len(triage.resend(link(dead), "readers", chosen).resent) == 3
    assert sorted(bodies(dead, "orders")) == [b'{"order": %d}' % each for each in range(3)]
    again = triage.resend(link(dead), "readers", chosen)
    assert (len(again.resent), again.already) == (0, 3)
    assert len(bodies(dead, "orders")) == 3

    command = ("job", "triage", "readers", "-n", dead.nameserver, "--resend", "--json", "--where")
    ended = onelog(*command, "message_id like '%3'")
    assert (ended.code, len(bodies(dead, "orders"))) == (2, 3)
    assert "say --yes" in ended.err
    ended = onelog(*command, "message_id like '%3' or message_id like '%2'", "--yes")
    assert (ended.document["resent"], ended.document["already"]) == (1, 1)
    ended = onelog(*command, "colour = 'red'", "--yes")
    assert ended.code == 2
    assert "--where" in ended.err


def test_a_group_without_dead_letters(spark: "SparkSession", cluster: ThreadedCluster) -> None:
    with pytest.raises(GroupNotFoundError, match="writers has no dead letters"):
        triage.letters(spark, link(cluster), "writers")
