"""Groups of Kafka's kinds at the door: positions, notes, and being found again after a crash."""

import struct

import pytest

from onelog.core.access import SELF
from onelog.core.cursors.offset_notes import Note
from onelog.core.membership.classic import Joined, Joining
from onelog.core.membership.consumers import Beat
from onelog.core.membership.coordinator import CommittingMember, Position, subscribed
from onelog.core.membership.members import Client, ConsumerData
from onelog.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    IllegalGenerationError,
    InconsistentProtocolError,
    InvalidGroupError,
    OnelogError,
    UnknownMemberError,
)
from tests.core.world import World, entries_of

GROUP = "readers"


def joining(group: str = GROUP) -> Joining:
    return Joining(group, "", None, "c", "h", 10_000, 10_000, "consumer", [("range", b"m")])


def join(world: World, group: str = GROUP) -> CommittingMember:
    """A member of a group that is stable."""
    found: list[Joined | None] = []
    coordinator = world.broker.groups.coordinator
    coordinator.join(SELF, joining(group), lambda joined, error: found.append(joined))
    (joined,) = found
    assert joined is not None
    member = CommittingMember(joined.member_id, joined.generation)
    parts = [(joined.member_id, b"all")]
    coordinator.sync(SELF, group, member, None, None, parts, lambda synced, error: None)
    return member


def commit(world: World, member: CommittingMember, offset: int, note: Note = Note()) -> None:  # noqa: B008
    told: list[OnelogError | None] = []
    positions = {"orders": {0: Position(offset, note)}}
    world.broker.groups.coordinator.commit(SELF, GROUP, member, positions, told.append)
    assert told == [None]


def position(world: World) -> Position:
    found = world.broker.groups.coordinator.positions(SELF, GROUP, {"orders": [0]})
    return dict(dict(found)["orders"])[0]


@pytest.fixture
def orders(world: World) -> World:
    world.topic("orders", 2)
    for number in range(20):
        world.send(queue_id=number % 2)
    return world


def test_a_position_is_there_after_a_crash_with_its_note(orders: World) -> None:
    member = join(orders)
    commit(orders, member, 7, Note(0, "mine"))
    orders.crash()
    assert position(orders) == Position(7, Note(0, "mine"))
    assert orders.core.offsets.of(GROUP, "orders") == {0: 7}


def test_a_group_is_found_again_after_a_crash_with_its_members(orders: World) -> None:
    member = join(orders)
    orders.crash()
    orders.broker.groups.coordinator.heartbeat(SELF, GROUP, member)
    commit(orders, member, 3)
    with pytest.raises(IllegalGenerationError):
        orders.broker.groups.coordinator.heartbeat(SELF, GROUP, member._replace(generation=9))
    orders.advance(11_000)
    with pytest.raises(UnknownMemberError):
        orders.broker.groups.coordinator.heartbeat(SELF, GROUP, member)


def test_members_of_the_newer_kinds_are_found_again_after_a_crash(orders: World) -> None:
    joins = [Beat(GROUP, name, 0, None, None, 10_000, ["orders"], owned=()) for name in "abc"]
    for _ in range(2):  # The second time from a snapshot.
        coordinator = orders.broker.groups.coordinator
        for each in joins:
            coordinator.beat(SELF, each)
            coordinator.beat_share(SELF, each._replace(group="sharers"))
        coordinator.beat(SELF, Beat(GROUP, "c", -1))
        orders.crash()
        coordinator = orders.broker.groups.coordinator
        group = coordinator.consumer_group(SELF, GROUP)
        shared = coordinator.share_group(SELF, "sharers")
        assert group is not None
        assert shared is not None
        assert list(group.members) == ["a", "b"]
        assert list(shared.members) == ["a", "b", "c"]
        for member in shared.members.values():
            assert member.assigned
            coordinator.beat_share(SELF, Beat("sharers", member.member_id, member.epoch))
        first = group.members["a"]
        coordinator.check_member(SELF, GROUP, CommittingMember("a", first.epoch))
        coordinator.beat(SELF, Beat(GROUP, "a", first.epoch, owned=first.assigned))
        orders.restart()


