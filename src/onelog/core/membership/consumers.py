"""Kafka's newer groups (KIP-848): the broker shares out, and members follow one by one.

A member sends heartbeats, and nothing else: in them it says what it wants and what it has, and
learns what it may have. Three numbers tell how far everybody is:

    group epoch        grows when members, their subscriptions, or partitions change
    assignment epoch   the group epoch for which `target` was computed
    member epoch       how far a member has followed

A member that has too much gives it up first (UNREVOKED), and says so by its next heartbeat; only
then does its epoch grow, and only then may others have it (UNRELEASED until they do). So nobody
waits for everybody.

Invariant: a partition is given to a member only when nobody else has it, or is still to give it up.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onelog.clock import Clock
from onelog.core.durable.deadlines import Deadlines, Schedule
from onelog.core.filters.patterns import Pattern, compile_pattern
from onelog.core.membership.assignors import ASSIGNORS, Partition
from onelog.errors import (
    FencedInstanceError,
    FencedMemberEpochError,
    FilterSyntaxError,
    GroupFullError,
    GroupNotEmptyError,
    IllegalGenerationError,
    InvalidRegexError,
    InvalidRequestError,
    StaleMemberEpochError,
    UnknownMemberError,
    UnreleasedInstanceError,
    UnsupportedAssignorError,
)

JOIN_EPOCH, LEAVE_EPOCH, AWAY_EPOCH = 0, -1, -2
"""Epochs in heartbeats that mean something else: join, leave, leave for a while (static)."""
SESSION_MS = 45_000
MEMBERS_MAX = 1_000


class MemberState(enum.Enum):
    """How far a member has followed."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    UNRELEASED = "unreleased"


