"""Consumer groups: who is in them, how far they are, and moving them."""

from dataclasses import replace
from typing import Any

from onelog.admin.broker.call import Call, Pace
from onelog.admin.broker.cluster_admin import admin_of
from onelog.admin.groups import (
    ChangedGroup,
    Clone,
    Cloned,
    GroupDescription,
    GroupQuery,
    GroupSettings,
    GroupState,
    Member,
    Move,
    Moves,
    NewGroup,
    Progress,
    Reset,
)
from onelog.admin.operations import Done, Listing, OfGroup, fill, paged
from onelog.core.catalog.groups import GroupConfig
from onelog.errors import GroupExistsError, GroupNotFoundError, InvalidRequestError
from onelog.gateways.http.requests import looked_up
from onelog.names import RETRY_PREFIX

GROUPS_TOGETHER = 50
TO_THE_END = -1


async def _names(call: Call, pace: Pace, wanted: str = "") -> dict[str, tuple[str, str]]:
    """Groups with this in their names, and for those of Kafka's clients their kind and state."""
    broker = call.broker
    _, configs = broker.groups.all(call.principal)
    found = {each.name: ("rocketmq", "") for each in configs if wanted in each.name.lower()}
    await pace.give()
    for number, each in enumerate(broker.groups.coordinator.listed(call.principal)):
        # Whoever has positions is listed, as an empty group; that alone makes it none of Kafka's.
        if wanted in each.name.lower() and (
            each.name not in found or _coordinated(call, each.name) is not None
        ):
            found[each.name] = (each.kind, each.state)
        if number % GROUPS_TOGETHER == 0:
            await pace.give()
    return found


def _coordinated(call: Call, name: str) -> tuple[str, Any] | None:
    """The group if it is one of Kafka's clients, and its kind."""
    coordinator = call.broker.groups.coordinator
    for kind, find in (
        ("classic", coordinator.classic_group),
        ("consumer", coordinator.consumer_group),
        ("share", coordinator.share_group),
    ):
        if (found := find(call.principal, name)) is not None:
            return kind, found
    return None


async def _lags(call: Call, pace: Pace) -> dict[str, tuple[int, list[str]]]:
    """How far each group is behind, and in which topics; from the tables, without the disk."""
    broker = call.broker
    found: dict[str, tuple[int, list[str]]] = {}
    if not call.knows_names:
        return found
    _, positions = broker.cursors.positions(call.principal)
    for number, ((group, topic), queues) in enumerate(positions.items()):
        if number % GROUPS_TOGETHER == 0:
            await pace.give()
        if broker.topics.find(call.principal, topic) is None:
            continue
        lag, topics = found.get(group, (0, []))
        for queue, position in queues.items():
            lag += max(0, broker.topics.max_offset(call.principal, topic, queue) - position)
        found[group] = (lag, [*topics, topic])
    return found


def _lag_of(call: Call, name: str) -> tuple[int, list[str]]:
    """The same for one group, of which they may know."""
    queues = call.broker.groups.consume_stats(call.principal, name).queues
    return sum(max(0, each.lag) for each in queues), sorted({each.topic for each in queues})


async def list_groups(call: Call, given: GroupQuery) -> Listing[GroupState]:
    """Groups by name, or by lag."""
    pace = Pace()
    known = await _names(call, pace, given.q.lower())
    lags = await _lags(call, pace)
    names = sorted(known)
    following = None
    if given.sort == "lag":
        names.sort(key=lambda name: -lags.get(name, (0, []))[0])
        page = names[: given.limit]
    else:
        page, following = paged(names, given.limit, given.after)
    items = []
    for number, name in enumerate(page, 1):
        kind, state = known[name]
        members = _members(call, name)
        lag, topics = lags.get(name, (0, [])) if call.knows_names else _lag_of(call, name)
        shown = [topic for topic in topics if not topic.startswith(RETRY_PREFIX)]
        state = state or ("Stable" if members else "Empty")
        items.append(GroupState(name, kind, state, len(members), sorted(shown), lag))
        if number % 10 == 0:
            await pace.give()
    return Listing(items, len(names), following)


def _members(call: Call, name: str) -> list[Member]:
    live = call.broker.groups.live(call.principal, name)
    found = [
        fill(Member, each.client, topics=sorted(each.subscriptions))
        for each in (live.members.values() if live is not None else ())
    ]
    kind, group = _coordinated(call, name) or ("", None)
    for each in group.members.values() if group is not None else ():
        topics = [] if kind == "classic" else sorted(each.topics)
        found.append(Member(each.client_id, each.client_host, None, topics))
    return found


def _require(call: Call, name: str) -> tuple[str, str]:
    """The kind and the state of a group."""
    if coordinated := _coordinated(call, name):
        kind, group = coordinated
        return kind, group.state if isinstance(group.state, str) else str(group.state.value)
    if call.broker.groups.find(call.principal, name) is not None:
        return "rocketmq", ""
    if call.broker.groups.coordinator.has_positions(call.principal, name):
        return "classic", "Empty"
    raise GroupNotFoundError(f"group {name} does not exist")


