from dataclasses import replace

import pytest

from onelog.config import BrokerConfig
from onelog.core.access import SELF
from onelog.core.catalog.topics import (
    PERM_READ,
    TopicConfig,
)
from onelog.errors import (
    InvalidTopicError,
    SystemTopicError,
    TopicNotFoundError,
    TopicPermissionError,
)
from onelog.names import SCHEDULE_TOPIC
from onelog.rocketmq.names import DEFAULT_TOPIC, TRACE_TOPIC
from tests.core.world import World


def test_the_topics_of_rocketmq_exist_from_the_start_without_files(world: World) -> None:
    topics = world.core.topics
    assert topics.require(DEFAULT_TOPIC).perm == 7
    assert topics.require(DEFAULT_TOPIC).write_queues == 8
    assert topics.require("BenchmarkTest").write_queues == 1024
    assert topics.require("DefaultCluster") == TopicConfig("DefaultCluster", 16, 16, 7)
    assert topics.require("broker-a").read_queues == 1
    assert topics.require(SCHEDULE_TOPIC).read_queues == 18
    assert topics.require("DefaultCluster_REPLY_TOPIC").read_queues == 1
    assert topics.require("rmq_sys_REVIVE_LOG_DefaultCluster").read_queues == 8
    assert world.store.queues() == {}


def test_system_topics_can_neither_be_redefined_nor_deleted(world: World) -> None:
    for name in (DEFAULT_TOPIC, "BenchmarkTest", "rmq_sys_anything", "onelog_sys_tables"):
        with pytest.raises(SystemTopicError):
            world.broker.topics.create(SELF, TopicConfig(name))
        with pytest.raises(SystemTopicError):
            world.broker.topics.delete(SELF, name)


def test_a_topic_that_is_made_again_is_known_by_its_time(world: World) -> None:
    topics = world.core.topics
    world.topic("orders", 4)
    born = topics.require("orders").created_ms
    assert born == world.clock.now_ms()
    world.advance(1_000)
    world.topic("orders", 8)
    assert topics.require("orders").created_ms == born
    world.restart()
    assert world.core.topics.require("orders").created_ms == born
    world.broker.topics.delete(SELF, "orders")
    world.topic("orders", 8)
    assert world.core.topics.require("orders").created_ms == born + 1_000


def test_creating_changing_and_deleting_moves_the_version_and_tells_listeners(world: World) -> None:
    topics = world.core.topics
    heard: list[tuple[str, int | None]] = []
    topics.on_change.append(
        lambda name, config: heard.append((name, config.read_queues if config else None))
    )
    before = topics.version.counter
    world.topic("orders", 4)
    world.topic("orders", 4)
    world.topic("orders", 8)
    assert heard == [("orders", 4), ("orders", 8)]
    assert topics.version.counter == before + 2
    world.broker.topics.delete(SELF, "orders")
    assert heard[-1] == ("orders", None)
    assert topics.version.counter == before + 3
    assert topics.version.timestamp_ms == world.clock.now_ms()
    world.restart()
    assert world.core.topics.version.counter == before + 3


def test_every_setting_comes_back_after_a_restart(world: World) -> None:
    config = TopicConfig(
        "orders", 3, 5, PERM_READ, "MULTI_TAG", True, 2, {"message.type": "FIFO", "a": "b"}
    )
    world.broker.topics.create(SELF, config)
    world.restart()
    assert world.core.topics.require("orders") == config


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig("t", -1, 4),
        TopicConfig("t", 4, 65_537),
        TopicConfig("t", 4, 4, -1),
        TopicConfig("t", 4, 4, 16),
        TopicConfig("t\tt", 4, 4),
    ],
)
def test_settings_out_of_range_are_refused(world: World, config: TopicConfig) -> None:
    with pytest.raises(InvalidTopicError):
        world.broker.topics.create(SELF, config)


def test_a_message_creates_its_topic_with_at_most_the_default_topics_queues(world: World) -> None:
    created = world.broker.topics.create_for_send(SELF, "new", DEFAULT_TOPIC, 4)
    assert created == TopicConfig("new", 4, 4, 6)
    assert world.broker.topics.create_for_send(SELF, "wide", DEFAULT_TOPIC, 100).write_queues == 8
    world.restart()
    assert world.core.topics.require("new") == created


