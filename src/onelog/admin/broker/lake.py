"""Lake tables of a folder (`http.lake`), the queries that keep them fresh, and who reads by Spark.

Tables are listed by `onelog lake list` in a process of its own: what reads them needs more memory
than the broker. How far queries are, their checkpoints say (see `spark.lake`).
"""

import asyncio
import json
import sys
from pathlib import Path
from time import monotonic

import msgspec

from onelog.admin.broker.call import Call
from onelog.admin.clusters import Lake, LakeQuery, LakeTable, SparkRead
from onelog.admin.operations import Arguments
from onelog.core.stats import MINUTE
from onelog.gateways.http.requests import looked_up
from onelog.rocketmq.names import TOOLS_GROUP

KEPT_SECONDS = 10.0
LIST_SECONDS_MAX = 30.0
CHECKPOINTS = "_checkpoints"
QUERIES_MAX = 200


async def get_lake(call: Call, given: Arguments) -> Lake:
    """Lake tables, the queries that write them, and what Spark reads."""
    call.check("describe", "names")
    folder = call.context.loaded.config.http.lake
    broker = call.broker
    measures, now_ms = broker.admin.measures(call.principal), call.context.clock.now_ms()
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
    tables, trouble = await _tables(call, folder)
    found = await looked_up(call.context, lambda: _queries(Path(folder)))
    queries = [_measured(call, query, ends) for query, ends in found]
    return Lake(folder, trouble, tables, queries, reads)


async def _tables(call: Call, folder: str) -> tuple[list[LakeTable], str | None]:
    """The tables, as they were some seconds ago; or why they cannot be listed."""
    kept: tuple[float, list[LakeTable], str | None] | None = call.context.kept.get("lake")
    if kept is None or monotonic() - kept[0] > KEPT_SECONDS:
        tables, trouble = await _listed(folder)
        kept = call.context.kept["lake"] = (monotonic(), tables, trouble)
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


def _measured(call: Call, query: LakeQuery, ends: Ends) -> LakeQuery:
    broker = call.broker
    for topic, queues in ends.items():
        if broker.topics.find(call.principal, topic) is None:
            continue
        for name, offset in queues.items():
            owner, _, queue = name.rpartition(":")
            if owner == broker.admin.config.name and queue.isdecimal():
                query.lag += max(
                    0, broker.topics.max_offset(call.principal, topic, int(queue)) - offset
                )
    return query
