"""One queue of a pull consumer, fetched ahead of those who ask for its messages.

A request that finds nothing is held by the broker until something arrives. Nothing is fetched while
as much is waiting as may be, or while the queue is paused.

Invariants: messages are handed out in the order of the queue, none twice and none left out, until
somebody seeks another place; `position` is the offset of the next one, and everything before it was
handed out or is not wanted.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from onelog.client.connection.nodes import refusal
from onelog.client.consumer.push.fetching import Membership
from onelog.client.consumer.topic_filters import TopicFilter
from onelog.client.message import Queue, ReceivedMessage
from onelog.errors import (
    BrokerNotFoundError,
    FilterSyntaxError,
    NameserversUnreachableError,
    OnelogError,
    PeerClosedError,
    PeerTimeoutError,
)
from onelog.jobs import Job
from onelog.message import QueueOffset
from onelog.record.decode import decode_records
from onelog.record.inner_batch import unwrapped
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


class _Run:
    """Messages of one answer, and where the queue goes on after them."""

    __slots__ = ("at", "messages", "next_offset")

    def __init__(self, messages: list[ReceivedMessage], next_offset: int) -> None:
        self.messages = messages
        self.at = 0
        self.next_offset = next_offset


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
        self._runs: deque[_Run] = deque()
        self._count = self._bytes = 0
        self._fetch_at = 0
        self._broker_id = 0
        self._is_paused = False
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # What the consumer does with it.

    def begin(self, offset: int) -> None:
        """Fetch from here on; what was fetched and not taken is forgotten."""
        self.stop()
        self._runs.clear()
        self._count = self._bytes = 0
        self.position = self.settled = self._fetch_at = offset
        self._look_for_room()
        self._task = self._member.instance.spawn(self._fetch_on())

    def stop(self) -> None:
        """Fetch nothing more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    @property
    def is_paused(self) -> bool:
        """Whether nothing is fetched or handed out for the time being."""
        return self._is_paused

    def pause(self) -> None:
        """Neither fetch nor hand out."""
        self._is_paused = True
        self._look_for_room()

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        self._look_for_room()
        if self._runs:
            self._ready()

    @property
    def is_ready(self) -> bool:
        """Whether there is something to hand out."""
        return bool(self._runs) and not self._is_paused

    def take(self, count_max: int) -> list[ReceivedMessage]:
        """The next messages, so many at most."""
        taken: list[ReceivedMessage] = []
        while self.is_ready and len(taken) < count_max:
            run = self._runs[0]
            some = run.messages[run.at : run.at + count_max - len(taken)]
            taken += some
            run.at += len(some)
            if run.at == len(run.messages):
                self._runs.popleft()
                self.position = run.next_offset
            else:
                self.position = run.messages[run.at].raw.queue_offset
        self._count -= len(taken)
        self._bytes -= sum(len(message.raw.body) for message in taken)
        self._look_for_room()
        return taken

    # Fetching.

    def _look_for_room(self) -> None:
        settings = self._member.settings
        if (
            not self._is_paused
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
        try:
            await self._member.instance.routes.refresh(self.queue.topic)
        except OnelogError as error:
            log.debug("the route of %s stays as it was: %s", self.queue.topic, error)
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
                self._runs.append(_Run(messages, next_offset))
                self._count += len(messages)
                self._bytes += sum(len(message.raw.body) for message in messages)
                self._look_for_room()
                self._ready()
                return
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
            log.info("%s goes on at %d: %s", self.queue, next_offset, answer.remark)
        self._fetch_at = next_offset
        if self._runs:
            self._runs[-1].next_offset = next_offset
        else:
            self.position = next_offset

    def _messages(self, answer: Command) -> list[ReceivedMessage]:
        records = self.wanted.wanted(unwrapped(decode_records(answer.body)))
        delta = fields.number(answer.ext, "offsetDelta", 0)
        if delta:
            records = [
                each._replace(queue_offset=QueueOffset(each.queue_offset + delta))
                for each in records
            ]
        first, broker = self._fetch_at, self.queue.broker
        # A batch in one record comes whole, also if it was asked for from its middle on.
        return [ReceivedMessage(each, broker) for each in records if each.queue_offset >= first]

    # For the tools.

    def info(self) -> ProcessQueueInfo:
        """How this queue stands."""
        first = self.position or 0
        last = self._runs[-1].messages[-1].raw.queue_offset if self._runs else 0
        return ProcessQueueInfo(
            cached_msg_count=self._count,
            cached_msg_max_offset=last,
            cached_msg_min_offset=first if self._runs else 0,
            cached_msg_size_in_mi_b=self._bytes >> 20,
            commit_offset=self.settled or 0,
        )
