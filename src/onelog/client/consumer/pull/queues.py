"""The queues of a pull consumer: how they are fetched ahead, come and go, and how far each is.

Queues are assigned by hand, or shared out among the members of the group: then anew every 20 s, and
at once when the members or a topic's queues change. A broker holds a fetch that finds nothing until
something arrives. Nothing is fetched while enough messages wait, or while the queue is paused.

Invariants: messages are handed out in the order of their queue, none twice and none left out, until
another offset is sought; `position` is the offset of the next one. An automatic commit never
passes a message of the last poll, because its consumer may still be at work with it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial

import msgspec

from onelog.client.connection.nodes import forgiven
from onelog.client.consumer.fetching import Fetching, Membership
from onelog.client.consumer.offsets import offset_at
from onelog.client.consumer.push.pulling import HOLD_FLAG, ProcessQueue, PulledQueue
from onelog.client.consumer.topic_filters import TopicFilter
from onelog.client.message import Queue, ReceivedMessage
from onelog.errors import (
    BrokerNotFoundError,
    FilterSyntaxError,
    NameserversUnreachableError,
    OnelogError,
    PeerClosedError,
    PeerTimeoutError,
    QueueNotAssignedError,
)
from onelog.net.peer import Peer
from onelog.net.tasks import is_set, repeat
from onelog.wire.remoting.clients import ProcessQueueInfo
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command

AGAIN_SECONDS = 1.0
"""After an error; the brokers may be about to come back."""

SUBSCRIPTION_FLAG = 4
"""The pull says itself which messages it wants."""
PASSING = (PeerClosedError, PeerTimeoutError, BrokerNotFoundError, NameserversUnreachableError)
"""Errors that need no attention: it is tried again until it works."""

log = logging.getLogger(__name__)


class WaitingMessages(ProcessQueue):
    """The messages in hand, if they are taken in their order, and done with when they are."""

    __slots__ = ("_waiting",)

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self._waiting: deque[ReceivedMessage] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> list[ReceivedMessage]:
        first = self.next_offset
        fresh = [each for each in messages if each.raw.queue_offset >= first]
        self._waiting.extend(fresh)
        self.bytes_in_hand += sum([len(message.raw.body) for message in fresh])
        self.next_offset = max(first, next_offset)
        return fresh

    def take(self, count_max: int) -> list[ReceivedMessage]:
        waiting = self._waiting
        taken = [waiting.popleft() for _ in range(min(count_max, len(waiting)))]
        self.bytes_in_hand -= sum([len(message.raw.body) for message in taken])
        return taken

    @property
    def committable(self) -> int:
        return self._waiting[0].raw.queue_offset if self._waiting else self.next_offset

    @property
    def last_offset(self) -> int:
        return self._waiting[-1].raw.queue_offset if self._waiting else -1


class Prefetch(PulledQueue):
    """One queue whose messages wait here until a poll takes them: then they are done with."""

    commits = False
    process_queue: WaitingMessages

    def __init__(self, queue: Queue, offset: int, owner: "PullQueues", wanted: TopicFilter) -> None:
        super().__init__(queue, WaitingMessages(offset), owner.member, owner)
        self.wanted = wanted
        self.ready = owner.wake
        """Called when there is a message to hand out, or an error to raise."""
        self.is_paused = False
        """Neither fetched nor handed out."""
        self.settled = -1
        """Everything before this offset was done with when the consumer asked for more; -1 until
        it is known where to begin."""
        self.error: OnelogError | None = None
        """Why nothing is fetched, until a poll has raised it."""
        self.known = asyncio.Event()
        """Set when it is known where to begin, or does not matter any more."""

    # What the consumer does with it.

    @property
    def is_begun(self) -> bool:
        return self.settled >= 0

    @property
    def position(self) -> int | None:
        """The offset of the next message to be taken; None until it is known where to begin."""
        return self.process_queue.committable if self.is_begun else None

    def drop(self) -> None:
        super().drop()
        self.known.set()

    def pause(self) -> None:
        """Neither fetch nor hand out."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.fetch()
        if self.process_queue:
            self.ready()

    @property
    def is_ready(self) -> bool:
        return bool(self.process_queue) and not self.is_paused

    def take(self, count_max: int) -> list[ReceivedMessage]:
        taken = self.process_queue.take(count_max)
        self.fetch()
        return taken

    # Fetching.

    @property
    def _filter(self) -> TopicFilter:
        return self.wanted

    def _has_room(self) -> bool:
        settings, process_queue = self._member.settings, self.process_queue
        return (
            self.is_begun
            and not self.is_paused
            and len(process_queue) < settings.prefetch_count
            and process_queue.bytes_in_hand < settings.prefetch_bytes
        )

    def _request(self) -> dict[str, str]:
        return {
            **super()._request(),
            "sysFlag": str(HOLD_FLAG | SUBSCRIPTION_FLAG),
            "subscription": self.wanted.expression,
        }

    def _follows(self, peer: Peer) -> bool:
        return False

    def _take(self, answer: Command) -> None:
        if answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
            raise FilterSyntaxError(f"the filter on {self.queue.topic}: {answer.remark}")
        super()._take(answer)
        self.error = None

    def _hand_over(self, messages: list[ReceivedMessage]) -> None:
        self.ready()

    def _moved(self, offset: int) -> None:
        self.process_queue.next_offset = offset

    def _fail(self, error: Exception) -> None:
        if isinstance(error, OnelogError) and not isinstance(error, PASSING):
            self.error = error
            self.ready()
        super()._fail(error)

    # For the tools.

    def info(self) -> ProcessQueueInfo:
        return msgspec.structs.replace(super().info(), commit_offset=max(0, self.settled))


