"""What members of share groups do: take messages for a while, and say what became of them.

A member is given records as they are stored, and which messages in them are its own now. Each of
them it acknowledges, returns, or keeps for longer; what it does neither with, comes back when its
time is up or the member is gone. What came back too often is finished. Where a group is in a queue
is its position, as of every other group: everything before it is finished.

It is a part of the door: who asks is the first argument, as everywhere in `broker`.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from onelog.core.access import Access, Principal
from onelog.core.catalog.groups import Groups
from onelog.core.catalog.topics import Topics
from onelog.core.cursors.offsets import Offsets
from onelog.core.durable.durability import WhenSafe
from onelog.core.durable.waiting import Key
from onelog.core.queues.lease_ledger import SHARED, Outcome
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.core.queues.leases import Leases
from onelog.core.queues.lending import Lending, OnLeased
from onelog.errors import GroupPermissionError
from onelog.store.message_store import MessageStore


class ShareLimits(NamedTuple):
    """How a share group wants its messages."""

    lock_ms: int = 30_000
    """How long a member has a message to itself."""
    committed: bool = False
    """Whether messages of transactions are not for it before they are committed."""
    from_start: bool = False
    """Where it begins in a queue that it never was in: at its start, else at its end."""
    deliveries_max: int = 5
    window_max: int = 2_000
    """How far it may have read in a queue beyond what it is done with."""


class Taking(NamedTuple):
    """What a member asks for."""

    group: str
    member: str
    places: Sequence[Key]
    """The queues to look into, in this order."""
    count_max: int
    bytes_max: int
    whole: bool
    """Whether a batch is not divided, although that makes it more."""


@dataclass(eq=False)
class Sharing:
    """Leases for members of share groups."""

    access: Access
    _store: MessageStore
    _topics: Topics
    _groups: Groups
    _offsets: Offsets
    _leases: Leases
    _lending: Lending

    def take(
        self,
        principal: Principal,
        taking: Taking,
        share_limits: ShareLimits,
        wait_ms: int,
        on_leased: OnLeased,
        owner: Hashable = None,
        token: Any = None,
    ) -> None:
        """Messages of some queues for a while, now or when there are some; see `Lending.lease`."""
        group = taking.group
        self.access.check(principal, "consume", ("group", group))
        for topic in {topic for topic, _ in taking.places}:
            self.access.check(principal, "consume", ("topic", topic))
        if not self._groups.require(group).consume_enable:
            raise GroupPermissionError(f"subscription group no permission, {group}")

        def places() -> list[Key]:
            found = [each for each in taking.places if self._has(*each)]
            for topic, queue_id in found:
                start = partial(self._start, topic, queue_id, share_limits)
                self._leases.begin(group, topic, queue_id, start)
            return found

        request = LeaseRequest(
            group,
            places,
            tuple(taking.places),
            taking.count_max,
            share_limits.lock_ms,
            SHARED[share_limits.deliveries_max],
            attempt_id=taking.member,
            bytes_max=taking.bytes_max,
            as_stored=True,
            committed=share_limits.committed,
            window_max=share_limits.window_max,
            whole=taking.whole,
        )
        self._lending.lease(request, wait_ms, on_leased, owner, token)

    def _has(self, topic: str, queue_id: int) -> bool:
        config = self._topics.get(topic)
        return config is not None and config.readable and 0 <= queue_id < config.read_queues

    def _start(self, topic: str, queue_id: int, share_limits: ShareLimits) -> int:
        if share_limits.from_start:
            return self._store.min_offset(topic, queue_id)
        return self._store.max_offset(topic, queue_id)

    def settle(
        self,
        principal: Principal,
        group: str,
        member: str,
        lease_key: Key,
        outcomes: Sequence[tuple[range, Outcome]],
        share_limits: ShareLimits,
    ) -> None:
        """What became of messages that a member has; see `Leases.settle`."""
        self.access.check(principal, "consume", ("group", group))
        self._leases.settle((group, *lease_key), member, outcomes, share_limits.lock_ms)

    def release(self, principal: Principal, group: str, member: str) -> None:
        """A member will not look at what it has: others may have it."""
        self.access.check(principal, "consume", ("group", group))
        self._leases.release_held(group, member)

    def when_safe(self, callback: WhenSafe) -> None:
        """Call back once what was said so far is as safe as configured."""
        self._leases.when_safe(callback)

    # -- positions -----------------------------------------------------------------------------

    def position(self, principal: Principal, group: str, lease_key: Key) -> tuple[int, int] | None:
        """Where a group is in a queue, and how many messages it is not done with; None: nowhere."""
        self.access.check(principal, "describe", ("group", group))
        offset = self._offsets.get(group, *lease_key)
        return None if offset is None else (offset, self._leases.unfinished(group, *lease_key))

    def topics_of(self, principal: Principal, group: str) -> dict[str, list[int]]:
        """The queues of each topic in which a group has a position."""
        self.access.check(principal, "describe", ("group", group))
        return {
            topic: sorted(self._offsets.of(group, topic))
            for topic in self._offsets.topics_of(group)
        }

    def move(
        self, principal: Principal, group: str, topic: str, positions: Mapping[int, int]
    ) -> None:
        """Have a group go on elsewhere; what its members have, they have no more."""
        self.access.check(principal, "alter", ("group", group))
        within = {
            queue_id: max(
                self._store.min_offset(topic, queue_id),
                min(offset, self._store.max_offset(topic, queue_id)),
            )
            for queue_id, offset in positions.items()
        }
        self._offsets.reset(group, topic, within)

    def forget(self, principal: Principal, group: str, topic: str) -> None:
        """Forget where a group is in the queues of a topic."""
        self.access.check(principal, "delete", ("group", group))
        for queue_id in self._offsets.of(group, topic):
            self._offsets.forget(group, topic, queue_id)
