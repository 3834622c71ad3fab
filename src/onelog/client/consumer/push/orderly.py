"""Consuming in order: one message of a queue at a time, and a queue with one member at a time.

A broker gives a queue's lock to one member of a group; it lasts for a minute and is renewed every
20 s. Brokers keep locks in memory, so a lock is as good as the connection that it came over: when
that ends, the broker may have forgotten it, or another one may be the master, and it is renewed
before the next message is given out.

A message that fails is tried again, after a pause in which its queue rests, until it succeeds or
has had its retries and becomes a dead letter.

Invariant: a message is given to a listener only while the queue's lock is held, and when every
message before it is finished.
"""

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from onelog.client.connection.instance import Instance
from onelog.client.connection.nodes import at_once, forgiven
from onelog.client.consumer.fetching import UNBALANCED_SECONDS, Membership
from onelog.client.consumer.listening import NobodyListensError, RetryLater, level_seconds
from onelog.client.consumer.offsets import body_of, queue_of
from onelog.client.consumer.push.pulling import PulledQueue, PullFetching
from onelog.client.message import Queue, ReceivedMessage
from onelog.errors import OnelogError
from onelog.jobs import Job
from onelog.net.peer import Peer
from onelog.wire.remoting.clients import LockAnswer, LockRequest, ProcessQueueInfo
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command

LOCK_SECONDS = 20.0
LOCK_TRUST_SECONDS = 30.0
"""A lock that was not renewed for so long is not relied on."""
LOCK_EXPIRY_SECONDS = 60.0
"""After which a broker gives it to others: what is in hand may be consumed by another member."""
SHAKEN_SECONDS = 0.5
"""How often it is looked whether the connections are there that locks came over."""
SUSPEND_SECONDS = 1.0
"""How long a queue rests after a failure."""
SUSPEND_SECONDS_MAX = 30
"""How long it rests at the most, whatever the delay level."""
RUN_MAX = 32
"""How many messages a worker is given at a time, if the listener is quick."""
QUICK_SECONDS = 0.002

log = logging.getLogger(__name__)


class OrderedQueue(PulledQueue):
    """A queue whose messages are consumed one after the other."""

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self._pending: deque[ReceivedMessage] = deque()
        self._again: list[ReceivedMessage] = []
        """Those of the last run that failed."""
        self._out = 0
        """How many messages are not here: with a worker, or becoming dead letters."""
        self._run_size = 1
        self._run_began = 0.0
        self._pause_seconds = SUSPEND_SECONDS
        self._resting: asyncio.TimerHandle | None = None
        self._has_failed = False
        self._is_over = False
        self._left = asyncio.Event()

    # One run of messages after the other.

    def resume(self) -> None:
        """Give out the next messages, if they may be."""
        if self._out or self._resting is not None or self._is_over or self.dropped:
            return
        if not self._pending or not self._owner.is_locked(self.queue):
            return
        # A retry topic has messages of several topics, and each topic has a listener of its own.
        topic = self._pending[0].topic
        run: list[ReceivedMessage] = []
        while self._pending and len(run) < self._run_size and self._pending[0].topic == topic:
            run.append(self._pending.popleft())
        self._out = len(run)
        self._has_failed = False
        self._run_began = time.perf_counter()
        self._member.submit(self, run)

    def _hand_over(self, messages: list[ReceivedMessage]) -> None:
        self._pending.extend(messages)
        self.resume()

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        super().done(messages)
        self._settle(len(messages))

    def failed(self, messages: Sequence[ReceivedMessage], error: BaseException) -> None:
        """A listener raised: the queue rests, and then they are tried again, or are dead."""
        self._has_failed = True
        level = error.delay_level if isinstance(error, RetryLater) else 0
        self._pause_seconds = SUSPEND_SECONDS
        if level > 0:
            self._pause_seconds = min(level_seconds(level), SUSPEND_SECONDS_MAX)
        most = self._member.settings.retries_max
        hopeless = level < 0 or isinstance(error, NobodyListensError)
        dead = [
            each
            for each in messages
            if hopeless or (most is not None and each.raw.reconsume_times >= most)
        ]
        self._again += [_once_more(each) for each in messages if each not in dead]
        if dead:
            self._member.instance.spawn(self._bury(dead))
        self._settle(len(messages) - len(dead))

    def returned(self, messages: Sequence[ReceivedMessage]) -> None:
        """They were not begun with: a message before them failed, or this is the end."""
        self._pending.extendleft(reversed(messages))
        self._is_over = not self._has_failed
        self._settle(len(messages))

    async def _bury(self, dead: list[ReceivedMessage]) -> None:
        """Have messages become dead letters; a broadcast has none, and they are given up."""
        for message in dead:
            try:
                if not self._member.settings.broadcasting:
                    assert self._send_back is not None
                    await self._send_back.send_anew(message, -1)
            except OnelogError as error:
                log.warning("%s cannot become a dead letter now: %s", message, error)
                self._again.append(_once_more(message))
            else:
                super().done((message,))
            self._settle(1)

    def _settle(self, count: int) -> None:
        self._out -= count
        if self._out:
            return
        again, self._again = self._again, []
        self._pending.extendleft(reversed(again))
        self._left.set()
        if again:
            loop = asyncio.get_running_loop()
            self._resting = loop.call_later(self._pause_seconds, self._rested)
            return
        quick = time.perf_counter() - self._run_began < QUICK_SECONDS
        self._run_size = min(RUN_MAX, self._run_size * 2) if quick else 1
        self.resume()

    def _rested(self) -> None:
        self._resting = None
        self.resume()

    def drop(self) -> None:
        """This queue is not ours any more; what a listener has in hand it finishes."""
        super().drop()
        if self._resting is not None:
            self._resting.cancel()

    async def wait_until_left(self) -> None:
        """Wait until no listener has a message of this queue."""
        while self._out:
            self._left.clear()
            await self._left.wait()

    def info(self) -> ProcessQueueInfo:
        return msgspec.structs.replace(super().info(), locked=self._owner.is_locked(self.queue))


