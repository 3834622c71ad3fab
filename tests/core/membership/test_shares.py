"""Share groups: who takes messages from which partitions, as members come and go."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.clock import ManualClock
from onelog.core.access import SELF
from onelog.core.membership.classic import Joining
from onelog.core.membership.consumers import JOIN_EPOCH, LEAVE_EPOCH, SESSION_MS, Beat, Beaten
from onelog.core.membership.shares import SHARE_MEMBERS_MAX, ShareGroups, shared
from onelog.errors import (
    FencedMemberEpochError,
    GroupFullError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InconsistentProtocolError,
    UnknownMemberError,
)
from tests.core.world import ManualTimer, World


class Room:
    """Groups, topics, and a clock to move."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timer = ManualTimer(self.clock)
        self.topics = {"orders": 2}
        self.lost: list[tuple[str, str]] = []
        ids = count(1)
        self.groups = ShareGroups(
            self.clock,
            self.timer.schedule,
            lambda: f"m{next(ids)}",
            lambda: self.topics,
            lambda group: None,
        )
        self.groups.on_lost = lambda group, member: self.lost.append((group, member))

    def beat(self, member: str, epoch: int, *topics: str) -> Beaten:
        return self.groups.heartbeat(beat_of(member, epoch, *topics))


def beat_of(member: str, epoch: int, *topics: str) -> Beat:
    return Beat("sharers", member, epoch, rebalance_ms=0, topics=topics or None, owned=())


def numbers(beaten: Beaten) -> list[int]:
    assert beaten.assigned is not None
    return sorted(number for _, number in beaten.assigned)


def test_a_second_member_gets_its_part_at_once(room: Room) -> None:
    first = room.beat("a", JOIN_EPOCH, "orders")
    assert numbers(first) == [0, 1]
    second = room.beat("b", JOIN_EPOCH, "orders")
    assert numbers(second) == [1]
    again = room.beat("a", first.epoch)
    assert numbers(again) == [0]
    assert again.epoch == second.epoch
    assert numbers(room.beat("a", first.epoch)) == [0], "the answer may have been lost"
    with pytest.raises(FencedMemberEpochError):
        room.beat("a", 99)


def test_topics_grow_and_members_outnumber_partitions(room: Room) -> None:
    epochs = {name: room.beat(name, JOIN_EPOCH, "orders").epoch for name in "abc"}

    def parts() -> list[int]:
        found: list[int] = []
        for name in epochs:
            beaten = room.beat(name, epochs[name])
            epochs[name] = beaten.epoch
            found += numbers(beaten)
        return sorted(found)

    assert parts() == [0, 0, 1]
    room.topics["orders"] = 5
    assert parts() == [*range(5)]


def test_who_is_silent_is_told_of_and_who_leaves_is_not(room: Room) -> None:
    room.beat("a", JOIN_EPOCH, "orders")
    room.beat("b", JOIN_EPOCH, "orders")
    assert room.beat("a", LEAVE_EPOCH).epoch == LEAVE_EPOCH
    assert numbers(room.beat("b", room.groups.groups["sharers"].members["b"].epoch)) == [0, 1]
    with pytest.raises(GroupNotEmptyError):
        room.groups.delete("sharers")
    room.timer.advance(SESSION_MS + 200)
    assert room.lost == [("sharers", "b")]
    with pytest.raises(UnknownMemberError):
        room.beat("b", 3)
    room.groups.delete("sharers")
    assert room.groups.groups == {}


def test_a_group_has_a_limit(room: Room) -> None:
    for number in range(SHARE_MEMBERS_MAX):
        room.beat(f"m{number}", JOIN_EPOCH, "orders")
    with pytest.raises(GroupFullError):
        room.beat("one more", JOIN_EPOCH, "orders")


@given(
    st.dictionaries(st.text("xyz", min_size=1), st.lists(st.sampled_from("abc"), unique=True)),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 7)),
)
def test_all_partitions_and_all_members_are_served(
    subscriptions: dict[str, list[str]], partitions: dict[str, int]
) -> None:
    shares = shared(subscriptions, partitions)
    for member, share in shares.items():
        assert {topic for topic, _ in share} <= set(subscriptions[member])
        assert share or not set(subscriptions[member]) & set(partitions)
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    served = {place for share in shares.values() for place in share}
    assert served == {
        (topic, number) for topic in wanted & set(partitions) for number in range(partitions[topic])
    }


def test_a_group_is_of_one_kind_while_it_has_members(world: World) -> None:
    world.topic("orders", 2)
    coordinator = world.broker.groups.coordinator
    coordinator.beat_share(SELF, beat_of("a", JOIN_EPOCH, "orders"))
    joining = Joining(
        "sharers", "", None, "c", "/h", 6_000, 6_000, "consumer", [("range", b"")], False, False
    )
    with pytest.raises(InconsistentProtocolError):
        coordinator.join(SELF, joining, lambda joined, error: None)
    with pytest.raises(InconsistentProtocolError):
        coordinator.beat(SELF, beat_of("b", JOIN_EPOCH, "orders"))
    coordinator.beat_share(SELF, beat_of("a", LEAVE_EPOCH))
    beaten = coordinator.beat(SELF, beat_of("b", JOIN_EPOCH, "orders"))
    with pytest.raises(GroupNotFoundError):
        coordinator.beat_share(SELF, beat_of("a", JOIN_EPOCH, "orders"))
    assert coordinator.share_group(SELF, "sharers") is None
    coordinator.beat(SELF, beat_of("b", LEAVE_EPOCH))
    again = coordinator.beat_share(SELF, beat_of("a", JOIN_EPOCH, "orders"))
    assert again.epoch > 0 < beaten.epoch
    world.restart()
    coordinator = world.broker.groups.coordinator
    (listed,) = coordinator.listed(SELF)
    assert listed == ("sharers", "share", "share", "Stable")
    coordinator.beat_share(SELF, beat_of("a", LEAVE_EPOCH))
    coordinator.delete(SELF, "sharers")
    assert coordinator.listed(SELF) == []


@pytest.fixture
def room() -> Room:
    return Room()
