"""Asking and reading real brokers, without Spark."""

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import replace

import pytest

from onelog.client.message import Queue
from onelog.errors import (
    DataLossError,
    GroupNotFoundError,
    NameserversUnreachableError,
    PeerClosedError,
    TopicNotFoundError,
)
from onelog.record.decode import decode_records
from onelog.spark import brokers as module
from onelog.spark.brokers import Brokers, connect
from onelog.spark.link import Link
from onelog.spark.read.offsets import Extent, QueueRange
from tests.spark.conftest import StartCluster
from tests.spark.threaded_cluster import ThreadedCluster

ORDERS_0, ORDERS_1 = Queue("orders", "broker-a", 0), Queue("orders", "broker-a", 1)


def link_to(cluster: ThreadedCluster, **changed: int) -> Link:
    return replace(Link(cluster.nameserver, retry_timeout_ms=0), **changed)  # type: ignore[arg-type]


def read(
    brokers: Brokers,
    queue: Queue,
    start: int,
    end: int,
    tags: Iterable[str] | None = None,
    fail: bool = True,
) -> list[int]:
    """The offsets of the messages that came."""
    pulls = brokers.read(QueueRange(queue, start, end), tags=tags, fail_on_data_loss=fail)
    return [each.queue_offset for pulled in pulls for each in decode_records(pulled)]


def test_a_snapshot_has_every_queue_and_when_its_topic_was_made(cluster: ThreadedCluster) -> None:
    before = time.time_ns() // 1_000_000
    cluster.topic("orders", queues=2)
    cluster.send("orders", [b"x"] * 5)
    found = connect(link_to(cluster)).snapshot(["orders"])
    assert found.extents == {ORDERS_0: Extent(0, 5), ORDERS_1: Extent(0, 0)}
    created_ms = found.incarnations["orders", "broker-a"]
    assert before <= created_ms <= time.time_ns() // 1_000_000


def test_a_topic_on_several_brokers_has_the_queues_of_all(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=2)
    cluster.topic("orders", queues=1)
    cluster.send("orders", [b"x"] * 3, broker=1)
    found = connect(link_to(cluster)).snapshot(["orders"]).extents
    assert found == {
        Queue("orders", "broker-a", 0): Extent(0, 0),
        Queue("orders", "broker-b", 0): Extent(0, 3),
    }


def test_topics_are_those_of_users(cluster: ThreadedCluster) -> None:
    cluster.topic("orders")
    cluster.topic("%RETRY%readers")
    assert connect(link_to(cluster)).topics() == ("orders",)


def test_a_topic_that_is_not_there_is_an_error_or_left_out(cluster: ThreadedCluster) -> None:
    cluster.topic("orders", queues=1)
    brokers = connect(link_to(cluster))
    with pytest.raises(TopicNotFoundError, match="nothing"):
        brokers.snapshot(["orders", "nothing"])
    found = brokers.snapshot(["orders", "nothing"], missing_ok=True)
    assert list(found.extents) == [ORDERS_0]


def test_offsets_are_found_by_time(cluster: ThreadedCluster) -> None:
    cluster.topic("orders")
    cluster.send("orders", [b"x"] * 3)
    time.sleep(0.005)
    middle = time.time_ns() // 1_000_000
    cluster.send("orders", [b"y"] * 2)
    brokers = connect(link_to(cluster))
    both = [ORDERS_0, ORDERS_1]
    assert brokers.offsets_at(both, 0) == {ORDERS_0: 0, ORDERS_1: 0}
    assert brokers.offsets_at(both, middle) == {ORDERS_0: 3, ORDERS_1: 0}
    assert brokers.offsets_at(both, middle + 60_000) == {ORDERS_0: 5, ORDERS_1: 0}


