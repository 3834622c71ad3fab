"""Messages of a queue that lives in memory, or of one of its levels.

Those that were never handed out stand in their order; messages that came together stay together
until they are wanted one by one. Those that are in flight, or came back, are kept by their offsets
until they are done.

Invariant: `_fresh` and then `_runs` are the messages from the ledger's `next` to `end`.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from operator import itemgetter

from onelog.core.queues.deliveries import SIZE, Delivery, Stretch

Run = tuple[int, int, Sequence[bytes], int, int, int]
"""Messages that came together: the place of the first one, which of the bodies that is, the bodies,
the form's flag, store time, and the payload bytes of each."""
_size_of = itemgetter(SIZE)


class MemorySource:
    """Where the messages of a ledger are that has no log."""

    __slots__ = "_bits _fresh _kept _level _run_count _runs end".split()

    def __init__(self) -> None:
        self._fresh: deque[Delivery] = deque()
        self._runs: deque[Run] = deque()
        self._run_count = 0
        self._kept: dict[int, Delivery] = {}
        self._bits = self._level = self.end = 0

    def number(self, bits: int, level: int) -> None:
        """Places say from here on of which level they are."""
        self._bits, self._level = bits, level

    def put(self, body: bytes, form: int, now_ms: int, size: int) -> None:
        if self._runs:
            self.put_all([body], form, now_ms, size)
        else:
            position = self.end
            self.end = position + 1
            if self._bits:
                position = position << self._bits | self._level
            self._fresh.append((position, 0, body, form, now_ms, size))

    def put_all(self, bodies: Sequence[bytes], form: int, now_ms: int, size: int) -> None:
        """Messages that are alike but for their payload; of a queue with one level."""
        self._runs.append((self.end, 0, bodies, form, now_ms, size))
        self._run_count += len(bodies)
        self.end += len(bodies)

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

    # -- for the ledger ------------------------------------------------------------------------

    def take(
        self, begin: int, count: int, bytes_max: int, cold_ok: bool
    ) -> tuple[list[Delivery], int, int]:
        """The messages that come next, the offset behind them, and their bytes."""
        self._part(count)
        fresh = self._fresh
        if count >= len(fresh):
            found = list(fresh)
            fresh.clear()
        else:
            found = [fresh.popleft() for _ in range(count)]
        size = sum(map(_size_of, found))
        while size > bytes_max and len(found) > 1:
            last = found.pop()
            fresh.appendleft(last)
            size -= last[SIZE]
        return found, begin + len(found), size

    def pass_on(
        self, begin: int, count: int, bytes_max: int
    ) -> tuple[Sequence[bytes], Sequence[int], int]:
        """The same of messages that came together: their bodies and forms, and their bytes."""
        if self._fresh or not self._runs:
            return (), (), 0
        size = self._runs[0][5]
        _, _, bodies, form, _, _ = self._from_runs(min(count, max(1, bytes_max // max(1, size))))
        return bodies, [form] * len(bodies), size * len(bodies)

    def read(self, offset: int, count: int, bytes_max: int, cold_ok: bool) -> Stretch:
        """Messages from an offset on, which stay."""
        found: list[Delivery] = []
        kept = self._kept
        if offset in kept:
            for at in range(offset, offset + count):
                if at not in kept or (found and bytes_max < kept[at][SIZE]):
                    break
                found.append(kept[at])
                bytes_max -= kept[at][SIZE]
        else:
            first = self.end - len(self._fresh) - self._run_count
            if offset >= first:
                self._part(offset - first + count)
                found = list(islice(self._fresh, offset - first, offset - first + count))
        return Stretch(found, offset + max(1, len(found)))

    def peek(self, offset: int, cold_ok: bool) -> Delivery | None:
        """The message that comes next."""
        self._part(1)
        return self._fresh[0] if self._fresh else None

    def keep(self, offsets: Sequence[int], found: Sequence[Delivery]) -> int:
        """These are in flight, or came back; their bytes."""
        self._kept.update(zip(offsets, found, strict=True))
        return sum(map(_size_of, found))

    def forget(self, offsets: Sequence[int]) -> int:
        """These are done, or were taken again; the bytes of those that were kept."""
        return sum(map(_size_of, map(self._kept.pop, offsets)))

    def size_of(self, offset: int) -> int:
        """The payload bytes of one that is kept."""
        return self._kept[offset][SIZE]

    def drop(self) -> None:
        """The ledger goes on at `end`."""
        self._fresh.clear()
        self._runs.clear()
        self._run_count = 0

    def want(self) -> None:
        """There are consumers."""

    def cool(self) -> None:
        """There are none."""
