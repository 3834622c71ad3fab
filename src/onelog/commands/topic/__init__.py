"""`onelog topic`: list, describe, create, change and delete topics."""

from enum import Enum
from typing import Annotated

import typer

from onelog.commands.options import (
    Attributes,
    Broker,
    Cluster,
    Follow,
    IfMissing,
    Interval,
    Yes,
)
from onelog.commands.session import Session, connected

app = typer.Typer(
    help="Topics: where they are, what is in them, how they are set.", no_args_is_help=True
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Queues = Annotated[
    int | None, typer.Option(min=1, max=65_535, help="Queues for writing and reading.")
]
ReadQueues = Annotated[int | None, typer.Option(min=0, max=65_535, help="Queues for reading.")]
WriteQueues = Annotated[int | None, typer.Option(min=0, max=65_535, help="Queues for writing.")]


class Permission(Enum):
    """What clients may do with a topic, and the bits that say so."""

    READ_WRITE = "rw"
    READ = "r"
    WRITE = "w"

    @property
    def bits(self) -> int:
        """RocketMQ's permission bits."""
        return {"rw": 6, "r": 4, "w": 2}[self.value]


Perm = Annotated[Permission | None, typer.Option(help="What clients may do: read, write, both.")]


@app.command("list")
@connected
async def list_topics(
    session: Session,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Also retry, dead letter and system topics.")
    ] = False,
    cluster: Cluster = None,
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
        views.description_document(description),
        *views.description_views(description, session.utc),
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
    session: Session, topic: Topic, follow: Follow = False, interval: Interval = 2.0
) -> None:
    """Show what each queue of a topic holds."""
    from onelog.commands.topic import views

    if follow:
        await session.follow(
            interval,
            lambda: session.admin.topics.status(topic),
            views.status_document,
            lambda status: [views.status_table(status, session.utc)],
            lambda status: status.failures,
        )
    status = await session.admin.topics.status(topic)
    session.show(views.status_document(status), views.status_table(status, session.utc))
    session.complain(status.failures)


@app.command("create")
@connected
async def create_topic(
    session: Session,
    topic: Topic,
    queues: Queues = None,
    read_queues: ReadQueues = None,
    write_queues: WriteQueues = None,
    perm: Perm = None,
    order: Annotated[bool, typer.Option("--order", help="Keep queues where they are.")] = False,
    attribute: Attributes = None,
    cluster: Cluster = None,
    broker: Broker = None,
    if_missing: IfMissing = False,
) -> None:
    """Create a topic: 8 queues on each broker of the cluster, unless told otherwise."""
    from onelog.commands.topic.changes import change_of
    from onelog.errors import TopicExistsError

    change = change_of(queues, read_queues, write_queues, perm, order or None, attribute)
    try:
        brokers = await session.admin.topics.create(topic, change, cluster=cluster, broker=broker)
    except TopicExistsError:
        if not if_missing:
            raise
        brokers = ()
    what = f"created on {', '.join(brokers)}" if brokers else "exists already"
    session.show({"topic": topic, "created_on": list(brokers)}, f"{topic}: {what}")


@app.command("update")
@connected
async def update_topic(
    session: Session,
    topic: Topic,
    queues: Queues = None,
    read_queues: ReadQueues = None,
    write_queues: WriteQueues = None,
    perm: Perm = None,
    order: Annotated[
        bool | None, typer.Option("--order/--no-order", help="Keep queues where they are.")
    ] = None,
    attribute: Attributes = None,
    broker: Broker = None,
) -> None:
    """Change settings of a topic; what is not named stays as it is."""
    from onelog.client.admin.topics import TopicChange
    from onelog.commands.topic.changes import change_of
    from onelog.errors import InvalidRequestError

    change = change_of(queues, read_queues, write_queues, perm, order, attribute)
    if change == TopicChange():
        raise InvalidRequestError("nothing to change: name a setting, such as --queues 16")
    brokers = await session.admin.topics.update(topic, change, broker=broker)
    session.show(
        {"topic": topic, "changed_on": list(brokers)}, f"{topic}: changed on {', '.join(brokers)}"
    )


@app.command("delete")
@connected
async def delete_topic(
    session: Session, topic: Topic, cluster: Cluster = None, yes: Yes = False
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
