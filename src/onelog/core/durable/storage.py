"""What every part of a broker stands on: the runtime, and the log."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from onelog.clock import Clock
from onelog.core.durable.deadlines import Schedule
from onelog.message import LOOPBACK

if TYPE_CHECKING:
    from onelog.core.cursors.cold_reads import ColdReads
    from onelog.core.durable.durability import Durability, Post
    from onelog.core.durable.tables import Tables
    from onelog.core.durable.waiting import OpenWaits
    from onelog.core.durable.writer import Writer
    from onelog.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class Runtime:
    """Time, threads and randomness; those of a simulation are others."""

    clock: Clock
    schedule: Schedule
    call_soon: Callable[[Callable[[], None]], None]
    """Ends a tick."""
    post: "Post"
    random: Random
    offload: Callable[[Callable[[], None]], None] = lambda work: work()
    """Runs slow work in another thread, from which `post` comes back."""
    seconds: Callable[[], float] = time.perf_counter
    """A clock that never goes back, for what lasts less than a millisecond."""
    memory_bytes: int | None = None
    """As much as there is, if nothing is said."""
    host: bytes = LOOPBACK
    """The address in messages that the broker makes itself."""

    def new_id(self) -> str:
        """An id that nothing else has."""
        return f"{self.random.getrandbits(128):032x}"


@dataclass(frozen=True, slots=True)
class Storage:
    """The log: who writes it, reads it from disk, and says what is safe; and tables in it."""

    runtime: Runtime
    store: "MessageStore"
    writer: "Writer"
    durability: "Durability"
    waiting: "OpenWaits"
    tables: "Tables"
    cold_reads: "ColdReads"
