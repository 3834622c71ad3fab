"""What a folder tells about the store in it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onelog.config import StoreConfig
from onelog.errors import (
    NotAStoreError,
    StoreCorruptError,
    StoreLockedError,
    StoreVersionError,
)
from onelog.message import NewMessage, encode_properties
from onelog.store.checkpoint import StoreLock
from onelog.store.folder import (
    IndexGeometry,
    index_geometry,
    lock_holder,
    queue_file_entries,
    require_store,
    segment_bytes,
    written_by,
)
from onelog.store.message_store import MessageStore
from tests.store.samples import SAMPLE, flip, write_sample

LOCK_AND_WAIT = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_store_is_one_that_onelog_or_rocketmq_could_have_written(tmp_path: Path) -> None:
    write_sample(tmp_path / "a", 3)
    require_store(tmp_path / "a")
    MessageStore.open(tmp_path / "empty", SAMPLE).close()
    require_store(tmp_path / "empty")
    (tmp_path / "foreign" / "commitlog").mkdir(parents=True)
    (tmp_path / "foreign" / "rocksdbstore").mkdir()
    require_store(tmp_path / "foreign")


def test_what_is_no_store_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("x")
    write_sample(tmp_path / "store", 3)
    for path, reason in [
        (tmp_path / "nowhere", "there is no store in .*nowhere: the folder does not exist"),
        (tmp_path / "file", "there is no store in .*file: it is a file"),
        (tmp_path / "empty", "there is no store in .*empty: .*is empty"),
        (tmp_path / "photos", "there is no store in .*photos: .*cat.jpg"),
        (tmp_path / "store" / "commitlog", "name the folder that has `commitlog`"),
    ]:
        with pytest.raises(NotAStoreError, match=reason):
            require_store(path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("dledger-n0", "DLedger"), ("consumequeue_r", "RocksDB"), ("onelog.json", "format 99")],
)
def test_a_store_in_a_format_we_do_not_read_is_refused(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "commitlog").mkdir()
    if name == "onelog.json":
        (tmp_path / name).write_text('{"format": 99}')
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(StoreVersionError, match=reason):
        require_store(tmp_path)


def test_sizes_are_read_off_the_files(tmp_path: Path) -> None:
    write_sample(tmp_path)
    assert segment_bytes(tmp_path) == SAMPLE.segment_bytes
    assert queue_file_entries(tmp_path) == SAMPLE.queue_file_entries


def test_a_file_that_was_cut_off_does_not_decide_the_size(tmp_path: Path) -> None:
    write_sample(tmp_path)
    for path in [*(tmp_path / "commitlog").iterdir()][:1]:
        os.truncate(path, 1000)
    for path in (tmp_path / "consumequeue" / "Orders" / "0").iterdir():
        os.truncate(path, 40)
    assert segment_bytes(tmp_path) == SAMPLE.segment_bytes
    assert queue_file_entries(tmp_path) == SAMPLE.queue_file_entries


def test_without_files_the_sizes_are_the_usual_ones(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert segment_bytes(tmp_path) == 1 << 30
    assert queue_file_entries(tmp_path) == 300_000
    assert index_geometry(tmp_path) == (5_000_000, 20_000_000)


def test_queue_files_whose_size_is_no_multiple_of_an_entry_are_refused(tmp_path: Path) -> None:
    queue = tmp_path / "consumequeue" / "t" / "0"
    queue.mkdir(parents=True)
    (queue / f"{0:020d}").write_bytes(bytes(30))
    with pytest.raises(StoreCorruptError, match="30 bytes"):
        queue_file_entries(tmp_path)


@pytest.mark.parametrize(
    ("slots", "entries"), [(64, 256), (32, 100), (1, 7), (1000, 50), (7, 7), (333, 2222)]
)
def test_the_geometry_of_index_files_is_found_from_their_content(
    tmp_path: Path, slots: int, entries: int
) -> None:
    config = StoreConfig(segment_bytes=1 << 20, index_slots=slots, index_entries=entries)
    with MessageStore.open(tmp_path, config) as store:
        for number in range(60):
            properties = encode_properties({"KEYS": f"key-{number} other-{number % 7}"})
            store.append([NewMessage("Orders", 0, b"x", properties)])
    assert index_geometry(tmp_path) == (slots, entries)


def test_one_key_is_enough_to_find_the_geometry(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        store.append([NewMessage("Orders", 0, b"x", encode_properties({"KEYS": "only"}))])
    assert index_geometry(tmp_path) == (SAMPLE.index_slots, SAMPLE.index_entries)


def test_a_damaged_index_gets_no_geometry_unless_it_is_told(tmp_path: Path) -> None:
    write_sample(tmp_path)
    path = sorted((tmp_path / "index").iterdir())[0]
    first_used = next(at for at in range(40, 296, 4) if any(path.read_bytes()[at : at + 4]))
    flip(path, first_used)
    assert index_geometry(tmp_path) is None
    told = IndexGeometry(SAMPLE.index_slots, SAMPLE.index_entries)
    assert index_geometry(tmp_path, slots=64, entries=200) == told
    assert index_geometry(tmp_path, slots=64) == told
    assert index_geometry(tmp_path, entries=200) == told


@pytest.mark.parametrize(("slots", "entries"), [(64, 201), (65, None), (None, 10_000)])
def test_a_geometry_that_the_files_cannot_have_is_refused(
    tmp_path: Path, slots: int | None, entries: int | None
) -> None:
    write_sample(tmp_path)
    with pytest.raises(StoreVersionError, match="4296 bytes"):
        index_geometry(tmp_path, slots, entries)


def test_the_writer_is_who_signed(tmp_path: Path) -> None:
    write_sample(tmp_path / "ours", 3)
    assert (written_by(tmp_path / "ours") or "").startswith("onelog ")
    (tmp_path / "theirs" / "commitlog").mkdir(parents=True)
    assert written_by(tmp_path / "theirs") is None


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[int]:
    """Locks the store's lock file as Java does, with a POSIX lock only."""
    (tmp_path / "lock").write_text("lock")
    command = [sys.executable, "-c", LOCK_AND_WAIT, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield process.pid
        process.stdin.close()
        process.wait(60)


def test_the_holder_of_the_lock_is_named(tmp_path: Path, other_process: int) -> None:
    assert lock_holder(tmp_path) == other_process
    with pytest.raises(StoreLockedError):
        StoreLock(tmp_path / "lock")


def test_nobody_holds_the_lock_of_a_stopped_store(tmp_path: Path) -> None:
    assert lock_holder(tmp_path) is None
    write_sample(tmp_path, 3)
    assert lock_holder(tmp_path) is None


def test_asking_who_holds_the_lock_does_not_drop_our_own(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE):
        assert lock_holder(tmp_path) == os.getpid()
        tried = subprocess.run(
            [sys.executable, "-c", LOCK_AND_WAIT, str(tmp_path / "lock")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "BlockingIOError" in tried.stderr
    assert lock_holder(tmp_path) is None
