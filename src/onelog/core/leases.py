"""Leases: messages that are handed out for a time, counted, and acknowledged, released or expired.

The one implementation behind POP and every other protocol that acknowledges single messages. A
lease is a message's place (group, topic, queue, offset), when it was handed out, and when it is
visible again; the time it was handed out is also its handle, because no place gets the same twice.
`lease_queue` holds the leases of one group in one queue; here they meet time, log and cursors.

Memory changes at once, so that the next request sees it; what changed is recorded at the end of the
tick, all of it in one append, and only then is anybody answered (`when_recorded`). A process that
is killed in between loses a tick that nobody heard of.

A message that is moved (to the retry topic, to the dead letters) is written in one append together
with the record that its lease is over: not even a killed process loses or doubles it.

Invariant: every lease ends. It is acknowledged, or its time comes, also if the broker was down
then, and the message is to be had again; never before that.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from onelog.clock import Clock
from onelog.core.filters import Subscription
from onelog.core.groups import Groups
from onelog.core.lease_queue import Fate, Handout, QueueLeases
from onelog.core.offsets import Offsets
from onelog.core.publish import Publisher
from onelog.core.pull import Puller, PullResult, PullStatus, candidates
from onelog.core.tables import Tables
from onelog.core.topics import TopicConfig, Topics
from onelog.core.waiting import Schedule, Waiting
from onelog.core.wheel import Wheel
from onelog.errors import (
    InvalidLeaseTimeError,
    LeaseNotFoundError,
    MessageError,
    OffsetOutOfRangeError,
    OnelogError,
    StoreError,
    TooManyLeasesError,
)
from onelog.message import Message, NewMessage, decode_properties
from onelog.store.message_store import MessageStore
from onelog.store.record import decode_message

log = logging.getLogger(__name__)

LEASE_MAX_MS = 3 * 86_400_000
"""As long as RocketMQ's timer can wait."""
QUEUE_LEASES_MAX = 200_000
GROUP_LEASES_MAX = 1_000_000
_ROUND_COUNT = 256
_ROUND_BYTES = 1 << 20
_SCANS_MAX = 8
"""How many stretches of messages that nobody wants one request passes over."""
_TROUBLE_MS = 1_000
_SEPARATOR = "@"

Place = tuple[str, str, int]
"""Group, topic and queue id."""
Move = Callable[[str, str, Message, int], NewMessage | None]
"""What to write for a message of a group and topic that was handed out at a time and not
acknowledged; None if nobody wants it any more."""
WhenRecorded = Callable[[OnelogError | None], None]


@dataclass(frozen=True, slots=True)
class Terms:
    """How a group wants its messages."""

    invisible_ms: int
    fate: Fate = Fate.RETRY
    subscription: Subscription | None = None
    attempt_id: str | None = None
    """Of ordered leases: who says the same again gets the same again."""
    from_last: bool = False
    """Where a group starts that has no position: at the newest message, else at the oldest."""
    bytes_max: int = 256 << 10


class Taken(NamedTuple):
    """What was handed out of one queue; `times` says how often each came back to its place.

    `cold` is not empty if nothing was taken because the records must be read from the disk first.
    """

    topic: str
    queue_id: int
    offsets: Sequence[int] = ()
    times: Sequence[int] = ()
    slices: Sequence[memoryview] = ()
    cold: Sequence[tuple[int, int]] = ()


def wait_topic(group: str, topic: str) -> str:
    """What to wait for, beside the topic, to hear of messages that may be had again."""
    return f"{topic}{_SEPARATOR}{group}"


def check_lease_time(invisible_ms: int) -> None:
    """`InvalidLeaseTimeError` unless a message can be leased for so long."""
    if not 0 <= invisible_ms <= LEASE_MAX_MS:
        raise InvalidLeaseTimeError(
            f"a message cannot be invisible for {invisible_ms} ms; 0 to {LEASE_MAX_MS} can be"
        )


