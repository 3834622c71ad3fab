from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onelog.core.cursors.reading import SCAN_MAX
from onelog.core.filters.tags import Subscription, subscribe
from onelog.message import NewMessage, encode_properties, tags_code
from onelog.store.reader import Fetched, FetchStatus
from tests.core.world import World, pulled


@pytest.fixture
def orders(world: World) -> World:
    world.topic("orders", 4)
    return world


def fill(world: World, *tags: str, queue_id: int = 0, size: int = 1) -> None:
    """One message per tag, each with its number as its body."""
    start = world.store.max_offset("orders", queue_id)
    world.store.append(
        [
            NewMessage(
                "orders",
                queue_id,
                (b"%d" % (start + number)).ljust(size),
                encode_properties({"TAGS": tag, "number": str(start + number)}),
            )
            for number, tag in enumerate(tags)
        ]
    )


def read(world: World, subscription: Subscription | None = None, **how: Any) -> Fetched:
    """What the reader itself says, before anybody waits for disks or turns."""
    count_max = how.pop("count_max", 32)
    return world.core.reader.read("orders", 0, 0, count_max, 1 << 20, subscription, **how)


def test_without_a_filter_a_pull_is_a_run_of_neighbours_in_one_slice(orders: World) -> None:
    fill(orders, *"abcde")
    result = orders.pull(1, count_max=3)
    assert (result.status, result.next_offset) == (FetchStatus.FOUND, 4)
    assert (result.min_offset, result.max_offset, result.messages) == (0, 5, 3)
    assert pulled(result) == [b"1", b"2", b"3"]
    assert len(result.slices) == 1


@pytest.mark.parametrize("expression", ["*", "a"])
def test_the_statuses_of_rocketmq(orders: World, expression: str) -> None:
    subscription = subscribe("orders", expression)

    def status(offset: int, queue_id: int = 0) -> tuple[str, int]:
        result = orders.pull(offset, queue_id=queue_id, subscription=subscription)
        return result.status.name, result.next_offset

    assert status(0) == ("NO_MATCHED_LOGIC_QUEUE", 0)
    assert status(7) == ("NO_MATCHED_LOGIC_QUEUE", 0)
    assert status(-1) == ("NO_MATCHED_LOGIC_QUEUE", 0)
    fill(orders, *"aaa")
    assert status(0) == ("FOUND", 3)
    assert status(3) == ("OFFSET_OVERFLOW_ONE", 3)
    assert status(4) == ("OFFSET_OVERFLOW_BADLY", 3)
    assert status(-1) == ("OFFSET_TOO_SMALL", 0)


def test_an_offset_below_the_oldest_message_is_sent_there(orders: World) -> None:
    fill(orders, *("a" * 30), size=100_000)
    orders.clock.advance(orders.store_config.retention_ms * 2)
    orders.retain()
    start = orders.store.min_offset("orders", 0)
    assert start > 0
    for subscription in (None, subscribe("orders", "a")):
        result = orders.pull(0, subscription=subscription)
        assert (result.status, result.next_offset) == (FetchStatus.OFFSET_TOO_SMALL, start)


def test_a_tag_filter_returns_what_matches_and_passes_over_the_rest(orders: World) -> None:
    fill(orders, *"abacabb")
    result = orders.pull(0, subscription=subscribe("orders", "a||c"))
    assert pulled(result) == [b"0", b"2", b"3", b"4"]
    assert result.next_offset == 7
    assert len(result.slices) == 2, "0 stands alone; 2, 3 and 4 are neighbours"


def test_a_filtered_pull_stops_before_the_next_match_when_it_is_full(orders: World) -> None:
    fill(orders, *"babbabba")
    result = orders.pull(0, count_max=2, subscription=subscribe("orders", "a"))
    assert pulled(result) == [b"1", b"4"]
    assert result.next_offset == 7, "where the next match is"


def test_a_filtered_pull_keeps_to_its_bytes_but_returns_at_least_one(orders: World) -> None:
    fill(orders, *"aba", size=1_000)
    result = orders.pull(0, bytes_max=1_500, subscription=subscribe("orders", "a"))
    assert (len(pulled(result)), result.next_offset) == (1, 2)
    result = orders.pull(0, bytes_max=10, subscription=subscribe("orders", "a"))
    assert (len(pulled(result)), result.next_offset) == (1, 2)


