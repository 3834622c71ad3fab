"""RocketMQ's POP, as leases: which queues a request looks into, and where messages go after it.

A request names a queue of a topic or all of them, which are looked into from a random one on, or
from the highest on if they are priorities. A message whose time is up is written again, with its
delivery count one higher, to the one queue of %RETRY%group_topic (or the number of the queue it
came from, if that is set); so the topic's own cursor goes on, and the lag that people see is that
of messages nobody has tried yet. That topic is looked into first by every fifth request, and by
the others when there is room left: neither the old nor the new messages can starve the others.
What came back as often as the group allows, or was rejected, goes to the group's dead letters.
Ordered requests see the topic's own queues only, because there messages come back to their place.
Queues that members of the group pull are theirs.

Invariant: what is written again has the body, flag and birth of the original, which can be found
through RETRY_TOPIC and ORIGIN_MESSAGE_ID.
"""

from functools import partial
from random import Random

from onelog.core.assembly import Assembly
from onelog.core.catalog.topics import TopicConfig
from onelog.core.durable.waiting import ANY_QUEUE, Key
from onelog.core.filters.tags import Subscription
from onelog.core.queues.lease_ledger import ReturnPolicy
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.core.queues.retry import ORIGIN_MESSAGE_ID, ORIGIN_TOPIC
from onelog.errors import GroupPermissionError, InvalidQueueError, TopicPermissionError
from onelog.message import Message, NewMessage, decode_properties, encode_properties
from onelog.record.properties import written_again
from onelog.rocketmq import priorities

RETRIED = 0
"""What records of leases call the policy of POP."""
ORDERED = 3
"""The same for ordered messages, which come back to their place, unless they are rejected."""
FIRST_POP_TIME = "1ST_POP_TIME"
ORIGIN_GROUP = "ORIGIN_GROUP"
_RETRY_QUEUES = 1


class Pop:
    """POP of one broker. It must be there before the broker opens, which may find old leases."""

    def __init__(self, core: Assembly, random: Random, store_host: bytes) -> None:
        self._core = core
        self._naming = core.naming
        self._random = random
        self._store_host = store_host
        self.policy = ReturnPolicy(RETRIED, expired=self._expired, rejected=self._rejected)
        core.leases.policies[RETRIED] = self.policy
        self.in_order = ReturnPolicy(ORDERED, in_order=True, rejected=self._rejected)
        core.leases.policies[ORDERED] = self.in_order

    # -- requests ------------------------------------------------------------------------------

    def request(
        self,
        group: str,
        topic: str,
        queue_id: int,
        count_max: int,
        invisible_ms: int = 0,
        *,
        ordered: bool = False,
        subscription: Subscription | None = None,
        attempt_id: str | None = None,
        from_last: bool = False,
    ) -> LeaseRequest:
        """A request for a queue, or for ANY_QUEUE."""
        keys: tuple[Key, ...] = ((topic, queue_id),)
        if not ordered:
            keys = (*keys, (self._naming.lease_retry_topic(group, topic), ANY_QUEUE))
        return LeaseRequest(
            group,
            partial(self._queue_keys, group, topic, queue_id, ordered),
            keys,
            count_max,
            invisible_ms,
            self.in_order if ordered else self.policy,
            subscription,
            attempt_id,
            from_last,
            self._core.config.pull_bytes_max,
        )

    def admit(self, group: str, topic: str, queue_id: int) -> TopicConfig:
        """The topic's settings, if the group may take messages of that queue, or of all."""
        if not self._core.groups.require(group).consume_enable:
            raise GroupPermissionError(f"subscription group no permission, {group}")
        config = self._core.topics.require(topic)
        if not config.readable:
            raise TopicPermissionError(f"the topic[{topic}] peeking message is forbidden")
        if not ANY_QUEUE <= queue_id < config.read_queues:
            raise InvalidQueueError(
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{config.read_queues}]"
            )
        return config

    def _queue_keys(self, group: str, topic: str, queue_id: int, ordered: bool) -> list[Key]:
        config = self.admit(group, topic, queue_id)
        own = self._core.groups.require(group)
        by_priority, retry_first = priorities.order(
            self._core.config, own, config, self._random, ordered=ordered
        )
        if queue_id != ANY_QUEUE:
            keys = [(topic, queue_id)]
        elif by_priority is not None:
            keys = [(topic, each) for each in by_priority]
        else:
            first = self._random.randrange(max(1, config.read_queues))
            queues = range(config.read_queues)
            keys = [(topic, each) for each in (*queues[first:], *queues[:first])]
        is_pulled = self._core.members.is_pulled
        keys = [(topic, each) for topic, each in keys if not is_pulled(group, topic, each)]
        if ordered or self._naming.is_retry(topic):
            return keys
        retry = self._core.topics.get(self._naming.lease_retry_topic(group, topic))
        if retry is None:
            return keys
        numbers = range(retry.read_queues)
        if by_priority is not None and self._core.config.priority_ascending:
            numbers = numbers[::-1]
        again = [(retry.name, each) for each in numbers]
        return again + keys if retry_first else keys + again

    # -- where messages go ---------------------------------------------------------------------

    def _expired(
        self, group: str, topic: str, message: Message, popped_ms: int
    ) -> NewMessage | None:
        """What to write for the message; None if the group is gone, or wants no dead letters."""
        config = self._core.groups.get(group)
        if config is None:
            return None
        if message.reconsume_times >= config.retry_times_max:
            return self._given_up(group, message)
        naming = self._naming
        target = topic if naming.is_retry(topic) else naming.lease_retry_topic(group, topic)
        queue_id = self._retry_queue(target, topic, message.queue_id)
        properties = decode_properties(message.properties)
        properties.setdefault(ORIGIN_TOPIC, message.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.message_id)
        properties.setdefault(FIRST_POP_TIME, str(popped_ms))
        properties[ORIGIN_GROUP] = group
        return written_again(
            message,
            target,
            queue_id,
            encode_properties(properties),
            store_host=self._store_host,
            reconsume_times=message.reconsume_times + 1,
        )

    def _retry_queue(self, target: str, topic: str, queue_id: int) -> int:
        """The queue of a retry topic for a message of that queue; the topic has it then."""
        topics = self._core.topics
        known, queues = topics.get(target), _RETRY_QUEUES
        if self._core.config.pop_separate_retry:
            origin = topics.get(topic)
            is_retry = self._naming.is_retry(topic)
            queues = queue_id + 1 if origin is None or is_retry else origin.write_queues
        if known is None or known.write_queues < queues:
            topics.put(TopicConfig(target, queues, queues))
        return min(queue_id, queues - 1) if self._core.config.pop_separate_retry else 0

    def _rejected(
        self, group: str, topic: str, message: Message, popped_ms: int
    ) -> NewMessage | None:
        known = self._core.groups.get(group) is not None
        return self._given_up(group, message) if known else None

    def _given_up(self, group: str, message: Message) -> NewMessage | None:
        again = self._core.retry.again(message, group, -1)
        return again and again[0]
