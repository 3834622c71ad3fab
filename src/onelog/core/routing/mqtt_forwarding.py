"""Topics whose messages go on to subscribers: what is sent there by other protocols is published to
`amq.topic`, too.

    table     "outflows": {topic: key}

Messages that were published to an exchange had their way already, and go nowhere from here: only
what producers of RocketMQ and Kafka send does. It goes to the queues that the key leads to, or that
a header `mqtt.topic` leads to, if the message has one. Queues in memory get it without a word in
the log; those in the log get a record in MQTT's form, one for all of them.

Invariants: a message does not come back to its own topic. What a large batch puts into the log has
a limit that grows with the batch: some bytes may claim a million messages.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from onelog.core.access import SELF, Access, Principal
from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.durable.storage import Storage
from onelog.core.routing.names import DEFAULT_VHOST, queue_of, swapped
from onelog.core.routing.routing import Routing
from onelog.core.routing.targets import Target
from onelog.core.routing.walk import groups_of, log_queue_of
from onelog.errors import OnelogError, PreconditionFailedError
from onelog.message import NewMessage, NewRun, SysFlag
from onelog.record.compression import decompress
from onelog.record.forms import Form, form_of, mqtt, rocketmq
from onelog.record.forms.neutral import Neutral

log = logging.getLogger(__name__)

EXCHANGE = "amq.topic"
_TOPIC = "mqtt.topic"
_FORM = Form.MQTT.sys_flag
_AT_ONCE, _PAUSE_MS, _LINE_MAX = 100, 1, 100
"""Messages of a large batch that are published in one go; and batches that wait for theirs."""
_LITTLE_BYTES = 1 << 10
"""Packed, for the loop: at most a megabyte."""
_GROWN_TIMES, _GROWN_BYTES_MIN = 100, 4 << 20
"""What a large batch may take in the log for those who subscribe, by its own bytes; and any may."""
_RECORD_BYTES = 100
"""What a record takes beside its body, at least."""
_PERSISTENT = 2
"""QoS 1: who sends to a topic wants it kept."""


class MqttForwarding:
    """The topics, and where their messages go."""

    name = "outflows"

    def __init__(
        self,
        access: Access,
        storage: Storage,
        topics: Topics,
        routing: Routing,
    ) -> None:
        self._access = access
        self._writer, self._tables = storage.writer, storage.tables
        self._cold_reads, self._schedule = storage.cold_reads, storage.runtime.schedule
        self._topics = topics
        self._routing = routing
        self._line: deque[tuple[str, NewMessage]] = deque()
        self._keys: dict[str, str] = {}
        topics.on_change.append(self._topic_changed)

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._keys.pop(key, None)
        else:
            self._keys[key] = str(value)

    def parts(self) -> list[dict[str, Any]]:
        """Every outflow."""
        return [dict(self._keys)]

    # -- the door ------------------------------------------------------------------------------

    def open(self) -> None:
        """Watch the topics that are known to flow out."""
        for topic in self._keys:
            self._watch(topic)

    def all(self, principal: Principal) -> dict[str, str]:
        """Keys by topic."""
        self._access.check(principal, "describe", ("vhost", DEFAULT_VHOST))
        return dict(self._keys)

    def add(self, principal: Principal, topic: str, key: str) -> None:
        """Have a topic's messages published with this key from now on."""
        self._access.check(principal, "consume", ("topic", topic))
        self._topics.require(topic)
        if topic not in self._keys and (topic, 0) in self._writer.watched:
            name = queue_of(topic)[1]
            raise PreconditionFailedError(f"{name} is a queue: its messages are its consumers'")
        self._tables.write([(self.name, topic, key)])
        self._watch(topic)

    def remove(self, principal: Principal, topic: str) -> bool:
        """Publish them no more; False if they were not."""
        self._access.check(principal, "consume", ("topic", topic))
        if topic not in self._keys:
            return False
        self._unwatch(topic)
        self._tables.write([(self.name, topic, None)])
        return True

    def _watch(self, topic: str) -> None:
        config = self._topics.get(topic)
        for queue_id in range(0 if config is None else config.write_queues):
            self._writer.watched[topic, queue_id] = partial(self._came, topic)

    def _unwatch(self, topic: str) -> None:
        watched = self._writer.watched
        for key in [each for each in watched if each[0] == topic]:
            del watched[key]

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        if name in self._keys:
            if config is None:
                self.remove(SELF, name)
            else:
                self._watch(name)

    # -- messages ------------------------------------------------------------------------------

    def _came(self, topic: str, came: Sequence[NewMessage | NewRun], first: int) -> None:
        for each in came:
            for message in each.messages() if isinstance(each, NewRun) else (each,):
                if self._line or _may_be_much(message):
                    self._put_in_line(topic, message)
                else:
                    for neutral in _neutrals(message):
                        self._publish(topic, neutral)

    def _put_in_line(self, topic: str, message: NewMessage) -> None:
        """Publish a large batch some messages at a time, unpacked by a worker, and what came after
        it behind it."""
        if len(self._line) >= _LINE_MAX:
            log.warning(
                "messages of topic %s do not go on to subscribers: %d batches wait already",
                topic,
                _LINE_MAX,
            )
            return
        self._line.append((topic, message._replace(body=bytes(message.body))))
        if len(self._line) == 1:
            self._next_in_line()

    def _next_in_line(self) -> None:
        topic, message = self._line[0]
        room = max(_GROWN_TIMES * len(message.body), _GROWN_BYTES_MIN)

        def go_on(found: Iterator[Neutral] | None) -> None:
            self._publish_some(topic, found or iter(()), room)

        self._cold_reads.in_line(partial(_opened, message), go_on)

    def _publish_some(self, topic: str, left: Iterator[Neutral], room: int) -> None:
        """Go on with a batch, which may put so many bytes into the log; less than none: it had
        more."""
        for count, neutral in enumerate(left, 1):
            room -= self._publish(topic, neutral, room)
            if count == _AT_ONCE:
                self._schedule(_PAUSE_MS, partial(self._publish_some, topic, left, room))
                return
        if room < 0:
            log.warning(
                "messages of topic %s do not all go on to queues in the log: those of one batch "
                "would take more than %d times its bytes there",
                topic,
                _GROWN_TIMES,
            )
        self._line.popleft()
        if self._line:
            self._next_in_line()

    def _publish(self, topic: str, neutral: Neutral, room: int | None = None) -> int:
        """How many bytes of the log it takes, or would take if there were room for them."""
        headers = neutral.headers
        named = dict(headers).get(_TOPIC)
        key = swapped(named.decode("utf-8", "replace")) if named else self._keys[topic]
        rest = (each for each in headers if each[0] != _TOPIC)
        headers = ((_TOPIC, swapped(key).encode()), *rest)
        body = mqtt.from_neutral(neutral._replace(headers=headers), _PERSISTENT)
        kept: list[Target] = []
        for target in self._routing.route(SELF, DEFAULT_VHOST, EXCHANGE, key):
            if target.topic == topic or (target.is_limited and not target.admits(body, _FORM)):
                continue
            if target.topic:
                kept.append(target)
            else:
                target.put(body, _FORM, 0)
        if kept:
            messages = [
                NewMessage(
                    first,
                    queue_id,
                    body,
                    sys_flag=_FORM,
                    born_ms=neutral.time_ms,
                    extra_queues=extra,
                )
                for first, queue_id, extra in groups_of([log_queue_of(each, 0) for each in kept])
            ]
            size = len(messages) * (len(body) + _RECORD_BYTES)
            if room is None or size <= room:
                self._writer.put_together(messages, _stored)
            return size
        return 0


