"""Kafka's classic groups: members that join, agree on a protocol, and let one of them share out.

A group goes through generations. In each, all members join (`join`), the first of them leads: it
is told of everybody, decides who gets what, and hands that in (`sync`), which gives everybody
their part. What members say about themselves, and what they get, are bytes to us.

    EMPTY -> PREPARING (members join) -> COMPLETING (the leader decides) -> STABLE -> PREPARING ...

Joining and syncing wait for others, so both answer by a callback, once: with a value, or with an
error. A member that waits counts as alive; any other must be heard of within its session time.

A static member brings a name of its own. It may come back under that name, in another process, and
go on where it was without a new generation; who held the name before is fenced.

Invariant: every callback is called exactly once. Members of one generation have one protocol, which
all of them support.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from onelog.clock import Clock
from onelog.core.durable.deadlines import Deadlines, Schedule
from onelog.errors import (
    FencedInstanceError,
    GroupFullError,
    GroupNotEmptyError,
    GroupNotFoundError,
    IllegalGenerationError,
    InconsistentProtocolError,
    InvalidGroupError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    OnelogError,
    RebalanceInProgressError,
    UnknownMemberError,
)

SESSION_MIN_MS, SESSION_MAX_MS = 6_000, 1_800_000
MEMBERS_MAX = 10_000

Protocol = tuple[str, bytes]
"""A way to share out that a member knows, and what the member says about itself for it."""


class GroupState(enum.Enum):
    """Where a group is in its generation; the values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Joining(NamedTuple):
    """What a client says when it joins. An empty `member_id` is a client that has none yet."""

    group: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: Sequence[Protocol]
    needs_known_id: bool = False
    """Whether a new client first learns its id, and joins with it (Kafka's KIP-394)."""
    can_skip_assignment: bool = False
    session_min_ms: int = SESSION_MIN_MS
    initial_delay_ms: int = 0
    """How long an empty group waits for more members; as long again if one came meanwhile."""


class Joined(NamedTuple):
    """What a member learns of its generation; `members` is for the leader alone."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: Sequence[tuple[str, str | None, bytes]] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    """A member's part."""

    protocol_type: str
    protocol: str
    assignment: bytes


OnJoined = Callable[[Joined | None, OnelogError | None], None]
OnSynced = Callable[[Synced | None, OnelogError | None], None]


@dataclass(slots=True, eq=False)
class ClassicMember:
    """One member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: Sequence[Protocol]
    assignment: bytes = b""
    due_ms: int = 0
    """When it is given up, unless it is heard of or waits for an answer."""
    on_joined: OnJoined | None = None
    on_synced: OnSynced | None = None

    def metadata(self, protocol: str) -> bytes:
        """What it says about itself for a protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    @property
    def waits(self) -> bool:
        """Whether an answer is owed to it."""
        return self.on_joined is not None or self.on_synced is not None


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """One group."""

    name: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, ClassicMember] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    """The member behind each name of its own."""
    pending: dict[str, int] = field(default_factory=dict)
    """Ids that were given out to clients that have not joined with them yet, and until when."""
    is_gathering: bool = False
    """Whether it was empty, and waits for its first members: not until all that it has are there,
    but for a time."""
    round: int = 0
    """Counts waits for members, so that a timer knows whether its wait is still on."""

    def supports(self, protocols: Iterable[Protocol], but: ClassicMember | None = None) -> bool:
        """Whether every other member knows one of these, the same for all."""
        known = {name for name, _ in protocols}
        for member in self.members.values():
            if member is not but:
                known &= {name for name, _ in member.protocols}
        return bool(known)


