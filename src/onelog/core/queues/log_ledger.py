"""Messages of a durable queue: entries of a queue of its topic, and which of them are done.

A ledger goes through its queue once. What a consumer was given is out, also what came back and was
given again; what is neither out nor back, and lies before `next`, is done. Messages that have just
been stored are kept at hand (`hot`) for consumers who keep up, and are never read back.

    record    "n": next     all before was delivered, or is done
              "d": [[begin, end], ...]   what was done since the last record
              "t": [[offset, times], ...] how often messages came back, where that is limited
              "b": [end, bytes]   payload of all that is not done, before `end`
              "w": 1        forget what earlier records say; then "u" is what is not done before n

So deliveries are not recorded one by one: who delivered last is told by `next`, and after a restart
everything before it that is not done comes again, as redelivered.

Invariant: every offset before `next` is in `out` or in `returned`, or is done.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

from onelog.core.queues.deliveries import BODY, POSITION, SIZE, Delivery
from onelog.core.queues.log_supply import Entries, LogSupply, Stretch
from onelog.core.queues.memory_ledger import Handover
from onelog.message import NewMessage, NewRun
from onelog.names import join_key, split_key

TABLE = "shelves"
"""Its name in the log since 0.1; stores have records of it."""
HOT_MAX, HOT_BYTES_MAX = 1_024, 1 << 20
"""Messages of a queue that are kept at hand."""
HOT_BYTES_OF_ALL = 2 << 20
"""Bytes that all queues keep at hand together, before each is content with a few."""
_HOT_BYTES_MIN = 2 << 10
_READ_BYTES_OF_ALL, _READ_BYTES_MIN = 16 << 20, 16 << 10
"""The same for what is read back: of little at a time each message would cost more."""
_MESSAGE_BYTES = 200
"""What a message at hand costs beside its record's body."""
_MEASURED_AGAIN = 1_000
"""Messages after which it is recorded how many bytes a queue has, though nothing else changed."""
_POSITION_BITS = 16

Range = list[int]
"""The first offset, and the one behind the last."""
Stored = tuple[int, int, int, int, Entries]
"""The first offset of messages, how many of them are at hand, what that costs, when they came."""
Held = tuple[int, Handover]
"""The payload bytes of a message that is out, and to whom it went."""


def ledger_key(ledger: "LogLedger") -> str:
    """The table's key of a ledger."""
    return ledger.key


def ledger_of(key: str) -> "LogLedger":
    """The ledger of a table's key, as it is before any record."""
    topic, queue_id = split_key(key)
    return LogLedger(topic, int(queue_id))


def ranges_of(offsets: Iterable[int]) -> list[Range]:
    found: list[Range] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1][1] = offset + 1
        else:
            found.append([offset, offset + 1])
    return found


def _costs(found: Sequence[Delivery]) -> int:
    """The bytes that messages take in memory."""
    return sum([len(each[BODY]) for each in found]) + _MESSAGE_BYTES * len(found)


