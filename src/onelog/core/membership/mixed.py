"""Groups with members of both of Kafka's protocols, so that consumers can change over one by one.

Such a group is one of the newer kind. Its classic members join, sync and send heartbeats as ever:
to join is a heartbeat of the newer kind, in which the member says what it has and learns what it
may have, and the epoch that it reaches is told as a generation. A member that has to give something
up, or may have more, is told to join again by its next heartbeat. Nobody leads.

A classic group becomes such a group when the first member of the newer kind comes, and is a classic
one again when the last one has left. That needs members who say in the words of Kafka's consumers
what they want; what others say are bytes to us, and their groups stay what they are.

    subscription    int16 version, topics: names; int32 length, bytes of the client's own;
                    from version 1 on, what it has: names, with int32 partitions
    assignment      int16 version 0, what it gets: names, with int32 partitions; int32 -1

    lists have an int32 count before them, names an int16 length
"""

import struct
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from onelog.core.membership.assignors import Partition
from onelog.core.membership.classic import (
    ClassicGroup,
    ClassicGroups,
    Joined,
    Joining,
    OnJoined,
    Synced,
    check_session,
)
from onelog.core.membership.consumers import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Beat,
    ConsumerGroup,
    ConsumerGroups,
    ConsumerMember,
    MemberState,
)
from onelog.errors import (
    FencedInstanceError,
    IllegalGenerationError,
    InconsistentProtocolError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberError,
)

CONSUMERS = "consumer"
"""The type of protocol whose words are known here."""


class ClassicSubscription(NamedTuple):
    """What a classic consumer says of itself."""

    topics: tuple[str, ...]
    owned: frozenset[Partition] = frozenset()


