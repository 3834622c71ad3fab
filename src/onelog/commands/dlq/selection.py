"""Which dead letters the options of `onelog dlq` mean, and doing it with them."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from onelog.client.admin.dead_letters import Letter, OnProgress, Resending
from onelog.client.connection.nodes import at_once
from onelog.commands.message.search import span
from onelog.commands.session import Session
from onelog.errors import MessageNotFoundError


async def first(count: int, letters: AsyncGenerator[Letter, None]) -> list[Letter]:
    """The first few of many."""
    listed: list[Letter] = []
    async with aclosing(letters):
        async for letter in letters:
            listed.append(letter)
            if len(listed) == count:
                break
    return listed


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
    with _progress() as on_progress:
        return await letters.resend_all(
            group, to_topic=to_topic, again=again, dry_run=dry_run, on_progress=on_progress
        )


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """A bar on stderr, if somebody looks."""
    screen = Console(stderr=True)
    columns = (
        TextColumn("resending"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(
        *columns, console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        task = progress.add_task("resending", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


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
