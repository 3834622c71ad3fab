"""Priority topics: a message's priority is the queue it is in, and high queues are served first.

So a topic has as many priorities as queues; a priority that is higher than the last queue's is that
one's. A group may want only some of its requests served so (its attribute `priority.factor`, in
percent), so that low priorities do not starve.
"""

from random import Random

from onelog.config import BrokerConfig
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.message import decode_properties
from onelog.record.properties import without_property
from onelog.rocketmq import lite, message_types
from onelog.rocketmq.properties import LITE_TOPIC, PRIORITY

PRIORITY_FACTOR = "priority.factor"
PRIORITY_NEEDLE = f"{PRIORITY}\x01".encode()
LITE_NEEDLE = f"{LITE_TOPIC}\x01".encode()


def queue_of(config: TopicConfig, priority: int) -> int:
    """The queue of a message with a priority."""
    return max(0, min(priority, config.write_queues - 1))


def with_priority(
    config: TopicConfig, properties: bytes, queue_id: int
) -> tuple[bytes, int, tuple[str, ...]]:
    """A message with a priority, or of a lite topic: its properties, its queue, its light queue.

    What has a priority and something else, too, such as a time, is that, and has no priority.
    """
    named = decode_properties(properties)
    extra: tuple[str, ...] = ()
    if lite_topic := named.get(LITE_TOPIC):
        extra = (lite.queue_name(config.name, lite_topic),)
    priority = named.get(PRIORITY, "")
    if not priority.isdecimal():
        return properties, queue_id, extra
    if message_types.of_properties(named) == "PRIORITY":
        return properties, queue_of(config, int(priority)), extra
    return without_property(properties, PRIORITY_NEEDLE), queue_id, extra


def order(
    settings: BrokerConfig,
    group: GroupConfig,
    topic: TopicConfig,
    random: Random,
    *,
    ordered: bool,
) -> tuple[range | None, bool]:
    """In which order a request looks into queues, None for any; and whether first into those of
    messages that came back."""
    chance = random.randrange(100)
    factor = group.attributes.get(PRIORITY_FACTOR, "100") if group.attributes else "100"
    is_priority = (
        bool(topic.attributes)
        and topic.attributes.get(message_types.ATTRIBUTE) == "PRIORITY"
        and not ordered
        and chance < (int(factor) if factor.isdecimal() else 100)
    )
    if not is_priority:
        return None, chance < settings.pop_retry_percent
    queues = range(topic.read_queues)
    if settings.priority_ascending:
        queues = queues[::-1]
    return queues, chance < settings.priority_retry_percent
