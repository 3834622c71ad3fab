"""Leases: messages that are handed out for a time, counted, and acknowledged, released or expired.

The one implementation behind POP and every other protocol that acknowledges single messages. A
lease is a message's place (group, topic, queue, offset), when it was handed out, and when it is
visible again; the time it was handed out is also its handle, because no place gets the same twice.

    lease_ledger    the leases of one group in one queue
    lease_supply    what could be handed out next
    journal         the way into the log
    lending         the verb `lease`: several queues, and waiting
    sharing         what members of share groups do
    here            where they meet time and the group's cursors

Memory changes at once, so that the next request sees it; what changed is recorded at the end of the
tick, and only then is anybody answered (`when_recorded`). A process that is killed in between loses
a tick that nobody heard of.

Invariant: every lease ends. It is acknowledged, rejected, released, or its time comes, also if the
broker was down then; the message goes where its policy says, which the protocol gave, never before.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from onelog.core.catalog.groups import Groups
from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.cursors.offsets import Offsets
from onelog.core.cursors.pending_reads import Missing
from onelog.core.cursors.reading import QueueReader
from onelog.core.durable.deadlines import Deadlines
from onelog.core.durable.durability import WhenSafe
from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import Part, in_parts
from onelog.core.queues.journal import (
    TABLE,
    LedgerJournal,
    WhenRecorded,
)
from onelog.core.queues.lease_ledger import (
    IN_ORDER,
    IN_PLACE,
    SHARED,
    STEP_LEASES,
    Lease,
    LeaseKey,
    LeaseLedger,
    Outcome,
    ReturnPolicy,
    check_lease_time,
    lease_key_of,
)
from onelog.core.queues.lease_supply import Found, LeaseRequest, LeaseSupply
from onelog.errors import LeaseNotFoundError, StoreError, TooManyLeasesError
from onelog.jobs import Job
from onelog.message import NewMessage

log = logging.getLogger(__name__)

QUEUE_LEASES_MAX = 200_000
GROUP_LEASES_MAX = 1_000_000
_ROUND_BYTES = 1 << 20
_SET_BACK_MS = 1_000
"""A clock that goes back by no more is left to its ways."""
_TROUBLE_MS = 1_000

Moves = list[tuple[Lease, int, NewMessage | None]]


class LeasedPart(NamedTuple):
    """What was handed out of one queue; `times` says how often each came back to its place."""

    topic: str
    queue_id: int
    offsets: Sequence[int] = ()
    times: Sequence[int] = ()
    records: Sequence[memoryview] = ()


def wait_topic(group: str, topic: str) -> str:
    """What to wait for, beside the topic, to hear of messages that may be had again."""
    return f"{topic}\0{group}"


@dataclass(eq=False)
class Leases:
    """All leases of one broker."""

    name = TABLE

    _storage: Storage
    _topics: Topics
    _groups: Groups
    _offsets: Offsets
    _reader: QueueReader
    queue_leases_max: int = QUEUE_LEASES_MAX
    group_leases_max: int = GROUP_LEASES_MAX

    def __post_init__(self) -> None:
        self.policies: dict[int, ReturnPolicy] = {
            each.number: each for each in (IN_PLACE, IN_ORDER, *SHARED.values())
        }
        """Those of protocols are added before `open`; an unknown one is as IN_PLACE."""
        self._store, self._clock = self._storage.store, self._storage.runtime.clock
        self._journal: LedgerJournal[LeaseLedger] = LedgerJournal(self._storage, self._recorded)
        self._supply = LeaseSupply(self._store, self._reader)
        self._seen_ms = 0
        self._deadlines: Deadlines[Lease] = Deadlines(
            self._clock, self._storage.runtime.schedule, self._expire
        )
        self._queues: dict[LeaseKey, LeaseLedger] = {}
        self._counts: dict[str, int] = {}
        self._freed: set[LeaseLedger] = set()
        self._frees = 0
        self._floor_ms = 0
        self._expiring = Job("ending leases")
        self._is_closed = False
        self._unsettled: set[LeaseKey] | None = None
        """Of a follower: queues with changes of the master that nobody has asked for yet."""
        self._topics.on_change.append(self._topic_changed)
        self._offsets.on_move.append(self._group_moved)

    # -- life ----------------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one recorded change, while the log is replayed."""
        lease_key = lease_key_of(key)
        if value is None:
            self._queues.pop(lease_key, None)
            return
        queue = self._queues.get(lease_key)
        if queue is None:
            queue = self._queues[lease_key] = LeaseLedger(*lease_key, self.policies)
        queue.apply(value)
        if self._unsettled is not None:
            self._unsettled.add(lease_key)

    def parts(self) -> Iterator[Part]:
        """Every lease, and every place from which a group goes on; a pause after many leases."""
        found: dict[str, Any] = {}
        leases = 0
        for part in in_parts(self._queues):
            for _, queue in part:
                for state in queue.state_in_steps():
                    if isinstance(state, dict):
                        found[queue.key] = state
                    else:
                        yield state and [msgspec.json.encode(queue.key) + b":", *state]
                leases += len(queue.out) + len(queue.returned)
                if leases >= STEP_LEASES:
                    yield found
                    yield None
                    found, leases = {}, 0
            yield found
            found = {}

    def open(self) -> None:
        """Everything is remembered: let time go on for it."""
        for lease_key, queue in list(self._queues.items()):
            if not (self._groups.is_there(queue.group) and self._topics.is_there(queue.topic)):
                del self._queues[lease_key]
                continue
            end = int(self._store.max_offset(queue.topic, queue.queue_id))
            is_cut = queue.next > end or any(
                lease_key > end for lease_key, _ in queue.back.values()
            )
            if is_cut:
                self._come_back(queue, end)
            queue.settle()
            if is_cut:
                queue.void = True
                self._journal.changed(queue)
            for lease in dict.fromkeys(queue.out.values()):
                now_ms = self._clock.now_ms()
                if lease.policy.ends_with_broker:
                    lease.due_ms = now_ms
                elif lease.due_ms > lease.given_ms > now_ms:
                    # It was leased by a clock that was ahead, here or at another master.
                    lease.due_ms -= lease.given_ms - now_ms
                self._deadlines.add(lease, lease.due_ms)
                self._raise_floor(lease.given_ms)
            for given_ms in (*queue.returned.values(), *queue.early.values()):
                self._raise_floor(given_ms)
            self._counts[queue.group] = self._counts.get(queue.group, 0) + len(queue.out)
            position = self._offsets.get(*lease_key)
            if position is not None and position > queue.cursor:
                self._move_queue(queue, position)
            else:
                # A crash lost the commits of the last seconds; the leases know better.
                self._commit(queue)

    def _come_back(self, queue: LeaseLedger, end: int) -> None:
        """A crash has cut the queue off: what comes there was never handed out."""
        log.warning(
            "group %s was at %d in queue %d of topic %s, which a crash has cut off at %d: it goes "
            "on there",
            queue.group,
            queue.next,
            queue.queue_id,
            queue.topic,
            end,
        )
        queue.cut(end)

    def close(self) -> None:
        """Record what is still to be recorded, and let nothing expire any more."""
        self.stop()
        self.flush()

    def flush(self) -> None:
        """Record what is still to be recorded."""
        self._journal.end_of_tick()

    def follow(self) -> None:
        """The log is another broker's: what is leased here is known in memory only."""
        self._journal.follows = True
        self._unsettled = set()

    def catch_up(self) -> None:
        """Of a follower: before leases are asked for, put in order what the master has changed."""
        assert self._unsettled is not None
        for lease_key in self._unsettled:
            queue = self._queues.get(lease_key)
            if queue is not None:
                queue.settle()
                for lease in dict.fromkeys(queue.out.values()):
                    self._deadlines.add(lease, lease.due_ms)
                    self._raise_floor(lease.given_ms)
        for group in {group for group, _, _ in self._unsettled}:
            mine = (queue for queue in self._queues.values() if queue.group == group)
            self._counts[group] = sum(len(queue.out) for queue in mine)
        self._unsettled.clear()

    def stop(self) -> None:
        """Let nothing expire any more, and leave everything as it is."""
        self._is_closed = True
        self._deadlines.close()

    def __len__(self) -> int:
        return sum(self._counts.values())

    def when_recorded(self, callback: WhenRecorded) -> None:
        """Call back once everything that changed so far is in the log, or cannot be written."""
        self._journal.when_recorded(callback)

    def when_safe(self, callback: WhenSafe) -> None:
        """Call back once what was acknowledged so far is recorded, as safely as a message.

        What is handed out need not wait for that: were its lease forgotten, it would come again.
        """
        self._journal.when_safe(callback)

    # -- handing out ---------------------------------------------------------------------------

    def stamp(self) -> int:
        """The handle of what is handed out now: the time, but later than all that came back."""
        now_ms = self._clock.now_ms()
        if now_ms < self._seen_ms - _SET_BACK_MS:
            self._set_back(self._seen_ms - now_ms)
        self._seen_ms = now_ms
        return max(now_ms, self._floor_ms)

    def _set_back(self, by_ms: int) -> None:
        """The clock was: what is out by what it said before comes back as early as was agreed."""
        for lease in list(self._deadlines):
            self._deadlines.remove(lease, lease.due_ms)
            lease.due_ms -= by_ms
            self._deadlines.add(lease, lease.due_ms)

    def _raise_floor(self, given_ms: int) -> None:
        self._floor_ms = max(self._floor_ms, given_ms + 1)

    @property
    def moment(self) -> tuple[int, int]:
        """While this number stays the same, a queue that had nothing to lease still has nothing."""
        return self._store.confirmed, self._frees

    def available(self, request: LeaseRequest, topic: str, queue_id: int) -> int:
        """How many messages of a queue could be had now, wanted or not."""
        if self._unsettled:
            self.catch_up()
        group = request.group
        queue = self._queues.get((group, topic, queue_id))
        if queue is None or self._offsets.get(group, topic, queue_id) != queue.committed:
            end = self._store.max_offset(topic, queue_id)
            return end and abs(end - self._position(group, topic, queue_id, request.from_last))
        if queue.out and request.policy.in_order:
            return len(_of_attempt(queue, request.attempt_id))
        return self.unread(request, topic, queue_id) + len(queue.returned)

    def position(self, group: str, topic: str, queue_id: int) -> int:
        """The first offset of a queue that the group was never given."""
        queue = self._queues.get((group, topic, queue_id))
        return self._position(group, topic, queue_id, False) if queue is None else queue.next

    def unread(self, request: LeaseRequest, topic: str, queue_id: int) -> int:
        """How many messages of a queue could be had now that the group was never given."""
        end = self._reader.end(topic, queue_id, request.committed)
        queue = self._queues.get((request.group, topic, queue_id))
        if queue is None:
            at = self._position(request.group, topic, queue_id, False)
        elif request.as_stored and queue.window >= request.window_max:
            return 0
        else:
            at = queue.next
        # A queue that is shorter than it was needs a look, too: `take` sets things right.
        return max(0, end - at) if request.committed else abs(end - at)

    def _position(self, group: str, topic: str, queue_id: int, from_last: bool) -> int:
        """Where a group that leases nothing yet goes on, or starts."""
        offset = self._offsets.get(group, topic, queue_id)
        if offset is None and from_last:
            offset = self._offsets.query(group, topic, queue_id)
            if offset is None:
                # RocketMQ hands the newest message out, too.
                offset = max(0, self._store.max_offset(topic, queue_id) - 1)
        return self._store.min_offset(topic, queue_id) if offset is None else offset

    def _queue(self, group: str, topic: str, queue_id: int, from_last: bool) -> LeaseLedger:
        """The queue's leases, following the group if somebody moved it."""
        if self._offsets.has_resets:
            self._offsets.take_reset(group, topic, queue_id)
        lease_key = (group, topic, queue_id)
        queue = self._queues.get(lease_key)
        if queue is None:
            self._groups.require(group)  # Leases of a group that is not there end with a restart.
            queue = self._queues[lease_key] = LeaseLedger(group, topic, queue_id, self.policies)
        elif self._offsets.get(group, topic, queue_id) == queue.committed:
            return queue
        self._move_queue(queue, self._position(group, topic, queue_id, from_last))
        return queue

    def take(
        self,
        request: LeaseRequest,
        topic: str,
        queue_id: int,
        count_max: int,
        bytes_max: int,
        stamp: int,
        *,
        cold_ok: bool = False,
    ) -> LeasedPart | Missing:
        """Hand out messages of one queue: first those that came back, then unread ones.

        Several queues may be taken from under one `stamp`. An inner batch goes out whole. A
        `Missing` says that nothing was taken, because records are cold or filters have no time.
        """
        queue = self._queue(request.group, topic, queue_id, request.from_last)
        if queue.out and request.policy.in_order:
            found = self._supply.find_again(queue, _of_attempt(queue, request.attempt_id))
            for offset in found.again:
                self._count_out(queue.out[offset])
        else:
            room = min(count_max, self._room(queue))
            found = self._supply.find(queue, room, bytes_max, request, cold_ok)
        for offset in found.deleted:
            self._drop_deleted(queue, offset)
        if found.next_offset < queue.next:
            log.warning(
                "group %s was at %d in queue %d of topic %s, which ends at %d: it goes on there",
                queue.group,
                queue.next,
                queue_id,
                topic,
                found.next_offset,
            )
            self._move_queue(queue, found.next_offset)
            return LeasedPart(topic, queue_id)
        if found.again or found.fresh:
            return self._hand_out(queue, found, request, stamp)
        if found.next_offset > queue.next:
            queue.next = found.next_offset
            self._journal.changed(queue)
            if queue.has_next_returned:  # What stood behind all that nobody wanted.
                return self.take(
                    request, topic, queue_id, count_max, bytes_max, stamp, cold_ok=cold_ok
                )
        if found.cold or found.later:
            return Missing(found.cold, found.later)
        return LeasedPart(topic, queue_id)

    def _room(self, queue: LeaseLedger) -> int:
        in_group = self._counts.get(queue.group, 0)
        room = min(self.queue_leases_max - len(queue.out), self.group_leases_max - in_group)
        if room <= 0:
            raise TooManyLeasesError(
                f"group {queue.group} holds {in_group} messages, {len(queue.out)} of them of queue "
                f"{queue.queue_id} of topic {queue.topic}: it must acknowledge some first"
            )
        return room

    def _hand_out(
        self, queue: LeaseLedger, found: Found, request: LeaseRequest, stamp: int
    ) -> LeasedPart:
        offsets = (*found.again, *found.fresh)
        due_ms = self._clock.now_ms() + request.invisible_ms
        lease = Lease(queue, stamp, due_ms, request.policy, request.attempt_id, offsets)
        queue.hand_out(lease, queue.next, found.next_offset)
        self._deadlines.add(lease, due_ms)
        self._counts[queue.group] = self._counts.get(queue.group, 0) + len(offsets)
        self._offsets.pulled(queue.group, queue.topic, queue.queue_id, queue.next)
        self._journal.changed(queue)
        times = [queue.times.get(offset, 0) for offset in offsets]
        return LeasedPart(queue.topic, queue.queue_id, offsets, times, found.records)

    def _drop_deleted(self, queue: LeaseLedger, offset: int) -> None:
        log.warning(
            "message %d of queue %d of topic %s was deleted by retention before group %s was done",
            offset,
            queue.queue_id,
            queue.topic,
            queue.group,
        )
        if (lease := queue.out.get(offset)) is not None:
            self._count_out(lease)
        queue.finish_one(offset)
        self._journal.changed(queue)

    # -- ending leases -------------------------------------------------------------------------

    def acknowledge(self, group: str, topic: str, queue_id: int, offset: int, handle: int) -> None:
        """The message is done. `LeaseNotFoundError` unless it is out under this handle."""
        self._acknowledged(self._find(group, topic, queue_id, offset, handle), offset)

    def acknowledge_some(
        self, group: str, topic: str, queue_id: int, offsets: Iterable[int], handle: int
    ) -> int:
        """Those messages are done that are out under this handle; how many these were."""
        if self._unsettled:
            self.catch_up()
        queue = self._queues.get((group, topic, queue_id))
        if queue is None:
            return 0
        count = 0
        for offset in offsets:
            lease = queue.out.get(offset)
            if lease is not None and lease.given_ms == handle:
                self._acknowledged(lease, offset)
                count += 1
        return count

    def extend(
        self, group: str, topic: str, queue_id: int, offset: int, handle: int, invisible_ms: int
    ) -> int:
        """Have the lease end so long from now, 0 for at once; the answer is its new handle.

        In an ordered queue it keeps its handle, which all messages of a hand-over share.
        """
        check_lease_time(invisible_ms)
        old = self._find(group, topic, queue_id, offset, handle)
        if not old.policy.in_order:
            handle = max(self.stamp(), handle + 1)
        due_ms = self._clock.now_ms() + invisible_ms
        self._count_out(old)
        self._lease_anew(Lease(old.ledger, handle, due_ms, old.policy, old.attempt_id, (offset,)))
        return handle

    def release(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        handle: int,
        *,
        after_ms: int = 0,
        to_back: bool = False,
    ) -> None:
        """The message is to be had again from its place, whatever its policy: now, or later.

        Or now `to_back`: after everything that is to be had now. An ordered queue has no back.
        """
        check_lease_time(after_ms)
        old = self._find(group, topic, queue_id, offset, handle)
        in_order = old.policy.in_order
        if after_ms:
            self._hide_until(old, offset, after_ms, IN_ORDER if in_order else IN_PLACE)
        else:
            end = self._store.max_offset(topic, queue_id)
            self._give_back(old, offset, int(end) if to_back and not in_order else None)

    def reject(self, group: str, topic: str, queue_id: int, offset: int, handle: int) -> None:
        """The message is useless: it goes where its policy sends such, within a tick of time."""
        old = self._find(group, topic, queue_id, offset, handle)
        self._hide_until(old, offset, 0, old.policy, is_rejected=True)

    def _hide_until(
        self,
        old: Lease,
        offset: int,
        after_ms: int,
        policy: ReturnPolicy,
        *,
        is_rejected: bool = False,
    ) -> None:
        """Lease a message under a handle that nobody is told."""
        queue, handle = old.ledger, max(self.stamp(), old.given_ms + 1)
        due_ms = self._clock.now_ms() + after_ms
        self._count_out(old)
        self._lease_anew(
            Lease(queue, handle, due_ms, policy, None, (offset,), is_rejected=is_rejected)
        )

    def _find(self, group: str, topic: str, queue_id: int, offset: int, handle: int) -> Lease:
        if self._unsettled:
            self.catch_up()
        queue = self._queues.get((group, topic, queue_id))
        lease = None if queue is None else queue.out.get(offset)
        if lease is None or lease.given_ms != handle:
            raise LeaseNotFoundError(
                f"message {offset} of queue {queue_id} of topic {topic} is not out under this "
                f"receipt for group {group}: it was acknowledged, or its time was up"
            )
        return lease

    def _acknowledged(self, lease: Lease, offset: int) -> None:
        queue = lease.ledger
        self._count_out(lease)
        if lease.policy.in_order:
            queue.finish_in_order(offset)
            if not queue.out:
                self._free(queue)
        else:
            queue.finish_one(offset)
        self._journal.changed(queue)

    def _count_out(self, lease: Lease) -> None:
        """A lease ends; its deadline goes with the last one of its hand-over."""
        lease.left -= 1
        if not lease.left:
            self._deadlines.remove(lease, lease.due_ms)
        self._counts[lease.ledger.group] -= 1

    def _lease_anew(self, lease: Lease) -> None:
        """Put a message that was out under other terms under these."""
        lease.ledger.lease_anew(lease.offsets[0], lease)
        self._deadlines.add(lease, lease.due_ms)
        self._counts[lease.ledger.group] += 1
        self._journal.changed(lease.ledger)

    # -- leases that have a holder -------------------------------------------------------------

    def begin(self, group: str, topic: str, queue_id: int, start: Callable[[], int]) -> None:
        """See to it that the group is somewhere in a queue; at `start`, if it never was."""
        if self._offsets.get(group, topic, queue_id) is None:
            lease_key = (group, topic, queue_id)
            queue = self._queues.get(lease_key)
            if queue is None:
                self._groups.require(group)
                queue = self._queues[lease_key] = LeaseLedger(*lease_key, self.policies)
            queue.committed = None
            self._move_queue(queue, start())

    def settle(
        self,
        lease_key: LeaseKey,
        holder: str,
        outcomes: Sequence[tuple[range, Outcome]],
        invisible_ms: int,
    ) -> None:
        """What became of messages that `holder` has; `LeaseNotFoundError`, and nothing is changed,
        if it does not have one of them. Ranges do not overlap; what is kept, is kept so long."""
        queue = self._queues.get(lease_key)
        out = {} if queue is None else queue.out
        for offsets, _ in outcomes:
            for offset in offsets:
                lease = out.get(offset)
                if lease is None or lease.attempt_id != holder:
                    group, topic, queue_id = lease_key
                    raise LeaseNotFoundError(
                        f"{holder} does not have message {offset} of queue {queue_id} of topic "
                        f"{topic} for group {group}: it is done, or its time was up"
                    )
        if queue is None:
            return
        for offsets, outcome in outcomes:
            if outcome is Outcome.KEPT:
                self._keep(queue, tuple(offsets), holder, invisible_ms)
                continue
            for offset in offsets:
                if outcome is Outcome.DONE:
                    self._acknowledged(out[offset], offset)
                else:
                    is_counted = outcome is Outcome.RETURNED
                    self._give_back(out[offset], offset, is_counted=is_counted)
        self._free(queue)  # There may be room for more.

    def _keep(
        self, queue: LeaseLedger, offsets: tuple[int, ...], holder: str, invisible_ms: int
    ) -> None:
        """Lease messages to who has them, for another time from now on."""
        policy = queue.out[offsets[0]].policy
        for offset in offsets:
            self._count_out(queue.out[offset])
        due_ms = self._clock.now_ms() + invisible_ms
        lease = Lease(queue, self.stamp(), due_ms, policy, holder, offsets)
        for offset in offsets:
            queue.lease_anew(offset, lease)
        self._deadlines.add(lease, due_ms)
        self._counts[queue.group] += len(offsets)
        self._journal.changed(queue)

    def release_held(self, group: str, holder: str) -> None:
        """The holder is gone: what it has may be had again, as if it had not been given."""
        for queue in [queue for lease_key, queue in self._queues.items() if lease_key[0] == group]:
            held = [
                (offset, lease) for offset, lease in queue.out.items() if lease.attempt_id == holder
            ]
            for offset, lease in held:
                self._give_back(lease, offset, is_counted=False)

    def unfinished(self, group: str, topic: str, queue_id: int) -> int:
        """How many messages of a queue the group is not done with."""
        queue = self._queues.get((group, topic, queue_id))
        end = self._store.max_offset(topic, queue_id)
        if queue is None:
            return max(0, end - self._position(group, topic, queue_id, False))
        return max(0, end - queue.next) + len(queue.out) + len(queue.returned)

    # -- time ----------------------------------------------------------------------------------

    def _expire(self, due: list[Lease]) -> None:
        """The time of some leases is up: end them, now or after a pause if that fails."""
        if self._is_closed:
            return
        with self._expiring:
            places = [
                at
                for lease in due
                if lease.move is not None
                for offset in lease.still_out()
                if (at := self._supply.entry_at(lease.ledger, offset)) is not None
            ]
            if not self._storage.cold_reads.is_ready(places, lambda: self._expire(due)):
                return
            self._end_leases(due)
        if self._expiring.failed:
            for lease in due:
                if lease.still_out():
                    self._postpone(lease)

    def _end_leases(self, due: list[Lease]) -> None:
        """Moving reads the messages, so a round is bounded."""
        moves: Moves = []
        size = 0
        for lease in due:
            # A follower cannot move anything: whoever asks has it again from its place.
            move = lease.move if self._unsettled is None else None
            for offset in lease.still_out():
                if move is None:
                    if lease.is_rejected:
                        self._acknowledged(lease, offset)
                    else:
                        self._give_back(lease, offset)
                    continue
                if size >= _ROUND_BYTES:
                    self._deadlines.add(lease, lease.due_ms)
                    break
                try:
                    message = self._supply.message(lease.ledger, offset)
                    copy = message and move(
                        lease.ledger.group, lease.ledger.topic, message, lease.given_ms
                    )
                except StoreError as error:
                    log.error(
                        "messages of topic %s that group %s did not acknowledge have to wait: %s",
                        lease.ledger.topic,
                        lease.ledger.group,
                        error,
                    )
                    self._postpone(lease)
                    break
                moves.append((lease, offset, copy))
                size += 0 if copy is None else len(copy.body)
        if moves:
            self._move_all(moves)

    def _give_back(
        self, lease: Lease, offset: int, before: int | None = None, *, is_counted: bool = True
    ) -> None:
        queue, most = lease.ledger, lease.policy.deliveries_max
        self._count_out(lease)
        self._raise_floor(lease.given_ms)
        if most and is_counted and queue.times.get(offset, 0) + 1 >= most:
            queue.finish_one(offset)
        else:
            queue.return_one(offset, before, is_counted=is_counted)
        self._free(queue)
        self._journal.changed(queue)

    def _postpone(self, lease: Lease) -> None:
        self._deadlines.remove(lease, lease.due_ms)
        lease.due_ms = self._clock.now_ms() + _TROUBLE_MS
        self._deadlines.add(lease, lease.due_ms)

    def _move_all(self, moves: Moves) -> None:
        """Write the messages, and that their leases are over, in one append."""
        for lease, offset, _ in moves:
            self._acknowledged(lease, offset)
        try:
            self._journal.write([copy for _, _, copy in moves if copy is not None])
        except StoreError as error:
            log.error("messages whose leases are over cannot be moved yet: %s", error)
            due_ms = self._clock.now_ms() + _TROUBLE_MS
            for lease, offset, _ in moves:
                self._lease_anew(_single(lease, offset, due_ms, lease.policy))
        except Exception:
            self._move_one_by_one(moves)

    def _move_one_by_one(self, moves: Moves) -> None:
        """Some message cannot be stored as it would have to be: that one stays where it is."""
        for lease, offset, copy in moves:
            try:
                self._storage.writer.write_now([copy] if copy else [])
            except Exception as error:
                log.error("a message stays in topic %s: %s", lease.ledger.topic, error)
                self._lease_anew(_single(lease, offset, lease.due_ms, IN_PLACE))
        self._journal.end_of_tick()

    # -- positions -----------------------------------------------------------------------------

    def _free(self, queue: LeaseLedger) -> None:
        """There may be something in the queue for those who wait: tell them when it is recorded."""
        self._freed.add(queue)
        self._frees += 1

    def _recorded(self, queue: LeaseLedger) -> None:
        """What changed in the queue is in the log."""
        if self._offsets.get(queue.group, queue.topic, queue.queue_id) == queue.committed:
            self._commit(queue)  # Who pulls the queue now may be further.
        if queue in self._freed:
            self._freed.discard(queue)
            self._storage.waiting.arrived(wait_topic(queue.group, queue.topic), queue.queue_id)

    def _commit(self, queue: LeaseLedger) -> None:
        """Tell the group's cursors how far it is."""
        cursor = queue.cursor
        if cursor != queue.committed and self._groups.get(queue.group) is not None:
            queue.committed = cursor
            self._offsets.commit(queue.group, queue.topic, queue.queue_id, cursor)

    def _clear(self, queue: LeaseLedger, offset: int) -> None:
        """Drop all leases of the queue."""
        for lease in dict.fromkeys(queue.out.values()):
            self._deadlines.remove(lease, lease.due_ms)
            self._raise_floor(lease.given_ms)
        if queue.out:
            self._counts[queue.group] -= len(queue.out)
        queue.move_to(offset)

    def _move_queue(self, queue: LeaseLedger, offset: int) -> None:
        """Drop all leases of the queue, and go on from `offset`."""
        self._clear(queue, offset)
        self._commit(queue)
        self._free(queue)
        self._journal.changed(queue)

    def _group_moved(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        """Somebody corrected the group's positions."""
        for queue_id, offset in positions.items():
            queue = self._queues.get((group, topic, queue_id))
            if queue is not None:
                self._move_queue(queue, offset)

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        if config is None:
            self.forget_topic(name)

    def forget_topic(self, name: str) -> None:
        for lease_key in [lease_key for lease_key in self._queues if lease_key[1] == name]:
            queue = self._queues.pop(lease_key)
            self._clear(queue, 0)
            self._freed.discard(queue)
            self._journal.gone(queue)


def _single(lease: Lease, offset: int, due_ms: int, policy: ReturnPolicy) -> Lease:
    is_rejected = lease.is_rejected and policy is lease.policy
    return Lease(
        lease.ledger, lease.given_ms, due_ms, policy, None, (offset,), is_rejected=is_rejected
    )


def _of_attempt(queue: LeaseLedger, attempt_id: str | None) -> list[int]:
    """What is out under an attempt of an ordered consumer that did not hear our answer."""
    if attempt_id is None:
        return []
    return sorted(offset for offset, lease in queue.out.items() if lease.attempt_id == attempt_id)
