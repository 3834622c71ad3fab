"""`onelog topic`: list, describe, create, change and delete topics."""

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from onelog.commands import options
from onelog.commands.options import option
from onelog.commands.session import Session, connected, with_options

if TYPE_CHECKING:
    from onelog.client.admin.topics import TopicChange

app = typer.Typer(
    help="Topics: where they are, what is in them, how they are set.", no_args_is_help=True
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


class Permission(Enum):
    """What clients may do with a topic, and the bits that say so."""

    READ_WRITE = "rw"
    READ = "r"
    WRITE = "w"

    @property
    def bits(self) -> int:
        """RocketMQ's permission bits."""
        return {"rw": 6, "r": 4, "w": 2}[self.value]


CHANGE = {
    "queues": option(int | None, None, "Queues for writing and reading.", min=1, max=65_535),
    "read_queues": option(int | None, None, "Queues for reading.", min=0, max=65_535),
    "write_queues": option(int | None, None, "Queues for writing.", min=0, max=65_535),
    "perm": option(Permission | None, None, "What clients may do: read, write, both."),
    "attribute": (options.Attributes, None),
}
"""The options that say what to set on a topic."""


def _change(
    *,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: Permission | None,
    attribute: list[str] | None,
) -> "TopicChange":
    from onelog.client.admin.topics import TopicChange
    from onelog.errors import InvalidRequestError

    if queues is not None and (read_queues is not None or write_queues is not None):
        raise InvalidRequestError("--queues is for both: name either it or the two others")
    return TopicChange(
        read_queues=queues if read_queues is None else read_queues,
        write_queues=queues if write_queues is None else write_queues,
        perm=None if perm is None else perm.bits,
        attributes=options.parse_attributes(attribute),
    )


@app.command("list")
@connected
async def list_topics(
    session: Session,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Also retry, dead letter and system topics.")
    ] = False,
    cluster: options.Cluster = None,
) -> None:
    """List topics."""
    from onelog.client.admin.topics import TopicKind
    from onelog.commands.topic import views

    names = [
        each
        for each in await session.admin.topics.names(cluster)
        if every or each.kind is TopicKind.USER
    ]
    session.show(views.names_document(names), views.names_table(names))


@app.command("describe")
@connected
async def describe_topic(session: Session, topic: Topic) -> None:
    """Show settings, queues and consumer groups of a topic."""
    from onelog.commands.topic import views

    description = await session.admin.topics.describe(topic)
    session.show(
        views.description_document(description), *views.description_views(description, session.utc)
    )
    session.complain(description.failures)


@app.command("route")
@connected
async def route_topic(session: Session, topic: Topic) -> None:
    """Show the brokers that have a topic, as clients are told."""
    from onelog.commands.topic import views

    route = await session.admin.topics.route(topic)
    session.show(views.route_document(route), views.route_table(route))


@app.command("status")
@connected
async def topic_status(
    session: Session, topic: Topic, follow: options.Follow = False, interval: options.Interval = 2.0
) -> None:
    """Show what each queue of a topic holds."""
    from onelog.commands.topic import views

    await session.present(
        lambda: session.admin.topics.status(topic),
        views.status_document,
        lambda status: [views.status_table(status, session.utc)],
        every=interval if follow else None,
    )


@app.command("create")
@connected
@with_options("change", CHANGE, _change)
async def create_topic(
    session: Session,
    topic: Topic,
    change: "TopicChange",
    order: Annotated[bool, typer.Option("--order", help="Keep queues where they are.")] = False,
    cluster: options.Cluster = None,
    broker: options.Broker = None,
    if_missing: options.IfMissing = False,
) -> None:
    """Create a topic: 8 queues on each broker of the cluster, unless told otherwise."""
    change = replace(change, order=order or None)
    work = session.admin.topics.create(topic, change, cluster=cluster, broker=broker)
    await session.create("topic", topic, work, if_missing)


@app.command("update")
@connected
@with_options("change", CHANGE, _change)
async def update_topic(
    session: Session,
    topic: Topic,
    change: "TopicChange",
    order: Annotated[
        bool | None, typer.Option("--order/--no-order", help="Keep queues where they are.")
    ] = None,
    broker: options.Broker = None,
) -> None:
    """Change settings of a topic; what is not named stays as it is."""
    from onelog.client.admin.topics import TopicChange
    from onelog.errors import InvalidRequestError

    change = replace(change, order=order)
    if change == TopicChange():
        raise InvalidRequestError("nothing to change: name a setting, such as --queues 16")
    brokers = await session.admin.topics.update(topic, change, broker=broker)
    session.show_done("topic", topic, "changed", brokers)


@app.command("delete")
@connected
async def delete_topic(
    session: Session, topic: Topic, cluster: options.Cluster = None, yes: options.Yes = False
) -> None:
    """Delete a topic and the messages in it."""
    status = await session.admin.topics.status(topic)
    count = sum(queue.count for queue in status.queues)
    session.confirm(f"Delete topic {topic} with {count:,} messages?", yes)
    brokers = await session.admin.topics.delete(topic, cluster=cluster)
    session.show(
        {"topic": topic, "deleted_on": list(brokers), "messages": count},
        f"{topic}: deleted on {', '.join(brokers)}",
    )
