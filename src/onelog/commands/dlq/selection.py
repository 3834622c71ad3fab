"""Which dead letters the options of `onelog dlq` mean, and doing it with them."""

from rich.progress import MofNCompleteColumn

from onelog.client.admin.dead_letters import Resending
from onelog.client.connection.nodes import at_once
from onelog.commands.message.search import span
from onelog.commands.session import Session
from onelog.commands.terminal import progress_counts
from onelog.errors import MessageNotFoundError


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
