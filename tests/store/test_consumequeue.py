"""A queue: entries, files, ends and beginnings."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.errors import StoreCorruptError, StoreFullError, StoreVersionError
from onelog.record.entries import ENTRY, ENTRY_BYTES, PADDING
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.queue_files import MapBudget

FILE = 10


def open_queue(folder: Path, *, file_entries: int = FILE, writable: bool = True) -> ConsumeQueue:
    return ConsumeQueue(folder, "t", file_entries, MapBudget(64), writable=writable)


def put(queue: ConsumeQueue, count: int, log_offset: int = 0) -> None:
    for number in range(count):
        queue.reserve(1)
        queue.put(ENTRY.pack(log_offset + number * 100, 100, number))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "consumequeue" / "t" / "0"


def test_entries_are_twenty_bytes_and_files_are_named_by_byte_offset(folder: Path) -> None:
    put(open_queue(folder), FILE + 1)
    first, second = sorted(folder.iterdir())
    assert (first.name, second.name) == ("0" * 20, f"{FILE * 20:020d}")
    assert first.stat().st_size == second.stat().st_size == FILE * 20
    assert first.read_bytes()[20:40] == ENTRY.pack(100, 100, 1)


@pytest.mark.parametrize("count", [0, 1, 2, 7, FILE - 1, FILE, FILE + 1, 3 * FILE + 5])
def test_the_end_is_found_again(folder: Path, count: int) -> None:
    put(open_queue(folder), count)
    queue = open_queue(folder)
    assert (queue.start, queue.end) == (0, count)
    assert [e[2] for e in queue.entries(0, 1000)] == list(range(count))


def test_an_inner_batch_fills_entries_over_file_boundaries(folder: Path) -> None:
    queue = open_queue(folder)
    put(queue, 3)
    assert queue.reserve(25) == 3
    queue.put(ENTRY.pack(5000, 777, 9) * 25)
    assert queue.end == 28
    assert set(queue.entries(3, 100)) == {(5000, 777, 9)}


def test_what_is_reserved_and_not_put_leaves_no_file_behind(folder: Path) -> None:
    queue = open_queue(folder)
    queue.reserve(1)
    queue.release(queue.end)
    assert not folder.exists()
    put(queue, FILE)
    queue.reserve(5)
    queue.release(queue.end)
    assert len(list(folder.iterdir())) == 1
    put(queue, 2, 1000)
    assert list(open_queue(folder).entries(FILE, 9)) == [(1000, 100, 0), (1100, 100, 1)]


def test_an_empty_last_file_is_dropped_when_the_queue_is_opened(folder: Path) -> None:
    put(open_queue(folder), FILE)
    (folder / f"{FILE * 20:020d}").write_bytes(bytes(FILE * 20))
    queue = open_queue(folder)
    assert queue.end == FILE
    assert len(list(folder.iterdir())) == 1


def test_a_queue_may_begin_late_and_is_padded_in_front(folder: Path) -> None:
    queue = open_queue(folder)
    queue.pad_to(23)
    put(queue, 2)
    assert (queue.start, queue.end) == (23, 25)
    (file,) = folder.iterdir()
    assert file.name == f"{20 * 20:020d}"
    assert file.read_bytes()[:60] == PADDING * 3
    again = open_queue(folder)
    assert (again.start, again.end) == (23, 25)


def test_a_hole_in_a_queue_is_padded(folder: Path) -> None:
    queue = open_queue(folder)
    put(queue, 4)
    queue.pad_to(15)
    put(queue, 1, 900)
    assert (queue.start, queue.end) == (0, 16)
    assert queue.entry(14) == ENTRY.unpack(PADDING)
    assert queue.entry(15) == (900, 100, 0)


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 35), cut=st.integers(-1, 40))
def test_truncating_keeps_exactly_the_entries_before_the_cut(
    tmp_path_factory: pytest.TempPathFactory, count: int, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("q") / "t" / "0"
    put(open_queue(folder), count)
    queue = open_queue(folder)
    queue.rewind(cut * 100)
    queue.clear_behind()
    kept = max(0, min(count, cut))
    assert queue.end == kept
    again = open_queue(folder)
    assert [e[0] for e in again.entries(0, 99)] == [n * 100 for n in range(kept)]
    put(again, 3, 90_000)
    assert open_queue(folder).end == kept + 3


def test_truncating_clears_entries_behind_a_hole_that_a_crash_left(folder: Path) -> None:
    put(open_queue(folder), 8)
    (file,) = folder.iterdir()
    raw = bytearray(file.read_bytes())
    raw[4 * 20 : 5 * 20] = bytes(20)
    file.write_bytes(raw)
    queue = open_queue(folder)
    queue.rewind(300)
    queue.clear_behind()
    put(queue, 1, 5_000)
    assert list(open_queue(folder).entries(0, 99))[3:] == [(5000, 100, 0)]


def test_following_the_log_moves_the_start_and_deletes_whole_files(folder: Path) -> None:
    queue = open_queue(folder)
    put(queue, 35)
    assert queue.delete_before(2200) == 2 * FILE * ENTRY_BYTES
    assert (queue.start, queue.end) == (22, 35)
    assert list(queue.entries(0, 2)) == [(2200, 100, 22), (2300, 100, 23)]
    again = open_queue(folder)
    again.delete_before(2200)
    assert (again.start, again.end) == (22, 35)


def test_an_emptied_queue_remembers_where_it_goes_on(folder: Path) -> None:
    queue = open_queue(folder)
    put(queue, 15)
    queue.delete_before(1 << 40)
    assert (queue.start, queue.end) == (15, 15)
    assert queue.reserve(1) == 15


def test_binary_search_over_the_entries(folder: Path) -> None:
    queue = open_queue(folder)
    put(queue, 30)
    assert queue.first_not_before(lambda e: e[0] < 1250) == 13
    assert queue.first_not_before(lambda e: True) == 30
    assert queue.first_not_before(lambda e: False) == 0


def test_only_so_many_files_are_mapped_at_once(tmp_path: Path) -> None:
    budget = MapBudget(4)
    queues = [ConsumeQueue(tmp_path / str(n), "t", FILE, budget) for n in range(12)]
    for round_number in range(3):
        for queue in queues:
            queue.reserve(1)
            queue.put(ENTRY.pack(round_number, 100, queue.queue_id))
    assert sum(len(queue._maps) for queue in queues) <= 4
    assert [list(q.entries(0, 9))[-1] for q in queues] == [(2, 100, n) for n in range(12)]


def test_flushing_survives_a_file_that_was_deleted_meanwhile(folder: Path) -> None:
    queue = open_queue(folder)
    put(queue, 25)
    next(folder.iterdir()).unlink()
    queue.flush()


def test_another_file_size_is_refused_with_the_size_to_use(folder: Path) -> None:
    put(open_queue(folder), 25)
    with pytest.raises((StoreVersionError, StoreCorruptError), match="queue_file_entries=10"):
        open_queue(folder, file_entries=5)


def test_a_missing_file_is_noticed(folder: Path) -> None:
    put(open_queue(folder), 35)
    (folder / f"{FILE * 20:020d}").unlink()
    with pytest.raises(StoreCorruptError, match="delete the consumequeue folder"):
        open_queue(folder)


def test_no_room_is_told_before_an_entry_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(folder)

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(StoreFullError, match="free some space"):
        queue.reserve(1)
    queue.release(queue.end)
    assert queue.end == 0


def test_deleting_a_queue_removes_its_folder(folder: Path) -> None:
    queue = open_queue(folder)
    put(queue, 25)
    queue.delete()
    assert not folder.exists()
