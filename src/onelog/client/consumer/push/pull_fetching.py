"""Fetching by pulling: this member's queues, how they come and go, and how far they are.

The queues are shared out anew every 20 s, and at once when the members of the group or the queues
of a topic change. Positions go to the brokers with every pull, and every 5 s.

Invariant: a queue is in `_queues` from the moment its position is known until it is released; what
is in there is pulled, unless fetching has stopped.
"""

import asyncio
import logging
from collections.abc import Iterable

from onelog.client.connection.nodes import at_once
from onelog.client.consumer.offsets import LocalOffsets, offset_at
from onelog.client.consumer.push.fetching import Fetching, Membership
from onelog.client.consumer.push.orderly import LOCK_SECONDS, OrderedQueue, QueueLocks
from onelog.client.consumer.push.pulling import PulledQueue
from onelog.client.consumer.push.send_back import SendBack
from onelog.client.consumer.rebalance import (
    UNBALANCED_SECONDS,
    Obstacles,
    first_offset,
    keep_balanced,
    member_offsets,
    share_of,
)
from onelog.client.message import Queue
from onelog.errors import OnelogError
from onelog.jobs import Job
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.running_info import ProcessQueueInfo

COMMIT_SECONDS = 5.0
SETTLE_SECONDS = 3.0

log = logging.getLogger(__name__)


class PullFetching(Fetching):
    """The queues of one member that pulls."""

    _queues: dict[Queue, PulledQueue]

    def __init__(self, member: Membership, client_id: str | None = None) -> None:
        super().__init__(member)
        settings = member.settings
        self._send_back = SendBack(member.instance, member.group, settings.retries_max)
        self._offsets = member_offsets(member, client_id)
        needs_locks = settings.orderly and not settings.broadcasting
        self._locks = QueueLocks(member.instance, member.group) if needs_locks else None
        self._leaving: list[Queue] = []
        self._obstacles = Obstacles()

    # Life.

    async def start(self) -> None:
        """Share out the queues and begin to pull."""
        if isinstance(self._offsets, LocalOffsets):
            await self._offsets.load()
        balanced = await self._rebalance()
        self._spawn(keep_balanced(self._member.group, self._wake, self._rebalance, balanced))
        self._spawn(self._keep_committing())
        if self._locks is not None:
            self._spawn(self._keep_locked(self._locks))

    async def close(self) -> None:
        """Commit, and let other members have the queues."""
        queues, self._queues = self._queues, {}
        await at_once(lambda queue: queue.settle(SETTLE_SECONDS), queues.values())
        await self._offsets.write(_positions(queues.values()))
        for queue in queues.values():
            queue.drop()
        if self._locks is not None:
            await self._locks.unlock([*queues, *self._leaving])

    # Sharing out.

    async def _rebalance(self) -> bool:
        """Share out now; False if that could not be done for everything."""
        topics = tuple(self._member.filters)
        balanced = await self._obstacles.share_out(topics, self._share)
        await self._release([queue for queue in self._queues if queue.topic not in topics])
        return balanced

    async def _share(self, topic: str) -> bool:
        wanted = await share_of(self._member, topic)
        mine = set(wanted)
        gone = [each for each in self._queues if each.topic == topic and each not in mine]
        await self._release(gone)
        missing = [each for each in wanted if each not in self._queues]
        if not missing:
            return True
        locked = missing
        if self._locks is not None:
            held = await self._locks.lock(missing)
            locked = [each for each in missing if each in held]
        begun = await at_once(self._begin, locked)
        return all(begun) and len(locked) == len(missing)

    async def _begin(self, queue: Queue) -> bool:
        try:
            offset = await first_offset(self._member, self._offsets, queue)
        except OnelogError as error:
            log.info("where to begin in %s cannot be told now: %s", queue, error)
            return False
        if not self._is_stopped:
            self._add(queue, offset)
        return True

    def _add(self, queue: Queue, offset: int) -> None:
        kind = OrderedQueue if self._member.settings.orderly else PulledQueue
        added = kind(queue, offset, self._member, self, self._send_back)
        self._queues[queue] = added
        log.info("group %s consumes %s from %d on", self._member.group, queue, offset)
        added.pull()

    async def _release(self, queues: Iterable[Queue]) -> None:
        """Queues are another member's now."""
        released = [self._queues.pop(queue) for queue in queues]
        if not released:
            return
        for queue in released:
            log.info("group %s leaves %s to another member", self._member.group, queue.queue)
            queue.drop()
        await self._offsets.write(_positions(released))
        for queue in released:
            self._member.instance.spawn(self._leave(queue))

    async def _leave(self, queue: PulledQueue) -> None:
        self._leaving.append(queue.queue)
        await queue.wait_until_left()
        self._leaving.remove(queue.queue)
        if self._locks is not None:
            await self._offsets.write(_positions([queue]))
            await self._locks.unlock([queue.queue])

    async def _keep_locked(self, locks: QueueLocks) -> None:
        job = Job(f"renewing the queue locks of group {self._member.group}")
        while True:
            all_is_well = False
            with job:
                lost, all_is_well = await locks.renew([*self._queues, *self._leaving])
                for queue in lost:
                    if queue in self._queues:
                        log.warning("%s was locked by another member", queue)
                        self._queues.pop(queue).drop()
                        self.rebalance()
                for each in self._queues.values():
                    if isinstance(each, OrderedQueue):
                        each.resume()
            await locks.last(LOCK_SECONDS if all_is_well else UNBALANCED_SECONDS)

    def is_locked(self, queue: Queue) -> bool:
        """Whether messages of a queue may be consumed in order here."""
        return self._locks is None or self._locks.is_held(queue)

    # Asked by queues.

    def moved(self, queue: Queue, offset: int) -> None:
        """A broker sends us elsewhere: what is in hand belongs to the past."""
        if queue in self._queues and not self._is_stopped:
            self._queues[queue].drop()
            self._offsets.write_soon({queue: offset})
            self._add(queue, offset)

    # Positions.

    async def commit(self) -> None:
        """Tell the brokers now how far this member is."""
        await self._offsets.write(_positions(self._queues.values()))

    async def _keep_committing(self) -> None:
        job = Job(f"committing the positions of group {self._member.group}")
        while True:
            await asyncio.sleep(COMMIT_SECONDS)
            with job:
                strayed = self._offsets.strayed
                changed = [
                    each for each in self._queues.values() if each.has_news or each.queue in strayed
                ]
                self._offsets.write_soon(_positions(changed))

    async def lag(self) -> dict[Queue, int]:
        """How many messages of each assigned queue are not consumed yet."""
        queues = list(self._queues.values())
        instance, last = self._member.instance, RequestCode.GET_MAX_OFFSET
        ends = await at_once(lambda each: offset_at(instance, each.queue, last), queues)
        return {
            each.queue: max(0, end - each.hands.committable)
            for each, end in zip(queues, ends, strict=True)
        }

    def positions(self, topic: str) -> dict[Queue, int]:
        """How far each assigned queue of a topic is consumed."""
        return _positions(each for each in self._queues.values() if each.queue.topic == topic)

    # For the tools.

    def queue_table(self) -> dict[Queue, ProcessQueueInfo]:
        return {queue: self._queues[queue].info() for queue in self.assigned}


def _positions(queues: Iterable[PulledQueue]) -> dict[Queue, int]:
    positions = {}
    for each in queues:
        each.committed = positions[each.queue] = each.hands.committable
    return positions
