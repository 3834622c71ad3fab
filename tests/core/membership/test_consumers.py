"""Groups whose partitions the broker shares out: one by one, and as members that come and go."""

from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.clock import ManualClock
from onelog.core.membership.assignors import ASSIGNORS, Partition
from onelog.core.membership.consumers import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Beat,
    Beaten,
    ConsumerGroup,
    ConsumerGroups,
    kept,
)
from onelog.errors import (
    FencedMemberEpochError,
    GroupNotEmptyError,
    InvalidRegexError,
    InvalidRequestError,
    OnelogError,
    StaleMemberEpochError,
    UnknownMemberError,
    UnreleasedInstanceError,
    UnsupportedAssignorError,
)
from tests.core.world import ManualTimer


class Room:
    """Groups, topics, and a clock to move."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timer = ManualTimer(self.clock)
        self.topics = {"orders": 4}
        self._kept: dict[str, Any] = {"epoch": 0, "members": {}}
        self.groups = self._made()

    def _made(self) -> ConsumerGroups:
        ids = count(1)
        return ConsumerGroups(
            self.clock,
            self.timer.schedule,
            lambda: f"member-{next(ids)}",
            lambda: self.topics,
            self._keep,
        )

    def _keep(self, group: ConsumerGroup) -> None:
        if group is not self.groups.groups.get("g"):
            return  # A timer of before the restart.
        self._kept["epoch"] = group.epoch
        for name in group.touched:
            self._kept["members"].pop(name, None)
            if name in group.members:
                self._kept["members"][name] = kept(group.members[name])
        group.touched.clear()

    def restart(self) -> None:
        """Go on with what was recorded, and nothing else."""
        self.groups = self._made()
        self.groups.restore("g", self._kept)


class Client:
    """A consumer, as Kafka's clients behave."""

    def __init__(self, room: Room, name: str, instance_id: str | None = None) -> None:
        self.room, self.name, self.instance_id = room, name, instance_id
        self.epoch = JOIN_EPOCH
        self.owned: frozenset[Partition] = frozenset()

    def beat(self, *topics: str, lose_answer: bool = False) -> Beaten | None:
        joins = self.epoch == JOIN_EPOCH
        try:
            beaten = self.room.groups.heartbeat(
                Beat(
                    "g",
                    self.name,
                    self.epoch,
                    self.instance_id,
                    rebalance_ms=60_000 if joins else None,
                    topics=topics or (["orders"] if joins else None),
                    owned=self.owned,
                )
            )
        except (UnknownMemberError, FencedMemberEpochError):
            self.epoch, self.owned = JOIN_EPOCH, frozenset()
            return None
        if not lose_answer:
            self.epoch = beaten.epoch
            if beaten.assigned is not None:
                self.owned = beaten.assigned
        return beaten

    def leave(self, epoch: int = LEAVE_EPOCH) -> None:
        self.owned = frozenset()
        self.room.groups.heartbeat(Beat("g", self.name, epoch, self.instance_id))
        self.epoch = JOIN_EPOCH


@pytest.fixture
def room() -> Room:
    return Room()


def settle(*clients: Client) -> None:
    for _ in range(4):
        for client in clients:
            client.beat()


def test_a_single_member_gets_everything(room: Room) -> None:
    client = Client(room, "a")
    client.beat()
    assert client.owned == {("orders", number) for number in range(4)}
    assert room.groups.groups["g"].state == "Stable"


def test_a_second_member_gets_half_once_the_first_has_given_it_up(room: Room) -> None:
    first, second = Client(room, "a"), Client(room, "b")
    first.beat()
    second.beat()
    assert second.owned == frozenset()
    first.beat()
    assert len(first.owned) == 2
    second.beat()
    assert second.owned == frozenset()
    first.beat()
    second.beat()
    assert len(second.owned) == 2
    assert not first.owned & second.owned


def test_what_a_member_leaves_behind_goes_to_the_others(room: Room) -> None:
    first, second = Client(room, "a"), Client(room, "b")
    settle(first, second)
    first.leave()
    settle(second)
    assert len(second.owned) == 4


