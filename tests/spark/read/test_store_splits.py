"""The reading of a store is divided into parts that miss nothing and share nothing."""

import pickle
from pathlib import Path
from typing import cast

import pytest

from onelog.client.message import Queue
from onelog.errors import DataLossError, StoreError
from onelog.record.entries import ENTRY_BYTES, PADDING
from onelog.spark.options import SplitBy
from onelog.spark.read import store_files
from onelog.spark.read.offsets import QueueRange
from onelog.spark.read.store_files import LogSplit, QueueSplit, plan
from onelog.store.readonly import open_readonly
from tests.spark.store_rows import all_ranges, rows_by_reader, rows_from_files, write_rich_store
from tests.store.samples import SAMPLE, overwrite

WAYS: tuple[SplitBy, ...] = ("queue", "bytes")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("divided")
    write_rich_store(folder, 60)
    return folder


def test_a_small_part_of_the_log_is_read_by_queue_and_a_large_one_by_bytes(store: Path) -> None:
    everything = all_ranges(store)
    assert {type(each) for each in plan(store, everything)} == {LogSplit}
    first, last = everything[0], everything[-1]
    sparse = [first._replace(end=first.start + 1), last._replace(start=last.end - 1)]
    assert {type(each) for each in plan(store, sparse)} == {QueueSplit}


def test_splits_can_be_had_in_number_and_by_rows(store: Path) -> None:
    ranges = all_ranges(store, ["Orders"])
    assert len(plan(store, ranges, by="bytes", splits_min=7)) == 7
    assert len(plan(store, ranges, by="queue", splits_min=7)) >= 7
    by_rows = plan(store, ranges, rows_max=10)
    assert all(isinstance(each, QueueSplit) for each in by_rows)
    assert all(sum(each.rows for each in split.ranges) <= 10 for split in by_rows)
    assert plan(store, []) == []


@pytest.mark.parametrize("by", WAYS)
def test_much_is_read_by_several_tasks(
    store: Path, by: SplitBy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_files, "SPLIT_BYTES_MAX", 2_000)
    ranges = all_ranges(store, ["Orders"])
    assert len(plan(store, ranges, by=by)) > 5
    assert rows_from_files(store, ranges, by=by) == rows_by_reader(store, ranges)


def test_ranges_of_bytes_follow_each_other_and_start_with_records(store: Path) -> None:
    splits = plan(store, all_ranges(store), by="bytes", splits_min=5)
    bounds = [(split.start, split.stop) for split in splits if isinstance(split, LogSplit)]
    assert [stop for _, stop in bounds[:-1]] == [start for start, _ in bounds[1:]]
    for start, _ in bounds:
        assert open_readonly(store).message_at(start).log_offset == start


def test_splits_can_be_sent_to_workers(store: Path) -> None:
    for by in WAYS:
        splits = plan(store, all_ranges(store), by=by, splits_min=3)
        assert pickle.loads(pickle.dumps(splits)) == splits


def test_a_range_behind_the_end_of_a_queue_is_refused(store: Path) -> None:
    each = all_ranges(store, ["Orders"])[0]
    with pytest.raises(DataLossError, match="was to be read"):
        plan(store, [each._replace(end=each.end + 1)])
    with pytest.raises(DataLossError, match="was to be read"):
        plan(store, [QueueRange(Queue("nobody", "", 0), 0, 1)])


def test_a_folder_that_is_no_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store in"):
        plan(tmp_path, [QueueRange(Queue("t", "", 0), 0, 1)])


def test_entries_of_messages_that_are_in_no_log_do_not_mislead(tmp_path: Path) -> None:
    write_rich_store(tmp_path, 60)
    each = max(all_ranges(tmp_path, ["Clicks"]), key=lambda each: each.rows)
    assert each.rows > 8
    each = each._replace(start=each.start + 2)
    expected = rows_by_reader(tmp_path, [each])
    folder = tmp_path / "consumequeue" / "Clicks" / str(each.queue.queue_id)
    gone = {each.start, each.start + 1, each.start + 4, each.end - 1}
    for offset in gone:
        file, slot = divmod(offset, SAMPLE.queue_file_entries)
        path = folder / f"{file * SAMPLE.queue_file_entries * ENTRY_BYTES:020d}"
        overwrite(path, slot * ENTRY_BYTES, PADDING)
    for row in expected:
        if row["offset"] in gone:
            segment, at = divmod(cast("int", row["log_offset"]), SAMPLE.segment_bytes)
            log_file = tmp_path / "commitlog" / f"{segment * SAMPLE.segment_bytes:020d}"
            overwrite(log_file, at + 4, b"gone")
    start = min(row["log_offset"] for row in expected if row["offset"] not in gone)  # type: ignore[type-var]
    (split,) = plan(tmp_path, [each], by="bytes", fail_on_data_loss=False)
    assert isinstance(split, LogSplit)
    assert split.start == start
    found = rows_from_files(tmp_path, [each], by="queue", fail_on_data_loss=False)
    assert found == [row for row in expected if row["offset"] not in gone]
