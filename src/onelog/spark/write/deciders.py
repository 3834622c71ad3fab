"""Which broker decides for a stream, as the stream's checkpoint remembers it.

A stream lives as long as its checkpoint. So a line in there says who decides, also while the
brokers that know it are away:

    CHECKPOINT/onelog-decider.json    {"query": "spark-<id>", "decider": "broker-a"}

Only a folder that this process sees is used, and only if it is this query's: a path may mean
another place to Spark (a distributed file system) than it means here. Without one, what the brokers
remember has to do.

Invariant: what `read` gives was written for the same query.
"""

import contextlib
import json
import logging
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

log = logging.getLogger(__name__)

NAME = "onelog-decider.json"
QUERY_PREFIX = "spark-"


class DeciderFile:
    """The line in the checkpoint of one query."""

    def __init__(self, checkpoint: str | None, query: str) -> None:
        self._query = query
        folder = _local(checkpoint)
        self._path = folder / NAME if folder is not None and _id(folder) == query else None

    def read(self) -> str | None:
        """Who decides; None if that is not written down."""
        if self._path is None:
            return None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(self._path.read_text())
            if content["query"] == self._query:
                return str(content["decider"])
        return None

    def write(self, decider: str) -> None:
        """Write it down, on disk, before anything is decided."""
        if self._path is None or self.read() == decider:
            return
        temporary = self._path.with_name(f".{NAME}.tmp")
        try:
            with open(temporary, "w") as file:
                json.dump({"query": self._query, "decider": decider}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except OSError as error:
            log.warning("who decides for query %s is not in its checkpoint: %s", self._query, error)


def _local(checkpoint: str | None) -> Path | None:
    if checkpoint is None:
        return None
    parts = urlsplit(checkpoint)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(checkpoint)


def _id(folder: Path) -> str | None:
    """The query that a checkpoint is of; Spark writes that before anything else."""
    try:
        return QUERY_PREFIX + str(json.loads((folder / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
