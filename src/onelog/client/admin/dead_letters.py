"""Dead letters: the messages that a consumer group gave up, and what becomes of them.

They are in the topic %DLQ%group, in the log like all messages, until retention deletes them.
Brokers remember two things about them, so that every administrator sees the same:

- a mark per queue: everything before it is settled. It is the position of RocketMQ's tools group in
  the dead-letter topic, so it works with RocketMQ's brokers, too.
- a letter that was sent again: its copy keeps the unique key and carries the letter's id in the
  property `RESENT_FROM`. So a letter counts as resent from the moment its copy is stored, even if
  whoever resent it was killed just then.

A letter counts as long as it is after the mark. Resending moves the mark over all letters at the
front that were resent; dropping moves it without resending.

A resent message keeps its body, flag, tags, keys, unique key and the properties of its sender. What
brokers and consumers wrote into it (retries, delays, transactions, leases) is left out, and its
tries count from 0 again.

Invariants: the mark never passes a letter that was neither resent nor dropped. A message is resent
to a topic once, as long as its copy there can be found, unless the caller asks for more.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from onelog.client.admin.groups import Groups, Positions, write_position
from onelog.client.admin.messages import Found, Messages
from onelog.client.admin.topics import TopicKind, Topics
from onelog.client.connection.address import Address
from onelog.client.connection.nodes import Failure, Nodes, at_once
from onelog.client.synchronous import Part, iterating, waiting
from onelog.errors import (
    BrokerNotFoundError,
    GroupNotFoundError,
    InvalidRequestError,
    KeyNotFoundError,
    MessageNotFoundError,
    NotPermittedError,
    OnelogError,
    PartlyDoneError,
    TopicNotFoundError,
)
from onelog.message import (
    Message,
    SysFlag,
    decode_properties,
    encode_properties,
    property_value,
)
from onelog.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from onelog.rocketmq.names import DEFAULT_TOPIC, TOOLS_GROUP
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode, ResponseCode

RESENT_FROM = "ONELOG_RESENT_FROM"
"""The property with the id of the message that was sent again."""
PRODUCER_GROUP = "onelog_tools"
RETRY_TOPIC = "RETRY_TOPIC"
_ORIGIN_TOPICS = (RETRY_TOPIC, "DLQ_ORIGIN_TOPIC")
_PERM_WRITE = 2

_DROPPED = frozenset(
    (
        "RETRY_TOPIC ORIGIN_MESSAGE_ID ORIGIN_GROUP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID "
        "RECONSUME_TIME MAX_RECONSUME_TIMES CONSUME_START_TIME MIN_OFFSET MAX_OFFSET "
        "REAL_TOPIC REAL_QID DELAY TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS "
        "TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY "
        "TRAN_MSG PGROUP TRAN_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES __transactionId__ "
        "CHECK_IMMUNITY_TIME_IN_SECONDS POP_CK 1ST_POP_TIME ARRIVE_TIME PUSH_REPLY_TIME "
        "INNER_NUM INNER_BASE INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET DUP_INFO "
        "MSG_REGION TRACE_ON CLUSTER __CRC32#"
    ).split()
)
_KEPT_FLAGS = SysFlag.COMPRESSED | SysFlag.MULTI_TAGS | 0x700
"""How the body is compressed. The other flags are about what a broker did with the message."""
_STORED = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT.value,
        ResponseCode.SLAVE_NOT_AVAILABLE.value,
        ResponseCode.FLUSH_SLAVE_TIMEOUT.value,
    }
)
"""The message is in the log; only its safety could not be confirmed in time."""

PAGE_COUNT = 32
_ORIGIN_IDS = ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")

OnProgress = Callable[[int, int], None]
"""Told how many letters are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class Resent:
    """A message that was sent again. `new_id` is empty if it only would be."""

    message_id: str
    topic: str
    new_id: str