class LogLedger:
    """One queue of the topic that a durable queue is; of those with priorities, one per level."""

    __slots__ = (
        "_base _bits _bytes_end _done _fresh _hot_bytes _hot_end _level _times_changed "
        "counts_times end hot in_log is_dirty is_wanted key next out queue_id ready_bytes "
        "returned returned_bytes supply times topic unacked_bytes void"
    ).split()

    def __init__(self, topic: str, queue_id: int) -> None:
        self.in_log = True
        self.topic = topic
        self.queue_id = queue_id
        self.key = join_key(topic, str(queue_id))
        self.supply: LogSupply | None = None
        self.next = 0
        self.end = 0
        """Where the queue ends, as far as this ledger was told."""
        self.out: dict[int, Held] = {}
        self.returned: list[int] = []
        self.returned_bytes: dict[int, int] = {}
        """Of each message that came back its bytes."""
        self.times: dict[int, int] = {}
        self.counts_times = False
        """Whether it is recorded how often messages came back."""
        # Lists, and no deques, which take ten times as much while there is nothing in them.
        self.hot: list[Delivery] = []
        self._fresh: list[Stored] = []
        """What follows those at hand, as it was stored; few consumers need more of it."""
        self._hot_bytes = self._hot_end = 0
        self.is_wanted = False
        """Whether there are consumers for whom messages are kept at hand."""
        self.ready_bytes = 0
        self.unacked_bytes = 0
        self.is_dirty = False
        self.void = False
        self._done: list[Range] = []
        self._times_changed: dict[int, None] = {}
        self._bytes_end = 0
        self._base = 0
        """Bytes of what is not done, before `_bytes_end`, by the last record."""
        self._bits = self._level = 0

    # -- what there is -------------------------------------------------------------------------

    def number(self) -> None:
        """The queue has several ledgers: a place says which of them."""
        self._bits, self._level = _POSITION_BITS, self.queue_id

    def _position(self, offset: int) -> int:
        return offset << self._bits | self._level

    def _offset(self, position: int) -> int:
        return position >> self._bits

    @property
    def at_hand(self) -> int:
        """How many messages need not be read from the log."""
        return self._hot_end - self.next if self._hot_bytes else 0

    @property
    def _visible_end(self) -> int:
        """Where what may be had ends: what replicas have not confirmed is not there yet."""
        assert self.supply is not None
        return self.supply.store.max_offset(self.topic, self.queue_id)

    @property
    def ready(self) -> int:
        """How many messages may be had."""
        return max(0, self._visible_end - self.next) + len(self.returned)

    @property
    def cursor(self) -> int:
        """The first message that is not done."""
        first = min(self.out, default=self.next)
        return min(first, self.returned[0]) if self.returned else first

    def entered(
        self, messages: Sequence[NewMessage | NewRun], offset: int, now_ms: int
    ) -> tuple[int, bool]:
        """Messages were stored, with their entries from `offset` on.

        How many that are, and whether one of them says itself when it expires.
        """
        assert self.supply is not None
        if offset != self.end:
            self.measure(offset)
        entries = self.supply.entries(messages)
        self.end = offset + entries.total
        self.ready_bytes += entries.size
        if (
            self.is_wanted
            and entries.are_plain
            and offset == (self._hot_end if self._hot_bytes else self.next)
        ):
            count = len(entries.bodies)
            size = entries.body_bytes + _MESSAGE_BYTES * count
            hot_bytes = self._hot_bytes + size
            if offset - self.next + count > HOT_MAX or (
                hot_bytes > _HOT_BYTES_MIN and hot_bytes > self._hot_bytes_max
            ):
                count, size = self._some(entries.bodies, HOT_MAX - offset + self.next)
            if count:
                self._fresh.append((offset, count, size, now_ms, entries))
                self._hot_end = offset + count
                self._heat(size)
        return entries.total, entries.expires

    def _some(self, bodies: list[bytes], count_max: int) -> tuple[int, int]:
        """How many of these messages, from the first on, can be kept at hand, and their bytes."""
        room, size = self._hot_bytes_max - self._hot_bytes, 0
        count = 0
        for body in bodies[: max(0, count_max)]:
            if size >= room:
                break
            size += len(body) + _MESSAGE_BYTES
            count += 1
        return count, size

    def cool(self) -> None:
        """Nobody wants messages now."""
        self.is_wanted = False
        self._drop_hot()

    def _thaw(self, count: int) -> None:
        """Have so many at hand as deliveries, if there are any as they were stored."""
        bits, level, fresh = self._bits, self._level, self._fresh
        while fresh and len(self.hot) < count:
            offset, some, _, now_ms, entries = fresh.pop(0)
            first = offset << bits | level
            self.hot.extend(
                zip(
                    range(first, first + (some << bits), 1 << bits),
                    repeat(0),
                    entries.bodies,
                    entries.forms,
                    repeat(now_ms),
                    entries.payloads,
                    strict=False,
                )
            )

    def _drop_hot(self) -> None:
        self.hot.clear()
        self._fresh.clear()
        self._heat(-self._hot_bytes)

    def _heat(self, bytes_more: int) -> None:
        assert self.supply is not None
        self._hot_bytes += bytes_more
        self.supply.hot_bytes += bytes_more

    @property
    def _hot_bytes_max(self) -> int:
        assert self.supply is not None
        return HOT_BYTES_MAX if self.supply.hot_bytes < HOT_BYTES_OF_ALL else _HOT_BYTES_MIN

    def measure(self, end: int | None = None) -> None:
        """Learn how many bytes the messages have that nobody has told of."""
        assert self.supply is not None
        end = self._visible_end if end is None else end
        at = self.end
        if at > end:
            self.end = end
            return
        while at < end:
            size, after = self.supply.measure(self.topic, self.queue_id, at, end)
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
        count = min(count, self._visible_end - self.next)
        if count <= 0:
            return []
        self._thaw(count)
        if not self.hot:
            self._read_ahead(cold_ok)
        found, size = self._taken(count, bytes_max)
        if found:
            begin = self._offset(found[0][POSITION])
            after = self._offset(found[-1][POSITION]) + 1
            if after - self.next != len(found):
                self._pass_over(begin, found)
            self.next = after
            self.ready_bytes -= size
            self._heat(-_costs(found) if self.hot or self._fresh else -self._hot_bytes)
        return found

    def _taken(self, count: int, bytes_max: int) -> tuple[list[Delivery], int]:
        """Of those at hand the first ones, and their bytes."""
        found = self.hot[:count]
        size = sum([each[SIZE] for each in found])
        while size > bytes_max and len(found) > 1:
            size -= found.pop()[SIZE]
        del self.hot[: len(found)]
        return found, size

    def pass_on(self, count: int, bytes_max: int) -> tuple[Sequence[bytes], Sequence[int]]:
        """`take` and `finish` of messages that were just stored, without a delivery of each.

        Their bodies and forms; none, if they have to be taken.
        """
        bodies: list[bytes] = []
        forms: list[int] = []
        fresh, begin = self._fresh, self.next
        if not fresh or self.hot or self.returned or fresh[0][0] != begin:
            return bodies, forms
        count = min(count, self._visible_end - begin)
        while fresh and len(bodies) + fresh[0][1] <= count:
            _, some, size, _, entries = fresh[0]
            bytes_max -= entries.body_bytes
            if bytes_max < 0 or some != len(entries.bodies):
                break
            del fresh[0]
            bodies = bodies + entries.bodies if bodies else entries.bodies
            forms = forms + entries.forms if forms else entries.forms
            self.ready_bytes -= entries.size
            self._heat(-size)
        if bodies:
            self.next = begin + len(bodies)
            self._mark_done(begin, self.next)
        return bodies, forms

    def _pass_over(self, begin: int, found: list[Delivery]) -> None:
        """Offsets between these have no message: they are done."""
        expected = self.next
        for each in found:
            offset = self._offset(each[POSITION])
            if offset > expected:
                self._mark_done(expected, offset)
            expected = offset + 1

    def _read_ahead(self, cold_ok: bool) -> None:
        assert self.supply is not None
        has_room = self.supply.hot_bytes < _READ_BYTES_OF_ALL
        bytes_max = HOT_BYTES_MAX if has_room else _READ_BYTES_MIN
        found, next_offset = self._read(self.next, HOT_MAX, bytes_max, cold_ok)
        if not found and next_offset > self.next:
            self._mark_done(self.next, next_offset)
            self.next = next_offset
        if found:
            self.hot.extend(found)
            self._hot_end = self._offset(found[-1][POSITION]) + 1
            self._heat(_costs(found))

    def _read(self, offset: int, count: int, bytes_max: int, cold_ok: bool) -> Stretch:
        assert self.supply is not None
        stretch = self.supply.read(
            self.topic, self.queue_id, offset, count, bytes_max, cold_ok=cold_ok
        )
        if self._bits:
            found = [(self._position(each[0]), *each[1:]) for each in stretch.found]
            return Stretch(found, stretch.next_offset)
        return stretch

    def _take_returned(self, count: int, bytes_max: int, cold_ok: bool) -> list[Delivery]:
        """Messages that came back: those at the head that lie side by side."""
        returned = self.returned
        while returned:
            first = returned[0]
            wanted = [first]
            if len(returned) > 1 and count > 1:
                near = heapq.nsmallest(min(count, len(returned)), returned)
                for number, offset in enumerate(near):
                    if offset != first + number:
                        break
                wanted = [each for number, each in enumerate(near) if each == first + number]
            stretch = self._read(first, len(wanted), bytes_max, cold_ok)
            found = [
                each
                for each in stretch.found
                if self._offset(each[POSITION]) in self.returned_bytes
                and self._offset(each[POSITION]) <= wanted[-1]
            ]
            passed = max(stretch.next_offset, first + 1)
            for _ in range(len(wanted)):
                if returned and returned[0] < passed and returned[0] <= wanted[-1]:
                    offset = heapq.heappop(returned)
                    self.ready_bytes -= self.returned_bytes.pop(offset)
            gone = {each for each in wanted if each < passed}
            gone.difference_update(self._offset(each[POSITION]) for each in found)
            for offset in gone:
                self._mark_done(offset, offset + 1)
                self.times.pop(offset, None)
            if found:
                times = self.times
                return [
                    (each[0], times.get(self._offset(each[0])) or 1, *each[2:]) for each in found
                ]
        return []

    def hold(self, found: Sequence[Delivery], handover: Handover) -> None:
        """Messages that were taken are out."""
        bits = self._bits
        self.out.update({each[0] >> bits: (each[5], handover) for each in found})
        self.unacked_bytes += sum([each[5] for each in found])

    def claim(self, position: int, handover: Handover) -> None:
        """A message that was out when the broker stopped is out again, unless it is done."""
        offset = self._offset(position)
        while self.next <= offset < self._visible_end:
            # That it was out was not recorded in time.
            found, after = self._read(self.next, offset - self.next + 1, HOT_BYTES_MAX, True)
            if found:
                self._pass_over(self._offset(found[0][POSITION]), found)
            for each in found:
                self._return(self._offset(each[POSITION]), each[SIZE], False)
            self._drop_hot()
            self.next = max(after, self.next + 1)
        size = self.returned_bytes.pop(offset, None)
        if size is not None:
            self.returned.remove(offset)
            heapq.heapify(self.returned)
            self.out[offset] = (size, handover)
            self.ready_bytes -= size
            self.unacked_bytes += size

    def release(self, positions: Iterable[int]) -> dict[Handover, int]:
        """Messages are out no more, and are done; how many of which hand-over were."""
        bits, pop = self._bits, self.out.pop
        offsets = [position >> bits for position in positions]
        popped = [pop(offset, None) for offset in offsets]
        if None in popped:
            offsets = [each for each, held in zip(offsets, popped, strict=True) if held]
        found = [held for held in popped if held]
        if not found:
            return {}
        first, end = offsets[0], offsets[-1] + 1
        if end - first == len(offsets) and offsets == list(range(first, end)):
            self._mark_done(first, end)
        else:
            for offset in offsets:
                self._mark_done(offset, offset + 1)
        if self.times:
            for offset in offsets:
                self.times.pop(offset, None)
        self.unacked_bytes -= sum([size for size, _ in found])
        return Counter([handover for _, handover in found])

    def held(self, positions: Iterable[int], *, cold_ok: bool = False) -> list[Delivery]:
        """Messages that are out, read once more; `ColdError` if they have to be waited for."""
        found: list[Delivery] = []
        for offset in map(self._offset, positions):
            if offset in self.out:
                some = self._read(offset, 1, 1, cold_ok).found
                times = self.times.get(offset, 0)
                found += [
                    (each[0], times, *each[2:])
                    for each in some
                    if self._offset(each[POSITION]) == offset
                ]
        return found

    def times_of(self, position: int) -> int:
        """How often a message came back."""
        return self.times.get(self._offset(position), 0)

    def put_back(self, position: int, *, counted: bool) -> tuple[Handover, int] | None:
        """A message that is out may be had again, from its place; how often it came back now."""
        offset = self._offset(position)
        held = self.out.pop(offset, None)
        if held is None:
            return None
        self.unacked_bytes -= held[0]
        self.ready_bytes += held[0]
        return held[1], self._return(offset, held[0], counted)

    def give_back(self, found: Iterable[Delivery], *, counted: bool) -> None:
        """Messages that were taken, and are not out, may be had again, from their places."""
        for each in found:
            self.ready_bytes += each[SIZE]
            self._return(self._offset(each[POSITION]), each[SIZE], counted)

    def _return(self, offset: int, size: int, counted: bool) -> int:
        heapq.heappush(self.returned, offset)
        self.returned_bytes[offset] = size
        times = self.times.get(offset, 0) + counted
        self.times[offset] = times
        if self.counts_times and counted:
            self._times_changed[offset] = None
        return times

    def finish(self, found: Sequence[Delivery]) -> None:
        """Messages that were taken, and are not out, are done."""
        first, last = self._offset(found[0][POSITION]), self._offset(found[-1][POSITION])
        if last - first + 1 == len(found) and not self.times:
            self._mark_done(first, last + 1)
            return
        for each in found:
            offset = self._offset(each[POSITION])
            self._mark_done(offset, offset + 1)
            if self.times:
                self.times.pop(offset, None)

    def _mark_done(self, begin: int, end: int) -> None:
        done = self._done
        if done and done[-1][1] == begin:
            done[-1][1] = end
        else:
            done.append([begin, end])

    def moved(self, offset: int, again: Sequence[tuple[int, int]]) -> None:
        """Copies of all messages were stored from `offset` on: the first of them came back.

        Of each of those, how often, and its bytes.
        """
        if not again:
            return
        self._drop_hot()
        for number, (times, size) in enumerate(again, offset):
            heapq.heappush(self.returned, number)
            self.returned_bytes[number] = size
            self.times[number] = times
            if self.counts_times:
                self._times_changed[number] = None
        self.next = offset + len(again)

    def peek(self, *, cold_ok: bool = False) -> Delivery | None:
        """The next message; `ColdError` if it has to be read from disk."""
        if self.returned:
            first = self.returned[0]
            for each in self._read(first, 1, 1, cold_ok).found:
                if self._offset(each[POSITION]) == first:
                    return each
            return None
        if self.next >= self._visible_end:
            return None
        self._thaw(1)
        if not self.hot:
            if not self.is_wanted:
                return next(iter(self._read(self.next, 1, 1, cold_ok).found), None)
            self._read_ahead(cold_ok)
        return self.hot[0] if self.hot else None

    def browse(self, skip: int, count: int) -> list[Delivery]:
        """Messages that may be had, from one on, without taking them; it may wait for the disk."""
        found: list[Delivery] = []
        behind = sorted(self.returned)[skip : skip + count]
        for offset in behind:
            found += self._read(offset, 1, 1, True).found[:1]
        at = self.next + max(0, skip - len(self.returned))
        while len(found) < count and at < self._visible_end:
            stretch = self._read(at, count - len(found), HOT_BYTES_MAX, True)
            found += stretch.found
            if stretch.next_offset <= at:
                break
            at = stretch.next_offset
        return found[:count]

    def purge(self) -> int:
        """All that may be had is done; how many messages that were."""
        count = self.ready
        for begin, end in ranges_of(self.returned):
            self._mark_done(begin, end)
        for offset in self.returned:
            self.times.pop(offset, None)
        self.returned.clear()
        self.returned_bytes.clear()
        end = self._visible_end
        if end > self.next:
            self._mark_done(self.next, end)
            self.next = end
        self._drop_hot()
        self.ready_bytes = 0
        return count

    def handovers(self) -> Iterator[Handover]:
        """Those of the messages that are out, the oldest first."""
        return (handover for _, handover in self.out.values())

    # -- records -------------------------------------------------------------------------------

    def record(self, also: Iterable[int] = ()) -> dict[str, Any]:
        """What changed since the last record, and that the messages there, too, are done."""
        if self.void:
            return self.state()
        value: dict[str, Any] = {"n": self.next}
        more = [self._offset(position) for position in also]
        if self._done or more:
            value["d"] = self._merged(more)
        if self._times_changed:
            changed = sorted(each for each in self._times_changed if each in self.times)
            value["t"] = [(each, self.times[each]) for each in changed]
        value["b"] = [self.end, self._unfinished_bytes()]
        return value

    def _merged(self, more: list[int]) -> list[Range]:
        if not more and len(self._done) == 1:
            return [self._done[0].copy()]
        ranges = sorted([*self._done, *ranges_of(more)])
        found: list[Range] = []
        for begin, end in ranges:
            if found and found[-1][1] >= begin:
                found[-1][1] = max(found[-1][1], end)
            else:
                found.append([begin, end])
        return found

    def _unfinished_bytes(self) -> int:
        return self.ready_bytes + self.unacked_bytes

    @property
    def wants_record(self) -> bool:
        """Whether so much has come since the last record that its bytes should be written down."""
        return self.end - self._bytes_end >= _MEASURED_AGAIN

    def recorded(self) -> None:
        """The last `record` is in the log."""
        self._done.clear()
        self._times_changed.clear()
        self.void = False
        self._bytes_end = self.end

    def state(self) -> dict[str, Any]:
        """A record that says everything."""
        bytes_at = [self.end, self._unfinished_bytes()]
        value: dict[str, Any] = {"w": 1, "n": self.next, "b": bytes_at}
        if self.out or self.returned:
            value["u"] = ranges_of([*self.out, *self.returned])
        if self.counts_times and self.times:
            value["t"] = [(each, times) for each, times in sorted(self.times.items())]
        return value

    def apply(self, value: dict[str, Any]) -> None:
        """Make a recorded change; `settle` must follow the last one. What is not done is back."""
        left = self.returned_bytes
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

    def settle(self, supply: LogSupply) -> bool:
        """Everything recorded was applied: put in order what follows from it.

        True if a crash has cut the queue off, so that what is known has to be recorded anew.
        """
        self.supply = supply
        store, left = supply.store, self.returned_bytes
        start = store.min_offset(self.topic, self.queue_id)
        end = self._visible_end
        is_cut = self.next > end
        for offset in [each for each in left if not start <= each < end]:
            del left[offset]
        self.next = min(max(self.next, start), end)
        self.returned = sorted(left)
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
        assert self.supply is not None
        for begin, end in ranges_of(self.returned):
            at = begin
            while at < end:
                stretch = self._read(at, end - at, HOT_BYTES_MAX, True)
                for each in stretch.found:
                    offset = self._offset(each[POSITION])
                    if offset in self.returned_bytes:
                        self.returned_bytes[offset] = each[SIZE]
                if stretch.next_offset <= at:
                    break
                at = stretch.next_offset
        if is_cut:
            self.ready_bytes = sum(self.returned_bytes.values())
            self.end = self.next
        else:
            self.ready_bytes = self._base
            self.end = max(self.end, self.next)
        self.measure()
