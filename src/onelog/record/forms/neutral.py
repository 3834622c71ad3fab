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
