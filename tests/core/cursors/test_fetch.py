"""Fetches: what one gets, how long it waits for it, and who is told."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from onelog.core.access import SELF
from onelog.core.cursors import fetch
from onelog.core.cursors.fetch import Cursor, Limits, Result
from onelog.core.cursors.reading import SCAN_MAX
from onelog.core.filters.filter_time import WAITING_MAX
from onelog.core.filters.tags import Subscription, subscribe
from onelog.errors import (
    BrokerBusyError,
    FilterDisabledError,
    GroupPermissionError,
    InvalidQueueError,
    TopicNotFoundError,
    TopicPermissionError,
)
from onelog.message import NewMessage, encode_properties
from onelog.store import reader
from onelog.store.reader import Fetched, FetchStatus
from tests.core.world import World, pulled

PARTITIONS = 20
PLENTY = Limits(1_000, 1 << 20, 1 << 20)


@pytest.fixture
def orders(world: World) -> World:
    world.topic("orders", PARTITIONS)
    return world


def fill(world: World, *tags: str, queue_id: int = 0, size: int = 1) -> None:
    """One message per tag."""
    world.core.writer.write_now(
        [
            NewMessage("orders", queue_id, b"x" * size, encode_properties({"TAGS": tag}))
            for tag in tags
        ]
    )


def found(results: Sequence[Result]) -> list[Fetched]:
    """The results, all of which are messages or the want of them."""
    kept = [each for each in results if isinstance(each, Fetched)]
    assert len(kept) == len(results)
    return kept


def at(offset: int = 0, subscription: Subscription | None = None) -> list[Cursor]:
    return [Cursor("readers", "orders", 0, offset, subscription)]


def partitions(count: int = PARTITIONS) -> list[Cursor]:
    """The cursors of a Kafka fetch: no group, no filter, one per partition."""
    return [Cursor(None, "orders", queue_id, 0) for queue_id in range(count)]


# -- who and how much --------------------------------------------------------------------------


def test_the_configured_limits_hold_whatever_the_consumer_asks_for(orders: World) -> None:
    fill(orders, *("a" * 100))
    orders.core.reconfigure(replace(orders.broker_config, pull_count_max=10))
    assert orders.pull(0, count_max=1_000_000).messages == 10
    assert orders.pull(0, count_max=0).messages == 1
    orders.core.reconfigure(replace(orders.broker_config, pull_bytes_max=300))
    assert orders.pull(0, bytes_max=1 << 40).messages < 5


def test_a_bulk_reader_gets_what_it_asks_for(orders: World) -> None:
    fill(orders, *("a" * 1_000))
    size = orders.pull(0, count_max=1).size

    def messages(bulk_bytes: int, count_max: int = 100_000, expression: str = "*") -> int:
        wanted = subscribe("orders", expression)
        return orders.pull(
            0, bulk_bytes=bulk_bytes, count_max=count_max, subscription=wanted
        ).messages

    assert messages(1 << 20) == messages(1 << 20, expression="a") == 1_000
    assert messages(1 << 20, 300) == messages(1 << 20, 300, "a") == 300
    assert messages(50 * size) in (49, 50)
    assert messages(-1) == 32
    orders.core.reconfigure(replace(orders.broker_config, pull_bulk_bytes_max=10 * size))
    assert messages(1 << 20) in (9, 10)
    orders.core.reconfigure(replace(orders.broker_config, pull_bulk_bytes_max=0))
    assert messages(1 << 20) == 32


def test_who_may_not_pull_is_told_why(orders: World) -> None:
    with pytest.raises(TopicNotFoundError):
        orders.pull(0, "nowhere")
    for queue_id in (-1, PARTITIONS):
        with pytest.raises(InvalidQueueError):
            orders.pull(0, queue_id=queue_id)
    config = orders.core.groups.require("readers")
    orders.broker.groups.put(SELF, replace(config, consume_enable=False))
    with pytest.raises(GroupPermissionError):
        orders.pull(0)
    topic = orders.core.topics.require("orders")
    orders.broker.topics.create(SELF, replace(topic, perm=2))
    with pytest.raises(TopicPermissionError):
        orders.pull(0, group="others")


def test_a_sql_filter_is_refused_where_it_is_switched_off(orders: World) -> None:
    fill(orders, "a")
    subscription = subscribe("orders", "number > 1", "SQL92")
    orders.core.reconfigure(replace(orders.broker_config, property_filter=False))
    with pytest.raises(FilterDisabledError):
        orders.pull(0, subscription=subscription)
    assert orders.pull(0, subscription=subscribe("orders", "a")).status is FetchStatus.FOUND


def test_a_fetch_counts_for_its_group_if_it_has_one(orders: World) -> None:
    fill(orders, *"ab")
    orders.pull(0)
    orders.pull(2)
    orders.fetch(partitions(), PLENTY)
    totals = orders.core.stats.totals
    assert (totals.get_count, totals.found) == (4, 2)
    assert orders.broker.admin.statistic(SELF, "GROUP_GET_NUMS", "orders@readers")[0].total == 2


# -- waiting -----------------------------------------------------------------------------------


def test_a_fetch_that_finds_messages_is_answered_at_once(orders: World) -> None:
    fill(orders, "a")
    assert len(orders.fetch(at(), PLENTY)) == 1
    assert len(orders.core.waiting) == 0


def test_a_held_fetch_is_answered_when_a_message_arrives_or_its_time_is_up(orders: World) -> None:
    first, second = orders.fetch(at(), PLENTY), orders.fetch(at(1), PLENTY, 5_000)
    assert found(second[0])[0].status is FetchStatus.NO_MATCHED_LOGIC_QUEUE, "there is no offset 1"
    assert first == []
    orders.send(body=b"now")
    assert pulled(found(first[0])[0]) == [b"now"]
    late = orders.fetch(at(1), PLENTY, 5_000)
    orders.advance(4_900)
    assert late == []
    orders.advance(200)
    assert [each.status for each in found(late[0])] == [FetchStatus.OFFSET_OVERFLOW_ONE]
    orders.send()
    assert (len(first), len(late)) == (1, 1), "once is enough"


def test_a_held_fetch_is_woken_only_by_what_it_subscribes_to(orders: World) -> None:
    every = orders.fetch(at(), PLENTY)
    tagged = orders.fetch(at(0, subscribe("orders", "a")), PLENTY)
    sql = orders.fetch(at(0, subscribe("orders", "number = 2", "SQL92")), PLENTY)
    woken = []
    for number, tag in enumerate("bab"):
        orders.send("orders", TAGS=tag, number=str(number))
        woken.append((len(every), len(tagged), len(sql)))
    assert woken == [(1, 0, 0), (1, 1, 0), (1, 1, 1)]


def test_a_held_fetch_that_passed_over_very_many_messages_is_told_to_move_on(orders: World) -> None:
    held = orders.fetch(at(0, subscribe("orders", "a")), PLENTY)
    orders.core.writer.write_now([NewMessage("orders", 0, b"x", inner_count=SCAN_MAX - 1)])
    assert held == []
    orders.core.writer.write_now([NewMessage("orders", 0, b"x")])
    assert [each.status for each in found(held[0])] == [FetchStatus.NO_MATCHED_MESSAGE]


def test_a_fetch_that_too_many_wait_beside_is_answered_as_it_is(orders: World) -> None:
    orders.core.waiting._waits_max = 1
    first, second = orders.fetch(at(), PLENTY), orders.fetch(at(), PLENTY)
    assert (len(first), len(second)) == (0, 1)


def test_a_position_on_the_way_is_committed_once(orders: World) -> None:
    fill(orders, "a", "b")
    orders.fetch([Cursor("readers", "orders", 0, 2, committed=1)], PLENTY)
    assert orders.core.offsets.get("readers", "orders", 0) == 1
    orders.commit("readers", "orders", 0, 2)
    fill(orders, "c")
    assert orders.core.offsets.get("readers", "orders", 0) == 2


def test_a_broker_that_stops_answers_everybody(orders: World) -> None:
    held = orders.fetch(at(), PLENTY)
    orders.core.close()
    assert len(held) == 1


# -- cold records and slow filters -------------------------------------------------------------


class Workers:
    """Workers that do their work when they are told to."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work: list[Callable[[], None]] = []
        self._world = world
        monkeypatch.setattr(world.core.cold_reads, "_offload", self.work.append)
        monkeypatch.setattr(world.core.reader, "_is_cold", lambda ranges: True)

    def run(self) -> None:
        while self.work:
            thread = threading.Thread(target=self.work.pop())
            thread.start()
            thread.join()
            self._world.run_posted()


