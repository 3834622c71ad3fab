"""Offsets: their JSON, where queries begin and end, what was lost, who reads what."""

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.client.message import Queue
from onelog.errors import ConfigError, DataLossError
from onelog.spark.read.boundaries import (
    EARLIEST,
    GROUP,
    LATEST,
    Boundary,
    BoundaryKind,
    parse_boundary,
)
from onelog.spark.read.offsets import (
    SHARED_ROWS,
    Extent,
    Offsets,
    QueueRange,
    Snapshot,
    losses,
    queue_name,
    ration,
    report,
    resolve,
    split,
)

A0, A1, B0 = Queue("orders", "a", 0), Queue("orders", "a", 1), Queue("orders", "b", 0)
QUEUES = st.builds(
    Queue, st.sampled_from(["orders", "bills"]), st.sampled_from(["a", "b", ""]), st.integers(0, 9)
)


@dataclass
class Known:
    """An origin that knows a few things."""

    times: Mapping[Queue, int] = field(default_factory=dict)
    positions: Mapping[Queue, int] = field(default_factory=dict)

    def snapshot(self, *, missing_ok: bool = False) -> Snapshot:
        raise NotImplementedError

    def offsets_at(self, queues: Iterable[Queue], time_ms: int) -> dict[Queue, int]:
        assert time_ms == 900
        return {queue: self.times[queue] for queue in queues}

    def group_positions(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        assert group == "readers"
        return {queue: self.positions[queue] for queue in queues if queue in self.positions}

    def record_bytes(self, starts: Mapping[Queue, int]) -> dict[Queue, float]:
        raise NotImplementedError


SNAPSHOT = Snapshot({A0: Extent(5, 20), A1: Extent(0, 8), B0: Extent(0, 0)})


def resolved(boundary: Boundary, origin: Known | None = None, **how: bool) -> dict[Queue, int]:
    return resolve(
        "startingOffsets",
        boundary,
        SNAPSHOT,
        origin or Known(),
        group="readers",
        now_ms=1_000,
        **how,
    )


@given(
    st.dictionaries(QUEUES, st.integers(0, 1 << 62)),
    st.dictionaries(st.tuples(st.just("orders"), st.just("a")), st.integers(1, 1 << 50)),
)
def test_equal_offsets_are_equal_texts(
    positions: dict[Queue, int], incarnations: dict[tuple[str, str], int]
) -> None:
    there = Offsets(positions, incarnations)
    turned = Offsets(dict(reversed(list(positions.items()))), incarnations)
    assert json.dumps(there.to_json()) == json.dumps(turned.to_json())
    assert Offsets.from_json(json.loads(json.dumps(there.to_json()))) == there


def test_queues_are_ordered_by_number_and_not_by_digits() -> None:
    many = {Queue("t", "a", number): number for number in (10, 9, 2)}
    assert list(Offsets(many).to_json()["offsets"]["t"]) == ["a:2", "a:9", "a:10"]


@pytest.mark.parametrize(
    "content", [{}, {"offsets": 5}, {"offsets": {"t": {"x": 1}}}, {"t": {"0": 1}}]
)
def test_offsets_of_another_source_are_refused(
    content: dict[str, dict[str, dict[str, int]]],
) -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        Offsets.from_json(content)


def test_earliest_and_latest_are_the_ends_of_the_queues() -> None:
    assert resolved(EARLIEST) == {A0: 5, A1: 0, B0: 0}
    assert resolved(LATEST) == {A0: 20, A1: 8, B0: 0}


def test_a_time_is_never_outside_of_a_queue() -> None:
    known = Known(times={A0: 3, A1: 7, B0: 99})
    assert resolved(Boundary(BoundaryKind.TIME, 900), known) == {A0: 5, A1: 7, B0: 0}
    assert resolved(Boundary(BoundaryKind.AGO, 100), known) == {A0: 5, A1: 7, B0: 0}


def test_a_group_without_a_position_begins_with_the_earliest() -> None:
    assert resolved(GROUP, Known(positions={A0: 9})) == {A0: 9, A1: 0, B0: 0}


def test_a_group_whose_messages_are_deleted_is_told() -> None:
    known = Known(positions={A0: 2})
    with pytest.raises(DataLossError, match="offset 2 of queue a:0 of orders is deleted already"):
        resolved(GROUP, known)
    assert resolved(GROUP, known, fail_on_data_loss=False)[A0] == 5


def test_offsets_are_given_for_all_queues() -> None:
    text = '{"orders": {"a:0": 12, "1": -1, "b:0": -2}}'
    assert resolved(parse_boundary("startingOffsets", text)) == {A0: 12, A1: 8, B0: 0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"orders": {"a:0": 12, "a:1": 0}}', "no offset for queue b:0 of orders: add it"),
        (
            '{"bills": {"0": 1}}',
            "names topic bills, which is not subscribed to; subscribed: orders",
        ),
        (
            '{"orders": {"0": 1}}',
            "queue 0 of orders is on several brokers; there are a:0, a:1, b:0",
        ),
        ('{"orders": {"c:0": 1}}', "queue c:0 of orders does not exist; there are a:0, a:1, b:0"),
    ],
)
def test_offsets_that_do_not_fit_the_topics_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(parse_boundary("startingOffsets", text))
    assert said in str(caught.value)


