"""The store: one log, the queues and the key index over it, kept in step and on disk.

    append:   reserve queue offsets -> write the log, once -> enter queues -> note keys
    open:     lock -> recover -> mark as running
    close:    flush everything -> checkpoint -> remove the mark -> unlock

Invariant: a message has its queue entries as soon as `append` returns, and is on disk as soon as
`when_flushed` says so. One thread appends; the flush thread only reads what that one wrote.
"""

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self
from weakref import WeakSet

from onelog.clock import Clock, SystemClock
from onelog.config import StoreConfig
from onelog.errors import (
    FlushFailedError,
    PropertiesTooLargeError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
)
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
from onelog.record.entries import ENTRY, ENTRY_BYTES
from onelog.record.forms import FORM_CODE, FORM_MASK
from onelog.record.layout import CRC_PROPERTY_BYTES
from onelog.store.checkpoint import AbortMark, Checkpoint, StoreLock, write_version
from onelog.store.commitlog import CommitLog
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.damage import remember_damage
from onelog.store.dispatch import (
    TAGS_NEEDLE,
    TagsCodes,
    deletion_of,
    is_dispatched,
    with_dispatch_properties,
)
from onelog.store.flush import Flusher, OnFlushed, sync_filesystem
from onelog.store.folder import check_is_store
from onelog.store.keyindex import KeyIndex
from onelog.store.queue_folders import QUEUES_FOLDER
from onelog.store.queues import Queues, check_queue_id
from onelog.store.reader import StoreReader
from onelog.store.recovery import RecoveryReport, recover
from onelog.store.retention import Retention, RetentionRound
from onelog.store.segment import disk_error, make_folders, sync_folder
from onelog.store.spare_queues import FOLDER, SpareQueues

_log = logging.getLogger(__name__)
_FILES_SYNCED_ONE_BY_ONE_MAX = 64
_BARRIER_SECONDS = 60.0
_STEP_BACK_MS_MAX = 60_000
"""A clock that goes back by more was wrong before."""
_UNUSUAL = 0x4 | FORM_MASK
"""The bit that half and rolled-back messages have, and committed ones do not; and other forms."""


