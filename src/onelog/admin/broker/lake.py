"""Lake tables of a folder (`http.lake`), the queries that keep them fresh, and who reads by Spark.

Tables are listed by `onelog lake list` in a process of its own: what reads them needs more memory
than the broker. How far queries are, their checkpoints say (see `spark.lake`).
"""

import asyncio
import json
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct

from onelog.admin.operations import Ask, Operation, check
from onelog.core.stats import MINUTE
from onelog.gateways.http.requests import looked_up
from onelog.rocketmq.names import TOOLS_GROUP

KEPT_SECONDS = 10.0
LIST_SECONDS_MAX = 30.0
CHECKPOINTS = "_checkpoints"
QUERIES_MAX = 200


class LakeTable(Struct):
    """A table."""

    name: str
    form: str
    files: int
    size_bytes: int
    rows: int


class LakeQuery(Struct):
    """A query that keeps tables fresh, by its checkpoint."""

    name: str
    topics: list[str]
    batch: int
    """The last one that was begun."""
    is_open: bool
    """Whether that has not ended."""
    updated_ms: int
    lag: int
    """Messages of this broker that are not in the tables yet."""


class SparkRead(Struct):
    """A topic that Spark, or another tool, reads without a group of its own."""

    topic: str
    per_second: float


class Lake(Struct):
    """Tables, queries and reads."""

    folder: str
    trouble: str | None
    tables: list[LakeTable]
    queries: list[LakeQuery]
    reads: list[SparkRead]


async def get_lake(ask: Ask) -> Lake:
    """Lake tables, the queries that write them, and what Spark reads."""
    check(ask, "describe", "names")
    folder = ask.context.loaded.config.http.lake
    broker = ask.context.broker
    measures, now_ms = broker.admin.measures(ask.principal), ask.context.clock.now_ms()
    keys = measures.group_get.keys()
    topics = sorted({key[0] for key in keys if isinstance(key, tuple) and key[1] == TOOLS_GROUP})
    reads = [
        SparkRead(
            topic,
            round(measures.group_get.over(MINUTE, (topic, TOOLS_GROUP), now_ms).per_second, 2),
        )
        for topic in topics
    ]
    if not folder:
        return Lake("", None, [], [], reads)
    tables, trouble = await _tables(ask, folder)
    found = await looked_up(ask.context, lambda: _queries(Path(folder)))
    queries = [_measured(ask, query, ends) for query, ends in found]
    return Lake(folder, trouble, tables, queries, reads)


async def _tables(ask: Ask, folder: str) -> tuple[list[LakeTable], str | None]:
    """The tables, as they were some seconds ago; or why they cannot be listed."""
    state = ask.request.app.state
    kept: tuple[float, list[LakeTable], str | None] | None = getattr(state, "lake", None)
    if kept is None or monotonic() - kept[0] > KEPT_SECONDS:
        tables, trouble = await _listed(folder)
        kept = state.lake = (monotonic(), tables, trouble)
    return kept[1], kept[2]


async def _listed(folder: str) -> tuple[list[LakeTable], str | None]:
    command = (sys.executable, "-m", "onelog", "lake", "list", folder, "--json")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(LIST_SECONDS_MAX):
            output, complaint = await process.communicate()
        if process.returncode == 0:
            return msgspec.json.decode(output, type=list[LakeTable]), None
        return [], complaint.decode("utf-8", "replace").strip()[-500:] or "no tables are told of"
    except (TimeoutError, msgspec.DecodeError):
        return [], f"the tables of {folder} could not be listed"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


Ends = dict[str, dict[str, int]]
"""Per topic: how far a query is in each queue."""


def _queries(folder: Path) -> list[tuple[LakeQuery, Ends]]:
    found = []
    for path in sorted((folder / CHECKPOINTS).glob("*"))[:QUERIES_MAX]:
        begun, ended = _last(path / "offsets"), _last(path / "commits")
        if begun is None:
            continue
        ends = _ends(begun)
        updated_ms = int((ended or begun).stat().st_mtime * 1000)
        is_open = ended is None or ended.name != begun.name
        query = LakeQuery(path.name, sorted(ends), int(begun.name), is_open, updated_ms, 0)
        found.append((query, ends))
    return found


def _last(folder: Path) -> Path | None:
    numbers = [each for each in folder.glob("[0-9]*") if each.name.isdecimal()]
    return max(numbers, key=lambda each: int(each.name), default=None)


def _ends(path: Path) -> Ends:
    for line in reversed(path.read_text("utf-8").splitlines()):
        try:
            return msgspec.convert(json.loads(line)["offsets"], Ends)
        except (ValueError, TypeError, KeyError):
            continue  # What Spark itself wrote down.
    return {}


def _measured(ask: Ask, query: LakeQuery, ends: Ends) -> LakeQuery:
    broker = ask.context.broker
    for topic, queues in ends.items():
        if broker.find_topic(ask.principal, topic) is None:
            continue
        for name, offset in queues.items():
            owner, _, queue = name.rpartition(":")
            if owner == broker.config.name and queue.isdecimal():
                query.lag += max(0, broker.max_offset(ask.principal, topic, int(queue)) - offset)
    return query


_EXAMPLE: dict[str, Any] = {
    "folder": "lake",
    "trouble": None,
    "queries": [],
    "reads": [],
    "tables": [{"name": "orders", "form": "delta", "files": 3, "size_bytes": 9000, "rows": 100}],
}
OPERATIONS = [
    Operation(
        "GET", "/v1/lake", "Lake tables, and what Spark reads", get_lake, Lake, example=_EXAMPLE
    ),
]
