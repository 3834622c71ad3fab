"""Stores opened only to be read: OneLog's, RocketMQ's, in use, crashed."""

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from onelog.config import StoreConfig
from onelog.errors import (
    NotAStoreError,
    OnelogError,
    StoreCorruptError,
    StoreFailedError,
    StoreVersionError,
)
from onelog.message import Message
from onelog.record.entries import ENTRY
from onelog.store.mending import occupies
from onelog.store.message_store import MessageStore
from onelog.store.reader import StoreReader
from onelog.store.readonly import open_readonly
from tests.e2e.make_store_fixtures import CONFIG, VERSIONS, fixture_folder
from tests.e2e.store_lines import differences, store_lines
from tests.store.log_records import scan_log
from tests.store.samples import SAMPLE, append_plain, flip, overwrite, write_sample

ROOT = Path(__file__).resolve().parents[2]


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything that a program could have changed about a folder."""
    return {
        str(path): (
            path.stat().st_mtime_ns,
            path.stat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [folder, *folder.rglob("*")]
    }


def bodies(reader: StoreReader, topic: str) -> list[bytes]:
    return sorted(
        bytes(message.body)
        for queue_id in reader.queues().get(topic, [])
        for message in reader.messages(topic, queue_id, reader.min_offset(topic, queue_id), 10_000)
    )


def everything(reader: StoreReader) -> dict[tuple[str | int, ...], object]:
    """The queues, what their entries lead to, and what the keys find."""
    found: dict[tuple[str | int, ...], object] = {}
    for topic, queue_ids in reader.queues().items():
        for queue_id in queue_ids:
            low, high = reader.min_offset(topic, queue_id), reader.max_offset(topic, queue_id)
            found[topic, queue_id] = low, high
            for offset, entry in enumerate(reader.entries(topic, queue_id, low, high), start=low):
                message = reader.message_at(entry[0])
                found[topic, queue_id, offset] = entry, message
                for key in message.keys:
                    found[topic, key] = reader.find_by_key(message.topic, key)
    return found


def test_a_reader_finds_what_the_writer_found(tmp_path: Path) -> None:
    write_sample(tmp_path)
    with MessageStore.open(tmp_path, SAMPLE) as store:
        written = everything(store)
    assert len(written) > 250
    assert everything(open_readonly(tmp_path)) == written


@pytest.mark.parametrize("version", VERSIONS)
def test_a_reader_finds_what_rocketmq_found(version: str) -> None:
    text = (fixture_folder(version) / "expected.jsonl").read_text(encoding="utf-8")
    expected = [json.loads(line) for line in text.splitlines()]
    reader = open_readonly(fixture_folder(version) / "store")
    # The lines are made from what a writer and a reader have in common.
    assert differences(expected, store_lines(cast(MessageStore, reader))) == []
    assert reader.log.segment_bytes == CONFIG.segment_bytes


@pytest.mark.parametrize("state", ["running", "stopped", "crashed"])
def test_nothing_is_written_or_created(tmp_path: Path, state: str) -> None:
    folder = tmp_path / "store"
    with MessageStore.open(folder, SAMPLE) as store:
        append_plain(store, "Orders", 300)
        store.flush()
        if state == "crashed":
            folder = shutil.copytree(folder, tmp_path / "copy")
        if state != "stopped":
            before = snapshot(folder)
            assert len(bodies(open_readonly(folder), "Orders")) == 300
            assert snapshot(folder) == before
    if state == "stopped":
        before = snapshot(folder)
        reader = open_readonly(folder)
        assert len(bodies(reader, "Orders")) == 300
        assert len(reader.find_by_key("Orders", "Orders-7")) == 1
        assert snapshot(folder) == before


def test_an_empty_store_opens_without_getting_folders(tmp_path: Path) -> None:
    MessageStore.open(tmp_path, SAMPLE).close()
    assert open_readonly(tmp_path).queues() == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "lock", "onelog.json"]


def test_a_reader_sees_the_moment_at_which_it_was_opened(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        append_plain(store, "Orders", 30)
        reader = open_readonly(tmp_path)
        append_plain(store, "Orders", 5)
        assert len(bodies(reader, "Orders")) == 30
        assert len(bodies(open_readonly(tmp_path), "Orders")) == 35


def test_a_reader_does_not_keep_a_broker_from_starting(tmp_path: Path) -> None:
    write_sample(tmp_path)
    reader = open_readonly(tmp_path)
    with MessageStore.open(tmp_path, SAMPLE):
        assert reader.message_at(0).log_offset == 0


# When a folder vanishes under it, `Queues` leaves the listing to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed scandir:ResourceWarning")
def test_every_look_at_a_store_in_use_is_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.store.samples", str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        starts: set[int] = set()
        ends: set[int] = set()
        try:
            looks = 0
            # Retention has deleted something while we looked, and more was written.
            while looks < 60 or len(starts) == 1 or len(ends) <= 10:
                looks += 1
                reader = open_readonly(tmp_path)
                starts.add(reader.log_min)
                ends.add(reader.log_end)
                for topic, queue_ids in reader.queues().items():
                    for queue_id in queue_ids:
                        check_queue(reader, topic, queue_id)
        finally:
            writer.stdin.close()
            writer.wait(60)
        assert writer.returncode == 0


def check_queue(reader: StoreReader, topic: str, queue_id: int) -> None:
    """The first and the last messages of a queue are in the log, whole, at their places."""
    low, high = reader.min_offset(topic, queue_id), reader.max_offset(topic, queue_id)
    for offset in {*range(low, min(low + 3, high)), *range(max(low, high - 3), high)}:
        try:
            entries = [*reader.entries(topic, queue_id, offset, 1)]
        except StoreFailedError as error:
            # The queue's file was deleted since; its name is all that the reader had of it.
            if isinstance(error.__cause__, FileNotFoundError):
                return
            raise
        message = reader.message_at(entries[0][0])
        assert message.size == entries[0][1]
        assert occupies(message, topic, queue_id, offset)


# -- stores that are not in order --------------------------------------------------------------


def crashed_copy(tmp_path: Path, count: int = 60) -> tuple[Path, list[Message]]:
    """A store whose process ended without closing it, and its messages in the order of the log."""
    with MessageStore.open(tmp_path / "store", SAMPLE) as store:
        append_plain(store, "Orders", count)
        messages = [found for found in scan_log(store.log, 0) if isinstance(found, Message)]
        return shutil.copytree(tmp_path / "store", tmp_path / "crashed"), messages


def test_a_crashed_store_is_read_up_to_its_last_whole_record(tmp_path: Path) -> None:
    folder, messages = crashed_copy(tmp_path)
    last = messages[-1]
    overwrite(folder / "commitlog" / f"{0:020d}", last.log_offset + last.size - 20, bytes(20))
    reader = open_readonly(folder)
    assert reader.log_end == last.log_offset
    assert len(bodies(reader, "Orders")) == len(messages) - 1
    assert reader.max_offset("Orders", last.queue_id) == last.queue_offset


def test_records_that_did_not_reach_their_queue_are_in_the_log(tmp_path: Path) -> None:
    folder, messages = crashed_copy(tmp_path)
    shutil.rmtree(folder / "consumequeue" / "Orders" / "1")
    (folder / "checkpoint").unlink()
    reader = open_readonly(folder)
    assert reader.log_end == messages[-1].log_offset + messages[-1].size
    assert reader.queues() == {"Orders": [0]}


def test_old_entries_behind_the_end_of_a_queue_are_not_shown(tmp_path: Path) -> None:
    write_sample(tmp_path)
    reader = open_readonly(tmp_path)
    end = reader.max_offset("Orders", 0)
    other = next(reader.entries("Clicks", 0, 3, 1))
    path = sorted((tmp_path / "consumequeue" / "Orders" / "0").iterdir())[-1]
    assert end % SAMPLE.queue_file_entries
    (tmp_path / "checkpoint").unlink()  # Only OneLog clears what it cuts.
    overwrite(path, end % SAMPLE.queue_file_entries * ENTRY.size, ENTRY.pack(*other))
    assert open_readonly(tmp_path).max_offset("Orders", 0) == end


def test_damage_to_the_last_message_of_a_clean_store_is_not_hidden(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        append_plain(store, "Orders", 20)
        end = store.log_end
    overwrite(tmp_path / "commitlog" / f"{0:020d}", end - 100, bytes(100))
    reader = open_readonly(tmp_path)
    assert reader.max_offset("Orders", 1) == 10
    with pytest.raises(StoreCorruptError):
        reader.message_at(next(reader.entries("Orders", 1, 9, 1))[0])


def test_a_queue_begins_with_the_oldest_message_that_is_left(tmp_path: Path) -> None:
    write_sample(tmp_path)
    first = sorted((tmp_path / "commitlog").iterdir())[0]
    first.unlink()
    reader = open_readonly(tmp_path)
    assert reader.log_min == SAMPLE.segment_bytes
    assert reader.min_offset("Orders", 0) > 0
    for topic, queue_ids in reader.queues().items():
        for queue_id in queue_ids:
            check_queue(reader, topic, queue_id)


def test_a_last_segment_without_its_end_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_sample(tmp_path)
    last = sorted((tmp_path / "commitlog").iterdir())[-1]
    os.truncate(last, 5000)
    reader = open_readonly(tmp_path)
    assert reader.log_end <= int(last.name)
    assert "5000 of 16384 bytes" in caplog.text


def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    write_sample(tmp_path)
    sorted((tmp_path / "commitlog").iterdir())[1].unlink()
    with pytest.raises(StoreCorruptError, match="does not follow"):
        open_readonly(tmp_path)


def test_a_file_that_vanishes_once_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that leads nowhere is what a file looks like that was deleted after the listing."""
    write_sample(tmp_path)
    ghost = tmp_path / "consumequeue" / "Clicks" / "0" / f"{400 * 20:020d}"
    ghost.symlink_to(tmp_path / "nowhere")
    with pytest.raises(OnelogError, match="No such file"):
        open_readonly(tmp_path)
    # It is gone when the folder is looked at again.
    monkeypatch.setattr(time, "sleep", lambda _: ghost.unlink(missing_ok=True))
    assert open_readonly(tmp_path).queues()["Clicks"] == [0, 1]
    assert not ghost.is_symlink()


