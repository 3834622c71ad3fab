"""`onelog group`: consumer groups, how far they are, and moving them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from onelog.admin.groups import GroupSettings
from onelog.client.admin.groups import (
    TO_THE_END,
    GroupChange,
    GroupDescription,
    GroupMembers,
    GroupSummary,
    Moves,
)
from onelog.client.connection.nodes import Failure
from onelog.clock import SystemClock
from onelog.commands.operations import options_of
from onelog.commands.options import (
    Attributes,
    Broker,
    Cluster,
    Follow,
    IfMissing,
    Interval,
    Yes,
    option,
    parse_attributes,
)
from onelog.commands.session import Session, Shown, command, confirm, with_options
from onelog.commands.terminal import pick, show_count, show_text, table
from onelog.commands.times import parse_policy, parse_time, show_policy, show_span, show_time
from onelog.errors import InvalidRequestError

app = typer.Typer()

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's name.")]
Topic = Annotated[str, typer.Option("--topic", "-t", help="The topic to move it in.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")]
CHANGE = options_of(GroupSettings) | {
    "attributes": (Attributes, None),
    "retry_policy": option(
        str | None,
        None,
        "Waits before retries: 10s,30s,5m, or exponential:5s,2h,2 (first, longest, factor), or "
        "levels.",
    ),
}
"""The options that say what to set on a group."""


def _change(
    attributes: list[str] | None,
    retry_policy: str | None,
    consume_broadcast_enable: bool | None,
    consume_message_orderly: bool | None,
    **given: Any,
) -> GroupChange:
    return GroupChange(
        broadcast_enable=consume_broadcast_enable,
        orderly=consume_message_orderly,
        attributes=parse_attributes(attributes),
        retry_policy=None if retry_policy is None else parse_policy(retry_policy),
        **given,
    )


@command(app, "list")
async def list_groups(
    session: Session,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also the system's own.")] = False,
    follow: Follow = False,
    interval: Interval = 2.0,
) -> None:
    """List consumer groups with their members and lag."""
    await session.present(
        lambda: session.admin.groups.summaries(with_system=every),
        lambda found: show_summaries(found, SystemClock().now_ms()),
        _failures,
        every=interval if follow else None,
    )


@command(app, "describe")
async def describe_group(
    session: Session,
    group: Group,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None,
    owners: Annotated[
        bool, typer.Option("--owners", help="Also which member has each queue.")
    ] = False,
    follow: Follow = False,
    interval: Interval = 2.0,
) -> None:
    """Show settings and members of a group, and its lag in every queue."""
    await session.present(
        lambda: session.admin.groups.describe(group, topic, with_owners=owners),
        lambda found: show_description(found, session.utc),
        every=interval if follow else None,
    )


@command(app, "create")
@with_options("change", CHANGE, _change)
async def create_group(
    session: Session,
    group: Group,
    change: GroupChange,
    cluster: Cluster = None,
    broker: Broker = None,
    if_missing: IfMissing = False,
) -> None:
    """Create a consumer group on each broker of the cluster."""
    work = session.admin.groups.create(group, change, cluster=cluster, broker=broker)
    await session.create("group", group, work, if_missing)


@command(app, "update")
@with_options("change", CHANGE, _change)
async def update_group(
    session: Session,
    group: Group,
    change: GroupChange,
    cluster: Cluster = None,
    broker: Broker = None,
) -> None:
    """Change settings of a group; what is not named stays as it is."""
    if change == GroupChange():
        raise InvalidRequestError("nothing to change: name a setting, such as --retries 3")
    brokers = await session.admin.groups.update(group, change, cluster=cluster, broker=broker)
    session.show_done("group", group, "changed", brokers)


@command(app, "delete")
async def delete_group(
    session: Session,
    group: Group,
    cluster: Cluster = None,
    keep_positions: Annotated[
        bool, typer.Option("--keep-positions", help="A group of that name goes on from there.")
    ] = False,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Also the messages that it gave up.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a consumer group, its positions and its retry topic."""
    found = await session.admin.groups.describe(group)
    members = len(found.members.members)
    warning = f", which has {members} live members" if members else ""
    confirm(f"Delete consumer group {group}{warning}?", yes)
    brokers = await session.admin.groups.delete(
        group, cluster=cluster, keep_positions=keep_positions, dead_letters=dead_letters
    )
    session.show_done("group", group, "deleted", brokers)


