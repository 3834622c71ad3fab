"""Which transactions are open: those whose half message no operation names yet.

    table    "position": [half, op]   the queue offsets up to which the table knows everything
             "17": 2                  half message 17 is open there; its producer was asked twice

On start, open = the table's half messages + those from `half` on - those that operations from `op`
on name. `remember` writes the difference between the table and what is open now, so a start reads
what came since the last time, however old the oldest open transaction is.

The positions of RocketMQ's own checker, group CID_RMQ_SYS_TRANS, are where a store that it wrote is
taken over, and are kept as it means them, for the way back: no open half message, and none of its
operations, lie before them.

Invariant: a half message below `known_end` is in `places` until its operation is in the log, or is
one that the caller of `remember` names as ending.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any

from onelog.core.cursors.offsets import Offsets
from onelog.core.durable.tables import Change, Tables, in_parts, joined
from onelog.core.schedule.levels import REAL_TOPIC
from onelog.core.transactions import half_messages
from onelog.errors import OnelogError, StoreCorruptError, StoreError
from onelog.message import Appended, Message, property_value
from onelog.names import CHECKER_GROUP, HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from onelog.store.message_store import MessageStore
from onelog.store.record import decode_messages

log = logging.getLogger(__name__)

_POSITION = "position"
_PARTS_TOGETHER = 4
_OPS_PER_READ = 1_000
_OP_BYTES_PER_READ = 1 << 20
_DETOURS = (SCHEDULE_TOPIC, TIMER_TOPIC)
"""Where a committed message may be instead of in its own topic."""


class OpenTransactions:
    """The table of open transactions."""

    name = "transactions"

    def __init__(self, store: MessageStore, tables: Tables, offsets: Offsets) -> None:
        self.places: dict[int, int] = {}
        """Half messages, by queue offset: where each is in the log."""
        self.known_end = 0
        """Half messages from here on are not stored, or not yet safely so."""
        self._store = store
        self._tables = tables
        self._offsets = offsets
        self._position: tuple[int, int] | None = None
        self._recorded: dict[int, int] = {}
        self._doubtful: set[int] = set()

    def __len__(self) -> int:
        return len(self.places)

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if key == _POSITION:
            half, op = value
            self._position = (int(half), int(op))
        elif value is None:
            self._recorded.pop(int(key), None)
        else:
            self._recorded[int(key)] = int(value)

    def entries(self) -> dict[str, Any]:
        """The open transactions that are recorded, and up to where."""
        return joined(self.parts())

    def parts(self) -> Iterator[dict[str, Any]]:
        """The same, some at a time."""
        # The position of the beginning: what is recorded meanwhile is replayed, and its own after.
        position = self._position
        for part in in_parts(self._recorded):
            yield {str(offset): checks for offset, checks in part}
        if position is not None:
            yield {_POSITION: list(position)}

    # -- starting ------------------------------------------------------------------------------

    def load(self) -> None:
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
            entry = store.place(HALF_TOPIC, 0, offset)
            if entry is None:
                log.error("half message %d is gone from the log, its transaction lost", offset)
            else:
                self.places[offset] = entry[0]
        self._drop_superseded(ended)
        self.known_end = half_end
        self._doubtful = set(self.places)
        if self.places:
            log.info("%d transactions are open", len(self.places))

    def _come_back(self, half_end: int) -> None:
        """A crash may have cut the queues off: what comes there is new."""
        op_end = int(self._store.max_offset(OP_HALF_TOPIC, 0))
        half, op = self._position or (0, 0)
        gone = [offset for offset in self._recorded if offset >= half_end]
        if half > half_end or op > op_end or gone:
            log.warning(
                "transactions were known up to half message %d and operation %d, but a crash has "
                "cut their queues off at %d and %d: they go on there", half, op, half_end, op_end,
            )  # fmt: skip
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
                    ended.update(half_messages.ended_offsets(message))
            if read.next_offset <= op_offset:
                raise StoreCorruptError(f"operation {op_offset} of {end} cannot be read")
            op_offset = read.next_offset
        return ended

    def _drop_superseded(self, ended: set[int]) -> None:
        """RocketMQ appends a half message again when it checks or spares it: the last one counts.

        It tells by its position, which may not be saved after a crash, or not be known here.
        """
        latest: dict[str, int] = {}
        for offset, at in list(self.places.items()):
            try:
                half = self._store.message_at(at)
            except StoreError as error:
                log.error("the transaction of half message %d is lost: %s", offset, error)
                del self.places[offset]
                continue
            key = half.unique_key
            first = property_value(half.properties, half_messages.PREPARED_QUEUE_OFFSET) or ""
            if first.isdigit() and int(first) in ended:
                del self.places[offset]
            elif key is not None:
                if (first or half_messages.stated_checks(half)) and key in latest:
                    del self.places[latest[key]]
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
            at = self.places.get(half_offset)
            if at is not None:
                try:
                    self._is_delivered(self._store.message_at(at))
                except OnelogError:
                    continue  # Whoever asks is told.

    # -- running -------------------------------------------------------------------------------

    def add(self, where: Appended) -> None:
        """A half message is stored. They come in the order of their offsets."""
        self.places[where.queue_offset] = where.log_offset
        self.known_end = max(self.known_end, where.queue_offset + 1)

    def checks(self, half: Message) -> int:
        """How often producers were asked about a half message."""
        recorded = self._recorded.get(half.queue_offset, 0)
        return max(recorded, half_messages.stated_checks(half))

    def count_checks(self, checks: dict[int, int]) -> None:
        """Record how often producers were asked about these half messages."""
        changes: list[Change] = [(self.name, str(at), count) for at, count in checks.items()]
        self._tables.write(changes)

    def remember(self, ending: Callable[[], AbstractSet[int]]) -> Iterator[None]:
        """Record what is open, also the transactions that end with this tick, as their operations
        are not in the log yet; some at a time.

        The position comes last: without it, the next start only reads more. It is that of the
        beginning: of what begins or ends meanwhile the start reads.
        """
        half_end, op_end = self.known_end, int(self._store.max_offset(OP_HALF_TOPIC, 0))
        changes: list[Change] = []
        has_changed = (half_end, op_end) != (self._position or (0, 0))
        for number, part in enumerate(self._unrecorded_parts(half_end, ending), 1):
            changes += part
            if number % _PARTS_TOGETHER == 0:
                self._tables.write(changes)
                changes = []
                yield
        if changes or has_changed:
            self._tables.write([*changes, (self.name, _POSITION, [half_end, op_end])])
            lowest = min(self.places.keys() | ending(), default=half_end)
            self._offsets.commit(CHECKER_GROUP, HALF_TOPIC, 0, lowest)
            self._offsets.commit(
                CHECKER_GROUP, OP_HALF_TOPIC, 0, self._first_op_after(lowest, op_end)
            )

    def _unrecorded_parts(
        self, half_end: int, ending: Callable[[], AbstractSet[int]]
    ) -> Iterator[list[Change]]:
        """What has to change in the table; ending ones are open still."""
        for recorded in in_parts(self._recorded):
            open_still = ending()
            yield [
                (self.name, str(offset), None)
                for offset, _ in recorded
                if offset not in self.places and offset not in open_still
            ]
        yield [
            (self.name, str(offset), 0)
            for offset in sorted(ending())
            if offset < half_end and offset not in self._recorded
        ]
        for places in in_parts(self.places):
            yield [
                (self.name, str(offset), 0)
                for offset, _ in places
                if offset < half_end and offset not in self._recorded
            ]

    def _first_op_after(self, half_offset: int, op_end: int) -> int:
        """The first operation that may name this half message or a later one."""
        entry = self._store.place(HALF_TOPIC, 0, half_offset)
        queue = self._store.queue_table.find(OP_HALF_TOPIC, 0)
        if entry is None or queue is None:
            return op_end
        half_at = entry[0]
        return min(op_end, queue.first_not_before(lambda op: op[0] < half_at))
