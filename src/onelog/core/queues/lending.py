"""Lease: messages of some queues for a member of a group, now or when there are some.

A request names the queues to look into, in the order that its protocol wants. What is found is
leased, all of it under one handle, and told when that is recorded. Where there is nothing, the
request is held (see `pending_reads`): until something arrives in a queue that it waits for, or
comes back.

Invariant: `on_leased` is called exactly once, with what was leased or the error that kept it from
being; never, if the owner goes before something was found.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from onelog.config import BrokerConfig
from onelog.core.cursors.pending_reads import Hold, Missing, PendingRead, PendingReads
from onelog.core.queues.lease_ledger import check_lease_time
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.core.queues.leases import LeasedPart, Leases, wait_topic
from onelog.core.stats import Stats
from onelog.errors import FilterDisabledError, OnelogError, StoreFailedError, TooManyLeasesError

HELD_MAX = 1024
"""Requests of one group for one queue, or for all of a topic, that are held at a time."""
_LOOKED_MAX = 10_000


class Leased(NamedTuple):
    """What a request got, one part per queue, all of it leased under `handle`.

    `left` is what there is beside it, wanted or not. `is_refused` says that the request could not
    be held, because too many are.
    """

    handle: int
    parts: Sequence[LeasedPart] = ()
    left: int = 0
    is_refused: bool = False


OnLeased = Callable[[Any, Leased | OnelogError], None]
"""Called with the token of a request, and what it got."""


@dataclass(eq=False)
class Lending:
    """Leases messages to members of groups."""

    leases: Leases
    pending_reads: PendingReads
    stats: Stats
    settings: Callable[[], BrokerConfig]

    def __post_init__(self) -> None:
        self._read: dict[Hashable, tuple[int, int]] = {}
        """Where nothing was found for whom, and when that was."""

    def lease(
        self,
        request: LeaseRequest,
        wait_ms: int,
        on_leased: OnLeased,
        owner: Hashable = None,
        token: Any = None,
    ) -> None:
        """Lease messages; `on_leased` is called when that is recorded."""
        until_ms = self.pending_reads.clock.now_ms() + wait_ms
        find, hold = partial(self._find, request), partial(self._hold, request)
        answer = partial(self._answer, on_leased, token)
        self.pending_reads.make(PendingRead(find, hold, answer, owner, until_ms), last=wait_ms <= 0)

    def _answer(
        self, on_leased: OnLeased, token: Any, found: Leased | OnelogError, is_refused: bool
    ) -> None:
        if isinstance(found, Leased) and found.parts:
            self.leases.when_recorded(lambda error: on_leased(token, error or found))
        elif is_refused and isinstance(found, Leased):
            on_leased(token, found._replace(is_refused=True))
        else:
            on_leased(token, found)

    def _find(self, request: LeaseRequest, cold_ok: bool, last: bool) -> Leased | Missing:
        leases, subscription = self.leases, request.subscription
        check_lease_time(request.invisible_ms)
        if subscription is not None and (
            subscription.predicate is not None and not self.settings().property_filter
        ):
            raise FilterDisabledError(
                "The broker does not support consumer to filter message by SQL92"
            )
        stamp = leases.stamp()
        parts: list[LeasedPart] = []
        cold: list[tuple[int, int]] = []
        trouble: OnelogError | None = None
        later = False
        count, room, left = request.count_max, request.bytes_max, 0
        for topic, queue_id in request.places():
            available = leases.available(request, topic, queue_id)
            if available and count > 0 and room > 0:
                try:
                    part = leases.take(
                        request, topic, queue_id, count, room, stamp, cold_ok=cold_ok
                    )
                except (TooManyLeasesError, StoreFailedError) as error:
                    trouble = error.with_traceback(None)
                    continue
                if isinstance(part, Missing):
                    cold += part.cold
                    if part.later:
                        later, count = True, 0
                elif part.offsets:
                    parts.append(part)
                    size = sum(map(len, part.records))
                    count -= len(part.offsets)
                    room -= size
                    self.stats.got(request.group, topic, len(part.offsets), size)
                elif leases.unread(request, topic, queue_id):
                    last = True  # Not all was looked at: who asked may ask for the rest.
                available = leases.available(request, topic, queue_id)
            left += available
        if parts or (left and not request.count_max):
            return Leased(stamp, parts, left)
        if cold:
            return Missing(cold)
        if trouble is not None:
            raise trouble
        if later:
            return Missing(later=True)
        return Leased(stamp, (), left) if last else Missing()

    # -- waiting -------------------------------------------------------------------------------

    def _hold(self, request: LeaseRequest, _: Missing) -> Hold | None:
        """What a request waits for that found nothing; None if too many do already."""
        group, keys = request.group, request.keys
        if self.held(group, *keys[0]) >= HELD_MAX:
            return None
        back = [(wait_topic(group, topic), queue_id) for topic, queue_id in keys]
        return (*keys, *back), partial(self._may_go_on, request)

    def held(self, group: str, topic: str, queue_id: int) -> int:
        """How many requests of a group for a queue, or for all queues, are held."""
        return len(self.pending_reads.waiting.keys.get((wait_topic(group, topic), queue_id), ()))

    def _may_go_on(self, request: LeaseRequest) -> bool:
        """Whether to look again. Of a thousand members that wait, most learn it from the first."""
        like = (request.group, request.keys, request.attempt_id)
        moment = self.leases.moment
        if self._read.get(like) == moment and not request.committed:
            return False  # What is committed may be more without anything that has come.
        try:
            found = self.has_messages(request)
        except OnelogError:
            return True  # The topic is gone, say: the request will hear of it.
        if not found:
            if len(self._read) >= _LOOKED_MAX:
                self._read.clear()
            self._read[like] = moment
        return found

    def has_messages(self, request: LeaseRequest) -> bool:
        """Whether there is anything to be had, wanted or not."""
        return any(
            self.leases.available(request, topic, queue_id) for topic, queue_id in request.places()
        )
