"""How far each queue went at the last checkpoint: what is lost at its ends shows at the next start.

A queue's files say where it ends, with the last entry that is no zeros, and where it begins, behind
padding. So damage just there passes for nothing: the last messages would be gone, and their offsets
given to others. What every checkpoint adds here says so:

    onelog-queue-ends = group*
    group = int32 size of the rows | uint32 CRC-32 of the rows | row*
    row   = int64 start | int64 end | int64 log offset of the last record | int32 queue id
            | uint16 size of the name | the topic's name

A queue id of -1: the topic was deleted. The last row of a queue counts; it is a hint, which only
counts if the log agrees (see `Mending.lengthen`). The file may be deleted, or be behind.

Invariant: whatever deletion is before the checkpoint is here, or nothing of the topic is. Else a
topic that is made anew would get back what it had before, in the places of its new messages.
"""

import errno
import logging
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from isal.isal_zlib import crc32

from onelog.errors import StoreError
from onelog.private_files import write
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.queues import Queues
from onelog.store.segment import disk_error, opened, sync_file, sync_folder

_log = logging.getLogger(__name__)

FILE = "onelog-queue-ends"
_GROUP = Struct(">II")
_ROW = Struct(">qqqiH")
_ALL_QUEUES = -1
_GROWTH_BYTES = 1 << 20
"""By so much the file may grow beyond twice what it takes before it is written anew."""


class QueueEnd(NamedTuple):
    """Where a queue began and ended, and where in the log its last message was."""

    start: int
    end: int
    last_record: int


class QueueEnds:
    """Of one store; after its start, the flush thread's."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._bytes = self._bytes_anew = 0
        self.is_new = not self._path.exists()
        """Whether queues that get no more messages are not in it yet."""

    def known(self, log_offset: int) -> dict[tuple[str, int], QueueEnd]:
        """The last that is known of each queue's end before an offset of the log."""
        try:
            raw = self._path.read_bytes()
            rows, whole = _last_rows(raw)
            if whole < len(raw):
                os.truncate(self._path, whole)  # What was cut off by a crash.
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._complain(error)
            return {}
        self._bytes = whole
        self._write_anew(rows)
        return {key: each for key, each in rows.items() if each.last_record < log_offset}

    def forget(self) -> None:
        """Somebody else wrote to the store since, or what was deleted could not be noted."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise disk_error(error, self._path, "delete") from error
        self._bytes = self._bytes_anew = 0
        self.is_new = True

    def add(self, queues: Queues, flushed: Iterable[ConsumeQueue]) -> None:
        """Note what was flushed, and what was deleted before; only the latter has to be durable."""
        deleted = [queues.deleted.pop() for _ in range(len(queues.deleted))]
        try:
            rows = [_row(topic, _ALL_QUEUES, QueueEnd(0, 0, 0)) for topic in deleted]
            for queue in flushed:
                if queues.find(queue.topic, queue.queue_id) is queue and (end := queue.end):
                    found = QueueEnd(queue.start, end, queue.last_log_offset(end))
                    rows.append(_row(queue.topic, queue.queue_id, found))
            if rows:
                self._append(_group(rows), is_durable=bool(deleted))
        except StoreError:
            queues.deleted.update(deleted)
            raise

    def _append(self, group: bytes, *, is_durable: bool) -> None:
        try:
            with opened(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as fd:
                if os.write(fd, group) < len(group):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if is_durable:
                    sync_file(fd, self._path)
            self._bytes += len(group)
            self.is_new = False
            if self._bytes > 2 * self._bytes_anew + _GROWTH_BYTES:
                self._write_anew(_last_rows(self._path.read_bytes())[0])
        except OSError as error:
            self._complain(error)
            if is_durable:
                self.forget()

    def _write_anew(self, rows: dict[tuple[str, int], QueueEnd]) -> None:
        """With one row for each queue, if it has grown."""
        group = _group([_row(*key, each) for key, each in rows.items()]) if rows else b""
        self._bytes_anew = len(group)
        if self._bytes <= 2 * len(group) + _GROWTH_BYTES:
            return
        beside = self._path.with_suffix(".tmp")
        write(beside, group)
        os.replace(beside, self._path)
        sync_folder(self._path.parent)  # Deletions that follow are in this file only.
        self._bytes = len(group)

    def _complain(self, error: OSError) -> None:
        _log.warning("%s cannot be read or written, and is ignored: %s", self._path, error)


def _row(topic: str, queue_id: int, each: QueueEnd) -> bytes:
    name = topic.encode()
    return _ROW.pack(*each, queue_id, len(name)) + name


def _group(rows: list[bytes]) -> bytes:
    packed = b"".join(rows)
    return _GROUP.pack(len(packed), crc32(packed)) + packed


def _last_rows(raw: bytes) -> tuple[dict[tuple[str, int], QueueEnd], int]:
    """The last row of each queue, and how many bytes are whole groups."""
    found: dict[str, dict[int, QueueEnd]] = {}
    at = 0
    while at + _GROUP.size <= len(raw):
        size, crc = _GROUP.unpack_from(raw, at)
        packed = raw[at + _GROUP.size : at + _GROUP.size + size]
        if len(packed) < size or crc32(packed) != crc:
            break
        try:
            for topic, queue_id, each in _rows(packed):
                if queue_id == _ALL_QUEUES:
                    found.pop(topic, None)
                else:
                    found.setdefault(topic, {})[queue_id] = each
        except (struct.error, UnicodeDecodeError):
            break
        at += _GROUP.size + size
    by_queue = {
        (topic, queue_id): each
        for topic, queues in found.items()
        for queue_id, each in queues.items()
    }
    return by_queue, at


def _rows(packed: bytes) -> Iterator[tuple[str, int, QueueEnd]]:
    at = 0
    while at < len(packed):
        start, end, last, queue_id, size = _ROW.unpack_from(packed, at)
        at += _ROW.size
        yield packed[at : at + size].decode(), queue_id, QueueEnd(start, end, last)
        at += size
