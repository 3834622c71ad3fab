"""Share groups (KIP-932): members get partitions to lease messages from, and many may have one.

They are groups of the newer kind in which nobody has to give anything up before another may have
it: a member has its target as soon as it hears of it.

Invariant: every partition that somebody subscribes to is somebody's, and every member has one, if
there is any for it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from onelog.core.membership.assignors import Partition, Subscriptions
from onelog.core.membership.consumers import ConsumerGroup, ConsumerGroups, ConsumerMember

ASSIGNOR = "simple"
SHARE_MEMBERS_MAX = 200


def shared(
    subscriptions: Subscriptions, partitions: Mapping[str, int]
) -> dict[str, frozenset[Partition]]:
    """Partitions in turn to members, or members in turn to partitions, whichever are more."""
    shares: dict[str, set[Partition]] = {member: set() for member in subscriptions}
    turn = 0
    for topic in sorted(partitions):
        members = [each for each in sorted(subscriptions) if topic in subscriptions[each]]
        for number in range(max(len(members), partitions[topic]) if members else 0):
            member = members[(turn + number) % len(members)]
            shares[member].add((topic, number % partitions[topic]))
        turn += partitions[topic]  # One topic after another would favour the first members.
    return {member: frozenset(share) for member, share in shares.items()}


class ShareGroups(ConsumerGroups):
    """All groups of this kind."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts, members_max=SHARE_MEMBERS_MAX)
        self.on_lost: Callable[[str, str], None] = lambda group, member: None
        """Called with a group and a member that is silent for too long."""

    def _assign(self, group: ConsumerGroup) -> None:
        wanted = {
            member.member_id: self._wanted(member, group.partitions)
            for member in group.members.values()
        }
        group.assignor = ASSIGNOR
        group.target = shared(wanted, group.partitions)
        group.assignment_epoch = group.epoch

    def _follow(
        self, group: ConsumerGroup, member: ConsumerMember, owned: Iterable[Partition] | None
    ) -> None:
        member.assigned = group.target.get(member.member_id, frozenset())
        if member.epoch != group.assignment_epoch:
            member.previous_epoch, member.epoch = member.epoch, group.assignment_epoch

    def _overdue(self, things: list[tuple[ConsumerGroup, ConsumerMember, str]]) -> None:
        super()._overdue(things)
        for group, member, _ in things:
            # One that leaves may still be about to say what became of its messages.
            if member.member_id not in group.members:
                self.on_lost(group.name, member.member_id)
