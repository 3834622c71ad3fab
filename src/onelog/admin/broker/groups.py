"""Consumer groups: who is in them, how far they are, and moving them."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from onelog.admin.broker.cluster_admin import admin_of
from onelog.admin.operations import (
    Ask,
    Done,
    Limit,
    Listing,
    Name,
    Operation,
    Pace,
    Time,
    check,
    knows_names,
    paged,
)
from onelog.core.catalog.groups import GroupConfig
from onelog.errors import GroupExistsError, GroupNotFoundError, InvalidRequestError
from onelog.gateways.http.requests import looked_up
from onelog.names import RETRY_PREFIX

GROUPS_TOGETHER = 50
TO_THE_END = -1


class GroupQuery(Struct, forbid_unknown_fields=True):
    """Which groups."""

    q: Annotated[str, Meta(max_length=255, description="Only names that have this in them.")] = ""
    sort: Literal["name", "lag"] = "name"
    limit: Limit = 100
    after: Annotated[
        str, Meta(max_length=255, description="The `next` of the last page; by name only.")
    ] = ""


class Group(Struct):
    """A group in a few words."""

    name: str
    protocol: str
    """rocketmq, or what Kafka calls it: classic, consumer, share."""
    state: str
    members: int
    topics: list[str]
    lag: int


class Member(Struct):
    """Somebody who consumes."""

    client_id: str
    address: str
    language: str | None
    topics: list[str]


class Progress(Struct):
    """How far a group is in a queue."""

    topic: str
    queue: int
    position: int
    end: int
    lag: int
    in_flight: int
    consumed_ms: int | None


class GroupSettings(Struct, forbid_unknown_fields=True):
    """What is set for a group; what is left out stays as it is."""

    consume_enable: bool | None = None
    consume_broadcast_enable: bool | None = None
    consume_message_orderly: bool | None = None
    retry_queues: Annotated[int, Meta(ge=0, le=1_024)] | None = None
    retry_times_max: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    consume_timeout_minutes: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    attributes: dict[str, str] | None = None


class NewGroup(GroupSettings, kw_only=True):
    """A group to create."""

    name: Name


class GroupDescription(Struct):
    """All about a group."""

    name: str
    protocol: str
    state: str
    lag: int
    get_per_second: float
    consume_type: str | None
    message_model: str | None
    subscriptions: dict[str, str]
    members: list[Member]
    queues: list[Progress]
    settings: dict[str, Any]
    is_mismatched: bool
    """Members subscribe differently."""


class Reset(Struct, forbid_unknown_fields=True):
    """Where a group is to go: to a time, or to one of the ends."""

    topic: Name
    to: Literal["earliest", "latest"] | None = None
    to_ms: Time | None = None
    dry_run: bool = False


class Move(Struct):
    """Where a group was in a queue, and where it goes."""

    queue: int
    before: int
    after: int


class Clone(Struct, forbid_unknown_fields=True):
    """Which group's positions to take over, in all topics or in one."""

    source: Name
    topic: Name | None = None


class Cloned(Struct):
    """How many queues a group was moved in, on all brokers, and what went wrong."""

    group: str
    queues: int
    failures: list[str]


class Moves(Struct):
    """What moving means, in messages."""

    group: str
    topic: str
    dry_run: bool
    read_again: int
    skipped: int
    queues: list[Move]


async def _names(ask: Ask, pace: Pace, wanted: str = "") -> dict[str, tuple[str, str]]:
    """Groups with this in their names, and for those of Kafka's clients their kind and state."""
    broker = ask.context.broker
    _, configs = broker.admin.groups(ask.principal)
    found = {each.name: ("rocketmq", "") for each in configs if wanted in each.name.lower()}
    await pace.give()
    for number, each in enumerate(broker.coordinator.listed(ask.principal)):
        # Whoever has positions is listed, as an empty group; that alone makes it none of Kafka's.
        if wanted in each.name.lower() and (
            each.name not in found or _is_coordinated(ask, each.name)
        ):
            found[each.name] = (each.kind, each.state)
        if number % GROUPS_TOGETHER == 0:
            await pace.give()
    return found


def _is_coordinated(ask: Ask, name: str) -> bool:
    coordinator = ask.context.broker.coordinator
    kinds = (coordinator.classic_group, coordinator.consumer_group, coordinator.share_group)
    return any(find(ask.principal, name) is not None for find in kinds)


