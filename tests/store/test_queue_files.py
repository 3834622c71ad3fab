"""Files of queues are made and deleted by a thread, and nobody waits for a disk that is busy."""

import errno
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from onelog.errors import StoreError
from onelog.message import NewMessage
from onelog.record.entries import ENTRY, ENTRY_BYTES
from onelog.store import queue_files
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.message_store import MessageStore
from onelog.store.queue_files import FOLDER, YOUNG_BYTES, MapBudget, QueueFiles
from onelog.store.segment import file_name
from tests.store.busy_disk import busy_disk
from tests.store.conftest import OpenStore
from tests.store.samples import SAMPLE

FILE = 60_000
FIRST = file_name(0)


def bodies(store: MessageStore, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    return [bytes(each.body) for each in store.messages(topic, queue_id, 0, 10_000)]


def entries(first: int, count: int) -> bytes:
    return b"".join(ENTRY.pack(first + n, 10, 0) for n in range(count))


def queue_in(folder: Path, files: QueueFiles | None) -> ConsumeQueue:
    return ConsumeQueue(folder, "t", FILE, MapBudget(64), files=files, is_new=True)


def test_messages_of_a_new_queue_do_not_wait_for_the_disk(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    with busy_disk(monkeypatch) as works:
        for number in range(20):
            (appended,) = store.append([NewMessage("t", 0, b"%d" % number)])
            assert appended.queue_offset == number
        assert bodies(store) == [b"%d" % number for number in range(20)]
        assert not (store.folder / "consumequeue" / "t").exists()
        works.set()
        store.flush()
        assert (store.folder / "consumequeue" / "t" / "0" / FIRST).exists()
        store.append([NewMessage("t", 0, b"20")])
    store.close()
    again = open_store()
    assert again.recovery.clean
    assert bodies(again) == [b"%d" % number for number in range(21)]


def test_a_checkpoint_waits_for_the_files(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    with busy_disk(monkeypatch) as works:
        store.append([NewMessage("t", 0, b"x")])
        flushing = threading.Thread(target=store.flush)
        flushing.start()
        flushing.join(0.05)
        assert flushing.is_alive()
        assert store.checkpoints.safe_offset < store.log_end
        works.set()
        flushing.join(60)
    assert store.checkpoints.safe_offset == store.log_end


def test_what_was_in_memory_is_found_in_the_log_after_a_crash(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.append([NewMessage("old", 0, b"before")])
    store.flush()
    with busy_disk(monkeypatch):
        store.append([NewMessage("t", 3, b"in no file")])
        shutil.copytree(store.folder, tmp_path / "crashed")
    with MessageStore.open(tmp_path / "crashed", store.config) as again:
        assert bodies(again, "t", 3) == [b"in no file"]
        assert bodies(again, "old") == [b"before"]


def test_a_topic_that_is_deleted_while_it_is_made_does_not_come_back(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.append([NewMessage("t", 1, b"in a file")])
    with busy_disk(monkeypatch) as works:
        store.append([NewMessage("t", 0, b"in memory")])
        store.delete_topic("t")
        assert bodies(store) == bodies(store, "t", 1) == []
        for queue_id in (0, 1):
            (appended,) = store.append([NewMessage("t", queue_id, b"new")])
            assert appended.queue_offset == 0
        works.set()
        store.flush()
        store.append([NewMessage("t", 0, b"newer")])
    store.close()
    again = open_store()
    assert again.recovery.clean
    assert bodies(again) == [b"new", b"newer"]
    assert bodies(again, "t", 1) == [b"new"]


def test_recovery_waits_for_the_queues_of_a_topic_that_was_deleted_and_made_again(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.append([NewMessage("t", 0, b"old"), NewMessage("gone", 0, b"x")])
    store.flush()
    shutil.copytree(store.folder / "consumequeue", tmp_path / "queues")
    for topic in ("t", "gone"):
        store.delete_topic(topic)
    store.append([NewMessage("t", 0, b"new")])
    aside = shutil.ignore_patterns(FOLDER, "consumequeue")
    crashed = shutil.copytree(store.folder, tmp_path / "crashed", ignore=aside)
    shutil.copytree(tmp_path / "queues", crashed / "consumequeue")
    rename = os.rename

    def slowly(source: Path, target: Path) -> None:
        time.sleep(0.05)
        rename(source, target)

    monkeypatch.setattr(os, "rename", slowly)
    monkeypatch.setattr(queue_files, "WAIT_SECONDS", 0.0)
    with MessageStore.open(crashed, store.config) as again:
        assert bodies(again) == [b"new"]
        assert again.queues() == {"t": [0]}


def test_a_disk_that_fails_is_tried_again(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = open_store()
    with monkeypatch.context() as broken:
        broken.setattr(os, "posix_fallocate", full)
        with busy_disk(monkeypatch):
            store.append([NewMessage("t", 0, b"1"), NewMessage("t", 0, b"2")])
        with pytest.raises(StoreError):
            store.flush()
        assert store.checkpoints.safe_offset < store.log_end
    store.append([NewMessage("t", 0, b"3")])
    store.flush()
    store.close()
    assert bodies(open_store()) == [b"1", b"2", b"3"]


def test_what_cannot_be_deleted_holds_back_the_checkpoint_and_new_files(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    store = open_store()
    store.append([NewMessage("t", 0, b"old")])
    store.flush()
    with monkeypatch.context() as broken:
        broken.setattr(os, "rename", read_only)
        broken.setattr(shutil, "rmtree", read_only)
        store.delete_topic("t")
        with pytest.raises(StoreError):
            store.append([NewMessage("t", 0, b"refused")])
        with pytest.raises(StoreError):
            store.flush()
    store.append([NewMessage("t", 0, b"new")])
    assert bodies(store) == [b"new"]
    store.close()
    assert bodies(open_store()) == [b"new"]


@pytest.mark.parametrize("count", [1, 200, YOUNG_BYTES // ENTRY_BYTES, FILE + 5])
def test_a_queue_that_began_in_memory_is_as_good_as_any_other(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = QueueFiles(tmp_path / FOLDER)
    folders = [tmp_path / "a" / "0", tmp_path / "b" / "0"]
    queues = [queue_in(folders[0], files), queue_in(folders[1], None)]
    with busy_disk(monkeypatch) as works:
        for queue in queues:
            if count * ENTRY_BYTES > YOUNG_BYTES:
                works.set()  # For so many it waits.
            for first, some in ((0, 1), (1, count - 1)) if count > 1 else ((0, 1),):
                queue.reserve(some)
                queue.put(entries(first, some))
            assert list(queue.entries(0, count)) == [(n, 10, 0) for n in range(count)]
            assert queue.read_entry(count - 1) == (count - 1, 10, 0)
    for queue in queues:
        queue.settle()
        queue.flush()
    contents = [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders]
    assert contents[0] == contents[1]
    queues[0].cut(0)
    assert not folders[0].exists()
    files.close()


def test_a_new_queue_that_gets_no_entry_leaves_nothing(tmp_path: Path) -> None:
    files = QueueFiles(tmp_path / FOLDER)
    queue = queue_in(tmp_path / "a" / "0", files)
    queue.reserve(1)
    queue.release(queue.end)
    assert not (tmp_path / "a" / "0").exists()
    files.close()


def test_entries_that_come_while_the_file_is_made_are_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread writes, the other changes the map under it, a hundred times."""
    monkeypatch.setattr(queue_files, "WAIT_SECONDS", 0.0)
    files = QueueFiles(tmp_path / FOLDER)
    for number in range(100):
        queue = queue_in(tmp_path / "t" / str(number), files)
        for at in range(50):
            queue.reserve(1)
            queue.put(entries(at, 1))
        queue.settle()
        raw = (tmp_path / "t" / str(number) / FIRST).read_bytes()
        assert raw[: 50 * ENTRY_BYTES] == entries(0, 50)
        assert not any(raw[50 * ENTRY_BYTES :])
    files.close()


def test_what_a_crash_left_is_deleted(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        store.append([NewMessage("t", 0, b"x")])
    (tmp_path / FOLDER / "deleted-7").mkdir(parents=True)
    (tmp_path / FOLDER / "deleted-7" / FIRST).write_bytes(b"old")
    with MessageStore.open(tmp_path, SAMPLE):
        assert not (tmp_path / FOLDER).exists()