def _once_more(message: ReceivedMessage) -> ReceivedMessage:
    raw = message.raw
    return ReceivedMessage(raw._replace(reconsume_times=raw.reconsume_times + 1), message.broker)


@dataclass(eq=False)
class QueueLocks:
    """The locks of one member."""

    _instance: Instance
    _group: str
    _granted: dict[Queue, tuple[float, Peer | None]] = field(default_factory=dict)
    """When each lock was given, and over which connection."""

    def is_held(self, queue: Queue) -> bool:
        """Whether a lock can be relied on."""
        granted, peer = self._granted.get(queue, (0.0, None))
        is_open = peer is not None and peer.is_open
        return is_open and time.monotonic() - granted < LOCK_TRUST_SECONDS

    async def last(self, seconds: float) -> None:
        """Come back when the time is up, or the connection to a broker that gave locks ended."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, SHAKEN_SECONDS))
            peers = {peer for _, peer in self._granted.values()}
            if any(peer is None or not peer.is_open for peer in peers):
                return

    async def lock(self, queues: Iterable[Queue]) -> set[Queue]:
        """Lock, or lock for longer; those of the queues that are locked for us now."""
        locked, _ = await self._lock(queues)
        return locked

    async def renew(self, queues: Iterable[Queue]) -> tuple[list[Queue], bool]:
        """Lock for longer: the queues that others may have consumed since, and if all is well."""
        queues = list(queues)
        late = time.monotonic() - LOCK_EXPIRY_SECONDS
        overdue = {queue for queue in queues if self._granted.get(queue, (0.0,))[0] < late}
        locked, requested = await self._lock(queues)
        lost = [
            each for each in queues if each in requested and (each in overdue or each not in locked)
        ]
        for queue in lost:
            self._granted.pop(queue, None)
        return lost, len(locked) == len(queues)

    async def unlock(self, queues: Iterable[Queue]) -> None:
        """Let others have the queues."""
        queues = list(queues)
        for queue in queues:
            self._granted.pop(queue, None)
        await at_once(self._unlock_at, _by_broker(queues))

    async def _lock(self, queues: Iterable[Queue]) -> tuple[set[Queue], set[Queue]]:
        """The queues that were granted, and those that a broker decided on."""
        answers = await at_once(self._lock_at, _by_broker(queues))
        granted = {queue for locked, _ in answers for queue in locked}
        return granted, {queue for _, requested in answers for queue in requested}

    async def _lock_at(self, queues: list[Queue]) -> tuple[list[Queue], list[Queue]]:
        began = time.monotonic()
        try:
            answer, peer = await self._ask(RequestCode.LOCK_BATCH_MQ, queues)
            locked = LockAnswer.decode(answer.body).lock_ok_mq_set
        except OnelogError as error:
            log.warning("%d queues cannot be locked now: %s", len(queues), error)
            return [], []
        granted = list(map(queue_of, locked))
        self._granted.update(dict.fromkeys(granted, (began, peer)))
        return granted, queues

    async def _unlock_at(self, queues: list[Queue]) -> None:
        with forgiven(log, "%d queues stay locked for a minute", len(queues)):
            await self._ask(RequestCode.UNLOCK_BATCH_MQ, queues)

    async def _ask(self, code: RequestCode, queues: list[Queue]) -> tuple[Command, Peer | None]:
        """The answer, and the connection that it came over."""
        route = await self._instance.routes.get(queues[0].topic)
        body = LockRequest(
            client_id=self._instance.client_id,
            consumer_group=self._group,
            mq_set=list(map(body_of, queues)),
        )
        broker = queues[0].broker
        answer = await self._instance.ask_reader(route, broker, code, None, body.encode())
        return answer, self._instance.nodes.open_peer(self._instance.reader(route, broker))


class OrderedFetching(PullFetching):
    """The queues of one member that consumes in order, and their locks."""

    kind = OrderedQueue

    def __init__(self, member: Membership, client_id: str | None = None) -> None:
        super().__init__(member, client_id)
        broadcasting = member.settings.broadcasting
        self._locks = None if broadcasting else QueueLocks(member.instance, member.group)
        self._leaving: list[Queue] = []

    async def start(self) -> None:
        await super().start()
        if self._locks is not None:
            self._spawn(self._keep_locked(self._locks))

    async def _lock(self, queues: list[Queue]) -> list[Queue]:
        if self._locks is None:
            return queues
        locked = await self._locks.lock(queues)
        return [each for each in queues if each in locked]

    def _left(self, queue: PulledQueue) -> None:
        self._member.instance.spawn(self._leave(queue))

    async def _leave(self, queue: PulledQueue) -> None:
        assert isinstance(queue, OrderedQueue)
        self._leaving.append(queue.queue)
        await queue.wait_until_left()
        self._leaving.remove(queue.queue)
        if self._locks is not None:
            await self._offsets.write({queue.queue: queue.process_queue.committable})
            await self._locks.unlock([queue.queue])

    async def _let_go(self, queues: Iterable[Queue]) -> None:
        if self._locks is not None:
            await self._locks.unlock([*queues, *self._leaving])

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
        return self._locks is None or self._locks.is_held(queue)


def _by_broker(queues: Iterable[Queue]) -> list[list[Queue]]:
    found: dict[str, list[Queue]] = defaultdict(list)
    for queue in queues:
        found[queue.broker].append(queue)
    return list(found.values())
