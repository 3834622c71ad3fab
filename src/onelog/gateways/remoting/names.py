"""RocketMQ's rules for names, where a request may bring a topic or a group into being."""

from functools import lru_cache

from onelog.core.access import SELF, Principal
from onelog.core.broker import Broker
from onelog.core.catalog.topics import TopicConfig
from onelog.errors import InvalidGroupError
from onelog.rocketmq.names import check_group, check_topic


@lru_cache(1024)
def is_legal_group(group: str) -> bool:
    """Whether RocketMQ would let a group be called so."""
    try:
        check_group(group)
    except InvalidGroupError:
        return False
    return True


def usable_group(broker: Broker, name: str) -> str:
    """The name of a group that is there, or may come into being by being used."""
    if (
        not is_legal_group(name)
        and broker.admin.config.auto_create_groups
        and broker.groups.find(SELF, name) is None
    ):
        check_group(name)
    return name


def create_topic(
    broker: Broker, principal: Principal, name: str, default_topic: str, queues: int
) -> TopicConfig:
    """The topic of a message that could not be sent for want of it, made if that is allowed."""
    if broker.topics.find(SELF, name) is None:
        check_topic(name)
    return broker.topics.create_for_send(principal, name, default_topic, queues)