async def _lags(ask: Ask, pace: Pace) -> dict[str, tuple[int, list[str]]]:
    """How far each group is behind, and in which topics; from the tables, without the disk."""
    broker = ask.context.broker
    found: dict[str, tuple[int, list[str]]] = {}
    if not knows_names(ask):
        return found
    _, positions = broker.admin.positions(ask.principal)
    for number, ((group, topic), queues) in enumerate(positions.items()):
        if number % GROUPS_TOGETHER == 0:
            await pace.give()
        if broker.find_topic(ask.principal, topic) is None:
            continue
        lag, topics = found.get(group, (0, []))
        for queue, position in queues.items():
            lag += max(0, broker.max_offset(ask.principal, topic, queue) - position)
        found[group] = (lag, [*topics, topic])
    return found


def _lag_of(ask: Ask, name: str) -> tuple[int, list[str]]:
    """The same for one group, of which they may know."""
    queues = ask.context.broker.admin.consume_stats(ask.principal, name).queues
    return sum(max(0, each.lag) for each in queues), sorted({each.topic for each in queues})


async def list_groups(ask: Ask) -> Listing[Group]:
    """Groups by name, or by lag."""
    query: GroupQuery = ask.query
    pace = Pace()
    known = await _names(ask, pace, query.q.lower())
    lags = await _lags(ask, pace)
    names = sorted(known)
    following = None
    if query.sort == "lag":
        names.sort(key=lambda name: -lags.get(name, (0, []))[0])
        page = names[: query.limit]
    else:
        page, following = paged(names, query.limit, query.after)
    items = []
    for number, name in enumerate(page, 1):
        kind, state = known[name]
        members = _members(ask, name)
        lag, topics = lags.get(name, (0, [])) if knows_names(ask) else _lag_of(ask, name)
        shown = [topic for topic in topics if not topic.startswith(RETRY_PREFIX)]
        state = state or ("Stable" if members else "Empty")
        items.append(Group(name, kind, state, len(members), sorted(shown), lag))
        if number % 10 == 0:
            await pace.give()
    return Listing(items, len(names), following)


def _members(ask: Ask, name: str) -> list[Member]:
    broker = ask.context.broker
    found = []
    live = broker.live_group(ask.principal, name)
    if live is not None:
        found = [
            Member(
                each.client.client_id,
                each.client.address,
                each.client.language,
                sorted(each.subscriptions),
            )
            for each in live.members.values()
        ]
    classic = broker.coordinator.classic_group(ask.principal, name)
    if classic is not None:
        found += [
            Member(each.client_id, each.client_host, None, []) for each in classic.members.values()
        ]
    for group in (
        broker.coordinator.consumer_group(ask.principal, name),
        broker.coordinator.share_group(ask.principal, name),
    ):
        if group is not None:
            found += [
                Member(each.client_id, each.client_host, None, sorted(each.topics))
                for each in group.members.values()
            ]
    return found


async def _require(ask: Ask) -> tuple[str, str, str]:
    """The group that is meant, its kind and its state."""
    name = ask.path["group"]
    coordinator = ask.context.broker.coordinator
    if _is_coordinated(ask, name):
        for kind, find in (
            ("classic", coordinator.classic_group),
            ("consumer", coordinator.consumer_group),
            ("share", coordinator.share_group),
        ):
            found = find(ask.principal, name)
            if found is not None:
                state = found.state
                return name, kind, state if isinstance(state, str) else str(state.value)
    if ask.context.broker.find_group(ask.principal, name) is not None:
        return name, "rocketmq", ""
    if coordinator.has_positions(ask.principal, name):
        return name, "classic", "Empty"
    raise GroupNotFoundError(f"group {name} does not exist")


