"""Rows and files of lake tables, as Spark's workers make them."""

import datetime
from pathlib import Path

import pyarrow as pa

from onelog.spark.lake import tables as lake_tables
from onelog.spark.lake.files import FileWriter, WrittenFile
from onelog.spark.lake.tables import Form

DAY = datetime.datetime(2026, 5, 1, 23, 59, 59, 999_999, tzinfo=datetime.UTC)


def rows(
    *offsets: int,
    topic: str = "orders",
    queue: int = 0,
    days: int = 0,
    errors: list[str | None] | None = None,
    made: int | None = None,
    broker: str = "a",
    **more: list[object],
) -> pa.RecordBatch:
    count = len(offsets)
    columns: dict[str, pa.Array] = {
        "topic": pa.array([topic] * count),
        "queue": pa.array([queue] * count, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "broker": pa.array([broker] * count),
        "body": pa.array([b"%d" % offset for offset in offsets]),
        "properties": pa.array([[("k", "v")]] * count, pa.map_(pa.string(), pa.string())),
        "store_time": pa.array(
            [DAY + datetime.timedelta(days=days)] * count, pa.timestamp("us", "UTC")
        ),
    }
    columns |= {name: pa.array(values) for name, values in more.items()}
    if made is not None:
        columns["_incarnation"] = pa.array([made] * count, pa.int64())
    if errors is not None:
        columns["_error"] = pa.array(errors, pa.string())
    return pa.record_batch(columns)


def written(
    folder: Path, form: Form, *batches: pa.RecordBatch, file_bytes: int = 1 << 20
) -> list[WrittenFile]:
    writer = FileWriter(
        folder,
        hide=form == "parquet",
        file_bytes=file_bytes,
        types=lambda name: lake_tables.types_of(folder / name, form),
    )
    return [file for batch in batches for file in writer.add(batch)] + list(writer.rest())
