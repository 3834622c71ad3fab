"""What a declared queue needs of the part that it belongs to."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from onelog.clock import Clock
from onelog.core.durable.durability import WhenSafe
from onelog.core.queues.dead_letters import Reason
from onelog.core.queues.deliveries import Delivery

if TYPE_CHECKING:
    from onelog.core.queues.consumers import Consumer
    from onelog.core.queues.ledger import Ledger
    from onelog.core.queues.queue import WorkQueue


class QueueCallbacks(Protocol):
    """What a queue needs of the part that it belongs to."""

    clock: Clock
    memory_is_full: bool

    def pend(self, queue: "WorkQueue") -> None:
        """Give it a turn at the end of the tick."""

    def changed(self, ledger: "Ledger") -> None:
        """Record what changed, soon."""

    def bury(
        self, queue: "WorkQueue", ledger: "Ledger", found: Sequence[Delivery], reason: Reason
    ) -> None:
        """Send messages to the queue's dead letters, and record that they are done, together.

        `StoreError`, and nothing has happened, if that cannot be written.
        """

    def refused(self, queue: "WorkQueue", body: bytes, form: int) -> None:
        """Send a message to the queue's dead letters that the queue does not take."""

    def warm(self, ranges: Sequence[tuple[int, int]], then: Callable[[], None]) -> None:
        """Have a worker read from disk, and go on."""

    def later(self, wait_ms: int, then: Callable[[], None]) -> None:
        """Call back after a while."""

    def settle(self, queue: "WorkQueue") -> None:
        """Append and deliver what is on its way."""

    def expire_at(self, queue: "WorkQueue", due_ms: int | None) -> None:
        """Give it a turn then, too."""

    def watch_use(self, queue: "WorkQueue") -> None:
        """End it when nobody has used it for so long as it says."""

    def when_recorded(self, queue: "WorkQueue", callback: WhenSafe) -> None:
        """Call back once what changed so far is in the log, as safe as configured."""

    def stored(self, queue: "WorkQueue", bytes_more: int) -> None:
        """A queue in memory takes so many bytes more, or less."""

    def gone_by(self, queue: "WorkQueue", consumer: "Consumer") -> None:
        """A consumer is not to be delivered to any more."""
