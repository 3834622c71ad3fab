"""Offsets: how far a query is in each queue, in the form that checkpoints keep.

    {"incarnations": {"orders": {"broker-a": 1793528400000}},
     "offsets": {"orders": {"broker-a:0": 120, "broker-a:1": 98}}}

An incarnation is when a topic came into being on a broker, as far as the broker can tell. A topic
that was deleted and made again has another one, and none of the old offsets means anything there.

Invariants: equal offsets give equal JSON texts, because Spark compares the texts; an offset never
goes back unless the topic was made again or the user accepts the loss of data.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from onelog.client.message import Queue
from onelog.errors import ConfigError, DataLossError, TransactionOpenError
from onelog.spark.read.boundaries import EARLIEST_OFFSET, LATEST_OFFSET, Boundary, BoundaryKind

if TYPE_CHECKING:
    from onelog.store.outcomes import Aborted

log = logging.getLogger(__name__)

Incarnations = Mapping[tuple[str, str], int]
"""By topic and broker."""
Json = dict[str, dict[str, dict[str, int]]]


class Extent(NamedTuple):
    """What a queue holds for readers: the offsets from `start` up to, not including, `end`.

    A transaction of Kafka's that is open, and all behind it, is not for readers yet.
    """

    start: int
    end: int


class QueueRange(NamedTuple):
    """A run of messages of one queue, to be read."""

    queue: Queue
    start: int
    end: int
    incarnation: int = 0

    @property
    def rows(self) -> int:
        """How many messages that is, if none is missing."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the topics of a query hold at one moment."""

    extents: Mapping[Queue, Extent]
    incarnations: Incarnations = field(default_factory=dict)
    aborted: "Mapping[Queue, Sequence[Aborted]]" = field(default_factory=dict)
    """Transactions whose messages are to be left out; brokers leave them out themselves."""
    written: Mapping[Queue, int] = field(default_factory=dict)
    """Of queues whose extent ends before a transaction that is open: where they end with it."""

    @property
    def ends(self) -> "Offsets":
        ends = {queue: extent.end for queue, extent in self.extents.items()}
        return Offsets(ends, self.incarnations)


