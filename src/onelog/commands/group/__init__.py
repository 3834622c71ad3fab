"""`onelog group`: consumer groups, how far they are, and moving them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from onelog.commands.session import Session, connected, with_options

if TYPE_CHECKING:
    from onelog.client.admin.groups import GroupChange

app = typer.Typer(help="Consumer groups: members, lag, positions, settings.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's name.")]
Topic = Annotated[str, typer.Option("--topic", "-t", help="The topic to move it in.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")]
CHANGE = {
    "enable": option(bool | None, None, "Whether it may consume at all.", "--enable/--disable"),
    "broadcast": option(
        bool | None,
        None,
        "Whether members may get all messages each.",
        "--broadcast/--no-broadcast",
    ),
    "orderly": option(bool | None, None, "Whether it consumes in order.", "--orderly/--no-orderly"),
    "retries": option(
        int | None, None, "Tries before a message is given up.", min=-1, max=1_000_000
    ),
    "retry_queues": option(int | None, None, "Queues of its retry topic.", min=0, max=65_535),
    "retry_policy": option(
        str | None,
        None,
        "Waits before retries: 10s,30s,5m, or exponential:5s,2h,2 (first, longest, factor), or "
        "levels.",
    ),
    "consume_timeout": option(int | None, None, "Minutes for one message.", min=1, max=100_000),
    "attribute": (Attributes, None),
}
"""The options that say what to set on a group."""


def _change(attribute: list[str] | None, retry_policy: str | None, **given: Any) -> "GroupChange":
    from onelog.client.admin.groups import GroupChange
    from onelog.commands.times import parse_policy

    return GroupChange(
        consume_enable=given["enable"],
        broadcast_enable=given["broadcast"],
        orderly=given["orderly"],
        retry_queues=given["retry_queues"],
        retry_times_max=given["retries"],
        consume_timeout_minutes=given["consume_timeout"],
        attributes=parse_attributes(attribute),
        retry_policy=None if retry_policy is None else parse_policy(retry_policy),
    )


@app.command("list")
@connected
async def list_groups(
    session: Session,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also the system's own.")] = False,
    follow: Follow = False,
    interval: Interval = 2.0,
) -> None:
    """List consumer groups with their members and lag."""
    from onelog.clock import SystemClock
    from onelog.commands.group import views

    await session.present(
        lambda: session.admin.groups.summaries(with_system=every),
        views.summaries_document,
        lambda found: [views.summaries_table(found, SystemClock().now_ms())],
        views.summaries_failures,
        every=interval if follow else None,
    )


@app.command("describe")
@connected
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
    from onelog.commands.group import views

    await session.present(
        lambda: session.admin.groups.describe(group, topic, with_owners=owners),
        views.description_document,
        lambda found: views.description_views(found, session.utc),
        every=interval if follow else None,
    )


@app.command("create")
@connected
@with_options("change", CHANGE, _change)
async def create_group(
    session: Session,
    group: Group,
    change: "GroupChange",
    cluster: Cluster = None,
    broker: Broker = None,
    if_missing: IfMissing = False,
) -> None:
    """Create a consumer group on each broker of the cluster."""
    work = session.admin.groups.create(group, change, cluster=cluster, broker=broker)
    await session.create("group", group, work, if_missing)


@app.command("update")
@connected
@with_options("change", CHANGE, _change)
async def update_group(
    session: Session,
    group: Group,
    change: "GroupChange",
    cluster: Cluster = None,
    broker: Broker = None,
) -> None:
    """Change settings of a group; what is not named stays as it is."""
    from onelog.client.admin.groups import GroupChange
    from onelog.errors import InvalidRequestError

    if change == GroupChange():
        raise InvalidRequestError("nothing to change: name a setting, such as --retries 3")
    brokers = await session.admin.groups.update(group, change, cluster=cluster, broker=broker)
    session.show_done("group", group, "changed", brokers)


@app.command("delete")
@connected
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
    session.confirm(f"Delete consumer group {group}{warning}?", yes)
    brokers = await session.admin.groups.delete(
        group, cluster=cluster, keep_positions=keep_positions, dead_letters=dead_letters
    )
    session.show_done("group", group, "deleted", brokers)


@app.command("reset")
@connected
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
    from onelog.clock import SystemClock
    from onelog.commands.times import parse_time, show_time

    time_ms = parse_time(to, SystemClock().now_ms(), utc=session.utc)
    what = f"to {show_time(time_ms, utc=session.utc)}" if time_ms else "to the oldest message"
    await _move(session, group, topic, time_ms, f"Move {group} in {topic} {what}", dry_run, yes)


@app.command("skip")
@connected
async def skip_backlog(
    session: Session, group: Group, topic: Topic, dry_run: DryRun = False, yes: Yes = False
) -> None:
    """Move a group past everything that is there now."""
    from onelog.client.admin.groups import TO_THE_END

    question = f"Move {group} to the end of {topic}"
    await _move(session, group, topic, TO_THE_END, question, dry_run, yes)


async def _move(
    session: Session, group: str, topic: str, time_ms: int, question: str, dry_run: bool, yes: bool
) -> None:
    from onelog.commands.group import views

    moves = await session.admin.positions.preview(group, topic, time_ms)
    if not dry_run:
        session.confirm(f"{question}: {views.effect(moves)}?", yes)
        moves = await session.admin.positions.reset(group, topic, time_ms)
    session.show(views.moves_document(moves, dry_run), views.moves_table(moves, dry_run))
    session.complain(moves.failures)


@app.command("clone")
@connected
async def clone_group(
    session: Session,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The group to copy.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The group to move.")],
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None,
    yes: Yes = False,
) -> None:
    """Put a group where another one is; it is created if it is missing."""
    from onelog.commands.group import views

    if target in (await session.admin.groups.names()).answers:
        session.confirm(f"{target} exists: move it to where {source} is?", yes)
    moves = await session.admin.positions.clone(source, target, topic)
    session.show(views.moves_document(moves, False), views.moves_table(moves, False))
    session.complain(moves.failures)
