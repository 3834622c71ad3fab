"""`onelog dlq`: the messages that consumer groups gave up; look at them, resend or drop them."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from onelog.client.admin.dead_letters import Box, Letter, Resending
from onelog.client.connection.nodes import at_once
from onelog.commands.message import views as message_views
from onelog.commands.message.search import first, span
from onelog.commands.options import Yes
from onelog.commands.session import Session, Shown, command, confirm
from onelog.commands.terminal import pick, progress_bar, show_count, show_text, table
from onelog.errors import InvalidRequestError, MessageNotFoundError

app = typer.Typer()

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's name.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
_SHOWN_MAX = 100
"""Resent letters in a table; a program gets them all."""


@command(app, "list")
async def list_boxes(
    session: Session,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="Also groups whose letters are all done with.")
    ] = False,
) -> None:
    """List consumer groups that have dead letters, and how many."""
    boxes = await session.admin.dead_letters.boxes(with_empty=every)
    session.show(*show_boxes(boxes, session.utc))
    session.complain(failure for box in boxes for failure in box.failures)


@command(app, "show")
async def list_letters(
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
    since_ms = span(since, None, session.utc)[0] if since else 0
    letters = await first(
        count,
        session.admin.dead_letters.letters(
            group, begin=begin, since_ms=since_ms, everything=every or begin is not None
        ),
    )
    session.show(*show_letters(letters, group, session.utc))


@command(app, "resend")
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
    if sum((bool(ids), key is not None, every)) != 1:
        raise InvalidRequestError("say which letters: --id (once or more), --key, or --all")
    if every:
        result = await _resend_all(session, group, to_topic, again, dry_run, yes)
    else:
        result = await _resend(session, group, ids or [], key, to_topic, again, dry_run)
    session.show(*show_resending(group, result, dry_run))
    session.complain(result.failures)


@command(app, "drop")
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
    if undo and until is not None:
        raise InvalidRequestError("--undo takes everything back: leave --until out")
    if undo:
        count, what = await _restore(session, group, dry_run), "count again"
    else:
        count, what = await _drop(session, group, until, dry_run, yes), "dropped"
    session.show(
        {"group": group, "dry_run": dry_run, "undo": undo, "letters": count},
        f"{group}: {count:,} letters {'would be ' if dry_run else ''}{what}",
    )


async def _resend(
    session: Session,
    group: str,
    ids: list[str],
    key: str | None,
    to_topic: str | None,
    again: bool,
    dry_run: bool,
) -> Resending:
    """Resend letters by their ids or by a key."""
    letters = session.admin.dead_letters
    if key is None:
        chosen = await at_once(lambda each: letters.find(group, each), dict.fromkeys(ids))
    else:
        chosen = [
            letter
            async for letter in letters.letters(group, everything=again)
            if key in letter.found.message.keys
        ]
        if not chosen:
            raise MessageNotFoundError(f"no dead letter of {group} has the key {key!r}")
    result = await letters.resend(chosen, to_topic=to_topic, again=again, dry_run=dry_run)
    if not dry_run:
        await letters.settle(group)
    return result


async def _resend_all(
    session: Session, group: str, to_topic: str | None, again: bool, dry_run: bool, yes: bool
) -> Resending:
    """Resend everything that is there, with a bar for those who wait."""
    letters = session.admin.dead_letters
    if not dry_run:
        count = (await letters.box(group)).count
        where = to_topic or "their own topics"
        confirm(f"Send {count:,} dead letters of {group} to {where}?", yes)
    with progress_bar("resending", None, MofNCompleteColumn()) as on_progress:
        return await letters.resend_all(
            group, to_topic=to_topic, again=again, dry_run=dry_run, on_progress=on_progress
        )


async def _drop(session: Session, group: str, until: str | None, dry_run: bool, yes: bool) -> int:
    """Drop all letters, or those from before a time; how many."""
    letters = session.admin.dead_letters
    box = await letters.box(group)
    session.complain(box.failures)
    if until is not None:
        box = await letters.before(box, span(until, None, session.utc)[0])
    if not dry_run:
        confirm(f"Drop {box.count:,} dead letters of {group}?", yes)
        await letters.drop(box)
    return box.count


async def _restore(session: Session, group: str, dry_run: bool) -> int:
    """Count letters again that were dealt with; how many."""
    letters = session.admin.dead_letters
    box = await letters.box(group)
    session.complain(box.failures)
    if not dry_run:
        await letters.restore(box)
    return box.kept - box.count


# -- what is shown -------------------------------------------------------------------------------


def show_boxes(boxes: Sequence[Box], utc: bool) -> Shown:
    """Groups with dead letters, one per line."""
    queue = "broker queue=queue_id min_offset max_offset mark=begin"
    document = [
        {
            **pick(box, "group topic letters=count kept updated_ms"),
            "queues": [pick(each, queue) for each in box.queues],
        }
        for box in boxes
    ]
    return document, table(
        f"consumer groups with dead letters: {show_count(len(boxes))}",
        "group, #letters, #kept, last one=updated_ms, brokers",
        rows=(
            {**row, "brokers": sorted({queue.broker for queue in box.queues})}
            for row, box in zip(document, boxes, strict=True)
        ),
        footer={"group": "total", "letters": True},
        utc=utc,
    )


def show_letters(letters: Sequence[Letter], group: str, utc: bool) -> Shown:
    """Dead letters, one per line: the messages, and what is known of their death."""
    document = [
        {
            **message_views.document(letter.found),
            "origin_topic": letter.origin_topic or None,
            "origin_id": letter.origin_id or None,
            "tries": letter.tries,
            "reason": _reason(letter),
            "resent": letter.is_resent,
        }
        for letter in letters
    ]
    return document, table(
        f"dead letters of {show_text(group)}: {show_count(len(letters))}",
        "given up=store_ms, >offset, from topic=origin_topic, reason, born=born_ms, keys, id, body",
        rows=(
            {
                **row,
                "reason": row["reason"] + (", resent" if row["resent"] else ""),
                "origin_topic": row["origin_topic"] or "?",
                "body": message_views.short_body(letter.found.message),
            }
            for row, letter in zip(document, letters, strict=True)
        ),
        utc=utc,
    )


def _reason(letter: Letter) -> str:
    """How a message died, in words."""
    times = f"tried {letter.tries} times" if letter.tries != 1 else "tried once"
    return f"{times}, all that are allowed" if letter.is_exhausted else f"{times}, then given up"


def show_resending(group: str, result: Resending, dry_run: bool) -> Shown:
    """What was resent; people see the first of many."""
    document: dict[str, Any] = {
        "group": group,
        "dry_run": dry_run,
        "resent": [
            {"id": each.message_id, "topic": each.topic, "new_id": each.new_id or None}
            for each in result.resent
        ],
        "already": result.already,
        "failed": [{"id": each.who, "reason": each.reason} for each in result.failures],
    }
    shown = document["resent"][:_SHOWN_MAX]
    made = table("", "letter=id, to topic=topic, new id", rows=shown)
    words = f"{show_text(group)}: {show_count(len(result.resent))} letters"
    words += " would be resent" if dry_run else " resent"
    if result.already:
        words += f", {show_count(result.already)} had been already"
    if result.failures:
        words += f", {show_count(len(result.failures))} could not be"
    rest = len(result.resent) - len(shown)
    more = [f"... and {rest:,} more"] if rest else []
    return document, *([made] if shown else []), *more, words
