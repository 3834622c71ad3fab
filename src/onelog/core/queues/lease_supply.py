"""What a group could be handed next from a queue: messages that came back, then unread ones.

Most want messages, each of which is a record of its own when it leaves, and may have a filter. Who
wants them `as_stored` (share groups of Kafka) gets records as they lie in the log: a batch may hold
thousands of messages, of which the reader is given some, and told which. Such a record leaves once,
however many of its messages are handed out, and what is no message is never handed out: the end of
a transaction, and for readers of committed messages what was aborted.

It looks and decides, and leaves the leases as they are: `Found` says what to hand out and what else
the look has shown. Records that are not in the page cache are never waited for; the answer is then
`cold`, and says what a worker has to read before the question is asked again.

Invariant: what is found is in the order of the queue, and nothing that is wanted lies between it
and `next_offset` without being in it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple

from onelog.core.cursors.forms import offset_in
from onelog.core.cursors.reading import QueueReader, ReadRequest, candidates
from onelog.core.cursors.unpacking import ColdError
from onelog.core.durable.waiting import Key
from onelog.core.filters.tags import Subscription
from onelog.core.queues.lease_ledger import IN_PLACE, LeaseLedger, ReturnPolicy
from onelog.errors import OffsetOutOfRangeError, StoreCorruptError, StoreFailedError
from onelog.message import Message
from onelog.record.decode import decode_message, size_at
from onelog.record.forms import FORM_CODE, FORM_MASK, Form, form_of
from onelog.store.message_store import MessageStore
from onelog.store.outcomes import Aborted
from onelog.store.reader import Fetched, FetchStatus

_SCANS_MAX = 8
"""How many stretches of messages that nobody wants one look passes over."""


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
    """Whether records are wanted as they are . What follows is for such only."""
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
class _Returned:
    """Messages that came back, and can be handed out."""

    offsets: list[int] = field(default_factory=list)
    records: list[memoryview] = field(default_factory=list)
    size: int = 0
    last_at: int = -1
    """Where in the log the last of the records is."""
    deleted: list[int] = field(default_factory=list)
    cold: Sequence[tuple[int, int]] = ()
    """What has to be read first."""
    is_late: bool = False
    """Whether filters have no more time."""
    is_cut: bool = False
    """Whether what was found leaves before the rest is looked at."""
    trouble: StoreFailedError | None = None


class LeaseSupply:
    """Finds messages for leases."""

    def __init__(self, store: MessageStore, reader: QueueReader) -> None:
        self._store = store
        self._reader = reader

    def find(
        self,
        ledger: LeaseLedger,
        count_max: int,
        bytes_max: int,
        request: LeaseRequest,
        cold_ok: bool,
    ) -> Found:
        """Messages that came back, and if there are too few, unread ones; at least one of any."""
        back = self._returned(ledger, count_max, bytes_max, request, cold_ok)
        again, missing = back.offsets, not back.offsets
        if back.cold and missing:
            ledger.keep_returned(back.deleted)
            return Found(ledger.next, cold=back.cold)
        found = Found(ledger.next, again, (), back.records, back.deleted)
        window = request.window_max - ledger.window
        count, room = min(count_max - len(again), window), bytes_max - back.size
        if back.is_cut or count <= 0 or (again and room <= 0):
            return found._replace(later=back.is_late and missing)
        try:
            begin, result = self._unread(ledger, count, room, request, cold_ok)
        except StoreFailedError:
            if missing:
                ledger.keep_returned(back.deleted)
                raise
            return found
        if result.status is FetchStatus.FOUND:
            if request.as_stored:
                end = min(result.next_offset, begin + (window if request.whole else count))
                return self._with_records(found, ledger, back.last_at, begin, end, result, request)
            fresh = self._addresses(ledger, begin, result, request.subscription)
            records = [*found.records, *result.slices]
            return found._replace(next_offset=result.next_offset, fresh=fresh, records=records)
        is_late = result.status is FetchStatus.LATER
        if is_late or result.status is FetchStatus.COLD:
            if missing:
                found = found._replace(cold=result.ranges, later=is_late)
            return found._replace(next_offset=begin)
        if back.trouble is not None and missing:
            ledger.keep_returned(back.deleted)
            raise back.trouble
        return found._replace(next_offset=result.next_offset)

    def _returned(
        self,
        ledger: LeaseLedger,
        count_max: int,
        bytes_max: int,
        request: LeaseRequest,
        cold_ok: bool,
    ) -> _Returned:
        """Up to so many messages that came back; the first that is wanted in any case."""
        back, left = _Returned(), list[int]()
        looked_at = ledger.next_returned(count_max) if ledger.returned else []
        for index, offset in enumerate(looked_at):
            back.is_late = back.is_late or not self._has_time(request)
            entry = None if back.is_late else self._entry(ledger, offset)
            if entry is None and not back.is_late:
                back.deleted.append(offset)
                continue
            if entry is not None and request.as_stored and entry[0] == back.last_at:
                back.offsets.append(offset)
                continue
            if entry is None or not self._is_next(back, entry, bytes_max, request, cold_ok):
                back.is_cut = True  # What was found leaves first.
                left += looked_at[index:]
                break
            at, size, code = entry
            try:
                record = self._record(ledger, offset, at, size, as_stored=request.as_stored)
            except ColdError as cold:
                back.cold, back.is_cut = cold.ranges, True
                left += looked_at[index:]
                break
            except OffsetOutOfRangeError:  # It was compacted.
                back.deleted.append(offset)
                continue
            except StoreFailedError as error:
                back.trouble = error
                left.append(offset)
                continue
            has_room = back.size + len(record) <= bytes_max or not back.offsets
            if has_room and _wants(request.subscription, code, record):
                back.offsets.append(offset)
                back.records.append(record)
                back.last_at = at
                back.size += len(record)
            else:
                left.append(offset)
        ledger.keep_returned(left)
        return back

    def _is_next(
        self,
        back: _Returned,
        entry: tuple[int, int, int],
        bytes_max: int,
        request: LeaseRequest,
        cold_ok: bool,
    ) -> bool:
        """Whether a record that came back can be read now, and may be added."""
        at, size, _ = entry
        if not cold_ok and not self._store.is_warm(at, size):
            back.cold = [(at, size)]
            return False
        return not (request.as_stored and back.offsets and back.size + size > bytes_max)

    def _has_time(self, request: LeaseRequest) -> bool:
        wanted = request.subscription
        return wanted is None or wanted.predicate is None or self._reader.filter_time.left()

    def find_again(self, ledger: LeaseLedger, offsets: Sequence[int]) -> Found:
        """The same messages once more."""
        found: dict[int, memoryview] = {}
        for offset in offsets:
            record = self._read_now(ledger, offset)
            if record is not None:
                found[offset] = record
        gone = [offset for offset in offsets if offset not in found]
        return Found(ledger.next, list(found), (), list(found.values()), gone)

    def entry_at(self, ledger: LeaseLedger, offset: int) -> int | None:
        """Where in the log a message is; None if retention has deleted it."""
        entry = self._entry(ledger, offset)
        return None if entry is None else entry[0]

    def message(self, ledger: LeaseLedger, offset: int) -> Message | None:
        """A message, decoded; None if retention has deleted it, or it is damaged."""
        entry = self._entry(ledger, offset)
        try:
            if entry is None:
                return None
            message = self._store.message_at(entry[0])
            if not message.sys_flag & FORM_MASK:
                return message
            return decode_message(self._record(ledger, offset, *entry[:2], now=True))
        except (OffsetOutOfRangeError, StoreCorruptError):
            return None

    def _read_now(self, ledger: LeaseLedger, offset: int) -> memoryview | None:
        """The record of one message; None if retention or compaction has deleted it."""
        entry = self._entry(ledger, offset)
        try:
            return entry and self._record(ledger, offset, *entry[:2], now=True)
        except OffsetOutOfRangeError:
            return None

    def _record(
        self,
        ledger: LeaseLedger,
        offset: int,
        at: int,
        size: int,
        *,
        now: bool = False,
        as_stored: bool = False,
    ) -> memoryview:
        """The record of one message, as it is wanted; see `QueueReader.message_in`."""
        record = self._store.read_record(at, size)
        if as_stored:
            return self._reader.record_in(offset, record)
        return self._reader.message_in(ledger.topic, ledger.queue_id, offset, record, now=now)[1]

    def _entry(self, ledger: LeaseLedger, offset: int) -> tuple[int, int, int] | None:
        """Where a message lies; None if retention has deleted it, or damage lost it."""
        found = self._store.entry_at(ledger.topic, ledger.queue_id, offset)
        return found or self._reader.carried(ledger.topic, ledger.queue_id, offset)

    def _unread(
        self, ledger: LeaseLedger, count: int, room: int, request: LeaseRequest, cold_ok: bool
    ) -> tuple[int, Fetched]:
        """What the group was never given, and where that begins."""
        read = ReadRequest(
            ledger.topic,
            ledger.queue_id,
            ledger.next,
            count,
            room,
            request.subscription,
            cold_ok,
            as_stored=request.as_stored,
            committed=request.committed,
        )
        for stretch in islice(self._reader.stretches(read), _SCANS_MAX):
            if stretch[1].status is FetchStatus.FOUND:
                break
        return stretch

    def _with_records(
        self,
        found: Found,
        ledger: LeaseLedger,
        last_at: int,
        begin: int,
        end: int,
        result: Fetched,
        request: LeaseRequest,
    ) -> Found:
        """Add records as they were read, and their messages from `begin` to `end`."""
        aborted: Sequence[Aborted] = ()
        if request.committed:
            aborted = self._reader.aborted(ledger.topic, ledger.queue_id, begin, end)
        messages = _messages(ledger, result.slices, aborted)
        slices = list(result.slices)
        if result.ranges[0][0] == last_at:  # The batch that the last ones that came back are in.
            slices[0] = slices[0][size_at(slices[0]) :]
        fresh = chain.from_iterable(
            range(max(begin, each.start), min(end, each.stop)) for each in messages
        )
        records = [*found.records, *(each for each in slices if len(each))]
        return found._replace(next_offset=end, fresh=list(fresh), records=records)

    def _addresses(
        self,
        ledger: LeaseLedger,
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
                inside += size_at(records, inside)
        codes = None if subscription is None else subscription.codes
        found = candidates(self._store, ledger.topic, ledger.queue_id, begin, end - begin, codes)
        return [entry_at for entry_at, at, _ in found if at in starts]


def _wants(subscription: Subscription | None, code: int, record: memoryview) -> bool:
    if subscription is None:
        return True
    if code != FORM_CODE and not subscription.wants_code(code):
        return False
    if code != FORM_CODE and subscription.predicate is None:
        return True
    return subscription.wants(decode_message(record).properties)


def _messages(
    ledger: LeaseLedger, slices: Sequence[memoryview], aborted: Sequence[Aborted]
) -> Iterator[range]:
    """The offsets of the messages in each record that has any."""
    for view in slices:
        at = 0
        while at < len(view):
            message = decode_message(view, at)
            at += message.size
            first = offset_in(ledger.topic, ledger.queue_id, message)
            if form_of(message.sys_flag) != Form.KAFKA:
                yield range(first, first + message.inner_count)
                continue
            from onelog.record.forms import kafka  # Few need what reads this form.

            batch = kafka.read_head(message.body)
            is_aborted = any(
                each.producer_id == batch.producer_id
                and each.first_offset <= first <= each.last_offset
                for each in aborted
            )
            if not batch.is_control and not is_aborted:
                yield range(first, first + batch.last_offset_delta + 1)
