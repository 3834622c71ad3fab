"""Columns that change their types: what fits is the same value, the rest are dead letters."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from onelog.errors import StoreError, UndecodableError
from onelog.spark.lake import tables as lake_tables
from onelog.spark.lake.tables import Form
from onelog.spark.lake.types import conflict, fit, merged
from tests.spark.lake_rows import rows, written

FORMS: list[Form] = ["delta", "parquet"]
NO = object()
"""A value that does not fit."""
BIG = (1 << 53) + 1

FITS: list[tuple[pa.DataType, pa.DataType, list[Any], list[Any]]] = [
    (pa.int64(), pa.int32(), [1, None, 1 << 40], [1, None, NO]),
    (pa.int32(), pa.int64(), [1, None], [1, None]),
    (pa.int64(), pa.float64(), [1, BIG, None], [1.0, NO, None]),
    (pa.int64(), pa.decimal128(38, 0), [BIG], [Decimal(BIG)]),
    (pa.float64(), pa.int64(), [1.0, 1.5, 1e300, 2.0**53, None], [1, NO, NO, NO, None]),
    (pa.float64(), pa.float32(), [0.5, 0.1], [0.5, NO]),
    (pa.decimal128(38, 0), pa.int64(), [Decimal(10) ** 20, Decimal(5)], [NO, 5]),
    (pa.decimal128(38, 0), pa.float64(), [Decimal(5)], [NO]),
    (pa.bool_(), pa.int64(), [True, None], [NO, None]),
    (pa.int64(), pa.bool_(), [1, 0], [NO, NO]),
    (pa.string(), pa.int64(), ["7", "x", None], [NO, NO, None]),
    (pa.int64(), pa.string(), [7, None], ["7", None]),
    (pa.bool_(), pa.string(), [True], ["true"]),
    (pa.string(), pa.date32(), ["2026-05-01"], [NO]),
    (pa.date32(), pa.string(), [datetime.date(2026, 5, 1)], ["2026-05-01"]),
    (pa.null(), pa.int64(), [None, None], [None, None]),
    (pa.struct([("x", pa.int64())]), pa.string(), [{"x": 1}], [NO]),
    (pa.string(), pa.struct([("x", pa.int64())]), ["x"], [NO]),
    (
        pa.list_(pa.float64()),
        pa.list_(pa.int64()),
        [[1.0, 2.0], [1.5], None, []],
        [[1, 2], NO, None, []],
    ),
    (pa.list_(pa.int64()), pa.int64(), [[1]], [NO]),
    (
        pa.struct([("y", pa.float64()), ("X", pa.string()), ("new", pa.bool_())]),
        pa.struct([("x", pa.string()), ("y", pa.int64()), ("gone", pa.int64())]),
        [{"y": 2.0, "X": "a", "new": True}, {"y": 2.5, "X": "b", "new": None}, None],
        [{"x": "a", "y": 2, "gone": None, "new": True}, NO, None],
    ),
    (
        pa.list_(pa.struct([("p", pa.float64())])),
        pa.list_(pa.struct([("p", pa.int64())])),
        [[{"p": 1.0}, None], [{"p": 0.5}]],
        [[{"p": 1}, None], NO],
    ),
    (
        pa.map_(pa.string(), pa.float64()),
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1.0)], [("a", 1.5)], None, []],
        [[("a", 1)], NO, None, []],
    ),
]


@pytest.mark.parametrize(("given", "kind", "values", "expected"), FITS)
def test_a_value_is_the_same_in_the_table_or_does_not_fit(
    given: pa.DataType, kind: pa.DataType, values: list[Any], expected: list[Any]
) -> None:
    # In a slice, as filters leave them.
    column = pa.array([None, *values], given).slice(1)
    found, reasons = fit(pa.record_batch({"a": column}), pa.schema([("A", kind)]))
    assert sorted(reasons) == [row for row, value in enumerate(expected) if value is NO]
    assert all(each.startswith("a: ") for each in reasons.values())
    kept = [value for row, value in enumerate(found["A"].to_pylist()) if row not in reasons]
    assert kept == [value for value in expected if value is not NO]
    assert conflict(pa.schema([("A", kind)]), found.schema) is None


def test_columns_that_a_table_does_not_have_stay_as_they_are() -> None:
    batch = pa.record_batch({"new": pa.array([1.5]), "old": pa.array(["x"])})
    found, reasons = fit(batch, pa.schema([("old", pa.string())]))
    assert found.equals(batch)
    assert not reasons


def test_tables_grow_and_never_change() -> None:
    known = pa.schema([("a", pa.int64()), ("o", pa.struct([("x", pa.int64())]))])
    grown = pa.schema([("o", pa.struct([("y", pa.bool_())])), ("b", pa.string())])
    assert conflict(known, grown) is None
    assert merged(known, grown).field("o").type == pa.struct([("x", pa.int64()), ("y", pa.bool_())])
    assert merged(known, grown).names == ["a", "o", "b"]
    wrong = pa.schema([("o", pa.struct([("x", pa.float64())]))])
    told = conflict(known, wrong)
    assert told == "o as struct<x:double>, where the table has struct<x:bigint>"


# -- tables --------------------------------------------------------------------------------------


def add(folder: Path, form: Form, *batches: pa.RecordBatch) -> int:
    return lake_tables.commit(folder, form, written(folder, form, *batches))


def amounts(*offsets: int, values: list[Any]) -> pa.RecordBatch:
    return rows(*offsets, errors=[None] * len(offsets), amount=values)


def column(folder: Path, name: str = "amount") -> list[Any]:
    """What any reader of Parquet finds, and of the schema that the first file has."""
    files = lake_tables.files_of(folder)
    found = ds.dataset(files).to_table()
    return [row[name] for row in sorted(found.to_pylist(), key=lambda row: int(row["offset"]))]


@pytest.mark.parametrize("form", FORMS)
def test_one_and_a_half_in_a_column_of_whole_numbers_is_a_dead_letter(
    tmp_path: Path, form: Form
) -> None:
    add(tmp_path, form, amounts(0, 1, values=[1, 2]))
    assert add(tmp_path, form, amounts(2, 3, 4, values=[1.5, 3.0, None])) == 3
    assert column(tmp_path / "orders") == [1, 2, 3, None]
    assert column(tmp_path / "orders.dead_letters", "body") == [b"2"]
    (reason,) = column(tmp_path / "orders.dead_letters", "reason")
    assert "amount: 1.5" in reason
    assert "bigint" in reason
    if form == "delta":
        table = DeltaTable(tmp_path / "orders")
        before = sorted(table.to_pyarrow_table().to_pylist(), key=str)
        assert lake_tables.compact(tmp_path / "orders") == 2
        after = DeltaTable(tmp_path / "orders").to_pyarrow_table().to_pylist()
        assert sorted(after, key=str) == before
    # What was not taken is not read again.
    assert add(tmp_path, form, amounts(2, values=[1.5])) == 0


@pytest.mark.parametrize("form", FORMS)
def test_structs_grow_by_fields_that_readers_see(tmp_path: Path, form: Form) -> None:
    add(tmp_path, form, rows(0, item=[{"sku": "a"}]))
    add(tmp_path, form, rows(1, item=[{"count": 3, "sku": "b"}], late=[True]))
    kind = lake_tables.types_of(tmp_path / "orders", form)
    assert kind is not None
    assert kind.field("item").type == pa.struct([("sku", pa.string()), ("count", pa.int64())])
    if form == "delta":
        found = DeltaTable(tmp_path / "orders").to_pyarrow_table().to_pylist()
        found.sort(key=lambda row: int(row["offset"]))
        assert [row["item"] for row in found] == [
            {"sku": "a", "count": None},
            {"sku": "b", "count": 3},
        ]
        assert [row["late"] for row in found] == [None, True]


@pytest.mark.parametrize("form", FORMS)
def test_rows_without_a_body_to_keep_fail_with_the_reason(tmp_path: Path, form: Form) -> None:
    add(tmp_path, form, rows(0, amount=[1]))
    without = rows(1, amount=[0.5]).drop_columns(["body"])
    with pytest.raises(UndecodableError, match=r"amount: 0\.5"):
        add(tmp_path, form, without)


@pytest.mark.parametrize("form", FORMS)
def test_a_table_that_somebody_made_meanwhile_with_other_types_takes_no_files(
    tmp_path: Path, form: Form
) -> None:
    mine = written(tmp_path, form, amounts(0, values=[1.5]))
    add(tmp_path, form, rows(5, queue=1, amount=[7]))
    with pytest.raises(StoreError, match="amount as double, where the table has bigint"):
        lake_tables.commit(tmp_path, form, mine)
    assert column(tmp_path / "orders") == [7]
    # The batch is run again, by workers that know the table.
    add(tmp_path, form, amounts(0, values=[1.5]))
    assert column(tmp_path / "orders") == [7]
    assert column(tmp_path / "orders.dead_letters", "body") == [b"0"]


@pytest.mark.parametrize("form", FORMS)
def test_files_of_one_batch_have_the_same_types(tmp_path: Path, form: Form) -> None:
    both = written(tmp_path, form, rows(0, amount=[1]))
    both += written(tmp_path, form, rows(1, days=1, amount=["x"]))
    with pytest.raises(StoreError, match="amount as string, where the table has bigint"):
        lake_tables.commit(tmp_path, form, both)


def test_parquet_tables_of_0_1_get_their_types_from_their_files(tmp_path: Path) -> None:
    add(tmp_path, "parquet", rows(0, amount=[1]))
    journal = tmp_path / "orders" / "_onelog" / "positions.json"
    lines = journal.read_text()
    journal.write_text(lines[: lines.index(',"types"')] + "}")
    add(tmp_path, "parquet", amounts(1, values=[1.5]))
    assert column(tmp_path / "orders") == [1]
    assert column(tmp_path / "orders.dead_letters", "body") == [b"1"]


def test_compaction_refuses_a_table_whose_values_it_would_change(tmp_path: Path) -> None:
    """0.1 took files of other types."""
    add(tmp_path, "delta", rows(0, amount=[1]), rows(1, days=1, amount=[2]))
    table = tmp_path / "orders"
    victim = Path(lake_tables.files_of(table)[0])
    held = pq.read_table(victim, partitioning=None)
    at = held.schema.get_field_index("amount")
    pq.write_table(held.set_column(at, "amount", pa.array([1.5])), victim)
    with pytest.raises(StoreError, match="amount as double, where the table has bigint"):
        lake_tables.compact(table)
    assert len(lake_tables.files_of(table)) == 2
