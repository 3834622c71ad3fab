"""What a client that consumes has in flight, and what becomes of it: for any protocol.

A consumer session is a channel of AMQP, a subscription of STOMP, or a client of MQTT. Its client
names what it was given by tags, which are counted from 1 on, and settles one message, or all up to
one. Acknowledgements that arrive together are handed to their queues together.

What a transaction settles is taken from the session, and settled when that is committed; or it is
taken back, and is in flight as before.

Invariant: a delivery is settled once. What a session has when it ends is back in its queues.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Literal, Protocol, TypeVar

from onelog.errors import OnelogError

Settlement = Literal["ack", "requeue", "reject"]
"""What becomes of messages: they are done, may be had again, or go to the dead letters."""


class ConsumedQueue(Protocol):
    """What deliveries come from, and go back to: a queue, or what reads a stream."""

    def ack(self, positions: Sequence[int]) -> None: ...

    def requeue(self, positions: Sequence[int], *, counted: bool = True) -> None: ...

    def reject(self, positions: Sequence[int]) -> None: ...

    def when_recorded(self, callback: Callable[[Any], None]) -> None: ...


Queue = TypeVar("Queue", bound=ConsumedQueue)
InFlight = tuple[Any, int]
"""A delivery: its queue, and its place there."""
Taken = tuple[int, Any, int]
"""A delivery that is not unacknowledged any more: its tag, its queue, and its place there."""


def by_queue(found: Iterable[tuple[Queue, int]]) -> dict[Queue, list[int]]:
    """The places of deliveries in each of their queues."""
    positions: dict[Queue, list[int]] = {}
    for queue, position in found:
        if queue in positions:
            positions[queue].append(position)
        else:
            positions[queue] = [position]
    return positions


def when_recorded(
    queues: Collection[ConsumedQueue], callback: Callable[[OnelogError | None], None]
) -> None:
    """Call back when what was settled in these queues is in the log; or why one of it is not."""
    left = len(queues)
    failed: list[OnelogError] = []

    def recorded(error: OnelogError | None) -> None:
        nonlocal left
        left -= 1
        if error is not None:
            failed.append(error)
        if left <= 0:
            callback(failed[0] if failed else None)

    for queue in queues:
        queue.when_recorded(recorded)
    if not queues:
        recorded(None)


class Acknowledgements:
    """Those that have arrived, and were not handed to their queues yet."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[Any, list[int]] = {}

    def add(self, queue: ConsumedQueue, position: int) -> None:
        positions = self.waiting.get(queue)
        if positions is None:
            self.waiting[queue] = [position]
        else:
            positions.append(position)

    def flush(self) -> None:
        """Hand them over."""
        if self.waiting:
            waiting, self.waiting = self.waiting, {}
            for queue, positions in waiting.items():
                queue.ack(positions)


class ConsumerSession:
    """Deliveries of which their client has not said what becomes of them."""

    def __init__(self) -> None:
        self.unacked: dict[int, InFlight] = {}
        self.last_tag = 0
        self._oldest = 1
        """No tag below this one is unacknowledged."""

    def unknown(self, tag: int) -> OnelogError:
        """What a client is told that names a tag which is not unacknowledged."""
        raise NotImplementedError

    def next_tag(self) -> int:
        """The tag of one more delivery."""
        self.last_tag += 1
        return self.last_tag

    def meant(self, tag: int, multiple: bool) -> Collection[int]:
        """The tags that a client means; with `multiple` all up to this one, and 0 for all."""
        unacked = self.unacked
        if multiple and not tag:
            return list(unacked)
        if tag not in unacked:
            raise self.unknown(tag)
        if not multiple:
            return (tag,)
        return [each for each in range(self._oldest, tag + 1) if each in unacked]

    def ended(self, tag: int, multiple: bool) -> list[InFlight]:
        """Deliveries that are not unacknowledged any more."""
        unacked = self.unacked
        if not multiple or tag not in unacked:
            found = [unacked.pop(each) for each in self.meant(tag, multiple)]
            if multiple:
                self._oldest = self.last_tag + 1
            return found
        tags, count = range(self._oldest, tag + 1), len(unacked)
        popped: list[Any] = list(map(unacked.pop, tags, repeat(None)))
        self._oldest = tag + 1
        if count - len(unacked) < len(popped):
            return [each for each in popped if each]
        return popped

    def taken(self, tag: int, multiple: bool) -> list[Taken]:
        """The same, with what it takes to take them back."""
        tags = self.meant(tag, multiple)
        found = self.ended(tag, multiple)
        return [(each, *entry) for each, entry in zip(tags, found, strict=True)]

    def take_back(self, taken: Iterable[Taken]) -> None:
        """What a transaction had settled is unacknowledged again."""
        for tag, queue, position in taken:
            self.unacked[tag] = (queue, position)
            self._oldest = min(self._oldest, tag)

    def giving_back(self, *, counted: bool) -> Iterator[None]:
        """The session ends: what it has may be had again; in steps, of a queue each."""
        for queue, positions in by_queue(self.ended(0, True)).items():
            queue.requeue(positions, counted=counted)
            yield


def settle(how: Settlement, found: Iterable[InFlight]) -> list[Any]:
    """Acknowledge, requeue or reject deliveries; the queues that this is recorded for."""
    positions = by_queue(found)
    for queue, some in positions.items():
        getattr(queue, how)(some)
    return list(positions)
