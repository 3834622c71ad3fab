"""A store's files give the rows that its queues have: divided in any way, used or damaged."""

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.errors import DataLossError, StoreCorruptError
from onelog.message import NewMessage, encode_properties
from onelog.record.entries import ENTRY, ENTRY_BYTES, PADDING_SIZE
from onelog.spark.columns.schema import RowFilters, spark_schema
from onelog.spark.columns.tables import Table
from onelog.spark.options import SplitBy, TopicSelection, read_options
from onelog.spark.read import store_files
from onelog.spark.read.batch import OnelogReader
from onelog.spark.read.offsets import QueueRange
from onelog.spark.read.origins import StoreOrigin
from onelog.store.consumequeue import Entry
from onelog.store.message_store import MessageStore
from onelog.store.readonly import open_readonly
from tests.core.paying import Bazaar
from tests.core.world import World
from tests.e2e.make_store_fixtures import VERSIONS, fixture_folder
from tests.spark.record_samples import rows_of
from tests.spark.store_rows import (
    Row,
    all_ranges,
    row_decoder,
    rows_by_reader,
    rows_from_files,
    write_rich_store,
)
from tests.store.samples import SAMPLE, append_plain, overwrite, write_sample

ROOT = Path(__file__).resolve().parents[3]
WAYS: tuple[SplitBy, ...] = ("queue", "bytes")


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rich")
    write_rich_store(folder, 110)
    return folder


# -- transactions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_only_committed_messages_of_transactions_are_rows(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path / "store")
    bazaar = Bazaar(world, seed)
    for number in range(60):
        bazaar.step()
        if number % 10 != 9:
            continue
        snapshot = StoreOrigin(world.folder, TopicSelection(("orders",))).snapshot()
        ranges = [QueueRange(queue, *extent) for queue, extent in snapshot.extents.items()]
        for by in WAYS:
            found = rows_from_files(
                world.folder, ranges, by=by, splits_min=3, aborted=snapshot.aborted
            )
            for queue_id in range(2):
                bodies = [row["body"] for row in found if row["queue"] == queue_id]
                assert bodies == bazaar.committed(queue_id)
    options = read_options({"store": str(world.folder), "subscribe": "orders"})
    reader = OnelogReader(options, Table(spark_schema(["body"])))
    batches = [each for part in reader.partitions() for each in reader.read(part)]
    expected = bazaar.committed(0) + bazaar.committed(1)
    assert sorted(str(row["body"]) for row in rows_of(batches)) == sorted(map(str, expected))
    world.close()


# -- wrong entries --------------------------------------------------------------------------------


COUNT = 60
LIES: dict[str, Callable[[Entry, Entry, Entry], Entry]] = {
    "a size that is too large": lambda mine, before, other: (mine[0], mine[1] + 40, mine[2]),
    "the size of padding": lambda mine, before, other: (mine[0], PADDING_SIZE, mine[2]),
    "a place in the middle of a record": lambda mine, before, other: (mine[0] + 9, *mine[1:]),
    "a place behind the log": lambda mine, before, other: (1 << 40, *mine[1:]),
    "a negative place": lambda mine, before, other: (-5, *mine[1:]),
    "the place of an earlier message": lambda mine, before, other: before,
    "the place of another topic's message": lambda mine, before, other: other,
    "zeros": lambda mine, before, other: (0, 0, 0),
}


