"""Whose turn it is: queues with something to deliver have theirs at the end of the tick.

Invariant: a queue is in `pending` while its `is_pending` says so, until it is deleted.
"""

import logging
from collections.abc import Callable
from itertools import islice

from onelog.core.queues.queue import WorkQueue
from onelog.core.stats import Stats

log = logging.getLogger(__name__)

ROUND_QUEUES, ROUND_MESSAGES = 256, 8_192
"""Queues that have their turn before anything else has its own, and what they may deliver."""
GATHERED_QUEUES = 100
"""So many wait for one tick more: each has more to deliver by then, in one turn."""
ROUND_SECONDS = 0.01
"""After which the others have their turn in the next tick: conditions of consumers take time."""


class DeliveryLoop:
    """Those of all queues of a broker."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], None],
        stats: Stats,
        seconds: Callable[[], float],
    ) -> None:
        self._call_soon = call_soon
        self._stats = stats
        self._seconds = seconds
        self.pending: dict[WorkQueue, None] = {}
        self._is_due = self._has_gathered = False

    def pend(self, queue: WorkQueue) -> None:
        """Give a queue a turn at the end of the tick."""
        queue.is_pending = True
        self.pending[queue] = None
        if not self._is_due:
            self._expect()

    def _expect(self) -> None:
        self._is_due = True
        self._call_soon(self._run)

    def _run(self) -> None:
        """Give some queues their turn; others have theirs when the loop was elsewhere."""
        self._is_due = False
        pending = self.pending
        if len(pending) > GATHERED_QUEUES and not self._has_gathered:
            self._has_gathered = True
            self._expect()
            return
        self._has_gathered = False
        some = list(islice(pending, ROUND_QUEUES))
        if is_all := len(some) == len(pending):
            pending.clear()
        left, ends = ROUND_MESSAGES, self._seconds() + ROUND_SECONDS
        for number, queue in enumerate(some):
            if left <= 0:  # Those who had no turn are the next.
                if is_all:
                    pending = self.pending = dict.fromkeys(some[number:]) | pending
                break
            pending.pop(queue, None)
            queue.is_pending = False
            before = queue.delivered
            try:
                more = self.run(queue)
            except Exception:
                log.exception("%s could not deliver", queue.label)
                continue
            left -= queue.delivered - before
            if self._seconds() > ends:
                left = 0
            if more and not queue.is_pending:
                self.pend(queue)
        if pending and not self._is_due:
            self._expect()

    def run(self, queue: WorkQueue) -> bool:
        """Have a queue deliver, and count that; True if it has more."""
        before = queue.delivered
        try:
            return queue.run()
        finally:
            self._stats.totals.get_count += queue.delivered - before