def test_offsets_out_of_range_are_refused_or_moved() -> None:
    text = '{"orders": {"a:0": 21, "a:1": 0, "b:0": 0}}'
    with pytest.raises(DataLossError) as caught:
        resolved(parse_boundary("startingOffsets", text))
    assert "offset 21 of queue a:0 of orders is not written yet; it holds 5 to 20" in str(
        caught.value
    )
    assert "failOnDataLoss=false" in str(caught.value)
    moved = resolved(parse_boundary("startingOffsets", text), fail_on_data_loss=False)
    assert moved == {A0: 20, A1: 0, B0: 0}


def test_a_store_has_queues_without_a_broker() -> None:
    assert queue_name(Queue("t", "", 3)) == "3"
    offsets = Offsets({Queue("t", "", 3): 5})
    assert Offsets.from_json(offsets.to_json()) == offsets


@pytest.mark.parametrize(
    ("position", "now", "created", "said", "go_on_at"),
    [
        (12, Extent(5, 20), 1, None, None),
        (20, Extent(5, 20), 1, None, None),
        (3, Extent(5, 20), 1, "begins at 5 now: 3 to 4 are deleted", 5),
        (25, Extent(5, 20), 1, "ends at 20", 20),
        (12, Extent(5, 20), 2, "deleted and made again", 5),
        (12, Extent(0, 3), 2, "deleted and made again", 0),
        (12, None, 1, "is gone", 12),
    ],
)
def test_what_was_lost_is_known(
    position: int, now: Extent | None, created: int, said: str | None, go_on_at: int | None
) -> None:
    before = Offsets({A0: position}, {("orders", "a"): 1})
    found = losses(before, Snapshot({A0: now} if now else {}, {("orders", "a"): created}))
    if said is None:
        assert found == []
    else:
        assert said in found[0].reason
        assert found[0].go_on_at == go_on_at
        with pytest.raises(DataLossError, match="failOnDataLoss=false"):
            report(found, fail=True)
        report(found, fail=False)


def test_a_broker_that_tells_no_incarnation_is_believed_to_have_begun_anew() -> None:
    (lost,) = losses(Offsets({A0: 25}), Snapshot({A0: Extent(5, 20)}))
    assert lost.go_on_at == 5


@given(st.dictionaries(QUEUES, st.integers(0, 1_000)), st.integers(1, 3_000))
def test_a_ration_is_as_large_as_it_may_be(backlog: dict[Queue, int], rows_max: int) -> None:
    shares = ration(backlog, rows_max)
    assert sum(shares.values()) == min(rows_max, sum(backlog.values()))
    assert all(0 < share <= backlog[queue] for queue, share in shares.items())
    waiting = sum(rows > 0 for rows in backlog.values())
    assert len(shares) == min(waiting, rows_max)


def test_a_ration_is_in_proportion() -> None:
    assert ration({A0: 1_000, A1: 100, B0: 0}, 110) == {A0: 99, A1: 11}


RANGES = st.lists(
    st.builds(
        lambda queue, start, rows: QueueRange(queue, start, start + rows),
        QUEUES,
        st.integers(0, 100),
        st.integers(-5, 60_000),
    ),
    max_size=8,
    unique_by=lambda each: each.queue,
)


@given(
    RANGES,
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1_000, 50_000)),
)
def test_a_split_leaves_nothing_out_and_reads_nothing_twice(
    ranges: list[QueueRange], partitions_min: int | None, rows_max: int | None
) -> None:
    tasks = split(ranges, partitions_min, rows_max)
    read: dict[Queue, list[tuple[int, int]]] = {}
    for task in tasks:
        assert task
        for part in task:
            assert part.rows > 0
            read.setdefault(part.queue, []).append((part.start, part.end))
    for each in ranges:
        parts = sorted(read.get(each.queue, []))
        if each.rows <= 0:
            assert not parts
            continue
        assert (parts[0][0], parts[-1][1]) == (each.start, each.end)
        assert all(left[1] == right[0] for left, right in itertools.pairwise(parts))
    if rows_max is not None:
        assert all(sum(part.rows for part in task) <= rows_max for task in tasks)
    total = sum(max(0, each.rows) for each in ranges)
    if partitions_min is not None:
        assert len(tasks) >= min(partitions_min, total)


def test_small_queues_share_a_task_and_big_ones_do_not() -> None:
    small = [QueueRange(Queue("t", "a", number), 0, 100) for number in range(16)]
    assert len(split(small, None, None)) == 1
    big = [QueueRange(Queue("t", "a", number), 0, SHARED_ROWS + 1) for number in range(3)]
    assert len(split(big, None, None)) == 3
    assert len(split([big[0]], 4, None)) == 4