def test_who_is_no_member_commits_only_for_groups_without_members(orders: World) -> None:
    commit(orders, CommittingMember(), 5)
    join(orders)
    with pytest.raises(UnknownMemberError):
        orders.broker.groups.coordinator.commit(
            SELF, GROUP, CommittingMember(), {}, lambda error: None
        )


def test_who_is_moved_goes_there_and_older_commits_are_ignored(orders: World) -> None:
    member = join(orders)
    commit(orders, member, 8)
    orders.core.offsets.reset(GROUP, "orders", {0: 2})
    group = orders.broker.groups.coordinator.classic_group(SELF, GROUP)
    assert group is not None
    assert group.state.value == "PreparingRebalance", "members share out anew"
    commit(orders, member, 9)
    assert position(orders).offset == 2, "asked for after the move"
    commit(orders, member, 3)
    assert position(orders).offset == 3


def test_an_administrator_moves_a_group_that_was_moved(orders: World) -> None:
    orders.core.offsets.reset(GROUP, "orders", {0: 2})
    commit(orders, CommittingMember(), 4)
    assert position(orders).offset == 4


def test_a_group_has_members_of_one_kind(orders: World) -> None:
    join(orders)
    beat = Beat(GROUP, "m", 0, None, None, 10_000, ["orders"])
    with pytest.raises(GroupNotFoundError):
        orders.broker.groups.coordinator.beat(SELF, beat)
    orders.broker.groups.coordinator.beat(SELF, beat._replace(group="others"))
    with pytest.raises(InconsistentProtocolError):
        orders.broker.groups.coordinator.join(SELF, joining("others"), lambda joined, error: None)
    kinds = {each.name: each.kind for each in orders.broker.groups.coordinator.listed(SELF)}
    assert kinds == {GROUP: "classic", "others": "consumer"}


def test_patterns_do_not_match_what_is_not_for_consumers(orders: World) -> None:
    orders.topic("%RETRY%readers", 1)
    orders.topic("%DLQ%readers", 1)
    beat = Beat(GROUP, "m", 0, None, None, 10_000, [], ".*")
    beaten = orders.broker.groups.coordinator.beat(SELF, beat)
    assert beaten.assigned == frozenset({("orders", 0), ("orders", 1)})


def test_a_group_with_members_is_not_deleted(orders: World) -> None:
    member = join(orders)
    commit(orders, member, 1, Note(0, "x"))
    coordinator = orders.broker.groups.coordinator
    with pytest.raises(GroupNotEmptyError):
        coordinator.delete(SELF, GROUP)
    coordinator.leave(SELF, GROUP, member)
    coordinator.delete(SELF, GROUP)
    orders.crash()
    assert orders.broker.groups.coordinator.listed(SELF) == []
    assert position(orders) == Position(-1)
    assert entries_of(orders.broker.groups.coordinator.notes) == {}
    with pytest.raises(GroupNotFoundError):
        orders.broker.groups.coordinator.delete(SELF, GROUP)


def test_positions_are_forgotten_one_by_one(orders: World) -> None:
    orders.core.offsets.commit(GROUP, "orders", 1, 5)
    commit(orders, CommittingMember(), 4)
    orders.broker.groups.coordinator.forget_position(SELF, GROUP, "orders", 0)
    orders.crash()
    assert orders.core.offsets.of(GROUP, "orders") == {1: 5}


def test_a_group_needs_a_name(orders: World) -> None:
    with pytest.raises(InvalidGroupError):
        orders.broker.groups.coordinator.join(SELF, joining(""), lambda joined, error: None)


def test_what_consumers_say_of_themselves_is_read_or_not() -> None:
    said = struct.pack(">hih1sh2si", 3, 2, 1, b"a", 2, b"bc", 0)
    assert subscribed([said, said]) == frozenset({"a", "bc"})
    assert subscribed([]) == frozenset()
    for at in range(len(said) - 4):
        assert subscribed([said[:at]]) is None
    assert subscribed([b"\0\1\xff\xff\xff\xff"]) == frozenset()


