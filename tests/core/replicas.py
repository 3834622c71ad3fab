"""A master and what follows it, in worlds of tests: bytes move when a test says so."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from onelog.clock import ManualClock
from onelog.config import ReplicationConfig, StoreConfig
from onelog.core.durable.durability import Durability, WhenSafe
from onelog.store.message_store import MessageStore
from tests.core.world import SMALL_STORE, World

STORE = replace(SMALL_STORE, flush="async")
PIECE_BYTES = 300
"""So much of a log is sent at a time: most records come in two."""


class Replicas:
    """The master's view of others, which have what a test says that they have."""

    def __init__(self) -> None:
        self.in_sync = 3
        self.is_master = True
        """Whether nobody can have become master behind its back."""
        self.is_quick = False
        """Whether they confirm everything as soon as somebody waits for it."""
        self.confirm: Callable[[], None] = lambda: None
        self.appends = 0
        self._waiting: list[tuple[int, WhenSafe]] = []

    def is_current(self) -> bool:
        return self.is_master

    def available(self, needed: int) -> bool:
        return self.in_sync >= max(2, needed)

    def appended(self) -> None:
        self.appends += 1

    def when_replicated(self, log_offset: int, callback: WhenSafe) -> None:
        self._waiting.append((log_offset, callback))
        if self.is_quick:
            self.confirm()

    def confirmed(self, log_offset: int) -> None:
        ready = [each for each in self._waiting if each[0] <= log_offset]
        self._waiting = [each for each in self._waiting if each[0] > log_offset]
        for _, callback in ready:
            callback(None)


def give_replicas(durability: Durability) -> Replicas:
    """Have a running broker ask for replicas before it acknowledges."""
    replicas = Replicas()
    durability.replicas, durability.replicates, durability.immediate = replicas, True, False
    durability.replicas_timeout_ms = 50
    return replicas


class Master(World):
    """A world whose store has a gate, which a test opens."""

    replicas: Replicas
    append_ends: set[int]

    @classmethod
    def at(
        cls, folder: Path, *, quick: bool = False, ack: str = "majority", store: StoreConfig = STORE
    ) -> Self:
        config = ReplicationConfig(ack=ack, replicas=3)  # type: ignore[arg-type]
        replicas = Replicas()
        world = cls(folder, store, replication=config, replicas=replicas, gated=True)
        replicas.confirm = world.confirm
        replicas.is_quick = quick
        world.append_ends = set()
        world.note_ends()
        return world

    def note_ends(self) -> None:
        """Keep where appends end: what is in one of them is not cut in two there."""
        log, append = self.store.log, self.store.log.append

        def noted(*what: Any) -> Any:
            found = append(*what)
            self.append_ends.add(int(log.end))
            return found

        log.append = noted  # type: ignore[assignment, method-assign]

    def pass_time(self, ms: int) -> None:
        """Let time pass, while replicas confirm what happens."""
        for _ in range(ms // 1_000):
            self.advance(1_000)
            self.end_tick()
            self.confirm()

    def confirm(self, log_offset: int | None = None) -> None:
        """Enough replicas have the log up to here."""
        log_offset = int(self.store.log_end) if log_offset is None else log_offset
        touched = self.store.tail.confirm(log_offset)
        self.core.confirmed(touched)
        self.replicas.confirmed(log_offset)


class Follower(World):
    """A world that is sent a log."""

    @classmethod
    def at(cls, folder: Path, store: StoreConfig = STORE, clock: ManualClock | None = None) -> Self:
        config = ReplicationConfig(ack="majority", replicas=3)
        return cls(
            folder,
            store,
            clock=clock or ManualClock(),
            replication=config,
            gated=True,
            follower=True,
        )

    def receive(self, log: MessageStore, until: int | None = None) -> None:
        """Get the bytes of a log, up to an offset, and have them confirmed."""
        until = int(log.log_end) if until is None else until
        store = self.store
        while store.tail.raw_end < until:
            at = max(store.tail.raw_end, int(log.log_min))
            piece = bytes(log.tail.read_raw(at, min(PIECE_BYTES, until - at)))
            if not piece:  # The end of a segment has nothing in it.
                break
            store.tail.append_raw(at, piece)
            self.core.follow(store.tail.confirm(store.log_end))

    def promote(self) -> None:
        """Become master."""
        self.core.close()
        self.store.tail.drop_partial()
        self.store.tail.confirm(self.store.log_end)
        self.follower = False
        replicas = Replicas()
        self.replicas = replicas
        self.start_core()
        replicas.confirm = self.confirm_all
        replicas.is_quick = True
        self.confirm_all()

    def confirm_all(self) -> None:
        """Enough replicas have all of the log."""
        assert isinstance(self.replicas, Replicas)
        self.core.confirmed(self.store.tail.confirm(self.store.log_end))
        self.replicas.confirmed(int(self.store.log_end))

    def pass_time(self, ms: int) -> None:
        """Let time pass, while replicas confirm what happens."""
        for _ in range(ms // 100):
            self.advance(100)
            self.end_tick()
            self.confirm_all()


def ends_of_records(store: MessageStore) -> list[int]:
    """Where the records of a log end."""
    ends = []
    at = int(store.log_min)
    while at < store.log_end:
        segment = store.log.segment_at(at)
        size = int.from_bytes(segment.view[at - segment.start : at - segment.start + 4], "big")
        magic = segment.view[at - segment.start + 4 : at - segment.start + 8]
        at += size
        if bytes(magic) != bytes.fromhex("cbd43194"):  # It fills the end of a segment.
            ends.append(at)
    return ends
