"""When bytes reach the disk, and who is told."""

import os
import threading
import time
from pathlib import Path

import pytest

from onelog.config import StoreConfig
from onelog.errors import StoreClosedError, StoreError, StoreFailedError
from onelog.message import NewMessage
from onelog.store.checkpoint import Checkpoint
from onelog.store.commitlog import CommitLog
from onelog.store.flush import Flusher, sync_filesystem
from onelog.store.message_store import MessageStore
from tests.store.conftest import SMALL, OpenStore

EAGER = StoreConfig(
    segment_bytes=SMALL.segment_bytes,
    queue_file_entries=50,
    flush_interval_ms=10,
    checkpoint_interval_ms=30,
)


def eventually(condition: object, seconds: float = 10.0) -> bool:
    assert callable(condition)
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(condition())


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
    assert done.wait(10)
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
        assert go_on.wait(10)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    told: list[int] = []
    store.when_flushed(store.log_end, lambda _: told.append(0))
    assert started.wait(10)
    for n in range(1, 50):
        store.append([NewMessage("t", 0, b"x")])
        store.when_flushed(store.log_end, lambda _, n=n: told.append(n))  # type: ignore[misc]
    go_on.set()
    assert eventually(lambda: len(told) == 50)
    assert told == list(range(50))
    assert len(flushes) == 2


def test_pages_are_flushed_and_the_checkpoint_moves_without_being_asked(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(EAGER)
    for _ in range(20):
        store.append([NewMessage("t", 0, b"x" * 1000)])
    assert eventually(lambda: store.log.flushed == store.log_end)
    path = tmp_path / "store" / "checkpoint"
    assert eventually(lambda: Checkpoint(path).safe_offset == store.log_end)


def test_a_little_is_left_until_the_thorough_flush(open_store: OpenStore) -> None:
    lazy = StoreConfig(
        segment_bytes=SMALL.segment_bytes, flush_interval_ms=10, flush_thorough_ms=600
    )
    store = open_store(lazy)
    store.append([NewMessage("t", 0, b"less than four pages")])
    time.sleep(0.2)
    assert store.log.flushed == 0
    assert eventually(lambda: store.log.flushed == store.log_end)


def test_a_failed_flush_is_told_to_all_and_ends_writing(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = open_store()
    store.append([NewMessage("t", 0, b"x")])
    fdatasync = os.fdatasync

    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(StoreFailedError, match="the disk failed to flush"):
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
    monkeypatch.setattr(os, "fdatasync", lambda _: go_on.wait(10))
    assert not store.wait_flushed(store.log_end, timeout_s=0.05)
    go_on.set()


def test_who_waits_at_the_end_is_served_and_who_comes_later_is_told(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 4096)
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    flusher = Flusher(log, checkpoint, lambda: None, StoreConfig(), lambda _: None)
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

    monkeypatch.setattr("onelog.store.message_store.sync_filesystem", counted)
    store.append([NewMessage("t", n, b"x") for n in range(200)])
    store.flush()
    assert calls == [store.folder]
    assert not any(queue.dirty for queue in store.queue_table)
