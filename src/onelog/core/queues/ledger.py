"""The ledger of one queue: which message is next, what is in flight, what came back, what is done.

    offset   0 ......... cursor ....................... next ............ end of the queue
             done        in flight, returned, done      never handed out

`out` holds the offsets that are in flight, each with the hand-over that it was part of; `returned`
those that are to be had again, from their places: before all that have a higher offset. What is
neither, below `next`, is done: so nothing is kept about messages that are done, in whatever order
that happened. Where the messages are is the ledger's `source`: in the log, or in memory only.

This one is of a declared queue, of those with priorities of one level. That of a group whose
messages are leased is a `LeaseLedger`: in flight for a time, in order if that is wanted.

    record    "n": next     all before was delivered, or is done
              "d": [[begin, end], ...]   what was done since the last record
              "t": [[offset, times], ...] how often messages came back, where that is limited
              "b": [end, bytes]   payload of all that is not done, before `end`
              "w": 1        forget what earlier records say; then "u" is what is not done before n

So deliveries are not recorded one by one: who delivered last is told by `next`, and after a restart
everything before it that is not done comes again, as redelivered. Of a queue in memory nothing is
recorded.

Invariant: every offset before `next` is in `out` or in `returned`, or is done.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

from onelog.core.queues.consumers import Consumer
from onelog.core.queues.deliveries import POSITION, TIMES, Delivery
from onelog.core.queues.log_source import READ_BYTES_MAX, LogReader, LogSource
from onelog.core.queues.memory_source import MemorySource
from onelog.message import NewMessage, NewRun
from onelog.names import join_key, split_key

TABLE = "shelves"
"""Its name in the log since 0.1; stores have records of it."""
POSITION_BITS = 16
"""Of a place in a queue with priorities: those that say the level."""
_MEASURED_AGAIN = 1_000
"""Messages after which it is recorded how many bytes a queue has, though nothing else changed."""

Range = list[int]
"""The first offset, and the one behind the last."""
_NOWHERE = MemorySource()
"""The source of a ledger that is only replayed, or whose messages others read."""


class Handout:
    """Messages that were handed over at one time; without a consumer, somebody asked for one."""

    __slots__ = ("consumer", "given_ms")

    def __init__(self, consumer: Consumer | None, given_ms: int) -> None:
        self.consumer = consumer
        self.given_ms = given_ms


def ledger_of(key: str) -> "Ledger":
    """The ledger of a table's key, as it is before any record."""
    topic, queue_id = split_key(key)
    return Ledger(topic, int(queue_id))


def ranges_of(offsets: Iterable[int]) -> list[Range]:
    found: list[Range] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1][1] = offset + 1
        else:
            found.append([offset, offset + 1])
    return found


