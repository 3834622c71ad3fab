"""Folders of queues that are made before they are needed."""

import errno
import os
import time
from pathlib import Path

import pytest

from onelog.message import NewMessage
from onelog.record.entries import ENTRY, ENTRY_BYTES
from onelog.store import spare_queues
from onelog.store.consumequeue import ConsumeQueue, MapBudget
from onelog.store.message_store import MessageStore
from onelog.store.segment import file_name
from onelog.store.spare_queues import FOLDER, MISSES_MIN, STOCK_MAX, STOCK_MIN, SpareQueues
from tests.store.samples import SAMPLE

FILE = 1_000
FIRST = file_name(0)


def stock(folder: Path, quiet_seconds: float = 0.0) -> SpareQueues:
    return SpareQueues(folder / FOLDER, FILE * ENTRY_BYTES, quiet_seconds=quiet_seconds)


def in_stock(folder: Path) -> int:
    """How many are there, whole."""
    return len(list((folder / FOLDER).glob(f"*/{FIRST}")))


def wait_for(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while in_stock(folder) < count:
        assert time.monotonic() < deadline, in_stock(folder)
        time.sleep(0.005)


def filled(folder: Path) -> SpareQueues:
    spares = stock(folder)
    for number in range(MISSES_MIN):
        assert not spares.take(folder / str(number))
    wait_for(folder, STOCK_MIN)
    return spares


def test_a_store_with_a_few_queues_has_no_stock(tmp_path: Path) -> None:
    spares = stock(tmp_path)
    for number in range(MISSES_MIN - 1):
        assert not spares.take(tmp_path / str(number))
    spares.close()
    assert list(tmp_path.iterdir()) == []


def test_what_is_taken_is_a_folder_with_an_empty_first_file(tmp_path: Path) -> None:
    spares = filled(tmp_path)
    assert spares.take(tmp_path / "queue")
    (file,) = (tmp_path / "queue").iterdir()
    assert file.name == FIRST
    assert file.read_bytes() == bytes(FILE * ENTRY_BYTES)
    assert file.stat().st_blocks > 0, "the first entries have no room on the disk"
    spares.close()
    assert [each.name for each in tmp_path.iterdir()] == ["queue"]


def test_a_stock_that_was_not_enough_grows(tmp_path: Path) -> None:
    spares = filled(tmp_path)
    number = MISSES_MIN
    while spares.take(tmp_path / str(number)):
        number += 1
    wait_for(tmp_path, STOCK_MAX)
    spares.close()


def test_the_stock_is_filled_when_no_queue_is_being_made(tmp_path: Path) -> None:
    spares = stock(tmp_path, quiet_seconds=3_600)
    for number in range(MISSES_MIN):
        spares.take(tmp_path / str(number))
    assert in_stock(tmp_path) == 0
    began = time.monotonic()
    spares.close()
    assert time.monotonic() - began < 60


def test_a_place_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    spares = filled(tmp_path)
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "file").touch()
    assert not spares.take(tmp_path / "queue")
    assert [each.name for each in (tmp_path / "queue").iterdir()] == ["file"]
    spares.close()


def test_what_a_crash_left_is_deleted(tmp_path: Path) -> None:
    (tmp_path / FOLDER / "7").mkdir(parents=True)
    (tmp_path / FOLDER / "7" / FIRST).write_bytes(b"old")
    stock(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_only_means_that_there_is_no_stock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    spares = stock(tmp_path)
    for number in range(MISSES_MIN):
        assert not spares.take(tmp_path / str(number))
    spares.close()
    assert caplog.text.count("no queues can be made ahead") <= 1


def test_a_queue_from_the_stock_is_as_good_as_any_other(tmp_path: Path) -> None:
    spares = filled(tmp_path)
    budget = MapBudget(64)
    folders = [tmp_path / "a" / "0", tmp_path / "b" / "0"]
    queues = [
        ConsumeQueue(folders[0], "a", 0, FILE, budget, spares=spares),
        ConsumeQueue(folders[1], "b", 0, FILE, budget),
    ]
    for queue in queues:
        queue.reserve(FILE + 5)
        queue.put(b"".join(ENTRY.pack(n, 10, 0) for n in range(FILE + 5)))
        queue.flush()
    contents = [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders]
    assert contents[0] == contents[1]
    assert len(contents[0]) == 2
    queues[0].delete()
    assert not folders[0].exists()
    spares.close()


def test_a_queue_from_the_stock_that_gets_no_entry_leaves_nothing(tmp_path: Path) -> None:
    spares = filled(tmp_path)
    queue = ConsumeQueue(tmp_path / "a" / "0", "a", 0, FILE, MapBudget(64), spares=spares)
    queue.reserve(1)
    queue.release(queue.end)
    assert not (tmp_path / "a" / "0").exists()
    spares.close()


def test_a_store_keeps_what_was_written_to_queues_from_the_stock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare_queues, "QUIET_SECONDS", 0.0)
    places = [(f"topic-{number // 4}", number % 4) for number in range(64)]
    with MessageStore.open(tmp_path, SAMPLE) as store:
        for number, (topic, queue_id) in enumerate(places):
            store.append([NewMessage(topic, queue_id, b"%d" % number)])
            if number == MISSES_MIN - 1:
                wait_for(tmp_path, STOCK_MIN)
        assert len(list((tmp_path / "consumequeue").glob(f"*/*/{FIRST}"))) == len(places)
    assert not (tmp_path / FOLDER).exists()
    with MessageStore.open(tmp_path, SAMPLE) as store:
        assert store.recovery.clean
        for number, (topic, queue_id) in enumerate(places):
            (message,) = store.messages(topic, queue_id, 0, 10)
            assert bytes(message.body) == b"%d" % number
