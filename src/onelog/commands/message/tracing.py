"""`onelog message trace`: what happened to a message, step by step."""

from typing import Annotated

import typer

from onelog.commands.session import Session, connected
from onelog.rocketmq.names import TRACE_TOPIC


@connected
async def trace_message(
    session: Session,
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="The message's unique key, or its id.")
    ],
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", help="Its topic, if ID is the key of an untraced message."),
    ] = None,
    trace_topic: Annotated[
        str, typer.Option(help="Where clients write their traces.")
    ] = TRACE_TOPIC,
) -> None:
    """Show when a message was born, stored, delivered, consumed, retried, and by whom.

    Deliveries are known if clients trace (enableMsgTrace); all the rest is read from the log.
    """
    from onelog.commands.message import trace_views

    trace = await session.admin.traces.trace(message_id, topic=topic, trace_topic=trace_topic)
    session.show(trace_views.document(trace), *trace_views.views(trace, session.utc))
    session.complain(trace.failures)