def test_a_position_that_was_committed_is_found_again(cluster: ThreadedCluster) -> None:
    cluster.topic("orders")
    cluster.send("orders", [b"x"] * 3)
    brokers = connect(link_to(cluster))
    assert brokers.group_positions("readers", [ORDERS_0, ORDERS_1]) == {}
    with pytest.raises(GroupNotFoundError, match="onelog group create readers"):
        brokers.commit("readers", {ORDERS_0: 2})
    list(brokers.read(QueueRange(ORDERS_0, 0, 3), group="readers"))
    brokers.commit("readers", {ORDERS_0: 2})
    assert brokers.group_positions("readers", [ORDERS_0, ORDERS_1]) == {ORDERS_0: 2}


def test_a_group_that_may_not_come_into_being_is_named(start_cluster: StartCluster) -> None:
    cluster = start_cluster(broker__auto_create_groups=False)
    cluster.topic("orders")
    cluster.send("orders", [b"x"])
    with pytest.raises(GroupNotFoundError, match="option group"):
        list(connect(link_to(cluster)).read(QueueRange(ORDERS_0, 0, 1), group="readers"))


def test_the_size_of_records_is_sampled(cluster: ThreadedCluster) -> None:
    cluster.topic("orders")
    cluster.send("orders", [b"x" * 1_000] * 3)
    found = connect(link_to(cluster)).record_bytes({ORDERS_0: 1, ORDERS_1: 0})
    assert 1_000 < found[ORDERS_0] < 1_200
    assert found[ORDERS_1] == 0


def test_a_range_is_read_in_order_and_in_few_answers(cluster: ThreadedCluster) -> None:
    cluster.topic("orders")
    cluster.fill("orders", 6_000)
    brokers = connect(link_to(cluster))
    assert read(brokers, ORDERS_1, 0, 3_000) == list(range(3_000))
    assert read(brokers, ORDERS_1, 1_234, 1_300) == list(range(1_234, 1_300))
    assert len(list(brokers.read(QueueRange(ORDERS_0, 0, 3_000)))) == 1


