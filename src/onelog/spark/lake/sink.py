"""The sink of a lake sync: workers write files, the driver makes them part of their tables.

Format `onelog_lake`, for `lake.sync`; it has to be registered (`spark.dataSource.register`).
Options: `path`, the folder of the tables; `form`, delta or parquet; `fileBytes`.

Invariant: as in `lake.tables`, a message is in its table once, whoever brings it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from onelog.errors import ConfigError
from onelog.spark.folders import local_folder
from onelog.spark.lake import tables as lake_tables
from onelog.spark.lake.files import FILE_BYTES, FileWriter, WrittenFile
from onelog.spark.lake.tables import Form
from onelog.spark.worker_memory import settle
from onelog.spark.write.stream_writers import Messages, stream_writer

FORMAT = "onelog_lake"
_NEEDED = frozenset({"topic", "queue", "offset", "broker", "store_time"})


@dataclass(frozen=True)
class FilesWritten(WriterCommitMessage):
    """What one attempt of a task has written."""

    files: tuple[WrittenFile, ...]


class LakeSink(DataSource):
    """`df.writeStream.format("onelog_lake")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        missing = sorted(_NEEDED - set(schema.names))
        if missing:
            raise ConfigError(
                f"a lake table needs the columns {', '.join(sorted(_NEEDED))}; missing: "
                f"{', '.join(missing)}"
            )
        path = self.options.get("path")
        if not path:
            raise ConfigError("option path: name the folder of the tables")
        form = self.options.get("form", "delta")
        if form not in ("delta", "parquet"):
            raise ConfigError(f"option form is delta or parquet, and not {form!r}")
        file_bytes = int(self.options.get("fileBytes", FILE_BYTES))
        return stream_writer(
            LakeStream(local_folder("option path", path), cast(Form, form), file_bytes), schema
        )


@dataclass(frozen=True)
class LakeStream:
    """See `stream_writers.StreamWork`."""

    folder: Path
    form: Form
    file_bytes: int

    def write(
        self, query: str, batch: int, batches: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        """In a task: files that belong to no table yet."""
        writer = FileWriter(
            self.folder,
            hide=self.form == "parquet",
            file_bytes=self.file_bytes,
            types=lambda name: lake_tables.types_of(self.folder / name, self.form),
        )
        files = [file for rows in batches for file in writer.add(rows)]
        written = FilesWritten((*files, *writer.rest()))
        settle()
        return written

    def commit(self, batch: int, messages: Messages) -> None:
        """On the driver: make them part of their tables."""
        written = [each for each in messages if isinstance(each, FilesWritten)]
        if written:
            files = [file for each in written for file in each.files]
            lake_tables.commit(self.folder, self.form, files)