def test_a_default_topic_that_lets_nobody_inherit_creates_nothing(world: World) -> None:
    world.topic("parent", 4)
    with pytest.raises(TopicNotFoundError):
        world.broker.topics.create_for_send(SELF, "child", "parent", 4)
    with pytest.raises(TopicNotFoundError):
        world.broker.topics.create_for_send(SELF, "child", "nowhere", 4)


def test_a_retry_topic_is_created_even_without_a_default_topic(world: World) -> None:
    assert world.broker.topics.create_for_send(SELF, "%RETRY%g", "nowhere", 4).write_queues == 1


def test_forbidden_and_malformed_topics_are_not_created_by_messages(world: World) -> None:
    topics = world.core.topics
    for name in topics.unsendable - {config.name for config in topics.all()}:
        with pytest.raises(TopicPermissionError):
            world.broker.topics.create_for_send(SELF, name, DEFAULT_TOPIC, 4)
    with pytest.raises(InvalidTopicError):
        world.broker.topics.create_for_send(SELF, "no\tcontrols", DEFAULT_TOPIC, 4)


def test_with_auto_creation_off_only_existing_topics_take_messages(world: World) -> None:
    world.core.reconfigure(replace(world.broker_config, auto_create_topics=False))
    assert world.core.topics.get(DEFAULT_TOPIC) is None
    with pytest.raises(TopicNotFoundError):
        world.broker.topics.create_for_send(SELF, "new", DEFAULT_TOPIC, 4)
    world.core.reconfigure(BrokerConfig())
    assert world.broker.topics.create_for_send(SELF, "new", DEFAULT_TOPIC, 4).write_queues == 4


def test_a_changed_number_of_default_queues_reaches_the_name_servers(world: World) -> None:
    heard: list[str] = []
    world.core.topics.on_change.append(lambda name, config: heard.append(name))
    before = world.core.topics.version
    world.core.reconfigure(replace(world.broker_config, default_topic_queues=2))
    assert heard == [DEFAULT_TOPIC]
    assert world.core.topics.version != before
    assert world.broker.topics.create_for_send(SELF, "new", DEFAULT_TOPIC, 4).write_queues == 2


def test_the_topic_of_traces_is_there_while_clients_are_told_to_trace(world: World) -> None:
    assert world.core.topics.require(TRACE_TOPIC) == TopicConfig(TRACE_TOPIC, 1, 1)
    world.send(TRACE_TOPIC, body=b"trace")
    world.core.reconfigure(replace(world.broker_config, trace=False))
    assert world.core.topics.get(TRACE_TOPIC) is None
    world.core.reconfigure(world.broker_config)
    assert world.bodies(TRACE_TOPIC) == [b"trace"]


def test_a_retry_topic_becomes_ordered_with_its_group_and_stays_so(world: World) -> None:
    topics = world.core.topics
    topics.ensure(TopicConfig("%RETRY%g", 1, 1))
    topics.ensure(TopicConfig("%RETRY%g", 5, 5, order=True))
    version = topics.version
    topics.ensure(TopicConfig("%RETRY%g", 1, 1))
    assert topics.version == version
    assert topics.require("%RETRY%g") == TopicConfig("%RETRY%g", 1, 1, order=True)


def test_topics_may_have_a_retention_time_of_their_own(world: World) -> None:
    world.core.topics.put(TopicConfig("long", attributes={"reserve.time": "240"}))
    world.core.topics.put(TopicConfig("usual"))
    world.core.topics.put(TopicConfig("odd", attributes={"reserve.time": "-1"}))
    assert world.core.topics.retention_ms() == {"long": 240 * 3_600_000}


def test_topics_may_have_a_size_of_their_own(world: World) -> None:
    for name, size in (("small", "1000"), ("large", "-1"), ("odd", "x")):
        world.core.topics.put(TopicConfig(name, 1, 1, attributes={"retention.bytes": size}))
    world.core.topics.put(TopicConfig("usual"))
    assert world.core.topics.retention_bytes() == {"small": 1_000}
