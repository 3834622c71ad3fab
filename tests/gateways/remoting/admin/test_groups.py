"""Groups, as admin tools ask for them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.core.catalog.groups import GroupConfig
from onelog.errors import InvalidGroupError
from onelog.gateways.remoting.session import response_code
from onelog.wire.remoting import fastjson
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import (
    Connection,
    ConsumerConnection,
    ProducerConnection,
    ProducerTable,
)
from onelog.wire.remoting.codes import VERSION, RequestCode, ResponseCode
from onelog.wire.remoting.groups import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from onelog.wire.remoting.routes import KVTable, TopicList
from onelog.wire.remoting.stats import (
    ConsumerOffsets,
    ConsumeStats,
    ConsumeStatsList,
    DelayOffsets,
    GroupSubscription,
    OffsetWrapper,
    ResetOffsetList,
    ResetOffsets,
)
from tests.gateways.remoting.desk import Desk, open_desk

UPDATE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
UPDATE_LIST = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
JAVA_4_9_8 = 409


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """Topic orders has two queues; queue 0 has five messages, one per second; readers read it."""
    async with open_desk(tmp_path) as opened:
        opened.world.topic("orders", 2)
        for number in range(5):
            opened.world.send("orders", body=b"%d" % number)
            opened.world.advance(1_000)
        opened.world.core.groups.require("readers")
        yield opened


def queue(queue_id: int = 0, topic: str = "orders") -> MessageQueue:
    return MessageQueue(broker_name="broker-a", queue_id=queue_id, topic=topic)


# -- settings ------------------------------------------------------------------------------------


async def test_a_group_is_created_and_changed(desk: Desk) -> None:
    body = SubscriptionGroupConfig(group_name="g", retry_max_times=3, consume_enable=False)
    await desk.told(UPDATE, body.encode())
    groups = desk.world.core.groups
    assert groups.get("g") == GroupConfig("g", consume_enable=False, retry_times_max=3)
    attributes = {"lite.sub.model": "Shared"}  # As a store of RocketMQ's may bring it.
    groups.put(GroupConfig("g", attributes=attributes))
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5}}
    await desk.told(
        UPDATE, SubscriptionGroupConfig(group_name="g", group_retry_policy=policy).encode()
    )
    assert groups.get("g") == GroupConfig("g", retry_policy=policy, attributes=attributes)
    await desk.told(UPDATE)
    answer = await desk.told(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
    shown = SubscriptionGroupConfig.decode(answer.body)
    assert (shown.group_retry_policy, shown.attributes) == (policy, attributes)


async def test_groups_of_a_list_are_created_all_or_none(desk: Desk) -> None:
    good = SubscriptionGroupConfig(group_name="a")
    refused = response_code(InvalidGroupError(""))
    for bad, code in (
        (SubscriptionGroupConfig(group_name="no spaces"), refused),
        (SubscriptionGroupConfig(group_name=""), refused),
        (SubscriptionGroupConfig(group_name="b", attributes={"+no.such": "1"}), 1),
    ):
        body = SubscriptionGroupList(group_config_list=[good, bad]).encode()
        assert (await desk.ask(UPDATE_LIST, body)).code == code
        assert (await desk.ask(UPDATE, bad.encode())).code == code
        assert desk.world.core.groups.get("a") is None
    other = SubscriptionGroupConfig(group_name="b", retry_queue_nums=2)
    await desk.told(UPDATE_LIST, SubscriptionGroupList(group_config_list=[good, other]).encode())
    assert desk.world.core.groups.get("a") == GroupConfig("a")
    assert desk.world.core.groups.get("b") == GroupConfig("b", retry_queues=2)


async def test_all_groups_in_one_answer_and_in_pages(desk: Desk) -> None:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    answer = await desk.told(code)
    table = SubscriptionGroupTable.decode(answer.body)
    names = sorted(group.name for group in desk.world.core.groups.all())
    assert answer.ext == {"totalGroupNum": str(len(names))}
    assert list(table.subscription_group_table) == names
    assert table.subscription_group_table["readers"].group_name == "readers"
    version = table.data_version.encode().decode()
    answer = await desk.told(code, groupSeq=2, maxGroupNum=3, dataVersion=version)
    page = SubscriptionGroupTable.decode(answer.body).subscription_group_table
    assert list(page) == names[2:5]
    answer = await desk.told(code, groupSeq=2, maxGroupNum=3, dataVersion="{}")
    page = SubscriptionGroupTable.decode(answer.body).subscription_group_table
    assert list(page) == names[:3]


async def test_asking_for_a_group_creates_it_if_using_it_would(desk: Desk) -> None:
    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    await desk.told(code, group="new")
    assert desk.world.core.groups.get("new") is not None
    answer = await desk.ask(code, group="no spaces")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    desk.world.core.groups.auto_create = False
    answer = await desk.ask(code, group="newer")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_deleted_group_keeps_its_positions_unless_told(desk: Desk) -> None:
    code, offsets = RequestCode.DELETE_SUBSCRIPTIONGROUP, desk.world.core.offsets
    offsets.commit("readers", "orders", 0, 3)
    await desk.told(code, groupName="readers")
    assert desk.world.core.groups.get("readers") is None
    assert offsets.get("readers", "orders", 0) == 3
    await desk.told(code, groupName="readers", cleanOffset="true")
    assert offsets.get("readers", "orders", 0) is None
    desk.world.core.groups.require("readers")
    offsets.commit("readers", "orders", 0, 3)
    await desk.told(code, groupName="readers", cleanOffset="true")
    assert offsets.get("readers", "orders", 0) is None


# -- members -------------------------------------------------------------------------------------


async def test_connections_of_a_consumer_group(desk: Desk) -> None:
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    answer = await desk.ask(code, consumerGroup="readers")
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    member = await desk.member("c1", "readers", "orders", version=JAVA_4_9_8, expression="a || b")
    found = ConsumerConnection.decode((await desk.told(code, consumerGroup="readers")).body)
    assert found.connection_set == [
        Connection(
            client_addr=member.session.connection.remote_address,
            client_id="c1",
            language="JAVA",
            version=JAVA_4_9_8,
        )
    ]
    assert (found.consume_type, found.message_model, found.consume_from_where) == (
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_LAST_OFFSET",
    )
    subscription = found.subscription_table["orders"]
    assert (subscription.sub_string, subscription.tags_set) == ("a || b", ["a", "b"])
    assert (subscription.code_set, subscription.sub_version) == ([97, 98], 9)


async def test_members_that_subscribe_differently_are_told_apart(desk: Desk) -> None:
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    await desk.member("c1", "readers", "orders", expression="a")
    agreed = await desk.told(code, consumerGroup="readers")
    assert b"memberSubscriptions" not in bytes(agreed.body)
    await desk.member("c2", "readers", "orders", expression="b || c")
    found = ConsumerConnection.decode((await desk.told(code, consumerGroup="readers")).body)
    assert found.member_subscriptions is not None
    assert {
        client_id: [(each.topic, each.sub_string) for each in subscriptions]
        for client_id, subscriptions in found.member_subscriptions.items()
    } == {"c1": [("orders", "a")], "c2": [("orders", "b || c")]}
    runtime = KVTable.decode((await desk.told(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    assert (runtime["onelogMismatchedGroups"], runtime["onelogMismatchesTotal"]) == ("readers", "1")


async def test_connections_of_producers(desk: Desk) -> None:
    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    answer = await desk.ask(code, producerGroup="writers")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "the producer group[writers] not exist"
    member = await desk.member("c1", "writers")
    found = ProducerConnection.decode((await desk.told(code, producerGroup="writers")).body)
    assert [connection.client_id for connection in found.connection_set] == ["c1"]
    table = ProducerTable.decode((await desk.told(RequestCode.GET_ALL_PRODUCER_INFO)).body)
    (info,) = table.data["writers"]
    assert (info.client_id, info.version) == ("c1", VERSION)
    assert info.last_update_timestamp == desk.world.clock.now_ms()
    assert info.remote_ip == member.session.connection.remote_address


async def test_what_a_group_subscribes_to(desk: Desk) -> None:
    await desk.member("c1", "readers", "orders", expression="a > 1", kind="SQL92")
    code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    found = GroupSubscription.decode((await desk.told(code, group="readers", topic="orders")).body)
    assert found.subscription_data is not None
    assert (found.subscription_data.expression_type, found.subscription_data.sub_string) == (
        "SQL92",
        "a > 1",
    )
    found = GroupSubscription.decode((await desk.told(code, group="readers", topic="bills")).body)
    assert found == GroupSubscription(group="readers", topic="bills")


async def test_the_topics_of_a_group(desk: Desk) -> None:
    desk.world.core.offsets.commit("readers", "orders", 0, 3)
    answer = await desk.told(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="readers")
    assert TopicList.decode(answer.body) == TopicList(
        broker_addr="127.0.0.1:10911", topic_list=["orders"]
    )


# -- lag -----------------------------------------------------------------------------------------


async def test_lag_of_a_group(desk: Desk) -> None:
    desk.world.pull(0, count_max=4)
    desk.world.core.offsets.commit("readers", "orders", 0, 3)
    answer = await desk.told(RequestCode.GET_CONSUME_STATS, consumerGroup="readers")
    stats = ConsumeStats.decode(answer.body)
    progress = OffsetWrapper(
        broker_offset=5,
        consumer_offset=3,
        last_timestamp=desk.world.begin_ms + 2_000,
        pull_offset=4,
    )
    assert stats.offset_table == {queue(0): progress, queue(1): OffsetWrapper()}
    assert stats.consume_tps > 0


async def test_lag_in_named_topics(desk: Desk) -> None:
    desk.world.topic("bills", 1)
    for topic in ("orders", "bills"):
        desk.world.core.offsets.commit("readers", topic, 0, 0)
    await desk.member("c1", "readers", "orders")
    for ext, topics in (
        ({}, {"orders"}),
        ({"topic": "orders"}, {"orders"}),
        ({"topic": " "}, {"orders"}),
        ({"topic": "bills"}, set()),
        ({"topic": "orders", "topicList": "bills;nowhere;"}, {"bills"}),
    ):
        answer = await desk.told(RequestCode.GET_CONSUME_STATS, consumerGroup="readers", **ext)
        table = ConsumeStats.decode(answer.body).offset_table
        assert {each.topic for each in table} == topics


async def test_lag_of_all_groups(desk: Desk) -> None:
    desk.world.topic("ordered", 1, order=True)
    desk.world.pull(0, count_max=4)
    desk.world.core.offsets.commit("readers", "orders", 0, 1)
    desk.world.core.offsets.commit("readers", "ordered", 0, 0)
    code = RequestCode.GET_BROKER_CONSUME_STATS
    found = ConsumeStatsList.decode((await desk.told(code, isOrder="false")).body)
    assert (found.total_diff, found.total_inflight_diff) == (4, 3)
    assert found.broker_addr == "127.0.0.1:10911"
    by_group = {name: each for entry in found.consume_stats_list for name, each in entry.items()}
    assert set(by_group) == {group.name for group in desk.world.core.groups.all()}
    assert by_group["TOOLS_CONSUMER"] == []
    assert len(by_group["readers"]) == 2
    found = ConsumeStatsList.decode((await desk.told(code, isOrder="true")).body)
    assert found.total_diff == 0
    found = ConsumeStatsList.decode((await desk.told(code)).body)
    assert found.total_diff == 4


# -- positions -----------------------------------------------------------------------------------


async def reset(desk: Desk, time_ms: int, **ext: object) -> dict[MessageQueue, int]:
    wanted = {"topic": "orders", "group": "readers", "isForce": "true", **ext}
    answer = await desk.told(RESET, timestamp=time_ms, **wanted)
    return ResetOffsets.decode(answer.body).offset_table


async def test_a_group_is_moved_to_a_time_to_the_end_and_to_an_offset(desk: Desk) -> None:
    offsets = desk.world.core.offsets
    assert await reset(desk, desk.world.begin_ms + 1_500) == {queue(0): 2, queue(1): 0}
    assert offsets.get("readers", "orders", 0) == 2
    assert await reset(desk, -1) == {queue(0): 5, queue(1): 0}
    assert await reset(desk, 0, queueId=0) == {queue(0): 0}
    assert await reset(desk, 0, queueId=0, offset=4, isForce="false") == {queue(0): 4}
    assert await reset(desk, -1, queueId=0, offset=-1) == {queue(0): 5}
    assert offsets.get("readers", "orders", 0) == 5


async def test_a_group_that_is_not_forced_is_moved_back_only(desk: Desk) -> None:
    offsets = desk.world.core.offsets
    offsets.commit("readers", "orders", 0, 3)
    for time_ms, expected in (
        (-1, 3),
        (desk.world.begin_ms + 3_500, 3),
        (desk.world.begin_ms + 1_500, 2),
        (0, 0),
    ):
        moved = await reset(desk, time_ms, isForce="false")
        assert moved == {queue(0): expected, queue(1): 0}
        assert offsets.get("readers", "orders", 0) == expected
    assert await reset(desk, -1, isForce="false", queueId=0) == {queue(0): 0}


@pytest.mark.parametrize("force", ["true", "false"])
@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "strangers"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": 2}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 0, "offset": 7}, ResponseCode.SYSTEM_ERROR),
        ({"timestamp": "today"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_reset_to_nowhere_is_refused(
    desk: Desk, ext: dict[str, object], code: ResponseCode, force: str
) -> None:
    given = {"topic": "orders", "group": "readers", "timestamp": 0, "isForce": force, **ext}
    assert (await desk.ask(RESET, **given)).code == code
    assert not desk.world.core.offsets.has_resets


async def test_old_members_are_told_of_a_reset_and_new_ones_find_out_by_pulling(
    desk: Desk,
) -> None:
    old = await desk.member("old", "readers", "orders", version=JAVA_4_9_8)
    cpp = await desk.member("cpp", "readers", "orders", version=JAVA_4_9_8, language="CPP")
    ancient = await desk.member("ancient", "readers", "orders", version=1)
    new = await desk.member("new", "readers", "orders")
    await reset(desk, desk.world.begin_ms + 1_500)
    for member in (old, cpp, ancient, new):
        await member.peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    assert ancient.asked == new.asked == []
    (told,) = old.asked
    assert told.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    assert told.is_oneway
    assert told.ext == {
        "topic": "orders",
        "group": "readers",
        "timestamp": str(desk.world.begin_ms + 1_500),
        "isForce": "true",
    }
    assert ResetOffsets.decode(told.body).offset_table == {queue(0): 2, queue(1): 0}
    positions = ResetOffsetList.decode(cpp.asked[0].body).offset_table
    assert [(each.broker_name, each.queue_id, each.offset) for each in positions] == [
        ("broker-a", 0, 2),
        ("broker-a", 1, 0),
    ]
    assert desk.world.pull(5).next_offset == 2


async def test_a_group_is_put_where_another_is(desk: Desk) -> None:
    desk.world.topic("bills", 1)
    offsets = desk.world.core.offsets
    for topic in ("orders", "bills"):
        offsets.commit("readers", topic, 0, 3)
    code = RequestCode.CLONE_GROUP_OFFSET
    await desk.told(code, srcGroup="readers", destGroup="one", topic="orders")
    assert offsets.topics_of("one") == ["orders"]
    await desk.told(code, srcGroup="readers", destGroup="all")
    assert offsets.topics_of("all") == ["orders", "bills"]
    await desk.member("c1", "readers", "bills")
    await desk.told(code, srcGroup="readers", destGroup="live", offline="false")
    assert offsets.topics_of("live") == ["bills"]
    await desk.told(code, srcGroup="readers", destGroup="offline", offline="true")
    assert offsets.topics_of("offline") == ["orders", "bills"]


async def test_all_positions_as_a_slave_asks_for_them(desk: Desk) -> None:
    desk.world.core.offsets.commit("readers", "orders", 1, 7)
    answer = await desk.told(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert ConsumerOffsets.decode(answer.body).offset_table == {"orders@readers": {1: 7}}
    assert "dataVersion" in fastjson.loads(answer.body)


async def test_all_delay_levels_as_a_slave_asks_for_them(desk: Desk) -> None:
    desk.world.send("orders", DELAY="1")
    desk.world.advance(2_000)
    answer = await desk.told(RequestCode.GET_ALL_DELAY_OFFSET)
    table = DelayOffsets.decode(answer.body).offset_table
    assert table == {level: 1 if level == 1 else 0 for level in range(1, 19)}
