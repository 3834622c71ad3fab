"""The ledger of one group in one queue, whose messages are in flight for a time: leased.

What was returned to the `back` is not handed out in its place, as others are, but between what was
in the queue then and what came later.

Ordered messages are finished in their order, as in RocketMQ: one that is acknowledged while an
earlier one is out is `early`. It is finished as soon as all before it are; but when one before it
comes back, it comes again behind that one.

    record   {"n": next, "o": [[popped, due, policy, attempt, [offsets]]], "r": [[offset, popped]],
              "b": [[offset, place, turn]], "e": [[offset, popped]], "t": [[offset, times]],
              "d": [offsets]}

A record says how the offsets that changed stand now ("o" out, "r" returned, "b" to the back, "e"
early, "d" finished; "t" how often they came back), and with "w" that everything older is void. So
applying one twice, or on top of a state that has it already, changes nothing. A policy is a number;
~number means that the message was rejected, and has yet to go where the policy says.

Invariant: `cursor` is the smallest offset that is not finished; it never passes over one.
"""

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from onelog.core.queues.ledger import Handout, Ledger
from onelog.errors import InvalidLeaseTimeError
from onelog.message import Message, NewMessage
from onelog.names import join_key, split_key

STEP_LEASES = 2_000
"""Leases that are described together: a few milliseconds."""
LEASE_MAX_MS = 3 * 86_400_000
"""As long as RocketMQ's timer can wait."""


def check_lease_time(invisible_ms: int) -> None:
    """`InvalidLeaseTimeError` unless a message can be leased for so long."""
    if not 0 <= invisible_ms <= LEASE_MAX_MS:
        raise InvalidLeaseTimeError(
            f"a message cannot be invisible for {invisible_ms} ms; 0 to {LEASE_MAX_MS} can be"
        )


Move = Callable[[str, str, Message, int], NewMessage | None]
"""What to write for a message of a group and topic that was handed out at a time; None: nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class ReturnPolicy:
    """Where messages go whose leases end without an acknowledgement; protocols have their own."""

    number: int
    """What records of leases call it."""
    in_order: bool = False
    """Whether, while one message of a queue is out, no other is handed out."""
    expired: Move | None = None
    """What to write instead of a message whose time is up; without it, that is to be had again."""
    rejected: Move | None = None
    """What to write instead of a message that was rejected; without it, that is just finished."""
    deliveries_max: int = 0
    """After so many a message that comes back is finished instead; 0: there is no limit."""
    ends_with_broker: bool = False
    """Whether a restart ends the lease, too."""


class Outcome(enum.Enum):
    """What became of a message that somebody was given."""

    DONE = enum.auto()
    RETURNED = enum.auto()
    KEPT = enum.auto()
    """It takes longer."""
    UNTOLD = enum.auto()
    """It did not get there: as if it had not been handed out."""


IN_PLACE = ReturnPolicy(1)
IN_ORDER = ReturnPolicy(2, in_order=True)
LeaseKey = tuple[str, str, int]
"""Group, topic and queue id."""
SHARED = {most: ReturnPolicy(10 + most, False, None, None, most, True) for most in range(2, 11)}
"""Of share groups, by how often a message is delivered: a member has it until the broker ends."""
_OWN_PLACE = 1 << 62
"""The turn of what stands at its own offset: behind what was put to the back there."""


def lease_key_of(key: str) -> LeaseKey:
    """What the table's key of a ledger is made of."""
    names, _, queue_id = key.rpartition("@")
    topic, group = split_key(names)
    return group, topic, int(queue_id)


class Lease(Handout):
    """What one hand-over leased: the offsets share their times, and most of their memory."""

    __slots__ = "attempt_id due_ms is_rejected left ledger number offsets policy".split()

    def __init__(
        self,
        ledger: "LeaseLedger",
        given_ms: int,
        due_ms: int,
        policy: ReturnPolicy,
        attempt_id: str | None,
        offsets: tuple[int, ...],
        *,
        is_rejected: bool = False,
    ) -> None:
        self.consumer = None
        self.ledger = ledger
        self.given_ms = given_ms
        self.due_ms = due_ms
        self.policy = policy
        self.is_rejected = is_rejected
        self.number = ~policy.number if is_rejected else policy.number
        self.attempt_id = attempt_id
        self.offsets = offsets
        self.left = len(offsets)

    @property
    def move(self) -> Move | None:
        """What becomes of its messages when its time is up."""
        return self.policy.rejected if self.is_rejected else self.policy.expired

    def still_out(self) -> list[int]:
        """The offsets that nobody has acknowledged, or leased for another time, since."""
        out = self.ledger.out
        return [offset for offset in self.offsets if out.get(offset) is self]


