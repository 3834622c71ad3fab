"""Consumer groups: how they are set, who is in them, how far they are, and changing that.

A group is set on every broker, and keeps one position per queue on the queue's broker. Its lag is
what the broker has beyond that position. `Positions` moves groups: back or forth in time, past a
backlog, or to where another group is.

The members of a group should subscribe to the same. OneLog's brokers tell when they do not.
RocketMQ's know only what the last heartbeat said; there each member is asked for its running info,
as `mqadmin consumerStatus` does.

Invariant: the broker that keeps a position moves it, and live members follow with their next pull.
If a broker is too old to move a group without members, the new positions are written for it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from onelog.client.admin.cluster import Clusters, masters_of
from onelog.client.admin.topics import Route, Topics
from onelog.client.connection.address import Address
from onelog.client.connection.nodes import Failure, Gathered, Nodes, at_once
from onelog.client.synchronous import Part, waiting
from onelog.errors import (
    ConsumersOfflineError,
    GroupExistsError,
    GroupNotFoundError,
    GroupOnlineError,
    OnelogError,
    RequestRefusedError,
    TopicNotFoundError,
    WireError,
)
from onelog.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from onelog.rocketmq.names import GROUPS_ON_DEMAND, SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS
from onelog.wire.remoting import fastjson, fields
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import ConsumerConnection
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from onelog.wire.remoting.stats import ConsumeStats, ResetOffsets

_SYSTEM_PREFIXES = (SYSTEM_GROUP_PREFIX, "CID_ONS")

Filters = dict[str, str]
"""Topics, and the filter on each; a SQL-92 condition begins with `SQL92: `."""
_SQL = "SQL92"

TO_THE_END = -1
"""A time that stands for: after the last message."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How a group is set on one broker."""

    broker: str
    consume_enable: bool
    broadcast_enable: bool
    orderly: bool
    retry_queues: int
    retry_times_max: int
    consume_timeout_minutes: int
    attributes: dict[str, str]
    retry_policy: dict[str, Any]
    """How long it waits before it tries again (RocketMQ: groupRetryPolicy)."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What to set on a group; None leaves a setting as it is."""

    consume_enable: bool | None = None
    broadcast_enable: bool | None = None
    orderly: bool | None = None
    retry_queues: int | None = None
    retry_times_max: int | None = None
    consume_timeout_minutes: int | None = None
    attributes: dict[str, str | None] = field(default_factory=dict)
    """None takes an attribute away."""
    retry_policy: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One live client of a group."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The live clients of a group, how they consume, and the filter they have on each topic."""

    members: tuple[Member, ...]
    consume_type: str
    message_model: str
    start_from: str
    subscriptions: dict[str, str]
    differing: dict[str, Filters] = field(default_factory=dict)
    """What each member subscribes to, by client id, while that is not the same for all."""


