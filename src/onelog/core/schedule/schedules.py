"""Messages that are published later, again and again: after a delay, with a period, or by cron.

A message that is to come once waits with the other timed ones. One that comes again is kept here,
with its next time, until it has come as often as it should:

    table     "schedules": {id: what is published, and how often}
              "schedule_times": {id: [next time, how often after that; -1 for ever]}

With a cron entry, each of its times begins a run of its own: the delay, then the repeats. It has
minute, hour, day of month, month, and day of week (0 or 7 is Sunday). A field is `*`, a number, a
range `a-b`, each with a step `/n`, or several of these with commas. If both days are given, either
is enough, as cron has it. Times are UTC: none of them is there twice a year, or never.

Invariant: each time is published by one append with the record of the next time. What was due while
the broker was down is published once.
"""

import base64
import logging
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from onelog.core.access import Principal
from onelog.core.durable.deadlines import Deadlines
from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import Change, in_parts
from onelog.core.durable.writer import OnStored
from onelog.core.routing.routing import Routing
from onelog.core.routing.targets import DeadLetter
from onelog.errors import (
    BrokerBusyError,
    InvalidRequestError,
    MessageTooLargeError,
    OnelogError,
    StoreError,
)

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


log = logging.getLogger(__name__)

SCHEDULES_MAX = 10_000
CONTENT_BYTES_MAX = 128 << 10
"""Of a message that comes again: it is kept in a table."""
AGAIN_MS = 1_000
"""After a time that could not be written."""
_CONTENTS, _TIMES = "schedules", "schedule_times"


@dataclass(frozen=True, slots=True)
class Repeating:
    """A message that comes again."""

    vhost: str
    exchange: str
    key: str
    properties: str
    body: str
    """Both in base64."""
    delay_ms: int
    period_ms: int
    repeat: int
    """How often after the first time; -1 for ever."""
    cron: str

    def letter(self) -> DeadLetter:
        return DeadLetter(
            self.vhost,
            self.exchange,
            (self.key,),
            base64.b64decode(self.properties),
            base64.b64decode(self.body),
        )


class _Times:
    """The second table."""

    name = _TIMES

    def __init__(self, on_change: Callable[[str, int | None], None]) -> None:
        self._on_change = on_change
        self.entries: dict[str, tuple[int, int]] = {}

    def apply(self, key: str, value: Any) -> None:
        if value is None:
            self.entries.pop(key, None)
            self._on_change(key, None)
        else:
            at_ms, left = value
            self.entries[key] = (int(at_ms), int(left))
            self._on_change(key, int(at_ms))

    def parts(self) -> Any:
        return (dict(some) for some in in_parts(self.entries))