def test_a_pull_in_which_nothing_matches_moves_on(orders: World) -> None:
    fill(orders, *"bbb")
    result = orders.pull(0, subscription=subscribe("orders", "a"))
    assert (result.status, result.next_offset) == (FetchStatus.NO_MATCHED_MESSAGE, 3)
    assert result.slices == []


def test_the_work_of_one_filtered_pull_is_bounded(orders: World) -> None:
    entries = SCAN_MAX + 100
    orders.store.append([NewMessage("orders", 0, b"batch", inner_count=entries)])
    result = orders.pull(0, subscription=subscribe("orders", "a"))
    assert (result.status, result.next_offset) == (FetchStatus.NO_MATCHED_MESSAGE, SCAN_MAX)


def test_a_sql_filter_looks_at_the_properties(orders: World) -> None:
    fill(orders, *"aabab")
    result = orders.pull(0, subscription=subscribe("orders", "number > 1 AND TAGS = 'a'", "SQL92"))
    assert pulled(result) == [b"3"]
    assert result.next_offset == 5


def slow(world: World, wanted: str = "none") -> Subscription:
    """A filter that takes 4 ms for a message, and wants those with this tag."""

    def matches(properties: Mapping[str, str]) -> bool:
        world.seconds += 0.004
        return properties["TAGS"] == wanted

    return replace(subscribe("orders"), kind="SQL92", predicate=matches)


def test_a_pull_whose_filter_takes_too_long_answers_with_what_it_has(orders: World) -> None:
    fill(orders, *"abaaaaaa")
    first = orders.pull(0, subscription=slow(orders, "b"))
    assert (first.status, first.next_offset) == (FetchStatus.FOUND, 3)
    assert pulled(first) == [b"1"]
    orders.end_tick()
    second = orders.pull(3, subscription=slow(orders, "b"))
    assert (second.status, second.next_offset) == (FetchStatus.NO_MATCHED_MESSAGE, 6)
    orders.end_tick()
    third = orders.pull(6, subscription=slow(orders, "b"))
    assert (third.status, third.next_offset) == (FetchStatus.NO_MATCHED_MESSAGE, 8)


def test_a_filter_that_takes_longer_than_the_budget_gets_on_by_one_message(orders: World) -> None:
    fill(orders, *"aaa")
    orders.core.filter_time.budget_ms = 1
    for offset in range(3):
        result = orders.pull(offset, subscription=slow(orders))
        assert (result.status, result.next_offset) == (FetchStatus.NO_MATCHED_MESSAGE, offset + 1)
        orders.end_tick()


def test_a_pull_that_finds_the_time_of_filters_used_up_has_its_turn_later(orders: World) -> None:
    fill(orders, *"aaaa")
    orders.pull(0, subscription=slow(orders))
    late = read(orders, slow(orders))
    assert (late.status, late.next_offset, late.slices) == (FetchStatus.LATER, 0, [])
    assert orders.pull(0, subscription=subscribe("orders", "a")).status is FetchStatus.FOUND
    assert orders.pull(0).status is FetchStatus.FOUND


def test_an_inner_batch_is_never_cut_by_the_time_of_its_filter(orders: World) -> None:
    properties = encode_properties({"TAGS": "b"})
    for _ in range(4):
        orders.store.append([NewMessage("orders", 0, b"batch", properties, inner_count=5)])
    first = orders.pull(0, subscription=slow(orders, "b"))
    assert (first.status, first.next_offset, first.messages) == (FetchStatus.FOUND, 15, 15)


def test_an_inner_batch_leaves_once_and_whole(orders: World) -> None:
    tags = encode_properties({"TAGS": "a"})
    orders.store.append(
        [
            NewMessage("orders", 0, b"one", tags),
            NewMessage("orders", 0, b"batch", tags, inner_count=5),
            NewMessage("orders", 0, b"two", tags),
        ]
    )
    for subscription in (None, subscribe("orders", "a")):
        result = orders.pull(0, subscription=subscription)
        assert pulled(result) == [b"one", b"batch", b"two"]
        assert (result.next_offset, result.messages) == (7, 7)
        result = orders.pull(0, count_max=2, subscription=subscription)
        assert pulled(result) == [b"one", b"batch"]
        assert result.next_offset == 6
        middle = orders.pull(3, count_max=1, subscription=subscription)
        assert pulled(middle) == [b"batch"]
        assert middle.next_offset == 6