def test_a_silent_member_is_given_up(room: Room) -> None:
    first, second = Client(room, "a"), Client(room, "b")
    settle(first, second)
    for _ in range(10):
        room.timer.advance(5_000)
        second.beat()
    assert len(second.owned) == 4
    assert first.beat() is None
    settle(first, second)
    assert len(first.owned) == 2


def test_a_member_that_does_not_give_up_in_time_is_out(room: Room) -> None:
    first, second = Client(room, "a"), Client(room, "b")
    first.beat()
    second.beat()
    first.beat()
    kept = frozenset(("orders", number) for number in range(4))
    for _ in range(14):
        room.timer.advance(5_000)
        first.owned = kept
        first.beat()
        second.beat()
    assert second.owned


def test_a_topic_that_grows_is_shared_out_anew(room: Room) -> None:
    client = Client(room, "a")
    client.beat()
    room.topics = {"orders": 6, "other": 3}
    client.beat()
    assert len(client.owned) == 6


def test_a_pattern_finds_topics_that_come_later(room: Room) -> None:
    beat = Beat("g", "a", 0, rebalance_ms=1_000, regex="or.*", owned=())
    assert len(room.groups.heartbeat(beat).assigned or ()) == 4
    room.topics = {"orders": 4, "origins": 2, "more-orders": 1}
    epoch = room.groups.groups["g"].members["a"].epoch
    assert len(room.groups.heartbeat(Beat("g", "a", epoch)).assigned or ()) == 6


def test_an_answer_that_was_lost_is_given_again(room: Room) -> None:
    first, second = Client(room, "a"), Client(room, "b")
    settle(first, second)
    second.leave()
    first.beat(lose_answer=True)
    first.beat()
    assert len(first.owned) == 4


def test_another_epoch_is_fenced(room: Room) -> None:
    Client(room, "a").beat()
    with pytest.raises(FencedMemberEpochError):
        room.groups.heartbeat(Beat("g", "a", 9))


def test_offsets_are_taken_at_the_members_epoch_only(room: Room) -> None:
    client = Client(room, "a")
    client.beat()
    room.groups.check_commit("g", "a", client.epoch)
    with pytest.raises(StaleMemberEpochError):
        room.groups.check_commit("g", "a", client.epoch + 1)
    with pytest.raises(UnknownMemberError):
        room.groups.check_commit("g", "b", client.epoch)


def test_a_static_member_that_is_away_keeps_its_partitions(room: Room) -> None:
    client, other = Client(room, "a", "till-1"), Client(room, "b", "till-2")
    settle(client, other)
    had = client.owned
    with pytest.raises(UnreleasedInstanceError):
        room.groups.heartbeat(
            Beat("g", "c", 0, "till-1", rebalance_ms=1_000, topics=["orders"], owned=())
        )
    client.leave(AWAY_EPOCH)
    settle(other)
    assert not other.owned & had
    back = Client(room, "c", "till-1")
    settle(back, other)
    assert back.owned == had


def test_members_go_on_after_a_restart_at_the_epochs_that_they_had(room: Room) -> None:
    first, second, away = Client(room, "a"), Client(room, "b"), Client(room, "c", "till-1")
    settle(first, second)
    room.restart()
    beaten = first.beat()
    assert beaten == Beaten("a", first.epoch, first.owned)
    assert room.groups.groups["g"].state == "Stable"
    room.groups.check_commit("g", "b", second.epoch)
    settle(away, first, second)
    had = away.owned
    away.leave(AWAY_EPOCH)
    room.restart()
    back = Client(room, "d", "till-1")
    settle(first, second, back)
    assert back.owned == had
    room.restart()
    room.timer.advance(50_000)
    assert first.beat() is None, "it was silent for too long"


def test_a_member_that_gives_up_nothing_after_a_restart_is_out_in_time(room: Room) -> None:
    first, second = Client(room, "a"), Client(room, "b")
    first.beat()
    second.beat()
    first.beat()
    room.restart()
    all_of_it = frozenset(("orders", number) for number in range(4))
    for _ in range(14):
        room.timer.advance(5_000)
        first.owned = all_of_it
        first.beat()
        second.beat()
    assert second.owned


