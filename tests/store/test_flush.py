"""When bytes reach the disk, and who is told."""

import errno
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from onelog.config import StoreConfig
from onelog.errors import FlushFailedError, StoreClosedError, StoreError, StoreFailedError
from onelog.message import NewMessage, encode_properties
from onelog.store.checkpoint import Checkpoint
from onelog.store.commitlog import CommitLog
from onelog.store.entering import Entering
from onelog.store.flush import Checkpoints, Flusher, sync_filesystem
from onelog.store.keyindex import KeyIndex
from onelog.store.message_store import MessageStore
from onelog.store.queue_ends import QueueEnds
from onelog.store.queues import Queues
from onelog.store.refusals import Refusals
from tests.store.conftest import SMALL, OpenStore
from tests.waiting import wait_until

EAGER = StoreConfig(
    segment_bytes=SMALL.segment_bytes,
    queue_file_entries=50,
    flush_interval_ms=10,
    checkpoint_interval_ms=30,
)


def test_one_is_told_when_its_bytes_are_on_disk(open_store: OpenStore) -> None:
    store = open_store()
    store.append([NewMessage("t", 0, b"x")])
    assert store.log.flushed < store.log_end
    assert store.wait_flushed(store.log_end)
    assert store.log.flushed == store.log_end


def test_the_callback_comes_in_the_flush_thread_and_at_once_if_nothing_is_to_do(
    open_store: OpenStore,
) -> None:
    store = open_store()
    store.append([NewMessage("t", 0, b"x")])
    told: list[str] = []
    done = threading.Event()

    def tell(_: StoreError | None) -> None:
        told.append(threading.current_thread().name)
        done.set()

    store.when_flushed(store.log_end, tell)
    assert done.wait(30)
    store.when_flushed(store.log_end, tell)
    assert told == ["onelog-flush", threading.current_thread().name]


