"""Sorted files of the timer queue."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.schedule.progress import DeliveryProgress
from onelog.core.schedule.sorted_files import (
    Columns,
    SortedFile,
    join,
    load_sorted,
    merge,
    sorted_files_in,
    write_sorted,
)
from onelog.errors import StoreCorruptError, StoreFullError

Entries = list[tuple[int, int]]


def columns(entries: Entries) -> Columns:
    return Columns(
        np.array([due_ms for due_ms, _ in entries], np.int64),
        np.array([offset for _, offset in entries], np.int64),
    )


def entries_of(found: Columns) -> Entries:
    return list(zip(found.dues.tolist(), found.offsets.tolist(), strict=True))


def write(folder: Path, entries: Entries, first: int = 0, end: int = 10) -> SortedFile:
    return write_sorted(folder, first, end, 4_096, columns(entries))


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    entries = [(5, ~2), (5, 1), (5, 3), (9, 0)]
    written = write(tmp_path / "new", entries, 20, 30)
    assert written.path.name == "00000000000000000020-00000000000000000030"
    found = load_sorted(written.path)
    assert (found.first, found.end, found.last_at, len(found)) == (20, 30, 4_096, 4)
    assert entries_of(found.columns) == entries
    assert [path.name for path in (tmp_path / "new").iterdir()] == [written.path.name]


def test_a_run_may_be_empty(tmp_path: Path) -> None:
    file = load_sorted(write(tmp_path, []).path)
    file.skip(DeliveryProgress())
    assert (len(file), file.live, file.is_done(DeliveryProgress())) == (0, 0, True)


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, [(5, 1)]).path
    whole = path.read_bytes()
    for at in range(len(whole)):
        # The range is also in the name, which the wheel compares.
        if not 16 <= at < 40:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(StoreCorruptError):
                load_sorted(path)


@pytest.mark.parametrize("size", [0, 7, 47, 50])
def test_a_cut_run_is_noticed(tmp_path: Path, size: int) -> None:
    path = write(tmp_path, [(5, 1)]).path
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StoreCorruptError):
        load_sorted(path)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreFullError):
        write(tmp_path, [(5, 1)])
    assert list(tmp_path.iterdir()) == []


def test_files_are_listed_in_order_and_what_was_not_finished_goes(tmp_path: Path) -> None:
    assert sorted_files_in(tmp_path / "missing") == []
    for first, end in ((10, 20), (0, 10), (10, 40), (100, 110)):
        write(tmp_path, [], first, end)
    (tmp_path / "00000000000000000020-00000000000000000030.tmp").touch()
    (tmp_path / "notes").touch()
    assert [file[:2] for file in sorted_files_in(tmp_path)] == [
        (0, 10),
        (10, 40),
        (10, 20),
        (100, 110),
    ]
    assert len(list(tmp_path.iterdir())) == 5


def test_the_cursor_skips_what_has_left(tmp_path: Path) -> None:
    file = write(tmp_path, [(1, 0), (2, 1), (2, 3), (5, 2)])
    file.skip(DeliveryProgress().after(2, 1, end=10))
    assert (file.cursor, file.live) == (2, 2)
    assert not file.is_done(DeliveryProgress().after(5, 1, end=10))
    assert not file.is_done(DeliveryProgress().after(5, 2, end=9))
    done = DeliveryProgress().after(5, 2, end=10)
    assert file.is_done(done)
    file.skip(done)
    assert file.live == 0


def test_the_cursor_stops_before_a_late_one(tmp_path: Path) -> None:
    file = write(tmp_path, [(1, 0), (2, 9), (3, 1), (5, 2)])
    file.skip(DeliveryProgress().after(3, 1, end=9))
    assert file.cursor == 1


def test_entries_are_found() -> None:
    ordered = columns([(5, ~9), (5, ~4), (5, 4), (7, 5)])
    found = ordered.has(np.array([5, 5, 5, 7, 4, 9]), np.array([~4, 4, 3, 5, 4, 4]))
    assert found.tolist() == [True, True, False, True, False, False]


def test_a_merge_drops_what_is_of_no_use_any_more() -> None:
    progress = DeliveryProgress().after(10, 3, end=100)
    merged = merge(
        [
            columns([(9, 1), (20, 5), (30, 6)]),  # 1 has left
            columns([(20, ~5), (10, 4), (9, ~1)]),  # 5 is cancelled, and so was 1
            columns([(40, ~2), (10, ~4), (15, ~50)]),  # 2 is elsewhere
        ],
        progress,
    )
    assert entries_of(merged) == [(15, ~50), (30, 6), (40, ~2)]


def test_a_cancellation_stays_as_long_as_its_message_is_pending() -> None:
    # Of many due at 10, those up to offset 3 have left: also what cancels 8, but not 8 itself.
    progress = DeliveryProgress().after(10, 3, end=100)
    assert entries_of(merge([columns([(10, ~8)])], progress)) == [(10, ~8)]
    assert entries_of(merge([columns([(10, ~3)])], progress)) == []


def test_nothing_joins_to_nothing() -> None:
    assert entries_of(join([])) == []
    assert entries_of(merge([], DeliveryProgress())) == []


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(-9, 9)), max_size=8)))
def test_a_merge_is_in_order_and_loses_no_message(parts: list[Entries]) -> None:
    merged = entries_of(merge([columns(part) for part in parts], DeliveryProgress()))
    everything = [entry for part in parts for entry in part]
    cancelled = {~offset for _, offset in everything if offset < 0}
    assert merged == sorted(merged)
    assert [entry for entry in merged if entry[1] >= 0] == sorted(
        entry for entry in everything if entry[1] >= 0 and entry[1] not in cancelled
    )
