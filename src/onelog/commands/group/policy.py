"""Retry policies on a command line: how long a group waits before it tries a message again.

    levels                the broker's delay levels, from the third on; the default
    10s,30s,5m            before the first, second, third retry; the last one for all later ones
    exponential:1s,2h,3   first 1 s, then 3 times as long each time, 2 h at most (then, 2h and 2)

Invariant: `show_policy` prints what `parse_policy` reads as the same policy, for those it makes.
"""

from typing import Any

from onelog.commands.times import parse_span
from onelog.errors import InvalidRequestError

LEVELS = "levels"
_EXPONENTIAL = "exponential"
_DEFAULTS = ("5s", "2h", "2")
_SKIPPED = 2
"""RocketMQ reads a table as it reads its delay levels: the first retry takes the third entry."""
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


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
