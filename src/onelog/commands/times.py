"""Times as people write and read them on a command line.

    2026-05-01 10:30:00.250   local time, or UTC with --utc; all after the day may be left out
    2026-05-01T10:30:00Z      with the time zone in it
    1793528400000             milliseconds since the epoch, as brokers and logs print them
    15m, 2h, 3d, 1h30m        that long ago
    now, earliest

Invariant: what `show_time` prints to the millisecond, `parse_time` reads as the same time.
"""

import re
from datetime import UTC, datetime

from onelog.errors import InvalidRequestError

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-?((?:\d{1,9}(?:ms|[smhd]))+)", re.ASCII)
_PART = re.compile(r"(\d+)(ms|[smhd])", re.ASCII)
_EPOCH_DIGITS_MIN = 10


def parse_time(text: str, now_ms: int, *, utc: bool = False) -> int:
    """The time that a text stands for, in milliseconds since the epoch."""
    word = text.strip()
    if word == "now":
        return now_ms
    if word == "earliest":
        return 0
    if word.isdecimal() and word.isascii() and _EPOCH_DIGITS_MIN <= len(word) <= 15:
        return int(word)
    if (ago := _AGO.fullmatch(word)) is not None:
        return max(0, now_ms - parse_span(ago.group(1)))
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise InvalidRequestError(
            f"{text!r} is no time: write 2026-05-01 10:30:00, milliseconds since the epoch, "
            "now, earliest, or how long ago, as 15m, 2h, 3d"
        ) from None
    if moment.tzinfo is None and utc:
        moment = moment.replace(tzinfo=UTC)
    try:
        return round(moment.timestamp() * 1000)
    except (OverflowError, OSError, ValueError):
        raise InvalidRequestError(f"{text!r} is too far away") from None


def parse_span(text: str) -> int:
    """Milliseconds in a span such as 90s or 1h30m."""
    parts = _PART.findall(text)
    if not parts or "".join(count + unit for count, unit in parts) != text:
        raise InvalidRequestError(f"{text!r} is no span of time: write 90s, 15m, 1h30m, 3d")
    return sum(int(count) * _UNITS_MS[unit] for count, unit in parts)


def show_time(ms: int, *, utc: bool = False) -> str:
    """A time to the millisecond; a dash for none."""
    if ms <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(ms // 1000, UTC)
        moment = moment if utc else moment.astimezone()
    except (OverflowError, OSError, ValueError):
        return f"{ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ms % 1000:03d}" + ("Z" if utc else "")


def show_span(ms: int) -> str:
    """A span of time in its two largest units; a dash for none."""
    if ms <= 0:
        return "-"
    if ms < 1000:
        return f"{ms} ms"
    days, rest = divmod(ms // 1000, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