async def get_group(call: Call, given: OfGroup) -> GroupDescription:
    """Settings, members and progress of a group."""
    name, broker = given.group, call.broker
    kind, state = _require(call, name)
    members = _members(call, name)
    live = broker.groups.live(call.principal, name)
    stats = await looked_up(
        call.context, lambda: broker.groups.consume_stats(call.principal, name)
    )  # Times are read from the disk.
    queues = [
        Progress(
            topic=each.topic,
            queue=each.queue_id,
            position=each.consumer_offset,
            end=each.broker_offset,
            lag=max(0, each.lag),
            in_flight=max(0, each.in_flight),
            consumed_ms=each.last_ms or None,
        )
        for each in stats.queues
    ]
    config = broker.groups.find(call.principal, name)
    return GroupDescription(
        name=name,
        protocol=kind,
        state=state or ("Stable" if members else "Empty"),
        lag=sum(each.lag for each in queues),
        get_per_second=round(stats.get_per_second, 2),
        consume_type=None if live is None else live.consume_type,
        message_model=None if live is None else live.message_model,
        subscriptions={
            topic: each.expression for topic, each in (live.subscriptions if live else {}).items()
        },
        members=members,
        queues=queues,
        settings={} if config is None else _settings(config),
        is_mismatched=live is not None and bool(live.mismatch),
    )


def _settings(config: GroupConfig) -> dict[str, Any]:
    names = (*GroupSettings.__struct_fields__, "retry_policy")
    return {name: getattr(config, name) for name in names}


def _changed(config: GroupConfig, settings: GroupSettings) -> GroupConfig:
    given = {name: getattr(settings, name) for name in GroupSettings.__struct_fields__}
    return replace(config, **{name: each for name, each in given.items() if each is not None})


async def create_group(call: Call, given: NewGroup) -> GroupDescription:
    """A new group."""
    broker = call.broker
    if broker.groups.find(call.principal, given.name) is not None:
        raise GroupExistsError(f"group {given.name} exists")
    broker.groups.put(call.principal, _changed(GroupConfig(given.name), given))
    return await get_group(call, OfGroup(group=given.name))


async def update_group(call: Call, given: ChangedGroup) -> GroupDescription:
    """Other settings."""
    name, broker = given.group, call.broker
    _require(call, name)
    config = broker.groups.find(call.principal, name) or GroupConfig(name)
    broker.groups.put(call.principal, _changed(config, given))
    return await get_group(call, OfGroup(group=name))


async def delete_group(call: Call, given: OfGroup) -> Done:
    """A group, its positions and its settings."""
    name, broker = given.group, call.broker
    kind, _ = _require(call, name)
    if kind != "rocketmq":
        broker.groups.coordinator.delete(call.principal, name)
    if broker.groups.find(call.principal, name) is not None:
        broker.groups.delete(call.principal, name, clean_offsets=True)
    return Done()


async def reset_group(call: Call, given: Reset) -> Moves:
    """Move a group in a topic; with `dry_run` only say what that would mean."""
    name, broker = given.group, call.broker
    _require(call, name)
    if (given.to is None) == (given.to_ms is None):
        raise InvalidRequestError("say where to: either to or to_ms")
    config = broker.topics.require(call.principal, given.topic)
    time_ms = given.to_ms or 0
    if given.to == "latest":
        time_ms = TO_THE_END
    queues = range(config.read_queues)

    def find() -> dict[int, int]:
        starts = broker.cursors.offsets_at(call.principal, config.name, queues, time_ms)
        return {
            queue: max(position, broker.topics.min_offset(call.principal, config.name, queue))
            for queue, position in starts.items()
        }

    starts = await looked_up(call.context, find)
    stats = broker.groups.consume_stats(call.principal, name, topics=[config.name])
    before = {each.queue_id: each.consumer_offset for each in stats.queues}
    moves = [
        Move(queue, before.get(queue, 0), position) for queue, position in sorted(starts.items())
    ]
    if not given.dry_run:
        if broker.groups.find(call.principal, name) is None:
            broker.groups.put(call.principal, GroupConfig(name))
        broker.cursors.reset(call.principal, name, config.name, time_ms, starts=starts)
    return Moves(
        group=name,
        topic=config.name,
        dry_run=given.dry_run,
        read_again=sum(max(0, each.before - each.after) for each in moves),
        skipped=sum(max(0, each.after - each.before) for each in moves),
        queues=moves,
    )


async def clone_group(call: Call, given: Clone) -> Cloned:
    """Put a group where another one is, in the whole cluster; it is created if it is missing."""
    call.check("consume", given.group, "group")
    call.check("describe", given.source, "group")
    moves = await admin_of(call).positions.clone(given.source, given.group, given.topic)
    return Cloned(moves.group, len(moves.queues), [str(each) for each in moves.failures])
