"""The tail of a log: what is in it, and not confirmed by replicas yet, or is another's.

    log      | entered                  | came as bytes        | appended here        |
             ^ start                    ^ confirmed            ^ raw_until            ^ end
    queues   | know of it               | nothing              | offsets are reserved |

A store with a gate writes to the log as any other. What belongs into queues and index waits there,
until somebody confirms that enough replicas have it: packed entries of what this process appended;
of what came as bytes (from a master, or found when the store was opened) only where it ends, for
these are read from the log again (`received`). So the tail can be cut without a trace elsewhere.

A topic's deletion waits like everything else. What is appended to the topic behind it goes to
queues that begin with 0 and are not there yet: successors, which only count.

Invariant: all of it is for the one thread that appends.
"""

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from onelog.errors import OffsetOutOfRangeError, StoreBusyError, StoreClosedError, StoreError
from onelog.message import LogOffset
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.cutting import Cut, pieces_behind, put_aside
from onelog.store.entering import AnyQueue, Entered, Held, Successor
from onelog.store.flush import OnFlushed
from onelog.store.received import Received
from onelog.store.recovery import deleted_topics, rebuild
from onelog.store.segment import Buffer

if TYPE_CHECKING:
    from onelog.store.message_store import MessageStore

_log = logging.getLogger(__name__)
_TOUCHED_MAX = 1_000


class Gate:
    """What waits, and who waits for it."""

    def __init__(self, confirmed: int, raw_until: int) -> None:
        self.confirmed = confirmed
        self.raw_until = raw_until
        """Up to here the log is known by its bytes only."""
        self.successors: dict[str, dict[int, Successor]] = {}
        """By topic whose deletion waits: the queues that it has behind that."""
        self._deletions: dict[str, int] = {}
        self._held: deque[Held] = deque()
        self._waiters: list[tuple[int, OnFlushed]] = []

    @property
    def has_raw(self) -> bool:
        """Whether the log has a tail that came as bytes: nobody knows the queues' ends then."""
        return self.confirmed < self.raw_until

    @property
    def end(self) -> int:
        """Up to where the one who appends knows the log."""
        return self._held[-1].until.end if self._held else self.confirmed

    def is_for_successors(self) -> bool:
        """Whether an append has to look for queues whose predecessors wait to be deleted."""
        if self.has_raw:
            raise StoreBusyError("the log has a tail that replicas have not confirmed yet")
        return bool(self.successors)

    def hold(self, held: Held) -> None:
        """Keep what was appended last."""
        self._held.append(held)
        if held.deleted:
            self.successors[held.deleted] = {}
            self._deletions[held.deleted] = self._deletions.get(held.deleted, 0) + 1

    def pass_until(self, log_offset: int) -> Iterator[Held]:
        """What can be entered now, in its order."""
        while self._held and self._held[0].until.end <= log_offset:
            held = self._held.popleft()
            self.confirmed = held.until.end
            yield held

    def successors_of(self, deleted: str) -> Mapping[int, Successor]:
        """A deletion was carried out: whose places are to be those of the topic's queues now."""
        self._deletions[deleted] -= 1
        if self._deletions[deleted]:
            return {}  # They were deleted, too.
        del self._deletions[deleted]
        return self.successors.pop(deleted)

    def successor(self, topic: str, queue_id: int) -> Successor:
        """A queue of a topic whose deletion waits."""
        queues = self.successors[topic]
        if queue_id not in queues:
            queues[queue_id] = Successor(topic, queue_id)
        return queues[queue_id]

    def forget_held(self) -> None:
        """What waits is not this process's to know any more: give the places back."""
        queues = {queue for held in self._held for queue in held.entries}
        self._held.clear()
        self.successors.clear()
        self._deletions.clear()
        for queue in queues:
            if isinstance(queue, ConsumeQueue):
                queue.release(queue.end)

    # -- who waits -----------------------------------------------------------------------------

    def when_confirmed(self, log_offset: int, callback: OnFlushed) -> None:
        """Call back once queues know everything below `log_offset`, or never will."""
        if log_offset <= self.confirmed:
            callback(None)
        else:
            self._waiters.append((log_offset, callback))

    def tell(self) -> None:
        """Call back who has waited long enough."""
        if self._waiters:
            ready = [call for offset, call in self._waiters if offset <= self.confirmed]
            self._waiters = [each for each in self._waiters if each[0] > self.confirmed]
            for call in ready:
                call(None)

    def give_up(self, error: StoreError) -> None:
        """Tell everybody who waits that it will not come."""
        waiters, self._waiters = self._waiters, []
        for _, call in waiters:
            call(error)


