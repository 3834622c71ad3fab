import pytest

from onelog.wire.remoting.body import Body, MessageQueue
from onelog.wire.remoting.stats import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumerStatus,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    CorrectionOffsets,
    DirectConsumption,
    GroupSubscription,
    HaStatus,
    OffsetWrapper,
    QueueEntries,
    QueueEntry,
    QueueTimeSpan,
    ResetOffsets,
    TopicOffset,
    TopicStatsTable,
)

QUEUE = MessageQueue(broker_name="b", queue_id=1, topic="t")


def test_topic_stats_are_written_as_rocketmq_writes_them() -> None:
    stats = TopicStatsTable(offset_table={QUEUE: TopicOffset(max_offset=3)})
    assert stats.encode() == (
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:{"lastUpdateTimestamp":0,'
        b'"maxOffset":3,"minOffset":0}},"topicPutTps":0.0}'
    )


def test_consume_stats_are_written_as_rocketmq_writes_them() -> None:
    assert ConsumeStats(offset_table={QUEUE: OffsetWrapper()}).encode() == (
        b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:'
        b'{"brokerOffset":0,"consumerOffset":0,"lastTimestamp":0,"pullOffset":0}}}'
    )


def test_new_offsets_are_written_as_rocketmq_writes_them() -> None:
    assert ResetOffsets(offset_table={QUEUE: 5}).encode() == (
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:5}}'
    )


@pytest.mark.parametrize(
    "body",
    [
        TopicStatsTable(offset_table={QUEUE: TopicOffset(max_offset=3)}, topic_put_tps=1.5),
        ConsumeStats(offset_table={QUEUE: OffsetWrapper(broker_offset=9)}),
        ConsumeStatsList(consume_stats_list=[{"g": [ConsumeStats(consume_tps=2.0)]}]),
        BrokerStatsData(stats_minute=BrokerStatsItem(sum=3, tps=0.5)),
        ConsumeTimeSpans(consume_time_span_set=[QueueTimeSpan(message_queue=QUEUE, delay_time=7)]),
        ResetOffsets(offset_table={QUEUE: 5}),
        ConsumerStatus(consumer_table={"client": {QUEUE: 5}}, message_queue_table={QUEUE: 6}),
        CorrectionOffsets(correction_offsets={0: 17}),
        QueueEntries(queue_data=[QueueEntry(physic_offset=1, physic_size=2, tags_code=3)]),
        GroupSubscription(group="g", topic="t"),
        DirectConsumption(consume_result="CR_SUCCESS"),
        HaStatus(master=True, ha_connection_info=[{"addr": "x"}]),
    ],
    ids=lambda body: type(body).__name__,
)
def test_bodies_survive_the_round_trip(body: Body) -> None:
    assert type(body).decode(body.encode()) == body
