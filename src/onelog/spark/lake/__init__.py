"""Topics as lake tables, kept fresh by a streaming query.

    sync(["orders"], "lake")              once: everything that there is
    sync(["orders"], "lake", every=10)    for as long as it is let, every ten seconds

Each topic is a table in the folder: Delta by default, so that Spark, DuckDB, pandas and others read
it without a broker. The query's checkpoint is in the folder too, one for each set of topics; but
how far a table is, the table itself says (see `lake.positions`).

The query's sink is of the format `onelog_lake`, which has to be registered
(`spark.dataSource.register`): workers write files, the driver makes them part of their tables. Its
options: `path`, the folder of the tables; `form`, delta or parquet; `fileBytes`.

Invariant: every message of the topics, from where the sync began, is in its table once.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from onelog.errors import ConfigError
from onelog.spark.bodies.json import JsonBodies, infer_schema
from onelog.spark.columns.schema import ALL, INCARNATION, arrow_schema
from onelog.spark.folders import local_folder
from onelog.spark.jobs.queries import OnProgress, Ran, ShouldStop, run, triggered
from onelog.spark.lake import tables as lake_tables
from onelog.spark.lake.files import FILE_BYTES, FileWriter, WrittenFile, check_names, table_name
from onelog.spark.lake.positions import beginning
from onelog.spark.lake.tables import Form
from onelog.spark.lake.types import conflict, merged, named
from onelog.spark.options import read_options
from onelog.spark.read.batch import sample_bodies
from onelog.spark.workers import settle
from onelog.spark.write.stream_writers import Messages, stream_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINTS = "_checkpoints"
COLUMNS = (
    "topic",
    "queue",
    "offset",
    "key",
    "key_bytes",
    "tags",
    "body",
    "properties",
    "headers",
    "born_time",
    "store_time",
    "message_id",
    "flag",
    "broker",
)


def sync(
    topics: Sequence[str],
    to: str | Path,
    *,
    spark: "SparkSession",
    options: Mapping[str, str] | None = None,
    form: Form = "delta",
    every: float | None = None,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
) -> Ran:
    """Bring the tables up to date; with `every` (seconds) again and again, until `should_stop`.

    `options` are those of the data source: `nameserver`, `decode` and `schema`,
    `maxOffsetsPerTrigger` and so on.
    """
    folder = local_folder("lake", to).absolute()
    query = start(topics, folder, spark=spark, options=options, form=form, every=every)
    return run(query, on_progress, should_stop)


def start(
    topics: Sequence[str],
    folder: Path,
    *,
    spark: "SparkSession",
    options: Mapping[str, str] | None = None,
    form: Form = "delta",
    every: float | None = None,
) -> "StreamingQuery":
    """Begin to sync, in the background."""
    if not topics:
        raise ConfigError("no topic is named: say which ones to sync")
    folder = local_folder("lake", folder).absolute()
    check_names(list(topics))
    checkpoint = folder / CHECKPOINTS / _identity(topics, form)
    given = _begun(folder, form, {**(options or {}), "subscribe": ",".join(topics)}, checkpoint)
    given = _with_known_fields(topics, folder, form, given)
    decoded = ("properties", "headers") if "decode" in given else ()
    columns = [each for each in COLUMNS if each not in decoded]
    given["columns"] = f"{given.get('columns') or ','.join(columns)},{INCARNATION}"
    spark.dataSource.register(LakeSink)
    rows = spark.readStream.format("onelog").options(**given).load()
    writing = (
        rows.writeStream.format(FORMAT)
        .option("form", form)
        .option("checkpointLocation", str(checkpoint))
        .queryName(f"onelog-lake-{_identity(topics, form)}")
    )
    return triggered(writing, every).start(str(folder))


def _with_known_fields(
    topics: Sequence[str], folder: Path, form: Form, given: dict[str, str]
) -> dict[str, str]:
    """With the schema that is to be inferred: fields that tables have keep their types.

    What is something else in a message cannot be decoded then, and becomes a dead letter.
    """
    options = read_options(given)
    if options.decode is None or options.decode.form != "json" or not options.decode.needs_sample:
        return given
    known = _types_together(topics, folder, form)
    if not len(known):
        return given
    sample = sample_bodies(options, options.decode.sample_records)
    misfits = JsonBodies(list(known)).decode(sample).errors
    fitting = [body for row, body in enumerate(sample) if row not in misfits]
    with contextlib.suppress(ConfigError):  # None of them has a field.
        known = merged(known, arrow_schema(infer_schema(fitting)))
    return {**given, "schema": from_arrow_schema(known).json()}


def _types_together(topics: Sequence[str], folder: Path, form: Form) -> pa.Schema:
    """The decoded fields of all tables; whole numbers and others are both in doubles."""
    found: dict[str, pa.DataType] = {}
    for topic in topics:
        for field in lake_tables.types_of(folder / table_name(topic), form) or ():
            name, kind = field.name, field.type
            other = found.setdefault(name, kind)
            one, two = pa.schema([(name, other)]), pa.schema([(name, kind)])
            if conflict(one, two) is None:
                found[name] = merged(one, two).field(name).type
            elif {other, kind} == {pa.int64(), pa.float64()}:
                found[name] = pa.float64()
            else:
                raise ConfigError(
                    f"the tables of {', '.join(topics)} have the field {name} as {named(other)} "
                    f"and as {named(kind)}: sync their topics one by one"
                )
    return pa.schema([(name, kind) for name, kind in found.items() if name not in ALL])


def read(spark: "SparkSession", table: str | Path) -> "DataFrame":
    """A table of a lake as it is now, read without any jar."""
    folder = local_folder("table", table).absolute()
    files = lake_tables.files_of(folder)
    if not files:
        raise ConfigError(f"{folder} is no lake table, or an empty one")
    return spark.read.option("basePath", str(folder)).option("mergeSchema", "true").parquet(*files)


def _identity(topics: Sequence[str], form: Form) -> str:
    """The same topics are the same query, whatever their order."""
    names = "\n".join([form, *sorted(set(topics))])
    short = "-".join(table_name(topic)[:20] for topic in sorted(set(topics))[:3])
    return f"{short}-{hashlib.sha256(names.encode()).hexdigest()[:8]}"


def _begun(folder: Path, form: Form, given: dict[str, str], checkpoint: Path) -> dict[str, str]:
    """The options with where to begin; a checkpoint that is behind the tables goes."""
    if not {"startingoffsets", "startingtimestamp"} & {name.lower() for name in given}:
        given["startingOffsets"] = "earliest"
    found = beginning(folder, form, read_options(given), checkpoint)
    if found.is_new and checkpoint.exists():
        shutil.rmtree(checkpoint)
    if found.offsets is None:
        return given
    others = {k: v for k, v in given.items() if not k.lower().startswith("starting")}
    return {**others, "startingOffsets": found.offsets}


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
