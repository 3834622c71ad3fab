"""What a topic is for: the types of messages it takes (its attribute `message.type`).

    NORMAL, FIFO (with a message group), DELAY, TRANSACTION, PRIORITY, LITE, MIXED (all but LITE)

A topic without the attribute takes anything from remoting clients; gRPC clients take it for one of
NORMAL messages, as RocketMQ's proxy tells them.
"""

from collections.abc import Mapping

from onelog.core.catalog.topics import TopicConfig
from onelog.errors import MessageTypeError
from onelog.message import DELAY_LEVEL
from onelog.rocketmq.properties import (
    DELAY_MS,
    DELAY_SECONDS,
    DELIVER_MS,
    LITE_TOPIC,
    MESSAGE_GROUP,
    PRIORITY,
)

ATTRIBUTE = "message.type"
MIXED = "MIXED"
UNSPECIFIED = "UNSPECIFIED"
TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE")


def of_topic(config: TopicConfig) -> str | None:
    """The type of messages that a topic takes; None if it was not said."""
    found = config.attributes.get(ATTRIBUTE)
    return None if found == UNSPECIFIED else found


def of_properties(properties: Mapping[str, str]) -> str:
    if properties.get("TRAN_MSG") == "true":
        return "TRANSACTION"
    if (
        DELAY_LEVEL in properties
        or DELIVER_MS in properties
        or DELAY_SECONDS in properties
        or DELAY_MS in properties
    ):
        return "DELAY"
    if MESSAGE_GROUP in properties:
        return "FIFO"
    if LITE_TOPIC in properties:
        return "LITE"
    return "PRIORITY" if PRIORITY in properties else "NORMAL"


def check(
    config: TopicConfig, properties: Mapping[str, str], unless_said: str | None = None
) -> None:
    """`MessageTypeError` if the topic was made for messages of another type."""
    expected = of_topic(config) or unless_said
    if expected is None or expected == MIXED:
        return
    actual = of_properties(properties)
    if actual != expected:
        raise MessageTypeError(
            f"TopicMessageType validate failed, the expected type is {expected}, but actual type "
            f"is {actual}: set {ATTRIBUTE} of topic {config.name}, or send it elsewhere"
        )
