"""What must hold after every step, whatever has failed.

The bytes that count are kept here: what any node once held for settled (confirmed by the set, or
flushed where there is no set) is so for ever, and the same everywhere. From these bytes alone, read
record by record, the queues are built a second time; acknowledgements, reads and tables are
compared with that, and not with what a node says.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from onelog.message import Appended, Message
from onelog.names import TABLES_TOPIC
from onelog.record.decode import Blank, check
from onelog.record.dispatch import is_dispatched
from onelog.record.layout import MAGIC_START
from tests.simulation.kernel import BrokenError

TIMED_TOPIC = "timed"
OWN = (b"s", b"b", b"t", b"h")
"""What bodies of clients begin with: sends, batches, timed and half messages."""


Place = tuple[str, int, int]
"""A topic, a queue, and an offset in it."""


class Replica(Protocol):
    """What is asked of a node."""

    name: str
    checked: int
    """Up to where its log was compared since it started."""

    def settled(self) -> int:
        """Up to where its log may never change any more."""
        ...

    def log_end(self) -> int:
        """Where its log ends."""
        ...

    def bytes_at(self, log_offset: int, size: int) -> memoryview:
        """Bytes of its log, up to the end of a segment at most."""
        ...


@dataclass(eq=False)
class Settled:
    """The log that counts, and the queues that come of it."""

    segment_bytes: int
    may_be_damaged: bool = False
    """A torn write that nobody was told of may stay where no other node has the same log."""
    damages: int = 0
    log: bytearray = field(default_factory=bytearray)
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    places: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    """By log offset, the topic and body of each record of a client."""
    counts: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    copies: dict[bytes, tuple[Place, int]] = field(default_factory=dict)
    """Of what came back because its time was up: the last copy, and how often it came by then."""
    forked: set[bytes] = field(default_factory=set)
    """Of which a torn write has made two copies; each has its own life."""
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The tables as their records have them, but for those whose entries are merged."""
    _parsed: int = 0
    _unrecorded: set[bytes] = field(default_factory=set)
    """Timed messages that were delivered, while it is not recorded that they were."""

    def compare(self, node: Replica, upto: int, *, may_grow: bool) -> None:
        """The node's log must be this one up to there; what is new becomes a part of it."""
        at = node.checked
        while at < upto:
            room = self.segment_bytes - at % self.segment_bytes
            known = len(self.log) - at
            if known <= 0 and not may_grow:
                break
            size = min(room, upto - at, known if known > 0 else room)
            found = node.bytes_at(at, size)
            if len(found) != size:
                raise BrokenError(f"{node.name} has {len(found)} of {size} bytes at {at}")
            if known <= 0:
                self.log += found
            elif found != memoryview(self.log)[at : at + size]:
                raise BrokenError(f"{node.name}: {self._difference(found, at)}")
            at += size
        node.checked = max(node.checked, at)
        self._parse()

    def _difference(self, found: memoryview, at: int) -> str:
        mine = memoryview(self.log)[at : at + len(found)]
        first = next(n for n in range(len(found)) if found[n] != mine[n])
        return (
            f"its log differs at {at + first} from what was settled: {bytes(found[first:][:40])!r}"
            f" where {bytes(mine[first:][:40])!r} was"
        )

    def _parse(self) -> None:
        view = memoryview(bytes(self.log[self._parsed :]))
        at = 0
        while at < len(view):
            place = self._parsed + at
            room = self.segment_bytes - place % self.segment_bytes
            found = check(view, at, place, room=room)
            if isinstance(found, Message):
                self._enter(found)
                at += found.size
            elif isinstance(found, Blank):
                at += found.size
            else:
                after = self._next_record(view, at)
                if after is None:
                    break
                if not self.may_be_damaged:
                    raise BrokenError(f"the settled log is damaged at {place}: {found}")
                self.damages += 1
                at = after
        self._parsed += at

    def _next_record(self, view: memoryview, at: int) -> int | None:
        """Behind what a loss of power has torn, if something whole is there."""
        data = bytes(view)
        magic = data.find(MAGIC_START, at + 5)
        while magic >= 0:
            place = self._parsed + magic - 4
            room = self.segment_bytes - place % self.segment_bytes
            if isinstance(check(view, magic - 4, place, room=room), Message):
                return magic - 4
            magic = data.find(MAGIC_START, magic + 1)
        return None

    def _enter(self, message: Message) -> None:
        body = bytes(message.body)
        topic = message.topic
        if is_dispatched(message.sys_flag):
            queue = self.queues.setdefault((topic, message.queue_id), [])
            if self.damages:
                queue += [b""] * (message.queue_offset - len(queue))
            if message.queue_offset != len(queue):
                raise BrokenError(
                    f"the record at {message.log_offset} is number {message.queue_offset} of queue"
                    f" {message.queue_id} of {topic}, which has {len(queue)}"
                )
            queue.append(body)
        if topic == TABLES_TOPIC:
            self._apply(body)
        elif body[:1] in OWN:
            if topic.startswith("%RETRY%"):
                copy = (topic, message.queue_id, int(message.queue_offset))
                if self.copies.get(body, (copy, -1))[1] >= message.reconsume_times:
                    self.forked.add(body)
                self.copies[body] = (copy, message.reconsume_times)
            self.places[int(message.log_offset)] = (topic, body)
            self._count(topic, body)

    def _apply(self, body: bytes) -> None:
        for table, key, value in msgspec.json.decode(body):
            entries = self.tables.setdefault(table, {})
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
            if table == "timers":
                self._unrecorded.clear()

    def _count(self, topic: str, body: bytes) -> None:
        if topic.startswith(("%", "onelog_", "rmq_", "RMQ_", "SCHEDULE", "TRANS")):
            return
        self.counts[topic, body] += 1
        if self.counts[topic, body] > 1 and body not in self._unrecorded:
            raise BrokenError(f"{body[:16]!r} is {self.counts[topic, body]} times in {topic}")
        if topic == TIMED_TOPIC:
            self._unrecorded.add(body)


