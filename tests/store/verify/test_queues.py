"""Damage to queues is reported at the entry that has it."""

import os
import shutil
from pathlib import Path

import pytest

from onelog.message import Message
from onelog.record.entries import ENTRY
from onelog.store.checkpoint import Checkpoint
from onelog.store.message_store import MessageStore
from onelog.store.readonly import open_readonly
from onelog.store.verify import Verification, verify
from tests.store.log_records import scan_log
from tests.store.samples import SAMPLE, append_plain, flip, overwrite, write_sample
from tests.store.verify.findings import FIRST, a_plain_message, entry_place, lines, only_line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sample(tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (7, "points at log offset {wrong}; its record is at {right}"),
        (11, "says that the record at log offset {right} has"),
        (19, "has tags code"),
    ],
    ids=["log offset", "size", "tags code"],
)
def test_a_flipped_bit_in_a_queue_entry(folder: Path, at: int, reason: str) -> None:
    message = a_plain_message(folder)
    file, place = entry_place(message)
    flip(folder / file, place + at)
    right = int(message.log_offset)
    expected = reason.format(wrong=right ^ 0x10, right=right)
    line = only_line(verify(folder))
    assert line.startswith(f"{file} entry {message.queue_offset}: {expected}")


def test_a_queue_entry_that_was_wiped_out(folder: Path) -> None:
    message = a_plain_message(folder)
    file, place = entry_place(message)
    overwrite(folder / file, place, bytes(ENTRY.size))
    assert only_line(verify(folder)) == (
        f"{file} entry {message.queue_offset}: empty, though the log has its record at log offset "
        f"{message.log_offset}"
    )


def test_a_missing_entry_at_the_end_of_a_queue(folder: Path) -> None:
    reader = open_readonly(folder)
    last = reader.max_offset("Orders", 0) - 1
    log_offset = next(reader.entries("Orders", 0, last, 1))[0]
    file, place = entry_place(reader.message_at(log_offset))
    overwrite(folder / file, place, bytes(ENTRY.size))
    assert only_line(verify(folder)) == (
        f"{file} entry {last}: missing, though the log has the record at log offset {log_offset}"
    )


def test_an_entry_too_many_at_the_end_of_a_queue(folder: Path) -> None:
    reader = open_readonly(folder)
    end = reader.max_offset("Orders", 0)
    other = next(reader.entries("Clicks", 0, 3, 1))
    file, slot = divmod(end, SAMPLE.queue_file_entries)
    name = f"consumequeue/Orders/0/{file * SAMPLE.queue_file_entries * ENTRY.size:020d}"
    overwrite(folder / name, slot * ENTRY.size, ENTRY.pack(*other))
    line = only_line(verify(folder))
    assert line.startswith(f"{name} entry {end}: points at log offset {other[0]}: there lies")
    assert "'Clicks' queue 0" in line
    forget_who_wrote_last(folder)
    found = verify(folder)
    assert found.clean
    assert any("behind its end are 1 old entries" in note for note in found.notes)


def forget_who_wrote_last(folder: Path) -> None:
    """Let the checkpoint look as if RocketMQ had written it after OneLog."""
    overwrite(folder / "checkpoint", 0, (Checkpoint(folder / "checkpoint").log_ms + 1).to_bytes(8))
    assert not Checkpoint(folder / "checkpoint").ours


def test_two_entries_in_the_wrong_order(folder: Path) -> None:
    message = a_plain_message(folder)
    file, place = entry_place(message)
    content = (folder / file).read_bytes()
    assert place + 2 * ENTRY.size <= len(content)
    pair = content[place : place + 2 * ENTRY.size]
    overwrite(folder / file, place, pair[ENTRY.size :] + pair[: ENTRY.size])
    found = verify(folder)
    assert found.problems_total == 2
    assert f"entry {message.queue_offset}: points at" in lines(found)[0]
    assert f"entry {message.queue_offset + 1}: points at" in lines(found)[1]


def test_a_truncated_queue_file(folder: Path) -> None:
    message = a_plain_message(folder)
    file, place = entry_place(message)
    os.truncate(folder / file, place + 5)
    found = verify(folder)
    assert lines(found)[0] == (
        f"{file}: has {place + 5} bytes; queue files have {SAMPLE.queue_file_entries * ENTRY.size}"
    )
    assert any(f"{file} entr" in line and "the log has" in line for line in lines(found)[1:])


@pytest.mark.parametrize("which", [0, 1], ids=["first", "second"])
def test_a_missing_queue_file(tmp_path: Path, which: int) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        append_plain(store, "Orders", 150)
    files = sorted((tmp_path / "consumequeue" / "Orders" / "0").iterdir())
    assert len(files) == 4
    files[which].unlink()
    found = verify(tmp_path)
    assert found.problems_total >= SAMPLE.queue_file_entries
    first = which * SAMPLE.queue_file_entries
    assert any(
        f"entries {first}..{first + 19}: missing" in line or f"entry {first}: empty" in line
        for line in lines(found)
    )


def test_a_missing_queue(folder: Path) -> None:
    shutil.rmtree(folder / "consumequeue" / "Orders" / "2")
    line = only_line_of_many(verify(folder))
    assert line.startswith("consumequeue/Orders/2: the queue is missing; the log has ")


def only_line_of_many(found: Verification) -> str:
    assert len(found.problems) == 1
    assert found.problems_total > 1
    return str(found.problems[0])


def test_an_inner_batch_with_an_entry_too_few(folder: Path) -> None:
    reader = open_readonly(folder)
    batch = next(m for m in scan_log(reader.log, 0) if isinstance(m, Message) and m.sys_flag & 0x80)
    file, place = entry_place(batch)
    slots_left = SAMPLE.queue_file_entries - place // ENTRY.size
    assert slots_left > 2
    overwrite(folder / file, place + 2 * ENTRY.size, bytes(ENTRY.size))
    assert only_line(verify(folder)).startswith(f"{file} entry {batch.queue_offset + 2}: empty")


def test_an_entry_of_an_extra_queue(folder: Path) -> None:
    path = folder / "consumequeue" / "fan-out"
    queue = sorted(path.iterdir())[0]
    flip(queue / FIRST, ENTRY.size + 19)
    line = only_line(verify(folder))
    assert line.startswith(f"consumequeue/fan-out/{queue.name}/{FIRST} entry 1: has tags code")


def test_other_delay_levels_have_to_be_told(folder: Path) -> None:
    assert verify(folder, delay_levels="1s").problems_total > 0
    lines_found = lines(verify(folder, delay_levels="1s"))
    assert all(line.startswith("consumequeue/SCHEDULE_TOPIC_XXXX/17") for line in lines_found)
