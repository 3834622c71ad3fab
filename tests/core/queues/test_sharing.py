"""Share groups: what members have to themselves, what comes back, and what a restart leaves."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from onelog.core.access import SELF
from onelog.core.queues.lease_ledger import Outcome
from onelog.core.queues.sharing import ShareLimits
from onelog.errors import GroupPermissionError, LeaseNotFoundError
from onelog.message import NewMessage
from tests.core.sharing import EARLIEST, GROUP, TOPIC, Sharer, put_batch, sharing
from tests.core.world import World

LIMIT = EARLIEST.deliveries_max
LOCK_MS = EARLIEST.lock_ms


def test_members_have_different_messages_and_the_position_follows(world: World) -> None:
    ann = sharing(world)
    bob = Sharer(world, "bob")
    put_batch(world, 10)
    assert ann.take(4) == dict.fromkeys(range(4), 1)
    assert bob.take() == dict.fromkeys(range(4, 10), 1)
    assert ann.take() == {}
    bob.accept(*range(4, 10))
    assert bob.position == 0
    ann.accept(1, 0)
    assert bob.position == 2
    ann.accept(2, 3)
    assert ann.position == 10


def test_a_group_begins_at_the_end_or_at_the_start(world: World) -> None:
    ann = sharing(world)
    put_batch(world, 3)
    late = Sharer(world, "bob", ShareLimits())
    assert late.take() == {}
    put_batch(world, 2)
    assert late.take() == {3: 1, 4: 1}
    assert ann.take() == {}, "the group has begun"


def test_what_is_returned_comes_again_and_after_some_times_no_more(world: World) -> None:
    ann = sharing(world)
    put_batch(world, 3)
    assert ann.take() == {0: 1, 1: 1, 2: 1}
    ann.accept(0, 2)
    for times in range(2, LIMIT + 1):
        ann.give_back(1)
        assert ann.take() == {1: times}
    ann.give_back(1)
    assert ann.take() == {}
    assert ann.position == 3


@pytest.mark.parametrize("limit", [2, 10])
def test_a_group_says_how_often_a_message_is_delivered(world: World, limit: int) -> None:
    ann = sharing(world)
    ann.terms = EARLIEST._replace(deliveries_max=limit)
    put_batch(world, 1)
    for times in range(1, limit):
        assert ann.take() == {0: times}
        ann.give_back(0)
    assert ann.take() == {0: limit}
    world.crash()
    world.advance(200)
    world.end_tick()
    assert ann.take() == {}
    assert ann.position == 1


def test_a_lock_runs_out_unless_it_is_renewed(world: World) -> None:
    ann = sharing(world)
    bob = Sharer(world, "bob")
    put_batch(world, 2)
    ann.take()
    world.advance(LOCK_MS // 2)
    ann.keep(1)
    world.advance(LOCK_MS // 2 + 200)
    world.end_tick()
    assert bob.take() == {0: 2}
    with pytest.raises(LeaseNotFoundError):
        ann.accept(0)
    with pytest.raises(LeaseNotFoundError):
        ann.accept(1, 0)
    ann.accept(1)
    bob.accept(0)
    assert ann.position == 2


def test_nobody_settles_what_another_has_and_then_nothing_is_settled(world: World) -> None:
    ann, bob = sharing(world), Sharer(world, "bob")
    put_batch(world, 2)
    ann.take(1)
    bob.take(1)
    for outcome in Outcome:
        with pytest.raises(LeaseNotFoundError):
            bob.settle(outcome, 1, 0)
    with pytest.raises(LeaseNotFoundError):
        bob.accept(7)
    assert bob.position == 0
    bob.accept(1)


def test_what_a_member_has_that_leaves_may_be_had_as_if_it_had_not_been_given(world: World) -> None:
    ann, bob = sharing(world), Sharer(world, "bob")
    put_batch(world, 4)
    ann.take(2)
    bob.take(1)
    ann.leave()
    assert bob.take() == {0: 1, 1: 1, 3: 1}


def test_who_waits_is_told_when_something_comes_back(world: World) -> None:
    ann, bob = sharing(world), Sharer(world, "bob")
    put_batch(world, 1)
    ann.take()
    held = bob.ask(wait_ms=60_000)
    world.end_tick()
    assert held == []
    ann.give_back(0)
    world.end_tick()
    assert [part.offsets for part in held[0].parts] == [(0,)]


def test_a_group_reads_only_so_far_ahead(world: World) -> None:
    ann, bob = sharing(world), Sharer(world, "bob")
    ann.terms = bob.terms = EARLIEST._replace(window_max=5)
    put_batch(world, 8)
    assert len(ann.take(whole=True)) == 5
    held = bob.ask(wait_ms=60_000)
    world.end_tick()
    ann.accept(1, 2)
    assert held == [], "the first is not done yet"
    ann.give_back(3)
    world.end_tick()
    assert [part.offsets for part in held[0].parts] == [(3,)]
    held = bob.ask(wait_ms=60_000)
    ann.accept(0)
    world.end_tick()
    assert [part.offsets for part in held[0].parts] == [(5, 6, 7)]


def test_acquired_messages_come_again_after_a_crash_with_their_count(world: World) -> None:
    ann = sharing(world)
    put_batch(world, 5)
    ann.take(4)
    ann.accept(1)
    ann.give_back(2)
    assert ann.take(1) == {2: 2}
    world.crash()
    world.advance(200)
    world.end_tick()
    assert ann.take() == {0: 2, 2: 3, 3: 2, 4: 1}
    ann.accept(0, 2, 3, 4)
    world.crash()
    assert ann.position == 5
    assert ann.take() == {}


def test_positions_are_told_moved_and_forgotten(world: World) -> None:
    ann = sharing(world)
    door = world.broker.queues.sharing
    put_batch(world, 6)
    assert door.position(SELF, GROUP, (TOPIC, 0)) is None
    ann.take(4)
    ann.accept(0, 2)
    assert door.position(SELF, GROUP, (TOPIC, 0)) == (1, 4)
    assert door.topics_of(SELF, GROUP) == {TOPIC: [0]}
    door.move(SELF, GROUP, TOPIC, {0: 3})
    assert door.position(SELF, GROUP, (TOPIC, 0)) == (3, 3)
    assert ann.take(1) == {3: 1}
    door.move(SELF, GROUP, TOPIC, {0: 99})
    assert ann.take() == {}
    door.forget(SELF, GROUP, TOPIC)
    assert door.topics_of(SELF, GROUP) == {}
    assert len(ann.take()) == 6


def test_a_group_that_may_not_consume_gets_nothing(world: World) -> None:
    ann = sharing(world)
    config = world.core.groups.require(GROUP)
    world.core.groups.put(type(config)(GROUP, consume_enable=False))
    with pytest.raises(GroupPermissionError):
        ann.take()


def test_a_topic_that_goes_is_left_out(world: World) -> None:
    ann = sharing(world, queues=2)
    put_batch(world, 1, queue_id=1)
    held = ann.ask(wait_ms=1_000, queues=(0, 5))
    world.broker.topics.delete(SELF, TOPIC)
    world.advance(1_200)
    assert [each.parts for each in held] == [()]


# -- against a model -----------------------------------------------------------------------------


class Machine(RuleBasedStateMachine):
    """Random members, returns, time and crashes, beside a dictionary of what is to be had."""

    folder: Path

    @initialize()
    def begin(self) -> None:
        self.world = World(Path(tempfile.mkdtemp(dir=type(self).folder)) / "store")
        sharing(self.world)
        self.members = [Sharer(self.world, name) for name in ("ann", "bob")]
        self.open: dict[int, int] = {}
        """How often what is not finished was handed out; 0, if never."""
        self.out: dict[int, tuple[Sharer, int]] = {}
        self.next = 0

    @rule(count=st.integers(1, 6), is_batch=st.booleans())
    def send(self, count: int, is_batch: bool) -> None:
        if is_batch:
            put_batch(self.world, count)
        else:
            count = 1
            self.world.publish(NewMessage(TOPIC, 0, b"plain"))
            self.world.end_tick()
        self.open |= dict.fromkeys(range(self.next, self.next + count), 0)
        self.next += count

    @rule(number=st.integers(0, 1), count=st.integers(1, 8), whole=st.booleans())
    def take(self, number: int, count: int, whole: bool) -> None:
        taken = self.members[number].take(count, whole=whole)
        free = sorted(set(self.open) - set(self.out))
        assert list(taken) == free[: len(taken)], "the first that are to be had"
        assert len(taken) >= min(count, len(free))
        assert whole or len(taken) <= count
        due_ms = self.world.clock.now_ms() + LOCK_MS
        for offset, times in taken.items():
            self.open[offset] += 1
            assert times == self.open[offset]
            self.out[offset] = self.members[number], due_ms

    @precondition(lambda self: self.out)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def settle(self, data: st.DataObject, outcome: Outcome) -> None:
        offset = data.draw(st.sampled_from(sorted(self.out)))
        member, _ = self.out[offset]
        member.settle(outcome, offset)
        if outcome is Outcome.DONE:
            del self.open[offset], self.out[offset]
        elif outcome is Outcome.KEPT:
            self.out[offset] = member, self.world.clock.now_ms() + LOCK_MS
        else:
            self.open[offset] -= outcome is Outcome.UNTOLD
            self._comes_back(offset)

    def _comes_back(self, offset: int) -> None:
        del self.out[offset]
        if self.open[offset] >= LIMIT:
            del self.open[offset]

    @rule(number=st.integers(0, 1))
    def leave(self, number: int) -> None:
        self.members[number].leave()
        for offset in [
            each for each, (member, _) in self.out.items() if member.name == _name(number)
        ]:
            del self.out[offset]
            self.open[offset] -= 1

    @rule(ms=st.sampled_from([1_000, LOCK_MS // 3, LOCK_MS]))
    def pass_time(self, ms: int) -> None:
        self.world.advance(ms)
        self.world.advance(200)
        self.world.end_tick()
        now_ms = self.world.clock.now_ms()
        for offset in [each for each, (_, due_ms) in self.out.items() if due_ms + 100 <= now_ms]:
            self._comes_back(offset)
        # What is due within a tick of the clock may be back or not: it is returned for sure.
        for offset in [each for each, (_, due_ms) in self.out.items() if due_ms <= now_ms]:
            with_whom = self.out[offset][0]
            try:
                with_whom.give_back(offset)
            except LeaseNotFoundError:
                pass
            self._comes_back(offset)

    @rule(is_clean=st.booleans())
    def restart(self, is_clean: bool) -> None:
        (self.world.restart if is_clean else self.world.crash)()
        self.world.advance(200)
        self.world.end_tick()
        for offset in list(self.out):
            self._comes_back(offset)

    @invariant()
    def the_position_is_the_first_that_is_not_finished(self) -> None:
        if hasattr(self, "world"):
            found = self.members[0].position
            assert found is None or found == min(self.open, default=self.next)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()


def _name(number: int) -> str:
    return ("ann", "bob")[number]


def test_share_groups_keep_to_the_model(tmp_path: Path) -> None:
    class Placed(Machine):
        folder = tmp_path

    run_state_machine_as_test(
        Placed, settings=settings(max_examples=30, stateful_step_count=30, deadline=None)
    )
