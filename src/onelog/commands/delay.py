"""`onelog delay`: messages that wait for their time; list them, and take them back."""

from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn

from onelog.client.admin.delays import Listing
from onelog.commands.options import Cluster, Yes
from onelog.commands.session import Session, Shown, command, confirm
from onelog.commands.terminal import pick, progress_bar, show_bytes, show_count, show_text, table
from onelog.commands.times import show_time
from onelog.wire.remoting.recall_handle import RecallHandle

app = typer.Typer()


@command(app, "list")
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
    with progress_bar("reading", None, MofNCompleteColumn()) as on_progress:
        found = await session.admin.delays.waiting(
            topic, cluster=cluster, count_max=limit, on_progress=on_progress
        )
    session.show(*show_listing(found, session.utc))
    session.complain(found.failures)


@command(app, "cancel")
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
    delays = session.admin.delays
    handle = await delays.find(which)
    named = _named(handle, session.utc)
    confirm(f"Take back {named}?", yes)
    await delays.cancel(handle)
    document = pick(handle, "topic broker unique_key")
    document |= {"due_ms": handle.time_ms - 1, "recall_handle": handle.encode()}
    session.show(document, f"{named} will not be delivered")


def _named(handle: RecallHandle, utc: bool) -> str:
    """A message, as one speaks of it."""
    due = show_time(handle.time_ms - 1, utc=utc)
    return f"message {show_text(handle.unique_key)} to {show_text(handle.topic)}, due {due},"


_WAITING = (
    "due_ms topic queue=queue_id broker level id=message_id unique_key keys tags born_ms "
    "body_bytes recall_handle=handle"
)


def show_listing(listing: Listing, utc: bool) -> Shown:
    """What waits, one message per line. Without a level it waits for a time of its own."""
    messages = [{**pick(each, _WAITING), "keys": list(each.keys)} for each in listing.messages]
    made = table(
        f"messages that wait: {show_count(listing.count)}",
        "due=due_ms, waits for, topic, >queue, broker, keys, id, >size=body_bytes",
        rows=(
            {
                **each,
                "id": each["unique_key"] or each["id"],
                "waits_for": "its time" if each["level"] is None else f"level {each['level']}",
                "body_bytes": show_bytes(each["body_bytes"]),
            }
            for each in messages
        ),
        utc=utc,
    )
    rest = listing.count - len(messages)
    more = (f"… and {show_count(rest)} more, due later (--limit)",) if rest else ()
    return {"waiting": listing.count, "messages": messages}, made, *more
