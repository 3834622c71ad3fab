"""RocketMQ's rules for names, where a request may bring a topic or a group into being."""

from onelog.core.broker import Broker
from onelog.core.catalog.topics import TopicConfig
from onelog.rocketmq.names import check_group, check_topic


def usable_group(broker: Broker, name: str) -> str:
    """The name of a group that is there, or may come into being by being used."""
    groups = broker.groups
    if groups.get(name) is None and groups.auto_create:
        check_group(name)
    return name


def create_topic(broker: Broker, name: str, default_topic: str, queues: int) -> TopicConfig:
    """The topic of a message that could not be sent for want of it, made if that is allowed."""
    if broker.topics.get(name) is None:
        check_topic(name)
    return broker.create_topic_for_send(name, default_topic, queues)
