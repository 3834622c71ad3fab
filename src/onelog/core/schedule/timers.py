"""Timed messages: delivered at a time of the sender's choice, to the millisecond.

A message with a time is written to the one queue of rmq_sys_wheel_timer instead of its own, where
it can be found again after any crash. The timers read that queue as it grows (`collect`), whoever
wrote to it, and enter in the wheel when each message is due; on start they read what the wheel does
not know yet, in the same way.

What falls due is written to its own topic in one append together with the record of the progress,
so that not even a killed process delivers twice; only a torn write (lost power) can. A message is
taken back by another one in the same queue, a deletion, which is collected before anything that is
due later is delivered.

    table    "progress": {"position": p, "steps": [[end, due, offset], ...]}
             nothing below queue offset p is pending; for the steps see `progress`
             "free": f: what is pending below queue offset f was written anew (`renewal`)

Invariant: a scheduled message is pending until the progress covers it; nothing is delivered before
its time; of what was recalled with success nothing is delivered at all.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any

import numpy as np

from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import Change
from onelog.core.durable.writer import OnStored
from onelog.core.schedule import records as timed_messages
from onelog.core.schedule.progress import DeliveryProgress, Entry
from onelog.core.schedule.queue import TimerQueue
from onelog.core.schedule.records import Scheduled
from onelog.core.schedule.sorted_files import Columns, join
from onelog.core.schedule.wheel import TimerWheel
from onelog.errors import (
    MessageError,
    OnelogError,
    RecallError,
    StoreError,
)
from onelog.jobs import Job
from onelog.message import Appended, Message, NewMessage
from onelog.names import TIMER_TOPIC
from onelog.private_files import write

log = logging.getLogger(__name__)

FOLDER = "onelog-timers"
TICK_MS = 5
"""Messages that are due within a tick are delivered together, at its end."""
COLLECT_MS = 5
"""After a message was postponed, how long until it is looked for in the queue."""
WATCH_MS = 1_000
_ROUND_COUNT = 256
_ROUND_BYTES = 1 << 20
_COLLECT_COUNT = 2_000
_TROUBLE_MS = 1_000
_WARM_COUNT = 2_000
COUNTED_TOGETHER = 2_000
_KEY = "progress"
_FREE = "free"
_CHECKPOINT = Struct(">qqqq")
"""RocketMQ's config/timercheck: time and place up to which it has read; in the middle, its log."""
_FOR_EVER = (1 << 62) - 1

OnCounted = Callable[[dict[str, int]], None]