@dataclass(eq=False)
class Resender:
    """Sends messages again, all to one topic if that is given, else each to its own."""

    _nodes: Nodes
    _topics: Topics
    _messages: Messages
    _to_topic: str | None = None
    _targets: dict[str, dict[str, tuple[Address, int]]] = field(default_factory=dict)
    """By topic: the masters that take messages for it, by their names, with their queues."""
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def resend(self, found: Found, *, again: bool, dry_run: bool) -> Resent | None:
        """Send a message again; None if that was done before."""
        message = found.message
        topic = self._to_topic or origin_topic(message)
        if not topic:
            raise InvalidRequestError("the message does not tell its topic: say where it is to go")
        masters = await self._masters(topic)
        if not again and await self.is_resent(found, topic):
            return None
        if dry_run:
            return Resent(message.message_id, topic, "")
        # To its own broker if that has the topic: a cluster's brokers may be far from each other.
        address, queues = masters.get(found.broker) or next(iter(masters.values()))
        answer = await self._nodes.ask(
            address,
            RequestCode.SEND_MESSAGE_V2,
            _request(message, topic, queues),
            bytes(message.body),
            accept=_STORED,
        )
        return Resent(message.message_id, topic, answer.ext.get("msgId", ""))

    async def is_resent(self, found: Found, topic: str) -> bool:
        """Whether a copy of a message is in a topic.

        `PartlyDoneError` if it was not found and there are brokers that could not be asked.
        """
        message = found.message
        if message.unique_key is None:
            return False
        try:
            search = await self._messages.by_unique_key(topic, message.unique_key)
        except (MessageNotFoundError, TopicNotFoundError):
            return False
        copies = (property_value(each.message.properties, RESENT_FROM) for each in search.messages)
        if message.message_id in copies:
            return True
        if search.failures:
            reasons = "; ".join(failure.reason for failure in search.failures)
            raise PartlyDoneError(f"nobody knows whether it was resent already: {reasons}")
        return False

    async def _masters(self, topic: str) -> dict[str, tuple[Address, int]]:
        async with self._looking:
            if topic not in self._targets:
                self._targets[topic] = {
                    each.brokers.name: (each.brokers.master, each.write_queues)
                    for each in (await self._topics.route(topic)).brokers
                    if each.brokers.master and each.write_queues and each.perm & _PERM_WRITE
                }
        if not self._targets[topic]:
            raise BrokerNotFoundError(f"no broker takes messages for topic {topic} now")
        return self._targets[topic]


def origin_topic(message: Message) -> str:
    """The topic that a message was sent to first; empty if it does not tell."""
    values = (property_value(message.properties, name) for name in _ORIGIN_TOPICS)
    return next((value for value in values if value), "")


def _request(message: Message, topic: str, queues: int) -> dict[str, str]:
    properties = {
        name: value
        for name, value in decode_properties(message.properties).items()
        if name not in _DROPPED
    }
    properties[RESENT_FROM] = message.message_id
    if topic.startswith(RETRY_PREFIX):
        # A consumer shows its messages of this topic under the one that they were sent to.
        properties[RETRY_TOPIC] = origin_topic(message)
    return {
        "a": PRODUCER_GROUP,
        "b": topic,
        "c": DEFAULT_TOPIC,
        "d": str(queues),
        "e": "-1",  # Any queue, of the broker's choice.
        "f": str(message.sys_flag & _KEPT_FLAGS),
        "g": str(message.born_ms),
        "h": str(message.flag),
        "i": encode_properties(properties).decode(),
        "j": "0",
        "k": "false",
        "m": "false",
    }


@dataclass(frozen=True, slots=True)
class BoxQueue:
    """One queue of dead letters. `mark` is where the ones begin that nobody has dealt with."""

    broker: str
    address: Address
    master: Address | None
    queue_id: int
    min_offset: int
    max_offset: int
    mark: int
    updated_ms: int

    @property
    def begin(self) -> int:
        """The first letter that counts. A mark behind the end is of a topic that was deleted."""
        return max(self.min_offset, self.mark if self.mark <= self.max_offset else 0)

    @property
    def count(self) -> int:
        """Letters that nobody has dealt with."""
        return max(0, self.max_offset - self.begin)

    @property
    def kept(self) -> int:
        """Letters that are in the log, those that were dealt with included."""
        return max(0, self.max_offset - self.min_offset)