NOBODY = GroupMembers((), "", "", "", {})


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is in one queue. `consumed_ms` is when the last message it did was stored."""

    topic: str
    broker: str
    queue_id: int
    max_offset: int
    position: int
    pulled: int
    consumed_ms: int
    client_id: str = ""
    """The member that has the queue now, where that was asked for and is known."""

    @property
    def lag(self) -> int:
        """Messages that are not consumed yet."""
        return max(0, self.max_offset - max(0, self.position))

    @property
    def in_flight(self) -> int:
        """Messages that members have, but have not finished."""
        return max(0, self.pulled - max(0, self.position))


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group is, as far as brokers answered."""

    group: str
    queues: tuple[QueueProgress, ...]
    rate: float
    failures: tuple[Failure, ...]

    @property
    def lag(self) -> int:
        """Messages that are not consumed yet, retries included."""
        return sum(queue.lag for queue in self.queues)

    @property
    def consumed_ms(self) -> int:
        """How far the slowest queue that lags is, in store time; 0 if none lags."""
        times = [queue.consumed_ms for queue in self.queues if queue.lag and queue.consumed_ms]
        return min(times, default=0)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One line about a group."""

    name: str
    is_system: bool
    brokers: tuple[str, ...]
    members: GroupMembers
    progress: GroupProgress


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """All there is to know about a group."""

    name: str
    settings: tuple[GroupSettings, ...]
    members: GroupMembers
    progress: GroupProgress
    failures: tuple[Failure, ...]


@dataclass(eq=False)
class Groups:
    """Questions about consumer groups, and changes to their settings."""

    _nodes: Nodes
    _clusters: Clusters
    _topics: Topics

    async def names(self) -> Gathered[str, tuple[str, ...]]:
        """The brokers' names of each group that exists."""
        tables = await self._tables()
        found: dict[str, list[str]] = {}
        for broker, table in tables.answers.items():
            for name in table:
                found.setdefault(name, []).append(broker)
        return Gathered({name: tuple(found[name]) for name in sorted(found)}, tables.failures)

    async def _tables(self) -> Gathered[str, dict[str, SubscriptionGroupConfig]]:
        code, kind = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupTable
        fetched = await self._nodes.fetch_all(await self._clusters.sources(), code, kind, {})
        tables = {name: each.subscription_group_table for name, each in fetched.answers.items()}
        return Gathered(tables, fetched.failures)

    async def summaries(self, *, with_system: bool = False) -> tuple[GroupSummary, ...]:
        """A line about every group."""
        sources = await self._clusters.sources()
        names = (await self.names()).answers

        async def summary(name: str) -> GroupSummary:
            members = await self._members(name, sources)
            progress = await self._progress(name, None, sources)
            return GroupSummary(name, is_system(name), names[name], members, progress)

        wanted = [name for name in names if with_system or not is_system(name)]
        return tuple(await at_once(summary, wanted))

    async def members(self, group: str) -> GroupMembers:
        """Its live members; nobody is an answer, too."""
        return await self._members(group, await self._clusters.sources())

    async def _members(self, group: str, sources: Mapping[str, Address]) -> GroupMembers:
        gathered = await self._nodes.gather(
            sources, lambda address: self._connections(address, group)
        )
        answers = [each for each in gathered.answers.values() if each.connection_set]
        if not answers:
            return NOBODY
        members = {
            each.client_id: Member(each.client_id, each.client_addr, each.language, each.version)
            for answer in answers
            for each in answer.connection_set
        }
        first = answers[0]
        return GroupMembers(
            tuple(members[client_id] for client_id in sorted(members)),
            first.consume_type or "",
            first.message_model or "",
            first.consume_from_where or "",
            {topic: data.sub_string for topic, data in sorted(first.subscription_table.items())},
            differences_of(answers),
        )

    async def _connections(self, address: Address, group: str) -> ConsumerConnection:
        try:
            code, ext = RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
            return await self._nodes.fetch(address, code, ConsumerConnection, ext)
        except ConsumersOfflineError:
            return ConsumerConnection()

    async def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """Its position and lag in every queue, of one topic or of all it consumes."""
        return await self._progress(group, topic, await self._clusters.sources())

    async def _progress(
        self, group: str, topic: str | None, sources: Mapping[str, Address]
    ) -> GroupProgress:
        ext = {"consumerGroup": group} | ({} if topic is None else {"topic": topic})
        code = RequestCode.GET_CONSUME_STATS
        gathered = await self._nodes.fetch_all(sources, code, ConsumeStats, ext)
        queues = [
            QueueProgress(
                queue.topic,
                broker,
                queue.queue_id,
                found.broker_offset,
                found.consumer_offset,
                found.pull_offset,
                found.last_timestamp,
            )
            for broker, answer in gathered.answers.items()
            for queue, found in answer.offset_table.items()
        ]
        queues.sort(key=lambda each: (each.topic, each.broker, each.queue_id))
        rate = sum(answer.consume_tps for answer in gathered.answers.values())
        return GroupProgress(group, tuple(queues), rate, gathered.failures)

    async def describe(
        self, group: str, topic: str | None = None, *, with_owners: bool = False
    ) -> GroupDescription:
        """Settings, members and progress; `GroupNotFoundError` if nothing is known of it."""
        tables = await self._tables()
        settings = tuple(
            _settings(broker, table[group])
            for broker, table in tables.answers.items()
            if group in table
        )
        members = await self.members(group)
        progress = await self.progress(group, topic)
        if not settings and not members.members and not progress.queues:
            raise GroupNotFoundError(f"no broker knows a consumer group {group}")
        if with_owners and members.members:
            owners, differing = await self._ask_members(group, members)
            progress = _with_owners(progress, owners)
            members = replace(members, differing=members.differing or differing)
        failures = tuple(dict.fromkeys((*tables.failures, *progress.failures)))
        return GroupDescription(group, settings, members, progress, failures)

    async def _ask_members(
        self, group: str, members: GroupMembers
    ) -> tuple[dict[MessageQueue, str], dict[str, Filters]]:
        """Who has each queue, and how subscriptions differ, as far as the members tell."""
        sources = list((await self._clusters.sources()).values())

        async def ask(member: Member) -> tuple[list[MessageQueue], Filters | None]:
            ext = {"consumerGroup": group, "clientId": member.client_id, "jstackEnable": "false"}
            for address in sources:
                try:
                    answer = await self._nodes.ask(
                        address, RequestCode.GET_CONSUMER_RUNNING_INFO, ext
                    )
                    return read_running_info(answer.body)
                except OnelogError:
                    continue  # Another broker may know it; and not every kind of client tells.
            return [], None

        names = [member.client_id for member in members.members]
        fetched = dict(zip(names, await at_once(ask, members.members), strict=True))
        owners = {queue: name for name, (queues, _) in fetched.items() for queue in queues}
        return owners, differences({name: filters for name, (_, filters) in fetched.items()})

    # Changes.

    async def create(
        self,
        group: str,
        change: GroupChange,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> tuple[str, ...]:
        """Create a group on the masters of a cluster, or on one broker; on which it was."""
        masters = await self._clusters.masters(cluster, broker)
        tables = await self._tables()
        already = [name for name in masters if group in tables.answers.get(name, {})]
        if already:
            raise GroupExistsError(f"group {group} exists already on {', '.join(already)}")
        fresh = SubscriptionGroupConfig(group_name=group)
        await self._put({name: (address, fresh) for name, address in masters.items()}, change)
        return tuple(masters)

    async def update(
        self,
        group: str,
        change: GroupChange,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> tuple[str, ...]:
        """Change a group on the brokers that have it; on which it was."""
        current = await self._holders(group, cluster, broker)
        await self._put(current, change)
        return tuple(current)

    async def _holders(
        self, group: str, cluster: str | None, broker: str | None
    ) -> dict[str, tuple[Address, SubscriptionGroupConfig]]:
        masters = await self._clusters.masters(cluster, broker)
        tables = (await self._tables()).answers
        holders = {
            name: (address, tables[name][group])
            for name, address in masters.items()
            if group in tables.get(name, {})
        }
        if not holders:
            raise GroupNotFoundError(f"none of {', '.join(masters)} has a consumer group {group}")
        return holders

    async def _put(
        self, current: Mapping[str, tuple[Address, SubscriptionGroupConfig]], change: GroupChange
    ) -> None:
        await self._nodes.change(
            current,
            lambda each: self._nodes.ask(
                each[0],
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                body=_changed(each[1], change).encode(),
            ),
        )

    async def delete(
        self,
        group: str,
        *,
        cluster: str | None = None,
        keep_positions: bool = False,
        dead_letters: bool = False,
    ) -> tuple[str, ...]:
        """Delete a group with its retry topic, and on demand its dead letters; on which brokers."""
        holders = await self._holders(group, cluster, None)
        clean = "false" if keep_positions else "true"
        await self._nodes.change(
            holders,
            lambda each: self._nodes.ask(
                each[0],
                RequestCode.DELETE_SUBSCRIPTIONGROUP,
                {"groupName": group, "cleanOffset": clean},
            ),
        )
        for prefix in (RETRY_PREFIX, *((DEAD_LETTER_PREFIX,) if dead_letters else ())):
            try:
                await self._topics.delete(prefix + group, cluster=cluster)
            except TopicNotFoundError:
                pass  # It never retried a message, or never gave one up.
        return tuple(holders)

    async def copy_settings(self, source: str, target: str, brokers: Iterable[str]) -> None:
        """Create the target like the source, on those of these brokers that lack it."""
        wanted = set(brokers)
        tables = (await self._tables()).answers
        missing = {}
        for each in await self._clusters.brokers():
            table = tables.get(each.name, {})
            if each.name in wanted and each.master is not None and target not in table:
                like = table.get(source) or SubscriptionGroupConfig()
                fresh = msgspec.structs.replace(like, group_name=target)
                missing[each.name] = (each.master, fresh)
        await self._put(missing, GroupChange())


class SyncGroups(Part[Groups]):
    """The same for threads."""

    copy_settings = waiting(Groups.copy_settings)
    create = waiting(Groups.create)
    delete = waiting(Groups.delete)
    describe = waiting(Groups.describe)
    members = waiting(Groups.members)
    names = waiting(Groups.names)
    progress = waiting(Groups.progress)
    summaries = waiting(Groups.summaries)
    update = waiting(Groups.update)


def is_system(group: str) -> bool:
    """Whether a group is the broker's own, or RocketMQ's tools'."""
    return group in SYSTEM_GROUPS or group in GROUPS_ON_DEMAND or group.startswith(_SYSTEM_PREFIXES)


_WIRE_NAMES = {
    "consume_enable": "consume_enable",
    "broadcast_enable": "consume_broadcast_enable",
    "orderly": "consume_message_orderly",
    "retry_queues": "retry_queue_nums",
    "retry_times_max": "retry_max_times",
    "consume_timeout_minutes": "consume_timeout_minute",
    "retry_policy": "group_retry_policy",
}
"""What brokers call the settings of a group."""


def _settings(broker: str, config: SubscriptionGroupConfig) -> GroupSettings:
    values = {name: getattr(config, theirs) for name, theirs in _WIRE_NAMES.items()}
    return GroupSettings(broker, attributes=config.attributes, **values)


def _changed(config: SubscriptionGroupConfig, change: GroupChange) -> SubscriptionGroupConfig:
    given: dict[str, Any] = {theirs: getattr(change, name) for name, theirs in _WIRE_NAMES.items()}
    # Brokers take these as a list of changes: "+name" sets one, "-name" takes it away.
    given["attributes"] = {
        ("-" if value is None else "+") + name: value or ""
        for name, value in change.attributes.items()
    }
    return msgspec.structs.replace(config, **{k: v for k, v in given.items() if v is not None})


def _with_owners(progress: GroupProgress, owners: Mapping[MessageQueue, str]) -> GroupProgress:
    def owner(queue: QueueProgress) -> str:
        key = MessageQueue(broker_name=queue.broker, queue_id=queue.queue_id, topic=queue.topic)
        return owners.get(key, "")

    queues = tuple(replace(queue, client_id=owner(queue)) for queue in progress.queues)
    return replace(progress, queues=queues)


def filter_text(expression: str, kind: str | None) -> str:
    """A filter in one text."""
    return f"{_SQL}: {expression}" if kind == _SQL else expression


def differences_of(answers: Iterable[ConsumerConnection]) -> dict[str, Filters]:
    """The filters of each member, by client id, if brokers say that they differ; else nothing."""
    return {
        client_id: {
            each.topic: filter_text(each.sub_string, each.expression_type)
            for each in sorted(subscriptions, key=lambda data: data.topic)
        }
        for answer in answers
        for client_id, subscriptions in sorted((answer.member_subscriptions or {}).items())
    }


def differences(filters: Mapping[str, Filters | None]) -> dict[str, Filters]:
    """The filters of the members that told theirs, if they differ; else nothing."""
    fetched = {client_id: each for client_id, each in filters.items() if each is not None}
    first = next(iter(fetched.values()), {})
    return fetched if any(each != first for each in fetched.values()) else {}


def read_running_info(
    running_info: bytes | bytearray | memoryview,
) -> tuple[list[MessageQueue], Filters | None]:
    """The queues that a member has, and its filters, from its running info."""
    allowance = fastjson.Allowance(fastjson.ANSWER_PIECES_MAX)
    info = fastjson.loads(running_info, MessageQueue.from_members, allowance)
    if not isinstance(info, dict):
        raise WireError("a client's running info is no object")
    table = info.get("mqTable") or {}
    queues = [key for key in table if isinstance(key, MessageQueue)]
    fetched = info.get("subscriptionSet")
    return queues, _filters(fetched) if isinstance(fetched, list) else None


def _filters(fetched: list[Any]) -> Filters:
    found = {
        str(each.get("topic", "")): filter_text(
            str(each.get("subString", "")), each.get("expressionType")
        )
        for each in fetched
        if isinstance(each, dict)
    }
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Move:
    """A group's position in one queue, before and after."""

    topic: str
    broker: str
    queue_id: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class Moves:
    """What was moved, and where it could not be."""

    group: str
    queues: tuple[Move, ...]
    failures: tuple[Failure, ...]


_Master = tuple[Address, int]
"""Where a topic is, and how many queues can be read there."""


@dataclass(eq=False)
class Positions:
    """Changes of consumer groups' positions."""

    _nodes: Nodes
    _topics: Topics
    _groups: Groups

    async def reset(self, group: str, topic: str, time_ms: int) -> Moves:
        """Move a group to the first message that was stored at a time or later."""
        return await self._move(group, topic, time_ms, dry_run=False)

    async def skip(self, group: str, topic: str) -> Moves:
        """Move a group to the end of every queue: what is there now is not consumed."""
        return await self._move(group, topic, TO_THE_END, dry_run=False)

    async def preview(self, group: str, topic: str, time_ms: int) -> Moves:
        """What `reset` would do (or `skip`, with `TO_THE_END`), without doing it."""
        return await self._move(group, topic, time_ms, dry_run=True)

    async def _move(self, group: str, topic: str, time_ms: int, *, dry_run: bool) -> Moves:
        masters = _masters(await self._topics.route(topic))
        if group not in (await self._groups.names()).answers:
            raise GroupNotFoundError(f"no broker knows a consumer group {group}")
        before = await self._positions(group, topic)

        async def move(master: _Master) -> dict[int, int]:
            if dry_run:
                return await self._offsets_at(master, topic, time_ms)
            return await self._move_on(master, group, topic, time_ms)

        gathered = await self._nodes.gather(masters, move)
        moves = [
            Move(topic, broker, queue_id, before.get((topic, broker, queue_id)), after)
            for broker, offsets in gathered.answers.items()
            for queue_id, after in sorted(offsets.items())
        ]
        return Moves(group, tuple(moves), gathered.failures)

    async def _move_on(
        self, master: _Master, group: str, topic: str, time_ms: int
    ) -> dict[int, int]:
        ext = {"topic": topic, "group": group, "timestamp": str(time_ms), "isForce": "true"}
        try:
            code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            answer = await self._nodes.fetch(master[0], code, ResetOffsets, ext)
        except (ConsumersOfflineError, RequestRefusedError):
            # Up to 5.0, brokers can only pass the word on to live members, and refuse a group that
            # has no position yet. Without members, what we write is what counts.
            if (await self._groups.members(group)).members:
                raise
            offsets = await self._offsets_at(master, topic, time_ms)
            for queue_id, offset in offsets.items():
                await write_position(self._nodes, master[0], group, topic, queue_id, offset)
            return offsets
        return {queue.queue_id: offset for queue, offset in answer.offset_table.items()}

    async def _offsets_at(self, master: _Master, topic: str, time_ms: int) -> dict[int, int]:
        address, queues = master
        found = await at_once(
            lambda queue_id: self.offset_at(address, topic, queue_id, time_ms), range(queues)
        )
        return dict(enumerate(found))

    async def offset_at(self, address: Address, topic: str, queue_id: int, time_ms: int) -> int:
        """The first offset of a queue whose message was stored at a time or later."""
        ext = {"topic": topic, "queueId": str(queue_id)}
        if time_ms == TO_THE_END:
            answer = await self._nodes.ask(address, RequestCode.GET_MAX_OFFSET, ext)
        else:
            ext["timestamp"] = str(time_ms)
            answer = await self._nodes.ask(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
        return fields.number(answer.ext, "offset")

    async def clone(self, source: str, target: str, topic: str | None = None) -> Moves:
        """Put a group where another one is, in one topic or in all that the other consumes.

        The target is created like the source where it is missing. It must have no live members:
        they know their positions, and would write them back.
        """
        progress = await self._groups.progress(source, topic)
        queues = [
            queue
            for queue in progress.queues
            if not queue.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        ]
        if not queues:
            where = f" in topic {topic}" if topic else ""
            raise GroupNotFoundError(f"consumer group {source} has no position{where}")
        if (await self._groups.members(target)).members:
            raise GroupOnlineError(f"consumer group {target} has live members: stop them first")
        await self._groups.copy_settings(source, target, {queue.broker for queue in queues})
        before = await self._positions(target, topic)
        for name in sorted({queue.topic for queue in queues}):
            await self._clone(source, target, name)
        moves = [
            Move(
                queue.topic,
                queue.broker,
                queue.queue_id,
                before.get((queue.topic, queue.broker, queue.queue_id)),
                queue.position,
            )
            for queue in queues
        ]
        return Moves(target, tuple(moves), progress.failures)

    async def _clone(self, source: str, target: str, topic: str) -> None:
        ext = {"srcGroup": source, "destGroup": target, "topic": topic, "offline": "true"}
        await self._nodes.change(
            _masters(await self._topics.route(topic)),
            lambda master: self._nodes.ask(master[0], RequestCode.CLONE_GROUP_OFFSET, ext),
        )

    async def _positions(self, group: str, topic: str | None) -> dict[tuple[str, str, int], int]:
        progress = await self._groups.progress(group, topic)
        return {
            (queue.topic, queue.broker, queue.queue_id): queue.position for queue in progress.queues
        }


class SyncPositions(Part[Positions]):
    """The same for threads."""

    clone = waiting(Positions.clone)
    offset_at = waiting(Positions.offset_at)
    preview = waiting(Positions.preview)
    reset = waiting(Positions.reset)
    skip = waiting(Positions.skip)


async def write_position(
    nodes: Nodes, address: Address, group: str, topic: str, queue_id: int, offset: int
) -> None:
    """Have a broker keep a position of a group, which must have no live members."""
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
    ext["commitOffset"] = str(offset)
    await nodes.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def _masters(route: Route) -> dict[str, _Master]:
    addresses = masters_of(tuple(each.brokers for each in route.brokers))
    return {
        each.brokers.name: (addresses[each.brokers.name], each.read_queues)
        for each in route.brokers
    }
