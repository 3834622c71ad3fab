"""Retention: which segments may go, and when. Queues and index follow the log.

Segments are deleted oldest first, never the active one, at most ten a round. A segment is expired
when its newest message is older than the retention time. Expired segments go at a set hour, or at
once when the disk is 75 % full; over 85 % the oldest goes even if it is fresh; over 90 % the store
refuses writes until there is room again.

A topic may have a retention time of its own. A longer one keeps the segments that still hold such
messages (unless the disk forces them out); a shorter one hides messages at once, and their space
comes back with their segment. A topic may also have a size: of each of its queues the newest
messages that have so many bytes together stay, and the others are hidden in the same way.

The owner of the store says from where on the log is needed whatever its age (`kept_from`), because
something there waits for its time. To move that out of the way it writes, also when the disk is too
full for others: the broker's own records have head room, from one round to the next half of what is
left, and messages that leave, because they are due, a quarter.

Between two rounds a fast log could fill the disk. So it is also looked at whenever the log takes
more of it (`grown`).

A store time in the future was written before the clock was set back. Then the first later record
with a time in the past tells the age of everything before it.

Deleting a file of a gigabyte takes a disk long, and so does looking for something in files that are
not in memory. So a round has steps (`steps`): those that wait for the disk run beside everything
else, and those that change something are short.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from onelog.clock import Clock
from onelog.config import StoreConfig
from onelog.errors import ConfigError, StoreError, StoreFullError
from onelog.message import Message
from onelog.record.entries import ENTRY_DTYPE, PADDING_SIZE
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.segment import Segment, disk_error, sync_folder

if TYPE_CHECKING:
    from onelog.store.message_store import MessageStore

_log = logging.getLogger(__name__)
_QUEUES_PER_STEP = 200
_ENTRIES_AT_ONCE = 20_000
_RECORDS_WALKED_MAX = 1_000
HEAD_ROOM = 0.5
"""What the owner's records may take of what is left, from one round to the next."""
HEAD_ROOM_OF_DUE = 0.25
"""What may messages that leave: it must not be them that keep files from being freed."""
_HEAD_ROOM_PERCENT_MAX = 99.0
"""What is above that is for others who use the disk."""
NO_SIZES: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class RetentionRound:
    """What one round deleted."""

    reason: str
    segments_deleted: int
    bytes_deleted: int
    log_start: int
    messages_deleted: dict[tuple[str, int], int]
    """By topic and queue id, how many messages went. Some may not have been read: compare."""
    disk_percent: float


@dataclass(slots=True)
class _Survey:
    """What a round has to find out from the disk."""

    percent: float = 0.0
    reach: int = 0
    starts: dict[ConsumeQueue, int] = field(default_factory=dict)
    """The first offset of each queue whose message is still there, where that changes."""


Steps = Generator[Callable[[], None] | None, None, RetentionRound]


@dataclass(frozen=True, slots=True)
class SpaceUsage:
    """Bytes on disk (allocated, not the size of sparse files), and what the disk has left."""

    log_bytes: int
    queue_bytes: int
    index_bytes: int
    other_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int


def disk_percent(folder: Path) -> float:
    """How full the disk of a folder is, as `df` says it: what is reserved for root is not ours."""
    usage = shutil.disk_usage(folder)
    return 100 * usage.used / (usage.used + usage.free)


def parse_hours(hours: str) -> frozenset[int]:
    """The hours of the day in "04" or "04;16"."""
    parsed = set()
    for hour in hours.replace(";", " ").split():
        if not hour.isdigit() or int(hour) > 23:
            raise ConfigError(f"retention hour {hour!r} is not an hour from 00 to 23")
        parsed.add(int(hour))
    return frozenset(parsed)


