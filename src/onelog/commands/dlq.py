"""`onelog dlq`: what is asked before letters are sent again, or dropped."""

from onelog.admin.history import Drop, Resend
from onelog.commands.operations import Question
from onelog.commands.session import Session
from onelog.errors import InvalidRequestError


async def _resend(session: Session, given: Resend) -> str | None:
    if sum((bool(given.ids), bool(given.key), given.everything)) != 1:
        raise InvalidRequestError("say which letters: --id (once or more), --key, or --all")
    if given.dry_run or not given.everything:
        return None
    count = (await session.admin.dead_letters.box(given.group)).count
    where = given.to_topic or "their own topics"
    return f"Send {count:,} dead letters of {given.group} to {where}?"


async def _drop(session: Session, given: Drop) -> str | None:
    if given.dry_run or given.undo:
        return None
    letters = session.admin.dead_letters
    box = await letters.box(given.group)
    if given.until_ms is not None:
        box = await letters.before(box, given.until_ms)
    return f"Drop {box.count:,} dead letters of {given.group}?"


QUESTIONS: dict[str, Question] = {"resend_letters": _resend, "drop_letters": _drop}