class MessageStore(StoreReader):
    """A store open for writing."""

    def __init__(self, folder: Path, config: StoreConfig, clock: Clock, lock: StoreLock) -> None:
        self.config = config
        self._clock = clock
        self._lock = lock
        _open_stores.add(self)
        self._abort = AbortMark(folder / "abort")
        self._checkpoint = Checkpoint(folder / "checkpoint")
        self._tags_codes = TagsCodes(config.delay_levels)
        crashed = self._abort.present()
        self._unsynced: set[str] = set()
        """Folders with names that were made or removed, and are not known to be durable."""
        super().__init__(
            folder,
            CommitLog(folder / "commitlog", config.segment_bytes, record_crc=config.record_crc),
            _queues(folder, config, self._unsynced),
            KeyIndex(
                folder / "index", config.index_slots, config.index_entries, unsynced=self._unsynced
            ),
        )
        if self.log.segments and (crashed or not self._checkpoint.ours):
            # The process that made them may have died before their names were durable.
            self._unsynced.update((str(self.log.folder), str(folder)))
        write_version(folder / "onelog.json")
        self._abort.set()
        self.recovery: RecoveryReport = recover(
            self.log, self.queue_table, self.index, self._checkpoint, self._tags_codes,
            crashed=crashed,
        )  # fmt: skip
        self.damage = remember_damage(folder, self.recovery.damage, int(self.log.start))
        """Ranges of the log that are no use, as far as is known."""
        self.opened_end = int(self.log.end)
        self.last_append_ms = self.recovery.last_store_ms
        self._properties_max = PROPERTIES_BYTES_MAX
        if config.record_crc:
            self._properties_max -= CRC_PROPERTY_BYTES + 1
        self._refusal: StoreError | None = None
        self._hindrance: StoreError | None = None
        """Why writes are refused for the moment, until it is tried again."""
        self._late: dict[ConsumeQueue, bytes] = {}
        self._late_record = 0
        self._dirty: set[ConsumeQueue] = set()
        if crashed or self.recovery.records_replayed:
            self._dirty.update(self.queue_table)
        # End of the log that queues and index know of, its last record, and when it was stored:
        # one value, so that the flush thread sees them together.
        self._entered = (int(self.log.end), self.recovery.last_record, self.last_append_ms)
        self._checkpoint_lock = threading.Lock()
        self._save_checkpoint(force=True)
        self.retention = Retention(self, config, clock)
        self._flusher = Flusher(
            self.log, self._checkpoint, self._save_checkpoint, config, self._refuse_from_now
        )
        (_log.info if self.recovery.clean else _log.warning)("%s: %s", folder, self.recovery)

    @classmethod
    def open(
        cls, folder: Path, config: StoreConfig | None = None, clock: Clock | None = None
    ) -> Self:
        """Open a store for writing, or make one in an empty or missing folder."""
        try:
            check_is_store(folder)
            make_folders(folder)
            lock = StoreLock(folder / "lock")
        except OSError as error:
            raise disk_error(error, folder, "open a store in") from error
        try:
            return cls(folder, config or StoreConfig(), clock or SystemClock(), lock)
        except BaseException as error:
            lock.release()
            if isinstance(error, OSError):
                raise disk_error(error, folder, "open a store in") from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- writing -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def head_room(self) -> Iterator[None]:
        """While it lasts, writes go on for longer on a disk that fills: see `Retention`.

        For what the broker has to write itself, so that space can be freed at all.
        """
        refusal = self._refusal
        if not self.retention.owns(refusal) or not self.retention.has_head_room:
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
                if flags & _UNUSUAL or extra or count != 1:
                    self._release(queues)
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
        except BaseException:
            self._release(queues)
            raise
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
            if properties := message[3]:
                has_properties = True
                before, found, rest = properties.partition(needle)
                if message[0] == SCHEDULE_TOPIC or (found and before and before[-1] != 2):
                    code = code_of(message[0], properties, store_ms)
                elif found:  # What it comes down to, nearly always.
                    code = tags_code(rest.partition(b"\x02")[0])
            if queue is not last:
                last = queue
                try:
                    packed = entries[queue]
                except KeyError:
                    packed = entries[queue] = []
            packed.append(pack(log_offset, size, code))
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
            self._entered_until(appended[-1].log_offset, store_ms)

    def append_runs(self, runs: Sequence[NewRun]) -> list[AppendedRun]:
        """`append` for runs, none of them empty: much the same work, done once a run."""
        if self._refusal is not None:
            self._refuse()
        store_ms = self._clock.now_ms()
        if store_ms < self.last_append_ms:
            store_ms = self._time_before_last(store_ms)
        queues: list[ConsumeQueue] = []
        firsts: list[int] = []
        try:
            for run in runs:
                self._check_run_properties(run)
                if run.sys_flag & _UNUSUAL or run.topic == SCHEDULE_TOPIC:
                    break
                queues.append(self.queue_table.get(run.topic, run.queue_id))
                firsts.append(queues[-1].reserve(len(run.parts)))
            placed = None
            if len(queues) == len(runs):
                placed = self.log.append_runs(runs, firsts, store_ms)
        except BaseException:
            self._release(queues)
            raise
        if placed is None:
            self._release(queues)
            return self._append_one_by_one(runs)
        appended = []
        for run, queue, first, (places, sizes) in zip(runs, queues, firsts, placed, strict=True):
            codes = self._codes(run, store_ms)
            self._put(queue, b"".join(map(ENTRY.pack, places, sizes, codes)))
            queue.dirty = True
            self.index.add_run(run, places, store_ms)
            size = places[-1] + sizes[-1] - places[0]
            appended.append(AppendedRun(places[0], first, size, places))
        self._dirty.update(queues)
        self._entered_until(placed[-1][0][-1], store_ms)
        return appended

    def _append_one_by_one(self, runs: Sequence[NewRun]) -> list[AppendedRun]:
        places = iter(self.append([message for run in runs for message in run.messages()]))
        appended = []
        for run in runs:
            mine = list(itertools.islice(places, len(run.parts)))
            first, last = mine[0], mine[-1]
            size = last.log_offset + last.size - first.log_offset
            offsets = [place.log_offset for place in mine]
            appended.append(AppendedRun(first.log_offset, first.queue_offset, size, offsets))
        return appended

    def _codes(self, run: NewRun, store_ms: int) -> Iterable[int]:
        """The tags code of each message."""
        if run.source.find(TAGS_NEEDLE) < 0 and run.shared.find(TAGS_NEEDLE) < 0:
            return itertools.repeat(0)
        of = self._tags_codes.of
        return [of(run.topic, each.properties, store_ms) for each in run.messages()]

    def _entered_until(self, last_record: int, store_ms: int) -> None:
        """Queues and index know of everything up to here."""
        self.last_append_ms = store_ms
        if self._late:
            self._late_record = last_record
            return
        self._entered = (int(self.log.end), last_record, store_ms)
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
                self._entered = (int(self.log.end), self._late_record, self.last_append_ms)
            self.index.build()
            self._refusal = self._hindrance = None
        else:
            raise self._refusal

    def _append_special(self, messages: Sequence[NewMessage], store_ms: int) -> list[Appended]:
        """`append` for lists with inner batches, extra queues or parts of transactions."""
        reserved: list[ConsumeQueue] = []

        def reserve(topic: str, queue_id: int, count: int) -> int:
            queue = self.queue_table.get(topic, queue_id)
            reserved.append(queue)
            return queue.reserve(count)

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
        except BaseException:
            self._release(reserved)
            raise
        for message, targets, (log_offset, _, size) in zip(records, entered, appended, strict=True):
            code = FORM_CODE
            if not message.sys_flag & FORM_MASK or message.topic == COMPACTED_TOPIC:
                code = self._tags_codes.of(message.topic, message.properties, store_ms)
            for queue in targets:
                self._put(queue, ENTRY.pack(log_offset, size, code) * message.inner_count)
                queue.dirty = True
            self._dirty.update(targets)
        self.index.add([*map(_without_lost_keys, records)], appended, store_ms)
        self._entered_until(appended[-1].log_offset, store_ms)
        return appended

    def _release(self, queues: Sequence[ConsumeQueue]) -> None:
        for queue in set(queues):
            queue.release()

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

    # -- flushing ------------------------------------------------------------------------------

    def when_flushed(self, log_offset: int, callback: OnFlushed) -> None:
        """Call back, in the flush thread, once everything below `log_offset` is on disk."""
        self._flusher.when_flushed(log_offset, callback)

    def wait_flushed(self, log_offset: int, timeout_s: float = 5.0) -> bool:
        """Block until everything below `log_offset` is on disk; False after the time-out."""
        done = threading.Event()
        errors: list[StoreError] = []

        def told(error: StoreError | None) -> None:
            if error is not None:
                errors.append(error)
            done.set()

        self.when_flushed(log_offset, told)
        in_time = done.wait(timeout_s)
        if errors:
            raise errors[0]
        return in_time

    def barrier(self) -> Callable[[], None]:
        """For a file that tells what the log says now: to be called before the file counts.

        The call, in a worker, returns when the log is on disk up to where it ends now. Without it,
        a loss of power could leave the file, and take from the log what it is about.
        """
        log_end = self.log_end

        def wait() -> None:
            if not self.wait_flushed(log_end, _BARRIER_SECONDS):
                raise StoreError(f"the disk did not take the log in {_BARRIER_SECONDS:.0f} s")

        return wait

    def flush(self) -> None:
        """Return when log, queues and index are on disk, and the checkpoint says so."""
        self._save_checkpoint(force=True)

    def _save_checkpoint(self, force: bool = False) -> None:
        try:
            self._flush_and_save(force)
        except FlushFailedError as error:
            # Also if it is the queues that failed: the disk is not to be trusted any more.
            self.log.flush_failure = error
            self._refuse_from_now(error)
            raise

    def _flush_and_save(self, force: bool) -> None:
        with self._checkpoint_lock:
            log_end, last_record, store_ms = self._entered
            if log_end == self._checkpoint.safe_offset and not force:
                return
            self.index.build()
            self.log.flush()
            self.index.flush()
            self._flush_queues()
            self._checkpoint.save(
                log_end,
                last_record,
                store_ms,
                self.index.full_until_ms,
                self.config.record_crc,
            )

    def _flush_queues(self) -> None:
        """Flush the queues, and the names of all new files."""
        # Clean before the flush: an entry that comes during it makes the queue dirty again.
        dirty: list[ConsumeQueue] = []
        folders: list[str] = []
        with contextlib.suppress(KeyError):
            while True:
                queue = self._dirty.pop()
                queue.dirty = False
                dirty.append(queue)
        with contextlib.suppress(KeyError):
            while True:
                folders.append(self._unsynced.pop())
        try:
            if len(dirty) + len(folders) > _FILES_SYNCED_ONE_BY_ONE_MAX:
                sync_filesystem(self.folder)
            else:
                for queue in dirty:
                    queue.flush()
                for folder in folders:
                    if os.path.isdir(folder):
                        sync_folder(Path(folder))
        except BaseException:
            for queue in dirty:
                queue.dirty = True
            self._dirty.update(dirty)
            self._unsynced.update(folders)
            raise

    # -- state ---------------------------------------------------------------------------------

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

    def reconfigure(self, config: StoreConfig) -> None:
        """Go on with other settings; those that shape files only count when a store is opened."""
        self.retention.reconfigure(config)
        self.config = config

    def delete_topic(self, topic: str) -> None:
        """Remove a topic's queues. Its records stay in the log until retention takes them.

        A record in the log says so: whoever replays the topic's records must not bring them back.
        """
        queues = self.queue_table.by_topic.get(topic)
        if not queues:
            return
        if self._refusal is not None:
            self._refuse()
        store_ms = max(self._clock.now_ms(), self.last_append_ms)
        (place,) = self.log.append([deletion_of(topic)], [0], store_ms)
        self._dirty.difference_update(queues.values())
        self.queue_table.delete_topic(topic)
        # Only now may a checkpoint be behind the record: else a crash would leave the queues.
        self._entered_until(place.log_offset, store_ms)

    def retain(self, topic_retention_ms: Mapping[str, int] | None = None) -> RetentionRound:
        """One round of retention; see `Retention.run`."""
        return self.retention.run(topic_retention_ms or {})

    def leave_to_parent(self) -> None:
        """This process was forked from the one that has the store: it may read, and no more."""
        if not isinstance(self._refusal, StoreClosedError):
            self._refusal = StoreClosedError(
                f"the store in {self.folder} is open in the process that this one was forked from: "
                "open it here, or write there"
            )
            self._lock.leave()

    def close(self) -> None:
        """Flush, and leave the store as one that was stopped cleanly."""
        if isinstance(self._refusal, StoreClosedError):
            return
        failed = self._refusal not in (None, self._hindrance) and not self.retention.owns(
            self._refusal
        )
        if self._late and not failed:
            with contextlib.suppress(StoreError):
                self._refuse()
            failed = bool(self._late)
        self._refusal = StoreClosedError(f"the store in {self.folder} is closed")
        try:
            self._flusher.stop()
            if not failed:
                self._save_checkpoint(force=True)
                self._abort.clear()
        finally:
            self.queue_table.close()
            self._lock.release()


_open_stores: WeakSet[MessageStore] = WeakSet()


def _leave_all_to_parent() -> None:
    for store in list(_open_stores):
        store.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


def _without_lost_keys(message: NewMessage) -> NewMessage:
    """A message that was rolled back is found under no key."""
    if message.sys_flag & TRANSACTION_MASK == SysFlag.ROLLED_BACK:
        return message._replace(properties=b"")
    return message


def _queues(folder: Path, config: StoreConfig, unsynced: set[str]) -> Queues:
    entries = config.queue_file_entries
    spares = SpareQueues(folder / FOLDER, entries * ENTRY_BYTES)
    return Queues(folder / QUEUES_FOLDER, entries, spares=spares, unsynced=unsynced)
