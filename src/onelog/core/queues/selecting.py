"""Messages of a queue that were passed over: who would want them is not there, or has no room.

A consumer may want some messages of a queue only (`Consumer.wants`). What nobody can be given now
is taken from its ledger all the same, so that what lies behind it can be looked at; it is out, as
if somebody had asked for it. Who wants each is known, so that a message is looked at once for each
consumer, however often there is room again. The number is limited: a queue of which nobody wants
the first `PASSED_MAX` messages stands still, until somebody does.

Invariant: what is passed over is in the order of the queue, and goes back to its ledger when there
is no consumer left.
"""

from collections.abc import Iterator

from onelog.core.queues.consumers import Consumer
from onelog.core.queues.deliveries import BODY, FORM, POSITION, Delivery
from onelog.core.queues.ledger import Handout, Ledger

PASSED_MAX = 2_000


class Passed:
    """One message that was passed over."""

    __slots__ = ("delivery", "handout", "ledger", "wanting")

    def __init__(
        self, ledger: Ledger, delivery: Delivery, now_ms: int, wanting: list[Consumer]
    ) -> None:
        self.ledger = ledger
        self.delivery = delivery
        self.handout = Handout(None, now_ms)
        self.wanting = wanting


class PassedOver:
    """All that were, of one queue."""

    __slots__ = ("_by_position",)

    def __init__(self) -> None:
        self._by_position: dict[int, Passed] = {}

    def __len__(self) -> int:
        return len(self._by_position)

    def __iter__(self) -> Iterator[Passed]:
        return iter(self._by_position.values())

    @property
    def room(self) -> int:
        """How many more may be passed over."""
        return PASSED_MAX - len(self._by_position)

    def add(self, passed: Passed) -> None:
        self._by_position[passed.delivery[POSITION]] = passed

    def offers(self) -> list[tuple[Passed, Consumer]]:
        """Those that somebody wants who has room for one at least."""
        return [
            (passed, consumer)
            for passed in self._by_position.values()
            if (consumer := next((each for each in passed.wanting if each.room > 0), None))
        ]

    def remove(self, passed: Passed) -> None:
        """It is handed over, or done."""
        del self._by_position[passed.delivery[POSITION]]

    def came(self, consumer: Consumer) -> None:
        for passed in self._by_position.values():
            if wants(consumer, passed.delivery):
                passed.wanting.append(consumer)

    def went(self, consumer: Consumer) -> None:
        for passed in self._by_position.values():
            if consumer in passed.wanting:
                passed.wanting.remove(consumer)

    def taken(self) -> list[int]:
        """The places of all, which are none of them any more."""
        positions = list(self._by_position)
        self._by_position.clear()
        return positions


def wants(consumer: Consumer, delivery: Delivery) -> bool:
    """Whether a consumer wants a message."""
    return consumer.wants is None or consumer.wants(delivery[BODY], delivery[FORM])
