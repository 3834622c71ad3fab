"""The queues of a pull consumer: how they come and go, and how far each of them is.

They are assigned by hand, or shared out among the members of the group: then anew every 20 s, and
at once when the members or a topic's queues change.

Invariant: what is committed without being asked for never passes a message that was handed out in
the last poll, because its consumer may still be at work with it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any

from onelog.client.connection.nodes import at_once
from onelog.client.consumer.offsets import LocalOffsets, local_path
from onelog.client.consumer.pull.prefetch import AGAIN_SECONDS, PASSING, Prefetch
from onelog.client.consumer.push.fetching import Membership
from onelog.client.consumer.rebalance import share_of
from onelog.client.consumer.topic_filters import TopicFilter
from onelog.client.message import Queue, ReceivedMessage
from onelog.errors import (
    GroupNotFoundError,
    KeyNotFoundError,
    OnelogError,
    PeerTimeoutError,
    QueueNotAssignedError,
)
from onelog.jobs import Job
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.running_info import PopQueueInfo, ProcessQueueInfo

REBALANCE_SECONDS = 20.0
UNBALANCED_SECONDS = 1.0
"""The same, while something could not be shared out."""

log = logging.getLogger(__name__)


class PullQueues:
    """The assigned queues. A `Fetching`, too, for those who ask a consumer how it stands."""

    def __init__(
        self, member: Membership, client_id: str | None, commit_seconds: float | None
    ) -> None:
        settings = member.settings
        self._member = member
        self._commit_seconds = commit_seconds
        """None if nothing is committed without being asked for."""
        self._local: LocalOffsets | None = None
        """Where positions are kept if not with the brokers."""
        if settings.broadcasting:
            path = settings.offsets_path or local_path(client_id, member.group)
            self._local = LocalOffsets(path)
        self._queues: dict[Queue, Prefetch] = {}
        self._known: dict[Queue, asyncio.Event] = {}
        self._turns: list[Prefetch] = []
        self._ready = asyncio.Event()
        self._wake = asyncio.Event()
        self._shares = False
        self._tasks: list[asyncio.Task[None]] = []

    # Handing out.

    def take(self, count_max: int) -> list[ReceivedMessage]:
        """What is there, so many at most; the queues take turns."""
        taken: list[ReceivedMessage] = []
        self._ready.clear()
        for each in list(self._turns):
            if len(taken) == count_max:
                break
            if each.is_ready:
                taken += each.take(count_max - len(taken))
                self._turns.remove(each)
                self._turns.append(each)
        if any(each.is_ready for each in self._turns):
            self._ready.set()
        return taken

    async def wait(self, seconds: float) -> None:
        """Come back when there may be something, or the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ready.wait()

    def wake(self) -> None:
        """Have whoever waits look what there is."""
        self._ready.set()

    def settle(self) -> None:
        """The consumer asks for more: it is done with what it was given before."""
        for each in self._turns:
            each.settled = each.position

    def raise_error(self) -> None:
        """Raise what keeps a queue from being fetched, once."""
        for each in self._turns:
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

    @property
    def assigned(self) -> tuple[Queue, ...]:
        """The queues that this consumer reads now."""
        return tuple(sorted(self._queues))

    async def start(self) -> None:
        """Begin to commit."""
        if self._commit_seconds is not None:
            self._spawn(self._keep_committing(self._commit_seconds))

    def share(self) -> None:
        """From now on the queues are those that the group leaves to this member."""
        if not self._shares:
            self._shares = True
            self._spawn(self._keep_balanced())
        self._wake.set()

    def assign(self, queues: Collection[Queue], wanted: Mapping[str, TopicFilter]) -> None:
        """Read these from now on, and no others."""
        for queue in [each for each in self._queues if each not in queues]:
            self._remove(queue)
        for queue in queues:
            if queue not in self._queues:
                self._add(queue, wanted[queue.topic])
            elif self._queues[queue].wanted != wanted[queue.topic]:
                each = self._queues[queue]
                each.wanted = wanted[queue.topic]
                if each.position is not None:
                    each.begin(each.position)

    async def stop(self) -> None:
        """Fetch nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in self._queues.values():
            each.stop()

    async def close(self) -> None:
        """Stop, and commit what is done with."""
        await self.stop()
        await self._keep_settled(self._queues.values())
        for queue in list(self._queues):
            self._remove(queue)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self._member.instance.spawn(work))

    # Coming and going.

    def rebalance(self) -> None:
        """Share out anew, soon."""
        self._wake.set()

    async def _keep_balanced(self) -> None:
        balanced = True
        job = Job(f"sharing out the queues of group {self._member.group}")
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REBALANCE_SECONDS if balanced else UNBALANCED_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            balanced = False
            with job:
                balanced = await self._rebalance()

    async def _rebalance(self) -> bool:
        balanced = True
        topics = dict(self._member.filters)
        mine: list[Queue] = []
        for topic in topics:
            try:
                mine += await share_of(self._member, topic)
            except OnelogError as error:
                balanced = False
                log.info("topic %s is not shared out now: %s", topic, error)
                mine += [each for each in self._queues if each.topic == topic]
        gone = [each for queue, each in self._queues.items() if queue not in mine]
        await self._keep_settled(gone)
        self.assign(mine, topics)
        return balanced

    def _add(self, queue: Queue, wanted: TopicFilter) -> None:
        self._queues[queue] = each = Prefetch(queue, wanted, self._member, self._ready.set)
        self._turns.append(each)
        self._known[queue] = asyncio.Event()
        self._member.instance.spawn(self._open(each, self._known[queue]))

    def _remove(self, queue: Queue) -> None:
        each = self._queues.pop(queue)
        each.stop()
        self._turns.remove(each)
        self._known.pop(queue).set()

    async def _open(self, each: Prefetch, known: asyncio.Event) -> None:
        """Find out where to begin, unless somebody seeks a place first."""
        while self._queues.get(each.queue) is each and each.position is None:
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
            if self._queues.get(each.queue) is each and each.position is None:
                each.committed = committed
                each.begin(offset)
        known.set()

    # Positions.

    async def position(self, queue: Queue) -> int:
        """The offset of the next message of a queue that will be handed out."""
        each = self.get(queue)
        if each.position is None:
            try:
                async with asyncio.timeout(self._member.instance.timeout_ms / 1000):
                    await self._known[queue].wait()
            except TimeoutError:
                raise each.error or PeerTimeoutError(
                    f"where to begin in {queue} is not known yet: {queue.broker} has not said so"
                ) from None
            if each.position is None:
                return await self.position(queue)
        return each.position

    def seek(self, queue: Queue, offset: int) -> None:
        """Go on from there."""
        self.get(queue).begin(offset)
        self._known[queue].set()

    async def committed(self, queue: Queue) -> int | None:
        """What is kept of a queue for the group; None if nothing is."""
        if self._local is not None:
            return await self._local.read(queue)
        # Brokers say 0 for a group that is new to a young topic, unless they are told not to.
        ext = {"consumerGroup": self._member.group, "setZeroIfNotFound": "false"}
        try:
            found = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        except KeyNotFoundError:
            return None
        offset = fields.number(found, "offset")
        return None if offset < 0 else offset

    async def _first(self, queue: Queue) -> int:
        """Where a group begins that has no position yet."""
        start = self._member.settings.start
        if isinstance(start, datetime):
            return await self.offset_at(queue, start)
        first, last = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET
        return await self.offset_at(queue, first if start == "first" else last)

    async def commit(self) -> None:
        """Keep the positions of all queues: everything that was handed out is done with."""
        self.settle()
        await self.write({q: e.position for q, e in self._queues.items() if e.position is not None})

    async def write(self, offsets: Mapping[Queue, int]) -> None:
        """Keep these positions; an error if a broker does not take them."""
        if self._local is not None:
            await self._local.write(offsets)
        else:
            await at_once(self._write, offsets.items())
        for queue, offset in offsets.items():
            if queue in self._queues:
                self._queues[queue].committed = offset

    async def _write(self, position: tuple[Queue, int]) -> None:
        queue, offset = position
        ext = {"consumerGroup": self._member.group, "commitOffset": str(offset)}
        try:
            await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        except GroupNotFoundError:
            # Nobody has pulled yet. Asking for the group creates it, where pulling would.
            code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
            await self._ask(queue, code, {"group": self._member.group})
            await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    async def offset_at(self, queue: Queue, place: "datetime | RequestCode") -> int:
        """The offset of the first message of a time or later, or what a request gives."""
        ext: dict[str, str] = {}
        code = place
        if isinstance(place, datetime):
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            ext["timestamp"] = str(round(place.timestamp() * 1000))
        assert isinstance(code, RequestCode)
        return fields.number(await self._ask(queue, code, ext), "offset")

    async def _ask(self, queue: Queue, code: RequestCode, ext: dict[str, str]) -> dict[str, str]:
        route = await self._member.instance.routes.get(queue.topic)
        ext.update(topic=queue.topic, queueId=str(queue.queue_id), bname=queue.broker)
        address = route.reading_address(queue.broker)
        return (await self._member.instance.ask(address, code, ext)).ext

    async def _keep_committing(self, seconds: float) -> None:
        job = Job(f"committing the positions of group {self._member.group}")
        while True:
            await asyncio.sleep(seconds)
            with job:
                await self._keep_settled(self._queues.values())

    async def _keep_settled(self, queues: Iterable[Prefetch]) -> None:
        """Commit what is done with, unless that is the consumer's own business."""
        if self._commit_seconds is None:
            return
        news = {
            each.queue: each.settled
            for each in queues
            if each.settled is not None and each.settled != each.committed
        }
        try:
            await self.write(news)
        except OnelogError as error:
            log.warning("positions of group %s are not committed: %s", self._member.group, error)

    # For those who ask how it stands.

    async def lag(self) -> dict[Queue, int]:
        """How many messages of each queue were not handed out yet."""
        behind = {}
        for queue in self.assigned:
            end = await self.offset_at(queue, RequestCode.GET_MAX_OFFSET)
            behind[queue] = max(0, end - await self.position(queue))
        return behind

    def positions(self, topic: str) -> dict[Queue, int]:
        """How far each queue of a topic is."""
        return {
            queue: each.settled
            for queue, each in self._queues.items()
            if queue.topic == topic and each.settled is not None
        }

    async def reset(self, offsets: Mapping[Queue, int]) -> None:
        """Go on from these offsets, in those of the queues that are assigned."""
        for queue, offset in offsets.items():
            if queue in self._queues:
                self.seek(queue, offset)

    def queue_table(self) -> dict[Queue, ProcessQueueInfo]:
        """How each queue stands."""
        return {queue: each.info() for queue, each in self._queues.items()}

    def pop_table(self) -> dict[Queue, PopQueueInfo]:
        """Nothing is popped here."""
        return {}
