"""Topics as lake tables, kept fresh by a streaming query.

    sync(["orders"], "lake")              once: everything that there is
    sync(["orders"], "lake", every=10)    for as long as it is let, every ten seconds

Each topic is a table in the folder: Delta by default, so that Spark, DuckDB, pandas and others read
it without a broker. The query's checkpoint is in the folder too, one for each set of topics; but
how far a table is, the table itself says (see `lake.positions`).

Invariant: every message of the topics, from where the sync began, is in its table once.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onelog.errors import ConfigError
from onelog.spark.columns.messages import INCARNATION
from onelog.spark.jobs.queries import OnProgress, Ran, ShouldStop, run, triggered
from onelog.spark.lake import tables as lake_tables
from onelog.spark.lake.files import check_names, table_name
from onelog.spark.lake.positions import beginning
from onelog.spark.lake.sink import FORMAT, LakeSink
from onelog.spark.lake.tables import Form
from onelog.spark.options import read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINTS = "_checkpoints"
COLUMNS = (
    "topic", "queue", "offset", "key", "tags", "body", "properties", "born_time", "store_time",
    "message_id", "flag", "broker",
)  # fmt: skip


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
    folder = Path(to).absolute()
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
    check_names(list(topics))
    checkpoint = folder / CHECKPOINTS / _identity(topics, form)
    given = _begun(folder, form, {**(options or {}), "subscribe": ",".join(topics)}, checkpoint)
    columns = [each for each in COLUMNS if each != "properties" or "decode" not in given]
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


def read(spark: "SparkSession", table: str | Path) -> "DataFrame":
    """A table of a lake as it is now, read without any jar."""
    folder = Path(table).absolute()
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
