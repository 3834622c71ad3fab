"""The small files that say in what state a store was left."""

import json
import multiprocessing
import os
import struct
from pathlib import Path

import pytest

from onelog.errors import StoreLockedError, StoreVersionError
from onelog.store.checkpoint import (
    AbortMark,
    Checkpoint,
    StoreLock,
    check_version,
    write_version,
)


def test_a_checkpoint_is_read_back(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "checkpoint").save(12345, 12000, 777, 666, record_crc=True)
    again = Checkpoint(tmp_path / "checkpoint")
    assert again.record_crc
    assert (again.safe_offset, again.log_ms, again.queues_ms, again.index_ms) == (
        12345,
        777,
        777,
        666,
    )
    assert again.ours


def test_rocketmqs_part_is_where_rocketmq_looks_and_its_other_fields_stay(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(struct.pack(">6q", 1, 2, 3, 44, 55, 6).ljust(4096, b"\0"))
    Checkpoint(path).save(900, 800, 777)
    raw = path.read_bytes()
    assert len(raw) == 4096
    assert struct.unpack_from(">6q", raw) == (777, 777, 0, 44, 55, 800)


def test_a_checkpoint_that_rocketmq_moved_on_is_no_longer_ours(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(path).save(900, 800, 777)
    raw = bytearray(path.read_bytes())
    raw[:16] = struct.pack(">qq", 999, 999)
    path.write_bytes(raw)
    again = Checkpoint(path)
    assert not again.ours
    assert (again.safe_offset, again.log_ms) == (900, 999)


@pytest.mark.parametrize("content", [b"", b"short", bytes(4096), b"\xff" * 4096])
def test_a_missing_or_damaged_checkpoint_promises_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    checkpoint = Checkpoint(path)
    assert checkpoint.safe_offset == 0
    assert not checkpoint.ours


def test_the_abort_mark_stays_until_it_is_cleared(tmp_path: Path) -> None:
    mark = AbortMark(tmp_path / "abort")
    assert not mark.present()
    mark.set()
    assert mark.present()
    mark.clear()
    mark.clear()
    assert not mark.present()


def _try_lock(path: Path, answers: "multiprocessing.Queue[str]") -> None:
    try:
        StoreLock(path)
        answers.put("locked")
    except StoreLockedError as error:
        answers.put(str(error))


def test_a_second_lock_is_refused_here_and_in_other_processes(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path / "lock")
    with pytest.raises(StoreLockedError, match="in use by another broker"):
        StoreLock(tmp_path / "lock")
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[str] = context.Queue()
    child = context.Process(target=_try_lock, args=(tmp_path / "lock", answers))
    child.start()
    assert "choose another folder" in answers.get(timeout=60)
    child.join()
    lock.release()
    StoreLock(tmp_path / "lock").release()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "onelog.json"
    check_version(path)
    write_version(path)
    check_version(path)
    path.write_text(json.dumps({"format": 99}))
    with pytest.raises(StoreVersionError, match=r"format 99.*reads 1"):
        check_version(path)
    path.write_text("not json")
    with pytest.raises(StoreVersionError, match="does not say which format"):
        check_version(path)


def test_a_version_that_nobody_came_to_write_is_written_later(tmp_path: Path) -> None:
    path = tmp_path / "onelog.json"
    path.touch()
    check_version(path)
    write_version(path)
    assert json.loads(path.read_text())["format"] == 1


def test_a_lock_that_was_given_back_closes_no_file_of_others(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path / "lock")
    lock.release()
    with (tmp_path / "other").open("w") as other:  # It has the number that the lock had.
        lock.leave()
        os.fstat(other.fileno())
