"""Elections on a simulated etcd: who becomes master, and that there never are two."""

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.replication.registry import ReplicaSetState, Request
from onelog.replication.roles import Role
from tests.replication.elections import LEASE_MS, FakeNode, World, started


@pytest.fixture
def world() -> World:
    return World()


def test_a_whole_set_is_founded_by_its_first_node_at_once(world: World) -> None:
    for number in (2, 1, 0):
        world.start(number)
    master = world.master()
    assert master.number == 0
    assert world.time.now_ms < 100
    assert world.state() == ReplicaSetState(1, 0, (0,), 3)
    world.time.run(100)
    follower = world.nodes[1].election.role
    assert follower == Role(False, 1, 0, "host:0", "ha:0")


def test_a_set_that_etcd_has_forgotten_is_not_founded_by_a_node_that_has_less_than_another(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.start(0)
    world.start(1, end=500, epoch=3)
    world.start(2, end=400, epoch=2)
    world.time.run(10_000)
    assert world.masters() == []
    assert "etcd has lost what it knew of this set, whose last epoch was 3" in caplog.text
    assert "not counted: node 0 (empty)" in caplog.text
    world.nodes[0].alive = False
    world.time.run(5_000)
    world.start(0, end=500, epoch=2)
    assert world.master().number == 1
    assert (world.state().epoch, world.state().in_sync) == (4, (1,))


def test_a_set_without_its_first_node_is_founded_when_it_is_whole(world: World) -> None:
    world.start(1)
    world.start(2)
    world.time.run(20_000)
    assert world.masters() == []
    world.start(3)
    assert world.master().number == 1


def test_the_member_with_the_longest_log_follows_a_dead_master(world: World) -> None:
    master = started(world)
    world.nodes[2].end = 100
    master.alive = False
    since = world.time.now_ms
    assert world.master().number == 2
    assert world.time.now_ms - since < LEASE_MS + 300
    assert world.state() == ReplicaSetState(2, 2, (1, 2), 3)


def test_a_higher_epoch_counts_more_than_a_longer_log(world: World) -> None:
    started(world).alive = False
    world.nodes[1].epoch, world.nodes[2].end = 1, 100
    assert world.master().number == 1


def test_nobody_outside_the_in_sync_set_is_elected(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    master = started(world)
    master.election.propose_in_sync(frozenset({0}))
    world.time.run(100)
    master.alive = False
    world.time.run(60_000)
    assert world.masters() == []
    assert "no master can be elected before node 0 is there" in caplog.text
    world.start(0)
    assert world.master().number == 0


def test_an_unclean_election_takes_place_if_that_was_asked_for() -> None:
    world = World(unclean=True)
    master = started(world)
    master.election.propose_in_sync(frozenset({0}))
    world.time.run(100)
    master.alive = False
    assert world.master().number == 1
    assert world.state().in_sync == (1,)


def test_the_next_best_runs_when_the_best_does_not(world: World) -> None:
    master = started(world)
    world.nodes[2].end = 100
    world.time.run(1_000)
    master.alive = False
    world.time.run(LEASE_MS // 2)
    world.nodes[2].stop()
    assert world.master().number == 1


def test_a_master_that_was_stopped_cannot_prove_its_lease_when_it_wakes(world: World) -> None:
    master = started(world)
    assert master.election.is_proven()
    master.stop()
    world.time.run(30_000)
    assert not master.can_acknowledge()
    assert len(world.masters()) == 1
    master.wake()
    world.time.run(1_000)
    assert not master.election.role.is_master
    assert master.election.role.master in (1, 2)


def test_a_lease_is_counted_from_when_its_keep_alive_was_sent(world: World) -> None:
    master = started(world)
    master.travel = lambda: 700  # An answer takes longer than a request may: each time-out is None.
    world.time.run(LEASE_MS)
    assert not master.can_acknowledge()


def test_a_master_whose_answers_get_lost_lets_go_of_its_lease(world: World) -> None:
    """Its keep-alives arrive: who went on sending them would keep the others waiting for ever."""
    master = started(world)
    master.travel_back = lambda: None
    world.time.run_until(lambda: world.masters() not in ([], [0]))


def test_without_etcd_the_master_goes_on_until_its_lease_is_over(world: World) -> None:
    master = started(world)
    for node in world.nodes.values():
        node.travel = lambda: None
    world.time.run(LEASE_MS // 2)
    assert master.can_acknowledge()
    world.time.run(LEASE_MS)
    assert world.masters() == []
    assert master.election.role == Role(epoch=1)
    world.time.run(60_000)
    for node in world.nodes.values():
        node.travel = lambda: 1
    assert world.master()


def test_the_in_sync_set_is_changed_by_the_master_only(world: World) -> None:
    master = started(world)
    world.nodes[1].election.propose_in_sync(frozenset({1}))
    world.time.run(1_000)
    assert world.state().in_sync == (0, 1, 2)
    master.stop()
    world.time.run(10_000)
    master.stopped = False
    master.election.propose_in_sync(frozenset({0}))
    world.time.run(1_000)
    assert 0 not in world.state().in_sync


def test_a_proposal_that_was_refused_is_told_as_what_there_is(world: World) -> None:
    master = started(world)
    world.nodes[2].alive = False
    world.time.run(10_000)
    before = world.view().state_revision
    master.election.propose_in_sync(frozenset({0, 1, 7}))
    world.time.run(1_000)
    assert master.in_sync.ids == {0, 1}
    assert master.in_sync.revision > before


def test_a_master_hands_over_to_the_node_that_is_asked_for(world: World) -> None:
    started(world)
    since = world.time.now_ms
    assert world.ask(0, Request("hand over", 2)) == ""
    assert world.master().number == 2
    assert world.time.now_ms - since < 100
    assert world.state() == ReplicaSetState(2, 2, (0, 1, 2), 3)
    world.time.run(100)
    assert world.nodes[0].election.role == Role(False, 2, 2, "host:2", "ha:2")


def test_a_master_that_is_to_step_down_hands_over_to_the_best(world: World) -> None:
    started(world)
    world.nodes[2].end = 10
    world.time.run(2_000)
    assert world.ask(0, Request("hand over")) == ""
    assert world.master().number == 2


def test_the_set_keeps_as_many_members_as_are_needed_though_some_be_away() -> None:
    world = World(ack="majority")
    master = started(world)
    world.nodes[2].alive = False
    master.election.propose_in_sync(frozenset({0, 1}))
    world.time.run(1_000)
    assert world.state().in_sync == (0, 1)
    master.election.propose_in_sync(frozenset({0}))
    world.time.run(1_000)
    assert world.state().in_sync == (0, 1)
    master.alive = False
    assert world.master().number == 1
    assert world.state().in_sync == (0, 1)


def test_a_hand_over_that_cannot_be_is_refused_and_the_master_goes_on(world: World) -> None:
    master = started(world)
    assert world.ask(0, Request("hand over", 7)) == "node 7 is not in sync"
    master.catches_up = False
    assert world.ask(0, Request("hand over", 1)) == "it is too far behind"
    assert world.ask(1, Request("hand over", 2)) == "node 1 is not the master any more"
    assert world.masters() == [0]


def test_nothing_is_handed_over_to_a_node_that_goes_meanwhile(world: World) -> None:
    master = started(world)
    prepared: list[Callable[[str], None]] = []
    outcomes: list[str] = []
    master.prepare_hand_over = lambda target, ready: prepared.append(ready)  # type: ignore[method-assign]
    master.election.hand_over(outcomes.append, 1)
    world.nodes[1].alive = False
    world.time.run_until(lambda: 1 not in world.view().nodes)
    world.time.run(100)
    prepared[0]("")
    world.time.run(100)
    assert outcomes == ["node 1 is gone"]
    assert world.masters() == [0]
    assert world.view().master_lease


def test_a_hand_over_of_which_the_outcome_is_not_known_is_acknowledged_by_nobody_twice(
    world: World,
) -> None:
    master = started(world)
    outcomes: list[str] = []
    master.election.hand_over(outcomes.append, 1)
    world.time.run(5.5)
    master.travel = lambda: None
    world.time.run_until(lambda: bool(outcomes))
    assert outcomes == ["the registry did not take it: try again"]
    assert not master.can_acknowledge()
    master.travel = lambda: 1
    world.master()


def test_a_node_that_is_drained_leaves_the_set_and_comes_back_with_its_next_start(
    world: World,
) -> None:
    started(world)
    assert world.ask(0, Request("drain")) == ""
    assert world.master().number == 1
    assert world.state().in_sync == (1, 2)
    world.nodes[1].election.propose_in_sync(frozenset({0, 1, 2}))
    world.time.run(1_000)
    assert world.state().in_sync == (1, 2)
    assert world.ask(2, Request("drain")) == ""
    assert world.state().in_sync == (1,)
    world.nodes[0].alive = False
    world.start(0)
    world.time.run(LEASE_MS * 2)
    world.nodes[1].election.propose_in_sync(frozenset({0, 1}))
    world.time.run(1_000)
    assert world.state().in_sync == (0, 1)


def test_a_set_grows_when_it_is_told_to(world: World) -> None:
    started(world)
    assert world.ask(0, Request("replicas", 4)) == ""
    assert world.state().replicas == 4


def test_a_master_with_a_full_disk_hands_over_to_one_that_can(world: World) -> None:
    started(world).fit = False
    world.time.run(2_000)
    assert world.masters() == [1]


def test_a_master_that_can_do_nothing_and_not_hand_over_gives_its_lease_back(world: World) -> None:
    master = started(world)
    master.fit = master.catches_up = False
    master.end = 100
    world.time.run(1_000)
    master.fit = True
    assert world.master().number == 1


def test_a_member_that_may_have_lost_writes_is_not_elected_while_another_may_come_back(
    world: World,
) -> None:
    started(world)
    for node in world.nodes.values():
        node.alive = False
    world.time.run(5_000)
    world.start(2, intact=False, epoch=1)
    world.start(1, intact=False, epoch=1, end=10)
    world.time.run(20_000)
    assert world.masters() == []
    world.start(0, intact=False)
    assert world.master().number == 1
    assert world.state().in_sync == (1,)


def test_a_member_that_may_have_lost_writes_leaves_the_set_until_it_has_caught_up(
    world: World,
) -> None:
    master = started(world)
    world.nodes[2].alive = False
    world.time.run(LEASE_MS * 2)
    world.start(2, intact=False)
    world.time.run(1_000)
    assert world.state().in_sync == (0, 1)
    assert world.view().nodes[2].intact
    master.election.propose_in_sync(frozenset({0, 1, 2}))
    world.time.run(1_000)
    assert world.state().in_sync == (0, 1, 2)


def test_a_second_process_with_the_same_number_takes_no_part(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    started(world)
    other = FakeNode(world, 1, 0, 0)
    world.time.run(1)
    other.begin()
    world.time.run(10_000)
    assert "another process is, or was until now, node 1 of the set" in caplog.text
    assert world.view().nodes[1].instance == world.nodes[1].election.me.instance


FAULTS = st.sampled_from(["kill", "stop", "wake", "start", "cut", "mute", "heal", "shrink", "give"])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.tuples(FAULTS, st.integers(0, 2)), max_size=25))
def test_there_is_one_master_per_epoch_and_at_a_time(
    seed: int, faults: list[tuple[str, int]]
) -> None:
    """Whatever happens in whatever order; clocks run apart by up to a twentieth."""
    dice = random.Random(seed)
    world = World()
    for number in range(3):
        world.start(number, rate=dice.uniform(0.96, 1.04), travel=lambda: dice.uniform(0, 300))
    for what, number in faults:
        node = world.nodes[number]
        if what == "kill":
            node.alive = False
        elif what == "start" and not node.alive:
            rate = dice.uniform(0.96, 1.04)
            node = world.start(number, rate=rate, travel=lambda: dice.uniform(0, 300))
        elif what == "stop":
            node.stop()
        elif what == "wake":
            node.wake()
        elif what == "cut":
            node.travel = lambda: None
        elif what == "mute":
            node.travel = lambda: dice.choice([None, dice.uniform(0, 300)])
        elif what == "heal":
            node.travel = lambda: dice.uniform(0, 50)
        elif what == "shrink" and node.alive and not node.stopped:
            node.election.propose_in_sync(frozenset(dice.sample(range(3), dice.randint(1, 3))))
        elif what == "give" and node.alive and not node.stopped:
            node.election.hand_over(lambda error: None)
        end = world.time.now_ms + dice.choice([5, 500, 5_000, 30_000])
        while world.time.now_ms < end:
            world.time.run(20)
            assert len(world.masters()) <= 1
    last: ReplicaSetState | None = None
    for _, puts in world.etcd.history:
        put = puts.get("state")
        if put is not None:
            state = msgspec.json.decode(put.value, type=ReplicaSetState)
            if last is not None and state.epoch != last.epoch:
                assert state.epoch == last.epoch + 1
                assert state.master in last.in_sync
            last = state
    for node in world.nodes.values():
        node.travel = lambda: 1
        node.wake()
        if not node.alive:
            world.start(node.number)
    world.master()
