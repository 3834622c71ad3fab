from dataclasses import replace
from pathlib import Path

import pytest

from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.filters.tags import subscribe
from onelog.core.membership.members import Client, ConsumerData
from onelog.errors import (
    GroupPermissionError,
    MessageTooLargeError,
    OnelogError,
    StoreFullError,
    SubscriptionNotFoundError,
    SubscriptionOutdatedError,
    TopicNotFoundError,
)
from onelog.message import NewMessage
from tests.core.world import SMALL_STORE, TROUBLES, World, pulled


@pytest.fixture
def orders(world: World) -> World:
    world.topic("orders", 4)
    return world


def beat(world: World, client_id: str, group: str, *topics: str, **data: object) -> bool:
    subscriptions = tuple(subscribe(topic, version=5) for topic in topics)
    consumer = ConsumerData(group, subscriptions=subscriptions, **data)  # type: ignore[arg-type]
    return world.broker.groups.heartbeat(
        SELF, Client(client_id, client_id), [consumer], ["producers"]
    )


def test_send_and_pull_and_commit_and_go_on_after_a_restart(orders: World) -> None:
    for number in range(10):
        orders.send("orders", body=b"%d" % number)
    first = orders.pull(0, count_max=6)
    orders.commit("readers", "orders", 0, first.next_offset)
    orders.restart()
    offset = orders.broker.cursors.query(SELF, "readers", "orders", 0)
    assert offset == 6
    assert pulled(orders.pull(offset)) == [b"6", b"7", b"8", b"9"]


def test_a_heartbeat_makes_the_group_its_retry_topic_and_its_members(orders: World) -> None:
    assert beat(orders, "c1", "readers", "orders") is True
    assert beat(orders, "c1", "readers", "orders") is False
    live = orders.broker.groups.live(SELF, "readers")
    assert live is not None
    assert live.client_ids() == ["c1"]
    assert orders.core.topics.require("%RETRY%readers") == TopicConfig("%RETRY%readers", 1, 1)
    assert [member.client.client_id for member in orders.core.members.producers("producers")] == [
        "c1"
    ]


def test_a_groups_retry_topic_has_its_queues_and_order(orders: World) -> None:
    orders.broker.groups.put(SELF, GroupConfig("readers", retry_queues=3))
    orders.topic("ordered", 1, order=True)
    beat(orders, "c1", "readers", "ordered", unit_mode=True)
    assert orders.core.topics.require("%RETRY%readers") == TopicConfig(
        "%RETRY%readers", 3, 3, order=True, sys_flag=2
    )


def test_a_heartbeat_of_a_group_that_may_not_be_counts_for_the_others(orders: World) -> None:
    consumers = [ConsumerData("no\tcontrols"), ConsumerData("readers")]
    assert orders.broker.groups.heartbeat(SELF, Client("c1", "c1"), consumers, []) is True
    orders.core.reconfigure(replace(orders.broker_config, auto_create_groups=False))
    consumers = [ConsumerData("unknown"), ConsumerData("readers")]
    assert orders.broker.groups.heartbeat(SELF, Client("c2", "c2"), consumers, []) is True
    assert [group.name for group in orders.core.members.live_groups()] == ["readers"]


def test_members_are_told_of_changes_unless_their_group_does_not_want_it(orders: World) -> None:
    told: list[str] = []
    orders.core.members.on_group_change.append(lambda group, members: told.append(group))
    orders.broker.groups.put(SELF, GroupConfig("quiet", notify_members=False))
    for group in ("loud", "quiet"):
        beat(orders, "c1", group, "orders")
        beat(orders, "c2", group, "orders")
        orders.broker.groups.unregister(SELF, "c1", group, "producers")
    assert told == ["loud"] * 3


def test_a_silent_client_is_dropped_and_its_channel_named(orders: World) -> None:
    expired: list[object] = []
    orders.broker.groups.on_channel_expired.append(expired.append)
    beat(orders, "c1", "readers", "orders")
    orders.advance(120_000)
    assert expired == []
    orders.advance(10_000)
    assert expired == ["c1"]
    assert orders.broker.groups.live(SELF, "readers") is None


def test_a_closed_channel_takes_its_waits_and_memberships_along(orders: World) -> None:
    beat(orders, "c1", "readers", "orders")
    woken: list[bool] = []
    orders.core.waiting.wait((("orders", 0),), 60_000, lambda wait, late: woken.append(late), "c1")
    orders.broker.groups.channel_closed("c1")
    orders.send("orders")
    assert woken == []
    assert orders.core.members.group("readers") is None
    assert len(orders.core.waiting) == 0


def test_a_pull_is_filtered_by_what_the_member_itself_subscribed_to(orders: World) -> None:
    broker = orders.broker
    with pytest.raises(SubscriptionNotFoundError):
        broker.groups.pull_subscription(SELF, "readers", "orders")
    for client, expression in (("c1", "a"), ("c2", "b")):
        data = ConsumerData("readers", subscriptions=(subscribe("orders", expression, version=5),))
        broker.groups.heartbeat(SELF, Client(client, client), [data], [])
    assert broker.groups.pull_subscription(SELF, "readers", "orders", "c1", 5).expression == "a"
    assert broker.groups.pull_subscription(SELF, "readers", "orders", "c2", 5).expression == "b"
    with pytest.raises(SubscriptionOutdatedError):
        broker.groups.pull_subscription(SELF, "readers", "orders", "c1", 6)
    with pytest.raises(TopicNotFoundError):
        broker.groups.pull_subscription(SELF, "readers", "bills", "c1")


