"""`onelog delay`: messages that wait for their time; list them, and take them back."""

from typing import Annotated

import typer

from onelog.commands.options import Cluster, Yes
from onelog.commands.session import Session, connected

app = typer.Typer(
    help="Delayed and timed messages: what waits, and taking it back.", no_args_is_help=True
)


@app.command("list")
@connected
async def list_waiting(
    session: Session,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Only messages to this topic.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="At most so many, those that are due first.")
    ] = 100,
    cluster: Cluster = None,
) -> None:
    """List messages that wait, for a delay level or a time of their own, by when they are due.

    Brokers have no list of them: the queues in which they wait are read, from the newest message
    to the oldest that may still wait.
    """
    from rich.progress import MofNCompleteColumn

    from onelog.commands.delay import views
    from onelog.commands.terminal import progress_counts

    with progress_counts("reading", MofNCompleteColumn()) as on_progress:
        found = await session.admin.delays.waiting(
            topic, cluster=cluster, count_max=limit, on_progress=on_progress
        )
    session.show(views.listing_document(found), *views.listing_views(found, session.utc))
    session.complain(found.failures)


@app.command("cancel")
@connected
async def cancel_message(
    session: Session,
    which: Annotated[
        str,
        typer.Argument(
            metavar="MESSAGE", help="The recall handle, the message's id, or its unique key."
        ),
    ],
    yes: Yes = False,
) -> None:
    """Take a timed message back, before it is delivered.

    A message that waits for a delay level cannot be taken back.
    """
    from onelog.commands.delay import views

    delays = session.admin.delays
    handle = await delays.find(which)
    session.confirm(f"Take back {views.named(handle, session.utc)}?", yes)
    await delays.cancel(handle)
    session.show(
        views.handle_document(handle), f"{views.named(handle, session.utc)} will not be delivered"
    )
