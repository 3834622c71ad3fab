"""What a group could be handed next from a queue, for readers who take records as they are stored.

Other leases are of messages, each of which is a record of its own when it leaves (`supply`). Here a
record leaves as it lies in the log: a batch may hold thousands of messages, of which the reader is
given some, and told which. A record leaves once, however many of its messages are handed out.

What is no message is never handed out: the end of a transaction, and for readers of committed
messages what was aborted.

Invariant: as in `supply`; records are in the order of the queue, each of them once, and every
message that is handed out is in one of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from onelog.core.compaction.compacted import moved_records
from onelog.core.cursors.forms import offset_in
from onelog.core.cursors.reading import QueueReader
from onelog.core.queues.lease_ledger import LeaseLedger
from onelog.core.queues.lease_supply import Found, LeaseRequest
from onelog.errors import StoreFailedError
from onelog.record.decode import decode_message
from onelog.record.forms import Form, form_of
from onelog.store.message_store import MessageStore
from onelog.store.outcomes import Aborted
from onelog.store.reader import Fetched, FetchStatus

_SCANS_MAX = 8
"""How many stretches without a message one look passes over."""


@dataclass(slots=True)
class _Again:
    """Messages that came back, and the records that hold them."""

    offsets: list[int] = field(default_factory=list)
    records: list[memoryview] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)
    last_at: int = -1
    """Where in the log the last of the records is."""
    size: int = 0
    cold: tuple[int, int] | None = None
    """The record that has to be read first."""
    is_full: bool = False
    """Whether not all that came back was looked at."""
    trouble: StoreFailedError | None = None


@dataclass(eq=False)
class StoredSupply:
    """Finds records for leases of the messages in them."""

    _store: MessageStore
    _reader: QueueReader

    def find(
        self,
        queue: LeaseLedger,
        count_max: int,
        bytes_max: int,
        request: LeaseRequest,
        cold_ok: bool,
    ) -> Found:
        """See `Supply.find`."""
        again = self._again(queue, count_max, bytes_max, cold_ok)
        if again.cold is not None and not again.offsets:
            queue.keep_returned(again.deleted)
            return Found(queue.next, cold=[again.cold])
        found = Found(queue.next, again.offsets, (), again.records, again.deleted)
        window = request.window_max - queue.window
        count, room = min(count_max - len(again.offsets), window), bytes_max - again.size
        if again.is_full or count <= 0 or (again.offsets and room <= 0):
            return found
        try:
            begin, result = self._unread(queue, count, room, request.committed, cold_ok)
        except StoreFailedError as error:
            begin, result, again.trouble = queue.next, None, error
        if result is not None and result.status is FetchStatus.FOUND:
            end = min(result.next_offset, begin + (window if request.whole else count))
            aborted: Sequence[Aborted] = ()
            if request.committed:
                aborted = self._reader.aborted(queue.topic, queue.queue_id, begin, end)
            messages = _messages(queue, result.slices, aborted)
            return _with_unread(found, again.last_at, begin, end, result, messages)
        if again.offsets:
            return found
        if again.trouble is not None:
            queue.keep_returned(again.deleted)
            raise again.trouble
        assert result is not None
        cold = result.ranges if result.status is FetchStatus.COLD else ()
        return found._replace(next_offset=begin if cold else result.next_offset, cold=cold)

    def _again(self, queue: LeaseLedger, count_max: int, bytes_max: int, cold_ok: bool) -> _Again:
        """Up to so many messages that came back; the first in any case."""
        again, store = _Again(), self._store
        looked_at = queue.next_returned(count_max) if queue.returned else []
        for index, offset in enumerate(looked_at):
            address = queue.topic, queue.queue_id, offset
            entry = store.entry_at(*address)
            is_left = entry is None
            if is_left:
                entry = self._reader.carried(*address)
            if entry is None:
                again.deleted.append(offset)
                continue
            at, size, _ = entry
            if at != again.last_at:
                is_cold = not cold_ok and not store.is_warm(at, size)
                if is_cold or (again.offsets and again.size + size > bytes_max):
                    again.cold, again.is_full = (at, size) if is_cold else None, True
                    queue.keep_returned(looked_at[index:])
                    break
                try:
                    record = store.read_record(at, size)
                except StoreFailedError as error:
                    again.trouble = error
                    queue.keep_returned([offset])
                    continue
                if is_left:
                    record, _ = moved_records(record)
                    if int.from_bytes(record[20:28], "big") > offset:
                        again.deleted.append(offset)  # By compaction; this is what follows.
                        continue
                again.records.append(record)
                again.last_at = at
                again.size += size
            again.offsets.append(offset)
        return again

    def _unread(
        self, queue: LeaseLedger, count: int, room: int, committed: bool, cold_ok: bool
    ) -> tuple[int, Fetched]:
        """The next records that the group was never given, and where they begin."""
        begin = queue.next
        for _ in range(_SCANS_MAX):
            result = self._reader.read(
                queue.topic,
                queue.queue_id,
                begin,
                count,
                room,
                cold_ok=cold_ok,
                as_stored=True,
                committed=committed,
            )
            if result.status in (FetchStatus.FOUND, FetchStatus.COLD):
                break
            if result.next_offset <= begin:
                break
            begin = result.next_offset
        return begin, result


def _with_unread(
    found: Found, last_at: int, begin: int, end: int, result: Fetched, messages: Iterable[range]
) -> Found:
    """Add what was read: its messages from `begin` to `end`, and the records that hold them."""
    slices = list(result.slices)
    if result.ranges[0][0] == last_at:  # The batch that the last ones that came back are in.
        slices[0] = slices[0][int.from_bytes(slices[0][:4], "big") :]
    fresh = chain.from_iterable(
        range(max(begin, each.start), min(end, each.stop)) for each in messages
    )
    records = [*found.records, *(each for each in slices if len(each))]
    return found._replace(next_offset=end, fresh=list(fresh), records=records)


def _messages(
    queue: LeaseLedger, slices: Sequence[memoryview], aborted: Sequence[Aborted]
) -> Iterator[range]:
    """The offsets of the messages in each record that has any."""
    for view in slices:
        at = 0
        while at < len(view):
            message = decode_message(view, at)
            at += message.size
            first = offset_in(queue.topic, queue.queue_id, message)
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
