"""`onelog consume`: print the messages of a topic."""

from typing import Annotated

import typer

from onelog.commands.clients import ClientSession, Rate, client_command

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with messages as they come.")]
FromBeginning = Annotated[
    bool,
    typer.Option("--from-beginning", help="Begin with the oldest message (a group: if it is new)."),
]
Since = Annotated[
    str | None,
    typer.Option(help="Begin with those stored from this time on: 2026-05-01 10:30:00, 15m."),
]


@client_command
def consume(
    session: ClientSession,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Whose messages to print.")],
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Consume as a member of this group, and commit."),
    ] = None,
    follow: Follow = False,
    from_beginning: FromBeginning = False,
    since: Since = None,
    tag: Annotated[
        str, typer.Option("--tag", help="Only messages with these tags: 'paid || refunded'.")
    ] = "*",
    sql: Annotated[
        str | None, typer.Option(help="Only those whose properties meet a condition: 'a > 3'.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Print only those with this key.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many.")] = None,
    rate: Rate = None,
    orderly: Annotated[
        bool,
        typer.Option("--orderly", help="With --group: each queue by one member, in its order."),
    ] = False,
    bodies: Annotated[
        bool, typer.Option("--bodies", help="Print bodies and nothing else, as they are.")
    ] = False,
) -> None:
    """Print messages: all that are there, or with `--follow` those that come.

    Without a group nothing is committed and no group is disturbed: every queue is read by itself,
    from its beginning, with `--follow` from its end. With a group the members share the messages;
    what was printed is committed, and what `--key` leaves out counts as consumed.

    Ctrl-C ends it. With `--json` each line is an object, which `onelog produce --as json` reads.
    """
    from onelog.commands.consume.reading import (
        ConsumePlan,
        Printer,
        begin_time,
        read_queues,
        share_orderly,
        share_topic,
    )
    from onelog.errors import InvalidRequestError

    if orderly and group is None:
        raise InvalidRequestError("--orderly is for members of a group: name one with --group")
    start = begin_time(since, from_beginning, session.utc)
    plan = ConsumePlan(topic, tag, sql, follow, start, from_beginning)
    printer = Printer(session, key=key, count=count, rate=rate, bodies=bodies)
    session.is_following = follow
    if group is None:
        read_queues(session, plan, printer)
    elif orderly:
        share_orderly(session, plan, printer, group)
    else:
        share_topic(session, plan, printer, group)