def test_cold_records_are_read_by_a_worker_before_the_answer(
    orders: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue_id in range(3):
        fill(orders, "a", queue_id=queue_id)
    workers = Workers(orders, monkeypatch)
    answers = orders.fetch(partitions(), PLENTY, 0)
    assert answers == []
    assert len(workers.work) == 1, "one worker for all of them"
    workers.run()
    assert [each.messages for each in found(answers[0])[:4]] == [1, 1, 1, 0]


def test_an_owner_that_goes_is_not_told(orders: World, monkeypatch: pytest.MonkeyPatch) -> None:
    held = orders.fetch(at(), PLENTY, owner="c1")
    other = orders.fetch(at(), PLENTY, owner="c2")
    orders.broker.groups.channel_closed("c1")
    fill(orders, *"aaaa")
    late = [orders.fetch(at(0, slow(orders)), PLENTY, owner="c1") for _ in range(2)][1]
    workers = Workers(orders, monkeypatch)
    cold = orders.fetch(at(), PLENTY, owner="c1")
    orders.broker.groups.channel_closed("c1")
    workers.run()
    orders.end_tick()
    orders.end_tick()
    assert (held, late, cold, len(other)) == ([], [], [], 1)
    assert orders.core.pending_reads._under_way == {}


def slow(world: World, wanted: str = "none") -> Subscription:
    """A filter that takes 4 ms for a message, and wants those with this tag."""

    def matches(properties: Mapping[str, str]) -> bool:
        world.seconds += 0.004
        return properties["TAGS"] == wanted

    return replace(subscribe("orders"), kind="SQL92", predicate=matches)


def test_a_fetch_that_finds_the_time_of_filters_used_up_has_its_turn_later(orders: World) -> None:
    fill(orders, *"aaaa")
    first, late = [orders.fetch(at(0, slow(orders)), PLENTY, 0) for _ in range(2)]
    assert (len(first), late) == (1, [])
    orders.end_tick()
    assert [each.status for each in found(late[0])] == [FetchStatus.NO_MATCHED_MESSAGE]


def test_beyond_a_crowd_that_waits_for_its_turn_fetches_are_refused(orders: World) -> None:
    fill(orders, *"aaaa")
    answers = [orders.fetch(at(0, slow(orders)), PLENTY, 0) for _ in range(WAITING_MAX + 2)]
    assert isinstance(answers[-1][0][0], BrokerBusyError)


def test_held_fetches_with_slow_filters_are_looked_at_in_several_ticks(orders: World) -> None:
    held = [orders.fetch(at(0, slow(orders, "b")), PLENTY) for _ in range(4)]
    for tag in "ab":
        orders.store.append([NewMessage("orders", 0, b"x", encode_properties({"TAGS": tag}))])
    orders.core.waiting.arrived("orders", 0)
    ticks = 0
    while not all(held):
        assert ticks < 20, "three tests fit into a tick; the others wait for their turn"
        orders.end_tick()
        ticks += 1
    assert ticks >= 2
    statuses = {each.status for answers in held for each in found(answers[0])}
    assert statuses <= {FetchStatus.FOUND, FetchStatus.NO_MATCHED_MESSAGE}


# -- many cursors, as Kafka has them -----------------------------------------------------------


def test_a_fetch_of_many_partitions_waits_for_its_minimum_of_bytes(orders: World) -> None:
    answers = orders.fetch(partitions(), PLENTY._replace(bytes_min=1_000), 500)
    for queue_id in range(3):
        fill(orders, "a", queue_id=queue_id, size=200)
        assert answers == []
    fill(orders, "a", queue_id=7, size=900)
    results = found(answers[0])
    assert sum(each.size for each in results) >= 1_000
    assert [index for index, each in enumerate(results) if each.messages] == [0, 1, 2, 7]
    assert all(each.status is FetchStatus.NO_MATCHED_LOGIC_QUEUE for each in results[8:])


def test_what_there_is_leaves_when_the_longest_wait_is_over(orders: World) -> None:
    fill(orders, "a", queue_id=3)
    answers = orders.fetch(partitions(), PLENTY._replace(bytes_min=1_000), 500)
    fill(orders, "a", queue_id=4)
    orders.advance(400)
    assert answers == []
    orders.advance(200)
    assert [each.messages for each in found(answers[0])[2:6]] == [0, 1, 1, 0]
    assert orders.core.stats.totals.get_count == 2


@pytest.mark.parametrize("count", [1, PARTITIONS])
def test_a_fetch_without_a_minimum_never_waits(orders: World, count: int) -> None:
    assert len(orders.fetch(partitions(count), PLENTY._replace(bytes_min=0))) == 1


def test_each_partition_and_all_together_have_their_limit_of_bytes(orders: World) -> None:
    for queue_id in range(PARTITIONS):
        fill(orders, *"aaaaa", queue_id=queue_id, size=1_000)
    size = orders.pull(0, count_max=1).size
    limits = Limits(1 << 30, 2 * size, 5 * size)
    results = found(orders.fetch(partitions(), limits)[0])
    assert [each.messages for each in results[:4]] == [2, 2, 1, 0]
    assert {each.status for each in results[3:]} == {FetchStatus.FULL}
    assert (results[3].next_offset, results[3].max_offset) == (0, 5)
    few = found(orders.fetch(partitions(), Limits(3, 1 << 20, 1 << 20))[0])
    assert [each.messages for each in few[:2]] == [3, 0]


def test_only_the_first_message_may_be_larger_than_allowed(orders: World) -> None:
    fill(orders, "a", queue_id=1, size=100)
    fill(orders, "a", queue_id=2, size=9_000)
    results = found(orders.fetch(partitions(), Limits(100, 1_000, 1_000))[0])
    assert [each.messages for each in results[:4]] == [0, 1, 0, 0]
    results = found(orders.fetch(partitions()[2:], Limits(100, 1_000, 1_000))[0])
    assert results[0].messages == 1


def test_each_cursor_has_its_own_error(orders: World) -> None:
    cursors = [*partitions(1), Cursor(None, "nowhere", 0, 0), Cursor(None, "orders", 99, 0)]
    (results,) = orders.fetch(cursors, PLENTY)
    assert [type(each) for each in results] == [Fetched, TopicNotFoundError, InvalidQueueError]
    (results,) = orders.fetch([*partitions(), Cursor(None, "orders", 3, 77)], PLENTY)
    assert found(results)[-1].status is FetchStatus.NO_MATCHED_LOGIC_QUEUE, "answered, and not held"


def test_a_place_that_is_asked_for_twice_does_no_harm(orders: World) -> None:
    answers = orders.fetch([*partitions(2), *partitions(2)], PLENTY)
    fill(orders, "a")
    assert [each.messages for each in found(answers[0])] == [1, 0, 1, 0]
    assert len(orders.core.waiting) == 0


def test_what_lies_in_very_many_places_comes_by_several_fetches(
    orders: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(300):
        fill(orders, "a", queue_id=0)
        fill(orders, "a", queue_id=1)
    for module in (reader, fetch):
        monkeypatch.setattr(module, "RANGES_MAX", 250)
    # What is there is not held back for more of it.
    limits = Limits(1 << 30, 1 << 20, 1 << 20, 1 << 20, True, True)
    answers: list[Sequence[Result]] = []
    read = orders.core.fetches.fetch
    read(partitions(2), limits, 60_000, lambda _, results: answers.append(results))
    read(partitions(1), limits, 60_000, lambda _, results: answers.append(results))
    both, one = map(found, answers)
    assert [each.messages for each in both] == [250, 0]
    assert both[1].status is FetchStatus.FULL
    assert [each.messages for each in one] == [250]
