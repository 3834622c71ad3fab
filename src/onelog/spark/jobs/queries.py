"""Streaming queries of jobs: how often they run, how far they are, when they end."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

OnProgress = Callable[[Mapping[str, Any]], None]
"""Told Spark's report of each batch."""
ShouldStop = Callable[[], bool]
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Ran:
    """What a query has done."""

    batches: int
    rows: int
    """Messages that it read."""
    late: int = 0
    """Rows that came too late to be counted, as far as Spark tells."""


def triggered(writing: "DataStreamWriter", every: float | None) -> "DataStreamWriter":
    """Every so many seconds; None: once, with everything that there is."""
    if every is None:
        return writing.trigger(availableNow=True)
    return writing.trigger(processingTime=f"{max(0.0, every)} seconds")


def run(
    query: "StreamingQuery",
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
) -> Ran:
    """Wait for a query to end, or end it; raises what it failed with."""
    done: dict[int, tuple[int, int]] = {}
    try:
        while query.isActive:
            time.sleep(_POLL_SECONDS)
            _note(query, done, on_progress)
            if should_stop is not None and should_stop():
                query.stop()
        query.awaitTermination()
        _note(query, done, on_progress)
    finally:
        with contextlib.suppress(Exception):
            query.stop()
    rows = sum(rows for rows, _ in done.values())
    return Ran(len(done), rows, sum(late for _, late in done.values()))


def _note(
    query: "StreamingQuery", done: dict[int, tuple[int, int]], on_progress: OnProgress | None
) -> None:
    for each in filter(None, query.recentProgress):
        # The attribute, because a Connect server leaves the sum out of its reports.
        number, rows = int(each["batchId"]), int(each.numInputRows)
        if number not in done and rows:
            operators = each["stateOperators"]
            late = sum(int(operator["numRowsDroppedByWatermark"]) for operator in operators)
            done[number] = rows, late
            if on_progress is not None:
                on_progress({**each, "numInputRows": rows})
