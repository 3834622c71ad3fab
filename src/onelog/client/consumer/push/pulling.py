"""Pulling one queue: one request at a time, without a task or thread that waits for it.

A broker holds a pull that finds nothing until something arrives. Each pull tells the broker how far
this consumer is. Nothing is pulled while too much is in hand.

The messages in hand are in a `ProcessQueue`. They are added in the order of the queue and finish in
any order. What may be committed is the offset of the first unfinished one, so a consumer that
starts again there misses nothing.

Invariants: the committed offset never passes a message that was not consumed, given back or, when
broadcasting, given up; and it never goes back. A `dropped` queue neither pulls nor commits.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import ClassVar

from onelog.client.connection.address import Address
from onelog.client.connection.nodes import refusal
from onelog.client.consumer.listening import RetryLater
from onelog.client.consumer.push.fetching import Fetching, Membership
from onelog.client.consumer.push.send_back import SendBack
from onelog.client.consumer.topic_filters import TopicFilter
from onelog.client.message import Queue, ReceivedMessage
from onelog.errors import OnelogError, PeerTimeoutError, WireError
from onelog.message import Message as Record
from onelog.message import QueueOffset
from onelog.net.line import Following, Line
from onelog.record.decode import decode_records
from onelog.record.inner_batch import unwrapped
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.running_info import ProcessQueueInfo

PULL_COUNT = 256
"""Messages to ask for at a time. Brokers give at most what they are configured to, usually 32."""
HOLD_MS = 15_000
"""How long a broker may hold a pull."""
TIMEOUT_MS = 30_000
RETRY_SECONDS = 1.0
"""After an error; the brokers may be about to come back."""
BUSY_SECONDS = 0.02
GIVE_BACK_SECONDS = (1.0, 2.0, 5.0, 10.0)
"""How long to wait before the next tries when no broker took a message; the last is repeated."""
EXPIRED_LEVEL = 3
"""The delay after which a message comes again that a listener has for too long."""

COMMIT_FLAG, HOLD_FLAG = 1, 2
RESET_REMARK = "OFFSET_RESET"
"""What brokers say when an administrator has moved the group."""

log = logging.getLogger(__name__)


def pulled_records(answer: Command) -> list[Record]:
    """The messages of an answer to a pull, one by one, at the offsets of the queue."""
    records = unwrapped(decode_records(answer.body))
    delta = fields.number(answer.ext, "offsetDelta", 0)
    if not delta:
        return records
    return [each._replace(queue_offset=QueueOffset(each.queue_offset + delta)) for each in records]


class ProcessQueue:
    """The messages in hand of one queue."""

    __slots__ = ("_order", "_sizes", "bytes_in_hand", "next_offset")

    def __init__(self, offset: int) -> None:
        self.next_offset = offset
        """From where to fetch on; everything before it was added, or is not wanted."""
        self.bytes_in_hand = 0
        self._sizes: dict[int, int] = {}
        self._order: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> list[ReceivedMessage]:
        """Take messages that were fetched at `next_offset`, and the one to fetch at now.

        The answer is those of them that are new: a batch in one record comes whole, also if it was
        asked for from its middle on.
        """
        if messages and messages[0].raw.queue_offset < self.next_offset:
            start = self.next_offset
            messages = [each for each in messages if each.raw.queue_offset >= start]
        records = [message.raw for message in messages]
        offsets = [record.queue_offset for record in records]
        sizes = [len(record.body) for record in records]
        self._order.extend(offsets)
        self._sizes.update(zip(offsets, sizes, strict=True))
        self.bytes_in_hand += sum(sizes)
        self.next_offset = max(self.next_offset, next_offset)
        return list(messages)

    def add_next(self, message: ReceivedMessage) -> None:
        """Take the one message that was to be fetched next."""
        record = message.raw
        offset = record.queue_offset
        assert offset == self.next_offset
        self._order.append(offset)
        self._sizes[offset] = size = len(record.body)
        self.bytes_in_hand += size
        self.next_offset = offset + 1

    def finish(self, offsets: Iterable[int]) -> None:
        """Messages are consumed, or need not be any more. One that is not in hand is ignored."""
        sizes = self._sizes
        for offset in offsets:
            self.bytes_in_hand -= sizes.pop(offset, 0)

    def __contains__(self, offset: int) -> bool:
        return offset in self._sizes

    @property
    def committable(self) -> int:
        """Everything before this offset is finished."""
        order, sizes = self._order, self._sizes
        while order:
            if order[0] in sizes:
                return order[0]
            order.popleft()
        return self.next_offset

    @property
    def last_offset(self) -> int:
        """The offset of the last message that was added and may be unfinished; -1 if none is."""
        return self._order[-1] if self._sizes else -1

    @property
    def span(self) -> int:
        """How far it is from the first unfinished message to the last one that was fetched."""
        return self._order[-1] - self.committable if self._sizes else 0


@dataclass(eq=False)
class PulledQueue:
    """One queue of this member: a source of messages."""

    commits: ClassVar[bool] = True
    """Whether pulls tell the broker how far this consumer is."""
    queue: Queue
    offset: InitVar[int]
    _member: Membership
    _owner: Fetching
    _send_back: SendBack | None = None
    """None for those who do not give messages back."""
    hands: ProcessQueue = field(init=False)
    dropped: bool = False
    committed: int = -1
    """What the broker was told last."""
    pulled_ms: int = 0
    consumed_ms: int = 0
    _broker_id: int = 0
    _address: Address | None = None
    _is_at_master: bool = True
    _is_pulling: bool = False
    _following: Following | None = None
    _is_failing: bool = False
    _began: float = 0.0
    _later: asyncio.TimerHandle | None = None
    _returning: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self, offset: int) -> None:
        self.hands = ProcessQueue(offset)

    # Pulling.

    def pull(self) -> None:
        """Pull, unless that is being done, too much is in hand, or the queue is dropped."""
        if self._is_pulling or self.dropped or self._later is not None:
            return
        if not self._has_room() or not self._owner.may_fetch():
            return
        route = self._member.instance.routes.known(self.queue.topic)
        if route is None or self.queue.broker not in route.brokers:
            self._owner.look_around(self.queue.topic)
            self._pull_later(RETRY_SECONDS)
            return
        address = self._member.instance.reader(route, self.queue.broker, self._broker_id)
        self._is_at_master = address == route.brokers[self.queue.broker].master
        peer = self._member.instance.nodes.open_peer(address)
        self._is_pulling, self._address = True, address
        if peer is None:
            self._spawn(self._connect(address))
            return
        self._began = time.perf_counter()
        if peer.connection.line is not None and self._follows(peer.connection.line):
            return
        ext = self._member.instance.sign(self._request())
        peer.request(RequestCode.PULL_MESSAGE, ext, b"", TIMEOUT_MS, self._answered)

    def _has_room(self) -> bool:
        settings, hands = self._member.settings, self.hands
        return not hands or (
            len(hands) < settings.prefetch_count
            and hands.bytes_in_hand < settings.prefetch_bytes
            and (settings.orderly or hands.span < settings.prefetch_span)
        )

    @property
    def _filter(self) -> TopicFilter | None:
        return self._member.filters.get(self.queue.topic)

    def _request(self) -> dict[str, str]:
        queue, member = self.queue, self._member
        flags, offset = HOLD_FLAG, 0
        if self.commits and not member.settings.broadcasting and self._is_at_master:
            flags |= COMMIT_FLAG
            offset = self.committed = self.hands.committable
        wanted = self._filter
        count = member.settings.prefetch_count - len(self.hands)
        return {
            "consumerGroup": member.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(self.hands.next_offset),
            "maxMsgNums": str(min(PULL_COUNT, max(1, count))),
            "sysFlag": str(flags),
            "commitOffset": str(offset),
            "suspendTimeoutMillis": str(HOLD_MS),
            "subVersion": str(0 if wanted is None else wanted.version),
            "expressionType": "TAG" if wanted is None else wanted.kind,
            "bname": queue.broker,
        }

    async def _connect(self, address: Address) -> None:
        try:
            await self._member.instance.nodes.peer(address)
        except OnelogError as error:
            self._is_pulling = False
            self._fail(error)
            if self._has_another(address):
                self._pull_at_once()
        else:
            self._is_pulling = False
            self.pull()

    def _has_another(self, address: Address) -> bool:
        """Whether another broker of the set is to be read from meanwhile."""
        route = self._member.instance.routes.known(self.queue.topic)
        if route is None or self.queue.broker not in route.brokers:
            return False
        return self._member.instance.reader(route, self.queue.broker) != address

    def _answered(self, answer: Command | OnelogError) -> None:
        self._is_pulling = False
        if self.dropped:
            if isinstance(answer, Command) and answer.remark == RESET_REMARK:
                # It is told once, to whichever pull is the first, and that was one of the past.
                self._take(answer)
            return
        if not isinstance(answer, Command):
            if isinstance(answer, PeerTimeoutError) and self._address is not None:
                self._member.instance.nodes.suspect(self._address)
            self._fail(answer)
            return
        try:
            self._take(answer)
        except Exception as error:
            self._fail(error)
            return
        self.pull()

    def _take(self, answer: Command) -> None:
        code = answer.code
        if code == ResponseCode.SUCCESS:
            self._found(answer)
        elif code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            self.hands.add([], fields.number(answer.ext, "nextBeginOffset"))
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            offset = fields.number(answer.ext, "nextBeginOffset")
            log.info("%s goes on at %d: %s", self.queue, offset, answer.remark)
            self._moved(offset)
            return
        elif code in (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL):
            self._pull_later(BUSY_SECONDS)
            return
        else:
            assert self._address is not None
            raise refusal(self._address, RequestCode.PULL_MESSAGE, answer)
        self._is_failing = False
        self._broker_id = fields.int32(answer.ext, "suggestWhichBrokerId", 0)

    def _moved(self, offset: int) -> None:
        self._owner.moved(self.queue, offset)

    def _found(self, answer: Command) -> None:
        records = pulled_records(answer)
        now = time.perf_counter()
        self._member.rates.pulled(self.queue.topic, now - self._began, len(records))
        self.pulled_ms = time.time_ns() // 1_000_000
        wanted = self._filter
        if wanted is not None:
            records = wanted.wanted(records)
        broker = self.queue.broker
        messages = [ReceivedMessage(record, broker) for record in records]
        fresh = self.hands.add(messages, fields.number(answer.ext, "nextBeginOffset"))
        if fresh:
            self._hand_over(fresh)

    def _hand_over(self, messages: list[ReceivedMessage]) -> None:
        self._member.submit(self, messages)

    # Following, where the broker is on this very loop: nothing is asked for, and nothing decoded.

    def _follows(self, line: Line) -> bool:
        wanted = self._filter
        if wanted is not None and not wanted.is_everything:
            return False
        self._following = line.follow(
            self._member.group,
            self.queue.topic,
            self.queue.queue_id,
            self.hands.next_offset,
            self._arrived,
        )
        return self._following is not None

    def _arrived(self, record: Record | None) -> bool:
        """The next message is there; or, without one, it has to be pulled."""
        if record is None:
            self._following, self._is_pulling = None, False
            self.pull()
            return False
        message = ReceivedMessage(record, self.queue.broker)
        self.hands.add_next(message)
        self._hand_over([message])
        self.pulled_ms = record.store_ms
        self._member.rates.pulled(self.queue.topic, 0.0, 1)
        if self._has_room() and self._owner.may_fetch():
            return True
        self._following, self._is_pulling = None, False
        return False

    def _fail(self, error: Exception) -> None:
        level = logging.DEBUG if self._is_failing else logging.WARNING
        bug = None if isinstance(error, OnelogError) else error
        log.log(level, "%s cannot be pulled now: %s", self.queue, error, exc_info=bug)
        self._is_failing = True
        self._broker_id = 0
        self._pull_later(RETRY_SECONDS)
        if not isinstance(error, WireError):
            self._owner.look_around(self.queue.topic)

    def _pull_later(self, seconds: float) -> None:
        if not self.dropped and self._later is None:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(seconds, self._pull_now)

    def _pull_now(self) -> None:
        self._later = None
        self.pull()

    def _pull_at_once(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._pull_now()

    def drop(self) -> None:
        """This queue is not ours any more."""
        self.dropped = True
        if self._following is not None:
            self._following.stop()
            self._following = None
        if self._later is not None:
            self._later.cancel()
            self._later = None

    # How consuming went.

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        self.hands.finish([message.raw.queue_offset for message in messages])
        self.consumed_ms = time.time_ns() // 1_000_000
        self.pull()

    def failed(self, messages: Sequence[ReceivedMessage], error: BaseException) -> None:
        """A listener raised: give the messages back, or give them up when broadcasting."""
        if self._member.settings.broadcasting:
            log.warning("%d messages are given up: nobody retries a broadcast", len(messages))
            self.done(messages)
        elif not self.dropped:
            level = error.delay_level if isinstance(error, RetryLater) else 0
            self._give_back(messages, level)

    def expired(self, messages: Sequence[ReceivedMessage]) -> None:
        """A listener has them for too long: somebody else may try."""
        if self._member.settings.broadcasting:
            self.done(messages)
        elif not self.dropped:
            self._give_back(messages, EXPIRED_LEVEL)

    def returned(self, messages: Sequence[ReceivedMessage]) -> None:
        """No listener will have them: they stay unfinished, and come again to whoever is next."""

    def _give_back(self, messages: Sequence[ReceivedMessage], delay_level: int) -> None:
        for message in messages:
            task = self._spawn(self._give_back_one(message, delay_level))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _give_back_one(self, message: ReceivedMessage, delay_level: int) -> None:
        tried = 0
        while not self.dropped:
            try:
                assert self._send_back is not None
                await self._send_back(message, delay_level)
            except OnelogError as error:
                seconds = GIVE_BACK_SECONDS[min(tried, len(GIVE_BACK_SECONDS) - 1)]
                log.warning("%s is not given back, once more in %g s: %s", message, seconds, error)
                await asyncio.sleep(seconds)
                tried += 1
            else:
                self.done((message,))
                return

    async def settle(self, seconds: float) -> None:
        """Wait until the messages are given back that are on their way, but not for long."""
        if self._returning:
            await asyncio.wait(self._returning, timeout=seconds)

    async def wait_until_left(self) -> None:
        """Wait until another member may have the queue, if that matters."""

    @property
    def has_news(self) -> bool:
        """Whether the broker does not know yet how far this queue is."""
        return self.hands.committable != self.committed

    # For the tools.

    def info(self) -> ProcessQueueInfo:
        hands = self.hands
        return ProcessQueueInfo(
            cached_msg_count=len(hands),
            cached_msg_max_offset=max(0, hands.last_offset),
            cached_msg_min_offset=hands.committable if hands else 0,
            cached_msg_size_in_mi_b=hands.bytes_in_hand >> 20,
            commit_offset=hands.committable,
            droped=self.dropped,
            last_consume_timestamp=self.consumed_ms,
            last_pull_timestamp=self.pulled_ms,
        )

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        return self._member.instance.spawn(coroutine)
