"""Failed messages: where one goes that a consumer could not handle.

It is written again, with its delivery count one higher: to the group's retry topic, with a delay
that grows with the count; or, when it has failed too often or the consumer gives it up, to the
group's dead-letter topic. The rules are RocketMQ's. How long the delay is, the
consumer may say (a level); else the group's policy does (see `retry_policy`); without one, the
table of levels, from the third on.

Invariant: what is written again has the body, flag, properties and birth of the original, which can
be found through RETRY_TOPIC and ORIGIN_MESSAGE_ID.
"""

import logging
from dataclasses import dataclass
from random import Random

from onelog.clock import Clock
from onelog.core.catalog.groups import GroupConfig, Groups
from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.membership.locks import Locks
from onelog.core.publish import Intent
from onelog.core.queues.retry_policy import RetryPolicy, parse_policy
from onelog.core.schedule.records import DELAY_MS, DELAY_SECONDS, DELIVER_MS, DUE_MS
from onelog.errors import InvalidGroupError, TopicPermissionError
from onelog.message import (
    DELAY_LEVEL,
    Message,
    NewMessage,
    decode_properties,
    encode_properties,
)
from onelog.record.properties import written_again

log = logging.getLogger(__name__)

ORIGIN_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
DEAD_LETTER_QUEUES = 1
_FIRST_LEVEL = 3


@dataclass(eq=False)
class Retry:
    """Decides where failed messages go; writing them is the publisher's."""

    groups: Groups
    topics: Topics
    locks: Locks
    clock: Clock
    random: Random
    store_host: bytes

    def again(
        self,
        message: Message,
        group_name: str,
        delay_level: int,
        retries_max: int | None = None,
        sys_flag: int = 0,
    ) -> tuple[NewMessage, Intent] | None:
        """What to write for a message that the group sends back, and when it is delivered.

        `delay_level` 0 leaves the delay to the delivery count, a negative one gives the message up.
        None means that nothing is to be written, because the group has no retry queues.
        """
        group = self.groups.require(group_name)
        if group.retry_queues <= 0:
            return None
        target = self._retry_topic(group, sys_flag)
        properties = decode_properties(message.properties)
        properties.setdefault(ORIGIN_TOPIC, message.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.message_id)
        for name in (DELAY_LEVEL, DELAY_SECONDS, DELAY_MS, DELIVER_MS):
            properties.pop(name, None)  # A wish of its sender, which has been fulfilled.
        allowed = group.retry_times_max if retries_max is None else retries_max
        if delay_level < 0 or message.reconsume_times >= allowed:
            target, intent = self._dead_letter_topic(group_name), Intent()
        else:
            intent = self._wait(properties, group, delay_level, message.reconsume_times)
        again = written_again(
            message,
            target.name,
            self.random.randrange(max(1, target.write_queues)),
            encode_properties(properties),
            store_host=self.store_host,
            reconsume_times=message.reconsume_times + 1,
        )
        return again, intent

    def _wait(
        self, properties: dict[str, str], group: GroupConfig, level: int, times: int
    ) -> Intent:
        """How long a message waits that failed so many times before."""
        policy = None if level else _policy(group)
        if policy is None:
            return Intent(delay_level=level or _FIRST_LEVEL + times)
        # That it was due before says nothing about the next time.
        properties.pop(DUE_MS, None)
        delay_ms = policy(times)
        properties[DELAY_MS] = str(delay_ms)
        return Intent(self.clock.now_ms() + delay_ms)

    def _retry_topic(self, group: GroupConfig, sys_flag: int) -> TopicConfig:
        name = self.topics.naming.retry_topic(group.name)
        queues = group.retry_queues
        target = self.topics.get(name) or self.topics.ensure(
            TopicConfig(name, queues, queues, sys_flag=sys_flag)
        )
        if not target.writable:
            raise TopicPermissionError(f"the topic[{name}] sending message is forbidden")
        return target

    def _dead_letter_topic(self, group: str) -> TopicConfig:
        name = self.topics.naming.dead_letter_topic(group)
        return self.topics.get(name) or self.topics.ensure(
            TopicConfig(name, DEAD_LETTER_QUEUES, DEAD_LETTER_QUEUES)
        )

    def redirect(self, message: NewMessage, retries_max: int | None = None) -> NewMessage:
        """Where a message goes that a consumer itself sends to its retry topic.

        Consumers do that when sending back fails, and when they consume in order (then the message
        has had all its tries, and goes to the dead letters at once).
        """
        group_name = message.topic.removeprefix(self.topics.naming.retry_prefix)
        group = self.groups.require(group_name)
        allowed = group.retry_times_max if retries_max is None else retries_max
        if message.reconsume_times <= allowed and not self.locks.any_held(group_name):
            return message
        target = self._dead_letter_topic(group_name)
        properties = decode_properties(message.properties)
        properties.pop(DELAY_LEVEL, None)
        return message._replace(
            topic=target.name,
            queue_id=self.random.randrange(max(1, target.write_queues)),
            properties=encode_properties(properties),
        )


def _policy(group: GroupConfig) -> RetryPolicy | None:
    try:
        return parse_policy(group.retry_policy)
    except InvalidGroupError as error:
        # Read from another broker's files; better late by a level than not at all.
        log.warning("group %s retries by delay levels: %s", group.name, error)
        return None
