"""What a group could be handed next from a queue: messages that came back, then unread ones.

It looks and decides, and leaves the leases as they are: `Found` says what to hand out and what else
the look has shown. Records that are not in the page cache are never waited for; the answer is then
`cold`, and says what a worker has to read before the question is asked again.

Invariant: what is found is in the order of the queue, and nothing that is wanted lies between it
and `next_offset` without being in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onelog.core.cursors.reading import QueueReader, candidates
from onelog.core.cursors.unpacking import ColdError
from onelog.core.durable.waiting import Key
from onelog.core.filters.tags import Subscription
from onelog.core.queues.lease_ledger import IN_PLACE, LeaseLedger, ReturnPolicy
from onelog.errors import OffsetOutOfRangeError, StoreCorruptError, StoreFailedError
from onelog.message import Message
from onelog.record.decode import decode_message
from onelog.record.forms import FORM_CODE, FORM_MASK
from onelog.store.message_store import MessageStore
from onelog.store.reader import Fetched, FetchStatus

_SCANS_MAX = 8
"""How many stretches of messages that nobody wants one look passes over."""
_ENDS = (FetchStatus.FOUND, FetchStatus.COLD, FetchStatus.LATER)


BYTES_MAX = 256 << 10


class LeaseRequest(NamedTuple):
    """What a member of a group asks for, and how the group wants its messages."""

    group: str
    places: Callable[[], Sequence[Key]]
    """The queues to look into, in this order, as they are at the moment; or why it may not."""
    keys: tuple[Key, ...]
    """What to wait for where they have nothing: queues, or ANY_QUEUE of a topic."""
    count_max: int
    """0: nothing is leased, and the answer comes as soon as there is something."""
    invisible_ms: int
    policy: ReturnPolicy = IN_PLACE
    subscription: Subscription | None = None
    attempt_id: str | None = None
    """Of leases in order: who says the same again gets the same again. Else: who has the lease."""
    from_last: bool = False
    """Where a group starts that has no position: at the newest message, else at the oldest."""
    bytes_max: int = BYTES_MAX
    as_stored: bool = False
    """Whether records are wanted as they are (see `stored`). What follows is for such only."""
    committed: bool = False
    """Whether messages of transactions wait for the end, and of aborted ones are left out."""
    window_max: int = 1 << 62
    """How far what is handed out may be ahead of what is finished."""
    whole: bool = False
    """Whether the last batch is handed out to its end, beyond `count_max`."""


class Found(NamedTuple):
    """What can be handed out: `again` was out before, `fresh` was not; `records` are of both.

    `next_offset` is where the group has read to then, also if it wanted none of it; where it is
    smaller than before, the queue is shorter than the group thinks. `deleted` cannot be had again.
    `later` says that the time for filters was used up before anything was found.
    """

    next_offset: int
    again: Sequence[int] = ()
    fresh: Sequence[int] = ()
    records: Sequence[memoryview] = ()
    deleted: Sequence[int] = ()
    cold: Sequence[tuple[int, int]] = ()
    later: bool = False


@dataclass(slots=True)
class _CameBack:
    """Messages that came back, and can be handed out."""

    room: int
    """For so many bytes more."""
    offsets: list[int] = field(default_factory=list)
    records: list[memoryview] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)
    cold: Sequence[tuple[int, int]] = ()
    is_late: bool = False
    """Whether filters have no more time."""
    is_cut: bool = False
    """Whether what was found leaves before the rest is looked at."""
    trouble: StoreFailedError | None = None


class Supply:
    """Finds messages for leases."""

    def __init__(self, store: MessageStore, reader: QueueReader) -> None:
        self._store = store
        self._reader = reader

    def find(
        self,
        queue: LeaseLedger,
        count_max: int,
        bytes_max: int,
        request: LeaseRequest,
        cold_ok: bool,
    ) -> Found:
        """Messages that came back, and if there are too few, unread ones; at least one of any."""
        back = self._came_back(queue, count_max, bytes_max, request, cold_ok)
        again, records, deleted = back.offsets, back.records, back.deleted
        if back.cold:
            return Found(queue.next, cold=back.cold)
        if back.is_cut or len(again) >= count_max or back.room <= 0:
            return Found(queue.next, again, (), records, deleted, later=back.is_late and not again)
        try:
            begin, result = self._unread(queue, count_max - len(again), back.room, request, cold_ok)
        except StoreFailedError:
            if not again:
                queue.keep_returned(deleted)
                raise
            return Found(queue.next, again, (), records, deleted)
        if result.status in (FetchStatus.COLD, FetchStatus.LATER):
            missing = () if again else (result.ranges, result.status is FetchStatus.LATER)
            return Found(begin, again, (), records, deleted, *missing)
        if result.status is not FetchStatus.FOUND:
            if back.trouble is not None and not again:
                queue.keep_returned(deleted)
                raise back.trouble
            return Found(result.next_offset, again, (), records, deleted)
        fresh = self._addresses(queue, begin, result, request.subscription)
        return Found(result.next_offset, again, fresh, records + result.slices, deleted)

    def _came_back(
        self,
        queue: LeaseLedger,
        count_max: int,
        bytes_max: int,
        request: LeaseRequest,
        cold_ok: bool,
    ) -> "_CameBack":
        back = _CameBack(bytes_max)
        left: list[int] = []
        looked_at = queue.next_returned(count_max) if queue.returned else []
        for offset in looked_at:
            back.is_late = back.is_late or not self._has_time(request)
            back.is_cut |= back.is_late
            if back.is_cut:
                left.append(offset)
                continue
            entry = self._entry(queue, offset)
            if entry is None:
                back.deleted.append(offset)
                continue
            at, size, code = entry
            try:
                if not cold_ok and not self._store.is_warm(at, size):
                    queue.keep_returned(looked_at)
                    return _CameBack(0, cold=[(at, size)])
                record = self._read(queue, offset, at, size)
            except ColdError as cold:
                if not back.offsets:
                    queue.keep_returned(looked_at)
                    return _CameBack(0, cold=cold.ranges)
                back.is_cut = True  # What was found leaves first.
                left.append(offset)
                continue
            if not isinstance(record, memoryview):
                back.trouble = record or back.trouble
                (back.deleted if record is None else left).append(offset)
            elif _wants(request.subscription, code, record) and (
                len(record) <= back.room or not back.offsets
            ):
                back.offsets.append(offset)
                back.records.append(record)
                back.room -= len(record)
            else:
                left.append(offset)
        queue.keep_returned(left)
        return back

    def _has_time(self, request: LeaseRequest) -> bool:
        wanted = request.subscription
        return wanted is None or wanted.predicate is None or self._reader.filter_time.left()

    def find_again(self, queue: LeaseLedger, offsets: Sequence[int]) -> Found:
        """The same messages once more."""
        found: dict[int, memoryview] = {}
        for offset in offsets:
            entry = self._entry(queue, offset)
            record = None if entry is None else self._read(queue, offset, *entry[:2], now=True)
            if isinstance(record, StoreFailedError):
                raise record
            if record is not None:
                found[offset] = record
        gone = [offset for offset in offsets if offset not in found]
        return Found(queue.next, list(found), (), list(found.values()), gone)

    def entry_at(self, queue: LeaseLedger, offset: int) -> int | None:
        """Where in the log a message is; None if retention has deleted it."""
        entry = self._entry(queue, offset)
        return None if entry is None else entry[0]

    def message(self, queue: LeaseLedger, offset: int) -> Message | None:
        """A message, decoded; None if retention has deleted it, or it is damaged."""
        entry = self._entry(queue, offset)
        try:
            if entry is None:
                return None
            message = self._store.message_at(entry[0])
            if not message.sys_flag & FORM_MASK:
                return message
            return decode_message(self._record(queue, offset, *entry[:2], now=True))
        except (OffsetOutOfRangeError, StoreCorruptError):
            return None

    def _read(
        self, queue: LeaseLedger, offset: int, at: int, size: int, *, now: bool = False
    ) -> memoryview | StoreFailedError | None:
        """`_record`; None if it was compacted; or why the disk cannot read it."""
        try:
            return self._record(queue, offset, at, size, now=now)
        except OffsetOutOfRangeError:
            return None
        except StoreFailedError as error:
            return error

    def _record(
        self, queue: LeaseLedger, offset: int, at: int, size: int, *, now: bool
    ) -> memoryview:
        """The record of one message, as RocketMQ's readers get it; see `message_in`."""
        record = self._store.read_record(at, size)
        return self._reader.message_in(queue.topic, queue.queue_id, offset, record, now=now)[1]

    def _entry(self, queue: LeaseLedger, offset: int) -> tuple[int, int, int] | None:
        """Where a message lies; None if retention has deleted it, or damage lost it."""
        found = self._store.entry_at(queue.topic, queue.queue_id, offset)
        return found or self._reader.carried(queue.topic, queue.queue_id, offset)

    def _unread(
        self,
        queue: LeaseLedger,
        count_max: int,
        bytes_max: int,
        request: LeaseRequest,
        cold_ok: bool,
    ) -> tuple[int, Fetched]:
        """The next messages that the group was never given, and where they were looked for."""
        begin = queue.next
        for _ in range(_SCANS_MAX):
            result = self._reader.read(
                queue.topic,
                queue.queue_id,
                begin,
                count_max,
                bytes_max,
                request.subscription,
                cold_ok=cold_ok,
            )
            if result.status in _ENDS or result.next_offset <= begin:
                break
            begin = result.next_offset
        return begin, result

    def _addresses(
        self,
        queue: LeaseLedger,
        begin: int,
        result: Fetched,
        subscription: Subscription | None,
    ) -> Sequence[int]:
        """The offsets of the messages in a result; a record that queues share knows but one."""
        if result.offsets:
            return result.offsets
        end = result.next_offset
        if end - begin == result.messages:
            return range(begin, end)
        starts: set[int] = set()
        for at, size in result.ranges:
            records = self._store.record(at, size)
            inside = 0
            while inside < size:
                starts.add(at + inside)
                inside += int.from_bytes(records[inside : inside + 4], "big")
        codes = None if subscription is None else subscription.codes
        found = candidates(self._store, queue.topic, queue.queue_id, begin, end - begin, codes)
        return [entry_at for entry_at, at, _ in found if at in starts]


def _wants(subscription: Subscription | None, code: int, record: memoryview) -> bool:
    if subscription is None:
        return True
    if code != FORM_CODE and not subscription.wants_code(code):
        return False
    if code != FORM_CODE and subscription.predicate is None:
        return True
    return subscription.wants(decode_message(record).properties)
