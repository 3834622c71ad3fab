"""Appending: into the log once, then into the queues and the key index.

    append:   reserve queue offsets -> write the log, once -> enter queues -> note keys

With a gate (`tail`) the last two steps wait until what was written is confirmed.

Invariant: a batch is in the log, with all that was appended with it, or it is not and its queue
offsets are given to the next one. One thread appends.
"""

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast, overload

from onelog.clock import Clock
from onelog.config import StoreConfig
from onelog.errors import PropertiesTooLargeError
from onelog.message import (
    PROPERTIES_BYTES_MAX,
    TRANSACTION_MASK,
    Appended,
    AppendedRun,
    NewMessage,
    NewRun,
    SysFlag,
    tags_code,
)
from onelog.names import COMPACTED_TOPIC, SCHEDULE_TOPIC
from onelog.record.dispatch import (
    TAGS_NEEDLE,
    TagsCodes,
    deletion_of,
    is_dispatched,
    with_dispatch_properties,
)
from onelog.record.encode import Placed, PlacedRun
from onelog.record.entries import ENTRY
from onelog.record.forms import FORM_CODE, FORM_MASK
from onelog.record.layout import CRC_PROPERTY_BYTES
from onelog.store.commitlog import CommitLog
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.entering import AnyQueue, Entered, Entering, Held
from onelog.store.keyindex import Pending, pending_of, pending_run
from onelog.store.queues import check_queue_id
from onelog.store.refusals import Refusals

if TYPE_CHECKING:
    from onelog.store.tail import Gate

_log = logging.getLogger(__name__)
_STEP_BACK_MS_MAX = 60_000
"""A clock that goes back by more was wrong before."""
_HALF = 0x4
"""The bit that half and rolled-back messages have, and committed ones do not."""
_LOOKED_AT = (SCHEDULE_TOPIC, COMPACTED_TOPIC)
"""Topics whose entries say more than the form of a message."""


