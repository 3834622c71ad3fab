"""Times in the way of cron: minute, hour, day of month, month, day of week (0 or 7 is Sunday).

A field is `*`, a number, a range `a-b`, each with a step `/n`, or several of these with commas. If
both days are given, either is enough, as cron has it. Times are UTC: none of them is there twice a
year, or never.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from onelog.errors import InvalidRequestError

_FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
)
_PART = re.compile(r"(?:(\*)|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?")
_TEXT_MAX = 400
_YEARS_MAX = 8
"""So long it may be from one 29 February to the next."""


class Cron(NamedTuple):
    """When something is due."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """Whether one of the two days is enough: both are given."""

    def next_ms(self, after_ms: int) -> int | None:
        """The next time after this one; None if there is none in years."""
        minute = timedelta(minutes=1)
        at = datetime.fromtimestamp(after_ms // 60_000 * 60, UTC) + minute
        last = at.year + _YEARS_MAX
        while at.year <= last:
            if at.month not in self.months:
                at = (at.replace(day=1, hour=0, minute=0) + timedelta(days=32)).replace(day=1)
            elif not self._is_day(at):
                at = at.replace(hour=0, minute=0) + timedelta(days=1)
            elif at.hour not in self.hours:
                at = at.replace(minute=0) + timedelta(hours=1)
            elif at.minute not in self.minutes:
                at += minute
            else:
                return int(at.timestamp()) * 1000
        return None

    def _is_day(self, at: datetime) -> bool:
        in_month, in_week = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.either_day else in_month and in_week


def parse_cron(text: str) -> Cron:
    """What a text of five fields says; `InvalidRequestError` if it says nothing."""
    fields = text[:_TEXT_MAX].split()
    if len(fields) != len(_FIELDS):
        names = ", ".join(name for name, _, _ in _FIELDS)
        raise InvalidRequestError(
            f"{text[:80]!r} has {len(fields)} fields; a cron entry has {names}"
        )
    minutes, hours, days, months, weekdays = (
        _parsed(field, *known) for field, known in zip(fields, _FIELDS, strict=True)
    )
    found = Cron(
        minutes,
        hours,
        days,
        months,
        frozenset(day % 7 for day in weekdays),
        "*" not in (fields[2], fields[4]),
    )
    if found.next_ms(0) is None:
        raise InvalidRequestError(f"{text[:80]!r} is never: no month has such a day")
    return found


def _parsed(field: str, name: str, least: int, most: int) -> frozenset[int]:
    found: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise InvalidRequestError(f"{part[:40]!r} is no {name} of a cron entry")
        star, first, last, step = match.groups()
        begin = least if star else int(first)
        end = most if star or (step and not last) else int(last or first)
        if not least <= begin <= end <= most or step == "0":
            raise InvalidRequestError(f"a {name} is from {least} to {most}, and {part!r} is not")
        found |= set(range(begin, end + 1, int(step or 1)))
    return frozenset(found)
