"""The neutral message: what every messaging system has, and nothing else."""

from typing import NamedTuple

Header = tuple[str, bytes | None]
"""A name and a value. Names may repeat."""


class Neutral(NamedTuple):
    """A message in no system's form. A key or body of None is something else than an empty one."""

    key: bytes | None
    body: bytes | None
    headers: tuple[Header, ...] = ()
    time_ms: int = 0


TIME_MAX_MS = 1 << 62
"""Such times can be told from each other in 64 bits."""


def sane_ms(time_ms: int) -> int:
    """A time as every form can have it: senders may state any number."""
    return time_ms if 0 <= time_ms <= TIME_MAX_MS else 0 if time_ms < 0 else TIME_MAX_MS