# -- index -------------------------------------------------------------------------------------


def test_an_index_that_cannot_be_read_is_left_out_with_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_sample(tmp_path)
    path = sorted((tmp_path / "index").iterdir())[0]
    first_used = next(at for at in range(40, 296, 4) if any(path.read_bytes()[at : at + 4]))
    flip(path, first_used)
    with caplog.at_level(logging.WARNING):
        reader = open_readonly(tmp_path)
    assert "index_slots" in caplog.text
    assert reader.find_by_key("Orders", "order-1") == []
    told = open_readonly(tmp_path, SAMPLE.index_slots, SAMPLE.index_entries)
    assert told.find_by_key("Orders", "order-1") != []


def test_an_impossible_geometry_is_refused(tmp_path: Path) -> None:
    write_sample(tmp_path)
    with pytest.raises(StoreVersionError, match="index file"):
        open_readonly(tmp_path, index_slots=5)


def test_the_usual_geometry_is_taken_without_a_look(tmp_path: Path) -> None:
    config = StoreConfig(segment_bytes=1 << 20)
    write_sample(tmp_path, 20, config)
    reader = open_readonly(tmp_path)
    assert reader.index.files[0].entries_count == 20_000_000
    message = reader.message_at(0)
    assert reader.find_by_key(message.topic, message.keys[0])[-1] == 0


