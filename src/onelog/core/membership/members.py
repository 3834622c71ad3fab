"""Who is connected: the live members of consumer groups, and the producers.

A member is a client on a channel; it stays as long as its heartbeats come and its channel lives.
Some members pull queues that they share out among themselves, others lease messages of any queue:
leases leave those queues alone that are pulled (`is_pulled`), so that a group may have both.
Each member keeps the subscriptions it sent, and a pull is answered by its own: members that
subscribe differently each get what they asked for, within the queues they were assigned. That they
differ is a mistake nearly always (the queues of one member are never read with the other's filter),
so it is logged once, counted, and can be asked for. What the group as a whole subscribes to is the
union, with the youngest version of each topic.

Invariant: a channel is in `_channels` exactly as long as it is in some group.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeVar

from onelog.clock import Clock
from onelog.core.filters.tags import Subscription

log = logging.getLogger(__name__)

SubscriptionSet = frozenset[tuple[str, str, str]]
"""What a member subscribes to: topics, the kind of filter on each, and the filter."""
ConsumeType = Literal["CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"]
MessageModel = Literal["CLUSTERING", "BROADCASTING"]
_Key = TypeVar("_Key")
_EXPIRED_MAX = 200
"""Members that are dropped at a time."""
PULLED_MS = 5_000
"""How long a pull is held in a group that also leases; so often are queues pulled that are kept."""
_SHARING_MS = PULLED_MS + 2_000
"""Within which members have shared out the queues anew, and have pulled each of theirs again."""
_SHARING_FIRST_MS = 30_000
"""The same for pulls that were held for longer, because nobody leased then."""
_PULLED_MAX = 10_000
_SHOWN_MAX = 20
"""Members whose wishes a line of the log shows."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client as its heartbeat introduces it; `channel` is whatever a gateway can answer on."""

    client_id: str
    channel: Hashable
    language: str = "OTHER"
    version: int = 0
    address: str = ""
    is_notified: bool = True
    """Whether it is to hear of others that join its groups, or leave them."""


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """What a heartbeat says about one consumer group."""

    group: str
    consume_type: ConsumeType = "CONSUME_PASSIVELY"
    message_model: MessageModel = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: tuple[Subscription, ...] = ()
    unit_mode: bool = False


@dataclass(slots=True)
class Member:
    """One client in one group, consumer or producer."""

    client: Client
    seen_ms: int
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    subscription_set: SubscriptionSet | None = None
    """What it subscribes to, without versions; None before it said so."""


@dataclass(slots=True)
class LiveGroup:
    """A consumer group with at least one member. The last heartbeat decides how it consumes."""

    name: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from: str
    members: dict[Hashable, Member] = field(default_factory=dict)
    notified: dict[Hashable, Member] = field(default_factory=dict)
    """Those of them that hear of changes."""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    _wanted: dict[str, Counter[Subscription]] = field(default_factory=dict)
    """By topics: the different subscriptions of members, and how many have each."""
    _subscription_sets: Counter[SubscriptionSet] = field(default_factory=Counter)
    """How many members wish the same."""
    pulled: dict[tuple[str, int], tuple[Hashable, int, bool]] = field(default_factory=dict)
    """Queues, the channel that pulled each last, the group's age then, and if it was mixed."""
    age: int = 0
    """How often members came and went."""
    changed_ms: int = 0

    @property
    def is_mixed(self) -> bool:
        """Whether there are members that share out no queues."""
        return len(self.notified) < len(self.members)

    @property
    def is_mismatched(self) -> bool:
        """Whether members subscribe differently."""
        return len(self._subscription_sets) > 1

    @property
    def mismatch(self) -> dict[str, SubscriptionSet]:
        """Client ids and what each subscribes to, while they differ; empty while they agree."""
        return self._shown(len(self.members)) if self.is_mismatched else {}

    def _shown(self, count: int) -> dict[str, SubscriptionSet]:
        members = islice(self.members.values(), count)
        return {each.client.client_id: each.subscription_set or frozenset() for each in members}

    def client_ids(self) -> list[str]:
        """The members' ids, in the order they joined."""
        return [member.client.client_id for member in self.members.values()]

    def subscriber_ids(self, topic: str) -> list[str]:
        """The ids of those members that subscribe to the topic, in the order they joined."""
        members = self.members.values()
        return [member.client.client_id for member in members if topic in member.subscriptions]

    def find(self, client_id: str) -> Member | None:
        members = self.members.values()
        return next((member for member in members if member.client.client_id == client_id), None)

    def subscribe(self, member: Member, subscriptions: dict[str, Subscription]) -> bool:
        """A member wants just these. True if topics of the group came or went.

        What that costs does not grow with the members of the group.
        """
        before, old_set = member.subscriptions, member.subscription_set
        member.subscriptions, member.subscription_set = (
            subscriptions,
            _subscription_set(subscriptions),
        )
        is_news = member.subscription_set not in self._subscription_sets or not self.is_mismatched
        self._subscription_sets[member.subscription_set] += 1
        came = [self._add(sub) for sub in subscriptions.values()]
        if old_set is not None:
            _decrease(self._subscription_sets, old_set)
        went = [self._drop(sub) for sub in before.values()]
        # Members that come and go with the same wishes as others are no news.
        if is_news and self.is_mismatched:
            log.warning(
                "members of consumer group %s subscribe differently, so each message is filtered as"
                " the member that reads its queue says: %s%s",
                self.name,
                {client: sorted(wish) for client, wish in self._shown(_SHOWN_MAX).items()},
                " and others" if len(self.members) > _SHOWN_MAX else "",
            )
        return any(came) or any(went)

    def leave(self, channel: Hashable) -> bool:
        """A member goes; False if there is none on this channel."""
        member = self.members.pop(channel, None)
        if member is None:
            return False
        self.notified.pop(channel, None)
        for sub in member.subscriptions.values():
            self._drop(sub)
        if member.subscription_set is not None:
            _decrease(self._subscription_sets, member.subscription_set)
        return True

    def _add(self, sub: Subscription) -> bool:
        """True if nobody wanted something of the topic before."""
        known = self.subscriptions.get(sub.topic)
        if known is None:
            self._wanted[sub.topic] = Counter()
        self._wanted[sub.topic][sub] += 1
        if known is None or sub.version > known.version:
            self.subscriptions[sub.topic] = sub
        return known is None

    def _drop(self, sub: Subscription) -> bool:
        """True if nobody wants something of the topic any more."""
        wanted = self._wanted[sub.topic]
        _decrease(wanted, sub)
        if not wanted:
            del self._wanted[sub.topic], self.subscriptions[sub.topic]
            return True
        if sub not in wanted and self.subscriptions[sub.topic] == sub:
            self.subscriptions[sub.topic] = max(wanted, key=lambda each: each.version)
        return False


