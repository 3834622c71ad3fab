"""`onelog produce`: send lines, JSON lines or files as messages."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from onelog.commands.clients import ClientSession, Rate, client_command

Form = Literal["lines", "json", "files"]
"""What the input is made of."""


@client_command
def produce(
    session: ClientSession,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Where to send to; - if JSON lines say it.")
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="What to send; else, and for -, stdin."),
    ] = None,
    form: Annotated[
        Form,
        typer.Option("--as", help="A message is a line, a JSON object on a line, or a whole file."),
    ] = "lines",
    body: Annotated[
        list[str] | None,
        typer.Option("--body", "-b", help="Send this text instead. May be repeated."),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="The messages' tag.")] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", help="A key of the messages. May be repeated.")
    ] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="name=value. May be repeated.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(help="Deliver them so much later: 90s, 1h30m.")
    ] = None,
    deliver_at: Annotated[
        str | None, typer.Option("--at", help="Deliver them at this time: 2026-05-01 10:30:00.")
    ] = None,
    order_key: Annotated[
        str | None, typer.Option(help="Send all to the queue of this key, in their order.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many.")] = None,
    rate: Rate = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on after messages that cannot be sent.")
    ] = False,
    receipts: Annotated[
        bool, typer.Option("--receipts", help="Print where each message went.")
    ] = False,
    group: Annotated[str, typer.Option(help="The producer group.")] = "onelog-produce",
) -> None:
    """Send messages: lines of files or of stdin, unless told otherwise.

    With `--as json` each line is an object. Its fields: body (a text; other values are sent as
    JSON), body_encoding (base64, for bytes), tags, keys, properties, delay (seconds, or a text such
    as 90s), deliver_at, delay_level, order_key, flag. They win over the options; topic counts only
    if TOPIC is -. What `onelog consume --json` prints can be read.

    Empty lines are left out. Without `--keep-going` the first message that cannot be sent is the
    last; those that are on their way by then may still arrive.
    """
    from onelog.commands.produce.sending import ProducePlan, Template, input_bytes, items, send

    template = Template.of(topic, tag, key, properties, delay, deliver_at, order_key, session.utc)
    source = items(template, form, files or [], body)
    plan = ProducePlan(group, count, rate, keep_going, receipts, input_bytes(files or []))
    send(session, source, plan)
