"""What the processes of `onelog bench` tell each other, as JSON lines.

bench -> worker   a `Job`
worker -> bench   `Said` with `ready`, once it is connected and warm
bench -> worker   a line, when all are ready
worker -> bench   `Said` with the `outcome`; or, at any time, with an `error`
"""

from typing import Any

import msgspec

STAMP_BYTES = 16
"""By which a message is known that comes back."""


class Job(msgspec.Struct, frozen=True):
    """What one worker does."""

    mode: str
    client: dict[str, Any]
    """The options of the command line about clients."""
    topic: str
    group: str
    number: int
    """Which of the workers this is."""
    seconds: float
    size: int
    concurrency: int
    batch_size: int


class Outcome(msgspec.Struct, frozen=True):
    """What one worker measured. Times are nanoseconds of the monotonic clock of the machine."""

    messages: int
    failed: int
    error: str | None
    """The first of the failures."""
    began_ns: int
    ended_ns: int
    cpu_seconds: float
    latencies: dict[int, int]
    """How many there are in each step of `Latencies`."""


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a worker."""

    ready: bool = False
    error: str | None = None
    outcome: Outcome | None = None