def test_bad_heartbeats_say_what_is_wrong(room: Room) -> None:
    with pytest.raises(InvalidRequestError):
        room.groups.heartbeat(Beat("g", "a", 0))
    with pytest.raises(UnsupportedAssignorError):
        room.groups.heartbeat(Beat("g", "a", 0, rebalance_ms=1, topics=["t"], assignor="magic"))
    with pytest.raises(InvalidRegexError):
        room.groups.heartbeat(Beat("g", "a", 0, rebalance_ms=1, regex="(", owned=()))
    with pytest.raises(UnknownMemberError):
        room.groups.heartbeat(Beat("g", "a", 1))
    assert "g" not in room.groups.groups or not room.groups.groups["g"].partitions


def test_a_group_is_deleted_when_nobody_is_in_it(room: Room) -> None:
    client = Client(room, "a")
    client.beat()
    with pytest.raises(GroupNotEmptyError):
        room.groups.delete("g")
    client.leave()
    room.groups.delete("g")
    assert not room.groups.groups


@given(seed=st.integers(0, 2**32), steps=st.integers(10, 80))
def test_no_partition_ever_has_two_owners_and_all_have_one_in_the_end(
    seed: int, steps: int
) -> None:
    room, random = Room(), Random(seed)
    clients = [Client(room, name) for name in "abcde"]
    away: set[Client] = set()
    for _ in range(steps):
        client = random.choice(clients)
        action = random.random()
        if action < 0.7:
            away.discard(client)
            client.beat(lose_answer=random.random() < 0.1)
        elif action < 0.8 and client.epoch > 0:
            away.add(client)
            try:
                client.leave()
            except OnelogError:
                client.epoch = JOIN_EPOCH
        elif action < 0.85:
            room.restart()
        elif action < 0.9:
            room.topics = {"orders": random.randrange(1, 9), "more": random.randrange(0, 3)}
        else:
            room.timer.advance(random.randrange(0, 20_000))
            # Clients give up what they have when their own session is over.
            known = room.groups.groups["g"].members if room.groups.groups else {}
            for each in clients:
                if each.name not in known:
                    each.epoch, each.owned = JOIN_EPOCH, frozenset()
        owned = [partition for each in clients for partition in each.owned]
        assert len(owned) == len(set(owned))
    for _ in range(8):
        for client in clients:
            client.beat()
    owned = sorted(partition for each in clients for partition in each.owned)
    assert owned == [("orders", number) for number in range(room.topics["orders"])]


SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.sampled_from("xyz"), max_size=3, unique=True), max_size=6
)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(
    subscriptions=SUBSCRIPTIONS,
    partitions=st.fixed_dictionaries(dict.fromkeys("xyz", st.integers(0, 7))),
    before=SUBSCRIPTIONS,
)
def test_every_partition_goes_to_one_subscriber(
    name: str,
    subscriptions: dict[str, list[str]],
    partitions: dict[str, int],
    before: dict[str, list[str]],
) -> None:
    owners = {
        partition: member
        for member, share in ASSIGNORS[name](before, partitions, {}).items()
        for partition in share
    }
    shares = ASSIGNORS[name](subscriptions, partitions, owners)
    given = sorted(partition for share in shares.values() for partition in share)
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert given == sorted(
        (topic, number) for topic in wanted for number in range(partitions[topic])
    )
    assert all(
        topic in subscriptions[member] for member, share in shares.items() for topic, _ in share
    )


@given(members=st.integers(1, 7), partitions=st.integers(0, 30), gone=st.integers(0, 6))
def test_uniform_shares_differ_by_one_and_stay_where_they_are(
    members: int, partitions: int, gone: int
) -> None:
    names = [f"m{number}" for number in range(members)]
    shares = ASSIGNORS["uniform"]({name: ["x"] for name in names}, {"x": partitions}, {})
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    owners = {partition: name for name, share in shares.items() for partition in share}
    left = [name for name in names if name != f"m{gone}"]
    if left:
        after = ASSIGNORS["uniform"]({name: ["x"] for name in left}, {"x": partitions}, owners)
        assert max(map(len, after.values())) - min(map(len, after.values())) <= 1
        assert all(shares[name] <= after[name] for name in left)
