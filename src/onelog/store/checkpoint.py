"""The small files that say in what state a store was left: checkpoint, abort, lock, version.

    checkpoint   4096 bytes. RocketMQ's: int64 store times up to which the log (@0), the queues (@8)
                 and the index (@16) are on disk; int64 start of the last record whose queue entry
                 is (@40). Ours (@64): magic, int64 safe offset, int64 store time, int32 flags,
                 CRC-32. Below the safe offset log, queues and index are all on disk; flag 1: from
                 there on every record has a checksum of its own (`record_crc`).
    abort        exists while a store is open; found at the start, it means a crash
    lock         locked while a store is open for writing, against other processes
    onelog.json  the version of what we add to RocketMQ's format

Invariant: the safe offset never runs ahead of the disk; recovery replays the log from there.
"""

import errno
import fcntl
import json
import os
import struct
from pathlib import Path
from struct import Struct

from isal.isal_zlib import crc32

from onelog import __version__
from onelog.errors import StoreLockedError, StoreVersionError
from onelog.private_files import FILE_MODE, write
from onelog.store.segment import disk_error, opened, sync_file, sync_folder

FORMAT_VERSION = 1
_TIMES = Struct(">qqq")
_LAST_RECORD = Struct(">q")
_LAST_RECORD_AT = 40
_SAFE = Struct(">8sqqiI")
_SAFE_AT = 64
_SAFE_MAGIC = b"ONELOG\x00\x01"
_FILE_BYTES = 4096
_RECORD_CRC = 1


class Checkpoint:
    """How far the parts of a store are known to be on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log_ms = self.queues_ms = self.index_ms = 0
        self.safe_offset = 0
        self.ours = False
        """Whether OneLog was the last to write it: RocketMQ leaves our part and moves its own."""
        self.record_crc = False
        raw = path.read_bytes() if path.exists() else b""
        self.last_record = 0
        if len(raw) >= _LAST_RECORD_AT + _LAST_RECORD.size:
            (self.last_record,) = _LAST_RECORD.unpack_from(raw, _LAST_RECORD_AT)
        if len(raw) >= _TIMES.size:
            self.log_ms, self.queues_ms, self.index_ms = _TIMES.unpack_from(raw)
        if len(raw) >= _SAFE_AT + _SAFE.size:
            magic, offset, store_ms, flags, crc = _SAFE.unpack_from(raw, _SAFE_AT)
            if magic == _SAFE_MAGIC and crc == _safe_crc(offset, store_ms, flags):
                self.safe_offset = offset
                self.ours = self.log_ms == self.queues_ms == store_ms
                self.record_crc = self.ours and bool(flags & _RECORD_CRC)

    def save(
        self,
        safe_offset: int,
        last_record: int,
        store_ms: int,
        index_ms: int = 0,
        record_crc: bool = False,
    ) -> None:
        """Record that everything below `safe_offset`, stored up to `store_ms`, is on disk.

        `index_ms` is what RocketMQ makes of it: up to when index files are full (see `KeyIndex`).
        """
        try:
            with opened(self.path, os.O_RDWR | os.O_CREAT) as fd:
                if os.fstat(fd).st_size < _FILE_BYTES:
                    os.pwrite(fd, bytes(_FILE_BYTES), 0)
                # All of it lies in one disk sector: it changes together or not at all.
                sector = bytearray(os.pread(fd, _SAFE_AT + _SAFE.size, 0))
                _TIMES.pack_into(sector, 0, store_ms, store_ms, index_ms)
                _LAST_RECORD.pack_into(sector, _LAST_RECORD_AT, last_record)
                flags = _RECORD_CRC if record_crc else 0
                crc = _safe_crc(safe_offset, store_ms, flags)
                _SAFE.pack_into(sector, _SAFE_AT, _SAFE_MAGIC, safe_offset, store_ms, flags, crc)
                os.pwrite(fd, sector, 0)
                sync_file(fd, self.path)
        except OSError as error:
            raise disk_error(error, self.path, "write") from error
        self.safe_offset = safe_offset
        self.last_record = last_record
        self.log_ms = self.queues_ms = store_ms
        self.index_ms = index_ms
        self.ours = True
        self.record_crc = record_crc


def _safe_crc(offset: int, store_ms: int, flags: int) -> int:
    return crc32(_SAFE_MAGIC + struct.pack(">qqi", offset, store_ms, flags))


class AbortMark:
    """A file that outlives its process only if the process did not stop cleanly."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def present(self) -> bool:
        """Whether the last writer crashed (or still runs)."""
        return self.path.exists()

    def set(self) -> None:
        """From now on, not clean."""
        write(self.path, str(os.getpid()).encode())
        sync_folder(self.path.parent)

    def clear(self) -> None:
        """Stopped cleanly."""
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)


class StoreLock:
    """At most one writer per store, RocketMQ included.

    The folder is locked, too: who deletes the file does not let anybody in.
    """

    def __init__(self, path: Path) -> None:
        # Java locks with POSIX record locks, which do not see a second opening in the same
        # process; flock does. The two do not know of each other, so both are taken.
        self._fds = [os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)]
        try:
            try:
                fcntl.flock(self._fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    raise
                # Some network file systems lock files only.
            self._fds.append(os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE))
            fcntl.flock(self._fds[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._fds[1], fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            self.leave()
            if error.errno != errno.EAGAIN:
                raise
            raise StoreLockedError(
                f"{path.parent} is in use by another broker (it, or its file {path.name!r}, is "
                "locked): stop that one, or choose another folder"
            ) from error
        if os.fstat(self._fds[1]).st_size == 0:
            os.write(self._fds[1], b"lock")

    def release(self) -> None:
        """Let others have the store, also if a forked process still has the file open."""
        for descriptor in self._fds:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        self.leave()

    def leave(self) -> None:
        """In a forked process: the lock is its parent's. Done again, it closes nobody's file."""
        descriptors, self._fds = self._fds, []
        for descriptor in descriptors:
            os.close(descriptor)


def check_version(path: Path) -> None:
    """Refuse a store whose additions to RocketMQ's format are newer than we know."""
    text = path.read_text() if path.exists() else ""
    if not text:
        return  # The process that made the store died before it wrote this.
    try:
        version = json.loads(text)["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreVersionError(
            f"{path} does not say which format the store has: {error}"
        ) from error
    if version != FORMAT_VERSION:
        raise StoreVersionError(
            f"{path.parent} has store format {version!r}; this OneLog ({__version__}) reads "
            f"{FORMAT_VERSION}: use a OneLog that knows the store's format"
        )


def write_version(path: Path) -> None:
    """Mark a store as one that OneLog has written to."""
    if not path.exists() or not path.stat().st_size:
        signature = {"format": FORMAT_VERSION, "written_by": f"onelog {__version__}"}
        write(path, json.dumps(signature).encode())
