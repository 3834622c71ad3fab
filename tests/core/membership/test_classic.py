"""Kafka's classic groups, in a world whose clock stands still until it is moved."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from onelog.clock import ManualClock
from onelog.core.membership.classic import ClassicGroups, GroupState, Joined, Joining, Synced, kept
from onelog.errors import (
    FencedInstanceError,
    GroupFullError,
    GroupNotEmptyError,
    IllegalGenerationError,
    InconsistentProtocolError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    OnelogError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from tests.core.world import ManualTimer

RANGE = (("range", b"wants orders"),)


@dataclass
class Answers:
    """What a callback was called with."""

    values: list[Any] = field(default_factory=list)
    errors: list[OnelogError] = field(default_factory=list)

    def __call__(self, value: Any, error: OnelogError | None) -> None:
        if error is None:
            self.values.append(value)
        else:
            self.errors.append(error)

    @property
    def joined(self) -> Joined:
        assert len(self.values) == 1
        assert isinstance(self.values[0], Joined)
        return self.values[0]

    @property
    def part(self) -> bytes:
        assert len(self.values) == 1
        assert isinstance(self.values[0], Synced)
        return self.values[0].assignment


class Room:
    """Groups, and a clock to move."""

    def __init__(self, members_max: int = 100) -> None:
        self.clock = ManualClock()
        self.timer = ManualTimer(self.clock)
        self.settled: list[tuple[str, int]] = []
        ids = count(1)
        self.groups = ClassicGroups(
            self.clock,
            self.timer.schedule,
            lambda: str(next(ids)),
            lambda group: self.settled.append((group.state.value, group.generation)),
            members_max=members_max,
        )

    def join(self, member_id: str = "", **changes: Any) -> Answers:
        answers = Answers()
        usual = Joining("g", member_id, None, "app", "127.0.0.1", 10_000, 60_000, "consumer", RANGE)
        self.groups.join(usual._replace(**changes), answers)
        return answers

    def sync(self, joined: Joined, **parts: bytes) -> Answers:
        answers = Answers()
        self.groups.sync(
            "g",
            joined.generation,
            joined.member_id,
            None,
            "consumer",
            None,
            [(name.replace("_", "-"), part) for name, part in parts.items()],
            answers,
        )
        return answers

    def two(self) -> tuple[Joined, Joined]:
        """Two members in generation 2, settled."""
        first = self.join().joined
        self.sync(first, app_1=b"all")
        second = self.join()
        again = self.join(first.member_id)
        leader = again.joined
        other = self.sync(second.joined)
        assert self.sync(leader, app_1=b"left", app_2=b"right").part == b"left"
        assert other.part == b"right"
        return leader, second.joined

    def state(self) -> GroupState:
        return self.groups.groups["g"].state


@pytest.fixture
def room() -> Room:
    return Room()


def test_the_first_member_leads_and_shares_out(room: Room) -> None:
    joined = room.join().joined
    assert joined == Joined(
        1, "consumer", "range", "app-1", "app-1", [("app-1", None, b"wants orders")]
    )
    assert room.state() is GroupState.COMPLETING
    assert room.sync(joined, app_1=b"all").part == b"all"
    assert room.state() is GroupState.STABLE
    assert room.settled == [("Stable", 1)]


def test_a_second_member_waits_until_the_first_has_joined_again(room: Room) -> None:
    first = room.join().joined
    room.sync(first, app_1=b"all")
    second = room.join()
    assert not second.values
    with pytest.raises(RebalanceInProgressError):
        room.groups.heartbeat("g", 1, first.member_id, None)
    again = room.join(first.member_id)
    assert again.joined.generation == second.joined.generation == 2
    assert [member for member, _, _ in again.joined.members] == ["app-1", "app-2"]
    assert not second.joined.members
    assert second.joined.leader == "app-1"


def test_followers_wait_for_what_the_leader_decides(room: Room) -> None:
    room.two()
    assert room.state() is GroupState.STABLE
    assert room.settled == [("Stable", 1), ("Stable", 2)]


def test_a_silent_member_is_given_up_after_its_session_time(room: Room) -> None:
    leader, other = room.two()
    room.timer.advance(9_000)
    room.groups.heartbeat("g", 2, leader.member_id, None)
    room.timer.advance(1_500)
    with pytest.raises(RebalanceInProgressError):
        room.groups.heartbeat("g", 2, leader.member_id, None)
    with pytest.raises(UnknownMemberError):
        room.groups.heartbeat("g", 2, other.member_id, None)
    assert room.join(leader.member_id).joined.generation == 3


def test_whoever_does_not_join_again_in_time_is_out(room: Room) -> None:
    leader, other = room.two()
    waiting = room.join(leader.member_id, protocols=(("range", b"wants more"),), session_ms=60_000)
    for _ in range(7):
        room.timer.advance(9_000)
        try:
            room.groups.heartbeat("g", 2, other.member_id, None)
        except OnelogError:
            pass
    assert waiting.joined.generation == 3
    assert [member for member, _, _ in waiting.joined.members] == [leader.member_id]


def test_a_follower_that_joins_again_unchanged_gets_the_generation_as_it_is(room: Room) -> None:
    leader, other = room.two()
    assert room.join(other.member_id).joined.generation == 2
    assert room.state() is GroupState.STABLE
    assert not room.join(leader.member_id).values
    assert room.state() is GroupState.PREPARING


def test_a_leader_that_never_shares_out_is_given_up(room: Room) -> None:
    first = room.join().joined
    second = room.join()
    room.join(first.member_id)
    waiting = room.sync(second.joined)
    for _ in range(8):
        room.timer.advance(8_000)
        try:
            room.groups.heartbeat("g", 2, first.member_id, None)
        except OnelogError:
            break
    assert [type(error) for error in waiting.errors] == [RebalanceInProgressError]


def test_a_new_client_may_be_told_its_id_first(room: Room) -> None:
    with pytest.raises(MemberIdRequiredError) as told:
        room.join(needs_known_id=True)
    member_id = str(told.value)
    assert room.join(member_id, needs_known_id=True).joined.member_id == member_id


def test_a_group_waits_for_a_client_that_was_told_its_id(room: Room) -> None:
    with pytest.raises(MemberIdRequiredError):
        room.join(needs_known_id=True)
    other = room.join()
    assert not other.values
    room.timer.advance(10_200)
    assert other.joined.generation == 1


@pytest.mark.parametrize("session_ms", [0, 5_999, 1_800_001])
def test_a_session_time_has_limits(room: Room, session_ms: int) -> None:
    with pytest.raises(InvalidSessionTimeoutError):
        room.join(session_ms=session_ms)


def test_members_need_a_protocol_in_common(room: Room) -> None:
    room.join()
    with pytest.raises(InconsistentProtocolError):
        room.join(protocols=(("sticky", b""),))
    with pytest.raises(InconsistentProtocolError):
        room.join(protocol_type="connect")
    assert room.join(protocols=(("sticky", b""), ("range", b""))).errors == []


def test_the_protocol_that_most_like_is_chosen(room: Room) -> None:
    both = (("sticky", b""), ("range", b""))
    first = room.join(protocols=(("range", b""), ("sticky", b"")))
    second, third = room.join(protocols=both), room.join(protocols=both)
    room.join(first.joined.member_id, protocols=(("range", b""), ("sticky", b"")))
    assert second.joined.protocol == third.joined.protocol == "sticky"


def test_an_unknown_member_has_to_join_without_an_id(room: Room) -> None:
    with pytest.raises(UnknownMemberError):
        room.join("somebody")
    room.join()
    with pytest.raises(UnknownMemberError):
        room.join("somebody")
    with pytest.raises(UnknownMemberError):
        room.groups.heartbeat("g", 1, "somebody", None)


def test_another_generation_is_refused(room: Room) -> None:
    leader, _ = room.two()
    with pytest.raises(IllegalGenerationError):
        room.groups.heartbeat("g", 1, leader.member_id, None)
    with pytest.raises(IllegalGenerationError):
        room.sync(leader._replace(generation=1))
    with pytest.raises(IllegalGenerationError):
        room.groups.check_commit("g", 1, leader.member_id, None)


def test_leaving_gives_the_others_a_new_generation(room: Room) -> None:
    leader, other = room.two()
    room.groups.leave("g", leader.member_id, None)
    with pytest.raises(RebalanceInProgressError):
        room.groups.heartbeat("g", 2, other.member_id, None)
    joined = room.join(other.member_id).joined
    assert (joined.generation, joined.leader) == (3, other.member_id)
    room.groups.leave("g", other.member_id, None)
    assert room.state() is GroupState.EMPTY
    room.groups.delete("g")
    assert not room.groups.groups


def test_a_group_with_members_is_not_deleted(room: Room) -> None:
    room.join()
    with pytest.raises(GroupNotEmptyError):
        room.groups.delete("g")


def test_a_full_group_takes_nobody() -> None:
    room = Room(members_max=1)
    room.join()
    with pytest.raises(GroupFullError):
        room.join()


def test_a_static_member_comes_back_without_a_new_generation(room: Room) -> None:
    joined = room.join(instance_id="till-1").joined
    answers = Answers()
    room.groups.sync(
        "g", 1, joined.member_id, "till-1", None, None, [(joined.member_id, b"all")], answers
    )
    assert answers.part == b"all"
    back = room.join(instance_id="till-1").joined
    assert back.generation == 1
    assert back.member_id != joined.member_id
    with pytest.raises(FencedInstanceError):
        room.groups.heartbeat("g", 1, joined.member_id, "till-1")
    answers = Answers()
    room.groups.sync("g", 1, back.member_id, "till-1", None, None, [], answers)
    assert answers.part == b"all"


def test_a_static_member_that_wants_something_else_needs_a_new_generation(room: Room) -> None:
    joined = room.join(instance_id="till-1").joined
    room.groups.sync(
        "g", 1, joined.member_id, "till-1", None, None, [(joined.member_id, b"all")], Answers()
    )
    back = room.join(instance_id="till-1", protocols=(("range", b"wants less"),)).joined
    assert back.generation == 2


def test_a_static_member_leaves_by_its_own_name(room: Room) -> None:
    room.join(instance_id="till-1")
    room.groups.leave("g", "", "till-1")
    assert room.state() is GroupState.EMPTY


def test_offsets_of_an_empty_group_may_be_committed_by_anybody(room: Room) -> None:
    room.groups.check_commit("g", -1, "", None)
    joined = room.join().joined
    with pytest.raises(UnknownMemberError):
        room.groups.check_commit("g", -1, "", None)
    with pytest.raises(RebalanceInProgressError):
        room.groups.check_commit("g", 1, joined.member_id, None)
    room.sync(joined, app_1=b"all")
    room.groups.check_commit("g", 1, joined.member_id, None)


def test_a_group_goes_on_after_a_restart(room: Room) -> None:
    leader, other = room.two()
    state = kept(room.groups.groups["g"])
    again = Room()
    again.groups.restore("g", state)
    again.groups.heartbeat("g", 2, leader.member_id, None)
    assert again.sync(other).part == b"right"
    again.timer.advance(10_200)
    assert again.state() is GroupState.EMPTY
