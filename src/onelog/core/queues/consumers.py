"""Consumers of declared queues: how much each may have, and whose turn it is.

A consumer may have so many messages that it has not acknowledged (`prefetch`), and those of one
channel may have so many together (`Window`), of which the queues are served in turn; one that
acknowledges nothing takes no room, and gets nothing while the others of its channel have none. It
stops when its connection cannot keep up (`pause`), too.

Of those that have room, the ones of the highest priority are served, in turn, message by message.
With a single active consumer, only the first of them is.

Invariant: `unacked` is how many messages are out that this consumer was given.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from onelog.core.queues.deliveries import Delivery

if TYPE_CHECKING:
    from onelog.core.queues.queue import WorkQueue

log = logging.getLogger(__name__)

NO_LIMIT = 1 << 30
UNACKED_MAX = 65_535
"""Of a consumer without `prefetch`: as many as others can ask for. What is out is remembered."""

OnDeliver = Callable[["Consumer", list[Delivery]], None]
"""Called with messages for a consumer; it does not wait."""
OnBodies = Callable[["Consumer", Sequence[bytes], Sequence[int]], None]
"""The same for new messages, of which only the bodies and forms of their records are told."""
Wants = Callable[[bytes, int], bool]
"""Whether a consumer wants a message, of which the record's body and form are told."""
OnCancel = Callable[["Consumer", str], None]
"""Called when a consumer was cancelled by the broker, with the reason."""


class Window:
    """How many messages the consumers of one channel may have together; 0: no limit."""

    __slots__ = ("consumers", "limit", "used")

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.used = 0
        self.consumers: dict[Consumer, None] = {}
        """Who was given something last stands last."""

    @property
    def room(self) -> int:
        """How many more they may have."""
        return self.limit - self.used if self.limit else NO_LIMIT

    def set_limit(self, limit: int) -> None:
        """Let them have so many from now on."""
        self.limit = limit
        self.widened()

    def widened(self) -> None:
        """There may be room again: let their queues look."""
        for consumer in self.consumers:
            consumer.queue.wake()


class ConsumerOptions(TypedDict, total=False):
    """What a consumer asks for besides its queue."""

    tag: str
    no_ack: bool
    exclusive: bool
    priority: int
    prefetch: int
    window: Window | None
    arguments: Mapping[str, Any] | None
    owner: Hashable
    wants: Wants | None
    on_bodies: OnBodies | None