class Schedules:
    """All messages that come again."""

    name = _CONTENTS

    def __init__(self, storage: Storage, routing: Routing) -> None:
        self._tables, self._routing = storage.tables, routing
        self._clock, self._random = storage.runtime.clock, storage.runtime.random
        self._when_durable = storage.durability.when_safe
        self._contents: dict[str, Repeating] = {}
        self._deadlines: Deadlines[str] = Deadlines(
            self._clock, storage.runtime.schedule, self._due
        )
        self._waits: dict[str, int] = {}
        self._is_open = False
        self.times = _Times(self._time_changed)

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change that is recorded."""
        if value is None:
            self._contents.pop(key, None)
        else:
            content = Repeating(**value)
            content.letter()  # Raises what is wrong with it.
            self._contents[key] = content

    def parts(self) -> Any:
        """What rebuilds the table."""
        return ({key: asdict(each) for key, each in some} for some in in_parts(self._contents))

    def _time_changed(self, key: str, at_ms: int | None) -> None:
        if (waited := self._waits.pop(key, None)) is not None:
            self._deadlines.remove(key, waited)
        if at_ms is not None and self._is_open:
            self._waits[key] = at_ms
            self._deadlines.add(key, at_ms)

    def open(self) -> None:
        """Begin to publish."""
        self._is_open = True
        for key, (at_ms, _) in list(self.times.entries.items()):
            self._time_changed(key, at_ms)

    def close(self) -> None:
        """Publish nothing any more."""
        self._deadlines.close()

    def __len__(self) -> int:
        return len(self._contents)

    # -- adding --------------------------------------------------------------------------------

    def add(
        self,
        principal: Principal,
        vhost: str,
        exchange: str,
        key: str,
        properties: bytes,
        body: bytes,
        *,
        delay_ms: int,
        period_ms: int,
        repeat: int,
        cron: str,
        on_stored: OnStored,
        token: Any = None,
    ) -> None:
        """Publish a message then; `on_stored` is called when that is as safe as configured."""
        now_ms = self._clock.now_ms()
        if not cron and not repeat:
            # One that would be due after a period is due then, as with those that come again.
            at_ms = now_ms + (delay_ms or period_ms)
            if not self._routing.publish(
                principal, vhost, exchange, key, properties, body, on_stored, token, at_ms
            ):
                on_stored(token, None, None)
            return
        first_ms = now_ms + (delay_ms or period_ms)
        left = repeat
        if cron:
            found = parse_cron(cron).next_ms(now_ms)
            assert found is not None
            first_ms, left = found, -1
        elif period_ms <= 0:
            raise InvalidRequestError("what comes again needs a period, in milliseconds")
        if len(self._contents) >= SCHEDULES_MAX:
            raise BrokerBusyError(f"there are {SCHEDULES_MAX} schedules: remove some first")
        if len(properties) + len(body) > CONTENT_BYTES_MAX:
            raise MessageTooLargeError(
                f"a message that comes again may have {CONTENT_BYTES_MAX} bytes"
            )
        self._routing.exchange(principal, vhost, exchange)
        content = Repeating(
            vhost,
            exchange,
            key,
            base64.b64encode(properties).decode(),
            base64.b64encode(body).decode(),
            delay_ms,
            period_ms,
            repeat,
            cron,
        )
        self._tables.write(self._added(content, first_ms, left))
        self._when_durable(lambda error: on_stored(token, None, error))

    def _added(self, content: Repeating, at_ms: int, left: int) -> list[Change]:
        ident = f"{self._random.getrandbits(64):016x}"
        return [(_CONTENTS, ident, asdict(content)), (_TIMES, ident, [at_ms, left])]

    # -- publishing ----------------------------------------------------------------------------

    def _due(self, keys: list[str]) -> None:
        for key in keys:
            self._waits.pop(key, None)
            if key not in self.times.entries or key not in self._contents:
                continue
            try:
                self._fire(key)
            except StoreError as error:
                log.error("a scheduled message is put off: %s", error)
                self._deadlines.add(key, self._clock.now_ms() + AGAIN_MS)
                self._waits[key] = self._clock.now_ms() + AGAIN_MS
            except OnelogError as error:
                log.error("a scheduled message is dropped: %s", error)
                self._tables.write([(_CONTENTS, key, None), (_TIMES, key, None)])

    def _fire(self, key: str) -> None:
        content = self._contents[key]
        at_ms, left = self.times.entries[key]
        now_ms = self._clock.now_ms()
        letters = [content.letter()]
        changes: list[Change]
        if content.cron:
            next_ms = parse_cron(content.cron).next_ms(max(at_ms, now_ms))
            changes = [(_TIMES, key, [next_ms, -1])]
            if content.delay_ms or content.repeat:
                run = Repeating(**{**asdict(content), "cron": ""})
                # The first of the run is due after the delay; without one it is due now.
                first_ms = now_ms + content.delay_ms
                if len(self._contents) < SCHEDULES_MAX:
                    changes += self._added(run, first_ms, content.repeat)
                letters = []
        elif left:
            next_ms = at_ms + content.period_ms
            if next_ms <= now_ms:  # The broker was down, or very busy.
                next_ms = now_ms + content.period_ms
            changes = [(_TIMES, key, [next_ms, left - 1 if left > 0 else left])]
        else:
            changes = [(_CONTENTS, key, None), (_TIMES, key, None)]
        self._routing.deliver(letters, self._tables.record(changes))
        self._tables.apply(changes)
