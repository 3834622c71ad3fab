"""Where the messages of one topic can go: its queues, and which of them is next.

`SendTargets` is made from a route; when the route changes, a new one takes its place. `Faults`
knows which brokers to avoid for a while. A broker that took 550 ms or more to answer is avoided for
a time that grows with the delay (RocketMQ's table); one that failed counts as if it had taken 10 s.
If all brokers are to be avoided, the one that has the least time left is used.

Invariants: the targets are in the order of the route's queues, which is the same for all clients.
So one key means one queue, whoever sends, as long as the route is the same. For `Faults` only the
last answer of a broker counts; a fast one ends its avoidance at once.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from onelog.client.connection.address import Address
from onelog.client.message import Queue
from onelog.clock import Clock
from onelog.message import java_hash
from onelog.net.peer import Peer
from onelog.wire.remoting.send import SendTemplate

LATENCIES_MS = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
AVOIDED_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
FAILED_LATENCY_MS = 10_000

_UNNOTICED_MS = 550
"""Below this nothing is avoided, and nothing need be written down."""


class Faults:
    """What one client has seen of its brokers, by their names."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._avoided_until_ms: dict[str, int] = {}

    def answered(self, broker: str, latency_ms: float) -> None:
        if latency_ms >= _UNNOTICED_MS or self._avoided_until_ms:
            self._note(broker, latency_ms)

    def failed(self, broker: str) -> None:
        """A broker could not be reached, did not answer, or refused for its own reasons."""
        self._note(broker, FAILED_LATENCY_MS)

    def is_avoided(self, broker: str) -> bool:
        """Whether to send elsewhere if possible."""
        until_ms = self._avoided_until_ms.get(broker)
        return until_ms is not None and self._clock.now_ms() < until_ms

    def least_avoided(self, brokers: Iterable[str]) -> str:
        """Of several brokers, the one to use if all are avoided."""
        return min(brokers, key=lambda broker: self._avoided_until_ms.get(broker, 0))

    def _note(self, broker: str, latency_ms: float) -> None:
        avoided_ms = avoided_for_ms(latency_ms)
        if avoided_ms:
            self._avoided_until_ms[broker] = self._clock.now_ms() + avoided_ms
        else:
            self._avoided_until_ms.pop(broker, None)


def avoided_for_ms(latency_ms: float) -> int:
    """How long a broker is avoided that took so long."""
    return AVOIDED_MS[max(0, bisect_right(LATENCIES_MS, latency_ms) - 1)]


@dataclass(slots=True, eq=False)
class Channel:
    """A broker that is sent to, and the connection to it, if there is one."""

    broker: str
    address: Address | None
    """None for a broker that the name servers do not know now."""
    peer: Peer | None = None
    unreachable_until: float = 0.0
    """By the loop's clock: to whom no connection could be made, none is tried for a while."""

    def __str__(self) -> str:
        return f"{self.broker} ({self.address})" if self.address else self.broker


@dataclass(slots=True, eq=False)
class SendTarget:
    """One queue."""

    queue: Queue
    """With the topic as the user calls it."""
    channel: Channel
    template: SendTemplate


class SendTargets:
    """All queues of a topic."""

    def __init__(self, targets: Sequence[SendTarget], turn: int = 0) -> None:
        self.all = tuple(targets)
        self.by_queue = {target.queue: target for target in targets}
        self.brokers = frozenset(target.channel.broker for target in targets)
        self.is_spread = len(self.brokers) > 1
        """Whether there is another broker if one fails."""
        self._turn = turn

    def next(self) -> SendTarget:
        self._turn = turn = (self._turn + 1) % len(self.all)
        return self.all[turn]

    def back(self) -> None:
        """The turn was not used."""
        self._turn -= 1

    def next_except(self, brokers: Collection[str]) -> SendTarget | None:
        """The next queue that is not on one of these brokers, if there is one."""
        for _ in self.all:
            target = self.next()
            if target.channel.broker not in brokers:
                return target
        return None

    def next_unless(self, faults: Faults) -> SendTarget:
        """The next queue whose broker need not be avoided, or should be avoided least."""
        avoided = {broker for broker in self.brokers if faults.is_avoided(broker)}
        if not avoided:
            return self.next()
        target = self.next_except(avoided)
        if target is None:
            best = faults.least_avoided(self.brokers)
            target = self.next_except(self.brokers - {best})
        assert target is not None
        return target

    def of_key(self, key: str) -> SendTarget:
        """The queue of a key: Java's hash of it, modulo the number of queues."""
        return self.all[abs(java_hash(key)) % len(self.all)]