def test_a_group_that_may_not_broadcast_gets_no_subscription(orders: World) -> None:
    config = GroupConfig("readers", consume_broadcast_enable=False)
    orders.broker.groups.put(SELF, config)
    beat(orders, "c1", "readers", "orders", message_model="BROADCASTING")
    with pytest.raises(GroupPermissionError):
        orders.broker.groups.pull_subscription(SELF, "readers", "orders", "c1")


def test_a_message_is_found_by_key_and_by_time(orders: World) -> None:
    begin_ms = orders.clock.now_ms()
    orders.send("orders", body=b"first", KEYS="k1 k2", UNIQ_KEY="u1")
    orders.advance(1_000)
    orders.send("orders", body=b"second", KEYS="k2")
    found = orders.broker.topics.find_by_key(SELF, "orders", "k2", begin_ms, begin_ms + 5_000, 10)
    assert [bytes(message.body) for message in found] == [b"second", b"first"]
    found = orders.broker.topics.find_by_key(SELF, "orders", "u1", begin_ms, begin_ms, 10)
    assert [bytes(message.body) for message in found] == [b"first"]
    assert orders.broker.topics.earliest_time(SELF, "orders", 0) == begin_ms
    assert orders.broker.topics.earliest_time(SELF, "orders", 1) == -1


@pytest.mark.parametrize("trouble", TROUBLES)
def test_jobs_go_on_after_one_of_them_failed(
    orders: World,
    trouble: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    orders.fill("orders", 0, 5)
    orders.commit("readers", "orders", 0, 5)

    def refuse(messages: object) -> None:
        raise trouble

    with monkeypatch.context() as patched:
        patched.setattr(orders.store, "append", refuse)
        patched.setattr(orders.store, "append_own", refuse)
        orders.advance(25_000)
    assert caplog.text.count("recording positions failed") == 1
    assert str(trouble) in caplog.text
    orders.advance(5_000)
    orders.crash()
    assert orders.broker.cursors.query(SELF, "readers", "orders", 0) == 5


def test_closing_answers_everyone_and_stops_every_job(orders: World) -> None:
    ended: list[bool] = []
    orders.core.waiting.wait((("orders", 1),), 60_000, lambda wait, late: ended.append(late))
    orders.broker.publish.send(SELF, NewMessage("orders", 0, b"last"), orders.on_stored)
    orders.core.close()
    orders.core.close()
    assert ended == [True]
    assert orders.told[0].error is None
    orders.advance(300_000)
    assert len(orders.timer) == 0


@pytest.mark.parametrize("error", [StoreFullError("disk is full"), OverflowError("a bug of ours")])
def test_closing_goes_on_whatever_fails_and_says_so(
    orders: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    orders.fill("orders", 0, 5)
    orders.commit("readers", "orders", 0, 5)
    orders.broker.publish.send(SELF, NewMessage("orders", 0, b"last"), orders.on_stored)

    def refuse(messages: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(orders.store, "append", refuse)
        patched.setattr(orders.store, "append_own", refuse)
        patched.setattr(orders.core.checkback, "close", lambda: refuse(None))
        orders.core.close()
    assert str(error) in caplog.text
    assert orders.told[0].error is not None
    orders.store.close()
    orders.start()
    assert orders.store.recovery.clean
    # The snapshot, which needs no append, has what could not be recorded.
    assert orders.broker.cursors.query(SELF, "readers", "orders", 0) == 5


def test_what_was_written_so_far_can_be_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path / "store", replace(SMALL_STORE, flush="sync"))
    world.topic("orders")
    heard: list[OnelogError | None] = []
    world.broker.publish.when_durable(heard.append)
    assert heard == []
    world.run_posted()
    assert heard == [None]
    world.close()


def test_live_settings_are_taken_over(orders: World) -> None:
    orders.send("orders")
    orders.send("orders")
    changed = replace(
        orders.broker_config, pull_count_max=1, pull_cold_count_max=3, flush_timeout_ms=7
    )
    orders.core.reconfigure(changed)
    assert orders.pull(0).messages == 1
    assert orders.core.reader.cold_count_max == 3
    orders.store.reconfigure(replace(SMALL_STORE, body_bytes_max=3))
    orders.core.reconfigure(changed)
    orders.send("orders", body=b"abc")
    with pytest.raises(MessageTooLargeError):
        orders.send("orders", body=b"abcd")
    assert orders.core.durability.timeout_ms == 7


def test_counters_are_sampled_every_ten_seconds(orders: World) -> None:
    orders.send("orders")
    orders.advance(20_000)
    counted = orders.broker.admin.statistic(SELF, "BROKER_PUT_NUMS", "DefaultCluster")
    assert counted[0].total >= 1


def test_the_tables_are_snapshotted_while_the_broker_runs(orders: World) -> None:
    path = orders.folder / "config" / "onelog-tables.json"
    before = path.read_bytes()
    orders.advance(310_000)
    assert path.read_bytes() != before
