"""`onelog dlq`: the messages that consumer groups gave up; look at them, resend or drop them."""

from typing import Annotated

import typer

from onelog.commands.options import Yes
from onelog.commands.session import Session, connected

app = typer.Typer(
    help="Dead letters: what consumer groups gave up, resending and dropping it.",
    no_args_is_help=True,
)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's name.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]


@app.command("list")
@connected
async def list_boxes(
    session: Session,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Also groups whose letters are all done with.")
    ] = False,
) -> None:
    """List consumer groups that have dead letters, and how many."""
    from onelog.commands.dlq.letters import boxes_document, boxes_table

    boxes = await session.admin.dead_letters.boxes(with_empty=every)
    session.show(boxes_document(boxes), boxes_table(boxes, session.utc))
    session.complain(failure for box in boxes for failure in box.failures)


@app.command("show")
@connected
async def show_letters(
    session: Session,
    group: Group,
    begin: Annotated[
        int | None, typer.Option("--from", min=0, help="From this offset on, done with or not.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1_000_000, help="At most so many.")] = 32,
    since: Annotated[
        str | None,
        typer.Option(help="Given up from this time on: 2026-05-01 10:30:00, or how long ago: 2h."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that were resent or dropped.")
    ] = False,
) -> None:
    """List the dead letters of a group: where from, how often tried, when born."""
    from onelog.commands.dlq.letters import letter_document, letters_table
    from onelog.commands.message.search import first, span

    since_ms = span(since, None, session.utc)[0] if since else 0
    letters = await first(
        count,
        session.admin.dead_letters.letters(
            group, begin=begin, since_ms=since_ms, everything=every or begin is not None
        ),
    )
    session.show(
        [letter_document(each) for each in letters], letters_table(letters, group, session.utc)
    )


@app.command("resend")
@connected
async def resend_letters(
    session: Session,
    group: Group,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="This letter: its id or unique key. May be repeated."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="All letters with this key.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All letters that were not resent or dropped yet.")
    ] = False,
    to_topic: Annotated[
        str | None, typer.Option(help="Not to their own topics, but to this one.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also those that were resent already.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Send dead letters again, as the messages they were; all groups of the topic get them.

    With --to-topic %RETRY%GROUP only this group does. A letter is resent once: doing it again
    changes nothing, unless --again is given.
    """
    from onelog.commands.dlq.letters import resend, resend_all, resending_document, resending_views
    from onelog.errors import InvalidRequestError

    if sum((bool(ids), key is not None, every)) != 1:
        raise InvalidRequestError("say which letters: --id (once or more), --key, or --all")
    if every:
        result = await resend_all(session, group, to_topic, again, dry_run, yes)
    else:
        result = await resend(session, group, ids or [], key, to_topic, again, dry_run)
    session.show(
        resending_document(group, result, dry_run), *resending_views(group, result, dry_run)
    )
    session.complain(result.failures)


@app.command("drop")
@connected
async def drop_letters(
    session: Session,
    group: Group,
    until: Annotated[
        str | None, typer.Option(help="Only what was given up before this time.")
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Count everything again that the log still has.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Be done with the dead letters of a group. They stay in the log until retention."""
    from onelog.commands.dlq.letters import drop, restore
    from onelog.errors import InvalidRequestError

    if undo and until is not None:
        raise InvalidRequestError("--undo takes everything back: leave --until out")
    if undo:
        count, what = await restore(session, group, dry_run), "count again"
    else:
        count, what = await drop(session, group, until, dry_run, yes), "dropped"
    session.show(
        {"group": group, "dry_run": dry_run, "undo": undo, "letters": count},
        f"{group}: {count:,} letters {'would be ' if dry_run else ''}{what}",
    )