class Ledger:
    """Of one queue of a topic, or of a level of a queue in memory."""

    __slots__ = (
        "_base _bits _bytes_end _done _heap _level _times_changed counts_times end in_log is_dirty "
        "key next out queue_id ready_bytes returned source times topic unacked_bytes void"
    ).split()

    def __init__(self, topic: str = "", queue_id: int = 0) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.in_log = bool(topic)
        self.key = join_key(topic, str(queue_id)) if topic else ""
        """What the table calls it."""
        self.source: LogSource | MemorySource = _NOWHERE
        self.next = 0
        self.end = 0
        """Where the queue ends, as far as this ledger was told."""
        self.out: dict[int, Handout] = {}
        self.returned: dict[int, int] = {}
        """Offsets that are to be had again, and when they were handed out last."""
        self.times: dict[int, int] = {}
        """How often an offset came back; only those that did, and were counted."""
        self.counts_times = False
        """Whether it is recorded how often messages came back."""
        self.ready_bytes = self.unacked_bytes = 0
        self.is_dirty = self.void = False
        self._heap: list[tuple[int, int, int]] = []
        """What came back, in its order; it may have others, too."""
        self._done: list[Range] = []
        self._times_changed: dict[int, None] = {}
        self._bytes_end = 0
        self._base = 0
        """Bytes of what is not done, before `_bytes_end`, by the last record."""
        self._bits = self._level = 0

    # -- what there is -------------------------------------------------------------------------

    def number(self, level: int) -> None:
        """The queue has several ledgers: a place says which of them."""
        self._bits, self._level = POSITION_BITS, level
        self.source.number(POSITION_BITS, level)

    @property
    def ready(self) -> int:
        """How many messages may be had."""
        unread = self.source.end - self.next
        return len(self.returned) + (unread if unread > 0 else 0)

    @property
    def cursor(self) -> int:
        """The first message that is not done."""
        return min(min(self.out, default=self.next), min(self.returned, default=self.next))

    def entered(
        self, messages: Sequence[NewMessage | NewRun], offset: int, now_ms: int
    ) -> tuple[int, bool]:
        """Messages were stored, with their entries from `offset` on.

        How many that are, and whether one of them says itself when it expires.
        """
        assert isinstance(self.source, LogSource)
        if offset != self.end:
            self.measure(offset)
        entries = self.source.entered(messages, offset, self.next, now_ms)
        self.end = offset + entries.total
        self.ready_bytes += entries.size
        return entries.total, entries.expires

    def measure(self, end: int | None = None) -> None:
        """Learn how many bytes the messages have that nobody has told of."""
        assert isinstance(self.source, LogSource)
        end = self.source.end if end is None else end
        at = self.end
        if at > end:
            self.end = end
            return
        while at < end:
            size, after = self.source.measure(at, end)
            self.ready_bytes += size
            if after <= at:
                break
            at = after
        self.end = max(self.end, end)

    # -- handing out ---------------------------------------------------------------------------

    def take(self, count: int, bytes_max: int, *, cold_ok: bool = False) -> list[Delivery]:
        """The next messages, up to so many, and so many bytes, but one at least.

        `ColdError` if the first of them has to be read from disk.
        """
        if self.returned:
            return self._take_returned(count, bytes_max, cold_ok)
        found, after, size = self.source.take(self.next, count, bytes_max, cold_ok)
        if after > self.next:
            if after - self.next != len(found):
                self._pass_over(found, after)
            self.next = after
            self.ready_bytes -= size
        return found

    def pass_on(self, count: int, bytes_max: int) -> tuple[Sequence[bytes], Sequence[int]]:
        """`take` and `finish` of messages that have just come, without a delivery of each.

        Their bodies and forms; none, if they have to be taken.
        """
        if self.returned:
            return (), ()
        bodies, forms, size = self.source.pass_on(self.next, count, bytes_max)
        if bodies:
            begin = self.next
            self.next = begin + len(bodies)
            self._mark_done(begin, self.next)
            self.ready_bytes -= size
        return bodies, forms

    def _pass_over(self, found: list[Delivery], after: int) -> None:
        """Offsets up to `after` that have no message are done."""
        expected = self.next
        for each in found:
            offset = each[POSITION] >> self._bits
            if offset > expected:
                self._mark_done(expected, offset)
            expected = offset + 1
        if after > expected:
            self._mark_done(expected, after)

    def next_returned(self, count_max: int) -> list[int]:
        """Up to so many offsets that may be had again, in their order.

        They stay so; who does not hand them out has to `keep_returned`.
        """
        heap, returned = self._heap, self.returned
        found: list[int] = []
        while heap and len(found) < count_max and heap[0][0] <= self.next:
            offset = heapq.heappop(heap)[2]
            if offset in returned:
                found.append(offset)
        return found

    def keep_returned(self, offsets: Iterable[int]) -> None:
        """Offsets of `next_returned` were not handed out after all."""
        for offset in offsets:
            heapq.heappush(self._heap, self._place(offset))

    def _place(self, offset: int) -> tuple[int, int, int]:
        """Where one that came back stands among the others."""
        return offset, 0, offset

    def _take_returned(self, count: int, bytes_max: int, cold_ok: bool) -> list[Delivery]:
        """Messages that came back: those at the head that lie side by side."""
        while self.returned:
            wanted = self.next_returned(max(1, count))
            first = wanted[0]
            run = next((at for at, each in enumerate(wanted) if each != first + at), len(wanted))
            kept = wanted
            try:
                stretch = self.source.read(first, run, bytes_max, cold_ok)
                passed = min(max(stretch.next_offset, first + 1), first + run)
                kept = wanted[passed - first :]
            finally:
                self.keep_returned(kept)
            found: list[Delivery] = []
            gone = set(wanted[: passed - first])
            for each in stretch.found:
                offset = each[0] >> self._bits
                if offset in gone:
                    gone.remove(offset)
                    found.append((each[0], self.times.get(offset) or 1, *each[2:]))
            for offset in wanted[: passed - first]:
                del self.returned[offset]
            self.ready_bytes -= self.source.forget(wanted[: passed - first])
            for offset in gone:
                self._mark_done(offset, offset + 1)
                self.times.pop(offset, None)
            if found:
                return found
        return []

    def hold(self, found: Sequence[Delivery], handout: Handout) -> None:
        """Messages that were taken are in flight."""
        offsets = self._offsets(found)
        self.out.update(dict.fromkeys(offsets, handout))
        self.unacked_bytes += self.source.keep(offsets, found)

    def _offsets(self, found: Sequence[Delivery]) -> Sequence[int]:
        first, last = found[0][0] >> self._bits, found[-1][0] >> self._bits
        if last - first + 1 == len(found):
            return range(first, last + 1)
        return [each[0] >> self._bits for each in found]

    def claim(self, position: int, handout: Handout) -> None:
        """A message that was out when the broker stopped is out again, unless it is done."""
        offset = position >> self._bits
        while self.next <= offset < self.source.end:
            # That it was out was not recorded in time.
            found, after = self.source.read(self.next, offset - self.next + 1, READ_BYTES_MAX, True)
            after = max(after, self.next + 1)
            self._pass_over(found, after)
            for each in found:
                self._return(each[POSITION] >> self._bits, 0, counted=False)
            self.source.drop()
            self.source.keep([each[POSITION] >> self._bits for each in found], found)
            self.next = after
        if self.returned.pop(offset, None) is not None:
            self._heap = sorted(map(self._place, self.returned))
            size = self.source.size_of(offset)
            self.out[offset] = handout
            self.ready_bytes -= size
            self.unacked_bytes += size

    def release(self, positions: Sequence[int]) -> dict[Handout, int]:
        """Messages are in flight no more, and are done; how many of which hand-over were."""
        if not positions:
            return {}
        bits = self._bits
        offsets = [position >> bits for position in positions] if bits else positions
        popped: list[Any] = list(map(self.out.pop, offsets, repeat(None)))
        first = popped[0]
        count = popped.count(first)
        if first is None or count < len(popped):
            offsets = [each for each, handout in zip(offsets, popped, strict=True) if handout]
            popped = [handout for handout in popped if handout]
            if not popped:
                return {}
        if self.in_log or self.times:
            self._mark_all_done(offsets)
        self.unacked_bytes -= self.source.forget(offsets)
        return {first: count} if count == len(popped) else Counter(popped)

    def held(self, positions: Iterable[int], *, cold_ok: bool = False) -> list[Delivery]:
        """Messages that are out, read once more; `ColdError` if they have to be waited for."""
        found: list[Delivery] = []
        for position in positions:
            if position >> self._bits in self.out:
                found += self._read_one(position >> self._bits, cold_ok)
        return found

    def _read_one(self, offset: int, cold_ok: bool) -> list[Delivery]:
        """A message that was handed out before; none, if it is gone."""
        for each in self.source.read(offset, 1, 1, cold_ok).found:
            if each[POSITION] >> self._bits == offset:
                return [(each[0], self.times_of(each[0]), *each[2:])]
        return []

    def times_of(self, position: int) -> int:
        """How often a message came back."""
        return self.times.get(position >> self._bits, 0)

    def put_back(self, position: int, *, counted: bool) -> Handout | None:
        """A message that is in flight may be had again, from its place."""
        offset = position >> self._bits
        handout = self.out.pop(offset, None)
        if handout is not None:
            size = self.source.size_of(offset)
            self.unacked_bytes -= size
            self.ready_bytes += size
            self._return(offset, handout.given_ms, counted=counted)
        return handout

    def give_back(self, found: Sequence[Delivery], *, counted: bool) -> None:
        """Messages that were taken, and are not out, may be had again, from their places."""
        offsets = [each[POSITION] >> self._bits for each in found]
        for offset in offsets:
            self._return(offset, 0, counted=counted)
        self.ready_bytes += self.source.keep(offsets, found)

    def _return(self, offset: int, given_ms: int, *, counted: bool) -> None:
        self.returned[offset] = given_ms
        heapq.heappush(self._heap, self._place(offset))
        if counted:
            self.times[offset] = self.times.get(offset, 0) + 1
            if self.counts_times:
                self._times_changed[offset] = None

    def finish(self, found: Sequence[Delivery]) -> None:
        """Messages that were taken, and are not out, are done."""
        if self.in_log or self.times:
            self._mark_all_done(self._offsets(found))

    def _mark_all_done(self, offsets: Sequence[int]) -> None:
        if self.times:
            for offset in offsets:
                self.times.pop(offset, None)
        if not self.in_log:
            return
        first, end = offsets[0], offsets[-1] + 1
        run = range(first, end)
        if len(offsets) == len(run) and (offsets == run or list(offsets) == list(run)):
            self._mark_done(first, end)
        else:
            for offset in offsets:
                self._mark_done(offset, offset + 1)

    def _mark_done(self, begin: int, end: int) -> None:
        done = self._done
        if done and done[-1][1] == begin:
            done[-1][1] = end
        elif self.in_log:
            done.append([begin, end])

    def moved(self, offset: int, again: Sequence[Delivery]) -> None:
        """Copies of all messages were stored from `offset` on: the first of them are these, which
        had come back before."""
        if again:
            self.source.drop()
            self.next = offset + len(again)
            for number, each in enumerate(again, offset):
                self.times[number] = each[TIMES] - 1
                self._return(number, 0, counted=True)
            self.source.keep(range(offset, self.next), again)

    def peek(self, *, cold_ok: bool = False) -> Delivery | None:
        """The next message; `ColdError` if it has to be read from disk."""
        if self.returned:
            first = self.next_returned(1)
            self.keep_returned(first)
            return next(iter(self._read_one(first[0], cold_ok)), None)
        return self.source.peek(self.next, cold_ok)

    def browse(self, skip: int, count: int) -> list[Delivery]:
        """Messages that may be had, from one on, without taking them; it may wait for the disk."""
        found: list[Delivery] = []
        for offset in sorted(self.returned)[skip : skip + count]:
            some = self._read_one(offset, True)
            found += [(each[0], each[TIMES] or 1, *each[2:]) for each in some]
        at = self.next + max(0, skip - len(self.returned))
        while len(found) < count and at < self.source.end:
            stretch = self.source.read(at, count - len(found), READ_BYTES_MAX, True)
            found += stretch.found
            if stretch.next_offset <= at:
                break
            at = stretch.next_offset
        return found[:count]

    def purge(self) -> int:
        """All that may be had is done; how many messages that were."""
        count, end = self.ready, self.source.end
        returned = sorted(self.returned)
        if returned:
            self._mark_all_done(returned)
            self.source.forget(returned)
            self.returned.clear()
            self._heap.clear()
        if end > self.next:
            self._mark_done(self.next, end)
            self.next = end
        self.source.drop()
        self.ready_bytes = 0
        return count

    def clear(self) -> None:
        """Forget every message, and what is in flight."""
        self.purge()
        self.source.forget(list(self.out))
        self.out.clear()
        self.unacked_bytes = 0

    def handouts(self) -> Iterator[Handout]:
        """Those of the messages that are out, the oldest first."""
        return iter(self.out.values())

    # -- records -------------------------------------------------------------------------------

    def record(self, also: Iterable[int] = ()) -> dict[str, Any]:
        """What changed since the last record, and that the messages there, too, are done."""
        if self.void:
            return self.state()
        value: dict[str, Any] = {"n": self.next}
        more = [position >> self._bits for position in also]
        if self._done or more:
            value["d"] = self._merged(more)
        if self._times_changed:
            changed = sorted(each for each in self._times_changed if each in self.times)
            value["t"] = [(each, self.times[each]) for each in changed]
        value["b"] = [self.end, self.ready_bytes + self.unacked_bytes]
        return value

    def _merged(self, more: list[int]) -> list[Range]:
        if not more and len(self._done) == 1:
            return [self._done[0].copy()]
        found: list[Range] = []
        for begin, end in sorted([*self._done, *ranges_of(more)]):
            if found and found[-1][1] >= begin:
                found[-1][1] = max(found[-1][1], end)
            else:
                found.append([begin, end])
        return found

    @property
    def wants_record(self) -> bool:
        """Whether so much has come since the last record that its bytes should be written down."""
        return self.in_log and self.end - self._bytes_end >= _MEASURED_AGAIN

    def recorded(self) -> None:
        """The last `record` is in the log."""
        self._done.clear()
        self._times_changed.clear()
        self.void = False
        self._bytes_end = self.end

    def state(self) -> dict[str, Any]:
        """A record that says everything."""
        bytes_at = [self.end, self.ready_bytes + self.unacked_bytes]
        value: dict[str, Any] = {"w": 1, "n": self.next, "b": bytes_at}
        if self.out or self.returned:
            value["u"] = ranges_of([*self.out, *self.returned])
        if self.counts_times and self.times:
            value["t"] = [(each, times) for each, times in sorted(self.times.items())]
        return value

    def apply(self, value: dict[str, Any]) -> None:
        """Make a recorded change; `attach` must follow the last one. What is not done is back."""
        left = self.returned
        if "w" in value:
            left.clear()
            self.times.clear()
            for begin, end in value.get("u", ()):
                left.update(dict.fromkeys(range(begin, end), 0))
        elif self.next < value["n"]:
            at = self.next
            for begin, end in [*value.get("d", ()), [value["n"], value["n"]]]:
                if begin > at:
                    left.update(dict.fromkeys(range(at, min(begin, value["n"])), 0))
                at = max(at, end)
        for begin, end in value.get("d", ()):
            if end - begin > len(left):
                for offset in [each for each in left if begin <= each < end]:
                    del left[offset]
            else:
                for offset in range(begin, end):
                    left.pop(offset, None)
        self.next = value["n"]
        self.times.update(map(tuple, value.get("t", ())))
        self.end, self._base = value["b"]
        self._bytes_end = self.end

    def attach(self, reader: LogReader) -> bool:
        """Everything recorded was applied: put in order what follows from it.

        True if a crash has cut the queue off, so that what is known has to be recorded anew.
        """
        source = self.source = LogSource(reader, self.topic, self.queue_id)
        left = self.returned
        start, end = source.start, source.end
        is_cut = self.next > end
        for offset in [each for each in left if not start <= each < end]:
            del left[offset]
        self.next = min(max(self.next, start), end)
        self._heap = sorted(map(self._place, left))
        for offset in list(self.times):
            if offset not in left:
                del self.times[offset]
        for offset in left:
            self.times.setdefault(offset, 1)
        self._find_bytes(is_cut or self.end > end)
        self.void = is_cut
        return is_cut

    def _find_bytes(self, is_cut: bool) -> None:
        """How many bytes there are: of each that came back, and of all."""
        returned_bytes = 0
        for begin, end in ranges_of(self.returned):
            at = begin
            while at < end:
                found, after = self.source.read(at, end - at, READ_BYTES_MAX, True)
                returned_bytes += self.source.keep([each[POSITION] for each in found], found)
                if after <= at:
                    break
                at = after
        if is_cut:
            self.ready_bytes = returned_bytes
            self.end = self.next
        else:
            self.ready_bytes = self._base
            self.end = max(self.end, self.next)
        self.measure()