def test_a_long_range_takes_several_answers(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PULL_BYTES", 10_000)
    cluster.topic("orders")
    cluster.fill("orders", 2_000, queues=1)
    assert read(connect(link_to(cluster)), ORDERS_0, 0, 2_000) == list(range(2_000))


def test_brokers_that_give_little_at_a_time_are_read_as_well(start_cluster: StartCluster) -> None:
    cluster = start_cluster(broker__pull_bulk_bytes_max=0)
    cluster.topic("orders")
    cluster.fill("orders", 100, queues=1)
    assert read(connect(link_to(cluster)), ORDERS_0, 5, 90) == list(range(5, 90))


def test_tags_are_chosen_by_the_broker(cluster: ThreadedCluster) -> None:
    cluster.topic("orders")
    for number in range(20):
        cluster.send("orders", [b"x"], TAGS="abc"[number % 3])
    brokers = connect(link_to(cluster))
    assert read(brokers, ORDERS_0, 0, 20, tags=["a", "c"]) == [
        number for number in range(20) if number % 3 != 1
    ]
    assert read(brokers, ORDERS_0, 3, 20, tags=["none"]) == []


def test_somebody_who_resets_the_group_does_not_move_the_reader(cluster: ThreadedCluster) -> None:
    cluster.topic("orders")
    cluster.fill("orders", 10, queues=1)
    brokers = connect(link_to(cluster))
    list(brokers.read(QueueRange(ORDERS_0, 0, 10), group="readers"))

    async def reset() -> None:
        cluster.broker().core.offsets.reset("readers", "orders", {0: 7})

    cluster.run(reset())
    pulls = brokers.read(QueueRange(ORDERS_0, 2, 10), group="readers")
    assert [e.queue_offset for p in pulls for e in decode_records(p)] == list(range(2, 10))


def test_what_is_deleted_is_an_error_or_passed_over(cluster: ThreadedCluster) -> None:
    cluster.topic("orders")
    cluster.fill("orders", 10, queues=1)

    async def hide() -> None:
        queue = cluster.broker().core.store.queue_table.find("orders", 0)
        assert queue is not None
        queue.start = 4

    cluster.run(hide())
    brokers = connect(link_to(cluster))
    with pytest.raises(
        DataLossError, match=r"offsets 0 to 3 of queue broker-a:0 of orders are gone"
    ):
        read(brokers, ORDERS_0, 0, 10)
    assert read(brokers, ORDERS_0, 0, 10, fail=False) == list(range(4, 10))
    assert read(brokers, ORDERS_0, 0, 3, fail=False) == []


def test_an_end_that_is_not_there_is_an_error_or_left_out(cluster: ThreadedCluster) -> None:
    cluster.topic("orders")
    cluster.fill("orders", 10, queues=1)
    brokers = connect(link_to(cluster))
    with pytest.raises(DataLossError, match="offsets 10 to 14"):
        read(brokers, ORDERS_0, 5, 15)
    assert read(brokers, ORDERS_0, 5, 15, fail=False) == list(range(5, 10))


def test_a_topic_that_is_deleted_meanwhile_is_an_error_or_left_out(
    cluster: ThreadedCluster,
) -> None:
    cluster.topic("orders")
    cluster.fill("orders", 10, queues=1)
    brokers = connect(link_to(cluster))
    read(brokers, ORDERS_0, 0, 10)
    cluster.delete_topic("orders")
    with pytest.raises(DataLossError, match="orders"):
        read(brokers, ORDERS_0, 0, 10)
    assert read(brokers, ORDERS_0, 0, 10, fail=False) == []


def test_a_broker_that_is_down_is_an_error_with_advice(cluster: ThreadedCluster) -> None:
    cluster.topic("orders")
    cluster.fill("orders", 10, queues=1)
    brokers = connect(link_to(cluster))
    assert read(brokers, ORDERS_0, 0, 10)
    cluster.stop_broker()
    for ask in (lambda: brokers.snapshot(["orders"]), lambda: read(brokers, ORDERS_0, 0, 10)):
        with pytest.raises((PeerClosedError, TopicNotFoundError)) as caught:
            ask()
        if isinstance(caught.value, PeerClosedError):
            assert "option nameserver" in str(caught.value)
            assert cluster.nameserver in str(caught.value)


def test_a_name_server_that_is_not_there_is_an_error_with_advice() -> None:
    brokers = Brokers(Link("127.0.0.1:1", retry_timeout_ms=0))
    try:
        with pytest.raises(NameserversUnreachableError, match="option nameserver"):
            brokers.snapshot(["orders"])
    finally:
        brokers.close()


def test_a_broker_that_comes_back_is_waited_for(cluster: ThreadedCluster) -> None:
    cluster.topic("orders")
    cluster.fill("orders", 10, queues=1)
    brokers = connect(link_to(cluster, retry_timeout_ms=60_000))
    assert read(brokers, ORDERS_0, 0, 1) == [0]
    cluster.stop_broker()
    later = threading.Timer(0.3, cluster.start_broker)
    later.start()
    assert read(brokers, ORDERS_0, 0, 10) == list(range(10))
    later.join()


def test_trying_again_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.01)
    brokers = Brokers(Link("127.0.0.1:1", retry_timeout_ms=200))
    try:
        began = time.monotonic()
        with pytest.raises(NameserversUnreachableError, match="given up after 200 ms"):
            brokers.topics()
        assert time.monotonic() - began < 30
    finally:
        brokers.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_connections_are_kept_and_not_shared_with_a_forked_process(
    cluster: ThreadedCluster,
) -> None:
    cluster.topic("orders", queues=1)
    link = link_to(cluster)
    brokers = connect(link)
    assert connect(link) is brokers
    assert brokers.snapshot(["orders"])
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            fresh = connect(link) is not brokers
            found = connect(link).snapshot(["orders"]).extents == {ORDERS_0: Extent(0, 0)}
            os.write(write_end, b"good" if fresh and found else b"bad")
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as answer:
        assert answer.read() == b"good"
    os.waitpid(child, 0)
    assert brokers.snapshot(["orders"])
