"""What a query's filters spare: queues, offsets, times and tags that need not be read.

Spark hands over the conditions that all rows must meet. Those on topic, queue, broker, offset,
store time and tags narrow what is read; Spark checks all of them again, so what is read may be more
than what is wanted, and must never be less.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from onelog.client.message import Queue
from onelog.spark.read.offsets import Origin, QueueRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

OFFSET_MAX = (1 << 63) - 1
_TIME_MS_MAX = 1 << 52

_KINDS: dict[str, type] = {
    "topic": str,
    "broker": str,
    "tags": str,
    "queue": int,
    "offset": int,
    "store_time": datetime,
}
_SETS = {"topic": "topics", "broker": "brokers", "tags": "tags", "queue": "queues"}
"""By column, where a `Pruning` keeps what it may be; of the other columns it keeps limits."""


@dataclass(frozen=True, slots=True)
class Pruning:
    """What rows must have; None is anything."""

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queues: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    offset_from: int = 0
    offset_until: int = OFFSET_MAX
    store_ms_from: int = 0
    store_ms_until: int = OFFSET_MAX

    @property
    def has_times(self) -> bool:
        """Whether store times are limited."""
        return self.store_ms_from > 0 or self.store_ms_until < OFFSET_MAX

    def wants(self, queue: Queue) -> bool:
        """Whether rows of a queue can be wanted at all."""
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker in self.brokers)
            and (self.queues is None or queue.queue_id in self.queues)
        )

    def narrowed(self, each: "Filter") -> "Pruning":
        """The same, with one more filter; with one that says nothing here, the same."""
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        if len(attribute) != 1:
            return self
        column, kind = attribute[0], type(each).__name__
        value = getattr(each, "value", None)
        if kind in ("EqualTo", "EqualNullSafe"):
            return self._among(column, (value,))
        if kind == "In":
            return self._among(column, value or ())
        if kind in ("GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"):
            return self._compared(column, kind, value)
        return self

    def _among(self, column: str, values: Iterable[object]) -> "Pruning":
        wanted: frozenset[Any] = frozenset(values)
        kind = _KINDS.get(column, ())
        if not all(isinstance(each, kind) and not isinstance(each, bool) for each in wanted):
            return self
        if column in _SETS:
            before = getattr(self, _SETS[column])
            narrower: dict[str, Any] = {
                _SETS[column]: wanted if before is None else before & wanted
            }
            return replace(self, **narrower)
        if not wanted:
            return self
        at_least = self._compared(column, "GreaterThanOrEqual", min(wanted))
        return at_least._compared(column, "LessThanOrEqual", max(wanted))

    def _compared(self, column: str, kind: str, value: object) -> "Pruning":
        if column == "offset" and type(value) is int:
            if kind.startswith("Greater"):
                start = value + (kind == "GreaterThan")
                return replace(self, offset_from=max(self.offset_from, start))
            until = value + (kind == "LessThanOrEqual")
            return replace(self, offset_until=min(self.offset_until, until))
        if column == "store_time" and isinstance(value, datetime) and value.tzinfo is not None:
            # Records know milliseconds, and a timestamp more: round to the side that reads more.
            ms = value.timestamp() * 1000
            if kind.startswith("Greater"):
                return replace(self, store_ms_from=max(self.store_ms_from, math.floor(ms)))
            return replace(self, store_ms_until=min(self.store_ms_until, math.ceil(ms) + 1))
        return self


def pruning_of(filters: "Iterable[Filter]") -> Pruning:
    """What all of these filters spare together."""
    found = Pruning()
    for each in filters:
        found = found.narrowed(each)
    return found


def prune(ranges: Iterable[QueueRange], pruning: Pruning, origin: Origin) -> list[QueueRange]:
    """The parts of the ranges in which rows can be that are wanted."""
    narrowed = [
        each._replace(
            start=max(each.start, pruning.offset_from), end=min(each.end, pruning.offset_until)
        )
        for each in ranges
        if pruning.wants(each.queue)
    ]
    narrowed = [each for each in narrowed if each.rows > 0]
    if not pruning.has_times or not narrowed:
        return narrowed
    queues = [each.queue for each in narrowed]
    starts = origin.offsets_at(queues, min(pruning.store_ms_from, _TIME_MS_MAX))
    ends = origin.offsets_at(queues, min(pruning.store_ms_until, _TIME_MS_MAX))
    # One more: old brokers give the last message for a time after it, and not the place behind it.
    return [
        each._replace(
            start=max(each.start, starts[each.queue]), end=min(each.end, ends[each.queue] + 1)
        )
        for each in narrowed
    ]
