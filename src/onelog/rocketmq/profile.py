"""What makes a broker one of RocketMQ's: its names, its topics, and whose store it takes over."""

from onelog.config import BrokerConfig
from onelog.core.assembly import Predecessor
from onelog.core.catalog.names import Naming
from onelog.core.catalog.topics import PERM_INHERIT, PERM_READ_WRITE, TopicConfig
from onelog.message import encode_properties
from onelog.names import (
    CHECKED_OUT_TOPIC,
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    TIMER_TOPIC,
)
from onelog.rocketmq import config_files, names, pop_takeover

ROCKETMQ = Predecessor(config_files.load, pop_takeover.take_over)


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """The topics that RocketMQ has from the start.

    RocketMQ has the topic of traces only if it is told to (traceTopicEnable), although it tells its
    clients to trace; here it is there as long as clients are told so.
    """
    cluster, broker = config.cluster, config.name
    everything = PERM_READ_WRITE | PERM_INHERIT
    found = [
        TopicConfig(names.SELF_TEST_TOPIC, 1, 1),
        TopicConfig(names.BENCHMARK_TOPIC, 1024, 1024),
        TopicConfig(cluster, 16, 16, everything),
        TopicConfig(broker, 1, 1, everything),
        TopicConfig(names.OFFSET_MOVED_TOPIC, 1, 1),
        TopicConfig(SCHEDULE_TOPIC, 18, 18),
        TopicConfig(f"{cluster}{names.REPLY_SUFFIX}", 1, 1),
        TopicConfig(f"{names.REVIVE_PREFIX}{cluster}", 8, 8),
        TopicConfig(f"{names.MEMBER_TOPIC_PREFIX}{broker}", 1, 1, PERM_INHERIT),
        TopicConfig(HALF_TOPIC, 1, 1),
        TopicConfig(OP_HALF_TOPIC, 1, 1),
        TopicConfig(TIMER_TOPIC, 1, 1),
    ]
    if config.trace:
        found.append(TopicConfig(names.TRACE_TOPIC, 1, 1))
    if config.auto_create_topics:
        queues = config.default_topic_queues
        found.append(TopicConfig(names.DEFAULT_TOPIC, queues, queues, everything))
    return found


def added_properties(config: BrokerConfig) -> bytes:
    """What the broker adds to the properties of every message."""
    return encode_properties(
        {
            "MSG_REGION": config.region,
            "TRACE_ON": "true" if config.trace else "false",
            "CLUSTER": config.cluster,
        }
    )


NAMING = Naming(
    RETRY_PREFIX,
    DEAD_LETTER_PREFIX,
    names.DEFAULT_TOPIC,
    system_topics,
    frozenset((names.DEFAULT_TOPIC, names.TRACE_TOPIC, CHECKED_OUT_TOPIC)),
    SYSTEM_PREFIX,
    frozenset((names.SELF_TEST_TOPIC, names.OFFSET_MOVED_TOPIC)),
    names.SYSTEM_GROUPS,
    names.GROUPS_ON_DEMAND,
    names.SYSTEM_GROUP_PREFIX,
)
