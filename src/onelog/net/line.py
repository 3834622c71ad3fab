"""The short way to a broker on the same event loop: sending and following, as plain calls.

A connection in memory has frames like every other, and may have a `Line` besides. A client that
sends a plain message, or waits for the next message of a queue, asks the line first. If the line
cannot do it at once, it declines, and the client makes the ordinary request. So lines handle the
plain case only, and clients lose nothing if there is none.

Invariant: nothing is answered twice. A call that was declined has changed nothing.
"""

from collections.abc import Callable
from typing import Protocol

from onelog.message import Message

Arrived = Callable[[Message | None], bool]
"""Called with the next message, and says whether it wants those after it, too. Called with None
when following ends: something is there that has to be pulled, or the line is closed."""


class Following(Protocol):
    """Somebody waits for the messages of a queue."""

    def stop(self) -> None:
        """Do not call any more."""


class Line(Protocol):
    """A line to one broker."""

    def send(
        self, topic: str, queue_id: int, body: bytes, properties: str, flag: int, born_ms: int
    ) -> tuple[str, int] | None:
        """Store a message: its offset id and its offset in the queue; None if declined."""

    def follow(
        self, group: str, topic: str, queue_id: int, offset: int, arrived: Arrived
    ) -> Following | None:
        """Hand over the messages of a queue from `offset` on, as they arrive.

        Declined with None if one is there already: then pull it.
        """

    def close(self) -> None:
        """The connection is gone: end all following."""
