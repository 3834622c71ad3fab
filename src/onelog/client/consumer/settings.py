"""A push consumer's options, complete, checked, and in the units of the code.

Invariant: every `ConsumerSettings` can be run. Options that exclude each other were refused with a
`ConfigError` that names both.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, cast

from onelog.client.consumer.allocation import AllocationStrategy, average
from onelog.client.hooks import ConsumeHook
from onelog.client.options import ConsumerOptions, milliseconds, whole
from onelog.errors import ConfigError, InvalidGroupError

Start = Literal["first", "last"] | datetime

GROUP_CHARACTERS_MAX = 255
CONSUME_TIMEOUT_SECONDS = 15 * 60.0
INVISIBLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What a push consumer was told, or else what is usual."""

    broadcasting: bool = False
    orderly: bool = False
    pop: bool = False
    start: Start = "last"
    batch_size: int = 1
    concurrency: int = 20
    allocation: AllocationStrategy = average
    retries_max: int | None = None
    """None leaves it to the group's settings on the broker, or to eternity if orderly."""
    consume_timeout_ms: int = round(CONSUME_TIMEOUT_SECONDS * 1000)
    prefetch_count: int = 1_000
    prefetch_bytes: int = 100 << 20
    prefetch_span: int = 2_000
    invisible_ms: int = round(INVISIBLE_SECONDS * 1000)
    hooks: tuple[ConsumeHook, ...] = ()
    offsets_path: Path | None = None

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


def consumer_settings(options: ConsumerOptions) -> ConsumerSettings:
    """The options with what they leave open filled in."""
    model = options.get("model", "clustering")
    if model not in ("clustering", "broadcasting"):
        raise ConfigError(f"model is 'clustering' or 'broadcasting', and not {model!r}")
    if "threads" in options and "concurrency" in options:
        raise ConfigError("threads and concurrency are two names for one thing: give one")
    path = options.get("offsets_path")
    return ConsumerSettings(
        broadcasting=model == "broadcasting",
        orderly=options.get("orderly", False),
        pop=options.get("pop", False),
        start=options.get("start", "last"),
        batch_size=_count(options, "batch_size", 1),
        concurrency=_count(options, "threads" if "threads" in options else "concurrency", 20),
        allocation=options.get("allocation", average),
        retries_max=_count(options, "retries_max", 0, 0) if "retries_max" in options else None,
        consume_timeout_ms=milliseconds(
            "consume_timeout", options.get("consume_timeout", CONSUME_TIMEOUT_SECONDS)
        ),
        prefetch_count=_count(options, "prefetch_count", 1_000),
        prefetch_bytes=_count(options, "prefetch_bytes", 100 << 20),
        prefetch_span=_count(options, "prefetch_span", 2_000),
        invisible_ms=milliseconds(
            "invisible_time", options.get("invisible_time", INVISIBLE_SECONDS)
        ),
        hooks=tuple(options.get("hooks", ())),
        offsets_path=None if path is None else Path(os.fspath(path)),
    )


def _count(options: ConsumerOptions, name: str, default: int, least: int = 1) -> int:
    return whole(name, cast(Mapping[str, object], options).get(name, default), least)