class Leases:
    """All leases of one broker."""

    name = "leases"

    def __init__(
        self,
        journal: Tables,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        puller: Puller,
        publisher: Publisher,
        waiting: Waiting,
        clock: Clock,
        schedule: Schedule,
        call_soon: Callable[[Callable[[], None]], None],
        move: Move,
        *,
        queue_leases_max: int = QUEUE_LEASES_MAX,
        group_leases_max: int = GROUP_LEASES_MAX,
    ) -> None:
        self._journal = journal
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._puller = puller
        self._publisher = publisher
        self._waiting = waiting
        self._clock = clock
        self._schedule = schedule
        self._call_soon = call_soon
        self._move = move
        self._queue_leases_max = queue_leases_max
        self._group_leases_max = group_leases_max
        self._queues: dict[Place, QueueLeases] = {}
        self._counts: dict[str, int] = {}
        self._wheel: Wheel[Handout] = Wheel(clock, schedule, self._expire)
        self._changed: dict[QueueLeases, None] = {}
        self._gone: dict[str, None] = {}
        self._freed: dict[QueueLeases, None] = {}
        self._told: list[WhenRecorded] = []
        self._tick_begun = False
        self._floor_ms = 0
        topics.on_change.append(self._topic_changed)
        offsets.on_move.append(self._group_moved)

    # -- life ----------------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one recorded change; only while the journal is replayed."""
        topic, group, queue_id = key.split(_SEPARATOR)
        place = (group, topic, int(queue_id))
        if value is None:
            self._queues.pop(place, None)
            return
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = QueueLeases(*place)
        queue.apply(value)

    def entries(self) -> dict[str, Any]:
        """Every lease, and every position from which a group goes on."""
        return {_key(queue): queue.state() for queue in self._queues.values()}

    def open(self) -> None:
        """Everything is remembered: let time go on for it."""
        for place, queue in list(self._queues.items()):
            if self._groups.get(queue.group) is None or self._topics.get(queue.topic) is None:
                del self._queues[place]
                continue
            queue.settle()
            for handout in dict.fromkeys(queue.out.values()):
                self._wheel.add(handout, handout.due_ms)
                self._floor_ms = max(self._floor_ms, handout.popped_ms + 1)
            for popped_ms in queue.ready.values():
                self._floor_ms = max(self._floor_ms, popped_ms + 1)
            self._counts[queue.group] = self._counts.get(queue.group, 0) + len(queue.out)
            position = self._offsets.get(*place)
            if position is not None and position > queue.cursor:
                self._move_queue(queue, position)
            else:
                # A crash lost the commits of the last seconds; the leases know better.
                self._commit(queue)

    def close(self) -> None:
        """Record what is still to be recorded, and let nothing expire any more."""
        self._wheel.close()
        self.end_of_tick()

    def __len__(self) -> int:
        return sum(self._counts.values())

    # -- handing out ---------------------------------------------------------------------------

    def stamp(self) -> int:
        """The handle of what is handed out now: the time, but later than all that came back."""
        return max(self._clock.now_ms(), self._floor_ms)

    def available(self, group: str, topic: str, queue_id: int, terms: Terms) -> int:
        """How many messages of a queue could be had now, wanted or not."""
        end = self._store.max_offset(topic, queue_id)
        queue = self._queues.get((group, topic, queue_id))
        if queue is None:
            return end and end - self._position(group, topic, queue_id, terms.from_last)
        if terms.fate is Fate.ORDERED and queue.out:
            return len(_of_attempt(queue, terms.attempt_id))
        return max(0, end - queue.next) + len(queue.ready)

    def unread_from(self, group: str, topic: str, queue_id: int, from_last: bool = False) -> int:
        """The first offset of a queue that the group was never given."""
        queue = self._queues.get((group, topic, queue_id))
        if queue is not None:
            return queue.next
        return self._position(group, topic, queue_id, from_last)

    def _position(self, group: str, topic: str, queue_id: int, from_last: bool) -> int:
        """Where a group that leases nothing yet goes on, or starts."""
        offset = self._offsets.get(group, topic, queue_id)
        if offset is not None:
            return offset
        if from_last:
            young = self._offsets.query(group, topic, queue_id)
            # RocketMQ hands the newest message out, too.
            return max(0, self._store.max_offset(topic, queue_id) - 1) if young is None else young
        return self._store.min_offset(topic, queue_id)

    def _queue(self, group: str, topic: str, queue_id: int, from_last: bool) -> QueueLeases:
        """The queue's leases, following the group if somebody moved it."""
        place = (group, topic, queue_id)
        if self._offsets.has_resets:
            self._offsets.take_reset(group, topic, queue_id)
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = QueueLeases(group, topic, queue_id)
            self._move_queue(queue, self._position(group, topic, queue_id, from_last))
        elif self._offsets.get(group, topic, queue_id) != queue.committed:
            self._move_queue(queue, self._position(group, topic, queue_id, from_last))
        return queue

    def take(
        self,
        group: str,
        topic: str,
        queue_id: int,
        count_max: int,
        terms: Terms,
        stamp: int,
        *,
        cold_ok: bool = False,
    ) -> Taken:
        """Hand out messages of one queue: first those that came back, then unread ones.

        Several queues may be taken from under one `stamp`. An inner batch goes out whole.
        """
        queue = self._queue(group, topic, queue_id, terms.from_last)
        if terms.fate is Fate.ORDERED and queue.out:
            again = _of_attempt(queue, terms.attempt_id)
            slices = self._records(queue, again)
            for offset in again:
                self._finish_lease(queue, offset)
            return self._hand_out(queue, again, range(0), slices, queue.next, terms, stamp)
        room = self._queue_leases_max - len(queue.out)
        room = min(room, self._group_leases_max - self._counts.get(group, 0))
        if room <= 0:
            raise TooManyLeasesError(
                f"group {group} holds {self._counts.get(group, 0)} messages, {len(queue.out)} of "
                f"them of queue {queue_id} of topic {topic}; it must acknowledge some first"
            )
        count_max = min(count_max, room)
        again, slices, cold = self._returned(queue, count_max, terms, cold_ok)
        if cold:
            return Taken(topic, queue_id, cold=cold)
        fresh: Sequence[int] = ()
        next_offset = queue.next
        if len(again) < count_max:
            result = self._unread(queue, count_max - len(again), terms, cold_ok)
            if result.status is PullStatus.COLD and not again:
                return Taken(topic, queue_id, cold=result.ranges)
            if result.status is PullStatus.FOUND:
                fresh = self._places(queue, result, terms.subscription)
                slices += result.slices
                next_offset = result.next_offset
        return self._hand_out(queue, again, fresh, slices, next_offset, terms, stamp)

    def _hand_out(
        self,
        queue: QueueLeases,
        again: Sequence[int],
        fresh: Sequence[int],
        slices: Sequence[memoryview],
        next_offset: int,
        terms: Terms,
        stamp: int,
    ) -> Taken:
        offsets = (*again, *fresh)
        if not offsets:
            return Taken(queue.topic, queue.queue_id)
        due_ms = self._clock.now_ms() + terms.invisible_ms
        handout = Handout(queue, stamp, due_ms, terms.fate, terms.attempt_id, offsets)
        queue.hand_out(handout, fresh[0] if fresh else next_offset, next_offset)
        self._wheel.add(handout, due_ms)
        self._counts[queue.group] = self._counts.get(queue.group, 0) + len(offsets)
        self._offsets.pulled(queue.group, queue.topic, queue.queue_id, queue.next)
        self._touch(queue)
        times = [queue.times.get(offset, 0) for offset in offsets] if queue.times else ()
        return Taken(queue.topic, queue.queue_id, offsets, times or [0] * len(offsets), slices)

    def _returned(
        self, queue: QueueLeases, count_max: int, terms: Terms, cold_ok: bool
    ) -> tuple[list[int], list[memoryview], list[tuple[int, int]]]:
        """Messages that came back to their place, and their records; or what must be read first."""
        if not queue.ready:
            return [], [], []
        offsets: list[int] = []
        slices: list[memoryview] = []
        looked_at = queue.next_ready(count_max)
        for offset in looked_at:
            entry = self._entry(queue, offset)
            if entry is None:
                self._drop_deleted(queue, offset)
                continue
            at, size, code = entry
            if not cold_ok and not self._store.is_warm(at, size):
                queue.put_back(looked_at)
                return [], [], [(at, size)]
            record = self._store.record(at, size)
            if _wants(terms.subscription, code, record):
                offsets.append(offset)
                slices.append(record)
        taken = set(offsets)
        queue.put_back(
            offset for offset in looked_at if offset in queue.ready and offset not in taken
        )
        return offsets, slices, []

    def _unread(
        self, queue: QueueLeases, count_max: int, terms: Terms, cold_ok: bool
    ) -> PullResult:
        """The next messages that the group was never given, passing over what it does not want."""
        for _ in range(_SCANS_MAX):
            result = self._puller.pull(
                queue.topic,
                queue.queue_id,
                queue.next,
                count_max,
                terms.bytes_max,
                terms.subscription,
                cold_ok=cold_ok,
            )
            if result.status in (PullStatus.FOUND, PullStatus.COLD):
                break
            if result.next_offset > queue.next:
                queue.next = result.next_offset
                self._touch(queue)
            elif result.next_offset < queue.next:
                log.warning(
                    "group %s goes on at %d in queue %d of topic %s, which ends before %d",
                    queue.group, result.next_offset, queue.queue_id, queue.topic, queue.next,
                )  # fmt: skip
                self._move_queue(queue, result.next_offset)
                break
            else:
                break
        return result

    def _places(
        self, queue: QueueLeases, result: PullResult, subscription: Subscription | None
    ) -> Sequence[int]:
        """The offsets of the messages in a result; records that are shared do not know theirs."""
        begin, end = queue.next, result.next_offset
        if end - begin == result.messages:
            return range(begin, end)
        starts: set[int] = set()
        for at, size in result.ranges:
            record = self._store.record(at, size)
            inside = 0
            while inside < size:
                starts.add(at + inside)
                inside += int.from_bytes(record[inside : inside + 4], "big")
        codes = None if subscription is None else subscription.codes
        found = candidates(self._store, queue.topic, queue.queue_id, begin, end - begin, codes)
        return [place for place, at, _ in found if at in starts]

    def _records(self, queue: QueueLeases, offsets: Iterable[int]) -> list[memoryview]:
        entries = [entry for offset in offsets if (entry := self._entry(queue, offset))]
        return [self._store.record(at, size) for at, size, _ in entries]

    def _entry(self, queue: QueueLeases, offset: int) -> tuple[int, int, int] | None:
        """Where a message lies; None if retention has deleted it."""
        if offset < self._store.min_offset(queue.topic, queue.queue_id):
            return None
        found = next(iter(self._store.entries(queue.topic, queue.queue_id, offset, 1)), None)
        return None if found is None or found[0] < self._store.log_min else found

    # -- ending leases -------------------------------------------------------------------------

    def acknowledge(
        self, group: str, topic: str, queue_id: int, offset: int, handle: int
    ) -> None:
        """The message is done. `LeaseNotFoundError` unless it is out under this handle."""
        queue, _ = self._find(group, topic, queue_id, offset, handle)
        self._finish(queue, offset)

    def acknowledge_some(
        self, group: str, topic: str, queue_id: int, offsets: Iterable[int], handle: int
    ) -> int:
        """The messages are done; how many of them were out under this handle."""
        queue = self._queues.get((group, topic, queue_id))
        if queue is None:
            return 0
        count = 0
        for offset in offsets:
            handout = queue.out.get(offset)
            if handout is not None and handout.popped_ms == handle:
                self._finish(queue, offset)
                count += 1
        return count

    def change(
        self, group: str, topic: str, queue_id: int, offset: int, handle: int, invisible_ms: int
    ) -> int:
        """Make the message visible so long from now, 0 for at once; the answer is its new handle.

        An ordered lease keeps its handle, which all messages of a hand-over share.
        """
        check_lease_time(invisible_ms)
        queue, old = self._find(group, topic, queue_id, offset, handle)
        handle = old.popped_ms
        if old.fate is not Fate.ORDERED:
            handle = max(self.stamp(), handle + 1)
        due_ms = self._clock.now_ms() + invisible_ms
        self._finish_lease(queue, offset)
        self._lease_anew(queue, offset, Handout(
            queue, handle, due_ms, old.fate, old.attempt_id, (offset,)
        ))  # fmt: skip
        return handle

    def _find(
        self, group: str, topic: str, queue_id: int, offset: int, handle: int
    ) -> tuple[QueueLeases, Handout]:
        queue = self._queues.get((group, topic, queue_id))
        handout = None if queue is None else queue.out.get(offset)
        if queue is None or handout is None or handout.popped_ms != handle:
            raise LeaseNotFoundError(
                f"message {offset} of queue {queue_id} of topic {topic} is not out under this "
                f"receipt for group {group}: it was acknowledged, or its time was up"
            )
        return queue, handout

    def _finish(self, queue: QueueLeases, offset: int) -> None:
        self._finish_lease(queue, offset)
        queue.finish(offset)
        if not queue.out:
            self._freed[queue] = None
        self._touch(queue)

    def _finish_lease(self, queue: QueueLeases, offset: int) -> None:
        """Count a lease out; its deadline goes with the last one of its hand-over."""
        handout = queue.out[offset]
        handout.left -= 1
        if not handout.left:
            self._wheel.remove(handout, handout.due_ms)
        self._counts[queue.group] -= 1

    def _lease_anew(self, queue: QueueLeases, offset: int, handout: Handout) -> None:
        queue.lease_anew(offset, handout)
        self._wheel.add(handout, handout.due_ms)
        self._counts[queue.group] += 1
        self._touch(queue)

    def _give_back(self, queue: QueueLeases, offset: int) -> None:
        self._finish_lease(queue, offset)
        self._floor_ms = max(self._floor_ms, queue.out[offset].popped_ms + 1)
        queue.give_back(offset)
        self._freed[queue] = None
        self._touch(queue)

    def _drop_deleted(self, queue: QueueLeases, offset: int) -> None:
        log.warning(
            "message %d of queue %d of topic %s was deleted by retention before group %s had it",
            offset, queue.queue_id, queue.topic, queue.group,
        )  # fmt: skip
        queue.finish(offset)
        self._touch(queue)

    # -- time ----------------------------------------------------------------------------------

    def _expire(self, due: list[Handout]) -> None:
        """The time of some leases is up. Moving messages is bounded per round, it reads them."""
        moves: list[tuple[Handout, int, NewMessage | None]] = []
        size = 0
        for handout in due:
            queue = handout.queue
            for offset in handout.still_out():
                if handout.fate is not Fate.RETRY:
                    self._give_back(queue, offset)
                elif len(moves) >= _ROUND_COUNT or size >= _ROUND_BYTES:
                    self._wheel.add(handout, handout.due_ms)
                    break
                else:
                    try:
                        copy = self._moved(handout, offset)
                    except StoreError as error:
                        self._postpone(handout, error)
                        break
                    moves.append((handout, offset, copy))
                    size += len(copy.body) if copy is not None else 0
        if moves:
            self._move_all(moves)

    def _moved(self, handout: Handout, offset: int) -> NewMessage | None:
        """What to write for a message that nobody acknowledged; None if it has had its time."""
        queue = handout.queue
        entry = self._entry(queue, offset)
        try:
            message = None if entry is None else self._store.message_at(entry[0])
        except OffsetOutOfRangeError:
            message = None
        if message is None:
            return None
        return self._move(queue.group, queue.topic, message, handout.popped_ms)

    def _postpone(self, handout: Handout, error: StoreError) -> None:
        log.error(
            "messages of topic %s that group %s did not acknowledge have to wait: %s",
            handout.queue.topic, handout.queue.group, error,
        )  # fmt: skip
        handout.due_ms = self._clock.now_ms() + _TROUBLE_MS
        self._wheel.add(handout, handout.due_ms)

    def _move_all(self, moves: list[tuple[Handout, int, NewMessage | None]]) -> None:
        """Write the messages, and that their leases are over, in one append."""
        for handout, offset, _ in moves:
            self._finish(handout.queue, offset)
        try:
            self._write([copy for _, _, copy in moves if copy is not None])
        except StoreError as error:
            for handout, offset, _ in moves:
                again = Handout(
                    handout.queue, handout.popped_ms, 0, handout.fate, None, (offset,)
                )  # fmt: skip
                handout.queue.lease_anew(offset, again)
                self._counts[handout.queue.group] += 1
                self._touch(handout.queue)
                self._postpone(again, error)
        except MessageError:
            self._move_one_by_one(moves)

    def _move_one_by_one(self, moves: list[tuple[Handout, int, NewMessage | None]]) -> None:
        """Some message cannot be stored as it would have to be: it stays where it is."""
        for handout, offset, copy in moves:
            try:
                self._publisher.write_now([] if copy is None else [copy])
            except MessageError as error:
                log.error("a message stays in topic %s: %s", handout.queue.topic, error)
                self._lease_anew(handout.queue, offset, Handout(
                    handout.queue, handout.popped_ms, handout.due_ms, Fate.STAY, None, (offset,)
                ))  # fmt: skip
        self.end_of_tick()

    # -- recording -----------------------------------------------------------------------------

    def when_recorded(self, callback: WhenRecorded) -> None:
        """Call back once everything that changed so far is in the log, or cannot be written."""
        if self._tick_begun:
            self._told.append(callback)
        else:
            callback(None)

    def _touch(self, queue: QueueLeases) -> None:
        self._changed[queue] = None
        self._begin_tick()

    def _begin_tick(self) -> None:
        if not self._tick_begun:
            self._tick_begun = True
            self._call_soon(self.end_of_tick)

    def end_of_tick(self) -> None:
        """Record what changed, and tell everybody who waits for that."""
        if self._tick_begun:
            try:
                self._write([])
            except StoreError as error:
                log.error("leases could not be recorded, and are tried again: %s", error)
                self._schedule(_TROUBLE_MS, self._begin_tick)

    def _write(self, copies: list[NewMessage]) -> None:
        """Append messages and the record of everything that changed, together."""
        changes: list[tuple[str, str, Any]] = [(self.name, key, None) for key in self._gone]
        changes += [(self.name, _key(queue), queue.record()) for queue in self._changed]
        records = self._journal.record(changes)
        try:
            if copies:
                self._publisher.write_now([*copies, *records])
            elif records:
                self._store.append(records)
        except StoreError as error:
            self._end_tick(error)
            raise
        self._gone.clear()
        for queue in self._changed:
            queue.recorded()
            self._commit(queue)
        self._changed.clear()
        self._end_tick(None)

    def _end_tick(self, error: OnelogError | None) -> None:
        told, self._told = self._told, []
        freed, self._freed = self._freed, {}
        self._tick_begun = False
        for callback in told:
            try:
                callback(error)
            except Exception:
                # One broken connection must not cost the others their answer.
                log.exception("an answer about leases could not be handed over")
        for queue in freed:
            self._waiting.arrived(wait_topic(queue.group, queue.topic), queue.queue_id)

    def _commit(self, queue: QueueLeases) -> None:
        """Tell the group's cursors how far it is."""
        cursor = queue.cursor
        if cursor != queue.committed:
            queue.committed = cursor
            self._offsets.commit(queue.group, queue.topic, queue.queue_id, cursor)

    # -- what others move ----------------------------------------------------------------------

    def _move_queue(self, queue: QueueLeases, offset: int) -> None:
        """Drop all leases of the queue, and go on from `offset`."""
        for handout in dict.fromkeys(queue.out.values()):
            self._wheel.remove(handout, handout.due_ms)
        if queue.out:
            self._counts[queue.group] -= len(queue.out)
        queue.move_to(offset)
        self._offsets.commit(queue.group, queue.topic, queue.queue_id, offset)
        queue.committed = offset
        self._freed[queue] = None
        self._touch(queue)

    def _group_moved(self, group: str, topic: str, positions: Iterable[tuple[int, int]]) -> None:
        for queue_id, offset in positions:
            queue = self._queues.get((group, topic, queue_id))
            if queue is not None:
                self._move_queue(queue, offset)

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        if config is not None:
            return
        for place, queue in list(self._queues.items()):
            if queue.topic == name:
                self._move_queue(queue, 0)
                self._changed.pop(queue, None)
                self._freed.pop(queue, None)
                del self._queues[place]
                self._gone[_key(queue)] = None
                self._begin_tick()


def _key(queue: QueueLeases) -> str:
    return f"{queue.topic}{_SEPARATOR}{queue.group}{_SEPARATOR}{queue.queue_id}"


def _of_attempt(queue: QueueLeases, attempt_id: str | None) -> list[int]:
    """What is out under an attempt of an ordered consumer that did not hear our answer."""
    if attempt_id is None:
        return []
    return sorted(
        offset for offset, handout in queue.out.items() if handout.attempt_id == attempt_id
    )


def _wants(subscription: Subscription | None, code: int, record: memoryview) -> bool:
    if subscription is None:
        return True
    if not subscription.wants_code(code):
        return False
    return subscription.predicate is None or subscription.wants_properties(
        decode_properties(decode_message(record).properties)
    )
