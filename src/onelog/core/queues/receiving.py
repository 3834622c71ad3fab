"""Messages handed out one by one, for a while, until they are acknowledged.

Each method says who asks, and asks whether they may.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from onelog.core.access import EVERYBODYS, Principal
from onelog.core.cursors.fetch import Cursor
from onelog.core.durable.durability import WhenSafe
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.core.queues.lending import OnLeased
from onelog.names import LIGHT_QUEUE_PREFIX

if TYPE_CHECKING:
    from onelog.core.assembly import Assembly


class Receiving:
    """`Broker.queues`."""

    def __init__(self, core: "Assembly") -> None:
        self._access = core.access
        self._naming = core.naming
        self._durability = core.durability
        self._leases = core.leases
        self._lending = core.lending
        self._offsets = core.offsets
        self._tables = core.tables
        self._store = core.store
        self._writer = core.writer
        self._stats = core.stats
        self.declared = core.workqueues
        self.sharing = core.sharing
        self.sessions = core.sessions
        self.packet_ids = core.packet_ids

    def _require_served(self) -> None:
        """`Durability.require_served`, without its call."""
        if self._durability.for_master is not None:
            raise self._durability.for_master

    def lease(
        self,
        principal: Principal,
        request: LeaseRequest,
        wait_ms: int,
        on_leased: OnLeased,
        owner: Hashable = None,
        token: Any = None,
    ) -> None:
        """Messages of some queues for a while, now or when there are some; see `Lending.lease`."""
        self._require_served()
        if not self._access.is_open:
            self._check_lease(principal, request)
        self._lending.lease(request, wait_ms, on_leased, owner, token)

    def _check_lease(self, principal: Principal, request: LeaseRequest) -> None:
        """They must be allowed the group, and all topics but those where it tries again."""
        group, topics = request.group, {topic for topic, _ in request.keys}
        self._access.check(principal, "consume", ("group", group))
        for topic in topics - {self._naming.lease_retry_topic(group, topic) for topic in topics}:
            self._access.check_consumer(principal, group, topic, self._naming)

    def unread(self, principal: Principal, request: LeaseRequest) -> tuple[list[Cursor], int]:
        """Where the messages begin that a request would be given next, and how many there are."""
        self._check_lease(principal, request)
        store, leases = self._store, self._leases
        cursors = []
        left = 0
        for topic, queue_id in request.places():
            left += leases.available(request, topic, queue_id)
            start, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            offset = max(start, min(leases.position(request.group, topic, queue_id), end))
            cursors.append(Cursor(None, topic, queue_id, offset))
        return cursors, left

    def held(self, principal: Principal, group: str, topic: str, queue_id: int) -> int:
        """How many requests of a group for a queue, or for all queues, are held."""
        self._access.check_consumer(principal, group, topic, self._naming)
        return self._lending.held(group, topic, queue_id)

    def acknowledge(
        self, principal: Principal, group: str, topic: str, queue_id: int, offset: int, handle: int
    ) -> None:
        """A leased message is done; `LeaseNotFoundError` if it is not out under that handle."""
        self._require_served()
        if not self._access.is_open:
            self._access.check(principal, "consume", ("group", group))
        self._leases.acknowledge(group, topic, queue_id, offset, handle)

    def acknowledge_some(
        self,
        principal: Principal,
        group: str,
        topic: str,
        queue_id: int,
        offsets: Iterable[int],
        handle: int,
    ) -> int:
        """Those messages are done that are out under that handle; how many these were."""
        self._require_served()
        if not self._access.is_open:
            self._access.check(principal, "consume", ("group", group))
        return self._leases.acknowledge_some(group, topic, queue_id, offsets, handle)

    def extend(
        self,
        principal: Principal,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        handle: int,
        invisible_ms: int,
    ) -> int:
        """Lease a message for another time from now on, under the handle that is the answer."""
        self._require_served()
        self._access.check(principal, "consume", ("group", group))
        return self._leases.extend(group, topic, queue_id, offset, handle, invisible_ms)

    def release(
        self,
        principal: Principal,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        handle: int,
        *,
        after_ms: int = 0,
        to_back: bool = False,
    ) -> None:
        """Give a message back, for now or for later; see `Leases.release`."""
        self._require_served()
        self._access.check(principal, "consume", ("group", group))
        self._leases.release(
            group, topic, queue_id, offset, handle, after_ms=after_ms, to_back=to_back
        )

    def reject(
        self, principal: Principal, group: str, topic: str, queue_id: int, offset: int, handle: int
    ) -> None:
        """A message is useless: it goes where its policy sends such."""
        self._require_served()
        self._access.check(principal, "consume", ("group", group))
        self._leases.reject(group, topic, queue_id, offset, handle)

    def when_leases_safe(self, callback: WhenSafe) -> None:
        """Call back once what was said about leases so far is as safe as configured."""
        self._leases.when_safe(callback)

    def light(
        self, principal: Principal, wanted: Callable[[str], bool]
    ) -> Iterator[tuple[str, int, int]]:
        """The light queues with messages: their ends, and when the last one was stored.

        It goes to the disk, and is for a worker to ask.
        """
        self._access.check(principal, "describe", EVERYBODYS)
        store = self._store
        for name in list(store.queue_table.by_topic):
            if name.startswith(LIGHT_QUEUE_PREFIX) and wanted(name):
                end = store.max_offset(name, 0)
                stored_ms = store.store_time(name, 0, end - 1) if end else None
                if stored_ms is not None:
                    yield name, end, stored_ms

    def delete_light(self, principal: Principal, name: str) -> None:
        """Forget a light queue, and every group's position and leases in it."""
        self._access.check(principal, "delete", ("topic", name))
        self._tables.write(self._offsets.removal(topic=name))
        self._leases.forget_topic(name)
        self._writer.delete_topic(name)
        self._stats.forget(name)