class Beat(NamedTuple):
    """A heartbeat. None means: as before."""

    group: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_ms: int | None = None
    topics: Sequence[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Iterable[Partition] | None = None
    client_id: str = ""
    client_host: str = ""
    session_ms: int = 0
    """Of a classic member; others have the group's."""
    protocols: tuple[tuple[str, bytes], ...] = ()
    """What a classic member said when it joined."""


class Beaten(NamedTuple):
    """The answer to a heartbeat; `assigned` is None if the member knows it."""

    member_id: str
    epoch: int
    assigned: frozenset[Partition] | None


@dataclass(slots=True, eq=False)
class ConsumerMember:
    """One member."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rack: str | None
    rebalance_ms: int
    topics: tuple[str, ...] = ()
    regex: str = ""
    assignor: str = "uniform"
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: frozenset[Partition] = frozenset()
    revoking: frozenset[Partition] = frozenset()
    due_ms: int = 0
    revoke_due_ms: int = 0
    session_ms: int = 0
    protocols: tuple[tuple[str, bytes], ...] = ()
    """Of a classic member (see `mixed`); others have none."""


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """One group."""

    name: str
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = "uniform"
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    target: dict[str, frozenset[Partition]] = field(default_factory=dict)
    owners: dict[Partition, str] = field(default_factory=dict)
    """Who has a partition, or is to give it up."""
    partitions: dict[str, int] = field(default_factory=dict)
    """The topics that members want, and how many partitions they had at the last look."""
    touched: set[str] = field(default_factory=set)
    """Members that came, went or changed since the group was recorded."""

    @property
    def state(self) -> str:
        """Kafka's word for how the group is."""
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        settled = all(
            member.state is MemberState.STABLE and member.epoch == self.assignment_epoch
            for member in self.members.values()
        )
        return "Stable" if settled else "Reconciling"


class ConsumerGroups:
    """All groups of this kind."""

    def __init__(
        self,
        clock: Clock,
        schedule: Schedule,
        new_id: Callable[[], str],
        topics: Callable[[], Mapping[str, int]],
        on_change: Callable[[ConsumerGroup], None],
        *,
        session_ms: int = SESSION_MS,
        members_max: int = MEMBERS_MAX,
    ) -> None:
        """`topics` tells the number of partitions of every topic that consumers may see."""
        self.groups: dict[str, ConsumerGroup] = {}
        self.session_ms = session_ms
        self._members_max = members_max
        self._clock = clock
        self._new_id = new_id
        self._topics = topics
        self._on_change = on_change
        self._deadlines: Deadlines[tuple[ConsumerGroup, ConsumerMember, str]] = Deadlines(
            clock, schedule, self._overdue
        )

    def heartbeat(self, beat: Beat) -> Beaten:
        """A member joins, lives, follows, or leaves."""
        if beat.epoch in (LEAVE_EPOCH, AWAY_EPOCH):
            return self._leave(beat)
        group = self.groups.get(beat.group)
        if group is None:
            if beat.epoch != JOIN_EPOCH:
                raise _unknown(beat)
            group = ConsumerGroup(beat.group)
        if beat.assignor is not None and beat.assignor not in ASSIGNORS:
            raise UnsupportedAssignorError(
                f"the broker shares out by {' or '.join(ASSIGNORS)}, not by {beat.assignor!r}"
            )
        if beat.regex:
            _compiled(beat.regex)
        member = self._joined(group, beat) if beat.epoch == JOIN_EPOCH else self._known(group, beat)
        self.groups.setdefault(beat.group, group)
        changed = self._update(member, beat) or member.epoch == 0
        if self._look_at_topics(group) or changed:
            group.epoch += 1
        if group.epoch > group.assignment_epoch:
            self._assign(group)
        before = member.assigned
        stood = (member.epoch, member.state, member.revoking)
        self._follow(group, member, beat.owned)
        moved = member.assigned != before
        if (
            changed
            or moved
            or beat.protocols
            or stood != (member.epoch, member.state, member.revoking)
        ):
            group.touched.add(member.member_id)
        self.heard(group, member)
        self._on_change(group)
        tell = beat.epoch == JOIN_EPOCH or moved or beat.owned is not None
        return Beaten(member.member_id, member.epoch, member.assigned if tell else None)

    # -- who it is -----------------------------------------------------------------------------

    def _joined(self, group: ConsumerGroup, beat: Beat) -> ConsumerMember:
        if beat.rebalance_ms is None or (beat.topics is None and beat.regex is None):
            raise InvalidRequestError(
                "a member that joins says what it subscribes to, and its rebalance time-out"
            )
        holder = group.static.get(beat.instance_id) if beat.instance_id is not None else None
        if holder is not None and holder != beat.member_id:
            return self._replaced(group, group.members[holder], beat)
        member = group.members.get(beat.member_id)
        if member is not None:
            # It lost what it knew. It begins anew, with what it had taken from it.
            self._release(group, member, frozenset())
            member.epoch, member.previous_epoch = 0, -1
            member.state, member.assigned = MemberState.STABLE, frozenset()
            return member
        if len(group.members) >= self._members_max:
            raise GroupFullError(f"group {group.name} has {self._members_max} members")
        return self._added(group, beat)

    def _added(self, group: ConsumerGroup, beat: Beat) -> ConsumerMember:
        member = ConsumerMember(
            beat.member_id or self._new_id(),
            beat.instance_id,
            beat.client_id,
            beat.client_host,
            beat.rack,
            beat.rebalance_ms or 0,
        )
        group.members[member.member_id] = member
        group.touched.add(member.member_id)
        if beat.instance_id is not None:
            group.static[beat.instance_id] = member.member_id
        return member

    def _replaced(self, group: ConsumerGroup, old: ConsumerMember, beat: Beat) -> ConsumerMember:
        """A static member is back: it has what the one before it had."""
        if old.epoch != AWAY_EPOCH:
            raise UnreleasedInstanceError(
                f"group.instance.id {beat.instance_id!r} is in use: stop the other process first"
            )
        self._forget(group, old)
        member = self._added(group, beat)
        member.topics, member.regex, member.assignor = old.topics, old.regex, old.assignor
        member.assigned, member.epoch = old.assigned, old.previous_epoch
        group.target[member.member_id] = group.target.pop(old.member_id, frozenset())
        group.owners.update(dict.fromkeys(member.assigned, member.member_id))
        return member

    def _known(self, group: ConsumerGroup, beat: Beat) -> ConsumerMember:
        member = group.members.get(beat.member_id)
        if member is None:
            raise _unknown(beat)
        if beat.instance_id is not None and group.static.get(beat.instance_id) != beat.member_id:
            raise FencedInstanceError(f"{beat.instance_id!r} belongs to another member now")
        # The answer to the last heartbeat may have been lost: then the member repeats itself.
        lost = (
            beat.epoch == member.previous_epoch
            and beat.owned is not None
            and member.assigned.issuperset(beat.owned)
        )
        if beat.epoch != member.epoch and not lost:
            raise FencedMemberEpochError(
                f"member {beat.member_id} is at epoch {member.epoch}, not at {beat.epoch}: it has "
                "to give up its partitions and join again"
            )
        return member

    def _update(self, member: ConsumerMember, beat: Beat) -> bool:
        """Take over what the member says of itself; whether that changes who gets what."""
        member.client_id = beat.client_id or member.client_id
        member.client_host = beat.client_host or member.client_host
        if beat.rebalance_ms is not None and beat.rebalance_ms > 0:
            member.rebalance_ms = beat.rebalance_ms
        if beat.rack is not None:
            member.rack = beat.rack
        if beat.protocols or beat.epoch == JOIN_EPOCH:
            member.session_ms, member.protocols = beat.session_ms, beat.protocols
        wants = (
            tuple(sorted(beat.topics)) if beat.topics is not None else member.topics,
            beat.regex if beat.regex is not None else member.regex,
            beat.assignor if beat.assignor is not None else member.assignor,
        )
        changed = wants != (member.topics, member.regex, member.assignor)
        member.topics, member.regex, member.assignor = wants
        return changed

    # -- who gets what -------------------------------------------------------------------------

    def _wanted(self, member: ConsumerMember, topics: Mapping[str, int]) -> list[str]:
        found = {topic for topic in member.topics if topic in topics}
        if member.regex:
            with suppress(InvalidRegexError):  # An older version took it: it names nothing now.
                pattern = _compiled(member.regex)
                found.update(topic for topic in topics if pattern.is_all_of(topic))
        return sorted(found)

    def _look_at_topics(self, group: ConsumerGroup) -> bool:
        """Whether topics came, went or grew since the last look."""
        topics = self._topics()
        wanted = {
            topic for member in group.members.values() for topic in self._wanted(member, topics)
        }
        partitions = {topic: topics[topic] for topic in wanted}
        changed = partitions != group.partitions
        group.partitions = partitions
        return changed

    def _assign(self, group: ConsumerGroup) -> None:
        votes = [member.assignor for member in group.members.values()]
        group.assignor = max(sorted(set(votes)), key=votes.count) if votes else group.assignor
        topics = group.partitions
        subscriptions = {
            member.member_id: self._wanted(member, topics) for member in group.members.values()
        }
        shares = ASSIGNORS[group.assignor](subscriptions, topics, group.owners)
        group.target = {member: frozenset(share) for member, share in shares.items()}
        group.assignment_epoch = group.epoch

    def _follow(
        self, group: ConsumerGroup, member: ConsumerMember, owned: Iterable[Partition] | None
    ) -> None:
        """Bring the member as near to its target as the others let it."""
        if member.state is MemberState.UNREVOKED:
            if owned is None or not member.revoking.isdisjoint(owned):
                return
            self._release(group, member, member.assigned)
        elif member.state is MemberState.STABLE and member.epoch == group.assignment_epoch:
            return
        target = group.target.get(member.member_id, frozenset())
        keep = member.assigned & target
        revoke = member.assigned - target
        if revoke:
            member.state, member.assigned, member.revoking = MemberState.UNREVOKED, keep, revoke
            self._expect_revoked(group, member)
            return
        free = _free(group, member, target - keep)
        waits = free != target - keep
        self._release(group, member, keep | free)
        member.assigned, member.revoking = keep | free, frozenset()
        if member.epoch != group.assignment_epoch:
            member.previous_epoch, member.epoch = member.epoch, group.assignment_epoch
        member.state = MemberState.UNRELEASED if waits else MemberState.STABLE

    def _expect_revoked(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        member.revoke_due_ms = self._clock.now_ms() + max(1, member.rebalance_ms)
        self._deadlines.add((group, member, "revoke"), member.revoke_due_ms)

    def _release(
        self, group: ConsumerGroup, member: ConsumerMember, kept: frozenset[Partition]
    ) -> None:
        """From now on the member has these, and no others."""
        for partition in (member.assigned | member.revoking) - kept:
            if group.owners.get(partition) == member.member_id:
                del group.owners[partition]
        member.revoking = frozenset()
        group.owners.update(dict.fromkeys(kept, member.member_id))

    # -- staying and leaving -------------------------------------------------------------------

    def check_commit(self, name: str, member_id: str, epoch: int) -> None:
        """Whether these offsets may be committed by whoever says to be this member."""
        group = self.groups[name]
        if epoch < 0 and not group.members:
            return
        member = group.members.get(member_id)
        if member is None:
            raise UnknownMemberError(f"{member_id!r} is no member of group {name}")
        if epoch != member.epoch and member.protocols:
            raise IllegalGenerationError(f"{member_id} is at {member.epoch}, not at {epoch}")
        if epoch != member.epoch:
            raise StaleMemberEpochError(
                f"member {member_id} is at epoch {member.epoch}, and {epoch} is not that"
            )

    def _leave(self, beat: Beat) -> Beaten:
        group = self.groups.get(beat.group)
        member = None if group is None else group.members.get(beat.member_id)
        if group is None or member is None:
            raise _unknown(beat)
        if beat.epoch == AWAY_EPOCH and member.instance_id is not None:
            member.previous_epoch, member.epoch = member.epoch, AWAY_EPOCH
            self.heard(group, member)
            group.touched.add(member.member_id)
            self._on_change(group)
        else:
            self._remove(group, member)
        return Beaten(beat.member_id, beat.epoch, None)

    def _remove(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        self._forget(group, member)
        group.target.pop(member.member_id, None)
        self._look_at_topics(group)
        group.epoch += 1
        self._on_change(group)

    def _forget(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        self._release(group, member, frozenset())
        self._deadlines.remove((group, member, "session"), member.due_ms)
        self._deadlines.remove((group, member, "revoke"), member.revoke_due_ms)
        del group.members[member.member_id]
        group.touched.add(member.member_id)
        if member.instance_id is not None and group.static.get(member.instance_id) == (
            member.member_id
        ):
            del group.static[member.instance_id]

    def heard(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """The member lives: its time begins anew."""
        self._deadlines.remove((group, member, "session"), member.due_ms)
        member.due_ms = self._clock.now_ms() + (member.session_ms or self.session_ms)
        self._deadlines.add((group, member, "session"), member.due_ms)

    def _overdue(self, things: list[tuple[ConsumerGroup, ConsumerMember, str]]) -> None:
        now_ms = self._clock.now_ms()
        for group, member, _ in things:
            if group.members.get(member.member_id) is not member:
                continue
            is_slow = member.state is MemberState.UNREVOKED and member.revoke_due_ms <= now_ms
            if is_slow or member.due_ms <= now_ms:
                self._remove(group, member)

    def has_more(self, group: ConsumerGroup, member: ConsumerMember) -> bool:
        """Whether there is something for a member to have that it waits for."""
        target = group.target.get(member.member_id, frozenset())
        return bool(_free(group, member, target - member.assigned))

    def adopt(self, group: ConsumerGroup) -> None:
        """Take a group in that was of another kind."""
        self.groups[group.name] = group
        for member in group.members.values():
            self.heard(group, member)

    def dissolve(self, group: ConsumerGroup) -> None:
        """The group is of another kind from now on."""
        self.groups.pop(group.name, None)
        for member in list(group.members.values()):
            self._forget(group, member)

    def delete(self, name: str) -> None:
        """Forget a group that has no members."""
        group = self.groups.get(name)
        if group is not None and group.members:
            raise GroupNotEmptyError(f"group {name} has {len(group.members)} members: stop them")
        self.groups.pop(name, None)

    def restore(self, name: str, kept: Mapping[str, Any]) -> None:
        """Take up a group as it was. If its members were about to follow, they get a new target."""
        group = ConsumerGroup(name, kept["epoch"], kept["epoch"])
        for member_id, each in kept.get("members", {}).items():
            member = group.members[member_id] = restored(member_id, each)
            group.target[member_id] = member.assigned
            if member.instance_id is not None:
                group.static[member.instance_id] = member_id
            had = member.assigned | member.revoking
            group.owners.update(dict.fromkeys(had, member_id))
            if member.revoking:
                self._expect_revoked(group, member)
        group.partitions = dict(Counter(topic for topic, _ in group.owners))
        if group.state == "Reconciling":
            group.epoch += 1
        self.adopt(group)


def kept(member: ConsumerMember) -> dict[str, Any]:
    """What `restored` needs, as plain JSON."""
    return {
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "rack": member.rack,
        "rebalance_ms": member.rebalance_ms,
        "topics": list(member.topics),
        "regex": member.regex,
        "assignor": member.assignor,
        "epochs": [member.epoch, member.previous_epoch],
        "state": member.state.value,
        "assigned": sorted(map(list, member.assigned)),
        "revoking": sorted(map(list, member.revoking)),
        "session_ms": member.session_ms,
        "protocols": [[name, said.hex()] for name, said in member.protocols],
    }


def restored(member_id: str, kept: Mapping[str, Any]) -> ConsumerMember:
    epoch, previous_epoch = kept["epochs"]
    return ConsumerMember(
        member_id,
        kept["instance"],
        kept["client"],
        kept["host"],
        kept["rack"],
        kept["rebalance_ms"],
        tuple(kept["topics"]),
        kept["regex"],
        kept["assignor"],
        epoch,
        previous_epoch,
        MemberState(kept["state"]),
        frozenset((topic, number) for topic, number in kept["assigned"]),
        frozenset((topic, number) for topic, number in kept["revoking"]),
        session_ms=kept["session_ms"],
        protocols=tuple((name, bytes.fromhex(said)) for name, said in kept["protocols"]),
    )


def _free(
    group: ConsumerGroup, member: ConsumerMember, wanted: frozenset[Partition]
) -> frozenset[Partition]:
    """Those of these partitions that nobody else has, or is still to give up."""
    return frozenset(
        partition
        for partition in wanted
        if group.owners.get(partition, member.member_id) == member.member_id
        or group.owners[partition] not in group.members
    )


def _compiled(regex: str) -> Pattern:
    try:
        return compile_pattern(regex)
    except FilterSyntaxError as error:
        raise InvalidRegexError(str(error)) from None


def _unknown(beat: Beat) -> UnknownMemberError:
    return UnknownMemberError(
        f"{beat.member_id!r} is no member of group {beat.group}: it has to join again"
    )