@dataclass(eq=False)
class Timers:
    """Postpones messages, delivers them in time, and takes them back."""

    name = "timers"

    _storage: Storage

    def __post_init__(self) -> None:
        storage, runtime = self._storage, self._storage.runtime
        self._store, self._writer, self._tables = storage.store, storage.writer, storage.tables
        self._clock, self._schedule = runtime.clock, runtime.schedule
        self._cold_reads = storage.cold_reads
        self.delay_max_ms = _FOR_EVER
        """The longest delay that is accepted; set by the owner."""
        self.becomes: dict[str, Callable[[NewMessage], list[NewMessage]]] = {}
        """By topic: what messages become, instead of going there, when they are due."""
        self.queue = TimerQueue(self._store)
        barrier = partial(self._store.barrier, seen=True)
        self.wheel = TimerWheel(self._store.folder / FOLDER, runtime.offload, barrier)
        self._recorded: tuple[int, DeliveryProgress] | None = None
        self._free_below = 0
        self._cancelled: dict[int, int] = {}
        self._recalling: dict[str, list[Entry]] = {}
        """What deletions are about that are on their way into the log, by their keys."""
        self._held: set[int] = set()
        """The same messages, by their offsets: not delivered until that is clear."""
        self._collecting = False
        self._armed_ms: int | None = None
        self._fills_seen = 0
        self._delivering = Job("delivering timed messages")
        self._counting: list[OnCounted] = []
        self._counting_job = Job("counting timed messages")
        self._is_reading = False
        self.is_closed = False
        """Whether nothing more is delivered."""

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if key == _FREE:
            self._free_below = int(value)
            return
        assert key == _KEY
        progress = DeliveryProgress.from_json(value["steps"])
        self._recorded = (int(value["position"]), progress)
        self.wheel.progress = progress

    def parts(self) -> list[dict[str, Any]]:
        """The progress, once there is any, and what was written anew."""
        free = [{_FREE: self._free_below}] if self._free_below else []
        return free if self._recorded is None else [{_KEY: _as_json(*self._recorded)}, *free]

    # -- life ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Deliver what fell due while nobody was here."""
        queue = self.queue
        self._come_back(queue.end)
        position, progress = self._recorded or (0, self._rocketmq_progress(queue.end))
        self.wheel.load(max(position, queue.begin), queue.end, progress, queue.log_offset_of)
        self.collect_all()
        self._cancelled = self.wheel.cancelled_halfway()
        self._arm()

    def _come_back(self, end: int) -> None:
        """A crash may have cut the queue off: new messages there have not left."""
        if self._free_below > end:
            self._tables.write([(self.name, _FREE, end)])
        if self._recorded is None:
            return
        position, progress = self._recorded
        cut = (min(position, end), progress.up_to(end))
        if cut != self._recorded:
            log.warning(
                "timed messages were delivered up to queue offset %d, but a crash has cut their "
                "queue off at %d: it goes on there",
                max(position, *(step.end for step in progress.steps), end),
                end,
            )
            self._tables.write([(self.name, _KEY, _as_json(*cut))])

    def _rocketmq_progress(self, end: int) -> DeliveryProgress:
        """What RocketMQ has delivered, if it was here before."""
        try:
            data = (self._store.folder / "config" / "timercheck").read_bytes()
        except FileNotFoundError:
            return DeliveryProgress()
        read_ms = int.from_bytes(data[:8], "big", signed=True)
        return DeliveryProgress().after(read_ms, _FOR_EVER, end)

    def close(self) -> None:
        """Deliver nothing more, and leave little to do for the next start."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            self.collect_all()
            self.wheel.close()
            self.remember()
        except StoreError as error:
            log.error("the next start has to read timed messages again: %s", error)

    def remember(self, free_below: int = 0) -> None:
        """Record up to where nothing is pending, or only copies, if more than is recorded."""
        if free_below > self._free_below:
            self._tables.write([(self.name, _FREE, free_below)])
        if self._recorded != (self.wheel.position, self.wheel.progress) and self.wheel.end:
            self._tables.write([self._change(self.wheel.progress)])

    def stop(self) -> None:
        """Deliver nothing more, and leave everything as it is."""
        self.is_closed = True

    def forget_files(self) -> None:
        """The log may be cut, or become another's: what was made of it is made anew."""
        shutil.rmtree(self._store.folder / FOLDER, ignore_errors=True)

    def needed_from(self) -> int:
        """Where in the log the first message is that may wait, by what is recorded."""
        position = 0 if self._recorded is None else self._recorded[0]
        return self._store.log_offset_of(TIMER_TOPIC, 0, max(position, self._free_below))

    def hold(self, offsets: Iterable[int]) -> None:
        """Copies of these messages are written that nobody sees yet: they wait for those."""
        self._held.update(offsets)

    def arrived(self) -> None:
        """Messages are in the queue that may not have been there when they were looked for."""
        self._expect_more()

    @property
    def checkpoint(self) -> tuple[int, int]:
        """What RocketMQ would save: all up to a time has left, and below a queue offset too."""
        steps = self.wheel.progress.steps
        return steps[-1].due_ms if steps else 0, self.wheel.position

    def export_checkpoint(self) -> None:
        """Write what RocketMQ goes on from, instead of delivering everything again."""
        if self.wheel.end:
            folder = self._store.folder
            read_ms, position = self.checkpoint
            data = _CHECKPOINT.pack(read_ms, 0, position, position).ljust(4_096, b"\0")
            write(folder / "config" / "timercheck", data)
            # Its own wheel, from before we had the store, would deliver again what it knows.
            shutil.rmtree(folder / "timerlog", ignore_errors=True)
            (folder / "timerwheel").unlink(missing_ok=True)

    def watch(self) -> None:
        """Look after everything that nobody was told of: called every `WATCH_MS`.

        Messages that came on unusual ways, a clock that was set forward, and work that failed.
        """
        self.collect()
        self.wheel.work()
        if self._armed_ms is not None and self._armed_ms < self._clock.now_ms() - TICK_MS:
            self._time_passed(self._armed_ms)

    # -- messages come -------------------------------------------------------------------------

    def postpone(self, message: NewMessage, due_ms: int, deletes: str | None = None) -> NewMessage:
        """The message as it waits for its time; one whose time is past comes back as it is.

        One that `deletes` another waits for nothing itself: it names that one's key and time.
        """
        wait_ms = due_ms - self._clock.now_ms()
        if wait_ms <= 0:
            return message
        if wait_ms > self.delay_max_ms:
            raise MessageError(
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{self.delay_max_ms}ms (broker.timer_delay_max_ms)"
            )
        if not self._collecting:
            self._expect_more()
        return timed_messages.scheduled(message, due_ms, deletes)

    def _expect_more(self) -> None:
        if not self._collecting and not self.is_closed:
            self._collecting = True
            self._schedule(COLLECT_MS, self._collect_soon)

    def _collect_soon(self) -> None:
        self._collecting = False
        if not self.is_closed:
            with self._delivering:  # What fails is tried again by `watch`.
                self.collect()

    def collect(self) -> None:
        """Enter in the wheel what has come since the last time, or the first part of it."""
        if self._collect_some():
            self._expect_more()
        self._arm()

    def collect_all(self) -> None:
        """Enter everything that has come."""
        while self._collect_some():
            pass

    def _collect_some(self) -> bool:
        """Collect a bounded number of messages; whether there are more."""
        wheel, end = self.wheel, self.queue.end
        begin = max(wheel.end, self.queue.begin)
        if begin > wheel.end:
            lost = begin - wheel.end
            log.error("%d timed messages were deleted by retention as soon as they came", lost)
            wheel.add(join([]), begin, -1)
        if begin >= end:
            return False
        batch = self.queue.read(begin, _COLLECT_COUNT)
        entries = batch.plain
        if batch.unclear:
            more = [entry for offset in batch.unclear for entry in self._read(offset)]
            columns = np.array(more, np.int64).reshape(-1, 2)
            entries = join([entries, Columns(columns[:, 0], columns[:, 1])])
        wheel.add(entries, batch.end, batch.last_at)
        return batch.end < end

    def _read(self, offset: int) -> list[Entry]:
        """What a record says that is more than a scheduled message of ours."""
        read = self.queue.made_of(offset, timed_messages.read)
        if read is None:
            return []
        if read.deletes is not None:
            return self._deleted(read, offset)
        entries = [(read.due_ms, offset)]
        if read.renews is not None:
            entries.append((read.due_ms, ~read.renews))
            self._held.discard(read.renews)
        elif read.is_copy and read.unique_key is not None:
            found = self._find(read.topic, read.unique_key, offset)
            entries += [(due_ms, ~at) for due_ms, at in found]
        return entries

    def _deleted(self, read: Scheduled, offset: int) -> list[Entry]:
        """The entries that cancel what a deletion names. It must have come before it."""
        key = read.deletes or ""
        topic, plus, unique_key = key.rpartition("+")
        names = [(topic, unique_key)] if plus else []
        # Before 5.2, RocketMQ's deletions named the unique key alone.
        names.append((read.topic, key))
        found = {entry for name in names for entry in self._find(*name, offset)}
        found.update(self._let_go(key))
        return [(due_ms, ~at) for due_ms, at in found]

    def _let_go(self, key: str) -> list[Entry]:
        """A deletion is in the log, or never will be: what it was about."""
        awaited = self._recalling.pop(key, [])
        self._held.difference_update(at for _, at in awaited)
        return awaited

    def _find(self, topic: str, unique_key: str, end: int) -> list[Entry]:
        """The pending messages of a topic with a unique key, newest first; often just one.

        They are below queue offset `end`.
        """
        found: list[Entry] = []
        for message in self.find_scheduled(unique_key):
            try:
                read = timed_messages.read(message)
            except MessageError:
                continue
            entry = (read.due_ms, int(message.queue_offset))
            if (
                read.deletes is None
                and (read.topic, read.unique_key) == (topic, unique_key)
                and entry[1] < end
                and self._is_pending(entry)
            ):
                found.append(entry)
        return found

    def find_scheduled(self, unique_key: str) -> list[Message]:
        """The records of the timer queue with a unique key; they may have to be read from disk."""
        found = self._store.find_by_key(TIMER_TOPIC, unique_key)
        return [self._store.message_at(at) for at in found]

    def _is_pending(self, entry: Entry) -> bool:
        """Whether a message will be delivered; one that is just being collected will."""
        due_ms, offset = entry
        if offset >= self.wheel.end:
            return not self.wheel.progress.covers(due_ms, offset)
        return offset not in self._cancelled and self.wheel.is_pending(due_ms, offset)

    # -- messages go ---------------------------------------------------------------------------

    def _arm(self) -> None:
        """Wait for the next message, unless that is being done."""
        due_ms = self.wheel.next_due_ms()
        self._warm()
        if due_ms is None or self.is_closed or self._is_reading:
            return
        wake_ms = -(-due_ms // TICK_MS) * TICK_MS
        if self._armed_ms is None or wake_ms < self._armed_ms:
            self._wake_in(wake_ms - self._clock.now_ms())

    def _wake_in(self, wait_ms: int) -> None:
        wait_ms = max(0, wait_ms)
        self._armed_ms = self._clock.now_ms() + wait_ms
        self._schedule(wait_ms, partial(self._time_passed, self._armed_ms))

    def _time_passed(self, armed_ms: int) -> None:
        """Deliver what is due, unless this timer was overtaken by one for an earlier time."""
        if self.is_closed or armed_ms != self._armed_ms:
            return
        self._armed_ms = None
        with self._delivering:
            if self._collect_some():
                self._expect_more()
            taken = self.wheel.take(self._clock.now_ms(), _ROUND_COUNT)
            log_offsets = [self.queue.log_offset_of(offset) for _, offset in taken if offset >= 0]
            self._is_reading = not self._cold_reads.is_ready(log_offsets, self._have_read)
            if self._is_reading:
                self.wheel.drop_cache()
            elif self._deliver(taken):
                self._wake_in(1 if self._held else 0)
            else:
                self._arm()
        if self._delivering.failed:
            self.wheel.drop_cache()
            self._wake_in(_TROUBLE_MS)

    def _have_read(self) -> None:
        """A worker has read what is due."""
        self._is_reading = False
        self._wake_in(0)

    def _deliver(self, taken: list[Entry]) -> bool:
        """Deliver a bounded number of due messages; whether more are due."""
        delivered = partial(timed_messages.delivered, now_ms=self._clock.now_ms())
        due: list[NewMessage] = []
        size = passed = 0
        for due_ms, offset in taken:
            if size > _ROUND_BYTES or offset in self._held:
                break
            passed += 1
            if offset < 0:
                self._cancelled[~offset] = due_ms
            elif offset in self._cancelled:
                continue  # It is forgotten when its time is over: writing this may fail.
            elif (message := self.queue.made_of(offset, delivered)) is not None:
                becomes = self.becomes.get(message.topic)
                due += [message] if becomes is None else becomes(message)
                size += len(message.body)
        if passed < len(taken):
            self.wheel.drop_cache()
        if passed:
            self._write(due, taken[passed - 1])
        return len(taken) == _ROUND_COUNT or passed < len(taken)

    def _write(self, due: list[NewMessage], last: Entry) -> None:
        """Deliver, and record that everything up to `last` has left."""
        self._tables.deliver(due, [self._change(self.wheel.progress.after(*last, self.wheel.end))])
        if self._cancelled:
            self._cancelled = {at: ms for at, ms in self._cancelled.items() if ms >= last[0]}
        assert self._recorded is not None
        self.wheel.forget_below(self._recorded[0])
        self.wheel.fill_ahead()

    def _change(self, progress: DeliveryProgress) -> Change:
        return (self.name, _KEY, _as_json(self.wheel.position, progress))

    def _warm(self) -> None:
        """Have a worker read what is due next, so that the loop need not wait for the disk."""
        if self.wheel.fills == self._fills_seen:
            return
        self._fills_seen = self.wheel.fills
        ranges = self.queue.cold_ranges(self.wheel.upcoming(), _WARM_COUNT)
        if ranges:
            self._storage.runtime.offload(partial(self._read_ranges, ranges))

    def _read_ranges(self, ranges: list[tuple[int, int]]) -> None:
        """The worker's part of `_warm`."""
        for at, size in ranges:
            try:
                self._store.wait_readable([(at, size)])
            except OnelogError:
                return

    # -- messages are taken back ---------------------------------------------------------------

    def recall(
        self,
        topic: str,
        unique_key: str,
        on_stored: OnStored,
        token: Any = None,
        *,
        group: str = "",
    ) -> bool:
        """Take a scheduled message back; `RecallError` if it is due. False: there is none.

        What is not scheduled was delivered, is recalled already, or never came.
        """
        self.collect_all()
        pending = self._find(topic, unique_key, self.wheel.end)
        if not pending:
            return False
        now_ms, due_ms = self._clock.now_ms(), pending[0][0]
        key = timed_messages.delete_key(topic, unique_key)
        if due_ms <= now_ms or key in self._recalling:
            doing = "being recalled" if key in self._recalling else "being delivered"
            raise RecallError(f"recall failed, message {unique_key} is {doing}")
        deletion = timed_messages.deletion(
            topic, unique_key, due_ms, group, now_ms, self._storage.runtime.host
        )
        self._writer.put(deletion, self._recalled, (on_stored, token, key))
        self._recalling[key] = pending
        self._held.update(offset for _, offset in pending)
        self._expect_more()
        return True

    def _recalled(
        self,
        recall: tuple[OnStored, Any, str],
        appended: Appended | None,
        error: OnelogError | None,
    ) -> None:
        on_stored, token, key = recall
        if appended is None:
            self._let_go(key)
        on_stored(token, appended, error)

    # -- messages are counted ------------------------------------------------------------------

    def count_by_topic(self, on_counted: OnCounted) -> None:
        """Call back with how many messages of each topic wait.

        Whose they are is in their records only, which a worker reads, some at a time. What waits
        all the while is counted once. Who asks meanwhile is told the same numbers.
        """
        self._counting.append(on_counted)
        if len(self._counting) == 1:
            self.collect_all()
            self._count_on(self._pending_parts(self.wheel.pending_messages()), Counter())

    def _pending_parts(self, pending: Iterator[Columns]) -> Iterator[list[int]]:
        for columns in pending:
            for at in range(0, len(columns.offsets), COUNTED_TOGETHER):
                yield columns.offsets[at : at + COUNTED_TOGETHER].tolist()

    def _count_on(self, parts: Iterator[list[int]], counted: Counter[str]) -> None:
        def count() -> bool:
            part = next(parts, None)
            with self._counting_job:
                counted.update(filter(None, map(self.queue.topic_of, part or ())))
            return part is not None

        def then(is_more: bool) -> None:
            if is_more and not self.is_closed:
                self._count_on(parts, counted)
                return
            asking, self._counting = self._counting, []
            for on_counted in asking:
                on_counted(dict(counted))

        self._cold_reads.find(count, then)


def _as_json(position: int, progress: DeliveryProgress) -> dict[str, Any]:
    return {"position": position, "steps": progress.as_json()}
