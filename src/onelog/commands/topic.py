"""`onelog topic`: list, describe, create, change and delete topics."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated

import typer

from onelog.admin.operations import about
from onelog.admin.topics import TopicSettings
from onelog.client.admin.cluster import BrokerSet
from onelog.client.admin.topics import (
    Route,
    TopicChange,
    TopicDescription,
    TopicKind,
    TopicName,
    TopicStatus,
)
from onelog.commands import options
from onelog.commands.operations import options_of
from onelog.commands.session import Session, Shown, command, confirm, with_options
from onelog.commands.terminal import pick, show_count, show_text, table
from onelog.errors import InvalidRequestError

app = typer.Typer()


Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


PERMISSION_BITS: dict[str | None, int | None] = {"rw": 6, "r": 4, "w": 2, "none": 0, None: None}
"""What clients may do with a topic, as RocketMQ says it."""


class Settings(TopicSettings):
    """The options that say what to set on a topic."""

    queues: Annotated[int, about("Queues for writing and reading.", ge=1, le=65_535)] | None = None
    read_queues: Annotated[int, about("Queues for reading.", ge=0, le=65_535)] | None = None
    write_queues: Annotated[int, about("Queues for writing.", ge=0, le=65_535)] | None = None


def _change(
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    permission: str | None,
    ordered: bool | None,
    attributes: list[str] | None,
) -> TopicChange:
    if queues is not None and (read_queues is not None or write_queues is not None):
        raise InvalidRequestError("--queues is for both: name either it or the two others")
    return TopicChange(
        read_queues=queues if read_queues is None else read_queues,
        write_queues=queues if write_queues is None else write_queues,
        perm=PERMISSION_BITS[permission],
        order=ordered,
        attributes=options.parse_attributes(attributes),
    )


CHANGE = options_of(Settings) | {"attributes": (options.Attributes, None)}
changed = with_options("change", CHANGE, _change)


@command(app, "list")
async def list_topics(
    session: Session,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Also retry, dead letter and system topics.")
    ] = False,
    cluster: options.Cluster = None,
) -> None:
    """List topics."""
    names = [
        each
        for each in await session.admin.topics.names(cluster)
        if every or each.kind is TopicKind.USER
    ]
    session.show(*show_names(names))


@command(app, "describe")
async def describe_topic(session: Session, topic: Topic) -> None:
    """Show settings, queues and consumer groups of a topic."""
    description = await session.admin.topics.describe(topic)
    session.show(*show_description(description, session.utc))
    session.complain(description.failures)


@command(app, "route")
async def route_topic(session: Session, topic: Topic) -> None:
    """Show the brokers that have a topic, as clients are told."""
    session.show(*show_route(await session.admin.topics.route(topic)))


@command(app, "status")
async def topic_status(
    session: Session, topic: Topic, follow: options.Follow = False, interval: options.Interval = 2.0
) -> None:
    """Show what each queue of a topic holds."""
    await session.present(
        lambda: session.admin.topics.status(topic),
        lambda status: show_status(status, session.utc),
        every=interval if follow else None,
    )


@command(app, "create")
@changed
async def create_topic(
    session: Session,
    topic: Topic,
    change: TopicChange,
    cluster: options.Cluster = None,
    broker: options.Broker = None,
    if_missing: options.IfMissing = False,
) -> None:
    """Create a topic: 8 queues on each broker of the cluster, unless told otherwise."""
    change = replace(change, order=change.order or None)
    work = session.admin.topics.create(topic, change, cluster=cluster, broker=broker)
    await session.create("topic", topic, work, if_missing)


@command(app, "update")
@changed
async def update_topic(
    session: Session,
    topic: Topic,
    change: TopicChange,
    broker: options.Broker = None,
) -> None:
    """Change settings of a topic; what is not named stays as it is."""
    if change == TopicChange():
        raise InvalidRequestError("nothing to change: name a setting, such as --queues 16")
    brokers = await session.admin.topics.update(topic, change, broker=broker)
    session.show_done("topic", topic, "changed", brokers)


@command(app, "delete")
async def delete_topic(
    session: Session, topic: Topic, cluster: options.Cluster = None, yes: options.Yes = False
) -> None:
    """Delete a topic and the messages in it."""
    status = await session.admin.topics.status(topic)
    count = sum(queue.count for queue in status.queues)
    confirm(f"Delete topic {topic} with {count:,} messages?", yes)
    brokers = await session.admin.topics.delete(topic, cluster=cluster)
    session.show(
        {"topic": topic, "deleted_on": list(brokers), "messages": count},
        f"{topic}: deleted on {', '.join(brokers)}",
    )


# -- what is shown -------------------------------------------------------------------------------

_PERMISSIONS = ((4, "r"), (2, "w"), (1, "inherited"))


def show_perm(perm: int) -> str:
    """Permission bits in letters."""
    return " ".join(name for bit, name in _PERMISSIONS if perm & bit) or "none"


def show_names(names: Sequence[TopicName]) -> Shown:
    """Topics, one per line."""
    document = [{"topic": each.name, "kind": each.kind.value} for each in names]
    return document, table(f"topics: {show_count(len(names))}", "topic, kind", rows=document)


def show_route(route: Route) -> Shown:
    """A route, a broker per line."""
    brokers = [
        {
            **pick(each.brokers, "broker=name cluster"),
            "addresses": {str(number): str(a) for number, a in each.brokers.members},
            **pick(each, "read_queues write_queues perm"),
        }
        for each in route.brokers
    ]
    rows = [
        {**document, "permission": show_perm(each.perm), "addresses": _addresses(each.brokers)}
        for document, each in zip(brokers, route.brokers, strict=True)
    ]
    columns = "broker, cluster, >read queues, >write queues, permission, addresses"
    made = table(f"route of {show_text(route.topic)}", columns, rows=rows)
    if route.order:
        made.caption = f"ordered: {show_text(route.order)}"
    return {"topic": route.topic, "order": route.order, "brokers": brokers}, made


def _addresses(brokers: BrokerSet) -> str:
    return ", ".join(
        f"{address} ({'master' if number == 0 else f'slave {number}'})"
        for number, address in brokers.members
    )


def show_status(status: TopicStatus, utc: bool) -> Shown:
    """What queues hold, one per line, with a total."""
    names = "broker queue=queue_id min_offset max_offset messages=count updated_ms"
    queues = [pick(queue, names) for queue in status.queues]
    newest = max((queue.updated_ms for queue in status.queues), default=0)
    made = table(
        f"{show_text(status.topic)}: {status.put_rate:,.1f} messages/s come in",
        "broker, >queue, >min offset, >max offset, #messages, last message=updated_ms",
        rows=queues,
        footer={"broker": "total", "queue": len(queues), "messages": True, "last message": newest},
        utc=utc,
    )
    total = sum(queue.count for queue in status.queues)
    rest = {"messages": total, "put_rate": status.put_rate, "queues": queues}
    return {"topic": status.topic, **rest}, made


def show_description(description: TopicDescription, utc: bool) -> Shown:
    """All about a topic."""
    route, route_table = show_route(description.route)
    status, status_table = show_status(description.status, utc)
    settings = [asdict(each) for each in description.settings]
    settings_table = table(
        "settings",
        "broker, >read queues, >write queues, permission=perm, ordered=order, attributes",
        rows=({**each, "perm": show_perm(each["perm"])} for each in settings),
    )
    document = {**route, **status, "settings": settings, "groups": list(description.groups)}
    groups = ", ".join(map(show_text, description.groups)) or "none"
    return document, route_table, settings_table, status_table, f"consumer groups: {groups}"