class Tail:
    """Of one store."""

    def __init__(self, store: "MessageStore", *, gated: bool) -> None:
        self._store = store
        self._log = store.log
        self._entering = store.entering
        self._appender = store.appender
        self._received = Received(store.log, store.queue_table, store.index, store.tags_codes)
        self._received.restart(self._entering.entered)
        if gated:
            self._appender.gate = Gate(self._entering.entered.end, int(store.log.end))

    def set_gated(self, on: bool) -> None:
        """From now on what is appended waits for `confirm`, or does so no more."""
        gate, end = self._appender.gate, int(self._log.end)
        if on and gate is None:
            self._appender.gate = Gate(end, end)
        elif not on and gate is not None:
            self.drop_partial()
            self.confirm(int(self._log.end))
            self.drop_partial()  # Also decides about what is held back.
            assert gate.confirmed == self._log.end
            self._appender.gate = None

    def confirm(self, log_offset: int) -> set[tuple[str, int]] | None:
        """Enter whole records below a log offset into queues and index.

        Returns which queues got some, or None for many. `StoreError` if the disk has no room for
        what a replica has to enter: to be tried again.
        """
        gate = self._appender.gate
        if gate is None:
            return set()
        touched: set[AnyQueue] = set()
        if gate.has_raw:
            touched |= self._enter_received(gate, log_offset)
        if not gate.has_raw:
            for held in gate.pass_until(log_offset):
                self._entering.enter(*held)
                touched.update(held.entries)
                if held.deleted:
                    for queue_id, successor in gate.successors_of(held.deleted).items():
                        queue = self._entering.queues.get(held.deleted, queue_id)
                        queue.reserved = successor.reserved
        gate.tell()
        if len(touched) > _TOUCHED_MAX:
            return None
        return {(queue.topic, queue.queue_id) for queue in touched}

    def _enter_received(self, gate: Gate, log_offset: int) -> set[ConsumeQueue]:
        """`confirm` for what came as bytes."""
        received = self._received
        try:
            queues = received.enter(min(log_offset, gate.raw_until))
        finally:
            gate.confirmed = received.read_until
        self._take_entered(queues)
        return queues

    def _take_entered(self, queues: set[ConsumeQueue]) -> None:
        """Queues got what came as bytes."""
        received = self._received
        for queue in queues:
            self._entering.mark(queue)
        if received.damage:
            self._store.remember_damage(received.damage)
            received.damage.clear()
        self._entering.entered = entered = received.entered
        self._appender.last_ms = max(self._appender.last_ms, entered.store_ms)

    # -- another's log -------------------------------------------------------------------------

    @property
    def raw_end(self) -> int:
        """Where the log's bytes end; inside a record if the rest of that is yet to come."""
        return self._received.end

    @property
    def records_received(self) -> int:
        """How many records that came as bytes are in queues and index, since the start."""
        return self._received.records

    def follow(self) -> None:
        """From now on the log is another's: what waits is known by its bytes only."""
        gate = self._appender.gate
        if gate is None:
            raise StoreError("only a store with a gate can follow another")
        gate.give_up(StoreError("the log is another's now"))
        gate.forget_held()
        if not gate.has_raw:
            self._received.restart(self._entering.entered)
        gate.raw_until = int(self._log.end)

    def append_raw(self, log_offset: int, data: Buffer) -> None:
        """Write the next bytes of the log that this store follows, wherever they are split.

        `log_offset` is `raw_end`, or the start of the next segment if only zeros are between. A log
        with nothing in it begins where the first bytes say, which is at some segment's start.
        """
        if self._store.refusals.now is not None:
            self._entering.retry()
        gate = self._appender.gate
        if gate is None or gate.end > gate.confirmed:
            self.follow()
            gate = self._appender.gate
        assert gate is not None
        try:
            self._received.append(log_offset, data)
        finally:
            gate.raw_until = self.raw_end
        if self._log.start > gate.confirmed:
            gate.confirmed = int(self._log.start)
            self._entering.entered = Entered(gate.confirmed)

    def drop_partial(self) -> None:
        """Nothing more will be sent: cut a record whose end has not come."""
        received, gate = self._received, self._appender.gate
        received.drop_partial()
        if gate is not None:
            gate.raw_until = min(gate.raw_until, int(self._log.end))
        if received.is_holding:
            self._take_entered(received.finish())

    def cut(self, log_offset: int, why: str, *, may_lose: bool = False) -> Cut:
        """End the log at an offset, or at the record before that, and keep aside what was behind.

        What cannot be kept aside is not cut, but for `may_lose`: `StoreError`. Queues and index
        forget it, if they knew of it. Nobody may be reading meanwhile.
        """
        if log_offset >= self.raw_end:
            return Cut(self.raw_end, 0, why, (), rewound=False)
        self._entering.put_late()
        end = self._received.whole_before(log_offset)
        behind = pieces_behind(self._log, end)
        try:
            kept = put_aside(self._log, behind)
        except StoreError:
            if not may_lose:
                raise
            kept = ()
        error = StoreError(f"the log was cut at {end}: {why}")
        gate = self._appender.gate
        if gate is not None:
            gate.give_up(error)
            gate.forget_held()
        store, known = self._store, self._store.confirmed
        codes = store.tags_codes
        lost = deleted_topics(self._log, end, known, codes) if end < known else set()
        with store.checkpoints.lock:
            if end < known:
                self._rewind(end)
            self._log.cut(LogOffset(end))
        store.flusher.give_up(end, error)
        self._received.restart(self._entering.entered)
        store.opened_end = min(store.opened_end, end)
        store.remember_damage(())
        if gate is not None:
            gate.confirmed, gate.raw_until = min(known, end), end
        if lost:
            rebuild(self._log, store.queue_table, store.index, codes, lost)
            self._entering.mark_all()
        store.flush()
        found = Cut(end, sum(size for _, _, size in behind), why, kept, rewound=end < known)
        _log.warning("%s: %s", store.folder, found)
        return found

    def _rewind(self, end: int) -> None:
        """Let queues and index know the log up to `end` only."""
        self._entering.index.build()
        # First: a crash from here on replays what is not cut yet.
        self._store.checkpoints.step_back(end, self._entering.entered.store_ms)
        self._entering.rewind(end, everything=end == self._log.start)

    def read_raw(self, log_offset: int, size: int) -> memoryview:
        """Up to `size` bytes of the log for a replica, as far as the segment and the log go.

        They may have to come from the disk: ask `is_warm`, or have a worker call `read_cold`.
        """
        if log_offset == self._log.end:
            return memoryview(b"")
        segment = self._log.segment_at(log_offset)
        end = min(log_offset + size, segment.start + segment.size, int(self._log.end))
        if end < log_offset:
            raise OffsetOutOfRangeError(
                f"log offset {log_offset} is behind {self._log.end}, where the log ends"
            )
        return segment.view[log_offset - segment.start : end - segment.start]

    def close(self) -> None:
        """Before the store is closed: no queue keeps room for what nobody may see."""
        gate = self._appender.gate
        if gate is not None:
            gate.give_up(StoreClosedError("the store was closed before it was confirmed"))
            gate.forget_held()
            self.drop_partial()
