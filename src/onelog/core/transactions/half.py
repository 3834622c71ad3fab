"""Half messages: RocketMQ's transactions, each one message that waits for its producer's decision.

A half message rests where no consumer looks. Its producer ends it: a commit writes the message to
its own topic, and an operation that names the half message; a rollback writes the operation alone.
All that ends in a tick goes in one append, with one operation, which is last. About half messages
that nobody ends, `checkback` asks.

    table    "position": [half, op]   the queue offsets up to which the table knows everything
             "17": 2                  half message 17 is open there; its producer was asked twice

On start, open = the table's half messages + those from `half` on - those that operations from `op`
on name. `remember` writes the difference between the table and what is open now, so a start reads
what came since the last time, however old the oldest open transaction is.

The positions of RocketMQ's own checker, group CID_RMQ_SYS_TRANS, are where a store that it wrote is
taken over, and are kept as it means them, for the way back: no open half message, and none of its
operations, lie before them.

Invariant: until an operation names a half message in the log, it is open (in `log_offsets`), or
among the endings of this tick; whoever ends it a second time is refused, so that a commit delivers
at most once.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from onelog.core.catalog.topics import Topics
from onelog.core.cursors.offsets import Offsets
from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import Change, in_parts
from onelog.core.durable.writer import OnStored, nobody
from onelog.core.schedule.records import REAL_TOPIC
from onelog.core.transactions import half_records
from onelog.errors import (
    BrokerBusyError,
    MessageError,
    OnelogError,
    StoreCorruptError,
    StoreError,
    TopicNotFoundError,
    TransactionForeignError,
    TransactionLateError,
    TransactionNotFoundError,
)
from onelog.message import Appended, Message, NewMessage, property_value
from onelog.names import CHECKER_GROUP, HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from onelog.record.decode import decode_messages

log = logging.getLogger(__name__)

OPEN_MAX = 500_000
"""Open transactions, at some 300 bytes each, before new ones are refused."""
_POSITION = "position"
_PARTS_TOGETHER = 4
_OPS_PER_READ = 1_000
_OP_BYTES_PER_READ = 1 << 20
_DETOURS = (SCHEDULE_TOPIC, TIMER_TOPIC)
"""Where a committed message may be instead of in its own topic."""

NOT_OPEN = "no transaction is open with half message {}: it has ended, or never began"
Becomes = Callable[[NewMessage], NewMessage]


class _Ending(NamedTuple):
    """A transaction that ends with this tick, and whom to tell; a rollback has no message."""

    half_offset: int
    log_offset: int
    message: NewMessage | None
    on_stored: OnStored
    token: Any


@dataclass(eq=False)
class HalfMessages:
    """The half messages that are open: begins them and ends them."""

    name = "transactions"

    _storage: Storage
    _topics: Topics
    _offsets: Offsets
    timeout_ms: int
    """The least immunity: a younger half message is nobody's business but its producer's."""

    def __post_init__(self) -> None:
        storage = self._storage
        self._store, self._writer, self._tables = storage.store, storage.writer, storage.tables
        self._clock = storage.runtime.clock
        self.log_offsets: dict[int, int] = {}
        """Open half messages, by queue offset: where each is in the log."""
        self._endings: list[_Ending] = []
        self._known_end = 0
        """Half messages from here on are not stored, or not yet safely so."""
        self._position: tuple[int, int] | None = None
        self._recorded: dict[int, int] = {}
        self._doubtful: set[int] = set()

    def __len__(self) -> int:
        return len(self.log_offsets)

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if key == _POSITION:
            half, op = value
            self._position = (int(half), int(op))
        elif value is None:
            self._recorded.pop(int(key), None)
        else:
            self._recorded[int(key)] = int(value)

    def parts(self) -> Iterator[dict[str, Any]]:
        """The open transactions that are recorded, and up to where; some at a time."""
        # The position of the beginning: what is recorded meanwhile is replayed, and its own after.
        position = self._position
        for part in in_parts(self._recorded):
            yield {str(offset): checks for offset, checks in part}
        if position is not None:
            yield {_POSITION: list(position)}

    # -- starting ------------------------------------------------------------------------------

    def open(self) -> None:
        """Find out what is open; tables and positions are back already."""
        store = self._store
        half_begin = int(store.min_offset(HALF_TOPIC, 0))
        half_end = int(store.max_offset(HALF_TOPIC, 0))
        self._come_back(half_end)
        begin, op_begin = self._position or self._rocketmq_position()
        begin = max(min(begin, half_end), half_begin)
        ended = self._ended_since(op_begin)
        recorded = sorted(offset for offset in self._recorded if offset < begin)
        for offset in itertools.chain(recorded, range(begin, half_end)):
            if offset in ended:
                continue
            entry = store.entry_at(HALF_TOPIC, 0, offset)
            if entry is None:
                log.error("half message %d is gone from the log, its transaction lost", offset)
            else:
                self.log_offsets[offset] = entry[0]
        self._drop_superseded(ended)
        self._known_end = half_end
        self._doubtful = set(self.log_offsets)
        if self.log_offsets:
            log.info("%d transactions are open", len(self.log_offsets))

    def _come_back(self, half_end: int) -> None:
        """A crash may have cut the queues off: what comes there is new."""
        op_end = int(self._store.max_offset(OP_HALF_TOPIC, 0))
        half, op = self._position or (0, 0)
        gone = [offset for offset in self._recorded if offset >= half_end]
        if half > half_end or op > op_end or gone:
            log.warning(
                "transactions were known up to half message %d and operation %d, but a crash has "
                "cut their queues off at %d and %d: they go on there",
                half,
                op,
                half_end,
                op_end,
            )
            changes: list[Change] = [(self.name, str(offset), None) for offset in gone]
            position = [min(half, half_end), min(op, op_end)]
            self._tables.write([*changes, (self.name, _POSITION, position)])

    def _rocketmq_position(self) -> tuple[int, int]:
        """Where RocketMQ was, or the start of everything."""
        half = self._offsets.get(CHECKER_GROUP, HALF_TOPIC, 0)
        op = self._offsets.get(CHECKER_GROUP, OP_HALF_TOPIC, 0)
        return half or 0, op or 0

    def _ended_since(self, op_offset: int) -> set[int]:
        """The half messages that operations from an offset on name."""
        store = self._store
        op_offset = max(op_offset, int(store.min_offset(OP_HALF_TOPIC, 0)))
        end = store.max_offset(OP_HALF_TOPIC, 0)
        ended: set[int] = set()
        while op_offset < end:
            read = store.read_now(OP_HALF_TOPIC, 0, op_offset, _OPS_PER_READ, _OP_BYTES_PER_READ)
            for part in read.slices:
                for message in decode_messages(part):
                    ended.update(half_records.ended_offsets(message))
            if read.next_offset <= op_offset:
                raise StoreCorruptError(f"operation {op_offset} of {end} cannot be read")
            op_offset = read.next_offset
        return ended

    def _drop_superseded(self, ended: set[int]) -> None:
        """RocketMQ appends a half message again when it checks or spares it: the last one counts.

        It tells by its position, which may not be saved after a crash, or not be known here.
        """
        latest: dict[str, int] = {}
        for offset, at in list(self.log_offsets.items()):
            try:
                half = self._store.message_at(at)
            except StoreError as error:
                log.error("the transaction of half message %d is lost: %s", offset, error)
                del self.log_offsets[offset]
                continue
            key = half.unique_key
            first = property_value(half.properties, half_records.PREPARED_QUEUE_OFFSET) or ""
            if first.isdigit() and int(first) in ended:
                del self.log_offsets[offset]
            elif key is not None:
                if (first or half_records.stated_checks(half)) and key in latest:
                    del self.log_offsets[latest[key]]
                latest[key] = offset

    def was_committed(self, half: Message) -> bool:
        """Whether the message was delivered before the start, and only the operation is missing.

        A torn write can leave it so, and RocketMQ does that for seconds: it writes operations late.
        """
        if half.queue_offset not in self._doubtful:
            return False
        if self._is_delivered(half):
            return True
        self._doubtful.discard(half.queue_offset)
        return False

    def _is_delivered(self, half: Message) -> bool:
        key = half.unique_key
        topic = property_value(half.properties, REAL_TOPIC)
        if key is not None and topic is not None:
            for place in (topic, *_DETOURS):
                for at in self._store.find_by_key(place, key):
                    if self._store.message_at(at).prepared_offset == half.log_offset:
                        return True
        return False

    def is_doubtful(self, half_offset: int) -> bool:
        """Whether `was_committed` has to look into the log."""
        return half_offset in self._doubtful

    def read_ahead(self, half_offsets: Iterable[int]) -> None:
        """Read what `was_committed` will read, in a worker; it may be on disk only."""
        for half_offset in half_offsets:
            at = self.log_offsets.get(half_offset)
            if at is not None:
                try:
                    self._is_delivered(self._store.message_at(at))
                except OnelogError:
                    continue  # Whoever asks is told.

    def needed_from(self) -> int:
        """Where in the log the first half message is that may be open, by what is recorded."""
        half_end, _ = self._position or self._rocketmq_position()
        return self._store.log_offset_of(HALF_TOPIC, 0, min(half_end, *self._recorded, half_end))

    def remember(self) -> None:
        """Record what is open, so that a start need not find it out."""
        for _ in self.remember_some():
            pass

    def _ending(self) -> set[int]:
        """The half messages that end with this tick; their operations are not in the log yet."""
        return {ending.half_offset for ending in self._endings}

    def remember_some(self) -> Iterator[None]:
        """`remember`, some at a time.

        The position comes last: without it, the next start only reads more. It is that of the
        beginning: of what begins or ends meanwhile the start reads.
        """
        half_end, op_end = self._known_end, int(self._store.max_offset(OP_HALF_TOPIC, 0))
        changes: list[Change] = []
        has_changed = (half_end, op_end) != (self._position or (0, 0))
        for number, part in enumerate(self._unrecorded_parts(half_end), 1):
            changes += part
            if number % _PARTS_TOGETHER == 0:
                self._tables.write(changes)
                changes = []
                yield
        if changes or has_changed:
            self._tables.write([*changes, (self.name, _POSITION, [half_end, op_end])])
            lowest = min(self.log_offsets.keys() | self._ending(), default=half_end)
            self._offsets.commit(CHECKER_GROUP, HALF_TOPIC, 0, lowest)
            self._offsets.commit(
                CHECKER_GROUP, OP_HALF_TOPIC, 0, self._first_op_after(lowest, op_end)
            )

    def _unrecorded_parts(self, half_end: int) -> Iterator[list[Change]]:
        """What has to change in the table; ending ones are open still."""
        for recorded in in_parts(self._recorded):
            open_still = self._ending()
            yield [
                (self.name, str(offset), None)
                for offset, _ in recorded
                if offset not in self.log_offsets and offset not in open_still
            ]
        yield [
            (self.name, str(offset), 0)
            for offset in sorted(self._ending())
            if offset < half_end and offset not in self._recorded
        ]
        for log_offsets in in_parts(self.log_offsets):
            yield [
                (self.name, str(offset), 0)
                for offset, _ in log_offsets
                if offset < half_end and offset not in self._recorded
            ]

    def _first_op_after(self, half_offset: int, op_end: int) -> int:
        """The first operation that may name this half message or a later one."""
        entry = self._store.entry_at(HALF_TOPIC, 0, half_offset)
        queue = self._store.queue_table.find(OP_HALF_TOPIC, 0)
        if entry is None or queue is None:
            return op_end
        half_at = entry[0]
        return min(op_end, queue.first_not_before(lambda op: op[0] < half_at))

    # -- beginning -----------------------------------------------------------------------------

    def prepare(self, message: NewMessage, on_stored: OnStored, token: Any = None) -> None:
        """Store a message, which was checked, until its transaction ends.

        `on_stored` learns where the half message is; the producer names that place to end it.
        """
        self.put_half(half_records.prepared(message), on_stored, token)

    def put_half(self, half: NewMessage, on_stored: OnStored, token: Any) -> None:
        if len(self.log_offsets) >= OPEN_MAX:
            raise BrokerBusyError(
                f"{len(self.log_offsets)} transactions are open; producers have to end some first"
            )
        self._writer.begin_tick()
        self._writer.put_together((half,), self._prepared, (on_stored, token))

    def _prepared(
        self,
        receipt: tuple[OnStored, Any],
        appended: list[Appended] | None,
        error: OnelogError | None,
    ) -> None:
        on_stored, token = receipt
        if appended is None:
            on_stored(token, None, error)
        else:
            where = appended[0]
            self.log_offsets[where.queue_offset] = where.log_offset
            self._known_end = max(self._known_end, where.queue_offset + 1)
            on_stored(token, where, error)

    # -- ending --------------------------------------------------------------------------------

    def topic_of(self, half_offset: int, log_offset: int) -> str | None:
        """Where a half message goes if it is committed; None if none is open there."""
        if self.log_offsets.get(half_offset) != log_offset:
            return None
        return property_value(self._store.message_at(log_offset).properties, REAL_TOPIC)

    def commit(
        self,
        group: str,
        half_offset: int,
        log_offset: int,
        on_stored: OnStored,
        token: Any = None,
        *,
        checked: bool = False,
        becomes: Becomes = lambda message: message,
    ) -> None:
        """Deliver a message whose transaction succeeded; `checked` if that was asked for.

        `becomes` tells what is stored for it, if it is to wait for a time, say. `on_stored` gets
        the place of the delivered message, or None if it was there already.
        """
        half = self._required(group, half_offset, log_offset, checked)
        message = None if self.was_committed(half) else self._delivered(half, becomes)
        self._end(half, message, on_stored, token)

    def roll_back(
        self,
        group: str,
        half_offset: int,
        log_offset: int,
        on_stored: OnStored,
        token: Any = None,
        *,
        checked: bool = False,
    ) -> None:
        """Forget a message whose transaction failed; `checked` if that was asked for."""
        half = self._required(group, half_offset, log_offset, checked)
        if self.was_committed(half):
            raise TransactionNotFoundError(
                f"the transaction of half message {half_offset} was committed before the broker "
                "was started; it cannot be rolled back"
            )
        self._end(half, None, on_stored, token)

    def _required(self, group: str, half_offset: int, log_offset: int, checked: bool) -> Message:
        """The half message, if it is open and whoever ends it may do so."""
        at = self.log_offsets.get(half_offset)
        if at is None:
            raise TransactionNotFoundError(NOT_OPEN.format(half_offset))
        if at != log_offset:
            raise TransactionNotFoundError(
                f"The commit log offset wrong: half message {half_offset} is not at {log_offset}"
            )
        half = self._store.message_at(at)
        if property_value(half.properties, half_records.PRODUCER_GROUP) != group:
            raise TransactionForeignError(
                f"The producer group wrong: {group!r} cannot end a transaction of another group"
            )
        if not checked and half_records.has_own_immunity(half):
            until_ms = half_records.immune_until(half, self.timeout_ms)
            if self._clock.now_ms() > until_ms:
                raise TransactionLateError(
                    f"half message {half_offset} could be ended unasked until {until_ms}; its "
                    "producer group will be asked what became of it"
                )
        return half

    def _delivered(self, half: Message, becomes: Becomes) -> NewMessage:
        """What consumers get: the message under its own topic, on its own way into the log."""
        message = half_records.committed(half, self.checks(half))
        if self._topics.get(message.topic) is None:
            raise TopicNotFoundError(
                f"topic[{message.topic}] not exist any more; the transaction stays open"
            )
        return becomes(message)

    def forget(self, half: Message) -> None:
        """End a transaction of which nobody has to hear."""
        self._end(half, None, nobody, None)  # What fails is tried again in the next round.

    def _end(
        self, half: Message, message: NewMessage | None, on_stored: OnStored, token: Any
    ) -> None:
        if not self._endings:
            self._writer.begin_tick()
            self._writer.join_tick(self._write_endings)
        at = self.log_offsets.pop(half.queue_offset)
        self._endings.append(_Ending(half.queue_offset, at, message, on_stored, token))

    def _write_endings(self) -> None:
        """The tick ends, and with it these transactions."""
        if self._endings:
            endings, self._endings = self._endings, []
            self._put_endings(endings)

    def _put_endings(self, endings: list[_Ending]) -> None:
        messages = [ending.message for ending in endings if ending.message is not None]
        messages += self.operations([ending.half_offset for ending in endings])
        self._writer.put_together(messages, self._ended, endings)

    def operations(self, half_offsets: list[int]) -> list[NewMessage]:
        """The records with which these half messages end."""
        return half_records.operations(
            half_offsets, self._clock.now_ms(), self._storage.runtime.host
        )

    def _ended(
        self, endings: list[_Ending], appended: list[Appended] | None, error: OnelogError | None
    ) -> None:
        if appended is None:
            self._not_ended(endings, error)
            return
        log_offsets = iter(appended)
        for ending in endings:
            where = None if ending.message is None else next(log_offsets)
            ending.on_stored(ending.token, where, error)

    def _not_ended(self, endings: list[_Ending], error: OnelogError | None) -> None:
        """Nothing was written. If that was the fault of one of them, each gets its own append."""
        if isinstance(error, MessageError) and len(endings) > 1:
            try:
                self._writer.begin_tick()
            except BrokerBusyError as busy:
                error = busy
            else:
                for ending in endings:
                    self._put_endings([ending])
                return
        for ending in endings:
            self.log_offsets[ending.half_offset] = ending.log_offset
            ending.on_stored(ending.token, None, error)

    # -- questions to producers ----------------------------------------------------------------

    def checks(self, half: Message) -> int:
        """How often producers were asked about a half message."""
        recorded = self._recorded.get(half.queue_offset, 0)
        return max(recorded, half_records.stated_checks(half))

    def count_checks(self, checks: dict[int, int]) -> None:
        """Record how often producers were asked about these half messages."""
        changes: list[Change] = [(self.name, str(at), count) for at, count in checks.items()]
        self._tables.write(changes)
