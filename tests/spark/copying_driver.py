"""A driver in a process of its own, to be killed: copies topics, as its standard input says.

Each line of the input is a job (`Copy` as JSON). When everything has been copied, a file in the
job's folder says so. A query that fails is started again, as whoever runs it would do.
"""

import json
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onelog.spark import lake, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MASTER = "local[2,4]"
"""Two cores; a task is run four times before it is given up."""
RESTARTS_MAX = 8


@dataclass(frozen=True, slots=True)
class Copy:
    """From one topic to another one, or to a table in a folder."""

    nameserver: str
    source: str
    target: str
    """A topic; empty for a table."""
    folder: str
    """Of the table, and of the checkpoint."""
    rows_per_batch: int

    def line(self) -> bytes:
        """For the standard input."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @property
    def done(self) -> Path:
        """The file that appears in the end: how often the query had to be started again."""
        return Path(self.folder) / "_done"

    @property
    def checkpoints(self) -> Path:
        """Where the query's checkpoint appears."""
        return Path(self.folder) / lake.CHECKPOINTS


def start(spark: "SparkSession", copy: Copy) -> "StreamingQuery":
    """The query, which ends when everything that there was is copied."""
    options = {
        "nameserver": copy.nameserver,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(copy.rows_per_batch),
        "minPartitions": "4",
    }
    if not copy.target:
        return lake.start([copy.source], Path(copy.folder), spark=spark, options=options)
    rows = spark.readStream.format("onelog").options(**options, subscribe=copy.source).load()
    return (
        rows.select("body", "key")
        .writeStream.format("onelog")
        .options(nameserver=copy.nameserver, topic=copy.target)
        .option("checkpointLocation", str(copy.checkpoints / "copy"))
        .trigger(availableNow=True)
        .start()
    )


def run(spark: "SparkSession", copy: Copy) -> int:
    """Copy everything; how often the query had to be started again."""
    for restarts in range(RESTARTS_MAX + 1):
        try:
            start(spark, copy).awaitTermination()
            return restarts
        except Exception:
            traceback.print_exc()
            if restarts == RESTARTS_MAX:
                raise
    raise AssertionError("the last try returns or raises")


def main() -> None:
    """Work until there is no more input."""
    spark = session(master=MASTER)
    for line in sys.stdin:
        copy = Copy(**json.loads(line))
        copy.done.write_text(str(run(spark, copy)))


if __name__ == "__main__":
    main()
