"""Topics and groups as RocketMQ writes them, and back."""

from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.durable.tables import DataVersion
from onelog.rocketmq.tables import (
    group_body,
    group_from_body,
    topic_body,
    topic_from_body,
    version_body,
)
from onelog.wire.remoting.groups import SubscriptionGroupConfig
from onelog.wire.remoting.registration import DataVersion as WireVersion
from onelog.wire.remoting.registration import TopicConfig as WireTopic


def test_a_group_survives_the_way_there_and_back() -> None:
    group = GroupConfig(
        "g", False, False, False, True, 2, 3, {"type": "EXPONENTIAL"}, 4, 5, False, 6, 7, {"a": "b"}
    )
    body = SubscriptionGroupConfig.decode(group_body(group).encode())
    assert group_from_body(body) == group
    plain = GroupConfig("g")
    assert group_from_body(group_body(plain)) == plain


def test_a_topic_and_a_version() -> None:
    topic = TopicConfig("t", 1, 2, 4, "MULTI_TAG", True, 3, {"a": "b"})
    assert topic_body(topic) == WireTopic(
        attributes={"a": "b"},
        order=True,
        perm=4,
        read_queue_nums=1,
        topic_filter_type="MULTI_TAG",
        topic_name="t",
        topic_sys_flag=3,
        write_queue_nums=2,
    )
    assert topic_from_body(topic_body(topic)) == topic
    version = WireVersion(counter=1, state_version=3, timestamp=2)
    assert version_body(DataVersion(1, 2, 3)) == version
