"""Where a leased message goes that nobody acknowledged: RocketMQ's way for POP (facts 3.11).

It is written again, with its delivery count one higher, to the one queue of %RETRY%group_topic,
from which POP takes it like any other; so the topic's own cursor goes on, and the lag that people
see is that of messages nobody has tried yet. When it came back as often as the group allows, it
goes to the group's dead letters instead.

Invariant: what is written again has the body, flag and birth of the original, which can be found
through RETRY_TOPIC and ORIGIN_MESSAGE_ID.
"""

from onelog.core.catalog.groups import Groups
from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.redelivery.retry import ORIGIN_MESSAGE_ID, ORIGIN_TOPIC, Retry
from onelog.message import Message, NewMessage, decode_properties, encode_properties
from onelog.record.properties import written_again

FIRST_POP_TIME = "1ST_POP_TIME"
ORIGIN_GROUP = "ORIGIN_GROUP"
_RETRY_QUEUES = 1


class LeaseRetry:
    """Decides where such messages go; writing them is the leases'."""

    def __init__(self, groups: Groups, topics: Topics, retry: Retry, store_host: bytes) -> None:
        self._groups = groups
        self._topics = topics
        self._retry = retry
        self._store_host = store_host

    def move(self, group: str, topic: str, message: Message, popped_ms: int) -> NewMessage | None:
        """What to write for the message; None if the group is gone, or wants no dead letters."""
        config = self._groups.get(group)
        if config is None:
            return None
        if message.reconsume_times >= config.retry_times_max:
            given_up = self._retry.again(message, group, -1)
            return given_up and given_up[0]
        naming = self._topics.naming
        target = topic if naming.is_retry(topic) else naming.lease_retry_topic(group, topic)
        if self._topics.get(target) is None:
            self._topics.ensure(TopicConfig(target, _RETRY_QUEUES, _RETRY_QUEUES))
        properties = decode_properties(message.properties)
        properties.setdefault(ORIGIN_TOPIC, message.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.message_id)
        properties.setdefault(FIRST_POP_TIME, str(popped_ms))
        properties[ORIGIN_GROUP] = group
        return written_again(
            message, target, 0, encode_properties(properties),
            store_host=self._store_host, reconsume_times=message.reconsume_times + 1,
        )  # fmt: skip
