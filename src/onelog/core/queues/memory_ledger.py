"""Messages of a queue that lives in memory, in their order.

What came back stands before what was never out, each at its own place: places only grow. Messages
that came together stay together until they are wanted one by one.

Invariant: every message is in exactly one of `_fresh`, `_runs`, `returned` and `out`; what is in
`_runs` comes after what is in `_fresh`.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from onelog.core.queues.consumers import Consumer
from onelog.core.queues.deliveries import SIZE, TIMES, Delivery

Run = tuple[int, int, Sequence[bytes], int, int, int]
"""Messages that came together: the place of the first one, which of the bodies that is, the bodies,
the form's flag, store time, and the payload bytes of each."""


class Handover:
    """Messages that one consumer was given at one time; without a consumer, somebody asked."""

    __slots__ = ("consumer", "given_ms")

    def __init__(self, consumer: Consumer | None, given_ms: int) -> None:
        self.consumer = consumer
        self.given_ms = given_ms


def taken_from(waiting: deque[Delivery], count: int, bytes_max: int) -> tuple[list[Delivery], int]:
    """The first messages that wait, up to so many, and so many bytes, but one at least; and their
    bytes."""
    if count >= len(waiting):
        found = list(waiting)
        waiting.clear()
    else:
        found = [waiting.popleft() for _ in range(count)]
    size = sum([each[SIZE] for each in found])
    while size > bytes_max and len(found) > 1:
        last = found.pop()
        waiting.appendleft(last)
        size -= last[SIZE]
    return found, size


class MemoryLedger:
    """One level of a queue in memory."""

    __slots__ = "_fresh _run_count _runs in_log out ready_bytes returned unacked_bytes".split()

    def __init__(self) -> None:
        self.in_log = False
        self._fresh: deque[Delivery] = deque()
        self._runs: deque[Run] = deque()
        self._run_count = 0
        self.returned: list[Delivery] = []
        self.out: dict[int, tuple[Delivery, Handover]] = {}
        self.ready_bytes = 0
        self.unacked_bytes = 0

    @property
    def ready(self) -> int:
        """How many messages may be had."""
        return len(self._fresh) + self._run_count + len(self.returned)

    def put(self, position: int, body: bytes, form: int, now_ms: int, size: int) -> None:
        """Take a message in."""
        if self._runs:
            self.put_all(position, [body], form, now_ms, size)
        else:
            self._fresh.append((position, 0, body, form, now_ms, size))
            self.ready_bytes += size

    def put_all(
        self, position: int, bodies: Sequence[bytes], form: int, now_ms: int, size: int
    ) -> None:
        """Take messages in that are alike but for their payload; `size` is that of each of them."""
        self._runs.append((position, 0, bodies, form, now_ms, size))
        self._run_count += len(bodies)
        self.ready_bytes += size * len(bodies)

    def _from_runs(self, count: int) -> Run:
        """Of what came together first so many, or all; there has to be something."""
        position, at, bodies, form, now_ms, size = self._runs[0]
        if count < len(bodies) - at:
            self._runs[0] = position + count, at + count, bodies, form, now_ms, size
            found = bodies[at : at + count]
        else:
            self._runs.popleft()
            found = bodies[at:]
        self._run_count -= len(found)
        return position, 0, found, form, now_ms, size

    def _part(self, count: int) -> None:
        """Have so many messages one by one, if there are."""
        while self._run_count and len(self._fresh) < count:
            position, _, bodies, form, now_ms, size = self._from_runs(count - len(self._fresh))
            self._fresh.extend(
                [(at, 0, body, form, now_ms, size) for at, body in enumerate(bodies, position)]
            )

    def pass_on(self, count: int, bytes_max: int) -> tuple[Sequence[bytes], Sequence[int]]:
        """`take` and `finish` of messages that came together, without a delivery of each.

        Their bodies and forms; none, if they have to be taken.
        """
        if self.returned or self._fresh or not self._runs:
            return (), ()
        size = self._runs[0][5]
        _, _, bodies, form, _, _ = self._from_runs(min(count, max(1, bytes_max // max(1, size))))
        self.ready_bytes -= size * len(bodies)
        return bodies, [form] * len(bodies)

    def take(self, count: int, bytes_max: int, *, cold_ok: bool = False) -> list[Delivery]:
        """The next messages, up to so many, and so many bytes, but one at least."""
        if self.returned:
            # What came back stands before all that did not.
            some = min(count, len(self.returned))
            self._fresh.extendleft(reversed([heapq.heappop(self.returned) for _ in range(some)]))
        self._part(count)
        found, size = taken_from(self._fresh, count, bytes_max)
        self.ready_bytes -= size
        return found

    def hold(self, found: Sequence[Delivery], handover: Handover) -> None:
        """Messages that were taken are out."""
        self.out.update({each[0]: (each, handover) for each in found})
        self.unacked_bytes += sum([each[5] for each in found])

    def release(self, positions: Iterable[int]) -> dict[Handover, int]:
        """Messages are out no more, and are done; how many of which hand-over were."""
        found: dict[Handover, int] = {}
        pop = self.out.pop
        for position in positions:
            held = pop(position, None)
            if held is not None:
                delivery, handover = held
                self.unacked_bytes -= delivery[SIZE]
                found[handover] = found.get(handover, 0) + 1
        return found

    def held(self, positions: Iterable[int], *, cold_ok: bool = False) -> list[Delivery]:
        return [self.out[position][0] for position in positions if position in self.out]

    def put_back(self, position: int, *, counted: bool) -> tuple[Handover, int] | None:
        """A message that is out may be had again, from its place; how often it came back now."""
        held = self.out.pop(position, None)
        if held is None:
            return None
        self.unacked_bytes -= held[0][SIZE]
        self.give_back([held[0]], counted=counted)
        return held[1], held[0][TIMES] + counted

    def give_back(self, found: Iterable[Delivery], *, counted: bool) -> None:
        """Messages that were taken, and are not out, may be had again, from their places."""
        for position, times, body, form, stored_ms, size in found:
            times = times + 1 if counted else max(1, times)
            heapq.heappush(self.returned, (position, times, body, form, stored_ms, size))
            self.ready_bytes += size

    def finish(self, found: Sequence[Delivery]) -> None:
        """Messages that were taken, and are not out, are done."""

    def peek(self, *, cold_ok: bool = False) -> Delivery | None:
        """The next message."""
        if self.returned:
            return self.returned[0]
        self._part(1)
        return self._fresh[0] if self._fresh else None

    def browse(self, skip: int, count: int) -> list[Delivery]:
        """Messages that may be had, from one on, without taking them."""
        self._part(self.ready)
        found = [*sorted(self.returned), *self._fresh]
        return found[skip : skip + count]

    def cool(self) -> None:
        """Nobody wants messages now."""

    def purge(self) -> int:
        """Drop all that may be had; how many that were."""
        count = self.ready
        self._fresh.clear()
        self._runs.clear()
        self._run_count = 0
        self.returned.clear()
        self.ready_bytes = 0
        return count

    def handovers(self) -> Iterator[Handover]:
        """Those of the messages that are out, the oldest first."""
        return (handover for _, handover in self.out.values())
