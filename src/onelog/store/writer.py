"""The writing side of a store: into the log once, then into the queues and the key index.

    append:   reserve queue offsets -> write the log, once -> enter queues -> note keys

With a gate (`gate`) the last two steps wait until what was written is confirmed.

Invariant: a message is in the log, with all that was appended with it, or it is not and its queue
offsets are given to the next one. One thread appends.
"""

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from onelog.clock import Clock
from onelog.config import StoreConfig
from onelog.errors import (
    PropertiesTooLargeError,
    StoreBusyError,
    StoreError,
    StoreFailedError,
    StoreFullError,
)
from onelog.message import (
    PROPERTIES_BYTES_MAX,
    TRANSACTION_MASK,
    Appended,
    AppendedRun,
    NewMessage,
    NewRun,
    QueueOffset,
    SysFlag,
    tags_code,
)
from onelog.names import COMPACTED_TOPIC, SCHEDULE_TOPIC
from onelog.record.entries import ENTRY, ENTRY_BYTES
from onelog.record.forms import FORM_CODE, FORM_MASK
from onelog.record.layout import CRC_PROPERTY_BYTES
from onelog.store.commitlog import CommitLog
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.dispatch import (
    TAGS_NEEDLE,
    TagsCodes,
    deletion_of,
    is_dispatched,
    with_dispatch_properties,
)
from onelog.store.gate import AnyQueue, Gate, Held, Successor
from onelog.store.keyindex import KeyIndex, Pending, pending_of, pending_run
from onelog.store.queues import Queues, check_queue_id
from onelog.store.reader import StoreReader
from onelog.store.retention import HEAD_ROOM, Retention

_log = logging.getLogger(__name__)
_STEP_BACK_MS_MAX = 60_000
"""A clock that goes back by more was wrong before."""
_HALF = 0x4
"""The bit that half and rolled-back messages have, and committed ones do not."""


_LOOKED_AT = (SCHEDULE_TOPIC, COMPACTED_TOPIC)
"""Topics whose entries say more than the form of a message."""
_FORM_CODES = itertools.repeat(FORM_CODE)