# -- what cannot be opened ---------------------------------------------------------------------


def test_a_missing_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="there is no store in"):
        open_readonly(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_file_in_the_place_of_the_folder_is_no_store() -> None:
    with pytest.raises(NotAStoreError, match="it is a file"):
        open_readonly(Path("/proc/version"))


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_sample(folder / "store")
        for each in (folder / "store", *(folder / "store").rglob("*")):
            each.chmod(0o755)  # As somebody has left it who wants others to read it.
        yield folder / "store"


@pytest.mark.parametrize("locked", [".", "commitlog", "consumequeue/Orders/0", "checkpoint"])
def test_a_store_that_may_not_be_read_says_so(public_folder: Path, locked: str) -> None:
    (public_folder / locked).chmod(0)
    try:
        message = error_as_nobody(public_folder)
    finally:
        (public_folder / locked).chmod(0o755)
    assert message.startswith("StorePermissionError: may not ")
    assert str(public_folder) in message


def test_only_the_rights_keep_it_from_being_read(public_folder: Path) -> None:
    assert error_as_nobody(public_folder) == "no error"


def error_as_nobody(folder: Path) -> str:
    """The error that a user without special rights gets from `open_readonly`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            open_readonly(folder)
            os.write(writing, b"no error")
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, "rb") as told:
        return told.read().decode()
