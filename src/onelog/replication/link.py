"""What a leader and a follower need of a connection: that of a socket, or of a simulation."""

from collections.abc import Callable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview
Touched = set[tuple[str, int]] | None
"""Topics and queues that got messages; None for many."""
Call = Callable[[], None]


class Link(Protocol):
    """One connection, seen from the session that sends on it."""

    @property
    def backlog(self) -> int:
        """Bytes that were sent, and are not yet with the kernel."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send buffers, one after the other. They must not change until they are gone."""

    def close(self) -> None:
        """Close, once what was sent is gone. Nothing more is received; `lost` follows."""


class Session(Protocol):
    """What is done with a connection."""

    def received(self, data: Buffer) -> None:
        """Bytes arrived. They may change after the call."""

    def ready(self) -> None:
        """The backlog is small again."""

    def lost(self) -> None:
        """The connection is gone. Called once."""
