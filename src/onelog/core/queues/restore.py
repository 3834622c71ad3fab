"""Messages of a queue that somebody had when the broker stopped, and has when it starts again.

A message that is out when a broker stops is ready when it starts. Who has recorded that it is his,
because nobody else may get it any more, claims it then: it is out again, until he acknowledges it
or gives it back.
"""

from collections.abc import Callable
from functools import partial

from onelog.core.cursors.unpacking import ColdError
from onelog.core.queues.deliveries import Delivery
from onelog.core.queues.ledger import Handout
from onelog.core.queues.queue import WorkQueue
from onelog.core.queues.queues import WorkQueues


def claim(works: WorkQueues, queue: WorkQueue, position: int) -> None:
    """Take a message of a durable queue out, before it is consumed, unless it is done."""
    ledger = queue.ledger_of(position)
    if ledger.in_log:
        ledger.claim(position, Handout(None, works.clock.now_ms()))


def read_again(
    works: WorkQueues,
    queue: WorkQueue,
    position: int,
    given: Callable[[list[Delivery]], None],
    *,
    cold_ok: bool = False,
) -> None:
    """Give a message that is out to who has it, once more; nothing, if it is done."""
    try:
        found = queue.ledger_of(position).held([position], cold_ok=cold_ok)
    except ColdError as cold:
        works.warm(cold.ranges, partial(read_again, works, queue, position, given, cold_ok=True))
    else:
        given(found)
