"""Verification: a clean store is clean, and damage is reported where it is."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onelog.clock import ManualClock
from onelog.errors import NotAStoreError
from onelog.message import Message, NewMessage, NewRun
from onelog.record.entries import ENTRY, PADDING
from onelog.store.message_store import MessageStore
from onelog.store.readonly import open_readonly
from onelog.store.verify import verify
from tests.e2e.make_store_fixtures import MESSAGES, VERSIONS, fixture_folder
from tests.store.busy_disk import busy_disk
from tests.store.log_records import scan_log
from tests.store.samples import SAMPLE, append_plain, flip, overwrite, write_sample
from tests.store.verify.findings import FIRST, a_plain_message, entry_place, lines, only_line

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sample(tmp_path / "store")
    return tmp_path / "store"


# -- clean stores ------------------------------------------------------------------------------


def test_a_clean_store_is_clean(folder: Path) -> None:
    found = verify(folder)
    assert found.clean
    assert found.problems == ()
    assert found.notes == ()
    assert found.state == "stopped"
    reader = open_readonly(folder)
    assert (found.log_start, found.log_end) == (reader.log_min, reader.log_end)
    assert found.records == len([*scan_log(reader.log, 0)]) - 1
    queues = [(t, q) for t, ids in reader.queues().items() for q in ids]
    assert found.queues == len(queues)
    assert found.queue_entries == sum(reader.max_offset(t, q) for t, q in queues)
    assert found.index_files == len(reader.index.files) > 1
    assert found.index_entries == sum(file.next_entry - 1 for file in reader.index.files)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_that_rocketmq_wrote_is_clean(version: str) -> None:
    found = verify(fixture_folder(version) / "store")
    assert lines(found) == []
    assert found.notes == ()
    assert found.records == MESSAGES
    assert found.index_entries > MESSAGES


def test_an_empty_store_is_clean(tmp_path: Path) -> None:
    MessageStore.open(tmp_path, SAMPLE).close()
    found = verify(tmp_path)
    assert found.clean
    assert found.records == 0


def test_messages_without_a_body_are_as_good_as_any(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        store.append([NewMessage("Orders", 0, body, b"TAGS\x01t\x02") for body in (b"", b"x")])
        store.append_runs(
            [NewRun("Orders", 0, [(0, b"", b""), (0, b"", b"A\x01b\x02")], b"A\x01b\x02")]
        )
    found = verify(tmp_path)
    assert found.clean
    assert found.records == 4
    stored = open_readonly(tmp_path).messages("Orders", 0, 0, 4)
    assert [bytes(each.body) for each in stored] == [b"", b"x", b"", b""]


def test_verification_writes_nothing(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    verify(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_progress_goes_from_front_to_back(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    verify(folder, on_progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert len({total for _, total in told}) == 1
    assert told[-1][0] == told[-1][1] > 0


def test_what_is_no_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        verify(tmp_path)


def test_after_retention_the_store_is_clean(folder: Path) -> None:
    (folder / "commitlog" / FIRST).unlink()
    found = verify(folder)
    assert lines(found) == []
    assert found.log_start == SAMPLE.segment_bytes


def test_a_topic_that_was_deleted_and_made_anew_is_clean(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        append_plain(store, "again", 50)
        append_plain(store, "gone", 30)
        store.delete_topic("again")
        store.delete_topic("gone")
        append_plain(store, "again", 20)
    found = verify(tmp_path)
    assert lines(found) == []
    notes = "\n".join(found.notes)
    assert "'again' queue 0: 25 records" in notes
    assert "'gone' queue 1 has no files, but 15 records" in notes
    assert found.queue_entries == 20


def test_padding_for_lost_messages_is_noted(folder: Path) -> None:
    message = a_plain_message(folder)
    file, at = entry_place(message)
    segment = folder / "commitlog" / FIRST
    # The record now says that it belongs to another topic of the same length, without a queue.
    where = segment.read_bytes().index(message.topic.encode(), message.log_offset)
    overwrite(segment, where, b"Ghosts")
    overwrite(folder / file, at, PADDING)
    found = verify(folder)
    assert [line for line in lines(found) if line.startswith("consumequeue")] == []
    assert any("1 entries are padding" in note for note in found.notes)


# -- damage to the log -------------------------------------------------------------------------


def test_a_flipped_bit_in_a_body(folder: Path) -> None:
    message = a_plain_message(folder)
    body_at = (
        (folder / "commitlog" / FIRST).read_bytes().index(bytes(message.body), message.log_offset)
    )
    flip(folder / "commitlog" / FIRST, body_at + 3)
    found = verify(folder)
    file, _ = entry_place(message)
    after = message.log_offset + message.size
    assert lines(found) == [
        f"commitlog/{FIRST} log offset {message.log_offset}: the body's CRC does not match; "
        f"skipped {message.size} bytes, up to {after}",
        f"{file} entry {message.queue_offset}: points at log offset {message.log_offset}: "
        "the body's CRC does not match",
    ]
    assert found.log_end == open_readonly(folder).log_end


@pytest.mark.parametrize(
    ("at", "content", "reason"),
    [
        (0, b"\x00\x00\x00\x07", "a record claims 7 bytes"),
        (0, b"\x7f\x00\x00\x00", "a record claims"),
        (4, b"\x12\x34\x56\x78", "magic 0x12345678 is not a record's"),
        (28, bytes(8), "the record says it is at 0"),
        (84, b"\x00\x10\x00\x00", "does not fit its record"),
        (20, b"\xff" * 8, "is negative"),
    ],
    ids=["size too small", "size too large", "magic", "place", "body length", "queue offset"],
)
def test_a_damaged_header_is_reported_and_what_follows_is_checked(
    folder: Path, at: int, content: bytes, reason: str
) -> None:
    message = a_plain_message(folder)
    whole = verify(folder).records
    overwrite(folder / "commitlog" / FIRST, message.log_offset + at, content)
    found = verify(folder)
    place = f"commitlog/{FIRST} log offset {message.log_offset}: "
    assert lines(found)[0].startswith(place)
    assert reason in lines(found)[0]
    resumed = re.search(r"up to (\d+)$", lines(found)[0])
    assert resumed
    # Where the length is lost the queues tell where the next record is; a half message of a
    # transaction is in no queue, and may be skipped with it.
    skipped = int(resumed[1]) - message.log_offset
    assert message.size <= skipped < 5 * message.size
    assert found.records >= whole - 4
    file, _ = entry_place(message)
    assert any(line.startswith(f"{file} entry {message.queue_offset}: ") for line in lines(found))


def test_a_header_that_names_another_queue_offset(folder: Path) -> None:
    message = a_plain_message(folder)
    overwrite(folder / "commitlog" / FIRST, message.log_offset + 20, (7777).to_bytes(8, "big"))
    found = verify(folder)
    assert any(
        f"entry 7777: missing, though the log has the record at log offset {message.log_offset}"
        in line
        for line in lines(found)
    )
    assert any(
        f"entry {message.queue_offset}: points at log offset {message.log_offset}: there lies the "
        f"record of {message.topic!r}" in line
        for line in lines(found)
    )


def test_a_hole_in_the_middle_of_a_segment(folder: Path) -> None:
    message = a_plain_message(folder, 4)
    overwrite(folder / "commitlog" / FIRST, message.log_offset, bytes(3000))
    found = verify(folder)
    assert lines(found)[0].startswith(f"commitlog/{FIRST} log offset {message.log_offset}: ")
    assert "skipped" in lines(found)[0]
    assert found.log_end == open_readonly(folder).log_end


def test_a_zeroed_segment_is_skipped_as_a_whole(folder: Path) -> None:
    second = folder / "commitlog" / f"{SAMPLE.segment_bytes:020d}"
    second.write_bytes(bytes(SAMPLE.segment_bytes))
    found = verify(folder)
    assert lines(found)[0] == (
        f"commitlog/{second.name} log offset {SAMPLE.segment_bytes}: nothing is written here; "
        f"skipped {SAMPLE.segment_bytes} bytes, up to {2 * SAMPLE.segment_bytes}"
    )
    assert found.log_end == open_readonly(folder).log_end


def test_a_damaged_blank_record_at_the_end_of_a_segment(folder: Path) -> None:
    content = (folder / "commitlog" / FIRST).read_bytes()
    at = content.rindex(bytes.fromhex("CBD43194")) - 4
    flip(folder / "commitlog" / FIRST, at)
    line = only_line(verify(folder))
    assert line.startswith(f"commitlog/{FIRST} log offset {at}: a blank record claims")
    assert line.endswith(f"up to {SAMPLE.segment_bytes}")


def test_the_last_record_damaged_in_a_store_that_was_stopped_cleanly(folder: Path) -> None:
    last = [m for m in scan_log(open_readonly(folder).log, 0) if isinstance(m, Message)][-1]
    path = sorted((folder / "commitlog").iterdir())[-1]
    flip(path, last.log_offset - int(path.name) + 4)
    found = verify(folder)
    assert lines(found)[0].startswith(f"commitlog/{path.name} log offset {last.log_offset}: after")
    assert any(line.startswith("checkpoint: says that the log is on disk") for line in lines(found))


def test_bytes_behind_the_end_of_the_log(folder: Path) -> None:
    found = verify(folder)
    path = sorted((folder / "commitlog").iterdir())[-1]
    overwrite(path, found.log_end - int(path.name) + 500, b"x")
    line = only_line(verify(folder))
    assert line.startswith(f"commitlog/{path.name} log offset {found.log_end}: after the last")
    assert "501 bytes" in line


def test_a_truncated_segment(folder: Path) -> None:
    os.truncate(folder / "commitlog" / FIRST, 9000)
    found = verify(folder)
    assert lines(found)[0] == (
        f"commitlog/{FIRST}: has 9000 bytes; segments have {SAMPLE.segment_bytes}"
    )
    assert found.log_end == open_readonly_end(folder)


def open_readonly_end(folder: Path) -> int:
    """The end of a log whose first segment cannot be opened."""
    copy = shutil.copytree(folder, folder.with_name("copy"))
    os.truncate(copy / "commitlog" / FIRST, SAMPLE.segment_bytes)
    return int(open_readonly(copy).log_end)


def test_a_missing_segment(folder: Path) -> None:
    missing = SAMPLE.segment_bytes
    (folder / "commitlog" / f"{missing:020d}").unlink()
    found = verify(folder)
    assert lines(found)[0] == (
        f"commitlog/{2 * missing:020d}: the file before it should end at {2 * missing}, "
        f"not at {missing}"
    )
    assert any("the log has 0.." in line for line in lines(found)[1:])


# -- bounds ------------------------------------------------------------------------------------


def test_problems_are_bounded_and_counted(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        append_plain(store, "Orders", 400)
    for path in (tmp_path / "consumequeue" / "Orders" / "0").iterdir():
        content = bytearray(path.read_bytes())
        content[19::20] = bytes(byte ^ 1 for byte in content[19::20])
        path.write_bytes(content)
    found = verify(tmp_path, problems_max=10)
    assert len(found.problems) == 10
    assert found.problems_total == 200
    assert not found.clean


# -- stores in use, and after a crash ----------------------------------------------------------


def test_a_crashed_store_is_clean_up_to_what_recovery_makes_anew(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SAMPLE) as store:
        append_plain(store, "Orders", 100)
        store.flush()
        safe_offset = store.log_end
        append_plain(store, "Orders", 30)
        crashed = shutil.copytree(tmp_path / "store", tmp_path / "crashed")
        end = store.log_end
    path = sorted((crashed / "commitlog").iterdir())[-1]
    overwrite(path, end - int(path.name), b"half a record")
    for queue in ("0", "1"):
        last = sorted((crashed / "consumequeue" / "Orders" / queue).iterdir())[-1]
        last.write_bytes(bytes(last.stat().st_size))
    found = verify(crashed)
    assert found.state == "crashed"
    assert lines(found) == []
    assert any(f"from log offset {safe_offset} on" in note for note in found.notes)
    assert any("13 bytes that are none" in note for note in found.notes)
    assert found.log_end == end


def test_a_last_segment_that_was_being_cut_in_a_crash_is_no_damage(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SAMPLE, ManualClock()) as store:
        while len(store.log.segments) < 2:
            append_plain(store, "Orders", 10)
        last = store.log.segments[-1]
        crashed = shutil.copytree(tmp_path / "store", tmp_path / "crashed")
        os.truncate(crashed / "commitlog" / last.path.name, int(store.log_end) - last.start)
    assert verify(crashed).problems == ()
    (crashed / "abort").unlink()
    assert "segments have" in str(verify(crashed).problems)


@pytest.mark.parametrize("made", ["folder", "file"])
def test_a_new_queue_of_an_old_name_in_a_crashed_store_is_no_damage(
    tmp_path: Path, made: str
) -> None:
    with MessageStore.open(tmp_path / "store", SAMPLE, ManualClock()) as store:
        append_plain(store, "Orders", 10)
        store.delete_topic("Orders")
        # What was deleted is put there, and a thread is about to take it away.
        aside = shutil.ignore_patterns("onelog-spare")
        crashed = shutil.copytree(tmp_path / "store", tmp_path / "crashed", ignore=aside)
    queue = crashed / "consumequeue" / "Orders" / "0"
    queue.mkdir(parents=True)
    if made == "file":
        (queue / FIRST).write_bytes(bytes(SAMPLE.queue_file_entries * ENTRY.size))
    assert verify(crashed).problems == ()


def test_damage_below_the_safe_offset_of_a_crashed_store_is_reported(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SAMPLE) as store:
        append_plain(store, "Orders", 100)
        store.flush()
        crashed = shutil.copytree(tmp_path / "store", tmp_path / "crashed")
    flip(crashed / "consumequeue" / "Orders" / "1" / FIRST, 3 * ENTRY.size + 7)
    assert "entry 3: points at log offset" in only_line(verify(crashed))


@pytest.mark.filterwarnings("ignore:unclosed scandir:ResourceWarning")
def test_a_store_in_use_is_checked_while_it_grows(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.store.samples", str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        ends: set[int] = set()
        try:
            looks = most = 0
            while looks < 30 or len(ends) <= 5:
                looks += 1
                found = verify(tmp_path)
                assert lines(found) == []
                assert found.state == "running"
                # Few, if the thread that makes queue files is behind, and retention is not.
                most = max(most, found.records)
                ends.add(found.log_end)
            assert most > 50
        finally:
            writer.stdin.close()
            writer.wait(60)
    assert writer.returncode == 0
    assert verify(tmp_path).clean


def test_queues_of_a_store_in_use_that_are_in_memory_yet_are_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        append_plain(store, "Orders", 10)
        append_plain(store, "again", 10)
        store.flush()
        store.delete_topic("again")
        store.append([NewMessage("again", 1, b"anew")])
        store.queue_table.get("again", 1).settle()
        with busy_disk(monkeypatch):
            store.append([NewMessage("Orders", 2, b"in memory")])
            store.append([NewMessage("again", 0, b"in memory")])
            append_plain(store, "Orders", 10)
            store.append([NewMessage("again", 1, b"in a file")])
            found = verify(tmp_path)
            assert lines(found) == []
            assert found.log_end > store.log_end - 1_000
        store.flush()
        assert verify(tmp_path).queues == found.queues + 2


def test_what_is_about_to_be_deleted_is_not_held_against_what_came_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        append_plain(store, "Orders", 30)
        append_plain(store, "others", 10)
        store.flush()
        with busy_disk(monkeypatch):
            store.delete_topic("Orders")
            append_plain(store, "Orders", 10)
            append_plain(store, "others", 10)
            assert (tmp_path / "consumequeue" / "Orders").exists()
            assert lines(verify(tmp_path)) == []


def test_a_queue_of_a_store_in_use_that_lost_its_files_is_missing(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        append_plain(store, "Orders", 10)
        store.flush()
        append_plain(store, "Orders", 10)
        shutil.rmtree(tmp_path / "consumequeue" / "Orders" / "1")
        (line,) = lines(verify(tmp_path))
        assert "Orders/1: the queue is missing; the log has 9 records" in line


def test_damage_to_a_store_in_use_is_reported(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        append_plain(store, "Orders", 100)
        overwrite(
            tmp_path / "consumequeue" / "Orders" / "0" / FIRST, 5 * ENTRY.size, bytes(ENTRY.size)
        )
        assert verify(tmp_path).state == "running"
        assert "consumequeue/Orders/0/" in only_line(verify(tmp_path))


# -- nothing makes it stumble ------------------------------------------------------------------


def damage_zero(path: Path, at: int) -> None:
    overwrite(path, at, bytes(min(100, path.stat().st_size - at)))


def damage_cut(path: Path, at: int) -> None:
    os.truncate(path, at)


def damage_flip(path: Path, at: int) -> None:
    flip(path, at, 0x80)


@pytest.mark.parametrize("damage", [damage_zero, damage_cut, damage_flip])
@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "index", "checkpoint"])
def test_no_damage_makes_it_stumble(
    folder: Path, tmp_path: Path, part: str, damage: Callable[[Path, int], None]
) -> None:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and part in str(p))
    for number in range(12):
        path = files[number * 7 % len(files)]
        before = path.read_bytes()
        damage(path, len(before) * (number * 31 % 97) // 97)
        found = verify(folder)
        assert found.clean == (found.problems == ())
        path.write_bytes(before)
    assert verify(folder).clean
