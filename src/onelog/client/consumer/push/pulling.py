"""Pulling: a queue is one member's, and each pull commits how far that member is.

The messages in hand are in a `ProcessQueue`. They are added in the order of the queue and finish in
any order. What may be committed is the offset of the first unfinished one, so a consumer that
starts again there misses nothing. Positions go to the brokers with every pull, and every 5 s.

Invariants: the committed offset never passes a message that was not consumed, given back or, when
broadcasting, given up; and it never goes back. A `dropped` queue neither pulls nor commits. A queue
is in `_queues` from the moment its position is known until it is released.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from onelog.client.connection.nodes import at_once
from onelog.client.consumer.fetching import (
    HOLD_MS,
    FetchedQueue,
    Fetching,
    Membership,
    first_offset,
)
from onelog.client.consumer.listening import RetryLater
from onelog.client.consumer.offsets import LocalOffsets, offset_at
from onelog.client.consumer.push.send_back import SendBack
from onelog.client.message import Queue, ReceivedMessage
from onelog.errors import OnelogError
from onelog.message import Message as Record
from onelog.message import QueueOffset
from onelog.net.line import Following
from onelog.net.peer import Peer
from onelog.net.tasks import repeat
from onelog.record.decode import decode_records
from onelog.record.inner_batch import unwrapped
from onelog.wire.remoting import fields
from onelog.wire.remoting.clients import ProcessQueueInfo
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command

PULL_COUNT = 256
"""Messages to ask for at a time. Brokers give at most what they are configured to, usually 32."""
BUSY_SECONDS = 0.02
COMMIT_SECONDS = 5.0
SETTLE_SECONDS = 3.0
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


class PulledQueue(FetchedQueue):
    """One queue of this member: a source of messages."""

    code = RequestCode.PULL_MESSAGE
    commits: ClassVar[bool] = True
    """Whether pulls commit how far this consumer is."""

    def __init__(
        self,
        queue: Queue,
        process_queue: ProcessQueue,
        member: Membership,
        owner: Fetching,
        send_back: SendBack | None = None,
    ) -> None:
        """`send_back` is None for those who do not give messages back."""
        super().__init__(queue, member, owner)
        self.process_queue = process_queue
        self.committed = -1
        """What was committed last."""
        self.pulled_ms = 0
        self.consumed_ms = 0
        self._send_back = send_back
        self._following: Following | None = None
        self._returning: set[asyncio.Task[None]] = set()

    # Pulling.

    def _has_room(self) -> bool:
        settings, process_queue = self._member.settings, self.process_queue
        return not process_queue or (
            len(process_queue) < settings.prefetch_count
            and process_queue.bytes_in_hand < settings.prefetch_bytes
            and (settings.orderly or process_queue.span < settings.prefetch_span)
        )

    def _request(self) -> dict[str, str]:
        queue, member = self.queue, self._member
        flags, offset = HOLD_FLAG, 0
        if self.commits and not member.settings.broadcasting and self._is_at_master:
            flags |= COMMIT_FLAG
            offset = self.committed = self.process_queue.committable
        wanted = self._filter
        count = member.settings.prefetch_count - len(self.process_queue)
        return {
            "consumerGroup": member.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(self.process_queue.next_offset),
            "maxMsgNums": str(min(PULL_COUNT, max(1, count))),
            "sysFlag": str(flags),
            "commitOffset": str(offset),
            "suspendTimeoutMillis": str(HOLD_MS),
            "subVersion": str(0 if wanted is None else wanted.version),
            "expressionType": "TAG" if wanted is None else wanted.kind,
            "bname": queue.broker,
        }

    def _answered_late(self, answer: Command | OnelogError) -> None:
        if isinstance(answer, Command) and answer.remark == RESET_REMARK:
            # The broker says so once, to whichever pull is the first, and that was one of the past.
            self._take(answer)

    def _take(self, answer: Command) -> None:
        code = answer.code
        if code == ResponseCode.SUCCESS:
            self._found(answer)
        elif code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            self.process_queue.add([], fields.number(answer.ext, "nextBeginOffset"))
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            offset = fields.number(answer.ext, "nextBeginOffset")
            log.info("%s goes on at %d: %s", self.queue, offset, answer.remark)
            self._moved(offset)
            return
        elif code in (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL):
            self._fetch_later(BUSY_SECONDS)
            return
        else:
            raise self._refused(answer)
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
        fresh = self.process_queue.add(messages, fields.number(answer.ext, "nextBeginOffset"))
        if fresh:
            self._hand_over(fresh)

    def _hand_over(self, messages: list[ReceivedMessage]) -> None:
        self._member.submit(self, messages)

    # Following, where the broker is on this very loop: nothing is asked for, and nothing decoded.

    def _follows(self, peer: Peer) -> bool:
        line, wanted = peer.connection.line, self._filter
        if line is None or (wanted is not None and not wanted.is_everything):
            return False
        self._following = line.follow(
            self._member.group,
            self.queue.topic,
            self.queue.queue_id,
            self.process_queue.next_offset,
            self._arrived,
        )
        return self._following is not None

    def _arrived(self, record: Record | None) -> bool:
        """The next message is there; or, without one, it has to be pulled."""
        if record is None:
            self._following, self._is_fetching = None, False
            self.fetch()
            return False
        message = ReceivedMessage(record, self.queue.broker)
        self.process_queue.add_next(message)
        self._hand_over([message])
        self.pulled_ms = record.store_ms
        self._member.rates.pulled(self.queue.topic, 0.0, 1)
        if self._has_room() and self._owner.may_fetch():
            return True
        self._following, self._is_fetching = None, False
        return False

    def drop(self) -> None:
        super().drop()
        if self._following is not None:
            self._following.stop()
            self._following = None

    # How consuming went.

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        self.process_queue.finish([message.raw.queue_offset for message in messages])
        self.consumed_ms = time.time_ns() // 1_000_000
        self.fetch()

    def failed(self, messages: Sequence[ReceivedMessage], error: BaseException) -> None:
        """A listener raised: give the messages back, or give them up when broadcasting."""
        if self._member.settings.broadcasting:
            log.warning("%d messages are given up: nobody retries a broadcast", len(messages))
            self.done(messages)
        elif not self.dropped:
            level = error.delay_level if isinstance(error, RetryLater) else 0
            self._give_back(messages, level)

    def expired(self, messages: Sequence[ReceivedMessage]) -> None:
        """A listener has them for too long: another one may try."""
        if self._member.settings.broadcasting:
            self.done(messages)
        elif not self.dropped:
            self._give_back(messages, EXPIRED_LEVEL)

    def returned(self, messages: Sequence[ReceivedMessage]) -> None:
        """No listener will have them: they stay unfinished, and come again to the next member."""

    def _give_back(self, messages: Sequence[ReceivedMessage], delay_level: int) -> None:
        for message in messages:
            task = self._member.instance.spawn(self._give_back_one(message, delay_level))
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

    def info(self) -> ProcessQueueInfo:
        process_queue = self.process_queue
        return ProcessQueueInfo(
            cached_msg_count=len(process_queue),
            cached_msg_max_offset=max(0, process_queue.last_offset),
            cached_msg_min_offset=process_queue.committable if process_queue else 0,
            cached_msg_size_in_mi_b=process_queue.bytes_in_hand >> 20,
            commit_offset=process_queue.committable,
            droped=self.dropped,
            last_consume_timestamp=self.consumed_ms,
            last_pull_timestamp=self.pulled_ms,
        )


class PullFetching(Fetching):
    """The queues of one member that pulls."""

    kind: ClassVar[type[PulledQueue]] = PulledQueue
    _queues: dict[Queue, PulledQueue]

    def __init__(self, member: Membership, client_id: str | None = None) -> None:
        super().__init__(member)
        self._send_back = SendBack(member.instance, member.group, member.settings.retries_max)
        self._offsets = member.offsets(client_id)

    # Life.

    async def start(self) -> None:
        if isinstance(self._offsets, LocalOffsets):
            await self._offsets.load()
        self._spawn(self._keep_balanced(await self._rebalance()))
        name = f"committing the positions of group {self._member.group}"
        self._spawn(repeat(name, COMMIT_SECONDS, self._commit_changed))

    async def close(self) -> None:
        """Commit, and let other members have the queues."""
        queues, self._queues = self._queues, {}
        await at_once(lambda queue: queue.settle(SETTLE_SECONDS), queues.values())
        await self._offsets.write(_positions(queues.values()))
        for queue in queues.values():
            queue.drop()
        await self._let_go(queues)

    # Sharing out.

    async def _take(self, topic: str, wanted: list[Queue]) -> bool:
        missing = [each for each in wanted if each not in self._queues]
        ours = await self._lock(missing) if missing else missing
        begun = await at_once(self._begin, ours)
        return all(begun) and len(ours) == len(missing)

    async def _lock(self, queues: list[Queue]) -> list[Queue]:
        """Those of the queues that no other member consumes any more, if that matters."""
        return queues

    async def _begin(self, queue: Queue) -> bool:
        try:
            offset = await first_offset(self._member, self._offsets, queue)
        except OnelogError as error:
            log.info("where to begin in %s is not known yet: %s", queue, error)
            return False
        if not self._is_stopped:
            self._add(queue, offset)
        return True

    def _add(self, queue: Queue, offset: int) -> None:
        added = self.kind(queue, ProcessQueue(offset), self._member, self, self._send_back)
        self._queues[queue] = added
        log.info("group %s consumes %s from %d on", self._member.group, queue, offset)
        added.fetch()

    async def _release(self, queues: Collection[Queue]) -> None:
        released = [self._queues.pop(queue) for queue in queues]
        if not released:
            return
        for queue in released:
            log.info("group %s leaves %s to another member", self._member.group, queue.queue)
            queue.drop()
        await self._offsets.write(_positions(released))
        for queue in released:
            self._left(queue)

    def _left(self, queue: PulledQueue) -> None:
        """A queue was released; a listener may still have messages of it."""

    async def _let_go(self, queues: Iterable[Queue]) -> None:
        """Let other members have queues, if brokers keep locks on them."""

    def moved(self, queue: Queue, offset: int) -> None:
        """A broker sends us elsewhere: what is in hand belongs to the past."""
        if queue in self._queues and not self._is_stopped:
            self._queues[queue].drop()
            self._offsets.write_soon({queue: offset})
            self._add(queue, offset)

    # Positions.

    async def commit(self) -> None:
        await self._offsets.write(_positions(self._queues.values()))

    def _commit_changed(self) -> None:
        strayed = self._offsets.strayed
        changed = [
            each
            for each in self._queues.values()
            if each.process_queue.committable != each.committed or each.queue in strayed
        ]
        self._offsets.write_soon(_positions(changed))

    async def lag(self) -> dict[Queue, int]:
        queues = list(self._queues.values())
        instance, last = self._member.instance, RequestCode.GET_MAX_OFFSET
        ends = await at_once(lambda each: offset_at(instance, each.queue, last), queues)
        return {
            each.queue: max(0, end - each.process_queue.committable)
            for each, end in zip(queues, ends, strict=True)
        }

    def positions(self, topic: str) -> dict[Queue, int]:
        return _positions(each for each in self._queues.values() if each.queue.topic == topic)


def _positions(queues: Iterable[PulledQueue]) -> dict[Queue, int]:
    positions = {}
    for each in queues:
        each.committed = positions[each.queue] = each.process_queue.committable
    return positions
