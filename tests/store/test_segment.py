"""One file of the log."""

import errno
import os
from pathlib import Path

import pytest

from onelog.errors import StoreFailedError, StoreFullError, StorePermissionError
from onelog.store.segment import IOV_MAX, Segment, disk_error, file_name, numbered_files
from tests import disk


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return Segment(tmp_path / file_name(0), 0, 1 << 20, writable=True)


def test_a_new_segment_has_its_full_size_and_takes_no_space(segment: Segment) -> None:
    stat = segment.path.stat()
    assert stat.st_size == 1 << 20
    assert stat.st_blocks == 0


def test_more_buffers_than_one_system_call_takes_are_written_all_the_same(segment: Segment) -> None:
    pieces = [b"%06d" % n for n in range(IOV_MAX * 2)]
    segment.write(pieces, 10, 6 * len(pieces))
    assert bytes(segment.view[10 : 10 + 6 * len(pieces)]) == b"".join(pieces)


def test_large_buffers_are_written_without_being_joined(segment: Segment) -> None:
    pieces = [bytes([n]) * 50_000 for n in range(4)]
    segment.write(pieces, 0, 200_000)
    assert bytes(segment.view[:200_000]) == b"".join(pieces)


def test_truncating_zeroes_the_rest_and_keeps_the_size(segment: Segment) -> None:
    segment.write([b"x" * 1000], 0, 1000)
    held = segment.view[:1000]
    segment.truncate(400)
    assert bytes(held) == b"x" * 400 + bytes(600)
    assert segment.path.stat().st_size == segment.size


def test_the_end_of_the_data_is_found_behind_holes(segment: Segment) -> None:
    assert segment.data_end(0) == 0
    segment.write([b"abc\0\0"], 700_000, 5)
    assert segment.data_end(0) == 700_003
    assert segment.data_end(700_003) == 700_003


def test_written_pages_are_warm_and_dropped_ones_are_cold(segment: Segment) -> None:
    data = os.urandom(1 << 20)
    segment.write([data], 0, len(data))
    scratch = memoryview(bytearray(4096))
    assert segment.is_warm(0, len(data), scratch)
    segment.flush()
    fd = os.open(segment.path, os.O_RDONLY)
    disk.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    # A file system without a page cache of its own (tmpfs) has nothing to drop.
    cold = not segment.is_warm(512 * 1024, 65536, scratch)
    assert cold or _is_tmpfs(segment.path)
    assert segment.read(512 * 1024, 65536) == data[512 * 1024 : 512 * 1024 + 65536]
    assert segment.is_warm(512 * 1024, 65536, scratch)


def _is_tmpfs(path: Path) -> bool:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    best = max((m for m in mounts if str(path).startswith(m[0])), key=lambda m: len(m[0]))
    return best[1] in ("tmpfs", "overlay", "9p", "virtiofs")


def test_a_deleted_segment_stays_readable_for_who_holds_a_slice(segment: Segment) -> None:
    segment.write([b"still here"], 0, 10)
    held = segment.view[:10]
    path = segment.path
    path.unlink()
    del segment
    assert bytes(held) == b"still here"


def test_only_files_with_twenty_digits_count(tmp_path: Path) -> None:
    for name in ("00000000000000000000", "00000000000000001024", "x", "123", ".swp"):
        (tmp_path / name).write_bytes(b"1")
    assert numbered_files(tmp_path) == [(0, 1), (1024, 1)]


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (errno.ENOSPC, StoreFullError, "free some space"),
        (errno.EDQUOT, StoreFullError, "free some space"),
        (errno.EACCES, StorePermissionError, "may not write"),
        (errno.EROFS, StorePermissionError, "may not write"),
        (errno.EIO, StoreFailedError, "the disk failed"),
    ],
)
def test_system_errors_become_typed_ones_that_name_the_file(
    code: int, kind: type[Exception], says: str
) -> None:
    error = disk_error(OSError(code, os.strerror(code)), Path("some/file"), "write")
    assert isinstance(error, kind)
    assert says in str(error)
    assert "some/file" in str(error)