class ClassicGroups:
    """All groups of this kind."""

    def __init__(
        self,
        clock: Clock,
        schedule: Schedule,
        new_id: Callable[[], str],
        on_change: Callable[[ClassicGroup], None],
        *,
        members_max: int = MEMBERS_MAX,
    ) -> None:
        """`on_change` is called when a generation is settled, or a group has become empty."""
        self.groups: dict[str, ClassicGroup] = {}
        self._clock = clock
        self._schedule = schedule
        self._new_id = new_id
        self._on_change = on_change
        self._members_max = members_max
        self._deadlines: Deadlines[tuple[ClassicGroup, ClassicMember | str]] = Deadlines(
            clock, schedule, self._overdue
        )

    # -- joining -------------------------------------------------------------------------------

    def join(self, joining: Joining, on_joined: OnJoined) -> None:
        """Join the group, or its next generation."""
        if not joining.group:
            raise InvalidGroupError("a consumer group needs a name")
        check_session(joining)
        group = self.groups.get(joining.group)
        if group is None:
            if joining.member_id:
                raise _unknown(joining.group, joining.member_id)
            group = ClassicGroup(joining.group)
        member = self._recognized(group, joining)
        if (
            not joining.protocols
            or not joining.protocol_type
            or (
                group.members
                and (
                    group.protocol_type != joining.protocol_type
                    or not group.supports(joining.protocols, member)
                )
            )
        ):
            raise InconsistentProtocolError(
                f"group {group.name} has members of type {group.protocol_type!r} that know none of "
                f"{[name for name, _ in joining.protocols]}: all members need a common assignor"
            )
        self.groups.setdefault(group.name, group)
        if member is None:
            self._join_new(group, joining, on_joined)
        elif not joining.member_id:
            self._replace_static(group, member, joining, on_joined)
        else:
            self._join_again(group, member, joining, on_joined)

    def _recognized(self, group: ClassicGroup, joining: Joining) -> ClassicMember | None:
        """The member that joins; None if it is new."""
        if joining.instance_id is not None:
            holder = group.static.get(joining.instance_id)
            if holder is not None:
                if joining.member_id not in ("", holder):
                    raise _fenced(joining.instance_id)
                return group.members[holder]
        elif joining.member_id in group.pending:
            return None
        if not joining.member_id:
            return None
        member = group.members.get(joining.member_id)
        if member is None or joining.instance_id is not None:
            raise _unknown(group.name, joining.member_id)
        return member

    def _join_new(self, group: ClassicGroup, joining: Joining, on_joined: OnJoined) -> None:
        if len(group.members) + len(group.pending) >= self._members_max and not joining.member_id:
            raise GroupFullError(f"group {group.name} has {self._members_max} members")
        member_id = joining.member_id
        if not member_id:
            stem = joining.client_id if joining.instance_id is None else joining.instance_id
            member_id = f"{stem}-{self._new_id()}"
            if joining.needs_known_id and joining.instance_id is None:
                due_ms = self._clock.now_ms() + joining.session_ms
                group.pending[member_id] = due_ms
                self._deadlines.add((group, member_id), due_ms)
                raise MemberIdRequiredError(member_id)
        due_ms = group.pending.pop(member_id, 0)
        self._deadlines.remove((group, member_id), due_ms)
        member = _member(member_id, joining)
        if not group.members:
            group.protocol_type, group.leader = joining.protocol_type, member_id
        group.members[member_id] = member
        if joining.instance_id is not None:
            group.static[joining.instance_id] = member_id
        member.on_joined = on_joined
        self._prepare(group, joining.initial_delay_ms)

    def _replace_static(
        self, group: ClassicGroup, old: ClassicMember, joining: Joining, on_joined: OnJoined
    ) -> None:
        """A static member is back, in another process: it takes the place of the one before."""
        assert joining.instance_id is not None
        self._answer(old, _fenced(joining.instance_id))
        self._deadlines.remove((group, old), old.due_ms)
        member_id = f"{joining.instance_id}-{self._new_id()}"
        member = _member(member_id, joining)
        member.assignment = old.assignment
        group.members = {
            (member_id if key == old.member_id else key): (member if each is old else each)
            for key, each in group.members.items()
        }
        group.static[joining.instance_id] = member_id
        was_leader = group.leader == old.member_id
        if was_leader:
            group.leader = member_id
        same = member.metadata(group.protocol) == old.metadata(group.protocol)
        if group.state is GroupState.STABLE and same and _voted(group) == group.protocol:
            self._on_change(group)
            self._heard(group, member)
            if was_leader and joining.can_skip_assignment:
                on_joined(self._joined(group, member)._replace(skip_assignment=True), None)
            else:
                # A leader would share out again if it knew that it leads (Kafka's KIP-814).
                leader = old.member_id if was_leader else group.leader
                on_joined(self._joined(group, member)._replace(leader=leader, members=()), None)
            return
        member.on_joined = on_joined
        self._prepare(group)

    def _join_again(
        self, group: ClassicGroup, member: ClassicMember, joining: Joining, on_joined: OnJoined
    ) -> None:
        same = tuple(joining.protocols) == tuple(member.protocols)
        settled = group.state is GroupState.COMPLETING or (
            group.state is GroupState.STABLE and member.member_id != group.leader
        )
        if same and settled:
            self._heard(group, member)
            on_joined(self._joined(group, member), None)
            return
        self._answer(member, RebalanceInProgressError("the member has joined once more"))
        member.protocols = tuple(joining.protocols)
        member.session_ms, member.rebalance_ms = joining.session_ms, joining.rebalance_ms
        member.on_joined = on_joined
        self._prepare(group)

    def _prepare(self, group: ClassicGroup, initial_delay_ms: int = 0) -> None:
        """Begin a new generation, if that has not begun, and see whether all are there."""
        if group.state is GroupState.PREPARING:
            self._complete_if_all_joined(group)
            return
        if group.state is GroupState.COMPLETING:
            for member in group.members.values():
                if member.on_synced is not None:
                    self._answer(member, _rebalancing(group))
        group.is_gathering = group.state is GroupState.EMPTY and initial_delay_ms > 0
        group.state = GroupState.PREPARING
        group.round += 1
        for member in group.members.values():
            if not member.waits:
                self._heard(group, member)
        wait_ms = max(member.rebalance_ms for member in group.members.values())
        if group.is_gathering:
            self._gather(group, group.round, initial_delay_ms, wait_ms, 1)
            return
        self._schedule(max(wait_ms, 1), partial(self._join_time_over, group, group.round))
        self._complete_if_all_joined(group)

    def _gather(
        self, group: ClassicGroup, number: int, delay_ms: int, left_ms: int, members: int
    ) -> None:
        """Wait for the group's first members; it had so many when the wait began."""

        def over() -> None:
            if group.round != number or group.state is not GroupState.PREPARING:
                return
            if len(group.members) > members and left_ms > delay_ms:
                self._gather(group, number, delay_ms, left_ms - delay_ms, len(group.members))
            else:
                self._complete(group)

        self._schedule(min(delay_ms, max(left_ms, 1)), over)

    def _complete_if_all_joined(self, group: ClassicGroup) -> None:
        if group.is_gathering or group.pending or not group.members:
            return
        if all(member.on_joined is not None for member in group.members.values()):
            self._complete(group)

    def _join_time_over(self, group: ClassicGroup, number: int) -> None:
        """Whoever has not joined by now is out; static members are until their session ends."""
        if group.round != number or group.state is not GroupState.PREPARING:
            return
        for member in list(group.members.values()):
            if member.on_joined is None and member.instance_id is None:
                self._forget(group, member)
        if not any(member.on_joined is not None for member in group.members.values()):
            if not group.members:
                self._become_empty(group)
                return
            wait_ms = max(member.rebalance_ms for member in group.members.values())
            self._schedule(max(wait_ms, 1), partial(self._join_time_over, group, number))
            return
        group.pending.clear()
        self._complete(group)

    def _complete(self, group: ClassicGroup) -> None:
        """Everybody is there: begin the generation."""
        group.generation += 1
        group.round += 1
        group.state, group.is_gathering = GroupState.COMPLETING, False
        group.protocol = _voted(group)
        leader = group.members.get(group.leader)
        if leader is None or leader.on_joined is None:
            group.leader = next(
                member.member_id for member in group.members.values() if member.on_joined
            )
        wait_ms = max(member.rebalance_ms for member in group.members.values())
        self._schedule(max(wait_ms, 1), partial(self._sync_time_over, group, group.round))
        for member in list(group.members.values()):
            on_joined, member.on_joined = member.on_joined, None
            self._heard(group, member)
            if on_joined is not None:
                on_joined(self._joined(group, member), None)

    def _joined(self, group: ClassicGroup, member: ClassicMember) -> Joined:
        members: list[tuple[str, str | None, bytes]] = []
        if member.member_id == group.leader:
            members = [
                (each.member_id, each.instance_id, each.metadata(group.protocol))
                for each in group.members.values()
            ]
        return Joined(
            group.generation,
            group.protocol_type,
            group.protocol,
            group.leader,
            member.member_id,
            members,
        )

    # -- sharing out ---------------------------------------------------------------------------

    def sync(
        self,
        name: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Sequence[tuple[str, bytes]],
        on_synced: OnSynced,
    ) -> None:
        """Learn one's part; the leader hands in everybody's with it."""
        group, member = self._require(name, member_id, instance_id)
        if generation != group.generation:
            raise _stale(group, generation)
        if protocol_type not in (None, group.protocol_type) or protocol not in (
            None,
            group.protocol,
        ):
            raise InconsistentProtocolError(
                f"group {name} uses {group.protocol!r} of type {group.protocol_type!r}"
            )
        if group.state is GroupState.PREPARING:
            raise _rebalancing(group)
        if group.state is GroupState.STABLE:
            self._heard(group, member)
            on_synced(self._part(group, member), None)
            return
        self._answer(member, RebalanceInProgressError("the member has asked once more"))
        member.on_synced = on_synced
        if member_id == group.leader:
            parts = dict(assignments)
            for each in group.members.values():
                each.assignment = parts.get(each.member_id, b"")
            group.state = GroupState.STABLE
            group.round += 1
            self._on_change(group)
            for each in list(group.members.values()):
                waiting, each.on_synced = each.on_synced, None
                self._heard(group, each)
                if waiting is not None:
                    waiting(self._part(group, each), None)

    def _part(self, group: ClassicGroup, member: ClassicMember) -> Synced:
        return Synced(group.protocol_type, group.protocol, member.assignment)

    def _sync_time_over(self, group: ClassicGroup, number: int) -> None:
        """The leader never decided: whoever did not ask for a part is out."""
        if group.round != number or group.state is not GroupState.COMPLETING:
            return
        for member in list(group.members.values()):
            if member.on_synced is None:
                self._forget(group, member)
        self._changed_members(group)

    # -- staying and leaving -------------------------------------------------------------------

    def heartbeat(
        self, name: str, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        """A member is alive; raises what it has to know."""
        group, member = self._require(name, member_id, instance_id)
        if generation != group.generation:
            raise _stale(group, generation)
        self._heard(group, member)
        if group.state is GroupState.PREPARING:
            raise _rebalancing(group)

    def check_commit(
        self,
        name: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        *,
        in_transaction: bool = False,
    ) -> None:
        """Whether these offsets may be committed by whoever says to be this member.

        In an empty group anybody may who claims no generation. A member that has left may not, nor
        one of an older generation; while the leader decides, only transactions may.
        """
        group = self.groups.get(name)
        if generation < 0 and (group is None or not group.members):
            return
        if group is None:
            raise GroupNotFoundError(f"group {name} is not there, or no more: join it again")
        group, member = self._require(name, member_id, instance_id)
        if generation != group.generation:
            raise _stale(group, generation)
        if group.state is GroupState.COMPLETING and not in_transaction:
            raise _rebalancing(group)
        self._heard(group, member)

    def leave(self, name: str, member_id: str, instance_id: str | None) -> None:
        """A member leaves; an administrator names a static one by its own name alone."""
        group = self.groups.get(name)
        if group is not None and not member_id and instance_id is not None:
            member_id = group.static.get(instance_id, "")
        if group is not None and member_id in group.pending:
            self._deadlines.remove((group, member_id), group.pending.pop(member_id))
            if group.state is GroupState.PREPARING:
                self._complete_if_all_joined(group)
            return
        group, member = self._require(name, member_id, instance_id)
        self._answer(member, _unknown(name, member_id))
        self._forget(group, member)
        self._changed_members(group)

    def share_out_anew(self, name: str) -> None:
        """Begin a new generation: members learn of it by their next heartbeats."""
        group = self.groups.get(name)
        if group is not None and group.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._prepare(group)

    def delete(self, name: str) -> None:
        """Forget a group that has no members."""
        group = self.groups.get(name)
        if group is not None and group.members:
            raise GroupNotEmptyError(f"group {name} has {len(group.members)} members: stop them")
        self.groups.pop(name, None)

    def dissolve(self, group: ClassicGroup) -> None:
        """The group is another one's from now on; who waits has to join there."""
        del self.groups[group.name]
        for member in list(group.members.values()):
            self._answer(member, _rebalancing(group))
            self._forget(group, member)
        group.pending.clear()
        group.state, group.round = GroupState.EMPTY, group.round + 1

    def restore(self, name: str, kept: dict[str, Any]) -> None:
        """Take up a group as it was when the broker stopped: its members have their time again."""
        group = ClassicGroup(
            name,
            GroupState.STABLE if kept["members"] else GroupState.EMPTY,
            kept["generation"],
            kept["protocol_type"],
            kept["protocol"],
            kept["leader"],
        )
        for each in kept["members"]:
            member = ClassicMember(
                each["id"],
                each["instance"],
                each["client"],
                each["host"],
                each["session_ms"],
                each["rebalance_ms"],
                ((kept["protocol"], bytes.fromhex(each["metadata"])),),
                bytes.fromhex(each["assignment"]),
            )
            group.members[member.member_id] = member
            if member.instance_id is not None:
                group.static[member.instance_id] = member.member_id
            self._heard(group, member)
        self.groups[name] = group

    def _heard(self, group: ClassicGroup, member: ClassicMember) -> None:
        """The member lives: its time begins anew."""
        due_ms = self._clock.now_ms() + member.session_ms
        if due_ms - member.due_ms > 100 or member.due_ms > due_ms:
            self._deadlines.remove((group, member), member.due_ms)
            member.due_ms = due_ms
            self._deadlines.add((group, member), due_ms)

    def _overdue(self, things: list[tuple[ClassicGroup, "ClassicMember | str"]]) -> None:
        for group, thing in things:
            if isinstance(thing, str):
                if (
                    group.pending.pop(thing, None) is not None
                    and group.state is GroupState.PREPARING
                ):
                    self._complete_if_all_joined(group)
            elif group.members.get(thing.member_id) is thing:
                if thing.waits:
                    thing.due_ms = 0
                    self._heard(group, thing)
                else:
                    self._forget(group, thing)
                    self._changed_members(group)

    def _forget(self, group: ClassicGroup, member: ClassicMember) -> None:
        del group.members[member.member_id]
        if member.instance_id is not None:
            del group.static[member.instance_id]
        self._deadlines.remove((group, member), member.due_ms)
        if group.leader == member.member_id:
            group.leader = next(iter(group.members), "")

    def _changed_members(self, group: ClassicGroup) -> None:
        """Somebody is gone: the others need a new generation."""
        if not group.members:
            self._become_empty(group)
        elif group.state is GroupState.PREPARING:
            self._complete_if_all_joined(group)
        else:
            self._prepare(group)

    def _become_empty(self, group: ClassicGroup) -> None:
        group.generation += 1
        group.round += 1
        group.state, group.protocol, group.leader = GroupState.EMPTY, "", ""
        self._on_change(group)

    def _require(
        self, name: str, member_id: str, instance_id: str | None
    ) -> tuple[ClassicGroup, ClassicMember]:
        group = self.groups.get(name)
        if group is None:
            raise _unknown(name, member_id)
        if instance_id is not None:
            holder = group.static.get(instance_id)
            if holder is None:
                raise _unknown(name, member_id)
            if holder != member_id:
                raise _fenced(instance_id)
        member = group.members.get(member_id)
        if member is None:
            raise _unknown(name, member_id)
        return group, member

    def _answer(self, member: ClassicMember, error: OnelogError) -> None:
        """Tell a member that waits that it waits in vain."""
        on_joined, member.on_joined = member.on_joined, None
        on_synced, member.on_synced = member.on_synced, None
        if on_joined is not None:
            on_joined(None, error)
        if on_synced is not None:
            on_synced(None, error)


def check_session(joining: Joining) -> None:
    """Whether a member may be silent for as long as it wants to be."""
    if not joining.session_min_ms <= joining.session_ms <= SESSION_MAX_MS:
        raise InvalidSessionTimeoutError(
            f"session.timeout.ms is {joining.session_ms}; a group takes from "
            f"{joining.session_min_ms} to {SESSION_MAX_MS}"
        )


def kept(group: ClassicGroup) -> dict[str, Any]:
    """What `ClassicGroups.restore` needs, as plain JSON."""
    return {
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader,
        "members": [
            {
                "id": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.client_host,
                "session_ms": member.session_ms,
                "rebalance_ms": member.rebalance_ms,
                "metadata": member.metadata(group.protocol).hex(),
                "assignment": member.assignment.hex(),
            }
            for member in group.members.values()
        ],
    }


def _voted(group: ClassicGroup) -> str:
    """The protocol that most members like best, of those that all know."""
    members = group.members.values()
    common = set.intersection(*({name for name, _ in member.protocols} for member in members))
    votes = Counter(
        next(name for name, _ in member.protocols if name in common) for member in members
    )
    return votes.most_common(1)[0][0]


def _unknown(group: str, member_id: str) -> UnknownMemberError:
    return UnknownMemberError(f"{member_id!r} is no member of group {group}: it has to join again")


def _member(member_id: str, joining: Joining) -> ClassicMember:
    return ClassicMember(
        member_id,
        joining.instance_id,
        joining.client_id,
        joining.client_host,
        joining.session_ms,
        joining.rebalance_ms,
        tuple(joining.protocols),
    )


def _fenced(instance_id: str) -> FencedInstanceError:
    return FencedInstanceError(
        f"group.instance.id {instance_id!r} is used by another process now: give each its own"
    )


def _stale(group: ClassicGroup, generation: int) -> IllegalGenerationError:
    return IllegalGenerationError(
        f"group {group.name} is in generation {group.generation}, not in {generation}"
    )


def _rebalancing(group: ClassicGroup) -> RebalanceInProgressError:
    return RebalanceInProgressError(f"group {group.name} waits for its members to join again")
