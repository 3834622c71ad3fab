"""What an election and its node tell each other: how far the node is, and what it is to be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from onelog.replication.registry import Lag


@dataclass(frozen=True, slots=True)
class LogProgress:
    """How far a node is."""

    epoch: int
    """Of the last record of its log."""
    end: int
    confirmed: int
    fit: bool = True
    """Whether it could be master: not with a full disk."""
    attached: bool = False
    """Whether it follows, and the master knows how far it is."""
    lags: tuple[Lag, ...] = ()
    """Of its followers."""
    held: tuple[int, int] = (0, 0)
    """How far it is confirmed, and on disk if that is promised: epoch of the last byte, offset."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a node is to be: the master of an epoch, or a follower of one (or, for now, of none)."""

    is_master: bool = False
    epoch: int = 0
    master: int | None = None
    address: str = ""
    """Where clients find the master."""
    ha_address: str = ""
    """Where its followers connect."""


@dataclass(frozen=True, slots=True)
class InSync:
    """The in-sync set as the registry has it."""

    ids: frozenset[int]
    replicas: int
    revision: int
    unfit: frozenset[int] = frozenset()
    """Nodes that are not to be in it, however far they are."""


@dataclass(frozen=True, slots=True)
class Self:
    """Which node this is."""

    id: int
    instance: str
    address: str
    ha_address: str
    replicas: int
    """How many nodes the set is to have; asked when the set is founded."""
    lease_ms: int
    ack: str = "local"
    unclean: bool = False
    kafka_address: str = ""

    def needed(self, replicas: int) -> int:
        """How many members the in-sync set keeps, though some be away: fewer confirm nothing."""
        return {"majority": replicas // 2 + 1, "all": replicas}.get(self.ack, 1)


class ElectionNode(Protocol):
    """What an election asks of the node, and tells it."""

    def progress(self) -> LogProgress: ...

    def become(self, role: Role, in_sync: InSync) -> None:
        """Take this role from now on. Of a follower's in-sync set nothing depends."""
        ...

    def in_sync_is(self, in_sync: InSync) -> None:
        """For a master: what the registry has, after each proposal and each change."""
        ...

    def prepare_hand_over(self, target: int, ready: Callable[[str], None]) -> None:
        """Acknowledge nothing more, and call back when the target has the whole log.

        What is told is empty, or why it cannot be; then the node goes on as before.
        """
        ...

    def resume(self) -> None:
        """A hand-over that was prepared did not take place: go on as the master."""
        ...

    def has(self, epoch: int, confirmed: int) -> bool:
        """Whether its log goes so far, with the last byte before that of this epoch."""
        ...

    def is_empty(self) -> bool:
        """Whether there is nothing in its log, and never was."""
        ...

    def may_truncate(self) -> None:
        """Somebody wants it to follow the master, whatever it has that the master lacks."""
        ...
