"""Lake tables without Spark: files of workers, commits of drivers, and looking after tables."""

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from onelog.errors import ConfigError, StoreError
from onelog.spark.lake import tables as lake_tables
from onelog.spark.lake.files import QueueRun, check_names, table_name
from onelog.spark.lake.tables import Form
from tests.spark.lake_rows import rows, written

FORMS: list[Form] = ["delta", "parquet"]


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
    assert lake_tables.commit(tmp_path, form, first) == 3
    assert offsets(tmp_path) == [0, 1, 2]
    again = written(tmp_path, form, rows(0, 1, 2))
    assert lake_tables.commit(tmp_path, form, again) == 0
    assert offsets(tmp_path) == [0, 1, 2]
    assert lake_tables.commit(tmp_path, form, written(tmp_path, form, rows(3))) == 1
    assert offsets(tmp_path) == [0, 1, 2, 3]
    # Nothing of the batch that came again is left lying about.
    assert len(list((tmp_path / "orders").rglob("*.parquet"))) == 2


def test_a_driver_that_died_while_files_came_out_of_hiding_is_completed(tmp_path: Path) -> None:
    files = written(tmp_path, "parquet", rows(0), rows(1, days=1))
    lake_tables.commit(tmp_path, "parquet", files)
    shown = tmp_path / "orders" / files[1].path
    shown.rename(shown.with_name(f".{shown.name}"))
    assert offsets(tmp_path) == [0]
    assert lake_tables.commit(tmp_path, "parquet", written(tmp_path, "parquet", rows(0, 1))) == 0
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
    lake_tables.commit(tmp_path, form, files)
    assert offsets(tmp_path, "DLQ-billing") == [7]
    found = {info.name: (info.files, info.rows) for info in lake_tables.tables(tmp_path)}
    assert found == {"DLQ-billing": (1, 1), "orders": (2, 3)}


def add(folder: Path, form: Form, *batches: pa.RecordBatch) -> int:
    return lake_tables.commit(folder, form, written(folder, form, *batches))


def places(*queues: int, made: int = 0) -> list[QueueRun]:
    return [QueueRun("orders", "a", queue, made) for queue in queues]


@pytest.mark.parametrize("form", FORMS)
def test_the_table_itself_says_where_each_queue_goes_on(tmp_path: Path, form: Form) -> None:
    add(tmp_path, form, rows(0, 4), rows(9, queue=1))
    add(tmp_path, form, rows(5, 6))
    found = lake_tables.reached(tmp_path, form, "orders", places(0, 1, 2))
    assert found == (dict(zip(places(0, 1), (7, 10), strict=True)), {})
    assert lake_tables.reached(tmp_path, form, "nothing", places(0)) == ({}, {})


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_another_query_has_brought_are_left_out(tmp_path: Path, form: Form) -> None:
    add(tmp_path, form, rows(0, 1, 2), rows(0, queue=1))
    both = rows(1, 2, 3, 4), rows(0, 1, queue=1), rows(7, queue=2)
    assert add(tmp_path, form, *both) == 4
    assert offsets(tmp_path) == [0, 0, 1, 1, 2, 3, 4, 7]
    assert add(tmp_path, form, *both) == 0
    assert offsets(tmp_path) == [0, 0, 1, 1, 2, 3, 4, 7]
    # Nothing is left lying about, and what was written in the place of a file has its numbers.
    assert len(list((tmp_path / "orders").rglob("*.parquet"))) == 2
    (info,) = lake_tables.tables(tmp_path)
    assert info.rows == 8


@pytest.mark.parametrize("form", FORMS)
def test_a_topic_that_was_made_again_begins_with_offset_0(tmp_path: Path, form: Form) -> None:
    add(tmp_path, form, rows(0, 1, 2, made=100))
    add(tmp_path, form, rows(0, 1, made=200))
    assert add(tmp_path, form, rows(0, 1, 2, made=200)) == 1
    assert offsets(tmp_path) == [0, 0, 1, 1, 2, 2]
    # Whatever somebody asks for, the table speaks of the incarnation that it saw last.
    for made in (100, 200, 300):
        found, seen = lake_tables.reached(tmp_path, form, "orders", places(0, made=made))
        assert found == {QueueRun("orders", "a", 0, 200): 3}
        assert seen == {("orders", "a"): 200}