class Consumer:
    """One consumer of one queue. `data` is its gateway's."""

    __slots__ = (
        "arguments data exclusive is_active is_open no_ack on_bodies on_cancel on_deliver owner "
        "paused prefetch priority queue tag unacked wants window"
    ).split()

    def __init__(
        self,
        queue: "WorkQueue",
        on_deliver: OnDeliver,
        on_cancel: OnCancel,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self.queue = queue
        self.on_deliver = on_deliver
        self.on_cancel = on_cancel
        self.no_ack = options.get("no_ack", False)
        self.on_bodies = options.get("on_bodies") if self.no_ack else None
        self.tag = options.get("tag", "")
        self.exclusive = options.get("exclusive", False)
        self.priority = options.get("priority", 0)
        self.prefetch = options.get("prefetch", 0)
        self.window = options.get("window")
        self.arguments = options.get("arguments") or {}
        self.owner = options.get("owner")
        self.wants = options.get("wants")
        """None, if it wants every message."""
        self.unacked = 0
        self.paused = False
        self.is_active = True
        self.is_open = True
        self.data: Any = None
        if self.window is not None:
            self.window.consumers[self] = None

    @property
    def room(self) -> int:
        """How many more messages it may have now."""
        if self.paused:
            return 0
        if self.no_ack:
            return NO_LIMIT if self.window is None or self.window.room > 0 else 0
        room = (self.prefetch or UNACKED_MAX) - self.unacked
        if self.window is not None and self.window.limit:
            return min(room, self.window.room)
        return room

    def set_prefetch(self, prefetch: int) -> None:
        """Let it have so many from now on; 0: no limit."""
        self.prefetch = prefetch
        self.queue.wake()

    def pause(self) -> None:
        """Give it nothing until it resumes."""
        self.paused = True

    def resume(self) -> None:
        """It takes messages again."""
        if self.paused:
            self.paused = False
            self.queue.wake()

    def given(self, count: int) -> None:
        self.unacked += count
        window = self.window
        if window is not None:
            window.used += count
            if window.limit and len(window.consumers) > 1 and self.is_open:
                del window.consumers[self]
                window.consumers[self] = None

    def took_back(self, count: int) -> None:
        """It has so many less."""
        self.unacked -= count
        if self.window is not None:
            self.window.used -= count
            if self.window.limit:
                self.window.widened()

    def close(self) -> None:
        """It is a consumer no more; what it has stays out."""
        self.is_open = False
        self.paused = True
        if self.window is not None:
            self.window.consumers.pop(self, None)

    def cancelled(self, reason: str) -> None:
        """Report to its gateway that the broker cancelled it."""
        try:
            self.on_cancel(self, reason)
        except Exception:
            log.exception("consumer of %s: its session failed at a cancel", self.queue.label)


class RoundRobin:
    """Whose turn it is among the consumers of one queue."""

    __slots__ = ("_groups", "all", "selects", "single")

    def __init__(self, *, single: bool) -> None:
        self.single = single
        self.selects = False
        """Whether somebody wants some messages only."""
        self.all: list[Consumer] = []
        self._groups: list[list[Consumer]] = []
        """Those of one priority, the next first; the highest priority first."""

    def add(self, consumer: Consumer) -> None:
        self.all.append(consumer)
        self._arrange()

    def remove(self, consumer: Consumer) -> bool:
        """One less; False if it was none."""
        if consumer not in self.all:
            return False
        self.all.remove(consumer)
        self._arrange()
        return True

    def _arrange(self) -> None:
        self.selects = any(each.wants is not None for each in self.all)
        if self.single and self.all:
            active = next((each for each in self.all if each.is_active), None)
            # Who is active stays it; of those who wait, the first of the highest priority is next.
            if active is None or sum(each.is_active for each in self.all) > 1:
                active = active or max(self.all, key=lambda each: each.priority)
                for each in self.all:
                    each.is_active = each is active
            self._groups = [[active]]
            return
        priorities = sorted({each.priority for each in self.all}, reverse=True)
        self._groups = [
            [each for each in self.all if each.priority == priority] for priority in priorities
        ]

    def takers(self) -> list[Consumer]:
        """Who is served now, the next first: of the highest priority that has any with room."""
        for group in self._groups:
            if len(group) == 1:
                if group[0].room > 0:
                    return group
            elif takers := [each for each in group if each.room > 0]:
                return takers
        return []

    def in_turn(self) -> Iterator[Consumer]:
        """All who may be served, those of the highest priority first."""
        return chain.from_iterable(self._groups)

    def served(self, last: Consumer) -> None:
        """The turn is that of the one after `last`."""
        for group in self._groups:
            if len(group) > 1 and last in group:
                at = group.index(last) + 1
                group[:] = group[at:] + group[:at]
                return


def shares(
    takers: Sequence[Consumer], found: list[Delivery]
) -> tuple[list[tuple[Consumer, list[Delivery]]], Consumer]:
    """Deal messages out in turn, to each as long as it has room, and who got the last.

    There must be room for all of them.
    """
    dealt: list[tuple[Consumer, list[Delivery]]] = [(each, []) for each in takers]
    rooms = [each.room for each in takers]
    at, last = 0, takers[0]
    for delivery in found:
        while not rooms[at]:
            at = (at + 1) % len(takers)
        rooms[at] -= 1
        last = takers[at]
        dealt[at][1].append(delivery)
        at = (at + 1) % len(takers)
    return [each for each in dealt if each[1]], last
