"""Members of both of Kafka's protocols in one group: they share, and never have the same."""

import struct
from random import Random

import pytest

from onelog.core.access import SELF
from onelog.core.membership.assignors import Partition
from onelog.core.membership.classic import Joined, Joining, Synced
from onelog.core.membership.consumers import JOIN_EPOCH, LEAVE_EPOCH, Beat
from onelog.core.membership.coordinator import CommittingMember, Position
from onelog.core.membership.mixed import assigned_in, assignment, subscription
from onelog.errors import (
    FencedInstanceError,
    GroupNotFoundError,
    IllegalGenerationError,
    InconsistentProtocolError,
    MemberIdRequiredError,
    OnelogError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from tests.core.world import World

GROUP = "readers"


def said(topics: list[str], owned: frozenset[Partition] = frozenset()) -> bytes:
    """What a consumer says of itself, in version 1."""
    names = [struct.pack(">h", len(each)) + each.encode() for each in topics]
    has = assignment(owned)[2:-4]
    return struct.pack(">hi", 1, len(names)) + b"".join(names) + struct.pack(">i", -1) + has


class Classic:
    """A consumer of the classic protocol; a cooperative one keeps what it has while it joins."""

    def __init__(
        self, world: World, name: str, *, keeps: bool = False, instance_id: str | None = None
    ) -> None:
        self.world, self.name, self.keeps, self.instance_id = world, name, keeps, instance_id
        self.id, self.generation = "", -1
        self.owned: frozenset[Partition] = frozenset()
        self.must_join, self.is_waiting = True, False

    @property
    def member(self) -> CommittingMember:
        return CommittingMember(self.id, self.generation, self.instance_id)

    def step(self) -> None:
        """Join if that is due, else send a heartbeat."""
        coordinator = self.world.broker.groups.coordinator
        if self.is_waiting:
            return
        if not self.must_join:
            try:
                coordinator.heartbeat(SELF, GROUP, self.member)
            except RebalanceInProgressError:
                self.must_join = True
            except (UnknownMemberError, IllegalGenerationError) as error:
                self.lose(error)
            return
        if not self.keeps:
            self.owned = frozenset()
        joining = Joining(
            GROUP,
            self.id,
            self.instance_id,
            self.name,
            "h",
            10_000,
            10_000,
            "consumer",
            [("range", said(["orders"], self.owned))],
            needs_known_id=True,
        )
        self.is_waiting = True
        try:
            coordinator.join(SELF, joining, self.joined)
        except MemberIdRequiredError as error:
            self.id, self.is_waiting = str(error), False
        except OnelogError as error:
            self.joined(None, error)

    def lose(self, error: OnelogError | None) -> None:
        self.owned, self.must_join = frozenset(), True
        if isinstance(error, UnknownMemberError):
            self.id = ""

    def joined(self, joined: Joined | None, error: OnelogError | None) -> None:
        self.is_waiting = False
        if joined is None:
            if not isinstance(error, RebalanceInProgressError):
                self.lose(error)
            return
        self.id, self.generation, self.must_join = joined.member_id, joined.generation, False
        parts = []
        if joined.members:
            everybody = sorted(each[0] for each in joined.members)
            for place, member_id in enumerate(everybody):
                share = [("orders", each) for each in range(place, 6, len(everybody))]
                parts.append((member_id, assignment(share)))
        self.is_waiting = True
        try:
            self.world.broker.groups.coordinator.sync(
                SELF, GROUP, self.member, "consumer", joined.protocol, parts, self.synced
            )
        except OnelogError as failed:
            self.synced(None, failed)

    def synced(self, synced: Synced | None, error: OnelogError | None) -> None:
        self.is_waiting = False
        if synced is None:
            self.must_join = True
            return
        gets = assigned_in(synced.assignment)
        self.must_join = self.keeps and not gets.issuperset(self.owned)
        self.owned = gets

    def leave(self) -> None:
        self.world.broker.groups.coordinator.leave(SELF, GROUP, self.member)


class Newer:
    """A consumer of the newer protocol."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.id = world, name
        self.epoch = JOIN_EPOCH
        self.owned: frozenset[Partition] = frozenset()

    def step(self) -> None:
        joins = self.epoch == JOIN_EPOCH
        beat = Beat(
            GROUP,
            self.id,
            self.epoch,
            None,
            None,
            10_000 if joins else None,
            ["orders"] if joins else None,
            None,
            None,
            self.owned,
        )
        beaten = self.world.broker.groups.coordinator.beat(SELF, beat)
        self.epoch = beaten.epoch
        if beaten.assigned is not None:
            self.owned = beaten.assigned

    def leave(self) -> None:
        self.world.broker.groups.coordinator.beat(SELF, Beat(GROUP, self.id, LEAVE_EPOCH))


@pytest.fixture
def orders(world: World) -> World:
    world.topic("orders", 6)
    return world


Consumers = list[Classic | Newer]


def settle(members: Consumers) -> None:
    """Everybody goes on until all have their part."""
    for _ in range(30):
        for member in members:
            member.step()
            check(members)
    owned = [each for member in members for each in member.owned]
    assert sorted(owned) == [("orders", each) for each in range(6)], "all of it, and nothing twice"
    assert all(member.owned for member in members)


def check(members: Consumers) -> None:
    """Members that are not asked to join have nothing that another one has."""
    owned = [each for member in members for each in member.owned]
    assert len(owned) == len(set(owned))


def state(world: World) -> str:
    coordinator = world.broker.groups.coordinator
    group = coordinator.consumer_group(SELF, GROUP)
    return "newer" if group is not None and group.members else "classic"


@pytest.mark.parametrize("keeps", [False, True])
def test_a_group_changes_over_one_by_one_and_back(orders: World, keeps: bool) -> None:
    members: Consumers = [Classic(orders, f"c{each}", keeps=False) for each in range(2)]
    settle(members)
    assert state(orders) == "classic"
    for place in range(2):
        members.append(Newer(orders, f"n{place}"))
        settle(members)
        assert state(orders) == "newer"
        members.pop(0).leave()
        settle(members)
    for place in range(2):
        members.append(Classic(orders, f"d{place}", keeps=keeps))
        settle(members)
        members.pop(0).leave()
        settle(members)
    assert state(orders) == "classic"


@pytest.mark.parametrize("seed", range(8))
def test_whoever_comes_and_goes_nobody_has_what_another_one_has(orders: World, seed: int) -> None:
    random = Random(seed)
    members: Consumers = []
    names = iter(range(1_000))
    for _ in range(60):
        if len(members) < 2 or (len(members) < 5 and random.random() < 0.15):
            name = f"m{next(names)}"
            is_newer = random.random() < 0.5
            members.append(Newer(orders, name) if is_newer else Classic(orders, name, keeps=True))
        elif random.random() < 0.1:
            leaving = random.choice(members)
            if not isinstance(leaving, Classic) or leaving.generation > 0:
                if isinstance(leaving, Newer) and leaving.epoch == JOIN_EPOCH:
                    continue
                try:
                    leaving.leave()
                except UnknownMemberError:
                    continue
                members.remove(leaving)
        for member in random.sample(members, len(members)):
            member.step()
    settle(members)


def test_a_static_member_comes_back_in_another_process(orders: World) -> None:
    newer, old = Newer(orders, "n"), Classic(orders, "c", instance_id="one")
    settle([newer, old])
    again = Classic(orders, "c", instance_id="one")
    again.step()
    with pytest.raises(FencedInstanceError):
        orders.broker.groups.coordinator.heartbeat(SELF, GROUP, old.member)
    settle([newer, again])
    orders.broker.groups.coordinator.leave(SELF, GROUP, CommittingMember("", -1, "one"))
    settle([newer])


def test_a_silent_classic_member_is_given_up(orders: World) -> None:
    newer, silent = Newer(orders, "n"), Classic(orders, "c")
    settle([newer, silent])
    for _ in range(3):
        orders.advance(4_000)
        newer.step()
    settle([newer])


def test_positions_are_committed_by_members_of_both_kinds(orders: World) -> None:
    newer, classic = Newer(orders, "n"), Classic(orders, "c")
    settle([newer, classic])
    coordinator, positions = orders.broker.groups.coordinator, {"orders": {0: Position(3)}}
    for member in (classic.member, CommittingMember("n", newer.epoch)):
        coordinator.commit(SELF, GROUP, member, positions, lambda error: None)
    stale = CommittingMember(classic.id, classic.generation - 1)
    with pytest.raises(IllegalGenerationError):
        coordinator.commit(SELF, GROUP, stale, positions, lambda error: None)


def test_a_member_may_change_its_protocol_and_keep_its_id(orders: World) -> None:
    newer, classic = Newer(orders, "n"), Classic(orders, "c")
    settle([newer, classic])
    changed = Newer(orders, classic.id)
    settle([newer, changed])
    newer.leave()
    settle([changed])
    assert state(orders) == "newer"


def test_members_that_speak_other_words_stay_among_themselves(orders: World) -> None:
    coordinator = orders.broker.groups.coordinator
    joining = Joining(GROUP, "", None, "c", "h", 10_000, 10_000, "connect", [("sessioned", b"x")])
    coordinator.join(SELF, joining, lambda joined, error: None)
    with pytest.raises(GroupNotFoundError):
        Newer(orders, "n").step()
    assert coordinator.classic_group(SELF, GROUP) is not None
    newer = Newer(orders, "n")
    coordinator.beat(SELF, Beat("others", "n", JOIN_EPOCH, None, None, 10_000, ["orders"]))
    with pytest.raises(InconsistentProtocolError):
        coordinator.join(SELF, joining._replace(group="others"), lambda joined, error: None)
    assert newer.owned == frozenset()


def test_what_consumers_say_is_read_as_it_was_written() -> None:
    owned = frozenset({("a", 1), ("a", 2), ("b", 0)})
    assert subscription(said(["b", "a"], owned)) == (("a", "b"), owned)
    assert subscription(struct.pack(">hi", 0, 0)) == ((), frozenset())
    assert assigned_in(assignment(owned)) == owned
    assert assigned_in(b"") == frozenset()
    whole = said(["orders"], owned)
    for cut in range(len(whole)):
        with pytest.raises(InconsistentProtocolError):
            subscription(whole[:cut])