class MixedGroups:
    """What becomes of classic members in groups of the newer kind."""

    def __init__(
        self, classic: ClassicGroups, consumers: ConsumerGroups, new_id: Callable[[], str]
    ) -> None:
        self._classic = classic
        self._consumers = consumers
        self._new_id = new_id

    def find(self, name: str) -> ConsumerGroup | None:
        """The group, if its members are of the newer kind, or of both."""
        group = self._consumers.groups.get(name)
        return group if group is not None and group.members else None

    # -- what classic members do ---------------------------------------------------------------

    def join(self, group: ConsumerGroup, joining: Joining, on_joined: OnJoined) -> None:
        """Join the group, or go on in it."""
        check_session(joining)
        if joining.protocol_type != CONSUMERS or not joining.protocols:
            raise InconsistentProtocolError(f"group {group.name} is one of consumers")
        (protocol, said), instance_id = joining.protocols[0], joining.instance_id
        wanted = subscription(said)
        member_id = joining.member_id
        if not member_id:
            stem = joining.client_id if instance_id is None else instance_id
            member_id = f"{stem}-{self._new_id()}"
            if joining.needs_known_id and instance_id is None:
                raise MemberIdRequiredError(member_id)
            holder = None if instance_id is None else group.static.get(instance_id)
            if holder is not None:  # It is back in another process.
                self._consumers.heartbeat(Beat(group.name, holder, AWAY_EPOCH, instance_id))
        beat = Beat(
            group.name,
            member_id,
            JOIN_EPOCH,
            instance_id,
            None,
            joining.rebalance_ms,
            wanted.topics,
            "",
            None,
            wanted.owned,
            joining.client_id,
            joining.client_host,
            joining.session_ms,
            tuple(joining.protocols),
        )
        member = self._beat(group, beat)
        if member.revoking and member.revoking.isdisjoint(wanted.owned):
            member = self._beat(group, beat)  # It has given up already what it is asked to.
        on_joined(Joined(member.epoch, CONSUMERS, protocol, "", member.member_id), None)

    def _beat(self, group: ConsumerGroup, beat: Beat) -> ConsumerMember:
        known = group.members.get(beat.member_id)
        epoch = JOIN_EPOCH if known is None or known.epoch < 0 else known.epoch
        self._consumers.heartbeat(beat._replace(epoch=epoch))
        member = group.members.get(beat.member_id)
        if member is None:
            raise _rebalancing(group)  # It has become a classic group by this.
        return member

    def sync(
        self, group: ConsumerGroup, member_id: str, generation: int, instance_id: str | None
    ) -> Synced:
        member = self._require(group, member_id, generation, instance_id)
        if member.epoch < group.epoch and member.state is not MemberState.UNREVOKED:
            raise _rebalancing(group)
        return Synced(CONSUMERS, member.protocols[0][0], assignment(member.assigned))

    def heartbeat(
        self, group: ConsumerGroup, member_id: str, generation: int, instance_id: str | None
    ) -> None:
        """The member is alive; raises what it has to know."""
        member = self._require(group, member_id, generation, instance_id)
        self._consumers.heard(group, member)
        if (
            member.epoch < group.epoch
            or member.state is MemberState.UNREVOKED
            or self._consumers.has_more(group, member)
        ):
            raise _rebalancing(group)

    def leave(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        """A member leaves; an administrator names a static one by its own name alone."""
        if not member_id and instance_id is not None:
            member_id = group.static.get(instance_id, "")
        self._consumers.heartbeat(Beat(group.name, member_id, LEAVE_EPOCH, instance_id))

    def _require(
        self, group: ConsumerGroup, member_id: str, generation: int, instance_id: str | None
    ) -> ConsumerMember:
        if instance_id is not None and group.static.get(instance_id, member_id) != member_id:
            raise FencedInstanceError(f"{instance_id!r} belongs to another member now")
        member = group.members.get(member_id)
        if member is None or not member.protocols:
            raise UnknownMemberError(f"{member_id!r} is no classic member of group {group.name}")
        if generation != member.epoch:
            raise IllegalGenerationError(f"{member_id} is at {member.epoch}, not at {generation}")
        return member

    # -- changing over -------------------------------------------------------------------------

    def upgrade(self, old: ClassicGroup) -> None:
        """Make a classic group one of the newer kind, with the members that it has."""
        if old.protocol_type != CONSUMERS:
            raise InconsistentProtocolError(f"group {old.name} is not one of consumers")
        epoch = max(1, old.generation)
        group = ConsumerGroup(old.name, epoch, epoch)
        for each in old.members.values():
            assigned = assigned_in(each.assignment) - group.owners.keys()
            member = ConsumerMember(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                None,
                each.rebalance_ms,
                subscription(each.protocols[0][1]).topics,
                epoch=epoch,
                assigned=assigned,
                session_ms=each.session_ms,
                protocols=tuple(each.protocols),
            )
            group.members[member.member_id] = member
            if member.instance_id is not None:
                group.static[member.instance_id] = member.member_id
            group.target[member.member_id] = assigned
            group.owners.update(dict.fromkeys(assigned, member.member_id))
        self._classic.dissolve(old)
        self._consumers.adopt(group)

    def downgrade(self, group: ConsumerGroup) -> bool:
        """Make it a classic group, if all its members are; whether it is one now."""
        members = list(group.members.values())
        if not members or not all(member.protocols for member in members):
            return False
        common = set.intersection(*({name for name, _ in each.protocols} for each in members))
        if not common:
            return False
        protocol = next(name for name, _ in members[0].protocols if name in common)
        kept: dict[str, Any] = {
            "generation": max(member.epoch for member in members),
            "protocol_type": CONSUMERS,
            "protocol": protocol,
            "leader": members[0].member_id,
            "members": [
                {
                    "id": each.member_id,
                    "instance": each.instance_id,
                    "client": each.client_id,
                    "host": each.client_host,
                    "session_ms": each.session_ms,
                    "rebalance_ms": each.rebalance_ms,
                    "metadata": dict(each.protocols)[protocol].hex(),
                    "assignment": assignment(each.assigned).hex(),
                }
                for each in members
            ],
        }
        self._consumers.dissolve(group)
        self._classic.restore(group.name, kept)
        self._classic.share_out_anew(group.name)
        return True


def _rebalancing(group: ConsumerGroup) -> RebalanceInProgressError:
    return RebalanceInProgressError(f"group {group.name} has something else for this member")


# -- the words of Kafka's consumers --------------------------------------------------------------


class _Words:
    """Reads what consumers say."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0

    def number(self, kind: str = ">i") -> int:
        (found,) = struct.unpack_from(kind, self._raw, self._at)
        self._at += struct.calcsize(kind)
        return int(found)

    def name(self) -> str:
        size = self.number(">h")
        found = self._raw[self._at : self._at + max(size, 0)]
        if len(found) != size:
            raise ValueError("a name is cut off")
        self._at += size
        return found.decode()

    def skip_bytes(self) -> None:
        size = self.number()
        self._at += max(0, size)

    def partitions(self) -> frozenset[Partition]:
        found: set[Partition] = set()
        for _ in range(self.number()):
            topic = self.name()
            found.update((topic, self.number()) for _ in range(self.number()))
        return frozenset(found)


def subscription(raw: bytes) -> ClassicSubscription:
    """What a consumer says when it joins; `InconsistentProtocolError` if these are other words."""
    words = _Words(raw)
    try:
        version = words.number(">h")
        topics = tuple(sorted(words.name() for _ in range(words.number())))
        if version < 1:
            return ClassicSubscription(topics)
        words.skip_bytes()
        return ClassicSubscription(topics, words.partitions())
    except (struct.error, ValueError) as error:
        raise InconsistentProtocolError(f"no subscription of a consumer: {error}") from None


def assigned_in(raw: bytes) -> frozenset[Partition]:
    """The partitions in an assignment; none if these are other words."""
    words = _Words(raw)
    try:
        words.number(">h")
        return words.partitions()
    except (struct.error, ValueError):
        return frozenset()


def assignment(partitions: Collection[Partition]) -> bytes:
    """What a consumer is told that it gets."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    pieces = [struct.pack(">hi", 0, len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        pieces += [struct.pack(">h", len(name)), name]
        pieces.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join((*pieces, struct.pack(">i", -1)))
