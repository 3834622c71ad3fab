"""Delayed messages: the levels, RocketMQ's way.

A message with DELAY=n is written to queue n-1 of SCHEDULE_TOPIC_XXXX instead, with its own topic
and queue in REAL_TOPIC and REAL_QID. As all messages of a level wait equally long, each such queue
is in the order of due times: one position per level says what has been delivered, and one timer per
level waits for the first that has not.

What falls due is written to its own topic in one append together with the record of the new
position, so that not even a killed process delivers twice; only a torn write (lost power) can.

Invariant: everything below a level's position has been delivered, nothing from it on has.
"""

import logging
from typing import Any

from onelog.clock import Clock
from onelog.core.catalog.topics import HALF_TOPIC
from onelog.core.cursors.warming import Warming
from onelog.core.durable.tables import Tables
from onelog.core.durable.waiting import Schedule
from onelog.core.publish import Publisher
from onelog.errors import MessageError, OffsetOutOfRangeError, StoreBusyError, StoreError
from onelog.jobs import Job
from onelog.message import (
    DELAY_LEVEL,
    RECORD_CRC,
    SCHEDULE_TOPIC,
    TRANSACTION_MASK,
    Message,
    NewMessage,
    SysFlag,
    decode_properties,
    encode_properties,
    property_value,
)
from onelog.store.consumequeue import PADDING_SIZE
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
_TRIGGER = DELAY_LEVEL.encode() + b"\x01"
_TIMES = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
"""A level goes before a time, which must not be obeyed when the message is sent on."""
_ROUND_COUNT = 256
_ROUND_BYTES = 1 << 20
_TROUBLE_MS = 1_000


