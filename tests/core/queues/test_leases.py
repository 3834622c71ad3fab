"""Leases: handed out for a time, counted, acknowledged, released or expired; and never lost."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from onelog.core.access import SELF
from onelog.core.assembly import Assembly
from onelog.core.queues.lease_ledger import IN_PLACE, Lease, LeaseLedger, ReturnPolicy
from onelog.core.queues.leases import Leases
from onelog.errors import (
    InvalidLeaseTimeError,
    LeaseNotFoundError,
    TooManyLeasesError,
)
from onelog.message import NewMessage
from onelog.rocketmq.profile import NAMING
from tests.core.lease_machine import LeaseMachine
from tests.core.leasing import (
    GROUP,
    LEASE_MS,
    ORDERED,
    STAY,
    TICK_MS,
    TOPIC,
    Reader,
    bodies,
    reading,
)
from tests.core.world import HELD_S_MAX, TROUBLES, World, entries_of

RETRY = NAMING.lease_retry_topic(GROUP, TOPIC)


# -- handing out -------------------------------------------------------------------------------


def test_a_leased_message_is_invisible_until_its_time_is_up(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send(body=b"a")
    assert bodies(reader.pop()) == [b"a"]
    reader.world.advance(LEASE_MS - 1)
    assert reader.pop() == []
    reader.world.advance(TICK_MS + 1)
    assert bodies(reader.pop()) == [b"a"]


def test_two_members_never_hold_the_same_message(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=3)
    sent = [b"%d" % n for n in range(30)]
    for n, body in enumerate(sent):
        reader.world.send(queue_id=n % 3, body=body)
    got = [bodies(reader.pop(7)) for _ in range(5)]
    assert [len(some) for some in got] == [7, 7, 7, 7, 2]
    assert sorted((body for some in got for body in some), key=int) == sent


def test_a_group_without_a_position_starts_at_the_oldest_or_near_the_newest(
    tmp_path: Path,
) -> None:
    reader = reading(tmp_path, memory_bytes=1)
    for n in range(5):
        reader.world.send(body=b"%d" % n)
    assert bodies(reader.pop(from_last=True)) == [b"4"]
    reader.group = "others"
    assert len(reader.pop()) == 5


def test_the_cursor_is_the_smallest_offset_that_is_not_finished(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for _ in range(5):
        reader.world.send()
    leased = reader.pop()
    assert reader.cursor() == 0
    reader.ack(leased[1], leased[3])
    assert reader.cursor() == 0
    reader.ack(leased[0])
    assert reader.cursor() == 2
    progress = reader.world.broker.groups.consume_stats(SELF, GROUP, TOPIC).queues[0]
    assert (progress.lag, progress.in_flight) == (3, 3)
    reader.ack(leased[4], leased[2])
    assert reader.cursor() == 5


@pytest.mark.parametrize(("limits", "got"), [((3, 100), 3), ((100, 5), 5)])
def test_a_group_gets_no_more_than_it_may_hold(
    tmp_path: Path, limits: tuple[int, int], got: int
) -> None:
    reader = reading(tmp_path)
    leases: Leases = reader.leases
    leases.queue_leases_max, leases.group_leases_max = limits
    for _ in range(10):
        reader.world.send()
    leased = reader.pop()
    assert len(leased) == got
    with pytest.raises(TooManyLeasesError, match=f"group {GROUP} holds {got} messages"):
        reader.pop()
    reader.ack(leased[0])
    assert len(reader.pop()) == 1


# -- coming back -------------------------------------------------------------------------------


def test_a_lease_can_be_made_longer_shorter_or_be_given_up(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for body in (b"longer", b"shorter", b"now"):
        reader.world.send(body=body)
    longer, shorter, now = reader.pop()
    reader.change(longer, 3 * LEASE_MS)
    reader.change(shorter, 1_000)
    reader.change(now, 0)
    assert len(reader.leases) == 3
    reader.world.advance(TICK_MS)
    assert bodies(reader.pop(invisible_ms=10 * LEASE_MS)) == [b"now"]
    reader.world.advance(1_000 - TICK_MS - 1)
    assert reader.pop() == []
    reader.world.advance(1 + TICK_MS)
    assert bodies(reader.pop(invisible_ms=10 * LEASE_MS)) == [b"shorter"]
    reader.world.advance(3 * LEASE_MS - 1_000 - TICK_MS - 1)
    assert reader.pop() == []
    reader.world.advance(TICK_MS)
    assert bodies(reader.pop()) == [b"longer"]


def test_one_that_stays_comes_back_to_its_own_place_first_and_counted(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for body in (b"a", b"b", b"c"):
        reader.world.send(body=body)
    a, b = reader.take(2, policy=STAY)
    reader.ack(b)
    reader.world.advance(LEASE_MS + TICK_MS)
    again = reader.take(policy=STAY)
    assert [(each.body, each.offset, each.times) for each in again] == [(b"a", 0, 1), (b"c", 2, 0)]
    assert again[0].handle > a.handle
    reader.change(again[0], 0)
    reader.world.advance(TICK_MS)
    third = reader.take(policy=STAY)
    assert [(each.body, each.times) for each in third] == [(b"a", 2)]
    reader.ack(third[0], again[1])
    assert reader.cursor() == 3


def test_a_place_never_gets_the_same_handle_twice(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    handles = []
    for set_back_ms in (0, 500):
        for _ in range(2):
            handles.append(reader.take(policy=STAY, invisible_ms=0)[0].handle)
            reader.world.advance(0)
        reader.world.clock.advance(-set_back_ms)
        reader.world.restart()
    handles.append(reader.take(policy=STAY)[0].handle)
    assert handles == sorted(set(handles))


@pytest.mark.parametrize("restarts", [False, True])
def test_a_lease_ends_in_time_though_the_clock_was_ahead_when_it_began(
    tmp_path: Path, restarts: bool
) -> None:
    reader = reading(tmp_path, queues=2)
    reader.world.send(body=b"a")
    assert bodies(reader.pop()) == [b"a"]
    reader.world.clock.advance(-3_600_000)
    if restarts:
        reader.world.restart()
    reader.world.send(queue_id=1, body=b"b")
    assert bodies(reader.pop()) == [b"b"]
    reader.world.advance(LEASE_MS + TICK_MS)
    assert sorted(bodies(reader.pop())) == [b"a", b"b"]


# -- releasing and rejecting -------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["retried", "kept", "ordered"])
def test_a_released_message_is_to_be_had_again_from_its_place(tmp_path: Path, policy: str) -> None:
    reader = reading(tmp_path)
    for n in range(3):
        reader.world.send(body=b"%d" % n)
    how = {"kept": STAY, "ordered": ORDERED}.get(policy, reader.world.pop.policy)
    zero, one = reader.pop(2, policy=how)
    reader.release(one)
    reader.release(zero)
    again = reader.pop(policy=how)
    assert [(each.body, each.times) for each in again] == [(b"0", 1), (b"1", 1), (b"2", 0)]
    assert {each.message.reconsume_times for each in again} == {0}
    for stale in (zero, one):
        with pytest.raises(LeaseNotFoundError):
            reader.release(stale)
    reader.ack(*again)
    assert reader.cursor() == 3


@pytest.mark.parametrize("crashes", [False, True])
def test_a_message_that_is_released_for_later_is_with_nobody_until_then(
    tmp_path: Path, crashes: bool
) -> None:
    reader = reading(tmp_path)
    reader.world.send(body=b"a")
    (leased,) = reader.pop()
    reader.release(leased, after_ms=3 * LEASE_MS)
    with pytest.raises(LeaseNotFoundError):
        reader.ack(leased)
    if crashes:
        reader.world.crash()
    reader.world.advance(3 * LEASE_MS - TICK_MS)
    assert reader.pop() == []
    reader.world.advance(2 * TICK_MS)
    (again,) = reader.pop()
    assert (again.body, again.topic, again.times) == (b"a", TOPIC, 1)


@pytest.mark.parametrize("crashes", [False, True])
def test_what_is_released_to_the_back_comes_after_all_that_is_there(
    tmp_path: Path, crashes: bool
) -> None:
    reader = reading(tmp_path)
    for n in range(6):
        reader.world.send(body=b"%d" % n)
    zero, one, two, three = reader.pop(4, policy=STAY)
    reader.release(three)
    reader.release(one, to_back=True)
    reader.release(zero, to_back=True)
    if crashes:
        reader.world.crash()
    reader.world.send(body=b"late")
    assert reader.cursor() == 0
    order = [each.body for _ in range(8) for each in reader.pop(1, policy=STAY)]
    assert order == [b"3", b"4", b"5", b"1", b"0", b"late"]
    assert two.offset == 2


def test_what_is_at_the_back_is_found_behind_messages_that_nobody_wants(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send(body=b"wanted", TAGS="a")
    (leased,) = reader.pop(policy=STAY)
    for _ in range(3):
        reader.world.send(TAGS="b")
    reader.release(leased, to_back=True)
    assert bodies(reader.pop(policy=STAY, tags="a")) == [b"wanted"]


def test_an_ordered_queue_has_no_back(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for n in range(3):
        reader.world.send(body=b"%d" % n)
    zero, one = reader.pop(2, policy=ORDERED)
    reader.release(zero, to_back=True)
    reader.release(one, to_back=True)
    assert bodies(reader.pop(policy=ORDERED)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("crashes", [False, True])
def test_a_rejected_message_goes_where_its_policy_says(tmp_path: Path, crashes: bool) -> None:
    reader = reading(tmp_path)
    reader.world.topic("elsewhere", 1)
    policy = ReturnPolicy(
        7,
        rejected=lambda group, topic, message, _: NewMessage(
            "elsewhere", 0, bytes(message.body) + b" of " + group.encode()
        ),
    )
    reader.leases.policies[7] = policy
    for body in (b"useless", b"expired", b"dropped"):
        reader.world.send(body=body)
    useless, _ = reader.pop(2, policy=policy)
    (dropped,) = reader.pop(policy=STAY)
    reader.reject(useless)
    reader.reject(dropped)
    with pytest.raises(LeaseNotFoundError):
        reader.ack(useless)
    if crashes:
        reader.world.start = partial(start_with, reader, policy)  # type: ignore[method-assign]
        reader.world.crash()
    reader.world.advance(TICK_MS)
    assert reader.world.bodies("elsewhere") == [b"useless of readers"]
    reader.world.advance(LEASE_MS + TICK_MS)
    assert bodies(reader.pop(policy=policy)) == [b"expired"]
    assert len(reader.leases) == 1


def start_with(reader: Reader, policy: ReturnPolicy) -> None:
    """Start the world with another protocol's policy, too."""
    opens = Assembly.open

    def open_with(core: Assembly, *how: Any) -> None:
        core.leases.policies[policy.number] = policy
        opens(core, *how)

    with mock.patch.object(Assembly, "open", open_with):
        World.start(reader.world)