def _subscription_set(subscriptions: dict[str, Subscription]) -> SubscriptionSet:
    """These without versions; `a || b` is the same as `b||a`."""
    return frozenset(
        (sub.topic, sub.kind, " || ".join(sorted(sub.tags)) or sub.expression)
        for sub in subscriptions.values()
    )


def _decrease(counts: Counter[_Key], key: _Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


MembersListener = Callable[[str, list[Member]], None]


@dataclass(slots=True)
class _Channel:
    """The groups that a channel is in."""

    consumer_groups: set[str] = field(default_factory=set)
    producer_groups: set[str] = field(default_factory=set)


class Members:
    """All live clients of this broker."""

    def __init__(self, clock: Clock, expiry_ms: int = 120_000) -> None:
        self._clock = clock
        self._expiry_ms = expiry_ms
        self._groups: dict[str, LiveGroup] = {}
        self._producers: dict[str, dict[Hashable, Member]] = {}
        self._channels: dict[Hashable, _Channel] = {}
        self.on_group_change: list[MembersListener] = []
        """Called with a group and its members when one came or left, or topics came or went."""
        self.mismatches_total = 0
        """How often members of a group began to subscribe differently."""

    # -- consumers -----------------------------------------------------------------------------

    def consumer_seen(self, client: Client, data: ConsumerData, *, notify: bool = True) -> bool:
        """A heartbeat of a consumer. True if the group changed; its members were told then."""
        group = self._groups.get(data.group)
        if group is None:
            group = self._groups[data.group] = LiveGroup(
                data.group, data.consume_type, data.message_model, data.consume_from
            )
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from = data.consume_from
        joined = self._seen(group.members, client)
        if joined:
            self._aged(group)
            self._channel(client.channel).consumer_groups.add(data.group)
            log.info("consumer %r joined group %r", client.client_id, data.group)
        member = group.members[client.channel]
        if client.is_notified:
            group.notified[client.channel] = member
        subscriptions = {sub.topic: sub for sub in data.subscriptions}
        changed = joined
        if joined or subscriptions != member.subscriptions:
            agreed = not group.is_mismatched
            changed = group.subscribe(member, subscriptions) or joined
            self._compared(group, agreed)
        if changed and notify:
            self._tell(group)
        return changed

    def refresh_consumer(self, client: Client, group_name: str) -> bool:
        """A heartbeat without subscriptions; False if the group does not know this client."""
        group = self._groups.get(group_name)
        if group is None or client.channel not in group.members:
            return False
        self._seen(group.members, client)
        return True

    def _seen(self, members: dict[Hashable, Member], client: Client) -> bool:
        member = members.get(client.channel)
        if member is None:
            members[client.channel] = Member(client, self._clock.now_ms())
            return True
        if member.client.client_id != client.client_id:
            log.warning(
                "channel %s changed its client id from %r to %r",
                client.address,
                member.client.client_id,
                client.client_id,
            )
        member.client = client
        member.seen_ms = self._clock.now_ms()
        return False

    def _channel(self, channel: Hashable) -> _Channel:
        found = self._channels.get(channel)
        if found is None:
            found = self._channels[channel] = _Channel()
        return found

    def _compared(self, group: LiveGroup, agreed: bool) -> None:
        self.mismatches_total += agreed and group.is_mismatched
        if not agreed and not group.is_mismatched:
            log.info("members of consumer group %s subscribe to the same again", group.name)

    def _tell(self, group: LiveGroup) -> None:
        # Who broadcasts does not share queues, so there is nothing to rebalance.
        if group.message_model == "BROADCASTING":
            return
        members = list(group.notified.values())
        if members:
            for listener in self.on_group_change:
                listener(group.name, members)

    # -- who pulls -------------------------------------------------------------------------------

    def _aged(self, group: LiveGroup) -> None:
        group.age += 1
        group.changed_ms = self._clock.now_ms()

    def pulled(self, group: str, topic: str, queue_id: int, channel: Hashable) -> bool:
        """Somebody pulls a queue; that is a member's own from then on. True if others lease."""
        live = self._groups.get(group)
        if live is None or channel not in live.members or len(live.pulled) >= _PULLED_MAX:
            return False
        live.pulled[topic, queue_id] = channel, live.age, live.is_mixed
        return live.is_mixed

    def is_pulled(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a queue is one of those that a member pulls.

        When members come or go the others share out anew: what nobody pulls any more some time
        after that was given up.
        """
        live = self._groups.get(group)
        found = None if live is None else live.pulled.get((topic, queue_id))
        if live is None or found is None:
            return False
        channel, age, was_mixed = found
        until_ms = live.changed_ms + (_SHARING_MS if was_mixed else _SHARING_FIRST_MS)
        if channel in live.members and (age == live.age or self._clock.now_ms() < until_ms):
            return True
        del live.pulled[topic, queue_id]
        return False

    # -- producers -----------------------------------------------------------------------------

    def producer_seen(self, client: Client, group: str) -> None:
        if self._seen(self._producers.setdefault(group, {}), client):
            self._channel(client.channel).producer_groups.add(group)

    # -- leaving -------------------------------------------------------------------------------

    def consumer_left(self, channel: Hashable, group_name: str, *, notify: bool = True) -> None:
        """The client on this channel is no longer in the consumer group."""
        group = self._groups.get(group_name)
        agreed = group is None or not group.is_mismatched
        if group is None or not group.leave(channel):
            return
        self._channels[channel].consumer_groups.discard(group_name)
        self._forget_if_nowhere(channel)
        if not group.members:
            del self._groups[group_name]
            return
        self._aged(group)
        self._compared(group, agreed)
        if notify:
            self._tell(group)

    def producer_left(self, channel: Hashable, group: str) -> None:
        """The client on this channel is no longer in the producer group."""
        members = self._producers.get(group)
        if members is None or members.pop(channel, None) is None:
            return
        self._channels[channel].producer_groups.discard(group)
        self._forget_if_nowhere(channel)
        if not members:
            del self._producers[group]

    def _forget_if_nowhere(self, channel: Hashable) -> None:
        found = self._channels[channel]
        if not found.consumer_groups and not found.producer_groups:
            del self._channels[channel]

    def channel_closed(self, channel: Hashable) -> None:
        """The client is gone from every group it was in."""
        found = self._channels.get(channel)
        if found is None:
            return
        for group in sorted(found.consumer_groups):
            self.consumer_left(channel, group)
        for group in sorted(found.producer_groups):
            self.producer_left(channel, group)

    def expire(self) -> list[Hashable]:
        """Drop some who have been silent for too long; their channels, to be closed."""
        deadline = self._clock.now_ms() - self._expiry_ms
        kinds: list[dict[Hashable, Member]] = [each.members for each in self._groups.values()]
        kinds += self._producers.values()
        found = (
            (channel, member)
            for members in kinds
            for channel, member in members.items()
            if member.seen_ms < deadline
        )
        silent = dict(islice(found, _EXPIRED_MAX))
        for channel, member in silent.items():
            log.warning("client %r is silent and is dropped", member.client.client_id)
            self.channel_closed(channel)
        return list(silent)

    # -- questions -----------------------------------------------------------------------------

    def group(self, name: str) -> LiveGroup | None:
        """The group, if it has members."""
        return self._groups.get(name)

    def live_groups(self) -> list[LiveGroup]:
        """Every consumer group that has members."""
        return list(self._groups.values())

    def mismatched_groups(self) -> list[str]:
        """The groups whose members subscribe differently now."""
        return [group.name for group in self._groups.values() if group.is_mismatched]

    def subscription(self, group: str, topic: str, channel: Hashable = None) -> Subscription | None:
        """What the client on this channel subscribes to; else what the group does."""
        found = self._groups.get(group)
        if found is None:
            return None
        member = found.members.get(channel)
        own = member.subscriptions.get(topic) if member is not None else None
        return own or found.subscriptions.get(topic)

    def groups_of_topic(self, topic: str) -> set[str]:
        """The groups with a member that subscribes to the topic."""
        return {group.name for group in self._groups.values() if topic in group.subscriptions}

    def producers(self, group: str) -> list[Member]:
        """The producers of a group, in the order they came."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> list[str]:
        """Every producer group that has members."""
        return list(self._producers)

    def producer_by_id(self, client_id: str) -> Member | None:
        """A producer with this id, in whichever group."""
        for members in self._producers.values():
            for member in members.values():
                if member.client.client_id == client_id:
                    return member
        return None
