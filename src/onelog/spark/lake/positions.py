"""Where a sync begins: where its tables end, whoever wrote them.

Positions belong to tables; a checkpoint is only how Spark goes on with its own query. Another
sync, with other topics beside the same one, may have brought a table further than the checkpoint
of this one knows. Then that checkpoint is of no use any more, and a new one begins at the tables'
positions. (If a sync reads rows that a table has already, `lake.tables` does not take them.)

Invariant: a sync reads every message that its tables do not have yet.
"""

import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onelog.client.message import Queue
from onelog.errors import ConfigError
from onelog.spark.lake import tables as lake_tables
from onelog.spark.lake.files import QueueRun, table_name
from onelog.spark.lake.tables import Form
from onelog.spark.options import ReadOptions
from onelog.spark.read.boundaries import EARLIEST
from onelog.spark.read.offsets import Offsets, losses, queue_name, report, resolve
from onelog.spark.read.origins import origin_of


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a query got, as Spark wrote it down."""

    end: Offsets
    """Of the last batch that was begun."""
    is_open: bool
    """Whether that batch did not end: it has to be run again."""


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None if there is none, or no batch of it has begun."""
    begun, ended = (_last(folder / name) for name in ("offsets", "commits"))
    if begun is None:
        return None
    for line in reversed((folder / "offsets" / str(begun)).read_text().splitlines()):
        with contextlib.suppress(ValueError, ConfigError):
            return Checkpoint(Offsets.from_json(json.loads(line)), begun != ended)
    raise ConfigError(f"{folder} is no checkpoint of a sync: move it away")


def _last(folder: Path) -> int | None:
    numbers = (int(each.name) for each in folder.glob("[0-9]*") if each.name.isdecimal())
    return max(numbers, default=None)


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a sync begins: with its checkpoint, or with a new one."""

    is_new: bool
    offsets: str | None = None
    """Of a new one, as the option startingOffsets has it; None: as the user said."""


def beginning(folder: Path, form: Form, options: ReadOptions, checkpoint: Path) -> Beginning:
    """Look at the tables of a folder, and at the checkpoint."""
    known = read_checkpoint(checkpoint)
    if known is not None and known.is_open:
        return Beginning(is_new=False)
    if known is not None:
        lake_tables.settle_incarnations(folder, form, known.end.incarnations)
    origin = origin_of(options)
    snapshot = origin.snapshot(missing_ok=known is not None)
    held = _held(folder, form, snapshot.extents, snapshot.incarnations)
    if known is not None and not _is_behind(known.end, held):
        return Beginning(is_new=False)
    merged = held if known is None else _merged(known.end, held)
    if not merged.positions:
        return Beginning(is_new=True)
    lost = losses(merged, snapshot)
    report(lost, fail=options.fail_on_data_loss)
    at = {**merged.positions, **{each.queue: each.go_on_at for each in lost}}
    topics = {queue.topic for queue in at}
    # A queue that a table does not know is new, unless the whole topic is new to the lake.
    at = {q: extent.start for q, extent in snapshot.extents.items() if q.topic in topics} | at
    if snapshot.extents.keys() - at.keys():
        at = (
            resolve(
                "startingOffsets",
                options.start or EARLIEST,
                snapshot,
                origin,
                group=options.group,
                now_ms=time.time_ns() // 1_000_000,
                fail_on_data_loss=False,
            )
            | at
        )
    found: dict[str, dict[str, int]] = {}
    for queue in snapshot.extents:
        found.setdefault(queue.topic, {})[queue_name(queue)] = at[queue]
    return Beginning(is_new=True, offsets=json.dumps(found, sort_keys=True))


def _held(
    folder: Path,
    form: Form,
    queues: Iterable[Queue],
    incarnations: Mapping[tuple[str, str], int],
) -> Offsets:
    """How far the tables are."""
    by_topic: dict[str, list[QueueRun]] = {}
    for queue in queues:
        made = incarnations.get((queue.topic, queue.broker), 0)
        run = QueueRun(queue.topic, queue.broker, queue.queue_id, made)
        by_topic.setdefault(queue.topic, []).append(run)
    positions: dict[Queue, int] = {}
    seen: dict[tuple[str, str], int] = {}
    for topic, runs in by_topic.items():
        reached, last = lake_tables.reached(folder, form, table_name(topic), runs)
        positions |= {Queue(*run[:3]): position for run, position in reached.items()}
        seen |= last
    return Offsets(positions, seen)


def _is_behind(known: Offsets, held: Offsets) -> bool:
    """Whether a table is further than the checkpoint."""
    for queue, position in held.positions.items():
        run = (queue.topic, queue.broker)
        made, seen = known.incarnations.get(run, 0), held.incarnations.get(run, 0)
        if made and seen and made != seen:
            if seen > made:
                return True
        elif position > known.positions.get(queue, -1):
            return True
    return False


def _merged(known: Offsets, held: Offsets) -> Offsets:
    """The later of both, in each queue."""
    positions, incarnations = dict(known.positions), dict(known.incarnations)
    for run, seen in held.incarnations.items():
        if seen > incarnations.get(run, 0):
            if run in incarnations:
                positions = {q: at for q, at in positions.items() if (q.topic, q.broker) != run}
            incarnations[run] = seen
    for queue, position in held.positions.items():
        run = (queue.topic, queue.broker)
        if held.incarnations.get(run, incarnations.get(run)) == incarnations.get(run):
            positions[queue] = max(position, positions.get(queue, 0))
    return Offsets(positions, incarnations)