class StoreWriter(StoreReader):
    """What appends to a store; `MessageStore` opens, flushes and closes it."""

    retention: Retention

    def __init__(
        self,
        folder: Path,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        queues: Queues,
        index: KeyIndex,
    ) -> None:
        super().__init__(folder, log, queues, index)
        self.config = config
        self._clock = clock
        self._tags_codes = self.mending.tags_codes = TagsCodes(config.delay_levels)
        self._properties_max = PROPERTIES_BYTES_MAX
        if config.record_crc:
            self._properties_max -= CRC_PROPERTY_BYTES + 1
        self.last_append_ms = 0
        self._refusal: StoreError | None = None
        self._hindrance: StoreError | None = None
        """Why writes are refused for the moment, until it is tried again."""
        self._failure: tuple[StoreError, int] | None = None
        """The last append that the disk did not take, and where the log ended then."""
        self._late: dict[ConsumeQueue, bytes] = {}
        self._dirty = self.mending.dirty
        # End of the log that queues and index know of, its last record, and when it was stored:
        # one value, so that the flush thread sees them together.
        self._entered = self._late_entered = (0, 0, 0)
        self._gate: Gate | None = None

    @property
    def refusal(self) -> StoreError | None:
        """Why nothing can be written now, as far as is known: nothing was since it was tried."""
        if self._refusal is None and self._failure is not None:
            error, end = self._failure
            return error if end == self.log.end else None
        return self._refusal

    def next_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """The offset that the next message gets, also if some before it wait."""
        if self._gate is not None and topic in self._gate.successors:
            return QueueOffset(self._gate.successor(topic, queue_id).reserved)
        queue = self.queue_table.find(topic, queue_id)
        return QueueOffset(queue.reserved if queue else 0)

    @contextlib.contextmanager
    def head_room(self, share: float = HEAD_ROOM) -> Iterator[None]:
        """While it lasts, writes go on for longer on a disk that fills: see `Retention`.

        For what the broker has to write itself, so that space can be freed at all.
        """
        refusal = self._refusal
        if not self.retention.owns(refusal) or not self.retention.has_head_room(share):
            yield
            return
        self._refusal = self._hindrance
        try:
            yield
        finally:
            # Unless a flush has failed meanwhile, which is final.
            self._refusal = self._refusal or refusal

    def append_own(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """`append` for the broker's own records, with `head_room`."""
        if self._refusal is None:
            return self.append(messages)
        with self.head_room():
            return self.append(messages)

    def append(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Append messages of any topics with one write, all or none of them."""
        if self._refusal is not None:
            self._refuse()
        store_ms = self._clock.now_ms()
        if store_ms < self.last_append_ms:
            store_ms = self._time_before_last(store_ms)
        if self._gate is not None and self._is_for_successors(self._gate):
            return self._append_special(messages, store_ms)
        by_topic = self.queue_table.by_topic
        properties_max = self._properties_max
        queues: list[ConsumeQueue] = []
        offsets: list[int] = []
        last_topic, last_id = "", -1
        try:
            for message in messages:
                topic, queue_id, _, properties, _, flags, _, _, _, _, _, count, extra = message
                if len(properties) > properties_max:
                    self._refuse_properties(message)
                if flags & _HALF or extra or count != 1:
                    self._release(queues, offsets)
                    return self._append_special(messages, store_ms)
                if queue_id != last_id or topic != last_topic:
                    try:
                        queue = by_topic[topic][queue_id]
                    except KeyError:
                        queue = self.queue_table.get(topic, queue_id)
                    last_topic, last_id = topic, queue_id
                queues.append(queue)
                offset = queue.reserved
                if offset < queue.allocated:  # `reserve`, without its call.
                    queue.reserved = offset + 1
                else:
                    queue.reserve(1)
                offsets.append(offset)
            appended = self.log.append(messages, offsets, store_ms)
        except BaseException as error:
            self._failed(error, queues, offsets)
            raise
        self.last_append_ms = store_ms
        self._enter(messages, queues, appended, store_ms)
        return appended

    def _enter(
        self,
        messages: Sequence[NewMessage],
        queues: list[ConsumeQueue],
        appended: list[Appended],
        store_ms: int,
    ) -> None:
        """Put the entries of plain messages into their queues, and note their keys."""
        pack, code_of, needle = ENTRY.pack, self._tags_codes.of, TAGS_NEEDLE
        entries: dict[ConsumeQueue, list[bytes]] = {}
        has_properties = False
        last: ConsumeQueue | None = None
        packed: list[bytes] = []
        for message, queue, (log_offset, _, size) in zip(messages, queues, appended, strict=True):
            code = 0
            if message[5] & FORM_MASK:
                code = FORM_CODE
                if message[0] == COMPACTED_TOPIC:
                    code = code_of(message[0], message[3], store_ms)
                has_properties |= bool(message[3])
            elif properties := message[3]:
                has_properties = True
                before, found, rest = properties.partition(needle)
                if message[0] == SCHEDULE_TOPIC or (found and before and before[-1] != 2):
                    code = code_of(message[0], properties, store_ms)
                elif found:  # What it comes down to, nearly always.
                    code = tags_code(rest.partition(b"\x02")[0])
            if queue is not last:
                last = queue
                if queue in entries:
                    packed = entries[queue]
                else:
                    packed = entries[queue] = []
            packed.append(pack(log_offset, size, code))
        if self._gate is not None and appended:
            keys = [pending_of(messages, appended, store_ms)] if has_properties else []
            joined: dict[AnyQueue, bytes] = {q: b"".join(each) for q, each in entries.items()}
            self._hold_or_enter(appended[-1].log_offset, store_ms, joined, keys)
            return
        for queue, packed in entries.items():
            end = queue.end
            try:
                queue.put(b"".join(packed))
            except StoreError as error:
                self._put_later(queue, b"".join(packed[queue.end - end :]), error)
            if not queue.dirty:
                queue.dirty = True
                self._dirty.add(queue)
        if has_properties:
            self.index.add(messages, appended, store_ms)
        if appended:
            self._entered_until(int(self.log.end), appended[-1].log_offset, store_ms)

    def append_runs(self, runs: Sequence[NewRun]) -> list[AppendedRun]:
        """`append` for runs, none of them empty: much the same work, done once a run."""
        if self._refusal is not None:
            self._refuse()
        store_ms = self._clock.now_ms()
        if store_ms < self.last_append_ms:
            store_ms = self._time_before_last(store_ms)
        queues: list[ConsumeQueue] = []
        firsts: list[int] = []
        beside = self._gate is not None and self._is_for_successors(self._gate)
        by_topic = self.queue_table.by_topic
        try:
            for run in runs:
                topic, queue_id, parts, source, shared, flags, _, _, _, _ = run
                if source or shared:
                    self._check_run_properties(run)
                if flags & _HALF or topic in _LOOKED_AT or beside:
                    break
                try:
                    queue = by_topic[topic][queue_id]
                except KeyError:
                    queue = self.queue_table.get(topic, queue_id)
                queues.append(queue)
                firsts.append(queue.reserve(len(parts)))
            placed = None
            if len(queues) == len(runs):
                placed = self.log.append_runs(runs, firsts, store_ms)
        except BaseException as error:
            self._failed(error, queues, firsts)
            raise
        if placed is None:
            self._release(queues, firsts)
            return self._append_one_by_one(runs)
        self.last_append_ms = store_ms
        appended, keys = [], []
        entries: dict[AnyQueue, bytes] = {}
        new = tuple.__new__
        for run, queue, first, (log_offsets, sizes) in zip(
            runs, queues, firsts, placed, strict=True
        ):
            codes = _FORM_CODES if run[5] & FORM_MASK else self._codes(run, store_ms)
            packed = b"".join(map(ENTRY.pack, log_offsets, sizes, codes))
            entries[queue] = entries[queue] + packed if queue in entries else packed
            if run[3] or run[4]:
                keys.append(pending_run(run, log_offsets, store_ms))
            size = log_offsets[-1] + sizes[-1] - log_offsets[0]
            appended.append(new(AppendedRun, (log_offsets[0], first, size, log_offsets)))
        self._hold_or_enter(placed[-1][0][-1], store_ms, entries, keys)
        return appended

    def _append_one_by_one(self, runs: Sequence[NewRun]) -> list[AppendedRun]:
        log_offsets = iter(self.append([message for run in runs for message in run.messages()]))
        appended = []
        for run in runs:
            mine = list(itertools.islice(log_offsets, len(run.parts)))
            first, last = mine[0], mine[-1]
            size = last.log_offset + last.size - first.log_offset
            offsets = [place.log_offset for place in mine]
            appended.append(AppendedRun(first.log_offset, first.queue_offset, size, offsets))
        return appended

    def _codes(self, run: NewRun, store_ms: int) -> Iterable[int]:
        """The tags code of each message of RocketMQ's form."""
        if run.source.find(TAGS_NEEDLE) < 0 and run.shared.find(TAGS_NEEDLE) < 0:
            return itertools.repeat(0)
        of = self._tags_codes.of
        return [of(run.topic, each.properties, store_ms) for each in run.messages()]

    def _entered_until(self, end: int, last_record: int, store_ms: int) -> None:
        """Queues and index know of everything up to here."""
        if self._late:
            self._late_entered = (end, last_record, store_ms)
            return
        self._entered = (end, last_record, store_ms)
        if self.index.is_behind:
            try:
                self.index.build()
            except StoreError as error:
                # These messages are stored; it is the next ones that have to wait.
                self._refuse_for_now(error)

    def _refuse_for_now(self, error: StoreError) -> None:
        before, self._hindrance = self._hindrance, error
        if self._refusal is before:
            self._refusal = error

    # A queue whose map was given up needs a file descriptor to be written to, and at worst there is
    # none when the record is in the log already. Its entries wait, and all writes with them.

    def _put(self, queue: ConsumeQueue, entries: bytes) -> None:
        end = queue.end
        try:
            if queue not in self._late:
                queue.make_room(len(entries) // ENTRY_BYTES)
                queue.put(entries)
                return
            error = self._hindrance or StoreBusyError("entries of the queue wait already")
        except StoreError as reason:
            error = reason
        self._put_later(queue, entries[(queue.end - end) * ENTRY_BYTES :], error)

    def _put_later(self, queue: ConsumeQueue, entries: bytes, error: StoreError) -> None:
        self._late[queue] = self._late.get(queue, b"") + entries
        self._refuse_for_now(error)

    def _put_late(self) -> None:
        """Put the entries that had to wait; `StoreError` if they still have to."""
        for queue, entries in list(self._late.items()):
            del self._late[queue]
            self._put(queue, entries)
            if queue in self._late:
                raise self._hindrance or StoreBusyError("entries of a queue have to wait")

    def _time_before_last(self, now_ms: int) -> int:
        """The store time of an append for which the clock says less than for the one before.

        Store times grow with the log, so that messages are found by time: a small step back is
        waited out. A large one is a clock that was ahead, and was corrected: to wait for it again
        would give all messages the same time until then, and none of them would expire.
        """
        back_ms = self.last_append_ms - now_ms
        if back_ms <= _STEP_BACK_MS_MAX:
            return self.last_append_ms
        _log.warning(
            "the clock was set back by %d s; messages are stored with its time", back_ms // 1000
        )
        return now_ms

    def _refuse(self) -> None:
        """Raise why nothing is written now, unless the reason is gone."""
        assert self._refusal is not None
        if self._refusal is self._hindrance:
            if self._late:
                self._put_late()
                self._entered = self._late_entered
            self.index.build()
            self._refusal = self._hindrance = None
        else:
            raise self._refusal

    def _append_special(self, messages: Sequence[NewMessage], store_ms: int) -> list[Appended]:
        """`append` for lists with inner batches, extra queues or parts of transactions."""
        reserved: list[AnyQueue] = []
        firsts: list[int] = []

        by_topic = self.queue_table.by_topic

        def reserve(topic: str, queue_id: int, count: int) -> int:
            queue: AnyQueue
            if self._gate is not None and topic in self._gate.successors:
                check_queue_id(queue_id)
                queue = self._gate.successor(topic, queue_id)
            else:
                try:
                    queue = by_topic[topic][queue_id]
                except KeyError:
                    queue = self.queue_table.get(topic, queue_id)
            reserved.append(queue)
            first = queue.reserve(count)
            firsts.append(first)
            return first

        try:
            records, offsets, entered = [], [], []
            for message in messages:
                self._check_properties(message)
                check_queue_id(message.queue_id)
                offset, targets = 0, []
                if is_dispatched(message.sys_flag):
                    offset = reserve(message.topic, message.queue_id, message.inner_count)
                    before = len(reserved)
                    if message.inner_count != 1 or message.extra_queues:
                        message = with_dispatch_properties(message, reserve)
                        self._check_properties(message)
                    targets = reserved[before - 1 :]
                records.append(message)
                offsets.append(offset)
                entered.append(targets)
            appended = self.log.append(records, offsets, store_ms)
        except BaseException as error:
            self._failed(error, reserved, firsts)
            raise
        self.last_append_ms = store_ms
        packed_of: dict[AnyQueue, list[bytes]] = {}
        for message, targets, (log_offset, _, size) in zip(records, entered, appended, strict=True):
            code = FORM_CODE
            if not message.sys_flag & FORM_MASK or message.topic == COMPACTED_TOPIC:
                code = self._tags_codes.of(message.topic, message.properties, store_ms)
            packed = ENTRY.pack(log_offset, size, code) * message.inner_count
            for queue in targets:
                if queue in packed_of:
                    packed_of[queue].append(packed)
                else:
                    packed_of[queue] = [packed]
        entries = {queue: b"".join(pieces) for queue, pieces in packed_of.items()}
        keys = [pending_of([*map(_without_lost_keys, records)], appended, store_ms)]
        self._hold_or_enter(appended[-1].log_offset, store_ms, entries, keys)
        return appended

    def _failed(
        self, error: BaseException, queues: Sequence[AnyQueue], offsets: Sequence[int]
    ) -> None:
        """Undo an append; if it is the disk that failed, remember where the log ended then."""
        self._release(queues, offsets)
        if isinstance(error, (StoreFullError, StoreFailedError)):
            self._failure = (error, int(self.log.end))

    def _release(self, queues: Sequence[AnyQueue], offsets: Sequence[int]) -> None:
        """Give back what was reserved for an append that failed, and no more than that."""
        firsts: dict[AnyQueue, int] = {}
        for queue, offset in zip(queues, offsets, strict=False):
            firsts.setdefault(queue, offset)
        for queue in set(queues):
            queue.release(firsts.get(queue, queue.reserved))

    def _check_properties(self, message: NewMessage) -> None:
        if len(message.properties) > self._properties_max:
            self._refuse_properties(message)

    def _check_run_properties(self, run: NewRun) -> None:
        # How large bodies may be is a rule for clients, not for what the broker has to keep: its
        # own records, and messages that were taken when the rule was another.
        if not run.fits(self.config.segment_bytes, self._properties_max):
            for message in run.messages():
                self._check_properties(message)

    def _refuse_properties(self, message: NewMessage) -> NoReturn:
        raise PropertiesTooLargeError(
            f"the properties of a message to {message.topic!r} have {len(message.properties)} "
            f"bytes; the limit is {self._properties_max}"
        )

    def _is_for_successors(self, gate: Gate) -> bool:
        """Whether an append has to look for queues whose predecessors wait to be deleted."""
        if gate.has_raw:
            raise StoreBusyError("the log has a tail that replicas have not confirmed yet")
        return bool(gate.successors)

    def _hold_or_enter(
        self,
        last_record: int,
        store_ms: int,
        entries: Mapping[AnyQueue, bytes],
        keys: Sequence[Pending],
        deleted: str = "",
    ) -> None:
        """Enter what was appended last; with a gate, once it is confirmed."""
        held = Held(int(self.log.end), last_record, store_ms, entries, keys, deleted)
        if self._gate is None:
            self._enter_held(held)
        else:
            self._gate.hold(held)

    def _enter_held(self, held: Held) -> None:
        for queue, entries in held.entries.items():
            if isinstance(queue, Successor):
                queue = self.queue_table.get(queue.topic, queue.queue_id)
            self._put(queue, entries)
            queue.dirty = True
            self._dirty.add(queue)
        for pending in held.keys:
            self.index.add_pending(pending)
        if held.deleted:
            self._delete_queues(held.deleted)
        # Only now may a checkpoint be behind a deletion: else a crash would leave the queues.
        self._entered_until(held.end, held.last_record, held.store_ms)

    def _delete_queues(self, topic: str) -> None:
        queues = self.queue_table.by_topic.get(topic, {}).values()
        self._dirty.difference_update(queues)
        for queue in queues:
            self._late.pop(queue, None)
        self.queue_table.delete_topic(topic)
        if self._gate is not None:
            for queue_id, successor in self._gate.successors_of(topic).items():
                self.queue_table.get(topic, queue_id).reserved = successor.reserved

    def delete_topic(self, topic: str) -> None:
        """Remove a topic's queues. Its records stay in the log until retention takes them.

        A record in the log says so: whoever replays the topic's records must not bring them back.
        """
        if not self.queue_table.by_topic.get(topic):
            return
        if self._refusal is not None:
            self._refuse()
        if self._gate is not None:
            self._is_for_successors(self._gate)
        store_ms = max(self._clock.now_ms(), self.last_append_ms)
        (place,) = self.log.append([deletion_of(topic)], [0], store_ms)
        self.last_append_ms = store_ms
        self._hold_or_enter(place.log_offset, store_ms, {}, (), topic)

    def refuse_writes(self, reason: StoreError | None) -> None:
        """Raise `reason` on every append from now on; None accepts writes again.

        A disk that failed or a store that was closed stays refused.
        """
        if self._refusal in (None, self._hindrance) or self.retention.owns(self._refusal):
            self._refusal = reason or self._hindrance

    def _refuse_from_now(self, error: StoreError) -> None:
        if self._refusal is not error:
            self._refusal = error
            _log.error("%s takes no more writes: %s", self.folder, error)


def _without_lost_keys(message: NewMessage) -> NewMessage:
    """A message that was rolled back is found under no key."""
    if message.sys_flag & TRANSACTION_MASK == SysFlag.ROLLED_BACK:
        return message._replace(properties=b"")
    return message