# -- receipts ----------------------------------------------------------------------------------


def test_an_acknowledged_message_never_comes_back(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for _ in range(3):
        reader.world.send()
    reader.ack(*reader.pop())
    for _ in range(3):
        reader.world.advance(LEASE_MS + TICK_MS)
        assert reader.pop() == []
        reader.world.restart()
    assert reader.world.store.max_offset(RETRY, 0) == 0


def test_forged_stale_and_double_acknowledgements_change_nothing(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for _ in range(3):
        reader.world.send()
    one, two, three = reader.pop()
    reader.ack(one)
    new_two = reader.change(two, LEASE_MS)
    before = entries_of(reader.leases)
    refused = [
        (TOPIC, 0, one.offset, one.handle),
        (TOPIC, 0, two.offset, two.handle),
        (TOPIC, 0, three.offset, three.handle + 1),
        (TOPIC, 0, 7, three.handle),
        (TOPIC, 1, three.offset, three.handle),
        ("nowhere", 0, three.offset, three.handle),
    ]
    for place in refused:
        with pytest.raises(LeaseNotFoundError, match="is not out under this receipt"):
            reader.leases.acknowledge(GROUP, *place)
        with pytest.raises(LeaseNotFoundError):
            reader.leases.extend(GROUP, *place, 5)
    with pytest.raises(LeaseNotFoundError):
        reader.leases.acknowledge("strangers", TOPIC, 0, three.offset, three.handle)
    reader.end_tick()
    assert entries_of(reader.leases) == before
    reader.ack(new_two, three)
    assert reader.cursor() == 3


def test_an_acknowledgement_that_comes_too_late_is_refused(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    leased = reader.pop()[0]
    reader.world.advance(LEASE_MS + TICK_MS)
    with pytest.raises(LeaseNotFoundError):
        reader.ack(leased)
    assert len(reader.pop()) == 1


def test_of_a_batch_those_are_acknowledged_that_are_out(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for _ in range(4):
        reader.world.send()
    leased = reader.pop()
    handle = leased[0].handle
    reader.ack(leased[1])
    assert reader.leases.acknowledge_some(GROUP, TOPIC, 0, [0, 1, 2, 9], handle) == 2
    assert reader.leases.acknowledge_some(GROUP, TOPIC, 0, [3], handle + 1) == 0
    assert reader.leases.acknowledge_some(GROUP, "nowhere", 0, [3], handle) == 0
    reader.end_tick()
    assert reader.cursor() == 3


@pytest.mark.parametrize("invisible_ms", [-1, 3 * 86_400_000 + 1])
def test_an_impossible_time_is_refused(tmp_path: Path, invisible_ms: int) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    leased = reader.pop()[0]
    before = entries_of(reader.leases)
    with pytest.raises(InvalidLeaseTimeError, match=str(invisible_ms)):
        reader.change(leased, invisible_ms)
    with pytest.raises(InvalidLeaseTimeError):
        reader.pop(invisible_ms=invisible_ms)
    assert entries_of(reader.leases) == before


# -- order -------------------------------------------------------------------------------------


def test_an_ordered_queue_is_blocked_until_all_of_it_is_acknowledged(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for n in range(4):
        reader.world.send(body=b"%d" % n)
    one, two = reader.pop(2, policy=ORDERED)
    assert reader.pop(policy=ORDERED) == []
    reader.ack(two)
    assert reader.pop(policy=ORDERED) == []
    reader.ack(one)
    assert bodies(reader.pop(policy=ORDERED)) == [b"2", b"3"]


@pytest.mark.usefixtures("no_garbage")
def test_a_snapshot_of_very_many_leases_holds_nobody_up(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=2)
    world, leases = reader.world, reader.leases
    for queue_id in range(2):
        queue = LeaseLedger(GROUP, TOPIC, queue_id)
        # As bad as can be: each of them was handed out alone.
        for offset in range(100_000):
            queue.hand_out(Lease(queue, offset, 10**14, IN_PLACE, None, (offset,)), 0, offset + 1)
        queue.recorded()
        leases._queues[GROUP, TOPIC, queue_id] = queue
    tables = world.core.lease_tables
    world.timer.longest_cpu_s = 0.0
    tables.snapshot()
    while tables._gathering is not None:
        world.advance(10_000)
    assert world.timer.longest_cpu_s < HELD_S_MAX
    loaded = LeaseLedger(GROUP, TOPIC, 1)
    loaded.apply(json.loads(tables._path.read_bytes())["tables"]["leases"][f"{TOPIC}@{GROUP}@1"])
    assert loaded.out.keys() == queue.out.keys()


@pytest.mark.parametrize("trouble", TROUBLES)
def test_leases_end_also_if_the_first_attempt_fails(tmp_path: Path, trouble: Exception) -> None:
    reader = reading(tmp_path)
    reader.world.send(body=b"a")
    assert bodies(reader.pop()) == [b"a"]
    with mock.patch.object(reader.world.store, "message_at", side_effect=trouble):
        reader.world.advance(LEASE_MS + TICK_MS)
    reader.world.advance(1_000 + TICK_MS)
    assert bodies(reader.pop()) == [b"a"]


def test_what_expires_of_an_ordered_queue_comes_again_before_all_that_follows(
    tmp_path: Path,
) -> None:
    reader = reading(tmp_path)
    for n in range(4):
        reader.world.send(body=b"%d" % n)
    zero, one, two = reader.pop(3, policy=ORDERED)
    reader.ack(one)
    assert reader.change(zero, 2 * LEASE_MS).handle == zero.handle
    reader.world.advance(LEASE_MS + TICK_MS)
    assert reader.pop(policy=ORDERED) == [], "one is still out"
    reader.world.advance(LEASE_MS)
    again = reader.pop(policy=ORDERED)
    assert [(each.body, each.times) for each in again] == [
        (b"0", 1),
        (b"1", 1),
        (b"2", 1),
        (b"3", 0),
    ]
    with pytest.raises(LeaseNotFoundError):
        reader.ack(two)
    reader.ack(*again)
    assert reader.cursor() == 4


@pytest.mark.parametrize("crashes", [False, True])
def test_after_a_change_in_the_middle_of_an_ordered_batch_it_comes_again_from_there(
    tmp_path: Path, crashes: bool
) -> None:
    # RocketMQ's PopOrderlyIT.testPopMessageOrderlyThenChangeInvisibleTimeMidMessage.
    reader = reading(tmp_path)
    for n in range(1, 5):
        reader.world.send(body=b"%d" % n)
    one, two, three = reader.pop(3, policy=ORDERED, invisible_ms=5_000)
    reader.ack(one)
    reader.change(two, 3_000)
    reader.ack(three)
    if crashes:
        reader.world.crash()
    reader.world.advance(2_900)
    assert reader.pop(3, policy=ORDERED) == []
    reader.world.advance(100 + TICK_MS)
    again = reader.pop(3, policy=ORDERED, invisible_ms=5_000)
    assert [(each.body, each.times) for each in again] == [(b"2", 1), (b"3", 1), (b"4", 0)]
    reader.ack(*again)
    assert reader.cursor() == 4


@pytest.mark.parametrize("crashes", [False, True])
def test_what_was_acknowledged_ahead_of_its_turn_is_done_when_its_turn_comes(
    tmp_path: Path, crashes: bool
) -> None:
    reader = reading(tmp_path)
    for n in range(5):
        reader.world.send(body=b"%d" % n)
    zero, one, two, three = reader.pop(4, policy=ORDERED)
    reader.ack(one, three)
    assert reader.cursor() == 0
    if crashes:
        reader.world.crash()
    with pytest.raises(LeaseNotFoundError):
        reader.ack(three)
    reader.ack(zero)
    assert reader.cursor() == 2
    reader.ack(two)
    assert reader.cursor() == 4
    assert bodies(reader.pop(policy=ORDERED)) == [b"4"]


def test_what_is_acknowledged_behind_one_that_has_come_back_comes_again(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for n in range(3):
        reader.world.send(body=b"%d" % n)
    zero, one, two = reader.pop(policy=ORDERED)
    reader.change(zero, 1_000)
    reader.world.advance(1_000 + TICK_MS)
    reader.ack(one)
    assert reader.pop(policy=ORDERED) == [], "two is still out"
    reader.ack(two)
    assert bodies(reader.pop(1, policy=ORDERED)) == [b"0"]


def test_the_same_attempt_gets_the_same_ordered_messages_again(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for n in range(4):
        reader.world.send(body=b"%d" % n)
    first = reader.pop(3, policy=ORDERED, attempt_id="a")
    reader.ack(first[1])
    assert reader.pop(3, policy=ORDERED, attempt_id="b") == []
    reader.world.crash()
    second = reader.pop(3, policy=ORDERED, attempt_id="a")
    assert [(each.body, each.times) for each in second] == [(b"0", 0), (b"2", 0)]
    reader.ack(*second)
    assert bodies(reader.pop(policy=ORDERED, attempt_id="a")) == [b"3"]


def test_who_waits_for_an_ordered_queue_is_woken_when_it_is_free(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    reader.world.send()
    request = reader.request(0, 0, policy=ORDERED)
    for expires in (False, True):
        leased = reader.pop(1, policy=ORDERED)[0]
        held = reader.ask(request, 60_000)
        assert held == []
        if expires:
            reader.world.advance(2 * LEASE_MS)
            reader.world.end_tick()
        else:
            reader.ack(leased)
        reader.world.end_tick()
        assert len(held) == 1


# -- restarts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_leases_survive(tmp_path: Path, how: str) -> None:
    reader = reading(tmp_path)
    for n in range(6):
        reader.world.send(body=b"%d" % n)
    leased = reader.pop(4)
    reader.ack(leased[0], leased[2])
    longer = reader.change(leased[3], 2 * LEASE_MS)
    getattr(reader.world, how)()
    assert len(reader.leases) == 2
    assert reader.cursor() == 1
    assert bodies(reader.pop()) == [b"4", b"5"]
    reader.ack(leased[1])
    assert reader.cursor() == 3
    reader.world.advance(2 * LEASE_MS - 1)
    reader.ack(longer)
    assert reader.cursor() == 6
    assert reader.world.bodies(RETRY) == [b"4", b"5"]


def test_a_clean_stop_records_what_the_tick_had_begun(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    reader.ask(reader.request())
    reader.world.restart()
    assert len(reader.leases) == 1
    assert reader.pop() == []


def test_what_fell_due_while_the_broker_was_down_comes_back_at_once(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send(body=b"moved")
    reader.pop()
    reader.world.send(body=b"stays")
    reader.take(policy=STAY)
    reader.world.close()
    reader.world.clock.advance(5 * LEASE_MS)
    reader.world.start()
    reader.world.advance(0)
    assert sorted(bodies(reader.pop())) == [b"moved", b"stays"]


# -- what others do ----------------------------------------------------------------------------


def test_a_reset_drops_the_leases_and_goes_on_from_there(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for n in range(5):
        reader.world.send(body=b"%d" % n)
    leased = reader.pop(4)
    reader.ack(leased[0])
    reader.world.broker.cursors.reset(SELF, GROUP, TOPIC, 0, queue_id=0, offset=2)
    reader.world.end_tick()
    reader.world.crash()
    with pytest.raises(LeaseNotFoundError):
        reader.ack(leased[1])
    again = reader.pop()
    assert bodies(again) == [b"2", b"3", b"4"]
    reader.ack(*again)
    assert reader.cursor() == 5


def test_a_position_that_another_way_of_consuming_committed_counts(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for n in range(5):
        reader.world.send(body=b"%d" % n)
    reader.pop(2)
    reader.world.broker.cursors.commit(SELF, GROUP, TOPIC, 0, 4)
    assert bodies(reader.pop()) == [b"4"]
    assert len(reader.leases) == 1


def test_a_topic_that_is_deleted_takes_its_leases_along(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    reader.pop()
    reader.world.broker.topics.delete(SELF, TOPIC)
    reader.world.end_tick()
    assert len(reader.leases) == 0
    reader.world.topic(TOPIC, 1)
    reader.world.crash()
    reader.world.send(body=b"new")
    assert bodies(reader.pop()) == [b"new"]


def test_a_group_that_is_deleted_gets_nothing_back(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    reader.pop()
    reader.world.broker.groups.delete(SELF, GROUP, clean_offsets=True)
    reader.world.advance(LEASE_MS + TICK_MS)
    assert len(reader.leases) == 0
    assert reader.world.store.max_offset(RETRY, 0) == 0
    assert len(reader.pop()) == 1, "a group of that name starts anew"


# -- scale -------------------------------------------------------------------------------------


def test_a_hundred_thousand_open_leases_are_cheap(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=4)
    world = reader.world
    for queue_id in range(4):
        for _ in range(25):
            world.store.append([NewMessage(TOPIC, queue_id, b"x")] * 1_000)
    began = time.process_time()
    while len(reader.leases) < 100_000:
        assert reader.pop()
    state = entries_of(reader.leases)
    assert time.process_time() - began < 20
    timers = len(world.timer)
    assert timers < 20, "no timer per lease"
    world.crash()
    assert entries_of(reader.leases) == state
    rounds = 0
    world.clock.advance(LEASE_MS + TICK_MS)
    while len(reader.leases) > 90_000:
        before = len(reader.leases)
        world.timer.advance(0)
        rounds += 1
        assert before > len(reader.leases)
    assert rounds >= 1


# -- everything at once ------------------------------------------------------------------------

TestLeasesAgainstAModel = LeaseMachine.TestCase