def _may_be_much(message: NewMessage) -> bool:
    if message.inner_count > _AT_ONCE:
        return True
    form = form_of(message.sys_flag)
    is_packed = bool(message.sys_flag & SysFlag.COMPRESSED)
    if form == Form.KAFKA:
        from onelog.record.forms import kafka

        is_packed = kafka.is_packed(bytes(message.body[: kafka.HEAD.size]))
    return is_packed and len(message.body) > _LITTLE_BYTES


def _opened(message: NewMessage) -> Iterator[Neutral]:
    """The messages in a batch, for a worker to unpack; they are read when they are wanted."""
    left = _neutrals(message)
    first = next(left, None)
    return iter(()) if first is None else chain((first,), left)


def _neutrals(message: NewMessage) -> Iterator[Neutral]:
    form = form_of(message.sys_flag)
    try:
        if form == Form.KAFKA:
            from onelog.record.forms import kafka  # Few need what reads this form.

            body = bytes(message.body)
            batch = kafka.read_head(body)
            if batch.is_control:
                return
            raw = kafka.raw_records(body, batch)
            for run in kafka.runs(raw, batch, _AT_ONCE, len(raw), lambda _: None):
                yield from (each.message for each in kafka.records_in(raw, batch, run))
        elif form == Form.ROCKETMQ and not message.sys_flag & SysFlag.INNER_BATCH:
            body = bytes(message.body)
            if message.sys_flag & SysFlag.COMPRESSED:
                body = decompress(body, message.sys_flag >> 8 & 7)
            yield rocketmq.to_neutral(body, message.properties, message.born_ms)
    except OnelogError as error:
        log.warning("a message of topic %s does not go on to subscribers: %s", message.topic, error)


def _stored(token: object, where: object, error: OnelogError | None) -> None:
    if error is not None:
        log.warning("a message for subscribers was not stored: %s", error)
