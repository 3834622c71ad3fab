"""How long a group waits before it tries a failed message again: RocketMQ 5's groupRetryPolicy.

    {"type": "CUSTOMIZED"}                     the delay levels, from the third on (the default)
    {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000, 10000, 60000]}}
    {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000,
                                                       "multiplier": 2}}

All times are milliseconds. `next` is read as the table of delay levels is: a message that failed
for the first time waits for the third entry, and the last entry is for all later ones. RocketMQ's
broker keeps a policy and leaves obeying it to its proxy; here the broker obeys it, too.

Invariant: a policy that exists gives delays between 0 and `DELAY_MS_MAX`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from onelog.errors import InvalidGroupError

DELAY_MS_MAX = 40 * 86_400_000
"""The longest delay that a message can have."""
_SKIPPED = 2
"""Entries of a table before the one for the first failure."""
_POWER_MAX = 32

RetryPolicy = Callable[[int], int]
"""The delay in milliseconds of a message that failed so many times before."""


def parse_policy(document: Mapping[str, Any] | None) -> RetryPolicy | None:
    """The policy that a group's settings name; None for the delay levels.

    `InvalidGroupError` if it is none. A type without its numbers means the levels, as in RocketMQ.
    """
    if document is None:
        return None
    kind = document.get("type") or "CUSTOMIZED"
    if kind == "CUSTOMIZED":
        numbers = _part(document, "customizedRetryPolicy")
        return None if numbers is None or numbers.get("next") is None else _customized(numbers)
    if kind == "EXPONENTIAL":
        numbers = _part(document, "exponentialRetryPolicy")
        return None if numbers is None else _exponential(numbers)
    raise InvalidGroupError(f"groupRetryPolicy: {kind!r} is neither CUSTOMIZED nor EXPONENTIAL")


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    part = document.get(name)
    if part is not None and not isinstance(part, Mapping):
        raise InvalidGroupError(f"groupRetryPolicy: {name} is no object")
    return part


def _customized(numbers: Mapping[str, Any]) -> RetryPolicy:
    table = numbers["next"]
    if not isinstance(table, list) or not table:
        raise InvalidGroupError("groupRetryPolicy: next is no list of delays")
    delays_ms = [_number("next", delay, 0, DELAY_MS_MAX) for delay in table]

    def delay_ms(times: int) -> int:
        return delays_ms[min(max(0, times) + _SKIPPED, len(delays_ms) - 1)]

    return delay_ms


def _exponential(numbers: Mapping[str, Any]) -> RetryPolicy:
    initial_ms = _number("initial", numbers.get("initial", 5_000), 0, DELAY_MS_MAX)
    longest_ms = _number("max", numbers.get("max", 7_200_000), 0, DELAY_MS_MAX)
    multiplier = _number("multiplier", numbers.get("multiplier", 2), 1, 1_000_000)

    def delay_ms(times: int) -> int:
        power = min(max(0, times), _POWER_MAX)
        return int(min(longest_ms, initial_ms * multiplier**power))

    return delay_ms


def _number(name: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidGroupError(
            f"groupRetryPolicy: {name} is {value!r}, not a whole number from {least} to {most}"
        )
    return value