class Origin(Protocol):
    """Where messages are: brokers, or the files of a store."""

    def snapshot(self, *, missing_ok: bool = False) -> Snapshot:
        """What there is now of what the query subscribes to."""

    def offsets_at(self, queues: Iterable[Queue], time_ms: int) -> dict[Queue, int]:
        """The first offset of each queue whose message was stored at a time or later."""

    def group_positions(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Where a consumer group is; queues in which it has no position are left out."""

    def record_bytes(self, starts: Mapping[Queue, int]) -> dict[Queue, float]:
        """About how many bytes one message has in each queue, from an offset on."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """How far a query is; queues without messages so far may be missing."""

    positions: Mapping[Queue, int]
    incarnations: Incarnations = field(default_factory=dict)

    def to_json(self) -> Json:
        """The form that goes into checkpoints, with its keys in order."""
        positions: dict[str, dict[str, int]] = {}
        for queue in sorted(self.positions):
            positions.setdefault(queue.topic, {})[queue_name(queue)] = self.positions[queue]
        incarnations: dict[str, dict[str, int]] = {}
        for topic, broker in sorted(self.incarnations):
            incarnations.setdefault(topic, {})[broker] = self.incarnations[topic, broker]
        return {"incarnations": incarnations, "offsets": positions}

    @staticmethod
    def from_json(content: Mapping[str, Mapping[str, Mapping[str, int]]]) -> "Offsets":
        """What `to_json` gave; `ConfigError` if this is something else."""
        try:
            positions = {
                _queue(topic, name): int(offset)
                for topic, queues in content["offsets"].items()
                for name, offset in queues.items()
            }
            incarnations = {
                (topic, broker): int(created_ms)
                for topic, brokers in content["incarnations"].items()
                for broker, created_ms in brokers.items()
            }
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError(
                f"the checkpoint has offsets that are not of this source: {str(content)[:200]}; "
                "give the query a checkpointLocation of its own"
            ) from None
        return Offsets(positions, incarnations)


def queue_name(queue: Queue) -> str:
    """A queue of a topic in JSON: `broker:queue`, or `queue` in a store, which knows no broker."""
    return f"{queue.broker}:{queue.queue_id}" if queue.broker else str(queue.queue_id)


def _queue(topic: str, name: str) -> Queue:
    broker, _, number = name.rpartition(":")
    return Queue(topic, broker, int(number))


# -- beginning and end ---------------------------------------------------------------------------


def resolve(
    option: str,
    boundary: Boundary,
    snapshot: Snapshot,
    origin: Origin,
    *,
    group: str | None,
    now_ms: int,
    fail_on_data_loss: bool = True,
) -> dict[Queue, int]:
    """The offset that a boundary means in each queue."""
    extents = snapshot.extents
    if boundary.kind is BoundaryKind.EARLIEST:
        return {queue: extent.start for queue, extent in extents.items()}
    if boundary.kind is BoundaryKind.LATEST:
        return dict(snapshot.ends.positions)
    if boundary.kind is BoundaryKind.GROUP:
        assert group is not None
        known = origin.group_positions(group, extents)
        found = {queue: known.get(queue, extent.start) for queue, extent in extents.items()}
    elif boundary.kind is BoundaryKind.OFFSETS:
        found = _explicit(option, boundary.offsets, extents)
    else:
        times = origin.offsets_at(extents, boundary.time_ms(now_ms))
        return {
            queue: min(max(times[queue], extent.start), extent.end)
            for queue, extent in extents.items()
        }
    return _within(option, found, snapshot, fail_on_data_loss)


def _explicit(
    option: str, offsets: Mapping[str, Mapping[str, int]], extents: Mapping[Queue, Extent]
) -> dict[Queue, int]:
    """Offsets by name, which must be those of all queues and of no others."""
    found: dict[Queue, int] = {}
    for topic, queues in offsets.items():
        for name, offset in queues.items():
            queue = find_queue(option, topic, name, extents)
            if offset == EARLIEST_OFFSET:
                offset = extents[queue].start
            elif offset == LATEST_OFFSET:
                offset = extents[queue].end
            found[queue] = offset
    missing = sorted(set(extents) - set(found))
    if missing:
        named = ", ".join(f"{queue_name(each)} of {each.topic}" for each in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise ConfigError(
            f"option {option} has no offset for queue {named}{more}: add it, with -2 for the "
            "earliest or -1 for the latest message"
        )
    return found


def find_queue(option: str, topic: str, name: str, queues: Iterable[Queue]) -> Queue:
    """The queue that somebody called `broker:queue` or `queue`; `ConfigError` if there is none."""
    candidates = [each for each in queues if each.topic == topic]
    if not candidates:
        known = ", ".join(sorted({each.topic for each in queues})) or "none"
        raise ConfigError(
            f"option {option} names topic {topic}, which is not subscribed to; subscribed: {known}"
        )
    matching = [each for each in candidates if name in (queue_name(each), str(each.queue_id))]
    exact = [each for each in matching if queue_name(each) == name]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    there = ", ".join(map(queue_name, sorted(candidates)))
    what = "is on several brokers" if matching else "does not exist"
    raise ConfigError(f"option {option}: queue {name} of {topic} {what}; there are {there}")


def _within(
    option: str, found: dict[Queue, int], snapshot: Snapshot, fail: bool
) -> dict[Queue, int]:
    """The same offsets; those outside of their queues are errors, or moved into them.

    One that is behind an open transaction is there: a query may begin with it, but not end there.
    """
    extents, written = snapshot.extents, snapshot.written
    ends = {queue: written.get(queue, extents[queue].end) for queue in found}
    outside = {
        queue: offset
        for queue, offset in found.items()
        if not extents[queue].start <= offset <= ends[queue]
    }
    for queue, offset in sorted(found.items()):
        if option == "endingOffsets" and extents[queue].end < offset <= ends[queue]:
            raise TransactionOpenError(
                f"option {option}: offset {offset} of queue {queue_name(queue)} of {queue.topic} "
                f"lies behind a transaction that is open; up to {extents[queue].end} all is "
                "decided. Give that offset, or run the query when the transaction has ended"
            )
    if outside and fail:
        queue, offset = min(outside.items())
        start, end = extents[queue]
        what = "is deleted already" if offset < start else "is not written yet"
        raise DataLossError(
            f"option {option}: offset {offset} of queue {queue_name(queue)} of {queue.topic} "
            f"{what}; it holds {start} to {end}. Give an offset in there, or set "
            "failOnDataLoss=false to take the nearest one"
        )
    return {
        queue: min(max(offset, extents[queue].start), ends[queue])
        for queue, offset in found.items()
    }


# -- what was lost meanwhile ---------------------------------------------------------------------


class Loss(NamedTuple):
    """Messages of a queue that cannot be read any more, and where to go on."""

    queue: Queue
    reason: str
    go_on_at: int


def losses(offsets: Offsets, snapshot: Snapshot) -> list[Loss]:
    """What a query that is so far cannot read any more."""
    found = []
    for queue, position in sorted(offsets.positions.items()):
        extent = snapshot.extents.get(queue)
        name = f"queue {queue_name(queue)} of {queue.topic}"
        if extent is None:
            reason = f"{name} is gone (deleted, or its broker is down); the query was at {position}"
            found.append(Loss(queue, reason, position))
        elif is_other_incarnation(queue, offsets.incarnations, snapshot.incarnations):
            reason = f"topic {queue.topic} was deleted and made again: {name} was at {position}"
            found.append(Loss(queue, reason, extent.start))
        elif position < extent.start:
            reason = (
                f"{name} begins at {extent.start} now: {position} to {extent.start - 1} are deleted"
            )
            found.append(Loss(queue, reason, extent.start))
        elif position > snapshot.written.get(queue, extent.end):
            reason = (
                f"{name} ends at {extent.end}, and the query was at {position}: the topic was made "
                "again, or its broker lost what it had not written to disk"
            )
            known = (queue.topic, queue.broker) in snapshot.incarnations
            found.append(Loss(queue, reason, extent.end if known else extent.start))
    return found


def is_other_incarnation(queue: Queue, before: Incarnations, now: Incarnations) -> bool:
    """Whether the queue's topic was made again in between, as far as its broker can tell."""
    topic_on_broker = (queue.topic, queue.broker)
    return (
        topic_on_broker in before
        and topic_on_broker in now
        and before[topic_on_broker] != now[topic_on_broker]
    )


def report(found: list[Loss], *, fail: bool) -> None:
    """Tell of losses, if there are any; `fail` says how (see `lose`)."""
    if found:
        more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
        lose("; ".join(each.reason for each in found[:5]) + more, fail=fail)


def lose(what: str, *, fail: bool) -> None:
    """Messages are gone: an error, or a line in the log."""
    if fail:
        raise DataLossError(
            f"data is lost: {what}. To go on with what there is, set failOnDataLoss=false"
        )
    log.warning("data is lost, going on with what there is: %s", what)


# -- dividing ------------------------------------------------------------------------------------


def ration(backlog: Mapping[Queue, int], rows_max: int) -> dict[Queue, int]:
    """How many messages of each queue make `rows_max` together: shares in proportion.

    Every queue gets at least one as long as there are enough, so that none is left behind for good.
    """
    waiting = {queue: rows for queue, rows in backlog.items() if rows > 0}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(waiting)
    if rows_max < len(waiting):
        longest = sorted(waiting, key=lambda queue: (-waiting[queue], queue))[:rows_max]
        return dict.fromkeys(longest, 1)
    free, beyond = rows_max - len(waiting), total - len(waiting)
    shares = {queue: 1 + (rows - 1) * free // beyond for queue, rows in waiting.items()}
    rest = rows_max - sum(shares.values())
    by_remainder = sorted(
        waiting, key=lambda queue: (-((waiting[queue] - 1) * free % beyond), queue)
    )
    for queue in by_remainder[:rest]:
        shares[queue] += 1
    return shares


SHARED_ROWS = 20_000
"""Ranges that have no more messages together share a task: starting one costs as much as that."""


def split(
    ranges: Iterable[QueueRange], partitions_min: int | None, rows_max: int | None
) -> list[list[QueueRange]]:
    """The ranges for each task. Big ones are cut if asked for, small ones are put together.

    Whoever wants a number of tasks gets it, however small they are.
    """
    waiting = [each for each in ranges if each.rows > 0]
    total = sum(each.rows for each in waiting)
    shared = min(SHARED_ROWS, rows_max or SHARED_ROWS) if partitions_min is None else 0
    tasks: list[list[QueueRange]] = []
    room = 0
    for each in waiting:
        pieces = 1
        if partitions_min is not None and len(waiting) < partitions_min:
            pieces = -(-each.rows * partitions_min // total)
        if rows_max is not None:
            pieces = max(pieces, -(-each.rows // rows_max))
        for part in _cut(each, min(pieces, each.rows)):
            if part.rows > room:
                tasks.append([])
                room = shared
            tasks[-1].append(part)
            room -= part.rows
    return tasks


def _cut(whole: QueueRange, pieces: int) -> Iterable[QueueRange]:
    for number in range(pieces):
        start = whole.start + whole.rows * number // pieces
        end = whole.start + whole.rows * (number + 1) // pieces
        yield whole._replace(start=start, end=end)
