"""A consumer's options, complete, checked, and in the units of the code.

Invariant: every `ConsumerSettings` can be run. Options that exclude each other were refused with a
`ConfigError` that names both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from onelog.client.consumer.allocation import AllocationStrategy, average
from onelog.client.hooks import ConsumeHook
from onelog.client.options import settings
from onelog.errors import ConfigError, InvalidGroupError

Start = Literal["first", "last"] | datetime

GROUP_CHARACTERS_MAX = 255


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What a consumer was given, or else what is usual."""

    broadcasting: bool = False
    orderly: bool = False
    pop: bool = False
    start: Start = "last"
    batch_size: int = 1
    concurrency: int = 20
    allocation: AllocationStrategy = average
    retries_max: int | None = None
    """None leaves it to the group's settings on the broker, or to eternity if orderly."""
    consume_timeout_ms: int = 15 * 60_000
    prefetch_count: int = 1_000
    prefetch_bytes: int = 100 << 20
    prefetch_span: int = 2_000
    invisible_ms: int = 60_000
    hooks: tuple[ConsumeHook, ...] = ()
    offsets_path: Path | None = None
    auto_commit: bool = True
    commit_interval_ms: int = 5_000

    def __post_init__(self) -> None:
        if self.pop and self.broadcasting:
            raise ConfigError("a consumer cannot be pop and broadcasting at the same time")
        if self.offsets_path is not None and not self.broadcasting:
            raise ConfigError("offsets_path is for broadcasting; brokers keep the other positions")
        if isinstance(self.start, datetime):
            if self.start.tzinfo is None:
                raise ConfigError(
                    f"start has no time zone: write {self.start!r}.astimezone(), if it is local"
                )
        elif self.start not in ("first", "last"):
            raise ConfigError(f"start is 'first', 'last' or a time, and not {self.start!r}")


def check_group(group: str) -> None:
    """`InvalidGroupError` for a name that no consumer group can have."""
    if not group or len(group) > GROUP_CHARACTERS_MAX:
        raise InvalidGroupError(f"a group's name has 1 to {GROUP_CHARACTERS_MAX} characters")


def consumer_settings(options: Mapping[str, Any]) -> ConsumerSettings:
    """The options with what they leave open filled in."""
    if "threads" in options and "concurrency" in options:
        raise ConfigError("threads and concurrency are two names for one thing: give one")
    return settings(ConsumerSettings, options)
