"""Topics, as admin tools ask for them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.core.catalog.topics import TopicConfig
from onelog.core.cursors.cursors import OFFSET_MAX
from onelog.errors import InvalidTopicError, OnelogError, SystemTopicError
from onelog.gateways.remoting.admin.topics import QUEUE_ENTRIES_MAX
from onelog.gateways.remoting.session import response_code
from onelog.message import NewMessage, tags_code
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.fields import TOPIC_CREATED_MS
from onelog.wire.remoting.groups import GroupList
from onelog.wire.remoting.registration import TopicConfig as WireTopic
from onelog.wire.remoting.registration import TopicConfigList, TopicTable
from onelog.wire.remoting.routes import TopicList
from onelog.wire.remoting.stats import (
    ConsumeTimeSpans,
    CorrectionOffsets,
    QueueEntries,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from tests.gateways.remoting.desk import Desk, open_desk


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """Topic orders has two queues; queue 0 has five messages, one per second."""
    async with open_desk(tmp_path) as opened:
        opened.world.topic("orders", 2)
        for number in range(5):
            opened.world.send("orders", body=b"%d" % number, TAGS=f"T{number}")
            opened.world.advance(1_000)
        yield opened


async def create(desk: Desk, **changed: object) -> Command:
    ext: dict[str, object] = {
        "topic": "bills",
        "defaultTopic": "TBW102",
        "readQueueNums": 3,
        "writeQueueNums": 2,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    wanted = {name: value for name, value in {**ext, **changed}.items() if value is not None}
    return await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **wanted)


def code_of(error: type[OnelogError]) -> ResponseCode:
    return response_code(error(""))


async def test_a_topic_is_created_and_changed(desk: Desk) -> None:
    assert (await create(desk, attributes="+message.type=FIFO")).code == 0
    topics = desk.world.core.topics
    created = TopicConfig("bills", 3, 2, 6, attributes={"message.type": "FIFO"})
    assert topics.get("bills") == created
    version = topics.version
    # As in RocketMQ, these two may be missing.
    assert (await create(desk, order=None, defaultTopic=None)).code == 0
    assert topics.version == version
    answer = await create(
        desk,
        perm=4,
        order="true",
        topicFilterType="MULTI_TAG",
        topicSysFlag=2,
        attributes="-message.type,+reserve.time=5",
    )
    assert answer.code == 0
    assert topics.get("bills") == TopicConfig(
        "bills", 3, 2, 4, "MULTI_TAG", True, 2, {"reserve.time": "5"}
    )
    desk.world.restart()
    assert desk.world.core.topics.require("bills").attributes == {"reserve.time": "5"}


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("topic", "no spaces", code_of(InvalidTopicError)),
        ("topic", "x" * 128, code_of(InvalidTopicError)),
        ("topic", " ", code_of(InvalidTopicError)),
        ("topic", "TBW102", code_of(SystemTopicError)),
        ("topic", "rmq_sys_x", code_of(SystemTopicError)),
        ("perm", 99, code_of(InvalidTopicError)),
        ("readQueueNums", -1, code_of(InvalidTopicError)),
        ("writeQueueNums", 2**31 - 1, code_of(InvalidTopicError)),
        ("writeQueueNums", 2**31, ResponseCode.SYSTEM_ERROR),
        ("readQueueNums", "many", ResponseCode.SYSTEM_ERROR),
        ("topicFilterType", "NO_TAG", ResponseCode.SYSTEM_ERROR),
        ("attributes", "+no.such=1", ResponseCode.SYSTEM_ERROR),
        ("attributes", "+message.type=MIXED", ResponseCode.INVALID_PARAMETER),
        ("perm", None, ResponseCode.SYSTEM_ERROR),
        ("topic", None, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_topic_that_cannot_be_is_refused(
    desk: Desk, field: str, value: object, code: ResponseCode
) -> None:
    before = desk.world.core.topics.all()
    answer = await create(desk, **{field: value})
    assert answer.code == code
    assert answer.remark
    assert desk.world.core.topics.all() == before


async def test_topics_are_created_by_the_list_all_or_none(desk: Desk) -> None:
    good = WireTopic(topic_name="a", read_queue_nums=1, attributes={"+message.type": "DELAY"})
    for bad in ("no spaces", "TBW102"):
        body = TopicConfigList(topic_config_list=[good, WireTopic(topic_name=bad)]).encode()
        assert (await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)).code != 0
        assert desk.world.core.topics.get("a") is None
    body = TopicConfigList(topic_config_list=[good, WireTopic(topic_name="orders")]).encode()
    await desk.told(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
    created = TopicConfig("a", 1, 16, attributes={"message.type": "DELAY"})
    assert desk.world.core.topics.get("a") == created
    assert desk.world.core.topics.require("orders").read_queues == 16
    mixed = WireTopic(topic_name="m", attributes={"+message.type": "MIXED"})
    body = TopicConfigList(topic_config_list=[mixed]).encode()
    answer = await desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
    assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_a_deleted_topic_is_gone_and_deleting_it_again_does_no_harm(desk: Desk) -> None:
    for _ in range(2):
        await desk.told(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
        assert desk.world.core.topics.get("orders") is None
        assert "orders" not in desk.world.store.queues()
    for topic, error in ((" ", InvalidTopicError), ("TBW102", SystemTopicError)):
        answer = await desk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
        assert answer.code == code_of(error)


async def test_queues_of_topics_that_are_no_more_are_cleaned_up(desk: Desk) -> None:
    desk.world.store.append([NewMessage("forgotten", 0, b"x")])
    await desk.told(RequestCode.CLEAN_UNUSED_TOPIC)
    assert "forgotten" not in desk.world.store.queues()
    assert "orders" in desk.world.store.queues()


async def test_all_topics_in_one_answer(desk: Desk) -> None:
    answer = await desk.told(RequestCode.GET_ALL_TOPIC_CONFIG)
    table = TopicTable.decode(answer.body)
    topics = desk.world.core.topics
    assert answer.ext == {"totalTopicNum": str(len(topics.all()))}
    assert set(table.topic_config_table) == {config.name for config in topics.all()}
    assert table.topic_config_table["orders"] == WireTopic(
        topic_name="orders", read_queue_nums=2, write_queue_nums=2
    )
    assert table.data_version.counter == topics.version.counter
    assert b'"mappingDataVersion"' in bytes(answer.body)
    assert b'"topicQueueMappingDetailMap":{}' in bytes(answer.body)


async def test_all_topics_page_by_page(desk: Desk) -> None:
    version = ""
    seen: list[str] = []
    total = len(desk.world.core.topics.all())
    while len(seen) < total:
        answer = await desk.told(
            RequestCode.GET_ALL_TOPIC_CONFIG,
            topicSeq=len(seen),
            maxTopicNum=5,
            dataVersion=version,
        )
        table = TopicTable.decode(answer.body)
        version = table.data_version.encode().decode()
        assert len(table.topic_config_table) <= 5
        seen += table.topic_config_table
    assert seen == sorted(config.name for config in desk.world.core.topics.all())
    desk.world.topic("another")
    answer = await desk.told(
        RequestCode.GET_ALL_TOPIC_CONFIG, topicSeq=5, maxTopicNum=5, dataVersion=version
    )
    assert next(iter(TopicTable.decode(answer.body).topic_config_table)) == min(seen)


async def test_one_topic(desk: Desk) -> None:
    answer = await desk.told(RequestCode.GET_TOPIC_CONFIG, topic="orders", lo="true")
    assert WireTopic.decode(answer.body).write_queue_nums == 2
    answer = await desk.ask(RequestCode.GET_TOPIC_CONFIG, topic="nowhere")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_system_topics_also_those_that_nobody_has_used(desk: Desk) -> None:
    answer = await desk.told(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    topics = TopicList.decode(answer.body).topic_list
    assert {"TBW102", "TRANS_CHECK_MAX_TIME_TOPIC", "rmq_sys_wheel_timer"} <= set(topics)
    assert "orders" not in topics


async def test_topic_stats_show_every_queue_also_the_empty_ones(desk: Desk) -> None:
    answer = await desk.told(RequestCode.GET_TOPIC_STATS_INFO, topic="orders")
    stats = TopicStatsTable.decode(answer.body)
    last_ms = desk.world.clock.now_ms() - 1_000
    assert stats.offset_table == {
        MessageQueue(broker_name="broker-a", queue_id=0, topic="orders"): TopicOffset(
            last_update_timestamp=last_ms, max_offset=5, min_offset=0
        ),
        MessageQueue(broker_name="broker-a", queue_id=1, topic="orders"): TopicOffset(),
    }
    assert stats.topic_put_tps > 0
    assert answer.ext == {TOPIC_CREATED_MS: str(desk.world.clock.now_ms() - 5_000)}
    assert b'{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:' in bytes(answer.body)
    answer = await desk.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="nowhere")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_who_consumes_a_topic(desk: Desk) -> None:
    await desk.member("c1", "live", "orders")
    desk.world.core.offsets.commit("gone", "orders", 0, 1)
    answer = await desk.told(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="orders")
    assert GroupList.decode(answer.body).group_list == ["gone", "live"]


async def test_time_spans_say_how_late_a_group_is(desk: Desk) -> None:
    desk.world.core.offsets.commit("readers", "orders", 0, 2)
    answer = await desk.told(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="orders", group="readers")
    spans = ConsumeTimeSpans.decode(answer.body).consume_time_span_set
    begin, now = desk.world.begin_ms, desk.world.clock.now_ms()
    queues = [MessageQueue(broker_name="broker-a", queue_id=n, topic="orders") for n in range(2)]
    assert spans == [
        QueueTimeSpan(
            consume_time_stamp=begin + 1_000,
            delay_time=now - begin - 2_000,
            max_time_stamp=begin + 4_000,
            message_queue=queues[0],
            min_time_stamp=begin,
        ),
        QueueTimeSpan(
            consume_time_stamp=-1, max_time_stamp=-1, message_queue=queues[1], min_time_stamp=-1
        ),
    ]


async def test_where_the_slowest_group_is(desk: Desk) -> None:
    for group, offset in (("a", 2), ("b", 4), ("c", 1)):
        desk.world.core.offsets.commit(group, "orders", 0, offset)
    for groups, compared, expected in (("", "b", 1), ("c", "b", 2), ("a,c", "a", OFFSET_MAX)):
        answer = await desk.told(
            RequestCode.QUERY_CORRECTION_OFFSET,
            topic="orders",
            compareGroup=compared,
            filterGroups=groups,
        )
        assert CorrectionOffsets.decode(answer.body).correction_offsets == {0: expected}


async def entries(desk: Desk, **changed: object) -> Command:
    ext: dict[str, object] = {"topic": "orders", "queueId": 0, "index": 1, "count": 2}
    return await desk.ask(RequestCode.QUERY_CONSUME_QUEUE, **{**ext, **changed})


async def test_entries_of_a_queue(desk: Desk) -> None:
    found = QueueEntries.decode((await entries(desk)).body)
    stored = list(desk.world.store.entries("orders", 0, 1, 2))
    assert [(e.physic_offset, e.physic_size, e.tags_code) for e in found.queue_data] == stored
    assert stored[0][2] == tags_code("T1")
    assert (found.min_queue_index, found.max_queue_index) == (0, 5)
    assert found.subscription_data is None
    everything = QueueEntries.decode((await entries(desk, index=0, count=2**31 - 1)).body)
    assert len(everything.queue_data) == 5 <= QUEUE_ENTRIES_MAX


async def test_entries_of_a_queue_with_the_filter_of_a_group(desk: Desk) -> None:
    found = QueueEntries.decode((await entries(desk, consumerGroup="nobody")).body)
    assert found.filter_data == "nobody@orders is not online!"
    await desk.member("c1", "tags", "orders", expression="T1 || T2")
    found = QueueEntries.decode((await entries(desk, consumerGroup="tags")).body)
    assert found.filter_data == "null"
    assert found.subscription_data is not None
    assert found.subscription_data.tags_set == ["T1", "T2"]
    await desk.member("c2", "sql", "orders", expression="a > 1", kind="SQL92")
    found = QueueEntries.decode((await entries(desk, consumerGroup="sql")).body)
    assert '"a > 1"' in (found.filter_data or "")


async def test_entries_that_there_are_not(desk: Desk) -> None:
    for index in (-1, 5, 2**62):
        answer = await entries(desk, index=index)
        assert (answer.code, answer.body) == (0, b"")
        assert answer.remark == f"Index {index} of 0@orders is not exist!"
    for missing in ({"queueId": 1}, {"topic": "nowhere"}, {"queueId": -1}):
        assert (await entries(desk, **missing)).code == ResponseCode.SYSTEM_ERROR
