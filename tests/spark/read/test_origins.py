"""What a subscription means, on brokers and in files."""

from pathlib import Path

import pytest

from onelog.client.message import Queue
from onelog.errors import ConfigError
from onelog.spark.options import read_options
from onelog.spark.read.offsets import Extent, Snapshot
from onelog.spark.read.origins import origin_of
from tests.spark.conftest import StartCluster
from tests.spark.threaded_cluster import ThreadedCluster


def look(**options: str) -> Snapshot:
    return origin_of(read_options(options)).snapshot()


@pytest.fixture
def orders(cluster: ThreadedCluster) -> ThreadedCluster:
    """Topics orders-eu and orders-us with two queues, and bills with one."""
    for topic, queues in (("orders-eu", 2), ("orders-us", 2), ("bills", 1)):
        cluster.topic(topic, queues)
        cluster.fill(topic, 10, queues)
    return cluster


def where(cluster: ThreadedCluster, kind: str) -> dict[str, str]:
    if kind == "store":
        return {"store": str(cluster.store_folder())}
    return {"nameserver": cluster.nameserver}


@pytest.mark.parametrize("kind", ["cluster", "store"])
def test_topics_are_named_or_matched_or_assigned(orders: ThreadedCluster, kind: str) -> None:
    place = where(orders, kind)
    broker = "" if kind == "store" else "broker-a"
    eu = {Queue("orders-eu", broker, number): Extent(0, 5) for number in (0, 1)}
    us = {Queue("orders-us", broker, number): Extent(0, 5) for number in (0, 1)}
    bills = {Queue("bills", broker, 0): Extent(0, 10)}
    assert look(subscribe="orders-eu,bills", **place).extents == eu | bills
    assert look(subscribePattern="orders-.*", **place).extents == eu | us
    assert look(subscribePattern=".*", **place).extents == eu | us | bills
    assigned = look(assign='{"orders-eu": [1], "bills": ["0"]}', **place).extents
    assert assigned == {Queue("orders-eu", broker, 1): Extent(0, 5)} | bills


@pytest.mark.parametrize("kind", ["cluster", "store"])
def test_what_is_not_there_is_named(orders: ThreadedCluster, kind: str) -> None:
    place = where(orders, kind)
    with pytest.raises(ConfigError, match=r"option subscribe: .*nothing"):
        look(subscribe="bills,nothing", **place)
    with pytest.raises(ConfigError, match=r"option assign: .*nothing"):
        look(assign='{"nothing": [0]}', **place)
    with pytest.raises(ConfigError, match="option assign: queue 7 of bills does not exist"):
        look(assign='{"bills": [7]}', **place)
    with pytest.raises(ConfigError, match=r"no topic matches 'orders' as a whole.*orders-eu"):
        look(subscribePattern="orders", **place)


def test_a_running_query_sees_topics_come_and_go(orders: ThreadedCluster) -> None:
    options = read_options(
        {"nameserver": orders.nameserver, "assign": '{"bills": [0, 1], "orders-eu": [0]}'}
    )
    orders.delete_topic("orders-eu")
    found = origin_of(options).snapshot(missing_ok=True).extents
    assert list(found) == [Queue("bills", "broker-a", 0)]


def test_a_store_as_a_whole_has_the_topics_of_users(orders: ThreadedCluster) -> None:
    orders.topic("%RETRY%readers", 1)
    orders.send("%RETRY%readers", [b"x"])
    found = look(**where(orders, "store")).extents
    assert {queue.topic for queue in found} == {"orders-eu", "orders-us", "bills"}


def test_internal_topics_can_be_named(orders: ThreadedCluster) -> None:
    orders.topic("%RETRY%readers", 1)
    orders.send("%RETRY%readers", [b"x"])
    for kind in ("cluster", "store"):
        found = look(subscribe="%RETRY%readers", **where(orders, kind)).extents
        assert list(found.values()) == [Extent(0, 1)]


def test_queues_on_several_brokers_need_their_broker(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=2)
    cluster.topic("orders", queues=1)
    with pytest.raises(ConfigError, match="queue 0 of orders is on several brokers"):
        look(assign='{"orders": [0]}', nameserver=cluster.nameserver)
    found = look(assign='{"orders": ["broker-b:0"]}', nameserver=cluster.nameserver).extents
    assert list(found) == [Queue("orders", "broker-b", 0)]


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear reader")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="option store"):
            look(store=str(folder))


def test_a_store_tells_offsets_by_time_and_sizes(orders: ThreadedCluster) -> None:
    origin = origin_of(read_options({"store": str(orders.store_folder()), "subscribe": "bills"}))
    queue = Queue("bills", "", 0)
    assert origin.offsets_at([queue], 0) == {queue: 0}
    assert origin.offsets_at([queue], 1 << 50) == {queue: 10}
    assert 50 < origin.record_bytes({queue: 0})[queue] < 200
