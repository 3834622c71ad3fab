import pytest

from onelog.core.access import SELF
from onelog.core.catalog.topic_catalog import QueueStats
from onelog.core.cursors.cursors import OFFSET_MAX
from onelog.core.filters.tags import subscribe
from onelog.core.membership.group_membership import ConsumeTimeSpan, QueueProgress
from onelog.core.membership.members import Client, ConsumerData
from onelog.errors import (
    GroupNotFoundError,
    InvalidQueueError,
    OffsetOutOfRangeError,
    StatisticNotFoundError,
    TopicNotFoundError,
)
from onelog.message import NewMessage
from tests.core.world import World


@pytest.fixture
def orders(world: World) -> World:
    """Two queues; queue 0 has five messages, one per second."""
    world.topic("orders", 2)
    for number in range(5):
        world.send("orders", body=b"%d" % number)
        world.advance(1_000)
    return world


def join(world: World, group: str, *topics: str) -> None:
    subscriptions = tuple(subscribe(topic) for topic in topics)
    data = ConsumerData(group, subscriptions=subscriptions)
    world.broker.groups.heartbeat(SELF, Client(f"client of {group}", group), [data], [])


def test_topic_stats_show_every_queue_also_the_empty_ones(orders: World) -> None:
    stats = orders.broker.topics.stats(SELF, "orders")
    last_ms = orders.clock.now_ms() - 1_000
    assert stats.queues == [QueueStats(0, 0, 5, last_ms), QueueStats(1, 0, 0, 0)]
    assert stats.put_per_second > 0
    with pytest.raises(TopicNotFoundError):
        orders.broker.topics.stats(SELF, "nowhere")


def test_consume_stats_show_lag_and_what_is_in_flight(orders: World) -> None:
    orders.pull(0, count_max=4)
    orders.commit("readers", "orders", 0, 3)
    stats = orders.broker.groups.consume_stats(SELF, "readers")
    consumed_ms = orders.begin_ms + 2_000
    assert stats.queues == [
        QueueProgress("orders", 0, 5, 3, 4, consumed_ms),
        QueueProgress("orders", 1, 0, 0, 0, 0),
    ]
    assert (stats.queues[0].lag, stats.queues[0].in_flight) == (2, 1)
    assert stats.get_per_second > 0


def test_consume_stats_leave_out_what_no_live_member_subscribes_to(orders: World) -> None:
    orders.topic("bills", 1)
    for topic in ("orders", "bills"):
        orders.commit("readers", topic, 0, 1)
    assert {each.topic for each in orders.broker.groups.consume_stats(SELF, "readers").queues} == {
        "orders",
        "bills",
    }
    join(orders, "readers", "bills")
    assert {each.topic for each in orders.broker.groups.consume_stats(SELF, "readers").queues} == {
        "bills"
    }
    assert orders.broker.groups.consume_stats(SELF, "readers", "orders").queues == []
    named = orders.broker.groups.consume_stats(SELF, "readers", topics=["orders", "nowhere"])
    assert {each.topic for each in named.queues} == {"orders"}


def test_the_stats_of_all_groups(orders: World) -> None:
    orders.topic("ordered", 1, order=True)
    orders.commit("readers", "orders", 0, 1)
    orders.commit("others", "ordered", 0, 0)
    found = orders.broker.groups.all_consume_stats(SELF)
    assert [(each.group, each.queues[0].topic) for each in found] == [
        ("readers", "orders"),
        ("others", "ordered"),
    ]
    assert sum(queue.lag for each in found for queue in each.queues) == 4
    ordered = orders.broker.groups.all_consume_stats(SELF, ordered_only=True)
    assert [each.group for each in ordered] == ["others"]


def test_time_spans_say_how_late_a_group_is(orders: World) -> None:
    begin_ms = orders.begin_ms
    orders.commit("readers", "orders", 0, 2)
    spans = orders.broker.groups.consume_time_spans(SELF, "readers", "orders")
    now = orders.clock.now_ms()
    assert spans[0] == ConsumeTimeSpan(
        0, begin_ms, begin_ms + 4_000, begin_ms + 1_000, now - (begin_ms + 2_000)
    )
    assert spans[1] == ConsumeTimeSpan(1, 0, 0, 0, 0)


def test_who_consumes_a_topic_lives_or_has_a_position(orders: World) -> None:
    join(orders, "live", "orders")
    orders.commit("gone", "orders", 0, 1)
    assert orders.broker.groups.of_topic(SELF, "orders") == ["gone", "live"]
    assert orders.broker.groups.topics_of(SELF, "gone") == ["orders"]


