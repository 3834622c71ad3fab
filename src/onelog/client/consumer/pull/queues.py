"""The queues of a pull consumer: how they are fetched ahead, come and go, and how far each is.

Queues are assigned by hand, or shared out among the members of the group: then anew every 20 s, and
at once when the members or a topic's queues change. A broker holds a fetch that finds nothing until
something arrives. Nothing is fetched while enough messages wait, or while the queue is paused.

Invariants: messages are handed out in the order of their queue, none twice and none left out, until
somebody seeks another offset; `position` is the offset of the next one. An automatic commit never
passes a message of the last poll, because its consumer may still be at work with it.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onelog.client.connection.nodes import end_all, forgiven, refusal
from onelog.client.consumer.offsets import offset_at
from onelog.client.consumer.push.fetching import Fetching, Membership
from onelog.client.consumer.push.pulling import pulled_records
from onelog.client.consumer.rebalance import keep_balanced, member_offsets, share_of
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
from onelog.jobs import Job
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.running_info import ProcessQueueInfo

FETCH_COUNT = 256
"""Messages to ask for at a time. Brokers give at most what they are configured to, usually 32."""
HOLD_MS = 15_000
"""How long a broker may hold a request."""
TIMEOUT_MS = 30_000
AGAIN_SECONDS = 1.0
"""After an error; the brokers may be about to come back."""
BUSY_SECONDS = 0.02

HOLD_FLAG, SUBSCRIPTION_FLAG = 2, 4
PASSING = (PeerClosedError, PeerTimeoutError, BrokerNotFoundError, NameserversUnreachableError)
"""Errors that need no attention: it is tried again until it works."""

_NOTHING = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})
_BUSY = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
_EVERY_CODE = frozenset(map(int, ResponseCode))

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Fetched:
    """Messages of one answer, and where the queue goes on after them."""

    messages: list[ReceivedMessage]
    next_offset: int
    at: int = 0


class Prefetch:
    """One queue. To be made, and used, on the consumer's loop."""

    def __init__(
        self, queue: Queue, wanted: TopicFilter, member: Membership, ready: Callable[[], None]
    ) -> None:
        self.queue = queue
        self.wanted = wanted
        self.position: int | None = None
        """None until it is known where to begin."""
        self.settled: int | None = None
        """Everything before this offset was done with when the consumer asked for more."""
        self.committed: int | None = None
        """What is kept of it elsewhere, as far as we know."""
        self.error: OnelogError | None = None
        """Why nothing is fetched, until somebody has been told."""
        self._member = member
        self._ready = ready
        self._fetched: deque[_Fetched] = deque()
        self._count = self._bytes = 0
        self._fetch_at = 0
        self._broker_id = 0
        self.is_paused = False
        self.known = asyncio.Event()
        """Whether it is known where to begin, or does not matter any more."""
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # What the consumer does with it.

    def begin(self, offset: int) -> None:
        """Fetch from here on; what was fetched and not taken is forgotten."""
        self.stop()
        self._fetched.clear()
        self._count = self._bytes = 0
        self.position = self.settled = self._fetch_at = offset
        self.known.set()
        self._look_for_room()
        self._task = self._member.instance.spawn(self._fetch_on())

    def stop(self) -> None:
        """Fetch nothing more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def pause(self) -> None:
        """Neither fetch nor hand out."""
        self.is_paused = True
        self._look_for_room()

    def resume(self) -> None:
        """Go on."""
        self.is_paused = False
        self._look_for_room()
        if self._fetched:
            self._ready()

    @property
    def is_ready(self) -> bool:
        """Whether there is something to hand out."""
        return bool(self._fetched) and not self.is_paused

    def take(self, count_max: int) -> list[ReceivedMessage]:
        """The next messages, so many at most."""
        taken: list[ReceivedMessage] = []
        while self.is_ready and len(taken) < count_max:
            fetched = self._fetched[0]
            some = fetched.messages[fetched.at : fetched.at + count_max - len(taken)]
            taken += some
            fetched.at += len(some)
            if fetched.at == len(fetched.messages):
                self._fetched.popleft()
                self.position = fetched.next_offset
            else:
                self.position = fetched.messages[fetched.at].raw.queue_offset
        self._count -= len(taken)
        self._bytes -= sum(len(message.raw.body) for message in taken)
        self._look_for_room()
        return taken

    # Fetching.

    def _look_for_room(self) -> None:
        settings = self._member.settings
        if (
            not self.is_paused
            and self._count < settings.prefetch_count
            and self._bytes < settings.prefetch_bytes
        ):
            self._room.set()
        else:
            self._room.clear()

    async def _fetch_on(self) -> None:
        job = Job(f"fetching {self.queue}")
        while True:
            await self._room.wait()
            with job:
                await self._fetch()
            if job.failed:
                await asyncio.sleep(AGAIN_SECONDS)

    async def _fetch(self) -> None:
        try:
            self._take_answer(await self._ask())
        except PASSING as error:
            log.info("%s cannot be fetched now: %s", self.queue, error)
            await self._look_around()
        except OnelogError as error:
            log.warning("%s cannot be fetched: %s", self.queue, error)
            self.error = error
            self._ready()
            await self._look_around()

    async def _look_around(self) -> None:
        self._broker_id = 0
        await self._member.instance.routes.refresh_quietly(self.queue.topic)
        await asyncio.sleep(AGAIN_SECONDS)

    async def _ask(self) -> Command:
        queue, member = self.queue, self._member
        route = await member.instance.routes.get(queue.topic)
        address = route.reading_address(queue.broker, broker_id=self._broker_id)
        room = member.settings.prefetch_count - self._count
        ext = {
            "consumerGroup": member.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(self._fetch_at),
            "maxMsgNums": str(min(FETCH_COUNT, max(1, room))),
            "sysFlag": str(HOLD_FLAG | SUBSCRIPTION_FLAG),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(HOLD_MS),
            "subscription": self.wanted.expression,
            "subVersion": str(self.wanted.version),
            "expressionType": self.wanted.kind,
            "bname": queue.broker,
        }
        while True:
            code = RequestCode.PULL_MESSAGE
            answer = await member.instance.ask(
                address, code, ext, timeout_ms=TIMEOUT_MS, accept=_EVERY_CODE
            )
            if answer.code not in _BUSY:
                break
            await asyncio.sleep(BUSY_SECONDS)
        if answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
            raise FilterSyntaxError(f"the filter on {queue.topic}: {answer.remark}")
        known = (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED)
        if answer.code not in known and answer.code not in _NOTHING:
            raise refusal(address, code, answer)
        return answer

    def _take_answer(self, answer: Command) -> None:
        next_offset = fields.number(answer.ext, "nextBeginOffset")
        self._broker_id = fields.int32(answer.ext, "suggestWhichBrokerId", 0)
        self.error = None
        if answer.code == ResponseCode.SUCCESS:
            messages = self._messages(answer)
            if messages:
                self._fetch_at = next_offset
                self._fetched.append(_Fetched(messages, next_offset))
                self._count += len(messages)
                self._bytes += sum(len(message.raw.body) for message in messages)
                self._look_for_room()
                self._ready()
                return
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
            log.info("%s goes on at %d: %s", self.queue, next_offset, answer.remark)
        self._fetch_at = next_offset
        if self._fetched:
            self._fetched[-1].next_offset = next_offset
        else:
            self.position = next_offset

    def _messages(self, answer: Command) -> list[ReceivedMessage]:
        records = self.wanted.wanted(pulled_records(answer))
        first, broker = self._fetch_at, self.queue.broker
        # A batch in one record comes whole, also if it was asked for from its middle on.
        return [ReceivedMessage(each, broker) for each in records if each.queue_offset >= first]

    # For the tools.

    def info(self) -> ProcessQueueInfo:
        """How this queue stands."""
        first = self.position or 0
        last = self._fetched[-1].messages[-1].raw.queue_offset if self._fetched else 0
        return ProcessQueueInfo(
            cached_msg_count=self._count,
            cached_msg_max_offset=last,
            cached_msg_min_offset=first if self._fetched else 0,
            cached_msg_size_in_mi_b=self._bytes >> 20,
            commit_offset=self.settled or 0,
        )


class PullQueues(Fetching):
    """The assigned queues; the one whose turn it is comes first."""

    _queues: dict[Queue, Prefetch]

    def __init__(
        self, member: Membership, client_id: str | None, commit_seconds: float | None
    ) -> None:
        super().__init__(member)
        self._commit_seconds = commit_seconds
        """None if nothing is committed without being asked for."""
        self._offsets = member_offsets(member, client_id, is_exact=True)
        self._ready = asyncio.Event()
        self._shares = False
        self._tasks: list[asyncio.Task[None]] = []

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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ready.wait()

    def wake(self) -> None:
        """Have whoever waits look what there is."""
        self._ready.set()

    def settle(self) -> None:
        """The consumer asks for more: it is done with what it was given before."""
        for each in self._queues.values():
            each.settled = each.position

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
        """Begin to commit."""
        if self._commit_seconds is not None:
            self._spawn(self._keep_committing(self._commit_seconds))

    def share(self) -> None:
        """From now on the queues are those that the group leaves to this member."""
        if not self._shares:
            self._shares = True
            self._spawn(
                keep_balanced(self._member.group, self._wake, self._rebalance, balanced=True)
            )
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
        await end_all(self._tasks)
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
        self._member.instance.spawn(self._open(each))

    def _remove(self, queue: Queue) -> None:
        each = self._queues.pop(queue)
        each.stop()
        each.known.set()

    async def _open(self, each: Prefetch) -> None:
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
        each.known.set()

    # Positions.

    async def position(self, queue: Queue) -> int:
        """The offset of the next message of a queue that will be handed out."""
        each = self.get(queue)
        if each.position is None:
            try:
                async with asyncio.timeout(self._member.instance.timeout_ms / 1000):
                    await each.known.wait()
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

    async def committed(self, queue: Queue) -> int | None:
        """What is kept of a queue for the group; None if nothing is."""
        return await self._offsets.read(queue)

    async def _first(self, queue: Queue) -> int:
        """Where a group begins that has no position yet."""
        start = self._member.settings.start
        first, last = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET
        place = first if start == "first" else last
        return await self.offset_at(queue, start if isinstance(start, datetime) else place)

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

    async def offset_at(self, queue: Queue, place: datetime | RequestCode) -> int:
        """The offset of the first message of a time or later, or what a request gives."""
        return await offset_at(self._member.instance, queue, place)

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
        what = "positions of group %s are not committed"
        with forgiven(log, what, self._member.group, level=logging.WARNING):
            await self.write(news)

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
