"""Groups whose members come to the broker to share out: Kafka's protocols, and their positions.

What all kinds have in common is here: who may ask, one table to be found again in after a restart,
and positions that are recorded when they are answered. They are the positions that every other
consumer of the group has, too.

    table     "group_protocols": {group: {"kind": "classic" | "consumer" | "share", what that kind
              keeps}}; a change of one member has the key "group\\0member", and what is kept of it

When a group of Kafka's was used last is known, too: positions of one that nobody uses are forgotten
after a time. One that RocketMQ's clients use as well is theirs: its positions are kept for ever.

    table     "group_uses": {group: milliseconds of the last use; -1 if RocketMQ's clients use it}

Times are written down once in a while only: a group is forgotten a little late, never early.

It is a part of the door: who asks is the first argument, as everywhere in `broker`.

Invariants: a group is of one kind, and classic members in one of the newer kind are in `mixed`; a
group that is not in "group_uses" was never used by a Kafka client.
"""

import logging
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from onelog.clock import Clock
from onelog.core.access import SELF, Access, Principal
from onelog.core.catalog.groups import GroupConfig, Groups
from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.cursors.offset_notes import NO_NOTE, Note, OffsetNotes
from onelog.core.cursors.offsets import Offsets
from onelog.core.durable.durability import WhenSafe
from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import Change, Tables, in_parts
from onelog.core.membership import classic, consumers
from onelog.core.membership.classic import ClassicGroup, ClassicGroups, Joining, OnJoined, OnSynced
from onelog.core.membership.consumers import Beat, Beaten, ConsumerGroup, ConsumerGroups
from onelog.core.membership.group_membership import GroupMembership
from onelog.core.membership.members import Members
from onelog.core.membership.mixed import MixedGroups
from onelog.core.membership.shares import ShareGroups
from onelog.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    InconsistentProtocolError,
    InvalidGroupError,
    OnelogError,
)
from onelog.names import DEAD_LETTER_PREFIX

_SHARED = -1
_COMING_BACK_MS = 600_000
"""After a start, consumers have that long to come back, however long the broker was away."""
_STEP_MS = 3_600_000
_STEPS_MIN = 4
"""Times are this exact: to the hour, or to a part of the time that a group is kept."""