def test_a_group_is_moved_to_a_time(orders: World) -> None:
    begin_ms = orders.begin_ms
    orders.commit("readers", "orders", 0, 5)
    assert orders.broker.cursors.reset(SELF, "readers", "orders", begin_ms + 1_500) == {0: 2, 1: 0}
    assert orders.broker.cursors.query(SELF, "readers", "orders", 0) == 2
    assert orders.pull(5).next_offset == 2
    assert orders.broker.cursors.reset(SELF, "readers", "orders", -1) == {0: 5, 1: 0}
    assert orders.broker.cursors.reset(SELF, "readers", "orders", 0, queue_id=0) == {0: 0}
    assert orders.broker.cursors.reset(SELF, "readers", "orders", 0, queue_id=0, offset=4) == {0: 4}
    orders.crash()
    assert orders.broker.cursors.query(SELF, "readers", "orders", 0) == 4


def test_a_reset_to_nowhere_is_refused(orders: World) -> None:
    orders.core.groups.require("readers")
    with pytest.raises(TopicNotFoundError):
        orders.broker.cursors.reset(SELF, "readers", "nowhere", 0)
    with pytest.raises(GroupNotFoundError):
        orders.broker.cursors.reset(SELF, "strangers", "orders", 0)
    with pytest.raises(InvalidQueueError):
        orders.broker.cursors.reset(SELF, "readers", "orders", 0, queue_id=2)
    for offset in (-7, 7):
        with pytest.raises(OffsetOutOfRangeError):
            orders.broker.cursors.reset(SELF, "readers", "orders", 0, queue_id=0, offset=offset)
    orders.topic("closed", 0)
    with pytest.raises(InvalidQueueError):
        orders.broker.cursors.reset(SELF, "readers", "closed", 0)


def test_positions_are_cloned_for_one_topic_or_all(orders: World) -> None:
    orders.topic("bills", 1)
    for topic in ("orders", "bills"):
        orders.commit("readers", topic, 0, 3)
    assert orders.broker.cursors.clone(SELF, "readers", "one", "orders") == ["orders"]
    assert orders.broker.cursors.query(SELF, "one", "orders", 0) == 3
    assert orders.broker.cursors.clone(SELF, "readers", "all") == ["orders", "bills"]
    join(orders, "readers", "bills")
    assert orders.broker.cursors.clone(SELF, "readers", "live") == ["bills"]
    assert orders.broker.cursors.clone(SELF, "readers", "offline", offline=True) == [
        "orders",
        "bills",
    ]
    assert orders.broker.cursors.clone(SELF, "readers", "x", "nowhere", offline=True) == []


def test_the_least_position_of_all_groups(orders: World) -> None:
    for group, offset in (("a", 2), ("b", 4), ("c", 1)):
        orders.commit(group, "orders", 0, offset)
    assert orders.broker.cursors.least_offsets(SELF, "orders") == {0: 1}
    assert orders.broker.cursors.least_offsets(SELF, "orders", without_groups=["c"]) == {0: 2}
    assert orders.broker.cursors.least_offsets(SELF, "orders", "c", ["c"]) == {0: OFFSET_MAX}
    assert orders.broker.cursors.least_offsets(SELF, "orders", "b") == {0: 1}


def test_members_of_a_group(orders: World) -> None:
    assert orders.broker.groups.live(SELF, "readers") is None
    join(orders, "readers", "orders")
    live = orders.broker.groups.live(SELF, "readers")
    assert live is not None
    assert live.client_ids() == ["client of readers"]


def test_a_deleted_topic_leaves_nothing_behind(orders: World) -> None:
    orders.commit("readers", "orders", 0, 3)
    orders.broker.topics.delete(SELF, "orders")
    assert "orders" not in orders.store.queues()
    assert orders.core.offsets.groups_of("orders") == []
    with pytest.raises(StatisticNotFoundError):
        orders.broker.admin.statistic(SELF, "TOPIC_PUT_NUMS", "orders")
    with pytest.raises(TopicNotFoundError):
        orders.broker.topics.delete(SELF, "orders")
    orders.topic("orders", 2)
    assert orders.send("orders").queue_offset == 0


def test_queues_without_a_topic_can_be_cleaned_up(orders: World) -> None:
    orders.store.append([NewMessage("forgotten", 0, b"x")])
    assert orders.broker.topics.unused(SELF) == ["forgotten"]
    orders.broker.topics.delete_queues(SELF, "forgotten")
    assert orders.broker.topics.unused(SELF) == []
    orders.restart()
    assert orders.core.topics.get("orders") is not None


def test_system_topics_are_listed(orders: World) -> None:
    listed = orders.broker.topics.system_names(SELF)
    assert "TBW102" in listed
    assert "orders" not in listed


def test_what_retention_deleted_unread_is_counted_by_group(orders: World) -> None:
    orders.core.offsets.commit("fast", "orders", 0, 2)
    orders.core.offsets.commit("slow", "orders", 0, 0)
    queue = orders.store.queue_table.find("orders", 0)
    assert queue is not None
    queue.start = 2
    assert orders.broker.cursors.missed(SELF, {("orders", 0): 2}) == {"slow": 2}
