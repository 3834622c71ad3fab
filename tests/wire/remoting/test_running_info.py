"""What a consumer tells the tools has the names that RocketMQ's tools read."""

from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import (
    ConsumerRunningInfo,
    ConsumeStatus,
    PopQueueInfo,
    ProcessQueueInfo,
    SubscriptionData,
)

QUEUE = MessageQueue(broker_name="b", queue_id=2, topic="t")


def test_it_is_written_as_java_writes_it_with_queues_as_keys() -> None:
    info = ConsumerRunningInfo(
        mq_table={QUEUE: ProcessQueueInfo(cached_msg_size_in_mi_b=3, commit_offset=7)},
        status_table={"t": ConsumeStatus(consume_ok_tps=1.5)},
    )
    text = info.encode().decode()
    assert '"mqTable":{{"brokerName":"b","queueId":2,"topic":"t"}:{"cachedMsgCount":0' in text
    assert '"cachedMsgSizeInMiB":3' in text
    assert '"consumeOKTPS":1.5' in text
    assert '"jstack"' not in text


def test_it_is_read_back() -> None:
    info = ConsumerRunningInfo(
        jstack="main",
        mq_pop_table={QUEUE: PopQueueInfo(wait_ack_count=4)},
        mq_table={QUEUE: ProcessQueueInfo(locked=True)},
        properties={"PROP_CONSUMEORDERLY": "true"},
        status_table={"t": ConsumeStatus(pull_rt=0.5)},
        subscription_set=[SubscriptionData(topic="t", sub_string="*")],
    )
    assert ConsumerRunningInfo.decode(info.encode()) == info