def test_all_who_wait_share_one_flush(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.append([NewMessage("t", 0, b"x")])
    started, go_on = threading.Event(), threading.Event()
    flushes: list[int] = []
    fdatasync = os.fdatasync

    def slow(fd: int) -> None:
        flushes.append(fd)
        started.set()
        assert go_on.wait(30)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    told: list[int] = []
    store.when_flushed(store.log_end, lambda _: told.append(0))
    assert started.wait(30)
    for n in range(1, 50):
        store.append([NewMessage("t", 0, b"x")])
        store.when_flushed(store.log_end, lambda _, n=n: told.append(n))  # type: ignore[misc]
    go_on.set()
    assert wait_until(lambda: len(told) == 50)
    assert told == list(range(50))
    assert len(flushes) == 2


def test_pages_are_flushed_and_the_checkpoint_moves_without_being_asked(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(EAGER)
    for _ in range(20):
        store.append([NewMessage("t", 0, b"x" * 1000)])
    assert wait_until(lambda: store.log.flushed == store.log_end)
    path = tmp_path / "store" / "checkpoint"
    assert wait_until(lambda: Checkpoint(path).safe_offset == store.log_end)


def test_a_little_is_left_until_the_thorough_flush(open_store: OpenStore) -> None:
    store = open_store(replace(SMALL, flush_interval_ms=10))
    store.append([NewMessage("t", 0, b"less than four pages")])
    time.sleep(0.1)
    assert store.log.flushed == 0
    store.close()
    store = open_store(replace(SMALL, flush_interval_ms=10, flush_thorough_ms=100))
    store.append([NewMessage("t", 0, b"less than four pages")])
    assert wait_until(lambda: store.log.flushed == store.log_end)


def test_a_failed_flush_is_told_to_all_and_ends_writing(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = open_store()
    store.append([NewMessage("t", 0, b"x")])
    fdatasync = os.fdatasync

    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(FlushFailedError, match="the disk failed to flush"):
        store.wait_flushed(store.log_end)
    with pytest.raises(StoreFailedError):
        store.append([NewMessage("t", 0, b"y")])
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(StoreFailedError):
        store.wait_flushed(store.log_end)
    store.close()
    assert (tmp_path / "store" / "abort").exists()
    again = open_store()
    assert not again.recovery.clean
    assert again.max_offset("t", 0) == 1


def test_waiting_has_an_end(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    store.append([NewMessage("t", 0, b"x")])
    go_on = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _: go_on.wait(60))
    assert not store.wait_flushed(store.log_end, timeout_s=0.05)
    go_on.set()


def test_who_waits_at_the_end_is_served_and_who_comes_later_is_told(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 4096)
    queues, index = Queues(tmp_path / "queues", 10), KeyIndex(tmp_path / "index", 10, 10)
    entering = Entering(queues, index, Refusals(tmp_path))
    checkpoints = Checkpoints(
        tmp_path,
        Checkpoint(tmp_path / "checkpoint"),
        log,
        entering,
        QueueEnds(tmp_path),
        set(),
        lambda _: None,
        lambda: False,
    )
    flusher = Flusher(log, checkpoints, StoreConfig(), lambda _: None)
    log.append([NewMessage("t", 0, b"x")], [0], 1)
    told: list[StoreError | None] = []
    flusher.when_flushed(log.end, told.append)
    flusher.stop()
    log.append([NewMessage("t", 0, b"x")], [1], 1)
    flusher.when_flushed(log.end, told.append)
    assert told[0] is None
    assert isinstance(told[1], StoreClosedError)


def test_many_dirty_queues_are_flushed_together(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: MessageStore = open_store()
    calls: list[Path] = []

    def counted(folder: Path) -> None:
        calls.append(folder)
        sync_filesystem(folder)

    monkeypatch.setattr("onelog.store.flush.sync_filesystem", counted)
    store.append([NewMessage("t", n, b"x") for n in range(200)])
    store.flush()
    assert calls == [store.folder]
    assert not any(queue.dirty for queue in store.queue_table)


# -- what fails ----------------------------------------------------------------------------------


def failing_fdatasync(
    monkeypatch: pytest.MonkeyPatch, part: str, code: int, times: int = 1
) -> list[str]:
    """Let flushes of files with `part` in their name fail, the first so many times."""
    fdatasync = os.fdatasync
    failed: list[str] = []

    def sync(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if part in path and len(failed) < times:
            failed.append(path)
            raise OSError(code, os.strerror(code))
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", sync)
    return failed


@pytest.mark.parametrize("part", ["/commitlog/", "/consumequeue/", "/index/", "/checkpoint"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_flush_that_failed_in_a_checkpoint_is_final_whatever_the_reason(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, part: str, code: int
) -> None:
    store = open_store()
    store.append([NewMessage("t", 0, b"x", encode_properties({"KEYS": "k"}))])
    safe = Checkpoint(store.folder / "checkpoint").safe_offset
    failed = failing_fdatasync(monkeypatch, part, code)
    with pytest.raises(FlushFailedError, match="the disk failed to flush"):
        store.flush()
    assert len(failed) == 1
    # From now on the disk does as it should, which proves nothing.
    with pytest.raises(FlushFailedError, match="look after the disk, then start again"):
        store.append([NewMessage("t", 0, b"y")])
    with pytest.raises(FlushFailedError):
        store.flush()
    if store.log.flushed < store.log_end:
        with pytest.raises(FlushFailedError):
            store.wait_flushed(store.log_end)
    store.close()
    assert (store.folder / "abort").exists()
    assert Checkpoint(store.folder / "checkpoint").safe_offset == safe or part == "/checkpoint"
    again = open_store()
    assert again.recovery.records_replayed == 1 or part == "/checkpoint"
    assert again.append([NewMessage("t", 0, b"again")])[0].queue_offset == 1


def test_a_flush_that_failed_in_the_flush_thread_s_own_checkpoint_is_final(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(replace(SMALL, checkpoint_interval_ms=10, flush_interval_ms=10))
    failed = failing_fdatasync(monkeypatch, "/consumequeue/", errno.ENOSPC)
    store.append([NewMessage("t", 0, b"x")])
    assert wait_until(lambda: bool(failed))
    refused: list[BaseException] = []

    def is_refused() -> bool:
        try:
            store.append([NewMessage("t", 0, b"y")])
        except FlushFailedError as error:
            refused.append(error)
        return bool(refused)

    assert wait_until(is_refused)
    with pytest.raises(FlushFailedError):
        store.wait_flushed(store.log_end + 1)


def test_queues_and_folders_that_were_not_flushed_stay_to_be_flushed(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.append([NewMessage("t", n, b"x") for n in range(3)])
    folders = set(store.checkpoints.unsynced)
    assert len(folders) > 4
    failing_fdatasync(monkeypatch, "/consumequeue/t/", errno.EIO)
    with pytest.raises(FlushFailedError):
        store.flush()
    assert all(queue.dirty for queue in store.queue_table)
    assert set(store.checkpoints.unsynced) == folders


def test_one_whom_the_kernel_did_not_tell_does_not_take_a_failed_flush_for_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CommitLog(tmp_path, 4096)
    log.append([NewMessage("t", 0, b"x")], [0], 1)
    failing_fdatasync(monkeypatch, str(tmp_path), errno.ENOSPC)
    for _ in range(2):
        with pytest.raises(FlushFailedError):
            log.flush()
    assert log.flushed == 0


def test_a_moment_without_file_descriptors_is_waited_for(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(replace(SMALL, checkpoint_interval_ms=10, flush_interval_ms=10))
    store.append([NewMessage("t", 0, b"x")])
    store.flush()
    opened, failures = os.open, 0

    def open_none(path: object, flags: int, *rest: object, **more: object) -> int:
        nonlocal failures
        if str(path).endswith("checkpoint") and failures < 2:
            failures += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, flags, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_none)
    store.append([NewMessage("t", 0, b"y")])
    end = store.log_end
    assert wait_until(lambda: Checkpoint(store.folder / "checkpoint").safe_offset == end)
    assert failures == 2
    store.append([NewMessage("t", 0, b"z")])


def synced_folders(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    fsync = os.fsync
    synced: set[str] = set()

    def sync(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", sync)
    return synced


def test_the_names_of_new_files_are_durable_before_anybody_is_told(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    synced = synced_folders(monkeypatch)
    folder = tmp_path / "not" / "there"
    store = open_store(folder=folder)
    assert {str(tmp_path), str(tmp_path / "not")} <= synced
    synced.clear()
    store.append([NewMessage("t", 3, b"x", encode_properties({"KEYS": "k"}))])
    assert store.wait_flushed(store.log_end)
    assert {str(folder), str(folder / "commitlog")} <= synced
    store.flush()
    for name in ("consumequeue", "consumequeue/t", "consumequeue/t/3", "index"):
        assert str(folder / name) in synced
    synced.clear()
    store.append([NewMessage("t", 3, b"x" * 4000)] * 5)
    assert len(store.log.segments) == 2
    assert store.wait_flushed(store.log_end)
    assert str(folder / "commitlog") in synced
    store.flush()
    synced.clear()
    store.append([NewMessage("t", 3, b"y")])
    store.flush()
    assert synced == set(), "nothing new was made"


def test_names_that_a_crash_left_are_made_durable_when_they_are_found(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = open_store()
    store.append([NewMessage("t", 0, b"x")])
    shutil.copytree(store.folder, tmp_path / "crashed")
    synced = synced_folders(monkeypatch)
    open_store(folder=tmp_path / "crashed")
    names = ("commitlog", "consumequeue", "consumequeue/t", "consumequeue/t/0")
    assert {str(tmp_path / "crashed" / name) for name in names} <= synced


def test_a_crash_leaves_every_segment_since_the_checkpoint_to_be_flushed(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = open_store(replace(SMALL, checkpoint_interval_ms=600_000, flush_interval_ms=60_000))
    store.append([NewMessage("t", 0, b"x" * 4000)] * 10)
    assert len(store.log.segments) == 3
    shutil.copytree(store.folder, tmp_path / "crashed")
    fdatasync = os.fdatasync
    synced: set[str] = set()

    def sync(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", sync)
    again = open_store(folder=tmp_path / "crashed")
    assert {str(segment.path) for segment in again.log.segments} <= synced
