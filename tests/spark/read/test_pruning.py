"""What filters spare, and what they must not."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from onelog.client.message import Queue
from onelog.spark.read.offsets import QueueRange, Snapshot
from onelog.spark.read.pruning import Pruning, prune, pruning_of

A0, A1, B0 = Queue("orders", "a", 0), Queue("orders", "a", 1), Queue("bills", "b", 0)
RANGES = [QueueRange(A0, 0, 100), QueueRange(A1, 50, 60), QueueRange(B0, 10, 20)]


@dataclass
class Clocked:
    """An origin whose messages were stored one per millisecond."""

    asked: list[int] = field(default_factory=list)

    def snapshot(self, *, missing_ok: bool = False) -> Snapshot:
        raise NotImplementedError

    def offsets_at(self, queues: Iterable[Queue], time_ms: int) -> dict[Queue, int]:
        self.asked.append(time_ms)
        return dict.fromkeys(queues, min(time_ms, 100))

    def group_positions(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        raise NotImplementedError

    def record_bytes(self, starts: Mapping[Queue, int]) -> dict[Queue, float]:
        raise NotImplementedError


def test_without_filters_nothing_is_spared_or_asked() -> None:
    origin = Clocked()
    assert prune(RANGES, pruning_of([IsNotNull(("topic",))]), origin) == RANGES
    assert origin.asked == []


def test_topics_brokers_and_queues_are_chosen() -> None:
    chosen: list[tuple[list[Filter], list[Queue]]] = [
        ([EqualTo(("topic",), "orders")], [A0, A1]),
        ([In(("topic",), ("bills", "none"))], [B0]),
        ([EqualTo(("queue",), 0)], [A0, B0]),
        ([In(("queue",), (0, 1)), EqualTo(("queue",), 1)], [A1]),
        ([EqualTo(("broker",), "b")], [B0]),
        ([EqualTo(("topic",), "orders"), EqualTo(("topic",), "bills")], []),
    ]
    for filters, queues in chosen:
        found = prune(RANGES, pruning_of(filters), Clocked())
        assert [each.queue for each in found] == queues


def test_offsets_are_narrowed() -> None:
    def narrowed(*filters: Filter) -> list[tuple[int, int]]:
        ranges = prune(RANGES[:1], pruning_of(filters), Clocked())
        return [(each.start, each.end) for each in ranges]

    at = ("offset",)
    assert narrowed(GreaterThan(at, 10), LessThan(at, 20)) == [(11, 20)]
    assert narrowed(GreaterThanOrEqual(at, 10), LessThanOrEqual(at, 20)) == [(10, 21)]
    assert narrowed(EqualTo(at, 7)) == [(7, 8)]
    assert narrowed(In(at, (3, 9, 5))) == [(3, 10)]
    assert narrowed(GreaterThan(at, 10), GreaterThan(at, 5)) == [(11, 100)]
    assert narrowed(LessThan(at, 0)) == []


def test_times_become_offsets_and_one_more() -> None:
    def at(ms: float) -> datetime:
        return datetime.fromtimestamp(ms / 1000, UTC)

    origin = Clocked()
    filters = [GreaterThan(("store_time",), at(30.5)), LessThan(("store_time",), at(40))]
    (found,) = prune(RANGES[:1], pruning_of(filters), origin)
    assert origin.asked == [30, 41]
    assert (found.start, found.end) == (30, 42)
    (open_end,) = prune(
        RANGES[:1], pruning_of([GreaterThanOrEqual(("store_time",), at(90))]), Clocked()
    )
    assert (open_end.start, open_end.end) == (90, 100)


def test_tags_are_collected() -> None:
    assert pruning_of([In(("tags",), ("a", "b")), EqualTo(("tags",), "a")]).tags == frozenset("a")
    assert pruning_of([EqualTo(("tags",), "a"), EqualTo(("tags",), "b")]).tags == frozenset()


def test_what_says_nothing_here_spares_nothing() -> None:
    filters = [
        Not(EqualTo(("topic",), "orders")),
        StringStartsWith(("topic",), "or"),
        EqualTo(("body",), b"x"),
        EqualTo(("properties", "topic"), "orders"),
        In(("topic",), ("orders", None)),
        EqualTo(("offset",), "7"),
        GreaterThan(("store_time",), datetime(2026, 1, 1)),  # noqa: DTZ001 - has no zone, says nothing
        GreaterThan(("born_time",), datetime(2026, 1, 1, tzinfo=UTC)),
    ]
    assert pruning_of(filters) == Pruning()