class GroupUses:
    """The table of Kafka's groups, and when each was used."""

    name = "group_uses"

    def __init__(self, tables: Tables, groups: Groups, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock
        self._opened_ms = clock.now_ms()
        self._uses: dict[str, int] = {}
        self._to_look_at: Iterator[str] = iter(())
        self.retention_ms = 0
        """How long a group is kept that nobody uses; 0 is for ever."""
        groups.on_change.append(self._group_changed)

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._uses.pop(key, None)
        else:
            self._uses[key] = int(value)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every group; some at a time."""
        return map(dict, in_parts(self._uses))

    @property
    def any(self) -> bool:
        """Whether a Kafka client ever used a group."""
        return bool(self._uses)

    def known(self, group: str) -> None:
        """The group is Kafka's; if nothing is known of its use, that is now."""
        if group not in self._uses:
            self.used(group)

    def used(self, group: str, *, ours: bool = True) -> None:
        """A Kafka client uses the group now; `ours`: before this, only such clients did, if any."""
        last_ms, now_ms = self._uses.get(group), self._clock.now_ms()
        if last_ms is None:
            self._write(group, now_ms if ours else _SHARED)
        elif last_ms != _SHARED and now_ms - last_ms >= self._step_ms:
            self._write(group, now_ms)

    @property
    def _step_ms(self) -> int:
        return min(_STEP_MS, self.retention_ms // _STEPS_MIN or _STEP_MS)

    def share(self, group: str) -> None:
        """RocketMQ's clients use the group."""
        if self._uses.get(group, _SHARED) != _SHARED:
            self._write(group, _SHARED)

    def next(self, count: int) -> list[str]:
        """Some more groups to look at; none if all were, and the next call begins anew."""
        some = list(islice(self._to_look_at, count))
        if not some:
            self._to_look_at = iter(list(self._uses))
        return some

    def is_over(self, group: str) -> bool:
        """Whether it is so long ago that the group was used that it is to be forgotten."""
        last_ms, now_ms = self._uses.get(group, _SHARED), self._clock.now_ms()
        if last_ms == _SHARED or now_ms - self._opened_ms < min(_COMING_BACK_MS, self.retention_ms):
            return False
        return now_ms - last_ms > self.retention_ms > 0

    def _write(self, group: str, value: int | None) -> None:
        self._tables.write([(self.name, group, value)])

    def _group_changed(self, name: str, config: GroupConfig | None) -> None:
        if config is None and name in self._uses:
            self._write(name, None)


log = logging.getLogger(__name__)

CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"
_GROUPS_AT_ONCE = 20
"""Groups that are looked at together; each of them may have to be forgotten."""
_OF = "\0"
"""Between a group and its member; neither has it in its name."""
_COUNT, _LENGTH = struct.Struct(">i"), struct.Struct(">h")


class CommittingMember(NamedTuple):
    """Who somebody says to be, when he commits positions; nobody, by default."""

    member_id: str = ""
    generation: int = -1
    """Of the group, or the epoch of the member."""
    instance_id: str | None = None


class Position(NamedTuple):
    """A group's position in one queue; -1 if it has none."""

    offset: int
    note: Note = NO_NOTE
    is_pending: bool = False
    """Whether an open transaction will move it."""


class Listed(NamedTuple):
    """A group in a few words."""

    name: str
    kind: str
    protocol_type: str
    state: str


SettledListener = Callable[[str, bool], None]
"""Called with a group that has settled, or is gone, and whether it is a classic one now."""
Positions = Mapping[str, Mapping[int, Position]]
"""By topic and queue."""


class Coordinator:
    """All groups of Kafka's kinds."""

    name = "group_protocols"

    def __init__(
        self,
        access: Access,
        broker_name: str,
        storage: Storage,
        topics: Topics,
        groups: Groups,
        members: Members,
        offsets: Offsets,
        membership: GroupMembership,
    ) -> None:
        self.access = access
        self._broker_name = broker_name
        tables = self._tables = storage.tables
        runtime = storage.runtime
        clock, schedule, new_id = runtime.clock, runtime.schedule, runtime.new_id
        self._topics = topics
        self._groups = groups
        self._members = members
        self._offsets = offsets
        self._membership = membership
        self._when_durable = storage.durability.when_safe
        self.notes = OffsetNotes(tables, topics, groups)
        self.uses = GroupUses(tables, groups, clock)
        self._classic = ClassicGroups(clock, schedule, new_id, self._classic_changed)
        self._consumers = ConsumerGroups(
            clock, schedule, new_id, self._partitions, self._consumers_changed
        )
        self.shares = ShareGroups(clock, schedule, new_id, self._partitions, self._shares_changed)
        self._mixed = MixedGroups(self._classic, self._consumers, new_id)
        self._kept: dict[str, dict[str, Any]] = {}
        self.on_settled: list[SettledListener] = []
        self._counts: dict[str, int] | None = None
        self.pending: Callable[[str], list[Positions]]
        """Where open transactions will move a group, each of them."""
        self.guard: Callable[[str], None] = lambda name: None
        """Raises if another broker is to be asked about a group."""
        self.require_current = storage.durability.require_current
        """Raises if positions that are known here may be old ones."""
        self.count: Callable[[TopicConfig], int] = lambda config: config.queues
        """How many partitions a topic has, on all brokers."""
        topics.on_change.append(self._topic_changed)
        groups.on_change.append(self._group_changed)
        offsets.on_move.append(self._moved)

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        name, of_member, member_id = key.partition(_OF)
        if of_member:
            members = self._kept.get(name, {}).setdefault("members", {})
            if value is None:
                members.pop(member_id, None)
            else:
                members[member_id] = value
        elif value is None:
            self._kept.pop(name, None)
        else:
            before = self._kept.get(name, {})
            if value["kind"] == before.get("kind") and "members" in before:
                value = {"members": before["members"], **value}
            self._kept[name] = value
        if not of_member:
            for listener in self.on_settled:
                listener(name, value is not None and value["kind"] == CLASSIC)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every group; some at a time."""
        return map(dict, in_parts(self._kept))

    def open(self) -> None:
        """Take up the groups as they were."""
        for name, kept in list(self._kept.items()):
            try:
                if kept["kind"] == CLASSIC:
                    self._classic.restore(name, kept)
                elif kept["kind"] == CONSUMER:
                    self._consumers.restore(name, kept)
                else:
                    self.shares.restore(name, kept)
            except Exception as error:  # As in `Tables`: whoever wrote it could write anything.
                self._tables.set_aside(self.name, name, self._kept.pop(name), error)
            self.uses.known(name)

    def _classic_changed(self, group: ClassicGroup) -> None:
        kept = {"kind": CLASSIC, **classic.kept(group)}
        if self._kept.get(group.name) != kept:
            self._tables.write([(self.name, group.name, kept)])

    def _consumers_changed(self, group: ConsumerGroup) -> None:
        if not self._mixed.downgrade(group):  # Then it is kept when its members have shared out.
            self._keep(CONSUMER, group)

    def _shares_changed(self, group: ConsumerGroup) -> None:
        self._keep(SHARE, group)

    def _keep(self, kind: str, group: ConsumerGroup) -> None:
        """Record what has changed in a group: of many members, mostly one."""
        before = self._kept.get(group.name, {})
        changes: list[Change] = []
        if before.get("kind") != kind:
            group.touched.update(group.members)
        if (before.get("kind"), before.get("epoch")) != (kind, group.epoch):
            changes.append((self.name, group.name, {"kind": kind, "epoch": group.epoch}))
        for member_id in group.touched:
            member = group.members.get(member_id)
            kept = None if member is None else consumers.kept(member)
            changes.append((self.name, f"{group.name}{_OF}{member_id}", kept))
        self._tables.write(changes)
        group.touched.clear()

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        self.recount()

    def recount(self) -> None:
        """Topics have other numbers of partitions."""
        self._counts = None

    def _group_changed(self, name: str, config: GroupConfig | None) -> None:
        if config is None and name in self._kept:
            self._tables.write([(self.name, name, None)])

    def _moved(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        """Somebody moved the group: its members go there when they share out anew."""
        self._classic.share_out_anew(group)

    def _partitions(self) -> Mapping[str, int]:
        """The topics that consumers may subscribe to, and how many queues they have."""
        if self._counts is None:
            naming = self._topics.naming
            self._counts = {
                config.name: self.count(config)
                for config in self._topics.all()
                if not self._topics.is_system(config.name)
                and not naming.is_retry(config.name)
                and not config.name.startswith((naming.dead_letter_prefix, DEAD_LETTER_PREFIX))
            }
        return self._counts

    # -- members -------------------------------------------------------------------------------

    def join(self, principal: Principal, joining: Joining, on_joined: OnJoined) -> None:
        """Join a classic group; see `ClassicGroups.join`."""
        self._check(principal, joining.group)
        self._require_no_sharing(joining.group)
        self.use(joining.group)
        if (mixed := self._mixed.find(joining.group)) is not None:
            self._mixed.join(mixed, joining, on_joined)
            return
        self._classic.join(joining, on_joined)
        self._consumers.groups.pop(joining.group, None)
        self.shares.groups.pop(joining.group, None)

    def sync(
        self,
        principal: Principal,
        group: str,
        member: CommittingMember,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Sequence[tuple[str, bytes]],
        on_synced: OnSynced,
    ) -> None:
        """Learn one's part in a classic group; see `ClassicGroups.sync`."""
        self._check(principal, group)
        if (mixed := self._mixed.find(group)) is not None:
            on_synced(self._mixed.sync(mixed, *member), None)
            return
        self._classic.sync(
            group,
            member.generation,
            member.member_id,
            member.instance_id,
            protocol_type,
            protocol,
            assignments,
            on_synced,
        )

    def heartbeat(self, principal: Principal, group: str, member: CommittingMember) -> None:
        """A member of a classic group is alive; raises what it has to know."""
        self._check(principal, group)
        if (mixed := self._mixed.find(group)) is not None:
            self._mixed.heartbeat(mixed, *member)
            return
        self._classic.heartbeat(group, member.generation, member.member_id, member.instance_id)

    def leave(self, principal: Principal, group: str, member: CommittingMember) -> None:
        """A member leaves a classic group."""
        self._check(principal, group)
        if (mixed := self._mixed.find(group)) is not None:
            self._mixed.leave(mixed, member.member_id, member.instance_id)
            return
        self._classic.leave(group, member.member_id, member.instance_id)

    def beat(self, principal: Principal, beat: Beat) -> Beaten:
        """A heartbeat of a member of the newer kind; see `ConsumerGroups.heartbeat`."""
        self._check(principal, beat.group)
        found = self._classic.groups.get(beat.group)
        self._require_no_sharing(beat.group)
        self.use(beat.group)
        if found is not None and found.members and beat.epoch == consumers.JOIN_EPOCH:
            try:
                self._mixed.upgrade(found)
            except InconsistentProtocolError as error:
                raise GroupNotFoundError(str(error)) from None
        try:
            beaten = self._consumers.heartbeat(beat)
        except OnelogError:
            if (mixed := self._mixed.find(beat.group)) is not None:
                self._mixed.downgrade(mixed)  # It was made for a member that did not come.
            raise
        self._classic.groups.pop(beat.group, None)
        self.shares.groups.pop(beat.group, None)
        return beaten

    def beat_share(self, principal: Principal, beat: Beat) -> Beaten:
        """A heartbeat of a member of a share group; see `ShareGroups`."""
        self._check(principal, beat.group)
        for known in (self._classic.groups, self._consumers.groups):
            if beat.group in known and known[beat.group].members:
                raise GroupNotFoundError(f"members of {beat.group} do not share its messages")
        self.use(beat.group)
        beaten = self.shares.heartbeat(beat)
        self._classic.groups.pop(beat.group, None)
        self._consumers.groups.pop(beat.group, None)
        return beaten

    def require_share_group(self, principal: Principal, name: str) -> None:
        """`GroupNotEmptyError` or `GroupNotFoundError` if no share group can be moved or made."""
        self._check(principal, name)
        found = self.shares.groups.get(name)
        if found is not None and found.members:
            raise GroupNotEmptyError(f"group {name} has {len(found.members)} members: stop them")
        if found is None and (
            name in self._classic.groups
            or name in self._consumers.groups
            or self._members.group(name) is not None
            or self._offsets.topics_of(name)
        ):
            raise GroupNotFoundError(f"group {name} is there, and is no share group")

    def make_share_group(self, principal: Principal, name: str) -> None:
        """An administrator says where a share group begins, before its first member comes."""
        self.require_share_group(principal, name)
        if name not in self.shares.groups:
            self.use(name)
            group = self.shares.groups[name] = ConsumerGroup(name, 1, 1)
            self._shares_changed(group)

    def _require_no_sharing(self, group: str) -> None:
        found = self.shares.groups.get(group)
        if found is not None and found.members:
            raise InconsistentProtocolError(f"members of {group} share its messages")

    def use(self, group: str) -> None:
        """A Kafka client uses a group, which is made if that is allowed."""
        is_ours = self._groups.get(group) is None or group in self._kept
        self._groups.require(group)
        self.uses.used(group, ours=is_ours)

    def expire(self) -> bool:
        """Forget some groups that nobody has used for long; whether there are more to look at."""
        some = self.uses.next(_GROUPS_AT_ONCE) if self.uses.retention_ms else []
        for name in some:
            if self._members.group(name) is not None:
                self.uses.share(name)
            elif any(
                name in known and known[name].members
                for known in (self._classic.groups, self._consumers.groups, self.shares.groups)
            ):
                self.uses.used(name)
            elif self.uses.is_over(name):
                log.info("group %s was not used for long: its positions are forgotten", name)
                self._forget(SELF, name)
        return bool(some)

    def _check(self, principal: Principal, group: str) -> None:
        if not self.access.is_open:
            self.access.check(principal, "consume", ("group", group))
        if not group:
            raise InvalidGroupError("a consumer group needs a name")
        self.guard(group)

    # -- positions -----------------------------------------------------------------------------

    def check_member(
        self,
        principal: Principal,
        group: str,
        member: CommittingMember,
        *,
        in_transaction: bool = False,
    ) -> None:
        """Whether positions may be committed by whoever says to be this member."""
        self._check(principal, group)
        if group in self.shares.groups:
            raise GroupNotFoundError(
                f"group {group} is a share group: it has no members' positions"
            )
        found = self._consumers.groups.get(group)
        if found is not None and (found.members or member.generation >= 0):
            self._consumers.check_commit(group, member.member_id, member.generation)
        else:
            self._classic.check_commit(
                group,
                member.generation,
                member.member_id,
                member.instance_id,
                in_transaction=in_transaction,
            )

    def commit(
        self,
        principal: Principal,
        group: str,
        member: CommittingMember,
        positions: Positions,
        when_safe: WhenSafe,
    ) -> None:
        """Commit positions; calls back when they are as safe as configured.

        A queue that somebody has just moved stays where it was moved to, until a member asks for
        its position; who is no member moves it again.
        """
        self.check_member(principal, group, member)
        self.use(group)
        if member.generation < 0 and self._offsets.has_resets:
            for topic, queues in positions.items():
                for queue_id in queues:
                    self._offsets.take_reset(group, topic, queue_id)
        self._tables.write(self.committing(group, positions))
        self._when_durable(when_safe)

    def committing(self, group: str, positions: Positions) -> list[Change]:
        """The changes that commit positions; the caller records them."""
        notes_changed: list[Change] = []
        moved: dict[str, dict[int, int]] = {}
        for topic, queues in positions.items():
            kept = {
                queue_id: position
                for queue_id, position in queues.items()
                if not self._offsets.is_reset(group, topic, queue_id)
            }
            moved[topic] = {queue_id: each.offset for queue_id, each in kept.items()}
            notes = {queue_id: each.note for queue_id, each in kept.items()}
            notes_changed += self.notes.changes(group, topic, notes)
        return self._offsets.committing(group, moved) + notes_changed

    def positions(
        self, principal: Principal, group: str, wanted: Mapping[str, Sequence[int]] | None
    ) -> Iterator[tuple[str, Iterator[tuple[int, Position]]]]:
        """Where a group goes on in these queues, topic by topic, or wherever it has a position.

        There may be very many, and each is looked up only when it is its turn.
        """
        self._check(principal, group)
        self.require_current()
        pending = self.pending(group)
        topics = self._offsets.topics_of(group) if wanted is None else list(wanted)
        return (
            (
                topic,
                self._positions(group, topic, None if wanted is None else wanted[topic], pending),
            )
            for topic in topics
        )

    def _positions(
        self, group: str, topic: str, queue_ids: Sequence[int] | None, pending: Sequence[Positions]
    ) -> Iterator[tuple[int, Position]]:
        if queue_ids is None:
            queue_ids = sorted(self._offsets.of(group, topic))
        for queue_id in queue_ids:
            offset = self._offsets.get(group, topic, queue_id)
            if self._offsets.has_resets:
                self._offsets.take_reset(group, topic, queue_id)
            is_pending = any(queue_id in each.get(topic, ()) for each in pending)
            note = NO_NOTE if offset is None else self.notes.get(group, topic, queue_id)
            yield queue_id, Position(-1 if offset is None else offset, note, is_pending)

    def forget_position(self, principal: Principal, group: str, topic: str, queue_id: int) -> None:
        self.access.check(principal, "delete", ("group", group))
        self._offsets.forget(group, topic, queue_id)

    # -- asking --------------------------------------------------------------------------------

    def committed_parts(self, principal: Principal) -> Iterator[list[tuple[str, str, list[int]]]]:
        """All groups, topics, and queues in which the group has a position; some at a time."""
        self.access.check(principal, "describe", ("broker", self._broker_name))
        return (
            [
                (group, topic, list(queues))
                for (group, topic), queues in part
                if not self._groups.is_system(group)
            ]
            for part in self._offsets.in_parts()
        )

    def committed(
        self, principal: Principal, group: str, topic: str, queue_id: int
    ) -> Position | None:
        """Where a group is, for who only looks: nothing follows from it."""
        self.access.check(principal, "describe", ("group", group))
        self.guard(group)
        offset = self._offsets.get(group, topic, queue_id)
        return (
            offset if offset is None else Position(offset, self.notes.get(group, topic, queue_id))
        )

    @property
    def is_used(self) -> bool:
        """Whether any group of Kafka's clients is known."""
        return bool(self._kept) or self.uses.any

    def classic_names(self, principal: Principal) -> list[str]:
        self.access.check(principal, "describe", ("broker", self._broker_name))
        return list(self._classic.groups)

    def classic_group(self, principal: Principal, group: str) -> ClassicGroup | None:
        """A classic group; None if there is none."""
        self.access.check(principal, "describe", ("group", group))
        self.guard(group)
        return self._classic.groups.get(group)

    def consumer_group(self, principal: Principal, group: str) -> ConsumerGroup | None:
        """A group of the newer kind; None if there is none."""
        self.access.check(principal, "describe", ("group", group))
        self.guard(group)
        return self._consumers.groups.get(group)

    def share_group(self, principal: Principal, group: str) -> ConsumerGroup | None:
        """A share group; None if there is none."""
        self.access.check(principal, "describe", ("group", group))
        self.guard(group)
        return self.shares.groups.get(group)

    def has_positions(self, principal: Principal, group: str) -> bool:
        """Whether a group is anywhere."""
        self.access.check(principal, "describe", ("group", group))
        return bool(self._offsets.topics_of(group))

    def topics_read(self, principal: Principal, group: str) -> frozenset[str] | None:
        """The topics that members of a group read; None if nobody knows, because they share out."""
        self.access.check(principal, "describe", ("group", group))
        newer = self._consumers.groups.get(group)
        if newer is not None and newer.members:
            return frozenset(newer.partitions)
        known = self._classic.groups.get(group)
        if known is None or not known.members:
            return frozenset()
        return subscribed([member.metadata(known.protocol) for member in known.members.values()])

    def listed(self, principal: Principal) -> list[Listed]:
        """Every group with members, and every group that has a position."""
        self.access.check(principal, "describe", ("broker", self._broker_name))
        found: dict[str, Listed] = {}
        for name in self._offsets.topics_by_group():
            if not self._groups.is_system(name):
                found[name] = Listed(name, CLASSIC, "", "Empty")
        for name, group in self._classic.groups.items():
            found[name] = Listed(name, CLASSIC, group.protocol_type, group.state.value)
        for name, each in self._consumers.groups.items():
            found[name] = Listed(name, CONSUMER, CONSUMER, each.state)
        for name, each in self.shares.groups.items():
            found[name] = Listed(name, SHARE, SHARE, "Stable" if each.members else "Empty")
        if self.access.is_open:
            return list(found.values())
        may = self.access.may
        return [each for name, each in found.items() if may(principal, "describe", ("group", name))]

    def delete(self, principal: Principal, group: str) -> None:
        """Forget a group that has no members, and where it was."""
        self.access.check(principal, "delete", ("group", group))
        self.guard(group)
        if self._members.group(group) is not None:
            raise GroupNotEmptyError(f"group {group} has members: stop them")
        if (
            group not in self._classic.groups
            and group not in self._consumers.groups
            and group not in self.shares.groups
            and self._groups.get(group) is None
        ):
            raise GroupNotFoundError(f"there is no group {group!r}")
        self._forget(principal, group)

    def _forget(self, principal: Principal, group: str) -> None:
        self._classic.delete(group)
        self._consumers.delete(group)
        self.shares.delete(group)
        self._membership.delete(principal, group, clean_offsets=True)


def subscribed(subscriptions: Sequence[bytes]) -> frozenset[str] | None:
    """The topics in what consumers say of themselves; None if they say it in other words.

    That is int16 version, int32 count, and for each topic int16 length and name, then more.
    """
    found: set[str] = set()
    for raw in subscriptions:
        try:
            (count,) = _COUNT.unpack_from(raw, 2)
            at = 6
            for _ in range(count):
                (size,) = _LENGTH.unpack_from(raw, at)
                name = raw[at + 2 : at + 2 + size]
                if size < 0 or len(name) != size:
                    return None
                found.add(name.decode())
                at += 2 + size
        except (struct.error, UnicodeDecodeError):
            return None
    return frozenset(found)
