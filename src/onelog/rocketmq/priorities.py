"""Priority topics: a message's priority is the queue it is in, and high queues are served first.

So a topic has as many priorities as queues; a priority that is higher than the last queue's is that
one's. What has no priority goes to any queue.
"""

from onelog.core.catalog.topics import TopicConfig
from onelog.rocketmq.message_types import ATTRIBUTE

PRIORITY_TYPE = "PRIORITY"


def is_priority(config: TopicConfig) -> bool:
    """Whether the topic's queues are priorities."""
    return bool(config.attributes) and config.attributes.get(ATTRIBUTE) == PRIORITY_TYPE


def queue_of(config: TopicConfig, priority: int) -> int:
    """The queue of a message with a priority."""
    return max(0, min(priority, config.write_queues - 1))
