"""The queues that one topic's messages can go to, each with everything that a send to it needs.

A `Lane` is made from a route and thrown away when the route changes. Invariant: its places are in
the order of the route's queues, which is the same for all clients; so one key means one queue,
whoever sends, as long as the route is the same.
"""

from collections.abc import Collection, Sequence

from onelog.client.connection.address import Address
from onelog.client.connection.faults import Faults
from onelog.client.message import Queue
from onelog.message import java_hash
from onelog.net.peer import Peer
from onelog.wire.remoting.send import SendTemplate


class Channel:
    """A broker that is sent to, and the connection to it, if there is one."""

    __slots__ = ("address", "broker", "peer", "unreachable_until")

    def __init__(self, broker: str, address: Address | None) -> None:
        self.broker = broker
        self.address = address
        """None for a broker that the name servers do not know now."""
        self.peer: Peer | None = None
        self.unreachable_until = 0.0
        """By the loop's clock: to whom no connection could be made, none is tried for a while."""

    def __str__(self) -> str:
        return f"{self.broker} ({self.address})" if self.address else self.broker


class Place:
    """One queue."""

    __slots__ = ("channel", "queue", "template")

    def __init__(self, queue: Queue, channel: Channel, template: SendTemplate) -> None:
        self.queue = queue
        """With the topic as the user calls it."""
        self.channel = channel
        self.template = template


class Lane:
    """All queues of a topic."""

    def __init__(self, places: Sequence[Place], turn: int = 0) -> None:
        self.places = tuple(places)
        self.by_queue = {place.queue: place for place in places}
        self.brokers = frozenset(place.channel.broker for place in places)
        self.is_spread = len(self.brokers) > 1
        """Whether there is another broker if one fails."""
        self._turn = turn

    def next(self) -> Place:
        """The queue whose turn it is."""
        self._turn = turn = (self._turn + 1) % len(self.places)
        return self.places[turn]

    def back(self) -> None:
        """The turn was not used."""
        self._turn -= 1

    def next_except(self, brokers: Collection[str]) -> Place | None:
        """The next queue that is not on one of these brokers, if there is one."""
        for _ in self.places:
            place = self.next()
            if place.channel.broker not in brokers:
                return place
        return None

    def next_unless(self, faults: Faults) -> Place:
        """The next queue whose broker need not be avoided, or should be avoided least."""
        avoided = {broker for broker in self.brokers if faults.is_avoided(broker)}
        if not avoided:
            return self.next()
        place = self.next_except(avoided)
        if place is None:
            best = faults.least_avoided(self.brokers)
            place = self.next_except(self.brokers - {best})
        assert place is not None
        return place

    def of_key(self, key: str) -> Place:
        """The queue of a key: Java's hash of it, modulo the number of queues."""
        return self.places[abs(java_hash(key)) % len(self.places)]