@dataclass(eq=False)
class Promises:
    """What clients were told, and may rely on."""

    settled: Settled
    sent: dict[bytes, tuple[str, int, int]] = field(default_factory=dict)
    """By body: topic, queue, and offset in it."""
    timed: dict[bytes, int] = field(default_factory=dict)
    """By body, when it is due at the earliest, by the clock of whoever took it."""
    committed: set[bytes] = field(default_factory=set)
    rolled_back: set[bytes] = field(default_factory=set)
    done: dict[bytes, tuple[set[Place], int]] = field(default_factory=dict)
    """Bodies that a consumer has acknowledged, and was told so: where, and the log's end then."""
    positions: dict[tuple[str, str, int], int] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    incarnations: set[tuple[int, int]] = field(default_factory=set)
    """Ids and epochs of producers: each is one producer's."""
    strict: bool = True
    """Whether what is acknowledged must be settled by then."""
    gated: bool = False
    """Whether what is read must be, too."""

    def was_sent(self, body: bytes, topic: str, queue_id: int, place: Appended) -> None:
        """A sender was told where its message is."""
        self.is_there(body, int(place.log_offset))
        self.sent[body] = (topic, queue_id, int(place.queue_offset))

    def was_taken_over(self, incarnation: tuple[int, int]) -> None:
        """A producer was told its id and epoch, which nobody else ever had."""
        if incarnation in self.incarnations and self.strict:
            raise BrokenError(f"{incarnation} was given to two producers")
        self.incarnations.add(incarnation)

    def is_there(self, body: bytes, log_offset: int) -> None:
        """What is acknowledged is settled."""
        if self.strict:
            found = self.settled.places.get(log_offset)
            if found is None or found[1] != body:
                raise BrokenError(
                    f"{body[:16]!r} was acknowledged at {log_offset}, where the settled log "
                    f"(up to {len(self.settled.log)}) has {found}"
                )

    def was_read(self, topic: str, queue_id: int, offset: int, body: bytes) -> None:
        """Nobody reads what might be gone later."""
        if self.gated:
            queue = self.settled.queues.get((topic, queue_id), [])
            known = queue[offset] if offset < len(queue) else None
            if known != body:
                raise BrokenError(
                    f"{body[:16]!r} was read at {offset} of queue {queue_id} of {topic}, where the "
                    f"settled log has {known and known[:16]!r}"
                )
        if body in self.rolled_back and self.strict:
            raise BrokenError(f"{body[:16]!r} was read, though it was rolled back")

    def was_done(self, body: bytes, place: Place, log_end: int) -> None:
        """A consumer was told that its acknowledgement is kept."""
        if self.settled.copies.get(body, (place, 0))[0] != place:
            self.settled.forked.add(body)
        places, first_end = self.done.get(body, (set(), log_end))
        self.done[body] = ({*places, place}, min(first_end, log_end))

    def was_leased(self, body: bytes, place: Place, log_offset: int) -> None:
        """Nobody gets what was acknowledged, nor a copy that was made after that."""
        if body in self.done and self.strict:
            places, log_end = self.done[body]
            is_later = log_offset >= log_end and body not in self.settled.forked
            if place in places or is_later:
                raise BrokenError(f"{body[:16]!r} was handed out again after its acknowledgement")
        if body in self.rolled_back and self.strict:
            raise BrokenError(f"{body[:16]!r} was handed out, though it was rolled back")

    def all_kept(self) -> None:
        """When everything is well again: each promise is in the settled log."""
        queues, counts = self.settled.queues, self.settled.counts
        for body, (topic, queue_id, offset) in self.sent.items():
            queue = queues.get((topic, queue_id), [])
            if offset >= len(queue) or queue[offset] != body:
                raise BrokenError(f"{body[:16]!r} was acknowledged, and is lost")
        for body in self.committed:
            if counts["orders", body] != 1:
                raise BrokenError(
                    f"{body[:16]!r} was committed, and is {counts['orders', body]} times"
                )
        for body in self.rolled_back:
            if counts["orders", body]:
                raise BrokenError(f"{body[:16]!r} was rolled back, and is there")

    def timed_are_delivered(self, now_ms: int) -> None:
        """All that are long due have come."""
        for body, due_ms in self.timed.items():
            if due_ms < now_ms and not self.settled.counts[TIMED_TOPIC, body]:
                raise BrokenError(
                    f"{body[:16]!r} was due at {due_ms}, and has not come by {now_ms}"
                )
