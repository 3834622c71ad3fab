"""The gate between the log and its queues: what is in the log, and not confirmed by replicas yet.

    log      | entered                  | came as bytes        | appended here        |
             ^ start                    ^ confirmed            ^ raw_until            ^ end
    queues   | know of it               | nothing              | offsets are reserved |

A store with a gate writes to the log as any other. What belongs into queues and index waits here,
until somebody confirms that enough replicas have it: packed entries of what this process appended;
of what came as bytes (from a master, or found when the store was opened) only where it ends, for
these are read from the log again. So the tail of a log can be cut without a trace elsewhere.

A topic's deletion waits like everything else. What is appended to the topic behind it goes to
queues that begin with 0 and are not there yet: successors, which only count.

Invariant: entries reach a queue in the order of the log. All of it is for the one thread that
appends.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from onelog.errors import StoreError
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.flush import OnFlushed
from onelog.store.keyindex import Pending


class Successor:
    """A queue of a topic that is made anew, while the deletion of what it was before waits."""

    __slots__ = ("queue_id", "reserved", "topic")

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.reserved = 0

    def reserve(self, count: int) -> int:
        """Promise places, and return the first."""
        first = self.reserved
        self.reserved += count
        return first

    def release(self, reserved: int) -> None:
        """Take back what was promised from an offset on."""
        self.reserved = reserved


AnyQueue = ConsumeQueue | Successor


class Held(NamedTuple):
    """What one append has to put into queues and index, once it is confirmed."""

    end: int
    """Where in the log it ends, where its last record begins, and when it was stored."""
    last_record: int
    store_ms: int
    entries: Mapping[AnyQueue, bytes]
    keys: Sequence[Pending]
    deleted: str = ""
    """The topic that it deletes."""


class Gate:
    """What waits, and who waits for it."""

    def __init__(self, confirmed: int, raw_until: int) -> None:
        self.confirmed = confirmed
        self.raw_until = raw_until
        """Up to here the log is known by its bytes only."""
        self.successors: dict[str, dict[int, Successor]] = {}
        """By topic whose deletion waits: the queues that it has behind that."""
        self._deletions: dict[str, int] = {}
        self._held: deque[Held] = deque()
        self._waiters: list[tuple[int, OnFlushed]] = []

    @property
    def has_raw(self) -> bool:
        """Whether the log has a tail that came as bytes: nobody knows the queues' ends then."""
        return self.confirmed < self.raw_until

    @property
    def end(self) -> int:
        """Up to where the one who appends knows the log."""
        return self._held[-1].end if self._held else self.confirmed

    def hold(self, held: Held) -> None:
        """Keep what was appended last."""
        self._held.append(held)
        if held.deleted:
            self.successors[held.deleted] = {}
            self._deletions[held.deleted] = self._deletions.get(held.deleted, 0) + 1

    def pass_until(self, log_offset: int) -> Iterator[Held]:
        """What can be entered now, in its order."""
        while self._held and self._held[0].end <= log_offset:
            held = self._held.popleft()
            self.confirmed = held.end
            yield held

    def successors_of(self, deleted: str) -> Mapping[int, Successor]:
        """A deletion was carried out: whose places are to be those of the topic's queues now."""
        self._deletions[deleted] -= 1
        if self._deletions[deleted]:
            return {}  # They were deleted, too.
        del self._deletions[deleted]
        return self.successors.pop(deleted)

    def successor(self, topic: str, queue_id: int) -> Successor:
        """A queue of a topic whose deletion waits."""
        queues = self.successors[topic]
        if queue_id not in queues:
            queues[queue_id] = Successor(topic, queue_id)
        return queues[queue_id]

    def forget_held(self) -> None:
        """What waits is not this process's to know any more: give the places back."""
        queues = {queue for held in self._held for queue in held.entries}
        self._held.clear()
        self.successors.clear()
        self._deletions.clear()
        for queue in queues:
            if isinstance(queue, ConsumeQueue):
                queue.release(queue.end)

    # -- who waits -----------------------------------------------------------------------------

    def when_confirmed(self, log_offset: int, callback: OnFlushed) -> None:
        """Call back once queues know everything below `log_offset`, or never will."""
        if log_offset <= self.confirmed:
            callback(None)
        else:
            self._waiters.append((log_offset, callback))

    def tell(self) -> None:
        """Call back who has waited long enough."""
        if self._waiters:
            ready = [call for offset, call in self._waiters if offset <= self.confirmed]
            self._waiters = [each for each in self._waiters if each[0] > self.confirmed]
            for call in ready:
                call(None)

    def give_up(self, error: StoreError) -> None:
        """Tell everybody who waits that it will not come."""
        waiters, self._waiters = self._waiters, []
        for _, call in waiters:
            call(error)
