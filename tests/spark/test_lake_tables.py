"""Lake tables without Spark: files of workers, commits of drivers, and looking after tables."""

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from onelog.errors import ConfigError
from onelog.spark import lake_tables
from onelog.spark.lake_files import FileWriter, WrittenFile, check_names, table_name
from onelog.spark.lake_tables import Form

DAY = datetime.datetime(2026, 5, 1, 23, 59, 59, 999_999, tzinfo=datetime.UTC)
FORMS: list[Form] = ["delta", "parquet"]


def rows(
    *offsets: int,
    topic: str = "orders",
    queue: int = 0,
    days: int = 0,
    errors: list[str | None] | None = None,
    **more: list[object],
) -> pa.RecordBatch:
    count = len(offsets)
    columns: dict[str, pa.Array] = {
        "topic": pa.array([topic] * count),
        "queue": pa.array([queue] * count, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "broker": pa.array(["a"] * count),
        "body": pa.array([b"%d" % offset for offset in offsets]),
        "properties": pa.array([[("k", "v")]] * count, pa.map_(pa.string(), pa.string())),
        "store_time": pa.array(
            [DAY + datetime.timedelta(days=days)] * count, pa.timestamp("us", "UTC")
        ),
    }
    columns |= {name: pa.array(values) for name, values in more.items()}
    if errors is not None:
        columns["_error"] = pa.array(errors, pa.string())
    return pa.record_batch(columns)


def written(
    folder: Path, form: Form, *batches: pa.RecordBatch, file_bytes: int = 1 << 20
) -> list[WrittenFile]:
    writer = FileWriter(folder, hide=form == "parquet", file_bytes=file_bytes)
    return [file for batch in batches for file in writer.add(batch)] + list(writer.rest())


def offsets(folder: Path, name: str = "orders") -> list[int]:
    files = lake_tables.files_of(folder / name)
    return sorted(ds.dataset(files).to_table(columns=["offset"])["offset"].to_pylist())


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_seen_when_their_batch_is_committed_and_only_once(
    tmp_path: Path, form: Form
) -> None:
    first = written(tmp_path, form, rows(0, 1), rows(2))
    assert [file.rows for file in first] == [3]
    if form == "parquet":
        assert lake_tables.files_of(tmp_path / "orders") == []
    assert lake_tables.commit(tmp_path, form, "q", 0, first) == 3
    assert offsets(tmp_path) == [0, 1, 2]
    again = written(tmp_path, form, rows(0, 1, 2))
    assert lake_tables.commit(tmp_path, form, "q", 0, again) == 0
    assert offsets(tmp_path) == [0, 1, 2]
    assert lake_tables.commit(tmp_path, form, "q", 1, written(tmp_path, form, rows(3))) == 1
    assert offsets(tmp_path) == [0, 1, 2, 3]
    # Nothing of the batch that came again is left lying about.
    assert len(list((tmp_path / "orders").rglob("*.parquet"))) == 2


def test_a_driver_that_died_while_files_came_out_of_hiding_is_completed(tmp_path: Path) -> None:
    files = written(tmp_path, "parquet", rows(0), rows(1, days=1))
    lake_tables.commit(tmp_path, "parquet", "q", 0, files)
    shown = tmp_path / "orders" / files[1].path
    shown.rename(shown.with_name(f".{shown.name}"))
    assert offsets(tmp_path) == [0]
    assert (
        lake_tables.commit(tmp_path, "parquet", "q", 0, written(tmp_path, "parquet", rows(0, 1)))
        == 0
    )
    assert offsets(tmp_path) == [0, 1]


@pytest.mark.parametrize("form", FORMS)
def test_topics_and_days_have_their_own_places(tmp_path: Path, form: Form) -> None:
    both = pa.concat_batches([rows(0, 1), rows(2, days=1), rows(7, topic="%DLQ%billing")])
    files = written(tmp_path, form, both)
    assert sorted((file.table, file.date, file.rows) for file in files) == [
        ("DLQ-billing", "2026-05-01", 1),
        ("orders", "2026-05-01", 2),
        ("orders", "2026-05-02", 1),
    ]
    lake_tables.commit(tmp_path, form, "q", 0, files)
    assert offsets(tmp_path, "DLQ-billing") == [7]
    found = {info.name: (info.files, info.rows) for info in lake_tables.tables(tmp_path)}
    assert found == {"DLQ-billing": (1, 1), "orders": (2, 3)}


@pytest.mark.parametrize("form", FORMS)
def test_the_table_itself_says_where_each_queue_goes_on(tmp_path: Path, form: Form) -> None:
    lake_tables.commit(
        tmp_path, form, "q", 0, written(tmp_path, form, rows(0, 4), rows(9, queue=1))
    )
    lake_tables.commit(tmp_path, form, "other", 0, written(tmp_path, form, rows(5, 6)))
    queues = ["orders a 0", "orders a 1", "orders a 2"]
    found = lake_tables.next_offsets(tmp_path, form, "orders", queues)
    assert found == {"orders a 0": 7, "orders a 1": 10}
    assert lake_tables.next_offsets(tmp_path, form, "nothing", queues) == {}


@pytest.mark.parametrize("form", FORMS)
def test_what_could_not_be_decoded_goes_to_the_dead_letters_with_the_reason(
    tmp_path: Path, form: Form
) -> None:
    batch = rows(0, 1, 2, errors=[None, "no JSON", None], amount=[5, None, 7])
    lake_tables.commit(tmp_path, form, "q", 0, written(tmp_path, form, batch))
    assert offsets(tmp_path) == [0, 2]
    letters = ds.dataset(lake_tables.files_of(tmp_path / "orders.dead_letters")).to_table()
    assert letters.select(["offset", "body", "reason"]).to_pylist() == [
        {"offset": 1, "body": b"1", "reason": "no JSON"}
    ]
    good = ds.dataset(lake_tables.files_of(tmp_path / "orders")).to_table()
    assert good["amount"].to_pylist() == [5, 7]
    assert not {"_error", "body"} & set(good.schema.names)


def test_a_column_that_comes_later_widens_the_table(tmp_path: Path) -> None:
    lake_tables.commit(tmp_path, "delta", "q", 0, written(tmp_path, "delta", rows(0)))
    more = written(tmp_path, "delta", rows(1, colour=["red"]))
    lake_tables.commit(tmp_path, "delta", "q", 1, more)
    frame = DeltaTable(tmp_path / "orders").to_pandas().sort_values("offset")
    assert frame["offset"].tolist() == [0, 1]
    assert frame["colour"].tolist() == [None, "red"]
    assert set(frame["date"]) == {"2026-05-01"}


def test_small_files_are_joined_and_the_old_ones_deleted(tmp_path: Path) -> None:
    for batch in range(5):
        files = written(tmp_path, "delta", rows(batch))
        lake_tables.commit(tmp_path, "delta", "q", batch, files)
    table = tmp_path / "orders"
    assert len(lake_tables.files_of(table)) == 5
    assert lake_tables.compact(table) == 5
    assert len(lake_tables.files_of(table)) == 1
    assert lake_tables.vacuum(table) == 0
    assert lake_tables.vacuum(table, kept_hours=0) >= 5
    assert offsets(tmp_path) == [0, 1, 2, 3, 4]
    # The table still knows its batches.
    again = written(tmp_path, "delta", rows(4))
    assert lake_tables.commit(tmp_path, "delta", "q", 4, again) == 0


@pytest.mark.parametrize("form", FORMS)
def test_days_that_are_too_old_are_dropped(tmp_path: Path, form: Form) -> None:
    files = written(tmp_path, form, *(rows(day, days=day) for day in range(4)))
    lake_tables.commit(tmp_path, form, "q", 0, files)
    assert lake_tables.retain(tmp_path / "orders", 1, datetime.date(2026, 5, 4)) == 2
    assert offsets(tmp_path) == [2, 3]


def test_a_large_task_writes_several_files(tmp_path: Path) -> None:
    assert len(written(tmp_path, "delta", rows(0), rows(1), rows(2), file_bytes=1)) == 3


def test_what_is_no_table_is_named(tmp_path: Path) -> None:
    for action in (lake_tables.compact, lake_tables.vacuum):
        with pytest.raises(ConfigError, match="no Delta table"):
            action(tmp_path / "nothing")
    assert list(lake_tables.tables(tmp_path / "nothing")) == []


def test_a_journal_that_is_damaged_is_named(tmp_path: Path) -> None:
    lake_tables.commit(tmp_path, "parquet", "q", 0, written(tmp_path, "parquet", rows(0)))
    (tmp_path / "orders" / "_onelog" / "q.json").write_text("{")
    with pytest.raises(ConfigError, match=r"q\.json is no journal"):
        lake_tables.commit(tmp_path, "parquet", "q", 1, written(tmp_path, "parquet", rows(1)))


def test_topics_that_would_share_a_table_are_refused() -> None:
    assert table_name("%RETRY%billing") == "RETRY-billing"
    check_names(["orders", "payments"])
    with pytest.raises(ConfigError, match="would both be the table"):
        check_names(["%DLQ%x", "DLQ-x"])
