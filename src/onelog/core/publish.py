"""The send path: what peers send is checked, becomes what it is to become, and goes to the writer.

What a message is to become is said by its `Intent`, never by a name in its properties: what those
mean, only the gateway of a protocol knows. A message without an intent is stored as it is.

Topics that take plain messages are kept with their queue count in `_open`, so that the common case
is one look-up and a few comparisons; everything else goes the long way through `admitted`.

Invariant: each receipt is answered exactly once, unless what is wrong with the message is raised.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from onelog.core.catalog.topics import COMPACT, MAX_MESSAGE_BYTES, TopicConfig, Topics
from onelog.core.durable.writer import OnStored, Writer
from onelog.core.schedule.levels import Delay
from onelog.core.schedule.timers import Timers
from onelog.core.transactions.half import HalfMessages
from onelog.errors import (
    EmptyMessageError,
    InvalidQueueError,
    MessageError,
    MessageTooLargeError,
    PropertiesTooLargeError,
    TopicPermissionError,
)
from onelog.message import KEYS, PROPERTIES_BYTES_MAX, NewMessage, NewRun, SysFlag, property_bytes
from onelog.record.forms import FORM_MASK, Form, form_of

_KEY_NEEDLES = (KEYS.encode() + b"\x01", b"__key\x01")
"""Of a key as RocketMQ's clients give it, and of one that is no text (`record.forms.rocketmq`)."""


class Intent(NamedTuple):
    """What a message is to become, beside stored."""

    deliver_at_ms: int | None = None
    """Delivered then; at once if that is past."""
    delay_level: int = 0
    """Delivered after the delay of that level, from 1 on; it goes before a time."""
    half: bool = False
    """Delivered when its transaction is committed, and then as `HalfMessages.commit` is told."""
    recalls: str | None = None
    """Takes a message back that waits for that time, by its `delete_key`."""
    retries_max: int | None = None
    """Of a message to a group's retry topic: how often its consumer wants to try it."""


