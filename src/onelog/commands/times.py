"""Times, spans and retry policies as people write and read them on a command line.

    2026-05-01 10:30:00.250   local time, or UTC with --utc; all after the day may be left out
    2026-05-01T10:30:00Z      with the time zone in it
    1793528400000             milliseconds since the epoch, as brokers and logs print them
    15m, 2h, 3d, 1h30m        that long ago
    now, earliest

A retry policy is how long a group waits before it tries a message again:

    levels                    the broker's delay levels, from the third on; the default
    10s,30s,5m                before the first, second, third retry; the last for all later ones
    exponential:1s,2h,3       first 1 s, then 3 times as long each time, 2 h at most; each of the
                              three may be left out from the end: 5s, 2h, 2

Invariants: what `show_time` prints to the millisecond, `parse_time` reads as the same time. What
`show_policy` prints, `parse_policy` reads as the same policy, for those that it makes.
"""

import re
from datetime import UTC, datetime
from typing import Any

from onelog.errors import InvalidRequestError

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-?((?:\d{1,9}(?:ms|[smhd]))+)", re.ASCII)
_PART = re.compile(r"(\d+)(ms|[smhd])", re.ASCII)
_EPOCH_DIGITS_MIN = 10

LEVELS = "levels"
_EXPONENTIAL = "exponential"
_DEFAULTS = ("5s", "2h", "2")
_SKIPPED = 2
"""RocketMQ reads a table as it reads its delay levels: the first retry takes the third entry."""
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


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


def show_time(ms: int | None, *, utc: bool = False) -> str:
    """A time to the millisecond; a dash for none."""
    if ms is None or ms <= 0:
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


def parse_policy(text: str) -> dict[str, Any]:
    """The policy as brokers know it (groupRetryPolicy)."""
    word = text.strip().lower()
    if word == LEVELS:
        return {"type": "CUSTOMIZED"}
    if word.partition(":")[0] == _EXPONENTIAL:
        return _exponential(word.partition(":")[2])
    delays_ms = [parse_span(part.strip()) for part in word.split(",")]
    table = [*delays_ms[:1] * _SKIPPED, *delays_ms]
    return {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": table}}


def _exponential(text: str) -> dict[str, Any]:
    given = [part.strip() for part in text.split(",")] if text else []
    if len(given) > len(_DEFAULTS):
        raise InvalidRequestError(f"--retry-policy: {text!r} is more than first, longest, factor")
    first, longest, factor = (*given, *_DEFAULTS[len(given) :])
    if not (factor.isascii() and factor.isdecimal()):
        raise InvalidRequestError(f"--retry-policy: the factor {factor!r} is no whole number")
    numbers = {"initial": parse_span(first), "max": parse_span(longest), "multiplier": int(factor)}
    return {"type": "EXPONENTIAL", "exponentialRetryPolicy": numbers}


def show_policy(policy: dict[str, Any]) -> str:
    """A policy in one text."""
    numbers = policy.get("exponentialRetryPolicy")
    if policy.get("type") == "EXPONENTIAL" and isinstance(numbers, dict):
        first, longest = _span(numbers.get("initial")), _span(numbers.get("max"))
        return f"{_EXPONENTIAL}:{first},{longest},{numbers.get('multiplier')}"
    table = (policy.get("customizedRetryPolicy") or {}).get("next")
    if policy.get("type") == "CUSTOMIZED" and isinstance(table, list) and table:
        return ",".join(map(_span, table[_SKIPPED:] or table[-1:]))
    return LEVELS


def _span(ms: Any) -> str:
    if not isinstance(ms, int) or ms <= 0:
        return f"{ms}ms"
    unit, size = next((unit, size) for unit, size in _UNITS if ms % size == 0)
    return f"{ms // size}{unit}"