class LeaseLedger(Ledger):
    """The ledger of one group in one queue. It knows no clock and writes nothing."""

    __slots__ = "_order _policies _turn back changed committed early group".split()

    out: dict[int, Lease]  # type: ignore[assignment]  # Nothing else gets in.

    def __init__(
        self,
        group: str,
        topic: str,
        queue_id: int,
        policies: Mapping[int, ReturnPolicy] = MappingProxyType({}),
    ) -> None:
        super().__init__(topic, queue_id)
        self.group = group
        self._policies = policies
        """By number, as records name them."""
        self.key = f"{join_key(topic, group)}@{queue_id}"
        self.back: dict[int, tuple[int, int]] = {}
        """What was returned to the back: before which offset, and in which turn there."""
        self.early: dict[int, int] = {}
        """Offsets that were acknowledged before their turn, and when they were handed out."""
        self.committed: int | None = None
        """The position that was told to the group's cursors last."""
        self.changed: set[int] = set()
        self._order: deque[int] = deque()
        self._turn = 0

    @property
    def cursor(self) -> int:
        """The smallest offset that is not finished."""
        order, out, returned = self._order, self.out, self.returned
        while order:
            first = order[0]
            if first in out or first in returned:  # What is early is never first.
                return first
            order.popleft()
        return self.next

    @property
    def window(self) -> int:
        """How far what was handed out is ahead of what is finished."""
        return self.next - self.cursor

    @property
    def has_next_returned(self) -> bool:
        """Whether something may be had again before anything unread."""
        return bool(self._heap) and self._heap[0][0] <= self.next

    # -- changes -------------------------------------------------------------------------------

    def hand_out(self, lease: Lease, fresh_from: int, next_offset: int) -> None:
        """Lease the offsets of a hand-over; those from `fresh_from` on were never out before."""
        for offset in lease.offsets:
            self.out[offset] = lease
            if offset >= fresh_from:
                self._order.append(offset)
            else:
                self.returned.pop(offset, None)
                self.back.pop(offset, None)
        self.changed.update(lease.offsets)
        self.next = next_offset

    def lease_anew(self, offset: int, lease: Lease) -> None:
        """Put an offset that is out, or was a moment ago, under other terms."""
        self.out[offset] = lease
        self.changed.add(offset)

    def finish_one(self, offset: int) -> None:
        self.out.pop(offset, None)
        self.returned.pop(offset, None)
        self.times.pop(offset, None)
        self.changed.add(offset)
        if self.back:
            self.back.pop(offset, None)
        if self.early:
            self._finish_early(offset)

    def _finish_early(self, finished: int) -> None:
        """Those are done whose turn has come: before them there is none that is not."""
        self.early.pop(finished, None)
        order = self._order
        while order and order[0] not in self.out and order[0] not in self.returned:
            offset = order.popleft()
            if self.early.pop(offset, None) is not None:
                self.times.pop(offset, None)
                self.changed.add(offset)

    def finish_in_order(self, offset: int) -> None:
        """The message, which is out, is done when all before it are."""
        if self.cursor == offset:
            self.finish_one(offset)
        elif any(returned < offset for returned in self.returned):
            self.return_one(offset)
        else:
            self.early[offset] = self.out.pop(offset).given_ms
            self.changed.add(offset)

    def return_one(
        self, offset: int, before: int | None = None, *, is_counted: bool = True
    ) -> None:
        """The message, which is out, may be had again from its place, and what is early after it.

        A queue without order has nothing that is early. In one, the message may be put to the back
        instead: before what comes to the offset `before`, and behind those that were put there.
        One that nobody has looked at is not counted.
        """
        if before is not None:
            self._turn += 1
            self.back[offset] = (before, self._turn)
        self._return(offset, self.out.pop(offset).given_ms, counted=is_counted)
        self.changed.add(offset)
        for later in [each for each in self.early if each > offset]:
            self._return(later, self.early.pop(later), counted=True)
            self.changed.add(later)

    def _place(self, offset: int) -> tuple[int, int, int]:
        return (*self.back.get(offset, (offset, _OWN_PLACE)), offset)

    def move_to(self, offset: int) -> None:
        """Forget everything, and go on from `offset`."""
        for each in (self.out, self.returned, self.back, self.early, self.times, self.changed):
            each.clear()
        self._heap.clear()
        self._order.clear()
        self.next = offset
        self.void = True

    def cut(self, end: int) -> None:
        """Forget everything from `end` on; `settle` must follow."""
        for offset in [each for each in (*self.out, *self.returned, *self.early) if each >= end]:
            self.finish_one(offset)
        self.back = {
            each: (min(position, end), turn) for each, (position, turn) in self.back.items()
        }
        self.next = min(self.next, end)

    # -- records -------------------------------------------------------------------------------

    def record(self, also: Iterable[int] = ()) -> dict[str, Any]:
        """What changed since the last record, as it stands now."""
        if self.void:
            return {"w": 1, **self.state()}
        value = self._describe(sorted(self.changed))
        done = [each for each in self.changed if each not in self.out and each not in self.returned]
        if self.early:
            done = [each for each in done if each not in self.early]
        if done:
            value["d"] = sorted(done)
        return value

    def recorded(self) -> None:
        """The last `record` is in the log."""
        self.changed.clear()
        self.void = False

    def state(self) -> dict[str, Any]:
        """A record that says everything."""
        return self._describe(sorted([*self.out, *self.returned, *self.early]))

    def state_in_steps(self) -> Iterator[dict[str, Any] | list[bytes] | None]:
        """`state`, after a None for each step on the way to that of many leases.

        That is the text of it, in pieces. What changes between two steps is in it as it was or as
        it is.
        """
        offsets = sorted([*self.out, *self.returned, *self.early])
        if len(offsets) <= STEP_LEASES:
            yield self._describe(offsets)
            return
        text = [b'{"n":%d' % self.next]
        lists: dict[str, list[bytes]] = {}
        for at in range(0, len(offsets), STEP_LEASES):
            for name, some in self._describe(offsets[at : at + STEP_LEASES]).items():
                if name != "n":
                    begin = b"," if name in lists else b',"%b":[' % name.encode()
                    pieces = lists.setdefault(name, [])
                    pieces += [begin, msgspec.json.encode(some)[1:-1]]
            yield None
        for pieces in lists.values():
            text += [*pieces, b"]"]
        yield [*text, b"}"]

    def _describe(self, offsets: Sequence[int]) -> dict[str, Any]:
        value: dict[str, Any] = {"n": self.next}
        # Hand-overs of the same moment are one in the record, and one after a restart.
        leased: dict[tuple[int, int, int, str | None], list[int]] = {}
        out = self.out
        for offset in offsets:
            each = out.get(offset)
            if each is not None:
                terms = (each.given_ms, each.due_ms, each.number, each.attempt_id)
                same = leased.get(terms)
                if same is None:
                    leased[terms] = [offset]
                else:
                    same.append(offset)
        if leased:
            value["o"] = [(*terms, some) for terms, some in leased.items()]
        returned, times = self.returned, self.times
        if returned and (back := [(each, returned[each]) for each in offsets if each in returned]):
            value["r"] = back
            if self.back and (
                behind := [(each, *self.back[each]) for each in offsets if each in self.back]
            ):
                value["b"] = behind
        early = self.early
        if early and (done := [(each, early[each]) for each in offsets if each in early]):
            value["e"] = done
        if times and (counted := [(each, times[each]) for each in offsets if each in times]):
            value["t"] = counted
        return value

    def apply(self, value: dict[str, Any]) -> None:
        """Make a recorded change; `settle` must follow the last one."""
        if "w" in value:
            self.move_to(0)
        self.next = value["n"]
        for given_ms, due_ms, number, attempt_id, offsets in value.get("o", ()):
            known = max(number, ~number)
            policy = self._policies.get(known) or ReturnPolicy(known)
            lease = Lease(
                self, given_ms, due_ms, policy, attempt_id, tuple(offsets), is_rejected=number < 0
            )
            for offset in offsets:
                self.out[offset] = lease
                self.returned.pop(offset, None)
                self.back.pop(offset, None)
                self.early.pop(offset, None)
        for offset, given_ms in value.get("r", ()):
            self.out.pop(offset, None)
            self.early.pop(offset, None)
            self.back.pop(offset, None)
            self.returned[offset] = given_ms
        for offset, position, turn in value.get("b", ()):
            self.back[offset] = (position, turn)
        for offset, given_ms in value.get("e", ()):
            self.out.pop(offset, None)
            self.returned.pop(offset, None)
            self.early[offset] = given_ms
        self.times.update(map(tuple, value.get("t", ())))
        for offset in value.get("d", ()):
            self.finish_one(offset)

    def settle(self) -> None:
        """Everything recorded was applied: put in order what follows from it."""
        self.changed.clear()
        self.void = False
        by_lease: dict[Lease, list[int]] = {}
        for offset, lease in self.out.items():
            by_lease.setdefault(lease, []).append(offset)
        for lease, offsets in by_lease.items():
            lease.offsets = tuple(sorted(offsets))
            lease.left = len(offsets)
        self._heap = sorted(map(self._place, self.returned))
        self._turn = max((turn for _, turn in self.back.values()), default=0)
        self._order = deque(sorted([*self.out, *self.returned, *self.early]))