# -- groups that nobody uses -----------------------------------------------------------------------

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def keep_for_a_week(world: World) -> None:
    world.broker.groups.coordinator.uses.retention_ms = 7 * DAY_MS


def test_positions_of_a_group_without_members_are_forgotten_after_a_time(orders: World) -> None:
    keep_for_a_week(orders)
    commit(orders, CommittingMember(), 7, Note(0, "n"))
    orders.clock.advance(7 * DAY_MS - HOUR_MS)
    orders.advance(11_000)
    assert position(orders) == Position(7, Note(0, "n"))
    orders.clock.advance(2 * HOUR_MS)
    orders.advance(20_000)
    assert position(orders) == Position(-1)
    assert orders.core.groups.get(GROUP) is None
    assert entries_of(orders.broker.groups.coordinator.uses) == {}
    orders.restart()
    assert position(orders) == Position(-1)


def test_a_group_with_members_keeps_its_positions(orders: World) -> None:
    keep_for_a_week(orders)
    member = join(orders)
    commit(orders, member, 7)
    coordinator = orders.broker.groups.coordinator
    for _ in range(20 * 24):
        orders.clock.advance(HOUR_MS - 5_000)
        coordinator.heartbeat(SELF, GROUP, member)
        orders.advance(5_000)
    assert position(orders).offset == 7
    coordinator.leave(SELF, GROUP, member)
    orders.clock.advance(6 * DAY_MS)
    orders.advance(20_000)
    assert position(orders).offset == 7
    orders.clock.advance(DAY_MS + 2 * HOUR_MS)
    orders.advance(20_000)
    assert position(orders).offset == -1
    assert coordinator.classic_group(SELF, GROUP) is None


def test_positions_of_rocketmq_groups_are_kept_also_if_kafka_uses_them(orders: World) -> None:
    keep_for_a_week(orders)
    orders.core.offsets.commit("theirs", "orders", 0, 3)
    orders.core.groups.require("before")
    positions = {"orders": {0: Position(7)}}
    for group in ("before", "later"):
        orders.broker.groups.coordinator.commit(
            SELF, group, CommittingMember(), positions, lambda error: None
        )
    client = Client("c1", "c1")
    orders.broker.groups.heartbeat(SELF, client, (ConsumerData("later"),), ())
    orders.advance(20_000)
    orders.broker.groups.channel_closed("c1")
    for _ in range(3):
        orders.clock.advance(30 * DAY_MS)
        orders.advance(20_000)
    offsets = orders.core.offsets
    kept = {group: offsets.get(group, "orders", 0) for group in ("theirs", "before", "later")}
    assert kept == {"theirs": 3, "before": 7, "later": 7}


def test_after_a_long_absence_of_the_broker_consumers_may_come_back(orders: World) -> None:
    commit(orders, CommittingMember(), 7)
    orders.close()
    orders.clock.advance(30 * DAY_MS)
    orders.start()
    keep_for_a_week(orders)
    orders.advance(60_000)
    assert position(orders).offset == 7
    commit(orders, CommittingMember(), 8)
    orders.advance(1_200_000)
    assert position(orders).offset == 8


def test_many_groups_are_forgotten_some_at_a_time(orders: World) -> None:
    keep_for_a_week(orders)
    coordinator = orders.broker.groups.coordinator
    for number in range(100):
        positions = {"orders": {0: Position(number)}}
        coordinator.commit(SELF, f"g{number}", CommittingMember(), positions, lambda error: None)
    orders.clock.advance(8 * DAY_MS)
    assert not coordinator.expire(), "nothing was to be looked at yet"
    assert coordinator.expire()
    assert len(entries_of(coordinator.uses)) == 80
    while coordinator.expire():
        pass
    assert entries_of(coordinator.uses) == {}