@dataclass(frozen=True, slots=True)
class Box:
    """The dead letters of one group, as far as brokers answered."""

    group: str
    queues: tuple[BoxQueue, ...]
    failures: tuple[Failure, ...]

    @property
    def topic(self) -> str:
        """Where they are."""
        return DEAD_LETTER_PREFIX + self.group

    @property
    def count(self) -> int:
        """Letters that nobody has dealt with."""
        return sum(queue.count for queue in self.queues)

    @property
    def kept(self) -> int:
        """Letters that are in the log."""
        return sum(queue.kept for queue in self.queues)

    @property
    def updated_ms(self) -> int:
        """When the last letter came; 0 if there is none."""
        return max((queue.updated_ms for queue in self.queues), default=0)


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter: the message, where it comes from, and how it died."""

    found: Found
    origin_topic: str
    origin_id: str
    tries: int
    is_exhausted: bool
    """Whether it was tried as often as its group allows; otherwise its consumer gave it up."""
    is_resent: bool = False


@dataclass(frozen=True, slots=True)
class Resending:
    """What was sent again, how many letters had been before, and what could not be."""

    resent: tuple[Resent, ...]
    already: int
    failures: tuple[Failure, ...]


@dataclass(eq=False)
class DeadLetters:
    """Questions about dead letters, and what to do with them."""

    _nodes: Nodes
    _topics: Topics
    _groups: Groups
    _positions: Positions
    _messages: Messages

    # Questions.

    async def boxes(self, *, with_empty: bool = False) -> tuple[Box, ...]:
        """Every group that has dead letters, or had some that are done with."""
        names = [
            each.name.removeprefix(DEAD_LETTER_PREFIX)
            for each in await self._topics.names()
            if each.kind is TopicKind.DEAD_LETTER
        ]
        boxes = await at_once(self._box_or_none, names)
        return tuple(
            box for box in boxes if box is not None and (box.count or box.failures or with_empty)
        )

    async def _box_or_none(self, group: str) -> Box | None:
        try:
            return await self.box(group)
        except GroupNotFoundError:
            return None  # It was deleted while we asked.

    async def box(self, group: str) -> Box:
        """The dead letters of a group; `GroupNotFoundError` if it never had any."""
        topic = DEAD_LETTER_PREFIX + group
        try:
            route = await self._topics.route(topic)
            status = await self._topics.status(topic)
        except TopicNotFoundError:
            raise GroupNotFoundError(
                f"consumer group {group} has no dead letters: there is no topic {topic}"
            ) from None
        sets = {each.brokers.name: each.brokers for each in route.brokers}

        async def mark(queue_id: int, address: Address) -> int:
            ext = {"consumerGroup": TOOLS_GROUP, "topic": topic, "queueId": str(queue_id)}
            ext["setZeroIfNotFound"] = "false"
            try:
                answer = await self._nodes.ask(address, RequestCode.QUERY_CONSUMER_OFFSET, ext)
            except KeyNotFoundError:
                return 0
            return fields.number(answer.ext, "offset")

        marks = await at_once(
            lambda queue: mark(queue.queue_id, sets[queue.broker].preferred), status.queues
        )
        queues = tuple(
            BoxQueue(
                queue.broker,
                sets[queue.broker].preferred,
                sets[queue.broker].master,
                queue.queue_id,
                queue.min_offset,
                queue.max_offset,
                position,
                queue.updated_ms,
            )
            for queue, position in zip(status.queues, marks, strict=True)
        )
        return Box(group, queues, status.failures)

    async def letters(
        self, group: str, *, begin: int | None = None, since_ms: int = 0, everything: bool = False
    ) -> AsyncGenerator[Letter, None]:
        """The letters that nobody has dealt with, queue by queue; with `everything`, all of them.

        `begin` is an offset, from which on to look instead of from the mark on; `since_ms` leaves
        out what died before that time.
        """
        box = await self.box(group)
        allowed = await self._tries_allowed(group)
        for queue in box.queues:
            start = queue.min_offset if everything else queue.begin
            if begin is not None:
                start = max(queue.min_offset, begin)
            async with aclosing(self._read(box.topic, queue, start)) as pages:
                async for page in pages:
                    letters = [_letter(each, allowed) for each in page]
                    letters = [each for each in letters if each.found.message.store_ms >= since_ms]
                    for letter in await at_once(self._with_fate, letters):
                        if everything or not letter.is_resent:
                            yield letter

    async def _tries_allowed(self, group: str) -> int | None:
        try:
            settings = (await self._groups.describe(group)).settings
        except GroupNotFoundError:
            return None  # The group is deleted, its dead letters are not.
        return max((each.retry_times_max for each in settings), default=None)

    async def _read(
        self, topic: str, queue: BoxQueue, begin: int
    ) -> AsyncGenerator[Sequence[Found], None]:
        """The messages of a queue up to where it ended when it was looked at, page by page."""
        at = begin
        while at < queue.max_offset:
            count = min(PAGE_COUNT, queue.max_offset - at)
            try:
                page = await self._messages.by_offset(
                    topic, queue.queue_id, at, broker=queue.broker, count=count
                )
            except NotPermittedError as error:
                raise NotPermittedError(
                    f"{error} (brokers up to 4.9.0 make dead letters unreadable; "
                    f"onelog topic update {topic} --perm rw helps)"
                ) from None
            at = page[-1].message.queue_offset + 1
            yield page

    async def _with_fate(self, letter: Letter) -> Letter:
        topic = letter.origin_topic
        resender = Resender(self._nodes, self._topics, self._messages)
        return replace(
            letter, is_resent=bool(topic) and await resender.is_resent(letter.found, topic)
        )

    async def find(self, group: str, message_id: str) -> Letter:
        """The letter with an id: its own, or the unique key of the message."""
        topic = DEAD_LETTER_PREFIX + group
        try:
            found = await self._messages.by_id(message_id)
        except (MessageNotFoundError, InvalidRequestError):
            search = await self._messages.by_unique_key(topic, message_id)
            if not search.messages:
                raise MessageNotFoundError(
                    "; ".join(failure.reason for failure in search.failures)
                ) from None
            found = search.messages[-1]
        if found.message.topic != topic:
            raise MessageNotFoundError(
                f"{message_id} is no dead letter of {group}, but in topic {found.message.topic}"
            )
        return _letter(found, await self._tries_allowed(group))

    # What to do with them.

    async def resend(
        self,
        letters: Sequence[Letter],
        *,
        to_topic: str | None = None,
        again: bool = False,
        dry_run: bool = False,
    ) -> Resending:
        """Send letters again: to their own topics, or to another one.

        Those that were resent before are left out, unless `again`. Marks are not moved: see
        `settle`.
        """
        resender = Resender(self._nodes, self._topics, self._messages, to_topic)

        async def resend(letter: Letter) -> Resent | Failure | None:
            try:
                return await resender.resend(letter.found, again=again, dry_run=dry_run)
            except OnelogError as error:
                return Failure(letter.found.message.message_id, str(error))

        results = await at_once(resend, letters)
        return Resending(
            tuple(each for each in results if isinstance(each, Resent)),
            sum(each is None for each in results),
            tuple(each for each in results if isinstance(each, Failure)),
        )

    async def resend_all(
        self,
        group: str,
        *,
        to_topic: str | None = None,
        again: bool = False,
        dry_run: bool = False,
        on_progress: OnProgress = lambda done, total: None,
    ) -> Resending:
        """Send every letter again that is there now and nobody has dealt with.

        What dies anew meanwhile is not touched. Marks follow page by page, up to the first letter
        that could not be sent.
        """
        box = await self.box(group)
        total = Resending((), 0, box.failures)
        done = 0
        for queue in box.queues:
            mark = queue.begin
            async with aclosing(self._read(box.topic, queue, mark)) as pages:
                async for page in pages:
                    letters = [_letter(found, None) for found in page]
                    part = await self.resend(
                        letters, to_topic=to_topic, again=again, dry_run=dry_run
                    )
                    total = _sum(total, part)
                    begin = page[0].message.queue_offset
                    if mark == begin and not dry_run:
                        mark = _front(page, {failure.who for failure in part.failures})
                        if mark > begin:
                            await self._set_mark(box.topic, queue, mark)
                    done += len(page)
                    on_progress(done, box.count)
        return total

    async def settle(self, group: str) -> None:
        """Move the marks over all letters at the front that were resent."""
        box = await self.box(group)
        for queue in box.queues:
            mark = await self._first_unsent(box.topic, queue)
            if mark > queue.begin:
                await self._set_mark(box.topic, queue, mark)

    async def _first_unsent(self, topic: str, queue: BoxQueue) -> int:
        async with aclosing(self._read(topic, queue, queue.begin)) as pages:
            async for page in pages:
                for found in page:
                    if not (await self._with_fate(_letter(found, None))).is_resent:
                        return found.message.queue_offset
        return queue.max_offset

    async def before(self, box: Box, time_ms: int) -> Box:
        """The box without what died at a time or later."""

        async def cut(queue: BoxQueue) -> BoxQueue:
            end = await self._positions.offset_at(
                queue.address, box.topic, queue.queue_id, max(0, time_ms)
            )
            return replace(queue, max_offset=max(queue.begin, min(end, queue.max_offset)))

        return replace(box, queues=tuple(await at_once(cut, box.queues)))

    async def drop(self, box: Box) -> None:
        """Be done with the letters of a box, without resending them.

        What died after the box was looked at is not touched.
        """
        for queue in box.queues:
            if queue.count:
                await self._set_mark(box.topic, queue, queue.max_offset)

    async def restore(self, box: Box) -> None:
        """Count all letters again that are kept, as if nobody had dealt with them."""
        for queue in box.queues:
            if queue.begin != queue.min_offset:
                await self._set_mark(box.topic, queue, queue.min_offset)

    async def _set_mark(self, topic: str, queue: BoxQueue, offset: int) -> None:
        if queue.master is None:
            raise BrokerNotFoundError(f"{queue.broker} has no master now, which keeps the mark")
        where = (TOOLS_GROUP, topic, queue.queue_id)
        await write_position(self._nodes, queue.master, *where, offset)


class SyncDeadLetters(Part[DeadLetters]):
    """The same for threads."""

    before = waiting(DeadLetters.before)
    box = waiting(DeadLetters.box)
    boxes = waiting(DeadLetters.boxes)
    drop, restore = waiting(DeadLetters.drop), waiting(DeadLetters.restore)
    find = waiting(DeadLetters.find)
    letters = iterating(DeadLetters.letters)
    resend = waiting(DeadLetters.resend)
    resend_all = waiting(DeadLetters.resend_all)
    settle = waiting(DeadLetters.settle)


def _letter(found: Found, tries_allowed: int | None) -> Letter:
    message = found.message
    ids = (property_value(message.properties, name) for name in _ORIGIN_IDS)
    # One more than at its last delivery, which began to count at 0: the number of deliveries.
    tries = message.reconsume_times
    return Letter(
        found,
        origin_topic(message),
        next((value for value in ids if value), ""),
        tries,
        tries_allowed is not None and tries > tries_allowed,
    )


def _front(page: Sequence[Found], failed: set[str]) -> int:
    """The offset of the first message of a page that failed; else the one after the page."""
    for found in page:
        if found.message.message_id in failed:
            return found.message.queue_offset
    return page[-1].message.queue_offset + 1


def _sum(first: Resending, second: Resending) -> Resending:
    return Resending(
        first.resent + second.resent,
        first.already + second.already,
        first.failures + second.failures,
    )