async def get_group(ask: Ask) -> GroupDescription:
    """Settings, members and progress of a group."""
    name, kind, state = await _require(ask)
    broker = ask.context.broker
    members = _members(ask, name)
    live = broker.live_group(ask.principal, name)
    stats = await looked_up(
        ask.context, lambda: broker.admin.consume_stats(ask.principal, name)
    )  # Times are read from the disk.
    queues = [
        Progress(
            each.topic,
            each.queue_id,
            each.consumer_offset,
            each.broker_offset,
            max(0, each.lag),
            max(0, each.in_flight),
            each.last_ms or None,
        )
        for each in stats.queues
    ]
    config = broker.find_group(ask.principal, name)
    return GroupDescription(
        name=name,
        protocol=kind,
        state=state or ("Stable" if members else "Empty"),
        lag=sum(each.lag for each in queues),
        get_per_second=round(stats.get_per_second, 2),
        consume_type=None if live is None else live.consume_type,
        message_model=None if live is None else live.message_model,
        subscriptions={}
        if live is None
        else {topic: each.expression for topic, each in live.subscriptions.items()},
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


async def create_group(ask: Ask) -> GroupDescription:
    """A new group."""
    body: NewGroup = ask.body
    broker = ask.context.broker
    if broker.find_group(ask.principal, body.name) is not None:
        raise GroupExistsError(f"group {body.name} exists")
    broker.admin.update_group(ask.principal, _changed(GroupConfig(body.name), body))
    ask.path["group"] = body.name
    return await get_group(ask)


async def update_group(ask: Ask) -> GroupDescription:
    """Other settings."""
    name, _, _ = await _require(ask)
    broker = ask.context.broker
    config = broker.find_group(ask.principal, name) or GroupConfig(name)
    broker.admin.update_group(ask.principal, _changed(config, ask.body))
    return await get_group(ask)


async def delete_group(ask: Ask) -> Done:
    """A group, its positions and its settings."""
    name, kind, _ = await _require(ask)
    broker = ask.context.broker
    if kind != "rocketmq":
        broker.coordinator.delete(ask.principal, name)
    if broker.find_group(ask.principal, name) is not None:
        broker.admin.delete_group(ask.principal, name, clean_offsets=True)
    return Done()


async def reset_group(ask: Ask) -> Moves:
    """Move a group in a topic; with `dry_run` only say what that would mean."""
    name, _, _ = await _require(ask)
    body: Reset = ask.body
    if (body.to is None) == (body.to_ms is None):
        raise InvalidRequestError("say where to: either to or to_ms")
    broker = ask.context.broker
    config = broker.topic(ask.principal, body.topic)
    time_ms = body.to_ms or 0
    if body.to == "latest":
        time_ms = TO_THE_END
    queues = range(config.read_queues)

    def find() -> dict[int, int]:
        starts = broker.admin.offsets_at(ask.principal, config.name, queues, time_ms)
        return {
            queue: max(position, broker.min_offset(ask.principal, config.name, queue))
            for queue, position in starts.items()
        }

    starts = await looked_up(ask.context, find)
    stats = broker.admin.consume_stats(ask.principal, name, topics=[config.name])
    before = {each.queue_id: each.consumer_offset for each in stats.queues}
    moves = [
        Move(queue, before.get(queue, 0), position) for queue, position in sorted(starts.items())
    ]
    if not body.dry_run:
        if broker.find_group(ask.principal, name) is None:
            broker.admin.update_group(ask.principal, GroupConfig(name))
        broker.admin.reset_offsets(ask.principal, name, config.name, time_ms, starts=starts)
    return Moves(
        name,
        config.name,
        body.dry_run,
        sum(max(0, each.before - each.after) for each in moves),
        sum(max(0, each.after - each.before) for each in moves),
        moves,
    )


async def clone_group(ask: Ask) -> Cloned:
    """Put a group where another one is, in the whole cluster; it is created if it is missing."""
    body: Clone = ask.body
    check(ask, "consume", ask.path["group"], "group")
    check(ask, "describe", body.source, "group")
    moves = await admin_of(ask).positions.clone(body.source, ask.path["group"], body.topic)
    return Cloned(moves.group, len(moves.queues), [str(each) for each in moves.failures])


OPERATIONS = [
    Operation("GET", "/v1/groups", "List consumer groups", list_groups, Listing[Group], GroupQuery),
    Operation(
        "POST",
        "/v1/groups",
        "Create a consumer group",
        create_group,
        GroupDescription,
        body=NewGroup,
        status=201,
        example={"name": "billing", "retry_times_max": 5},
    ),
    Operation("GET", "/v1/groups/{group}", "Show a group", get_group, GroupDescription),
    Operation(
        "PATCH",
        "/v1/groups/{group}",
        "Change a group",
        update_group,
        GroupDescription,
        body=GroupSettings,
        example={"retry_times_max": 3},
    ),
    Operation(
        "DELETE", "/v1/groups/{group}", "Delete a group and its positions", delete_group, Done
    ),
    Operation(
        "POST",
        "/v1/groups/{group}/reset",
        "Move a group, or see what that would mean",
        reset_group,
        Moves,
        body=Reset,
        example={"topic": "orders", "to": "earliest", "dry_run": True},
    ),
    Operation(
        "POST",
        "/v1/groups/{group}/clone",
        "Put a group where another one is",
        clone_group,
        Cloned,
        body=Clone,
        example={"source": "billing"},
    ),
]