@dataclass(eq=False)
class Publisher:
    """Takes messages in: one (`publish`), or many of one queue (`publish_many`)."""

    _writer: Writer
    _topics: Topics
    _delay: Delay
    _timers: Timers
    _transactions: HalfMessages
    _random: Random
    _redirect_retry: Callable[[NewMessage, int | None], NewMessage]
    body_bytes_max: int
    batch_bytes_max: int = 0
    """Of Kafka's producers, if that is more."""

    def __post_init__(self) -> None:
        self._messages, self._receipts = self._writer.messages, self._writer.receipts
        self._open: dict[str, int] = {}
        self._topics.on_change.append(self._topic_changed)

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        self._open.pop(name, None)

    def publish(
        self,
        message: NewMessage,
        on_stored: OnStored,
        token: Any = None,
        intent: Intent | None = None,
    ) -> None:
        """Take a message for this tick; `on_stored` is called when its fate is known.

        What is wrong with the message itself is raised here.
        """
        if intent is not None or not self.is_plain(message):
            admitted = self.admitted(message, None if intent is None else intent.retries_max)
            if intent is not None and admitted.topic == message.topic:
                if intent.half:
                    self._transactions.prepare(admitted, on_stored, token)
                    return
                admitted = self.postponed(admitted, intent)
            message = admitted
        # From here on this is `Writer.put`, without its call.
        if not self._messages:
            self._writer.begin_tick()
        self._messages.append(message)
        self._receipts.append((on_stored, token, 0))

    def publish_many(self, run: NewRun, on_stored: OnStored, token: Any = None) -> None:
        """Take messages of one queue that are acknowledged, or refused, together.

        They reach the log side by side.
        """
        if not 0 <= run.queue_id < self._open.get(run.topic, 0):
            run = self._admit_run(run)
        if not run.parts:
            raise EmptyMessageError("a batch without messages")
        if not run.fits(self.body_bytes_max, PROPERTIES_BYTES_MAX):
            for message in run.messages():
                self.check_sizes(len(message.body), len(message.properties))
        self._writer.put(run, on_stored, token)

    def is_plain(self, message: NewMessage) -> bool:
        """Whether the message may be stored as it is, without a closer look."""
        return (
            0 <= message[1] < self._open.get(message[0], 0)
            and len(message[2]) <= self.body_bytes_max
            and len(message[3]) <= PROPERTIES_BYTES_MAX
        )

    def postponed(self, message: NewMessage, intent: Intent) -> NewMessage:
        """The message as it waits; one that need not wait comes back as it is."""
        if intent.delay_level > 0:
            return self._delay.postpone(message, intent.delay_level)
        if intent.deliver_at_ms is not None:
            return self._timers.postpone(message, intent.deliver_at_ms, intent.recalls)
        return message

    def _admit_run(self, run: NewRun) -> NewRun:
        if self._topics.naming.is_retry(run.topic):
            raise MessageError("batch request does not support retry group")
        config = self._topics.get(run.topic)
        properties = b""
        if config is not None and config.attributes and COMPACT in config.cleanup and run.parts:
            lacking = (each for each in run.messages() if not _has_key(each.properties))
            properties = next(lacking, next(iter(run.messages()))).properties
        first = self.admitted(
            NewMessage(run.topic, run.queue_id, b"", properties, sys_flag=run.sys_flag)
        )
        return run._replace(queue_id=first.queue_id, sys_flag=first.sys_flag)

    def report_offsets(self) -> None:
        """From now on there are messages with a `Placed`."""
        self._writer.reports_offsets = True

    def end_tick(self) -> None:
        """Write what this tick has so far."""
        self._writer.end_of_tick()

    def admitted(self, message: NewMessage, retries_max: int | None = None) -> NewMessage:
        """The message as it may be stored, or what is wrong with it."""
        topic = message.topic
        if topic in self._topics.unsendable:
            raise TopicPermissionError(f"sending message to topic[{topic}] is forbidden")
        config = self._topics.require(topic)
        if not config.writable:
            raise TopicPermissionError(f"sending message to topic[{topic}] is forbidden")
        body_bytes_max = self.body_bytes_max
        if form_of(message.sys_flag) == Form.KAFKA:
            wanted = int(config.attributes.get(MAX_MESSAGE_BYTES, self.batch_bytes_max))
            body_bytes_max = max(body_bytes_max, wanted)
        self.check_sizes(len(message.body), len(message.properties), body_bytes_max)
        if message.queue_id >= config.queues:
            raise InvalidQueueError(f"request queueId[{message.queue_id}] is illegal, {config}")
        if message.queue_id < 0:
            if config.write_queues == 0:
                raise InvalidQueueError(f"topic[{topic}] has no queue to write to")
            message = message._replace(queue_id=self._random.randrange(config.write_queues))
        if self._topics.naming.is_retry(topic):
            return self._redirect_retry(message, retries_max)
        is_compacted = bool(config.attributes) and COMPACT in config.cleanup
        # What has no key would be lost. Of a batch of another form its gateway sees to that.
        if is_compacted and not message.sys_flag & FORM_MASK and not _has_key(message.properties):
            raise MessageError(f"topic[{topic}] is compacted: required message key is missing")
        if config.filter_type == "MULTI_TAG":
            return message._replace(sys_flag=message.sys_flag | SysFlag.MULTI_TAGS)
        if not is_compacted:
            self._open[topic] = config.queues
        return message

    def check_sizes(
        self, body_bytes: int, properties_bytes: int, body_bytes_max: int | None = None
    ) -> None:
        """`MessageTooLargeError` or `PropertiesTooLargeError` if a message may not be so large."""
        limit = self.body_bytes_max if body_bytes_max is None else body_bytes_max
        if body_bytes > limit:
            raise MessageTooLargeError(f"a body of {body_bytes} bytes is over the limit of {limit}")
        if properties_bytes > PROPERTIES_BYTES_MAX:
            raise PropertiesTooLargeError(
                f"properties of {properties_bytes} bytes are over the limit of "
                f"{PROPERTIES_BYTES_MAX}"
            )


def _has_key(properties: bytes) -> bool:
    return any(property_bytes(properties, needle) for needle in _KEY_NEEDLES)
