"""The way in: what clients send is checked, becomes what it is to become, and goes to the writer.

There is one verb, `Publisher.send`. What it takes is one message, a run of messages of one queue,
or a batch of Kafka's as it came; all that is sent together is stored together, and answered once.
What a message is to become is said by its `Intent`, never by a name in its properties: what those
mean, only the gateway of a protocol knows. A message without an intent is stored as it is.

Topics that take plain messages are kept with their queue count in `_open`, so that the common case
is one look-up and a few comparisons; everything else takes the general path through `admitted`.

Invariant: each receipt is answered exactly once, unless what is wrong with the message is raised.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from onelog.core.access import Principal
from onelog.core.catalog.topics import COMPACT, MAX_MESSAGE_BYTES, TopicConfig
from onelog.core.cursors.forms import named_by
from onelog.core.cursors.unpacking import ColdError
from onelog.core.durable.durability import Acks, WhenSafe
from onelog.core.durable.writer import OnStored
from onelog.core.membership.group_membership import UNIT_SUBSCRIBED_FLAG
from onelog.errors import (
    EmptyMessageError,
    InvalidQueueError,
    MessageError,
    MessageTooLargeError,
    OnelogError,
    PropertiesTooLargeError,
    TopicPermissionError,
)
from onelog.message import (
    KEYS,
    PROPERTIES_BYTES_MAX,
    Appended,
    Message,
    NewMessage,
    NewRun,
    SysFlag,
    property_bytes,
)
from onelog.record.forms import FORM_MASK, Form, form_of

if TYPE_CHECKING:
    from onelog.core.assembly import Assembly
    from onelog.core.routing.routing import Routing
    from onelog.core.schedule.schedules import Schedules
    from onelog.core.transactions.in_place import Stamp

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


class Publisher:
    """`Broker.publish`."""

    routing: "Routing"
    schedules: "Schedules"
    see_message: Callable[[Principal, int, str], Message]
    """A message that a group wants again, if they may see it."""

    def __init__(self, core: "Assembly", random: Random) -> None:
        self._access = core.access
        self._senders = core.access.senders
        self._broker_name = core.config.name
        self._random = random
        self._durability = core.durability
        self._writer = core.writer
        self._put = core.writer.put
        self._topics = core.topics
        self._groups = core.groups
        self._delay, self._timers = core.delay, core.timers
        self._transactions = core.transactions
        self._retry = core.retry
        self._batch_producers = core.batch_producers
        self._reader, self._cold_reads = core.reader, core.cold_reads
        self._store = core.store
        self._stats = core.stats
        self.body_bytes_max = core.store.config.body_bytes_max
        self.batch_bytes_max = 0
        """Of Kafka's producers, if that is more."""
        self.on_stored = core.writer.stored
        """Called with everything that was stored, and where."""
        self._messages, self._receipts = core.writer.messages, core.writer.receipts
        self._open: dict[str, int] = {}
        self._topics.on_change.append(self._topic_changed)

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        self._open.pop(name, None)

    def send(
        self,
        principal: Principal,
        batch: NewMessage | NewRun,
        on_stored: OnStored,
        token: Any = None,
        intent: Intent | None = None,
        *,
        stamp: "Stamp | None" = None,
        acks: Acks = Acks.DURABLE,
    ) -> None:
        """Store a batch with this tick's others; `on_stored` is called when its fate is known.

        What is wrong with the batch itself is raised here. `stamp` is what a batch of Kafka's says
        of its producer; one that was sent before is answered with where it is.
        """
        if not self._access.is_open:
            senders = self._senders
            if principal is not senders.last or batch[0] not in senders.scopes:
                self._check_sender(principal, batch[0])
        if stamp is not None:
            producers = self._batch_producers
            if stamp.producer_id >= 0 or batch[:2] not in producers.queues:
                assert isinstance(batch, NewMessage)
                producers.publish(batch, stamp, on_stored, token, acks)
                return
            producers.changed.add(batch[:2])
        elif intent is not None:
            assert isinstance(batch, NewMessage)
            self._become(batch, intent, on_stored, token)
            return
        if (
            type(batch) is NewMessage
            and 0 <= batch[1] < self._open.get(batch[0], 0)
            and len(batch[2]) <= self.body_bytes_max
            and len(batch[3]) <= PROPERTIES_BYTES_MAX
        ):  # The fast path: `take`, `is_plain` and `Writer.put` without their calls.
            if not self._messages:
                self._writer.begin_tick()
            self._messages.append(batch)
            self._receipts.append((on_stored, token, 0, acks))
        else:
            self.take(batch, on_stored, token, acks)

    def take(
        self,
        batch: NewMessage | NewRun,
        on_stored: OnStored,
        token: Any = None,
        acks: Acks = Acks.DURABLE,
    ) -> None:
        """`send` of a batch that is stored as it is, for those who have asked who sends it."""
        if type(batch) is NewRun:
            batch = self._admitted_run(batch)
        elif not self.is_plain(batch):  # type: ignore[arg-type]
            batch = self.admitted(batch)  # type: ignore[arg-type]
        self._put(batch, on_stored, token, acks)

    def _become(self, message: NewMessage, intent: Intent, on_stored: OnStored, token: Any) -> None:
        admitted = self.admitted(message, intent.retries_max)
        if admitted.topic == message.topic:
            if intent.half:
                self._transactions.prepare(admitted, on_stored, token)
                return
            admitted = self.postponed(admitted, intent)
        self._put(admitted, on_stored, token)

    def _check_sender(self, principal: Principal, topic: str) -> None:
        """They must be allowed to send there; that they are, is known from then on."""
        if not self._senders.turn_to(principal, topic):
            self._access.check(principal, "publish", ("topic", topic))
            self._senders.remember(principal, topic)

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

    def _admitted_run(self, run: NewRun) -> NewRun:
        """The run as it may be stored: all of its messages, or none."""
        if not 0 <= run.queue_id < self._open.get(run.topic, 0):
            run = self._admit_run(run)
        if not run.parts:
            raise EmptyMessageError("a batch without messages")
        if not run.fits(self.body_bytes_max, PROPERTIES_BYTES_MAX):
            for message in run.messages():
                self.check_sizes(len(message.body), len(message.properties))
        return run

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
            return self._retry.redirect(message, retries_max)
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

    def send_now(self, principal: Principal, message: NewMessage) -> Appended | None:
        """Store a plain message at once; None if that cannot be done for it, or not now.

        It is to be accounted for (`account`) in the same tick.
        """
        if not self._access.is_open:
            self._check_sender(principal, message.topic)
        return self._writer.write_alone(message) if self.is_plain(message) else None

    def account(self, stored: Sequence[NewMessage], appended: Sequence[Appended]) -> None:
        """Count what `publish_now` stored, and tell those who wait for it."""
        self._writer.account(stored, appended)

    def admit(self, principal: Principal, message: NewMessage) -> NewMessage:
        """The message as `publish` would store it, or what is wrong with it."""
        self._access.check(principal, "publish", ("topic", message.topic))
        return self.admitted(message)

    def require_replicas(self, principal: Principal, needed: int) -> None:
        """`ReplicasMissingError` if there are too few for a message that has to be confirmed."""
        if needed > 1 or self._durability.replicas is not None:
            self._durability.require_replicas(needed)

    def new_producer_id(self, principal: Principal) -> int:
        """An id for a producer that numbers its batches."""
        self._access.check(principal, "publish", ("broker", self._broker_name))
        return self._batch_producers.new_id()

    def send_back(
        self,
        principal: Principal,
        group: str,
        log_offset: int,
        delay_level: int,
        on_stored: OnStored,
        token: Any = None,
        *,
        retries_max: int | None = None,
        unit_mode: bool = False,
        unique_key: str = "",
    ) -> None:
        """Deliver a message to the group again later, or put it with the dead letters.

        Where a record holds many messages of another form, the unique key says which.
        """
        self._access.check(principal, "consume", ("group", group))
        self._groups.require(group)
        record = self.see_message(principal, log_offset, group)
        try:
            message = named_by(record, unique_key, self._reader.unpacking)
        except ColdError as cold:

            def later() -> None:
                try:
                    self.send_back(
                        principal,
                        group,
                        log_offset,
                        delay_level,
                        on_stored,
                        token,
                        retries_max=retries_max,
                        unit_mode=unit_mode,
                        unique_key=unique_key,
                    )
                except OnelogError as error:
                    on_stored(token, None, error)

            self._cold_reads.prepare(self._reader, cold.ranges, later)
            return
        sys_flag = UNIT_SUBSCRIBED_FLAG if unit_mode else 0
        again = self._retry.again(message, group, delay_level, retries_max, sys_flag)
        if again is None:
            on_stored(token, None, None)
            return
        self._writer.put(self.postponed(*again), on_stored, token)
        self._stats.sent_back.add((message.topic, group), 1, message.size)

    def find_scheduled(self, principal: Principal, topic: str, unique_key: str) -> list[Message]:
        """Timed messages with a unique key that were meant for a topic; for a worker to ask."""
        self._access.check(principal, "publish", ("topic", topic))
        return self._timers.find_scheduled(unique_key)

    def recall(
        self,
        principal: Principal,
        topic: str,
        unique_key: str,
        on_stored: OnStored,
        token: Any = None,
        *,
        group: str = "",
    ) -> bool:
        """Take a timed message back; `RecallError` if it is due, False if none is scheduled."""
        self._access.check(principal, "publish", ("topic", topic))
        return self._timers.recall(topic, unique_key, on_stored, token, group=group)

    def when_durable(self, callback: WhenSafe) -> None:
        """Call back once everything written so far is as safe as configured."""
        self._durability.when_safe(callback)

    def set_batch_bytes_max(self, bytes_max: int) -> None:
        """How large batches of Kafka's producers may be, in topics that say nothing else."""
        self.batch_bytes_max = bytes_max

    def refusal(self) -> str:
        """Why nothing can be published for now; empty if it can."""
        refusal = self._store.refusal
        return "" if refusal is None else str(refusal)


def _has_key(properties: bytes) -> bool:
    return any(property_bytes(properties, needle) for needle in _KEY_NEEDLES)