def test_two_queries_that_commit_the_same_rows_at_once_add_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path, "delta", rows(0))
    files = written(tmp_path, "delta", rows(0, 1, 2))
    rivals = [written(tmp_path, "delta", rows(1)), written(tmp_path, "delta", rows(2, 3))]
    commit_sifted = lake_tables._commit_sifted

    def too_late(*given: Any) -> None:
        if rivals:
            monkeypatch.undo()
            lake_tables.commit(tmp_path, "delta", rivals.pop(0))
            monkeypatch.setattr(lake_tables, "_commit_sifted", too_late)
        commit_sifted(*given)

    monkeypatch.setattr(lake_tables, "_commit_sifted", too_late)
    assert lake_tables.commit(tmp_path, "delta", files) == 0
    assert offsets(tmp_path) == [0, 1, 2, 3]
    assert len(list((tmp_path / "orders").rglob("*.parquet"))) == 3


def test_a_table_that_never_takes_a_commit_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CommitFailedError("no room")

    monkeypatch.setattr(lake_tables, "_commit_sifted", refuse)
    with pytest.raises(StoreError, match="no room"):
        add(tmp_path, "delta", rows(0))


def lake_of_0_1(folder: Path, form: Form) -> None:
    """Offsets 0 to 2, as 0.1 left them: positions without incarnations, in Parquet by query."""
    files = written(folder, form, rows(0, 1, 2))
    if form == "delta":
        schema = pq.read_schema(folder / "orders" / files[0].path).remove_metadata()
        schema = schema.append(pa.field("date", pa.string()))
        table = DeltaTable.create(folder / "orders", schema, partition_by=["date"])
        (file,) = files
        done = [Transaction("q", 0), Transaction("onelog-queue orders a 0", 3)]
        table.create_write_transaction(
            [AddAction(file.path, file.size_bytes, {"date": file.date}, 0, True, file.stats)],
            "append",
            schema,
            ["date"],
            commit_properties=CommitProperties(app_transactions=done),
        )
        return
    journal = folder / "orders" / "_onelog" / "q.json"
    journal.parent.mkdir(parents=True)
    # It died before the file was shown.
    content = {"batch": 0, "files": [files[0].path], "next_offsets": {"orders a 0": 3}}
    journal.write_text(json.dumps(content))


@pytest.mark.parametrize("form", FORMS)
def test_a_table_of_0_1_goes_on_where_it_ended(tmp_path: Path, form: Form) -> None:
    lake_of_0_1(tmp_path, form)
    assert lake_tables.reached(tmp_path, form, "orders", places(0, made=100))[0] == {
        QueueRun("orders", "a", 0, 100): 3
    }
    assert add(tmp_path, form, rows(2, 3, made=100), rows(0, queue=1, made=100)) == 2
    assert add(tmp_path, form, rows(2, 3, made=100)) == 0
    assert offsets(tmp_path) == [0, 0, 1, 2, 3]
    assert add(tmp_path, form, rows(0, made=200), rows(0, queue=1, made=200)) == 2


@pytest.mark.parametrize("form", FORMS)
def test_a_table_of_0_1_can_be_told_which_incarnation_it_has(tmp_path: Path, form: Form) -> None:
    lake_of_0_1(tmp_path, form)
    for made in (100, 200):  # The first one counts.
        lake_tables.settle_incarnations(tmp_path, form, {("orders", "a"): made})
    assert add(tmp_path, form, rows(0, 1, made=200)) == 2
    assert add(tmp_path, form, rows(2, 3, made=100)) == 1