@command(app, "reset")
async def reset_group(
    session: Session,
    group: Group,
    topic: Topic,
    to: Annotated[
        str,
        typer.Option(
            help="2026-05-01 10:30:00, milliseconds, how long ago (15m, 2h, 3d), now, earliest."
        ),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Move a group to the messages of a time, back or forth."""
    time_ms = parse_time(to, SystemClock().now_ms(), utc=session.utc)
    what = f"to {show_time(time_ms, utc=session.utc)}" if time_ms else "to the oldest message"
    await _move(session, group, topic, time_ms, f"Move {group} in {topic} {what}", dry_run, yes)


@command(app, "skip")
async def skip_backlog(
    session: Session, group: Group, topic: Topic, dry_run: DryRun = False, yes: Yes = False
) -> None:
    """Move a group past everything that is there now."""
    question = f"Move {group} to the end of {topic}"
    await _move(session, group, topic, TO_THE_END, question, dry_run, yes)


async def _move(
    session: Session, group: str, topic: str, time_ms: int, question: str, dry_run: bool, yes: bool
) -> None:
    moves = await session.admin.positions.preview(group, topic, time_ms)
    if not dry_run:
        confirm(f"{question}: {effect(moves)}?", yes)
        moves = await session.admin.positions.reset(group, topic, time_ms)
    session.show(*show_moves(moves, dry_run))
    session.complain(moves.failures)


@command(app, "clone")
async def clone_group(
    session: Session,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The group to copy.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The group to move.")],
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None,
    yes: Yes = False,
) -> None:
    """Put a group where another one is; it is created if it is missing."""
    if target in (await session.admin.groups.names()).answers:
        confirm(f"{target} exists: move it to where {source} is?", yes)
    moves = await session.admin.positions.clone(source, target, topic)
    session.show(*show_moves(moves, dry_run=False))
    session.complain(moves.failures)


# -- what is shown -------------------------------------------------------------------------------

_WAYS = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}


def show_summaries(found: Sequence[GroupSummary], now_ms: int) -> Shown:
    """Groups, one per line, with the total lag."""
    document = [
        {
            **pick(each, "group=name system=is_system"),
            "brokers": list(each.brokers),
            "members": len(each.members.members),
            **pick(each.members, "consume_type message_model"),
            **pick(each.progress, "rate lag consumed_ms"),
        }
        for each in found
    ]
    return document, table(
        f"consumer groups: {show_count(len(found))}",
        "group, >members, way, >messages/s=rate, #lag, >behind, brokers",
        rows=(
            {**row, "way": _way(each.members), "behind": _behind(each.progress.consumed_ms, now_ms)}
            for row, each in zip(document, found, strict=True)
        ),
        footer={"group": "total", "lag": True},
    )


def _failures(found: Sequence[GroupSummary]) -> list[Failure]:
    """Who did not answer, each once."""
    return list(dict.fromkeys(failure for each in found for failure in each.progress.failures))


_QUEUE = "topic broker queue=queue_id max_offset position lag in_flight consumed_ms"


def show_description(found: GroupDescription, utc: bool) -> Shown:
    """All about a group."""
    progress, members = found.progress, found.members
    queues = [
        {**pick(queue, _QUEUE), "client_id": queue.client_id or None} for queue in progress.queues
    ]
    document: dict[str, Any] = {
        "group": found.name,
        **pick(progress, "lag rate"),
        **pick(members, "consume_type message_model start_from subscriptions"),
        "mismatch": members.differing or None,
        "members": [asdict(member) for member in members.members],
        "settings": [asdict(each) for each in found.settings],
        "queues": queues,
    }
    views: list[RenderableType] = _settings_tables(document["settings"])
    views += _members_tables(members, document["members"])
    views += [] if members.members else [f"{show_text(found.name)} has no live members"]
    owned = any(queue.client_id for queue in progress.queues)
    columns = "topic, broker, >queue, >max offset, >position, #lag, #in flight"
    columns += ", consumed up to=consumed_ms" + (", member=client_id" if owned else "")
    footer = {"topic": "total", "queue": len(queues), "lag": True, "in flight": True}
    title = f"progress: {progress.rate:,.1f} messages/s are consumed"
    return document, *views, table(title, columns, rows=queues, footer=footer, utc=utc)


def _settings_tables(settings: Sequence[dict[str, Any]]) -> list[RenderableType]:
    made = table(
        "settings",
        "broker, enabled=consume_enable, broadcast=broadcast_enable, orderly, "
        ">retries=retry_times_max, after=retry_policy, >retry queues, "
        ">minutes per message=consume_timeout_minutes, attributes",
        rows=({**each, "retry_policy": show_policy(each["retry_policy"])} for each in settings),
    )
    return [made] if settings else []


def _members_tables(
    members: GroupMembers, listed: Sequence[dict[str, Any]]
) -> list[RenderableType]:
    if not listed:
        return []
    columns = "client=client_id, address, language, >version"
    made = [
        table(f"members ({_way(members)})", columns, rows=listed),
        table("subscriptions", "topic, filter", rows=members.subscriptions.items()),
    ]
    if members.differing:
        mismatch = table(
            "members subscribe differently: each reads its queues with its own filter, so messages "
            "that only others want are passed over",
            "client, topic, filter",
            rows=(
                (client_id, *each)
                for client_id, filters in members.differing.items()
                for each in filters.items()
            ),
        )
        mismatch.title_style = "bold red"
        made.append(mismatch)
    return [*made]


def show_moves(moves: Moves, dry_run: bool) -> Shown:
    """Moved positions, a queue per line."""
    queues = [pick(move, "topic broker queue=queue_id before after") for move in moves.queues]
    made = table(
        f"{show_text(moves.group)} {'would be' if dry_run else 'was'} moved: {effect(moves)}",
        "topic, broker, >queue, >before, >after, >difference",
        rows=({**row, "difference": f"{row['after'] - (row['before'] or 0):+,}"} for row in queues),
    )
    return {"group": moves.group, "dry_run": dry_run, "queues": queues}, made


def effect(moves: Moves) -> str:
    """What moving means, in messages."""
    differences = [move.after - (move.before or 0) for move in moves.queues]
    skipped = sum(each for each in differences if each > 0)
    repeated = -sum(each for each in differences if each < 0)
    parts = []
    if skipped:
        parts.append(f"{show_count(skipped)} messages are skipped")
    if repeated:
        parts.append(f"{show_count(repeated)} messages come again")
    return " and ".join(parts) or "nothing changes"


def _way(members: GroupMembers) -> str:
    way = _WAYS.get(members.consume_type, members.consume_type.lower())
    return show_text(" ".join(filter(None, (way, members.message_model.lower()))))


def _behind(consumed_ms: int, now_ms: int) -> str:
    """How long ago the message was stored that a group did last, where it lags most."""
    return show_span(now_ms - consumed_ms) if consumed_ms else "-"