class Retention:
    """Decides and deletes, for one store."""

    def __init__(
        self,
        store: "MessageStore",
        config: StoreConfig,
        clock: Clock,
        disk: Callable[[Path], float] | None = None,
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._hours = parse_hours(config.retention_hours)
        self.disk = disk or disk_percent
        store.refusals.has_head_room = lambda share: self.has_head_room(share)
        self.kept_from: int | None = None
        """From this log offset on nothing is deleted, whatever its age; set by the owner."""
        self._percent = 0.0
        self.is_forced = False
        """Whether the disk is so full that files go before their time."""
        self._garbage: list[Segment | Path] = []
        """Files that nothing leads to any more."""
        self.is_stuck = False
        """Whether files that should go stay, because of what waits in them."""
        self._newest: dict[int, int] = {}
        """By the start of the oldest segment, when its newest message was stored."""

    def reconfigure(self, config: StoreConfig) -> None:
        """Go on with other settings."""
        self._hours = parse_hours(config.retention_hours)
        self._config = config

    def has_head_room(self, share: float) -> bool:
        """Whether the owner's records may be written, though others' are refused.

        They may take a share of what was left at the last round.
        """
        limit = self._percent + (100 - self._percent) * share
        return self.disk(self._store.folder) < min(limit, _HEAD_ROOM_PERCENT_MAX)

    def reach(self, topic_retention_ms: Mapping[str, int]) -> int:
        """The log offset before which files are old enough to go, or have to, with this round."""
        store, config = self._store, self._config
        force = self.is_forced = self.disk(store.folder) >= config.disk_force_percent
        now_ms = self._clock.now_ms()
        keep_from = self._keep_from(topic_retention_ms, now_ms)
        segments = store.log.segments
        end = int(store.log.start)
        for number, (first, following) in enumerate(pairwise(segments), 1):
            if number > config.retention_files_per_round or following.start > store.confirmed:
                break
            old_ms = now_ms - config.retention_ms
            is_old = self._stored_before_ms(segments[number:], now_ms) <= old_ms or (
                self._newest_ms(first, old_ms) <= old_ms
            )
            expired = is_old and following.start <= keep_from
            if not expired and not force:
                break
            end = first.start + first.size
        return end

    def _stored_before_ms(self, later: Sequence[Segment], now_ms: int) -> int:
        """A time before which everything in front of these segments was stored."""
        for segment in later:
            try:
                first = self._store.log.look_at(segment.start)
            except StoreError:
                continue  # The disk cannot read it; the next one will do.
            if isinstance(first, Message) and first.store_ms <= now_ms:
                return first.store_ms
        return min(now_ms, self._store.last_append_ms)

    def _newest_ms(self, segment: Segment, old_ms: int) -> int:
        """When the newest message of a segment was stored, that is not the last one.

        What follows may have come long after it. So the queues say which record is its last one,
        once for each segment, and not before its first one is older than `old_ms`.
        """
        start, store = segment.start, self._store
        if (newest_ms := self._newest.get(start)) is not None:
            return newest_ms
        try:
            oldest = store.log.look_at(start)
            if not isinstance(oldest, Message) or oldest.store_ms > old_ms:
                return self._clock.now_ms()
            end = start + segment.size
            last = start
            for queue in store.queue_table:
                behind = queue.first_not_before(lambda entry: entry[0] < end)
                if behind > queue.start:
                    last = max(last, queue.read_entry(behind - 1)[0])
            # Behind it are at most records of topics that were deleted.
            for _ in range(_RECORDS_WALKED_MAX):
                record = store.log.look_at(last) if last < end else None
                if not isinstance(record, Message):
                    break
                newest_ms = max(newest_ms or 0, record.store_ms)
                last += record.size
            else:
                newest_ms = None
        except StoreError:
            return self._clock.now_ms()  # The disk cannot read it: what follows says how old it is.
        self._newest = {start: self._clock.now_ms() if newest_ms is None else newest_ms}
        return self._newest[start]

    def run(
        self,
        topic_retention_ms: Mapping[str, int],
        topic_bytes: Mapping[str, int] = NO_SIZES,
        *,
        manual: bool = False,
    ) -> RetentionRound:
        """One round: guard the disk, hide what topics are not to have any more, delete segments."""
        steps = self.steps(topic_retention_ms, topic_bytes, manual=manual)
        while True:
            try:
                step = next(steps)
            except StopIteration as ended:
                done: RetentionRound = ended.value
                return done
            if step is not None:
                step()

    def steps(
        self,
        topic_retention_ms: Mapping[str, int],
        topic_bytes: Mapping[str, int] = NO_SIZES,
        *,
        manual: bool = False,
    ) -> Steps:
        """`run` for a thread that has other things to do, in steps of a few milliseconds.

        A step that is a function waits for the disk. It is to be called in a worker, and changes
        nothing that others look at; the round goes on when it has returned.
        """
        store = self._store
        now_ms = self._clock.now_ms()
        survey = _Survey()
        yield lambda: self._look(survey, topic_retention_ms, topic_bytes, now_ms)
        reason = self._reason(now_ms, survey.percent, manual)
        gone = deleted = 0
        end = self._end_of_unneeded(survey.reach) if reason else 0
        while len(store.log.segments) > 1 and store.log.segments[1].start <= end:
            self._garbage.append(store.log.drop_first())
            gone += store.log.segment_bytes
            deleted += 1
        log_start = int(store.log.start)
        if deleted:
            yield lambda: self._find_starts(survey, log_start)
        messages: dict[tuple[str, int], int] = {}
        for number, (queue, start) in enumerate(survey.starts.items(), 1):
            if store.queue_table.find(queue.topic, queue.queue_id) is queue and start > queue.start:
                messages[queue.topic, queue.queue_id] = start - queue.start
                gone += queue.begin_at(start, self._garbage.append)
            if number % _QUEUES_PER_STEP == 0:
                yield None
        if deleted:
            gone += store.index.delete_before(log_start, self._garbage.append)
            _log.info(
                "retention (%s): %d segments deleted, log starts at %d", reason, deleted, log_start
            )
        if self._garbage:
            yield lambda: self._collect(survey)
        self._percent = max(survey.percent, self._config.disk_refuse_percent)
        self._guard(survey.percent)
        return RetentionRound(reason, deleted, gone, log_start, messages, survey.percent)

    def _look(
        self,
        survey: "_Survey",
        topic_retention_ms: Mapping[str, int],
        topic_bytes: Mapping[str, int],
        now_ms: int,
    ) -> None:
        """Find out how full the disk is, how far files should go, and what small topics hide."""
        survey.percent = self.disk(self._store.folder)
        survey.reach = self.reach(topic_retention_ms)
        for topic, short_ms in topic_retention_ms.items():
            if short_ms < self._config.retention_ms:
                for queue in list(self._store.queue_table.by_topic.get(topic, {}).values()):
                    before_ms = now_ms - short_ms
                    offset = self._store.offset_by_time(topic, queue.queue_id, before_ms)
                    survey.starts[queue] = int(offset)
        for topic, bytes_max in topic_bytes.items():
            for queue in list(self._store.queue_table.by_topic.get(topic, {}).values()):
                start = _first_of_newest(queue, bytes_max)
                survey.starts[queue] = max(survey.starts.get(queue, 0), start)

    def _find_starts(self, survey: "_Survey", log_start: int) -> None:
        """Find out where each queue begins, now that the log begins there."""
        for queue in self._store.queue_table:
            start = queue.first_from(log_start)
            survey.starts[queue] = max(survey.starts.get(queue, 0), start)

    def _collect(self, survey: "_Survey") -> None:
        """Delete the files that nothing leads to any more; what fails is tried with the next round.

        Large files take their time, and so do their maps: a map goes with the last who has it.
        """
        garbage, self._garbage = self._garbage, []
        has_segments = any(isinstance(file, Segment) for file in garbage)
        failed: OSError | None = None
        garbage.reverse()  # The oldest first: who looks at the files meanwhile finds no gap.
        while garbage:
            file = garbage.pop()
            path = file.path if isinstance(file, Segment) else file
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                failed = error
                self._garbage.append(file)
        if failed is not None:
            raise disk_error(failed, self._store.folder, "delete files in") from failed
        if has_segments:
            sync_folder(self._store.log.folder)
        survey.percent = self.disk(self._store.folder)

    def _end_of_unneeded(self, reach: int) -> int:
        """How far files may be deleted of those that should be."""
        segments, needed_from = self._store.log.segments, self.kept_from
        if needed_from is None:
            return reach
        stuck = len(segments) > 1 and needed_from < segments[1].start <= reach
        if stuck and not self.is_stuck:
            _log.warning(
                "%s should be deleted, but holds what still has to be delivered or recorded; it "
                "goes when that is done",
                segments[0].path,
            )
        self.is_stuck = stuck
        return min(reach, needed_from)

    def _reason(self, now_ms: int, percent: float, manual: bool) -> str:
        if percent >= self._config.disk_force_percent:
            return (
                f"disk {percent:.0f} % full, at {self._config.disk_force_percent} % fresh files go"
            )
        if manual:
            return "asked for"
        if percent >= self._config.disk_clean_percent:
            return f"disk {percent:.0f} % full"
        if time.localtime(now_ms / 1000).tm_hour in self._hours:
            return "the set hour"
        return ""

    def _keep_from(self, topic_retention_ms: Mapping[str, int], now_ms: int) -> int:
        """The first byte that a topic with a longer retention time still needs."""
        store = self._store
        keep_from = int(store.log.end)
        for topic, retention_ms in topic_retention_ms.items():
            if retention_ms <= self._config.retention_ms:
                continue
            for queue_id in list(store.queue_table.by_topic.get(topic, {})):
                offset = store.offset_by_time(topic, queue_id, now_ms - retention_ms)
                for entry in store.entries(topic, queue_id, offset, 1):
                    keep_from = min(keep_from, entry[0])
        return keep_from

    def grown(self) -> None:
        """The log takes more of the disk."""
        self._guard(self.disk(self._store.folder))

    def _guard(self, percent: float) -> None:
        """Refuse writes on a disk that is nearly full, and accept them again when it is not."""
        limit, refusals = self._config.disk_refuse_percent, self._store.refusals
        if percent >= limit and refusals.full is None:
            refusals.full = StoreFullError(
                f"the disk of {self._store.folder} is {percent:.1f} % full; writes are refused "
                f"from {limit} % on (store.disk_refuse_percent): free some space"
            )
            _log.error("%s", refusals.full)
            refusals.refuse(refusals.full)
        elif percent < limit and refusals.full is not None:
            refusals.refuse(None)
            refusals.full = None


def _first_of_newest(queue: ConsumeQueue, bytes_max: int) -> int:
    """Where the newest records of a queue begin that have at least so many bytes together."""
    start, at, total = queue.start, queue.end, 0
    while at > start and total < bytes_max:
        low = max(start, at - _ENTRIES_AT_ONCE)
        before = 1 if low > start else 0
        raw = queue.read_entries(low - before, at - low + before)
        entries = np.frombuffer(raw, ENTRY_DTYPE)
        if len(entries) < at - low + before:
            break  # Somebody else has let it begin later meanwhile.
        sizes = np.where(entries["size"] == PADDING_SIZE, 0, entries["size"].astype(np.int64))
        # A record with many messages has an entry for each of them.
        sizes[1:][entries["log"][1:] == entries["log"][:-1]] = 0
        newest = total + np.cumsum(sizes[before:][::-1])
        enough = int(np.searchsorted(newest, bytes_max))
        if enough < len(newest):
            return at - 1 - enough
        total, at = int(newest[-1]), low
    return at if total >= bytes_max else start


def space_usage(folder: Path) -> SpaceUsage:
    """What a store takes on disk, part by part."""
    parts = {"commitlog": 0, "consumequeue": 0, "index": 0, "": 0}
    for path, _, names in os.walk(folder):
        top = Path(path).relative_to(folder).parts[:1]
        part = top[0] if top and top[0] in parts else ""
        for name in names:
            try:
                parts[part] += os.stat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # Deleted while we looked.
    disk = shutil.disk_usage(folder)
    return SpaceUsage(
        parts["commitlog"], parts["consumequeue"], parts["index"], parts[""], disk.free, disk.total
    )