@pytest.mark.parametrize("form", FORMS)
def test_dead_letters_are_taken_first_and_both_tables_are_as_far_as_the_batch(
    tmp_path: Path, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = rows(0, 1, 2, errors=[None, "no JSON", "neither"])
    add(tmp_path, form, batch)
    assert lake_tables.reached(tmp_path, form, "orders", places(0))[0] == {places(0)[0]: 3}
    add(tmp_path, form, rows(3, errors=["nor this"]))
    assert lake_tables.reached(tmp_path, form, "orders", places(0))[0] == {places(0)[0]: 4}
    # A driver that dies in between: the topic's own table says that the batch is to be read again.
    name = f"_commit_{form}"
    add_files = getattr(lake_tables, name)

    def dying(folder: Path, *given: Any) -> int:
        if folder.name == "orders":
            raise KeyboardInterrupt
        return int(add_files(folder, *given))

    monkeypatch.setattr(lake_tables, name, dying)
    batch = rows(4, 5, errors=["no JSON", None])
    with pytest.raises(KeyboardInterrupt):
        add(tmp_path, form, batch)
    monkeypatch.undo()
    assert lake_tables.reached(tmp_path, form, "orders", places(0))[0] == {places(0)[0]: 4}
    add(tmp_path, form, batch)
    assert offsets(tmp_path) == [0, 5]
    assert offsets(tmp_path, "orders.dead_letters") == [1, 2, 3, 4]


@pytest.mark.parametrize("form", FORMS)
def test_what_could_not_be_decoded_goes_to_the_dead_letters_with_the_reason(
    tmp_path: Path, form: Form
) -> None:
    batch = rows(0, 1, 2, errors=[None, "no JSON", None], amount=[5, None, 7])
    lake_tables.commit(tmp_path, form, written(tmp_path, form, batch))
    assert offsets(tmp_path) == [0, 2]
    letters = ds.dataset(lake_tables.files_of(tmp_path / "orders.dead_letters")).to_table()
    assert letters.select(["offset", "body", "reason"]).to_pylist() == [
        {"offset": 1, "body": b"1", "reason": "no JSON"}
    ]
    good = ds.dataset(lake_tables.files_of(tmp_path / "orders")).to_table()
    assert good["amount"].to_pylist() == [5, 7]
    assert not {"_error", "body"} & set(good.schema.names)


def test_a_column_that_comes_later_widens_the_table(tmp_path: Path) -> None:
    lake_tables.commit(tmp_path, "delta", written(tmp_path, "delta", rows(0)))
    more = written(tmp_path, "delta", rows(1, colour=["red"]))
    lake_tables.commit(tmp_path, "delta", more)
    frame = DeltaTable(tmp_path / "orders").to_pandas().sort_values("offset")
    assert frame["offset"].tolist() == [0, 1]
    assert frame["colour"].tolist() == [None, "red"]
    assert set(frame["date"]) == {"2026-05-01"}


def test_small_files_are_joined_and_the_old_ones_deleted(tmp_path: Path) -> None:
    for batch in range(5):
        files = written(tmp_path, "delta", rows(batch))
        lake_tables.commit(tmp_path, "delta", files)
    table = tmp_path / "orders"
    assert len(lake_tables.files_of(table)) == 5
    assert lake_tables.compact(table) == 5
    assert len(lake_tables.files_of(table)) == 1
    assert lake_tables.vacuum(table) == 0
    assert lake_tables.vacuum(table, kept_hours=0) >= 5
    assert offsets(tmp_path) == [0, 1, 2, 3, 4]
    # The table still knows its batches.
    again = written(tmp_path, "delta", rows(4))
    assert lake_tables.commit(tmp_path, "delta", again) == 0


@pytest.mark.parametrize("form", FORMS)
def test_days_that_are_too_old_are_dropped(tmp_path: Path, form: Form) -> None:
    files = written(tmp_path, form, *(rows(day, days=day) for day in range(4)))
    lake_tables.commit(tmp_path, form, files)
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
    lake_tables.commit(tmp_path, "parquet", written(tmp_path, "parquet", rows(0)))
    (tmp_path / "orders" / "_onelog" / "positions.json").write_text("{")
    with pytest.raises(ConfigError, match=r"positions\.json is no journal"):
        lake_tables.commit(tmp_path, "parquet", written(tmp_path, "parquet", rows(1)))


def test_topics_that_would_share_a_table_are_refused() -> None:
    assert table_name("%RETRY%billing") == "RETRY-billing"
    check_names(["orders", "payments"])
    with pytest.raises(ConfigError, match="would both be the table"):
        check_names(["%DLQ%x", "DLQ-x"])


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders", "orders"),
        ("%RETRY%g", "RETRY-g"),
        ("payments.eu", "payments.eu"),
        ("../../etc", "~2f..~2fetc"),
        ("/etc", "~2fetc"),
        ("..", "-"),
        ("a b@c~", "a~20b~40c~7e"),
        ("題", "~984c"),
    ],
)
def test_a_table_is_a_folder_of_the_lake_whatever_its_topic_is_called(
    topic: str, name: str
) -> None:
    assert table_name(topic) == name
