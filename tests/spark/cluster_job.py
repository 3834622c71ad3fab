"""A program of a user, for any Spark: `cluster_job.py JOB`, with JOB as JSON (`Job`).

Reads a topic as a batch, copies it to another topic and to a lake table by streams, which begin
where their checkpoints end, and writes what it found to a file.
"""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from onelog.spark import lake, session


@dataclass(frozen=True, slots=True)
class Job:
    """Exactly one of `master` and `remote` is given."""

    nameserver: str
    source: str
    target: str
    folder: str
    master: str | None = None
    remote: str | None = None
    conf: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @property
    def found(self) -> Path:
        """Where the answer appears."""
        return Path(self.folder) / "found.json"


def run(job: Job) -> dict[str, object]:
    """Do it all; what was found."""
    spark = session("cluster job", master=job.master, remote=job.remote, conf=job.conf)
    options = {"nameserver": job.nameserver, "subscribe": job.source, "minPartitions": "4"}
    rows = spark.read.format("onelog").options(**options).load()
    count, checksum = rows.selectExpr("count(*)", "sum(crc32(body))").collect()[0]
    stream = spark.readStream.format("onelog").options(
        **options, startingOffsets="earliest", maxOffsetsPerTrigger="4000"
    )
    writing = (
        stream.load()
        .select("body", "key")
        .writeStream.format("onelog")
        .options(nameserver=job.nameserver, topic=job.target)
        .option("checkpointLocation", f"{job.folder}/checkpoint")
    )
    writing.trigger(availableNow=True).start().awaitTermination()
    synced = lake.sync(
        [job.source],
        Path(job.folder) / "lake",
        spark=spark,
        options={"nameserver": job.nameserver, "maxOffsetsPerTrigger": "4000"},
    )
    spark.stop()
    return {"count": count, "checksum": checksum, "synced": synced.rows}


if __name__ == "__main__":
    given = Job(**json.loads(sys.argv[1]))
    given.found.write_text(json.dumps(run(given)))