class Delay:
    """The table of delivery positions, and the deliverer."""

    name = "delay"

    def __init__(
        self,
        tables: Tables,
        store: MessageStore,
        publisher: Publisher,
        clock: Clock,
        schedule: Schedule,
        levels_ms: tuple[int, ...],
        warming: Warming,
    ) -> None:
        self._tables = tables
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._schedule = schedule
        self._levels_ms = levels_ms
        self._warming = warming
        self._positions: dict[int, int] = {}
        self._armed: set[int] = set()
        self._jobs = [Job(f"delivering level {n}") for n in range(1, len(levels_ms) + 1)]
        self._closed = False

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._positions.pop(int(key), None)
        else:
            self._positions[int(key)] = int(value)

    def entries(self) -> dict[str, Any]:
        """The position of every level."""
        return {str(level): offset for level, offset in self._positions.items()}

    def open(self) -> None:
        """Take over messages with a delay, and deliver what fell due while nobody was here."""
        self._publisher.before_store.append((_TRIGGER, self.postpone))
        for level, (position, end) in self.progress().items():
            if position > end:
                log.warning(
                    "level %d was delivered up to %d, but a crash has cut its queue off at %d: it "
                    "goes on there", level, position, end,
                )  # fmt: skip
                self._tables.write([(self.name, str(level), end)])
            elif position < end:
                self._arm(level, 0)

    def close(self) -> None:
        """Deliver nothing more."""
        self._closed = True

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is delivered."""
        return self._closed

    @property
    def levels(self) -> int:
        """How many there are; they count from 1."""
        return len(self._levels_ms)

    def delay_ms(self, level: int) -> int:
        """How long messages of a level wait."""
        return self._levels_ms[level - 1]

    def first_waiting(self, level: int) -> int:
        """The queue offset of the first message of a level that has not been delivered."""
        kept_from = int(self._store.min_offset(SCHEDULE_TOPIC, level - 1))
        return max(self._positions.get(level, 0), kept_from)

    def needed_from(self) -> int:
        """Where in the log the first message is that waits, or its end."""
        return min(
            (
                self._store.place_of(SCHEDULE_TOPIC, level - 1, self.first_waiting(level))
                for level in range(1, self.levels + 1)
            ),
            default=int(self._store.log_end),
        )

    def progress(self) -> dict[int, tuple[int, int]]:
        """Per level, what has been delivered and what there is."""
        return {
            level: (
                self._positions.get(level, 0),
                int(self._store.max_offset(SCHEDULE_TOPIC, level - 1)),
            )
            for level in range(1, len(self._levels_ms) + 1)
        }

    def postpone(self, message: NewMessage) -> NewMessage:
        """The message as it waits for its time; one without a delay comes back as it is."""
        text = property_value(message.properties, DELAY_LEVEL)
        transaction = message.sys_flag & TRANSACTION_MASK
        if text is None or transaction not in (0, SysFlag.COMMITTED):
            return message
        try:
            level = int(text)
        except ValueError:
            raise MessageError(f"delay level {text!r} is not a number") from None
        if level <= 0 or not self._levels_ms:
            return message
        level = min(level, len(self._levels_ms))
        properties = decode_properties(message.properties)
        properties[DELAY_LEVEL] = str(level)
        properties[REAL_TOPIC] = message.topic
        properties[REAL_QUEUE_ID] = str(message.queue_id)
        self._arm(level, self._levels_ms[level - 1])
        return message._replace(
            topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=encode_properties(properties)
        )

    def _arm(self, level: int, wait_ms: int) -> None:
        if level not in self._armed and not self._closed:
            self._armed.add(level)
            self._schedule(wait_ms, lambda: self._time_passed(level))

    def _time_passed(self, level: int) -> None:
        self._armed.discard(level)
        if self._closed:
            return
        wait_ms: int | None = _TROUBLE_MS
        with self._jobs[level - 1]:
            begin = self._positions.get(level, 0)
            entries = self._store.entries(SCHEDULE_TOPIC, level - 1, begin, _ROUND_COUNT)
            now = self._clock.now_ms()
            due = [at for at, _, due_ms in entries if due_ms <= now]
            if not self._warming.is_ready(due, lambda: self._time_passed(level)):
                self._armed.add(level)  # It comes again by itself.
                return
            wait_ms = self._deliver_due(level)
        if wait_ms is not None:
            self._arm(level, wait_ms)

    def _deliver_due(self, level: int) -> int | None:
        """Deliver a bounded number of due messages; how long to wait for more, or None if empty."""
        queue_id = level - 1
        begin = self._positions.get(level, 0)
        kept_from = self._store.min_offset(SCHEDULE_TOPIC, queue_id)
        if begin < kept_from:
            log.error(
                "%d delayed messages of level %d were deleted by retention before they were due",
                kept_from - begin,
                level,
            )
            begin = kept_from
        now = self._clock.now_ms()
        due: list[NewMessage] = []
        position, size, wait_ms = begin, 0, 0
        for at, length, due_ms in self._store.entries(
            SCHEDULE_TOPIC, queue_id, begin, _ROUND_COUNT
        ):
            # A due time further away than the level's delay was written before the clock was set
            # back; it would block the level.
            if now < due_ms <= now + self._levels_ms[level - 1]:
                wait_ms = due_ms - now
                break
            if size > _ROUND_BYTES:
                break
            size += length
            position += 1
            restored = None if length == PADDING_SIZE else self.restored(at)
            if restored is not None:
                due.append(restored)
        self.write(level, due, position)
        return wait_ms if position < self._store.max_offset(SCHEDULE_TOPIC, queue_id) else None

    def restored(self, log_offset: int) -> NewMessage | None:
        """The message as it was before it was postponed, or None if it cannot be delivered."""
        try:
            message = self._store.message_at(log_offset)
            return restore(message)
        except StoreBusyError:
            raise  # It is there, and can be read a moment later.
        except (OffsetOutOfRangeError, MessageError, StoreError) as error:
            log.error("the delayed message at log offset %d is dropped: %s", log_offset, error)
            return None

    def write(self, level: int, due: list[NewMessage], position: int) -> None:
        """Write what became of messages, and that all below `position` have left their queue."""
        if position == self._positions.get(level, 0):
            return
        change = (self.name, str(level), position)
        try:
            self._publisher.write_now([*due, *self._tables.record([change])])
        except MessageError:
            for message in due:
                try:
                    self._publisher.write_now([message])
                except MessageError as error:
                    log.error("a delayed message to %s is dropped: %s", message.topic, error)
            self._tables.write([change])
        else:
            self._tables.apply([change])


def restore(message: Message) -> NewMessage:
    """A postponed message under its own topic and queue; `MessageError` if it names none."""
    properties = decode_properties(message.properties)
    topic = properties.get(REAL_TOPIC)
    queue_id = properties.get(REAL_QUEUE_ID, "")
    if not topic or topic == HALF_TOPIC or not (queue_id.isascii() and queue_id.isdigit()):
        raise MessageError(f"it has no topic and queue to go to ({topic!r}, {queue_id!r})")
    for name in (DELAY_LEVEL, *_TIMES, RECORD_CRC):
        properties.pop(name, None)
    return NewMessage(
        topic,
        int(queue_id),
        message.body,
        encode_properties(properties),
        message.flag,
        message.sys_flag,
        message.born_ms,
        message.born_host,
        message.store_host,
        message.reconsume_times,
    )
