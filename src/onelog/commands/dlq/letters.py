"""What `onelog dlq` does with dead letters, and how it shows them."""

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.progress import MofNCompleteColumn
from rich.table import Table

from onelog.client.admin.dead_letters import Box, Letter, Resending
from onelog.client.connection.nodes import at_once
from onelog.commands.message import views as message_views
from onelog.commands.message.search import span
from onelog.commands.session import Session
from onelog.commands.terminal import progress_counts, show_count, show_text, table
from onelog.commands.times import show_time
from onelog.errors import MessageNotFoundError

_SHOWN_MAX = 100
"""Resent letters in a table; a program gets them all."""


def boxes_document(boxes: Sequence[Box]) -> list[dict[str, Any]]:
    """Groups with dead letters, for programs."""
    return [
        {
            "group": box.group,
            "topic": box.topic,
            "letters": box.count,
            "kept": box.kept,
            "updated_ms": box.updated_ms,
            "queues": [
                {
                    "broker": queue.broker,
                    "queue": queue.queue_id,
                    "min_offset": queue.min_offset,
                    "max_offset": queue.max_offset,
                    "mark": queue.begin,
                }
                for queue in box.queues
            ],
        }
        for box in boxes
    ]


def boxes_table(boxes: Sequence[Box], utc: bool) -> Table:
    """Groups with dead letters, one per line."""
    return table(
        f"consumer groups with dead letters: {show_count(len(boxes))}",
        "group", ">letters", ">kept", "last one", "brokers",
        rows=(
            (
                show_text(box.group), show_count(box.count), show_count(box.kept),
                show_time(box.updated_ms, utc=utc),
                ", ".join(sorted({queue.broker for queue in box.queues})),
            )
            for box in boxes
        ),
        footer={0: "total", 1: show_count(sum(box.count for box in boxes))},
    )  # fmt: skip


def letter_document(letter: Letter) -> dict[str, Any]:
    """A dead letter, for programs: the message, and what is known of its death."""
    return {
        **message_views.document(letter.found),
        "origin_topic": letter.origin_topic or None,
        "origin_id": letter.origin_id or None,
        "tries": letter.tries,
        "reason": reason(letter),
        "resent": letter.is_resent,
    }


def letters_table(letters: Sequence[Letter], group: str, utc: bool) -> Table:
    """Dead letters, one per line."""
    return table(
        f"dead letters of {show_text(group)}: {show_count(len(letters))}",
        "given up", ">offset", "from topic", "reason", "born", "keys", "id", "body",
        rows=(
            (
                show_time(message.store_ms, utc=utc), str(message.queue_offset),
                show_text(letter.origin_topic or "?"),
                reason(letter) + (", resent" if letter.is_resent else ""),
                show_time(message.born_ms, utc=utc), show_text(" ".join(message.keys) or "-"),
                message.message_id, message_views.short_body(message),
            )
            for letter in letters
            for message in (letter.found.message,)
        ),
    )  # fmt: skip


def reason(letter: Letter) -> str:
    """How a message died, in words."""
    times = f"tried {letter.tries} times" if letter.tries != 1 else "tried once"
    return f"{times}, all that are allowed" if letter.is_exhausted else f"{times}, then given up"


def resending_document(group: str, result: Resending, dry_run: bool) -> dict[str, Any]:
    """What was resent, for programs."""
    return {
        "group": group,
        "dry_run": dry_run,
        "resent": [
            {"id": each.message_id, "topic": each.topic, "new_id": each.new_id or None}
            for each in result.resent
        ],
        "already": result.already,
        "failed": [{"id": each.who, "reason": each.reason} for each in result.failures],
    }


def resending_views(group: str, result: Resending, dry_run: bool) -> list[RenderableType]:
    """What was resent, for people."""
    shown = result.resent[:_SHOWN_MAX]
    made = table("", "letter", "to topic", "new id")
    for each in shown:
        made.add_row(each.message_id, show_text(each.topic), each.new_id or "-")
    words = f"{show_text(group)}: {show_count(len(result.resent))} letters"
    words += " would be resent" if dry_run else " resent"
    if result.already:
        words += f", {show_count(result.already)} had been already"
    if result.failures:
        words += f", {show_count(len(result.failures))} could not be"
    rest = len(result.resent) - len(shown)
    return [*([made] if shown else []), *([f"... and {rest:,} more"] if rest else []), words]


async def resend(
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


async def resend_all(
    session: Session, group: str, to_topic: str | None, again: bool, dry_run: bool, yes: bool
) -> Resending:
    """Resend everything that is there, with a bar for those who wait."""
    letters = session.admin.dead_letters
    if not dry_run:
        count = (await letters.box(group)).count
        where = to_topic or "their own topics"
        session.confirm(f"Send {count:,} dead letters of {group} to {where}?", yes)
    with progress_counts("resending", MofNCompleteColumn()) as on_progress:
        return await letters.resend_all(
            group, to_topic=to_topic, again=again, dry_run=dry_run, on_progress=on_progress
        )


async def drop(session: Session, group: str, until: str | None, dry_run: bool, yes: bool) -> int:
    """Drop all letters, or those from before a time; how many."""
    letters = session.admin.dead_letters
    box = await letters.box(group)
    session.complain(box.failures)
    if until is not None:
        box = await letters.before(box, span(until, None, session.utc)[0])
    if not dry_run:
        session.confirm(f"Drop {box.count:,} dead letters of {group}?", yes)
        await letters.drop(box)
    return box.count


async def restore(session: Session, group: str, dry_run: bool) -> int:
    """Count letters again that were dealt with; how many."""
    letters = session.admin.dead_letters
    box = await letters.box(group)
    session.complain(box.failures)
    if not dry_run:
        await letters.restore(box)
    return box.kept - box.count