def test_an_inner_batch_over_the_end_of_a_scan_is_not_sent_again(orders: World) -> None:
    tags = encode_properties({"TAGS": "a"})
    count = SCAN_MAX + 10
    orders.store.append(
        [
            NewMessage("orders", 0, b"batch", tags, inner_count=count),
            NewMessage("orders", 0, b"after", tags),
        ]
    )
    result = orders.pull(0, subscription=subscribe("orders", "a"))
    assert pulled(result) == [b"batch"]
    assert result.next_offset == count


def test_a_bulk_reader_gets_as_much_from_disk_as_from_memory(
    orders: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(orders, *("ab" * 300))
    monkeypatch.setattr("onelog.core.cursors.reading._WARM_BYTES", 0)
    monkeypatch.setattr(orders.store, "is_warm", lambda at, size: False)
    for expression, count in (("*", 600), ("a", 300)):
        wanted = subscribe("orders", expression)
        cold = read(orders, wanted, bulk=True, count_max=999)
        assert cold.status is FetchStatus.COLD
        orders.core.reader.warm(cold.ranges)
        warm = read(orders, wanted, bulk=True, count_max=999, cold_ok=True)
        assert warm.messages == count


def test_cold_records_are_named_first_and_returned_after_they_were_read(
    orders: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(orders, *("ab" * 10))
    monkeypatch.setattr("onelog.core.cursors.reading._WARM_BYTES", 0)
    monkeypatch.setattr(orders.store, "is_warm", lambda at, size: False)
    filters: list[Subscription | None] = [
        None,
        subscribe("orders", "a||b"),
        subscribe("orders", "number >= 0", "SQL92"),
    ]
    for subscription in filters:
        result = read(orders, subscription)
        assert (result.status, result.slices, result.next_offset) == (FetchStatus.COLD, [], 0)
        assert result.ranges
        orders.core.reader.warm(result.ranges)
        result = read(orders, subscription, cold_ok=True)
        assert pulled(result) == [b"%d" % number for number in range(8)]


def test_a_sql_scan_stops_at_the_first_cold_record(
    orders: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(orders, *"aaaa")
    cold_from = next(iter(orders.store.entries("orders", 0, 2, 1)))[0]
    monkeypatch.setattr("onelog.core.cursors.reading._WARM_BYTES", 0)
    monkeypatch.setattr(orders.store, "is_warm", lambda at, size: at < cold_from)
    result = read(orders, subscribe("orders", "number >= 0", "SQL92"))
    assert (pulled(result), result.next_offset) == ([b"0", b"1"], 2)


def test_warming_what_was_deleted_meanwhile_is_no_error(orders: World) -> None:
    orders.core.reader.warm([(1 << 40, 100)])


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=40),
    st.sampled_from(["a", "b||c", "*"]),
    st.integers(1, 10),
    st.integers(1, 3_000),
)
def test_pull_after_pull_returns_each_wanted_message_once_and_in_order(
    world: World, tags: list[str], expression: str, count_max: int, bytes_max: int
) -> None:
    if world.core.topics.get("orders") is None:
        world.topic("orders", 4)
    offset = begin = int(world.store.max_offset("orders", 0))
    fill(world, *tags)
    subscription = subscribe("orders", expression)
    found: list[bytes] = []
    while True:
        result = world.pull(
            offset, count_max=count_max, bytes_max=bytes_max, subscription=subscription
        )
        found += pulled(result)
        if result.status is FetchStatus.OFFSET_OVERFLOW_ONE:
            break
        assert result.next_offset > offset
        offset = result.next_offset
    codes = subscription.codes
    assert found == [
        b"%d" % (begin + number)
        for number, tag in enumerate(tags)
        if codes is None or tags_code(tag) in codes
    ]