@pytest.mark.parametrize("at", [0, 1, COUNT // 2, COUNT - 2])
@pytest.mark.parametrize("kind", LIES)
def test_entries_that_lie_cost_no_row_and_bring_no_other(
    tmp_path: Path, kind: str, at: int
) -> None:
    folder = tmp_path / "store"
    with MessageStore.open(folder, SAMPLE) as store:
        for number in range(COUNT):
            for topic in ("others", "orders"):
                store.append([NewMessage(topic, 0, b"message %02d" % number)])
        mine, others = (list(store.entries(each, 0, 0, COUNT)) for each in ("orders", "others"))
    ranges = all_ranges(folder, ["orders"])
    expected = rows_from_files(folder, ranges, by="bytes")
    assert len(expected) == COUNT
    files = sorted((folder / "consumequeue" / "orders" / "0").iterdir())
    file, slot = divmod(at, files[0].stat().st_size // ENTRY_BYTES)
    before = mine[max(0, at - 7)]
    lie = ENTRY.pack(*LIES[kind](mine[at], before, others[at]))
    overwrite(files[file], slot * ENTRY_BYTES, lie)
    for by in WAYS:
        assert rows_from_files(folder, ranges, by=by, splits_min=3) == expected


# -- whole stores ---------------------------------------------------------------------------------


@pytest.mark.parametrize("by", WAYS)
def test_all_rows_of_a_store_are_found(rich: Path, by: SplitBy) -> None:
    ranges = all_ranges(rich)
    expected = rows_by_reader(rich, ranges)
    assert len(expected) > 200
    assert {row["topic"] for row in expected} > {"Orders", "Clicks", "fan-out", "%LMQ%left"}
    assert rows_from_files(rich, ranges, by=by) == expected


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("version", VERSIONS)
def test_all_rows_of_a_store_that_rocketmq_wrote_are_found(version: str, by: SplitBy) -> None:
    folder = fixture_folder(version) / "store"
    ranges = all_ranges(folder)
    expected = rows_by_reader(folder, ranges)
    assert len(expected) > 100
    assert rows_from_files(folder, ranges, by=by, splits_min=3) == expected


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_any_ranges_divided_in_any_way_give_their_rows_once(
    rich: Path, data: st.DataObject
) -> None:
    ranges = []
    for each in all_ranges(rich):
        if data.draw(st.booleans()):
            start = data.draw(st.integers(each.start, each.end))
            ranges.append(QueueRange(each.queue, start, data.draw(st.integers(start, each.end))))
    found = rows_from_files(
        rich,
        ranges,
        by=data.draw(st.sampled_from([*WAYS, None])),
        splits_min=data.draw(st.none() | st.integers(1, 12)),
    )
    assert found == rows_by_reader(rich, ranges)


def test_a_store_with_checksums_over_whole_records_is_read(tmp_path: Path) -> None:
    write_rich_store(tmp_path, 60, replace(SAMPLE, record_crc=True))
    ranges = all_ranges(tmp_path)
    expected = rows_by_reader(tmp_path, ranges)
    for by in WAYS:
        assert rows_from_files(tmp_path, ranges, by=by) == expected


@pytest.mark.parametrize("by", WAYS)
def test_neither_a_topic_s_deletion_nor_what_it_had_before_is_a_row(
    tmp_path: Path, by: SplitBy
) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        store.append([NewMessage("before", 0, b"x")])
        store.append([NewMessage("made-anew", 1, b"old")])
        store.delete_topic("made-anew")
        store.append([NewMessage("made-anew", n % 3, b"new %d" % n) for n in range(9)])
    ranges = all_ranges(tmp_path)
    expected = rows_by_reader(tmp_path, ranges)
    assert len(expected) == 10
    assert rows_from_files(tmp_path, ranges, by=by) == expected


def test_nothing_is_changed_in_the_folder(rich: Path) -> None:
    def state() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in rich.rglob("*")}

    before = state()
    for by in WAYS:
        rows_from_files(rich, all_ranges(rich), by=by)
    assert state() == before


# -- filters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", WAYS)
def test_rows_can_be_chosen_by_tag(rich: Path, by: SplitBy) -> None:
    ranges = all_ranges(rich)
    expected = rows_by_reader(rich, ranges)
    for tags in ({"paid"}, {"p1", "🚀🚀"}, {"Größe", "nobody"}):
        found = rows_from_files(rich, ranges, by=by, filters=RowFilters(frozenset(tags)))
        assert found == [row for row in expected if row["tags"] in tags]
        assert found


@pytest.mark.parametrize("by", WAYS)
def test_rows_can_be_chosen_by_store_time(rich: Path, by: SplitBy) -> None:
    ranges = all_ranges(rich)
    expected = rows_by_reader(rich, ranges)
    times = sorted(row["store_time"] for row in expected)  # type: ignore[type-var]
    low, high = (int(str(times[len(times) // n])) // 1000 for n in (3, 2))
    filters = RowFilters(store_ms_from=low, store_ms_until=high)
    found = rows_from_files(rich, ranges, by=by, filters=filters)
    assert found == [row for row in expected if low * 1000 <= row["store_time"] < high * 1000]  # type: ignore[operator]
    assert found


@pytest.mark.parametrize("by", WAYS)
def test_a_batch_that_is_read_in_two_steps_gives_its_rows_once(
    tmp_path: Path, by: SplitBy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_files, "ROWS_MAX", 3)
    monkeypatch.setattr(store_files, "_WINDOW_BYTES", 300)
    write_rich_store(tmp_path, 40)
    ranges = all_ranges(tmp_path)
    assert rows_from_files(tmp_path, ranges, by=by) == rows_by_reader(tmp_path, ranges)


# -- stores in use --------------------------------------------------------------------------------


@pytest.mark.parametrize("by", WAYS)
def test_what_is_appended_after_the_ranges_were_made_is_not_looked_at(
    tmp_path: Path, by: SplitBy
) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        append_plain(store, "busy", 50)
        ranges = all_ranges(tmp_path)
        splits = store_files.plan(tmp_path, ranges, by=by)
        append_plain(store, "busy", 50)
        rows = [
            row for each in splits for row in rows_of(list(store_files.read(each, row_decoder())))
        ]
        assert sorted(str(row["body"]) for row in rows) == sorted(
            str(b"busy %d" % number) for number in range(50)
        )
        assert len(rows_from_files(tmp_path, all_ranges(tmp_path), by=by)) == 100


def test_a_store_can_be_read_while_another_process_writes_and_deletes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.store.samples", str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        seen = 0
        for number in range(12):
            by = WAYS[number % 2]
            caplog.clear()
            ranges = all_ranges(tmp_path, ["busy"])
            rows = rows_from_files(tmp_path, ranges, by=by, fail_on_data_loss=False)
            for each in ranges:
                offsets = [row["offset"] for row in rows if row["queue"] == each.queue.queue_id]
                expected = range(each.start, each.end)
                # What retention takes meanwhile may be missing, but not without a word.
                if "data is lost" not in caplog.text:
                    assert offsets == list(expected)
                assert offsets == [each for each in expected if each in set(offsets)]
            assert all(str(row["body"]).startswith("b'busy ") for row in rows)
            seen += len(rows)
        assert seen > 0
    finally:
        writer.communicate("")
    assert writer.returncode == 0


@pytest.mark.parametrize("by", WAYS)
def test_messages_that_were_deleted_meanwhile_are_an_error_or_left_out(
    tmp_path: Path, by: SplitBy, caplog: pytest.LogCaptureFixture
) -> None:
    write_sample(tmp_path)
    ranges = all_ranges(tmp_path, ["Orders"])
    expected = rows_by_reader(tmp_path, ranges)
    splits = store_files.plan(tmp_path, ranges, by=by)
    lenient = store_files.plan(tmp_path, ranges, by=by, fail_on_data_loss=False)
    first, second, *_ = sorted((tmp_path / "commitlog").iterdir())
    first.unlink()
    with pytest.raises(DataLossError, match="failOnDataLoss=false"):
        list(store_files.read(splits[0], row_decoder()))
    rows = [row for each in lenient for row in rows_of(list(store_files.read(each, row_decoder())))]
    left = [row for row in expected if row["log_offset"] >= int(second.name)]  # type: ignore[operator]
    assert 0 < len(left) < len(expected)
    assert sorted(row["log_offset"] for row in rows) == sorted(row["log_offset"] for row in left)  # type: ignore[type-var]
    assert "data is lost" in caplog.text
    with pytest.raises(DataLossError, match=r"was to be read.*set failOnDataLoss=false"):
        store_files.plan(tmp_path, ranges, by=by)
    assert rows_from_files(tmp_path, ranges, by=by, fail_on_data_loss=False) == left


# -- damage ---------------------------------------------------------------------------------------


def damage(folder: Path, log_offset: int, place: int, content: bytes) -> None:
    """Overwrite bytes of the record at a log offset."""
    files = sorted((folder / "commitlog").iterdir())
    path = max(path for path in files if int(path.name) <= log_offset)
    overwrite(path, log_offset - int(path.name) + place, content)


@pytest.fixture
def copied(rich: Path, tmp_path: Path) -> Path:
    shutil.copytree(rich, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("place", [0, 4, 8, 28, 84, 88])
def test_a_damaged_record_fails_or_is_skipped_and_the_others_are_read(
    copied: Path, by: SplitBy, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    ranges = all_ranges(copied)
    expected = rows_by_reader(copied, ranges)
    victim = expected[len(expected) // 2]["log_offset"]
    assert isinstance(victim, int)
    damage(copied, victim, place, b"\x7f\x3c\x11\x22")
    with pytest.raises(StoreCorruptError, match=rf"log offset {victim}.*onCorruption=skip"):
        rows_from_files(copied, ranges, by=by)
    decoder = row_decoder(on_corruption="skip")
    with caplog.at_level(logging.WARNING):
        found = rows_from_files(copied, ranges, by=by, splits_min=4, decoder=decoder)
    assert found == [row for row in expected if row["log_offset"] != victim]
    assert decoder.skipped >= 1
    assert str(victim) in caplog.text


@pytest.fixture(scope="module")
def spoiled(rich: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    """A copy to be damaged and repaired, and what is in it."""
    folder = tmp_path_factory.mktemp("spoiled") / "store"
    shutil.copytree(rich, folder)
    return folder, rows_by_reader(folder, all_ranges(folder))


@settings(deadline=None, max_examples=12)
@given(st.data())
def test_a_flipped_bit_spoils_no_more_than_its_record(
    rich: Path, spoiled: tuple[Path, list[Row]], data: st.DataObject
) -> None:
    folder, expected = spoiled
    ranges = all_ranges(rich)
    log_offset = data.draw(st.sampled_from(expected))["log_offset"]
    assert isinstance(log_offset, int)
    size = open_readonly(rich).message_at(log_offset).size
    place = data.draw(st.integers(0, size - 1))
    path = max(path for path in (folder / "commitlog").iterdir() if int(path.name) <= log_offset)
    at = log_offset - int(path.name) + place
    byte = path.read_bytes()[at]
    overwrite(path, at, bytes([byte ^ 1 << data.draw(st.integers(0, 7))]))
    try:
        for by in WAYS:
            decoder = row_decoder(on_corruption="skip")
            found = rows_from_files(folder, ranges, by=by, decoder=decoder)
            assert [each for each in found if each["log_offset"] != log_offset] == [
                each for each in expected if each["log_offset"] != log_offset
            ]
    finally:
        overwrite(path, at, bytes([byte]))


@pytest.mark.parametrize("by", WAYS)
def test_zeros_in_the_middle_of_the_log_are_skipped(copied: Path, by: SplitBy) -> None:
    ranges = all_ranges(copied)
    expected = rows_by_reader(copied, ranges)
    offsets = sorted({int(str(row["log_offset"])) for row in expected})
    first, last = offsets[20], offsets[40]
    for log_offset in range(first, last, 50):
        damage(copied, log_offset, 0, bytes(min(50, last - log_offset)))
    found = rows_from_files(copied, ranges, by=by, decoder=row_decoder(on_corruption="skip"))
    assert found == [row for row in expected if not first <= int(str(row["log_offset"])) < last]


@pytest.mark.parametrize("content", [b"\xff" * 8, (1 << 40).to_bytes(8, "big"), bytes(8)])
def test_an_entry_that_leads_elsewhere_is_skipped(copied: Path, content: bytes) -> None:
    each = max(all_ranges(copied, ["Orders"]), key=lambda each: each.rows)
    expected = rows_by_reader(copied, [each])
    file, slot = divmod(each.start + 3, SAMPLE.queue_file_entries)
    path = (
        copied
        / "consumequeue"
        / "Orders"
        / str(each.queue.queue_id)
        / f"{file * SAMPLE.queue_file_entries * 20:020d}"
    )
    overwrite(path, slot * 20, content)
    found = rows_from_files(
        copied,
        [each],
        by="queue",
        decoder=row_decoder(on_corruption="skip"),
        fail_on_data_loss=False,
    )
    lost = {row["offset"] for row in expected} - {row["offset"] for row in found}
    assert lost <= {each.start + 3}
    assert [row for row in expected if row["offset"] not in lost] == found


def test_a_short_last_file_of_a_copy_is_read_as_far_as_it_goes(copied: Path) -> None:
    ranges = all_ranges(copied)
    expected = rows_by_reader(copied, ranges)
    last = sorted((copied / "commitlog").iterdir())[-1]
    with open(last, "r+b") as raw:
        raw.truncate(3000)
    decoder = row_decoder(on_corruption="skip")
    for by in WAYS:
        found = rows_from_files(copied, ranges, by=by, decoder=decoder, fail_on_data_loss=False)
        limit = int(last.name) + 3000
        whole = [row for row in found if row in expected]
        assert whole == found
        assert {row["log_offset"] for row in expected if row["log_offset"] < limit - 1000} <= {  # type: ignore[operator]
            row["log_offset"] for row in found
        }


def test_tags_that_hash_alike_are_told_apart(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        for tag in ("Aa", "BB", "C"):
            store.append([NewMessage("t", 0, tag.encode(), encode_properties({"TAGS": tag}))])
    found = rows_from_files(
        tmp_path, all_ranges(tmp_path), by="queue", filters=RowFilters(frozenset({"Aa"}))
    )
    assert [row["body"] for row in found] == [b"Aa"]