class PullQueues(Fetching):
    """The assigned queues; the one whose turn it is comes first."""

    _queues: dict[Queue, Prefetch]

    def __init__(self, member: Membership, client_id: str | None) -> None:
        super().__init__(member)
        self.member = member
        self._offsets = member.offsets(client_id, is_exact=True)
        self.committed = self._offsets.read
        """What is kept of a queue for the group; None if nothing is."""
        self.offset_at = partial(offset_at, member.instance)
        self._ready = asyncio.Event()
        self._shares = False

    # Handing out.

    def take(self, count_max: int) -> list[ReceivedMessage]:
        """What is there, so many at most; the queues take turns."""
        taken: list[ReceivedMessage] = []
        self._ready.clear()
        for queue, each in list(self._queues.items()):
            if len(taken) == count_max:
                break
            if each.is_ready:
                taken += each.take(count_max - len(taken))
                self._queues[queue] = self._queues.pop(queue)
        if any(each.is_ready for each in self._queues.values()):
            self._ready.set()
        return taken

    async def wait(self, seconds: float) -> None:
        """Come back when there may be something, or the time is up."""
        await is_set(self._ready, seconds)

    def wake(self) -> None:
        """Have a waiting poll look what there is."""
        self._ready.set()

    def settle(self) -> None:
        """The consumer asks for more: it is done with what it was given before."""
        for each in self._queues.values():
            if each.is_begun:
                each.settled = each.process_queue.committable

    def raise_error(self) -> None:
        """Raise what keeps a queue from being fetched, once."""
        for each in self._queues.values():
            error, each.error = each.error, None
            if error is not None:
                raise error

    def get(self, queue: Queue) -> Prefetch:
        """One of the queues; `QueueNotAssignedError` if it is none."""
        found = self._queues.get(queue)
        if found is None:
            raise QueueNotAssignedError(
                f"queue {queue.queue_id} of {queue.topic} on {queue.broker} is not assigned to "
                f"this consumer, or not any more"
            )
        return found

    # Life.

    async def start(self) -> None:
        if self._member.settings.auto_commit:
            name = f"committing the positions of group {self._member.group}"
            seconds = self._member.settings.commit_interval_ms / 1000
            self._spawn(repeat(name, seconds, lambda: self._keep_settled(self._queues.values())))

    def share(self) -> None:
        """From now on the queues are those that the group leaves to this member."""
        if not self._shares:
            self._shares = True
            self._spawn(self._keep_balanced(True))
        self.rebalance()

    def assign(self, queues: Collection[Queue], wanted: Mapping[str, TopicFilter]) -> None:
        """Read these from now on, and no others."""
        self._remove([each for each in self._queues if each not in queues])
        for queue in queues:
            self._read(queue, wanted[queue.topic])

    async def stop(self) -> None:
        await super().stop()
        for each in self._queues.values():
            each.drop()

    async def close(self) -> None:
        await self.stop()
        await self._release(list(self._queues))

    # Coming and going.

    async def _take(self, topic: str, wanted: list[Queue]) -> bool:
        if (now_wanted := self._member.filters.get(topic)) is not None:
            for queue in wanted:
                self._read(queue, now_wanted)
        return True

    async def _release(self, queues: Collection[Queue]) -> None:
        if queues:
            await self._keep_settled([self._queues[queue] for queue in queues])
            self._remove([queue for queue in queues if queue in self._queues])

    def _remove(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            self._queues.pop(queue).drop()

    def _read(self, queue: Queue, wanted: TopicFilter) -> None:
        """Read a queue from now on, if it is not read like that already."""
        each = self._queues.get(queue)
        if each is None:
            each = self._queues[queue] = Prefetch(queue, 0, self, wanted)
            self._member.instance.spawn(self._open(each))
        elif each.wanted != wanted:
            each.wanted = wanted
            if each.position is not None:
                self.seek(queue, each.position)

    async def _open(self, each: Prefetch) -> None:
        """Find out where to begin, unless an offset is sought first."""
        while not each.dropped:
            try:
                committed = await self.committed(each.queue)
                offset = await self._first(each.queue) if committed is None else committed
            except OnelogError as error:
                log.info("where to begin in %s is not known yet: %s", each.queue, error)
                if not isinstance(error, PASSING):
                    each.error = error
                    self._ready.set()
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if not each.dropped:
                each.committed = -1 if committed is None else committed
                self.seek(each.queue, offset)

    # Positions.

    async def position(self, queue: Queue) -> int:
        """The offset of the next message of a queue that will be handed out."""
        each = self.get(queue)
        if each.position is None:
            if not await is_set(each.known, self._member.instance.timeout_ms / 1000):
                raise each.error or PeerTimeoutError(
                    f"where to begin in {queue} is not known yet: {queue.broker} has not said so"
                )
            return await self.position(queue)
        return each.position

    def seek(self, queue: Queue, offset: int) -> None:
        """Go on from there; what was fetched and not taken is forgotten."""
        old = self.get(queue)
        old.drop()
        begun = self._queues[queue] = Prefetch(queue, offset, self, old.wanted)
        begun.is_paused, begun.settled, begun.committed = old.is_paused, offset, old.committed
        begun.known.set()
        begun.fetch()

    async def _first(self, queue: Queue) -> int:
        """Where a group begins that has no position yet."""
        start = self._member.settings.start
        first, last = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET
        target = first if start == "first" else last
        return await self.offset_at(queue, start if isinstance(start, datetime) else target)

    async def commit(self) -> None:
        """Keep the positions of all queues: everything that was handed out is done with."""
        self.settle()
        await self.write({q: e.position for q, e in self._queues.items() if e.position is not None})

    async def write(self, offsets: Mapping[Queue, int]) -> None:
        """Keep these positions; an error if a broker does not take them."""
        await self._offsets.write(offsets)
        for queue, offset in offsets.items():
            if queue in self._queues:
                self._queues[queue].committed = offset

    async def _keep_settled(self, queues: Iterable[Prefetch]) -> None:
        """Commit what is done with, unless that is the consumer's own business."""
        if not self._member.settings.auto_commit:
            return
        news = {
            each.queue: each.settled
            for each in queues
            if each.settled >= 0
            and (each.settled != each.committed or each.queue in self._offsets.strayed)
        }
        what = "positions of group %s are not committed"
        with forgiven(log, what, self._member.group, level=logging.WARNING):
            await self.write(news)

    # For those who ask how it stands.

    async def lag(self) -> dict[Queue, int]:
        behind = {}
        for queue in self.assigned:
            end = await self.offset_at(queue, RequestCode.GET_MAX_OFFSET)
            behind[queue] = max(0, end - await self.position(queue))
        return behind

    def positions(self, topic: str) -> dict[Queue, int]:
        return {
            queue: each.settled
            for queue, each in self._queues.items()
            if queue.topic == topic and each.settled >= 0
        }

    def moved(self, queue: Queue, offset: int) -> None:
        if queue in self._queues:
            self.seek(queue, offset)