class Appender:
    """Of one store."""

    def __init__(
        self,
        log: CommitLog,
        entering: Entering,
        refusals: Refusals,
        clock: Clock,
        config: StoreConfig,
    ) -> None:
        self._log = log
        self._entering = entering
        self._queues = entering.queues
        self._refusals = refusals
        self._clock = clock
        self.tags_codes = TagsCodes(config.delay_levels)
        self._body_max = config.segment_bytes
        self._properties_max = PROPERTIES_BYTES_MAX
        if config.record_crc:
            self._properties_max -= CRC_PROPERTY_BYTES + 1
        self.last_ms = 0
        """When what was appended last was stored."""
        self.gate: Gate | None = None

    @overload
    def append(self, batches: Sequence[NewMessage]) -> list[Appended]: ...
    @overload
    def append(self, batches: Sequence[NewRun]) -> list[AppendedRun]: ...
    @overload
    def append(
        self, batches: Sequence[NewMessage | NewRun]
    ) -> Sequence[Appended | AppendedRun]: ...
    def append(self, batches: Sequence[Any]) -> Sequence[Appended | AppendedRun]:
        """Append batches of any topics with one write, all or none of them.

        Of each message it says where it is as an `Appended`, of each run as an `AppendedRun`.
        """
        if self._refusals.now is not None:
            self._entering.retry()
        store_ms = self._clock.now_ms()
        if store_ms < self.last_ms:
            store_ms = self._time_before_last(store_ms)
        if self.gate is not None and self.gate.is_for_successors():
            return self._append_special(batches, store_ms)
        by_topic, properties_max = self._queues.by_topic, self._properties_max
        queues: list[ConsumeQueue] = []
        firsts: list[int] = []
        last_topic, last_id = "", -1
        has_runs = NewRun in map(type, batches)
        try:
            for batch in batches:
                if has_runs and isinstance(batch, NewRun):
                    topic, queue_id, parts, source, shared, flags, _, _, _, _ = batch
                    if source or shared:
                        self._check_run_properties(batch)
                    entries, is_special = len(parts), flags & _HALF != 0
                else:
                    topic, queue_id, _, properties, _, flags, _, _, _, _, _, count, extra = batch
                    if len(properties) > properties_max:
                        self._refuse_properties(batch)
                    entries, is_special = 1, flags & _HALF or extra or count != 1
                if is_special:
                    self._release(queues, firsts)
                    return self._append_special(batches, store_ms)
                if queue_id != last_id or topic != last_topic:
                    try:
                        queue = by_topic[topic][queue_id]
                    except KeyError:
                        queue = self._queues.get(topic, queue_id)
                    last_topic, last_id = topic, queue_id
                queues.append(queue)
                first = queue.reserved
                if first + entries <= queue.allocated:  # `reserve`, without its call.
                    queue.reserved = first + entries
                else:
                    queue.reserve(entries)
                firsts.append(first)
            placed = self._log.append(batches, firsts, store_ms, has_runs)
        except BaseException as error:
            self._failed(error, queues, firsts)
            raise
        self.last_ms = store_ms
        if batches:
            self._enter(batches, queues, placed, store_ms, has_runs)
        if has_runs:
            return [*map(_appended, batches, firsts, placed)]
        return cast(list[Appended], placed)

    def append_own(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """`append` for the broker's own records, with head room on a disk that fills."""
        if self._refusals.now is None:
            return self.append(messages)
        with self._refusals.head_room():
            return self.append(messages)

    def _enter(
        self,
        batches: Sequence[NewMessage | NewRun],
        queues: list[ConsumeQueue],
        placed: list[Any],
        store_ms: int,
        has_runs: bool,
    ) -> None:
        """Put the entries of plain batches into their queues, and note their keys."""
        pack, code_of, needle = ENTRY.pack, self.tags_codes.of, TAGS_NEEDLE
        entries: dict[AnyQueue, list[bytes]] = {}
        has_properties = has_runs
        last: ConsumeQueue | None = None
        packed: list[bytes] = []
        for batch, queue, place in zip(batches, queues, placed, strict=True):
            if queue is not last:
                last = queue
                if queue in entries:
                    packed = entries[queue]
                else:
                    packed = entries[queue] = []
            if has_runs and isinstance(batch, NewRun):
                log_offsets, sizes = place
                packed += map(pack, log_offsets, sizes, self._codes(batch, store_ms))
                continue
            code = 0
            if batch[5] & FORM_MASK:
                code = FORM_CODE
                if batch[0] == COMPACTED_TOPIC:
                    code = code_of(batch[0], batch[3], store_ms)
                has_properties |= bool(batch[3])
            elif properties := batch[3]:
                has_properties = True
                before, found, rest = properties.partition(needle)
                if batch[0] == SCHEDULE_TOPIC or (found and before and before[-1] != 2):
                    code = code_of(batch[0], properties, store_ms)
                elif found:  # What it comes down to, nearly always.
                    code = tags_code(rest.partition(b"\x02")[0])
            log_offset, _, size = place
            packed.append(pack(log_offset, size, code))
        keys: list[Pending] = []
        if has_runs:
            keys = [*map(_pending, batches, placed, itertools.repeat(store_ms))]
        elif has_properties:
            keys.append(pending_of(cast(list[NewMessage], batches), placed, store_ms))
        self._hold_or_enter(placed[-1], store_ms, entries, keys)

    def _codes(self, run: NewRun, store_ms: int) -> Iterable[int]:
        """What the queue says of each message of a run."""
        topic, of = run.topic, self.tags_codes.of
        if run.sys_flag & FORM_MASK and topic != COMPACTED_TOPIC:
            return itertools.repeat(FORM_CODE)
        is_tagged = run.source.find(TAGS_NEEDLE) >= 0 or run.shared.find(TAGS_NEEDLE) >= 0
        if not is_tagged and topic not in _LOOKED_AT:
            return itertools.repeat(0)
        return [of(topic, each.properties, store_ms) for each in run.messages()]

    def _append_special(
        self, batches: Sequence[NewMessage | NewRun], store_ms: int
    ) -> list[Appended | AppendedRun]:
        """`append` for lists with inner batches, extra queues or parts of transactions.

        Or for queues whose predecessors wait to be deleted.
        """
        reserved: list[AnyQueue] = []
        firsts: list[int] = []
        by_topic, gate = self._queues.by_topic, self.gate

        def reserve(topic: str, queue_id: int, count: int) -> int:
            queue: AnyQueue
            if gate is not None and topic in gate.successors:
                check_queue_id(queue_id)
                queue = gate.successor(topic, queue_id)
            else:
                try:
                    queue = by_topic[topic][queue_id]
                except KeyError:
                    queue = self._queues.get(topic, queue_id)
            reserved.append(queue)
            firsts.append(queue.reserve(count))
            return firsts[-1]

        try:
            records, offsets, entered = [], [], []
            for message in itertools.chain.from_iterable(map(_messages, batches)):
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
            placed = cast(list[Appended], self._log.append(records, offsets, store_ms))
        except BaseException as error:
            self._failed(error, reserved, firsts)
            raise
        self.last_ms = store_ms
        entries: dict[AnyQueue, list[bytes]] = {}
        for message, targets, (log_offset, _, size) in zip(records, entered, placed, strict=True):
            code = FORM_CODE
            if not message.sys_flag & FORM_MASK or message.topic == COMPACTED_TOPIC:
                code = self.tags_codes.of(message.topic, message.properties, store_ms)
            packed = ENTRY.pack(log_offset, size, code) * message.inner_count
            for queue in targets:
                entries.setdefault(queue, []).append(packed)
        keys = [pending_of([*map(_without_lost_keys, records)], placed, store_ms)]
        self._hold_or_enter(placed[-1], store_ms, entries, keys)
        found = iter(placed)
        return [
            _together(each, found) if isinstance(each, NewRun) else next(found) for each in batches
        ]

    def _hold_or_enter(
        self,
        last: Placed,
        store_ms: int,
        entries: Mapping[AnyQueue, Sequence[bytes]],
        keys: Sequence[Pending],
        deleted: str = "",
    ) -> None:
        """Enter what was appended last; with a gate, once it is confirmed."""
        last_record = last[0] if isinstance(last, Appended) else last[0][-1]
        until = tuple.__new__(Entered, (int(self._log.end), last_record, store_ms))
        if self.gate is None:
            self._entering.enter(until, entries, keys, deleted)
        else:
            joined = {queue: (b"".join(packed),) for queue, packed in entries.items()}
            self.gate.hold(Held(until, joined, keys, deleted))

    def delete_topic(self, topic: str) -> None:
        """Remove a topic's queues. Its records stay in the log until retention takes them.

        A record in the log says so: whoever replays the topic's records must not bring them back.
        """
        if not self._queues.by_topic.get(topic):
            return
        if self._refusals.now is not None:
            self._entering.retry()
        if self.gate is not None:
            self.gate.is_for_successors()
        store_ms = max(self._clock.now_ms(), self.last_ms)
        (place,) = self._log.append([deletion_of(topic)], [0], store_ms)
        self.last_ms = store_ms
        self._hold_or_enter(place, store_ms, {}, (), topic)

    def _time_before_last(self, now_ms: int) -> int:
        """The store time of an append for which the clock says less than for the one before.

        Store times grow with the log, so that messages are found by time: a small step back is
        waited out. A large one is a clock that was ahead, and was corrected: to wait for it again
        would give all messages the same time until then, and none of them would expire.
        """
        back_ms = self.last_ms - now_ms
        if back_ms <= _STEP_BACK_MS_MAX:
            return self.last_ms
        _log.warning(
            "the clock was set back by %d s; messages are stored with its time", back_ms // 1000
        )
        return now_ms

    def _failed(
        self, error: BaseException, queues: Sequence[AnyQueue], firsts: Sequence[int]
    ) -> None:
        """Undo an append."""
        self._release(queues, firsts)
        self._refusals.failed(error, int(self._log.end))

    def _release(self, queues: Sequence[AnyQueue], firsts: Sequence[int]) -> None:
        """Give back what was reserved for an append that failed, and no more than that."""
        first_of: dict[AnyQueue, int] = {}
        for queue, offset in zip(queues, firsts, strict=False):
            first_of.setdefault(queue, offset)
        for queue in set(queues):
            queue.release(first_of.get(queue, queue.reserved))

    def _check_properties(self, message: NewMessage) -> None:
        if len(message.properties) > self._properties_max:
            self._refuse_properties(message)

    def _check_run_properties(self, run: NewRun) -> None:
        # How large bodies may be is a rule for clients, not for what the broker has to keep: its
        # own records, and messages that were taken when the rule was another.
        if not run.fits(self._body_max, self._properties_max):
            for message in run.messages():
                self._check_properties(message)

    def _refuse_properties(self, message: NewMessage) -> NoReturn:
        raise PropertiesTooLargeError(
            f"the properties of a message to {message.topic!r} have {len(message.properties)} "
            f"bytes; the limit is {self._properties_max}"
        )


def _messages(batch: NewMessage | NewRun) -> Sequence[NewMessage]:
    return batch.messages() if isinstance(batch, NewRun) else (batch,)


def _appended(batch: NewMessage | NewRun, first: int, place: Placed) -> Appended | AppendedRun:
    """Where a batch is, as whoever appended it is told."""
    if not isinstance(batch, NewRun):
        return cast(Appended, place)
    log_offsets, sizes = cast(PlacedRun, place)
    size = log_offsets[-1] + sizes[-1] - log_offsets[0]
    return AppendedRun(log_offsets[0], first, size, log_offsets)


def _together(run: NewRun, places: Iterator[Appended]) -> AppendedRun:
    """The same for a run whose messages were appended one by one."""
    mine = [*itertools.islice(places, len(run.parts))]
    size = mine[-1].log_offset + mine[-1].size - mine[0].log_offset
    return AppendedRun(
        mine[0].log_offset, mine[0].queue_offset, size, [each.log_offset for each in mine]
    )


def _pending(batch: NewMessage | NewRun, place: Placed, store_ms: int) -> Pending:
    if isinstance(batch, NewRun):
        return pending_run(batch, cast(PlacedRun, place)[0], store_ms)
    return pending_of((batch,), (cast(Appended, place),), store_ms)


def _without_lost_keys(message: NewMessage) -> NewMessage:
    """A message that was rolled back is found under no key."""
    if message.sys_flag & TRANSACTION_MASK == SysFlag.ROLLED_BACK:
        return message._replace(properties=b"")
    return message
