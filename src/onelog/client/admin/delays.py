"""Messages that wait for their time: which there are, and taking them back.

Brokers have no request that lists them, so the queues in which they wait are read with ordinary
pulls: SCHEDULE_TOPIC_XXXX has a queue for each delay level, rmq_sys_wheel_timer one queue for all
timed messages. This works with RocketMQ's brokers, too (timed messages: from 5.0 on).

The queue of timed messages is read from its end. A record that cancels or replaces a message comes
after the message, so it is known when the message is read. Delivered messages are not marked there;
a message that is due is taken for delivered.

Invariant: the list has no message that is due or cancelled, and none twice. Memory holds no more
messages than the caller wants.
"""

import heapq
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from onelog.client.admin.cluster import BrokerSet, Clusters
from onelog.client.admin.groups import TO_THE_END, Positions
from onelog.client.admin.messages import Messages
from onelog.client.admin.topics import Topics
from onelog.client.connection.address import Address
from onelog.client.connection.nodes import Failure, Nodes, at_once
from onelog.client.synchronous import Part, waiting
from onelog.clock import Clock
from onelog.errors import (
    InvalidRequestError,
    MessageNotFoundError,
    TopicNotFoundError,
    WireError,
)
from onelog.message import Message, decode_properties, property_value
from onelog.names import SCHEDULE_TOPIC, TIMER_TOPIC
from onelog.rocketmq.names import TOOLS_GROUP
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.recall_handle import RecallHandle

PAGE_COUNT = 32
PAGES_AT_ONCE = 8
LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
DELAY_MAX_SECONDS = 3 * 86_400
"""What RocketMQ has for brokers that do not say."""
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SLACK_MS = 60_000
"""How far our clock and a broker's may be apart."""

OnProgress = Callable[[int, int], None]
"""Told how many messages were looked at, and how many there are."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that waits. Only timed ones have a handle; others wait for a delay level."""

    due_ms: int
    broker: str
    topic: str
    queue_id: int
    message_id: str
    unique_key: str | None
    keys: tuple[str, ...]
    tags: str | None
    born_ms: int
    body_bytes: int
    level: int | None
    handle: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The messages that are due first, how many there are in all, and who did not answer."""

    messages: tuple[Waiting, ...]
    count: int
    failures: tuple[Failure, ...]


class _Collected:
    """The first few of many messages, by due time."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._heap: list[tuple[int, int, Waiting]] = []
        self.count = 0

    def add(self, waiting: Waiting) -> None:
        # Turned round, so that the one that is due last is at hand. Older ones are read later.
        item = (-waiting.due_ms, self.count, waiting)
        self.count += 1
        if len(self._heap) < self._count_max:
            heapq.heappush(self._heap, item)
        else:
            heapq.heappushpop(self._heap, item)

    def messages(self) -> tuple[Waiting, ...]:
        return tuple(item[2] for item in sorted(self._heap, reverse=True))


@dataclass(eq=False)
class Delays:
    """Questions about messages that wait, and their recall."""

    _nodes: Nodes
    _clusters: Clusters
    _topics: Topics
    _positions: Positions
    _messages: Messages
    _clock: Clock

    # Listing.

    async def waiting(
        self,
        topic: str | None = None,
        *,
        cluster: str | None = None,
        count_max: int = 100,
        on_progress: OnProgress = lambda done, total: None,
    ) -> Listing:
        """The messages that wait, of one topic or of all, those first that are due first."""
        found = _Collected(count_max)
        progress = _Progress(on_progress)
        brokers = {each.name: each for each in await self._clusters.brokers(cluster)}
        with_timers = await self._brokers_with_timers()

        async def read(broker: BrokerSet) -> None:
            has_timers = broker.name in with_timers
            async for each in self._waiting_on(broker, has_timers, progress):
                if topic is None or each.topic == topic:
                    found.add(each)

        gathered = await self._nodes.gather(brokers, read)
        return Listing(found.messages(), found.count, gathered.failures)

    async def _brokers_with_timers(self) -> frozenset[str]:
        """Others would make a queue of the name just because they are asked about it."""
        try:
            route = await self._topics.route(TIMER_TOPIC)
        except TopicNotFoundError:
            return frozenset()
        return frozenset(each.brokers.name for each in route.brokers)

    async def _settings(self, address: Address) -> tuple[list[int], int]:
        """The delays of a broker's levels, and how far ahead it schedules, in milliseconds."""
        answer = await self._nodes.ask(address, RequestCode.GET_BROKER_CONFIG)
        lines = bytes(answer.body).decode("utf-8", "replace").splitlines()
        pairs = dict(line.split("=", 1) for line in lines if "=" in line)
        levels = re.findall(r"(\d+)([smhd])", pairs.get("messageDelayLevel") or LEVELS)
        seconds = pairs.get("timerMaxDelaySec", "")
        is_whole = seconds.isascii() and seconds.isdigit()
        delay_max_ms = 1_000 * (int(seconds) if is_whole else DELAY_MAX_SECONDS)
        return [int(count) * _UNITS_MS[unit] for count, unit in levels], delay_max_ms

    async def _waiting_on(
        self, broker: BrokerSet, has_timers: bool, progress: "_Progress"
    ) -> AsyncGenerator[Waiting, None]:
        address = broker.preferred
        levels_ms, delay_max_ms = await self._settings(address)
        for number, delay_ms in enumerate(levels_ms):
            async for page in self._pages(address, SCHEDULE_TOPIC, number, delay_ms, progress):
                for message in page:
                    due_ms = message.store_ms + delay_ms
                    if due_ms > self._clock.now_ms():
                        yield _waiting(broker.name, message, due_ms, number + 1)
        if not has_timers:
            return
        scheduled = _Scheduled()
        async for page in self._pages(address, TIMER_TOPIC, 0, delay_max_ms, progress):
            for message in page:
                due = scheduled.due_ms(message)
                if due is not None and due > self._clock.now_ms():
                    yield _waiting(broker.name, message, due, None)

    async def _pages(
        self, address: Address, topic: str, queue_id: int, delay_ms: int, progress: "_Progress"
    ) -> AsyncGenerator[list[Message], None]:
        """The messages of a queue that may still wait, newest first, some at a time."""
        oldest_ms = max(0, self._clock.now_ms() - delay_ms - _SLACK_MS)
        begin = await self._positions.offset_at(address, topic, queue_id, oldest_ms)
        end = await self._positions.offset_at(address, topic, queue_id, TO_THE_END)
        progress.add(expected=max(0, end - begin))

        async def page(start: int) -> list[Message]:
            return await self._page(address, topic, queue_id, start, min(start + PAGE_COUNT, end))

        starts = list(range(begin, end, PAGE_COUNT))
        while starts:
            some, starts = starts[-PAGES_AT_ONCE:], starts[:-PAGES_AT_ONCE]
            for messages in reversed(await at_once(page, some)):
                yield messages[::-1]
            progress.add(done=sum(min(start + PAGE_COUNT, end) - start for start in some))

    async def _page(
        self, address: Address, topic: str, queue_id: int, begin: int, end: int
    ) -> list[Message]:
        found: list[Message] = []
        while begin < end:
            pulled = await self._messages.pull(address, topic, queue_id, begin, end - begin)
            found += [each for each in pulled.messages if each.queue_offset < end]
            if pulled.next_offset <= begin:
                break
            begin = pulled.next_offset
        return found

    # Taking back.

    async def find(self, which: str) -> RecallHandle:
        """The handle of a timed message, from the handle, the message's id or its unique key."""
        try:
            return RecallHandle.decode(which)
        except WireError:
            pass
        try:
            found = await self._messages.by_id(which)
        except (InvalidRequestError, MessageNotFoundError):
            return await self._find_by_key(which)
        message = found.message
        if message.topic == SCHEDULE_TOPIC:
            raise InvalidRequestError(
                "a message that waits for a delay level cannot be taken back; only timed ones can"
            )
        handle = _handle(found.broker, message)
        if message.topic != TIMER_TOPIC or handle is None:
            raise MessageNotFoundError(
                f"message {which} does not wait for its time: it is in topic {message.topic}"
            )
        return handle

    async def _find_by_key(self, unique_key: str) -> RecallHandle:
        try:
            search = await self._messages.by_unique_key(TIMER_TOPIC, unique_key)
        except (TopicNotFoundError, MessageNotFoundError) as error:
            raise MessageNotFoundError(
                f"no timed message has the id or unique key {unique_key}: {error}"
            ) from None
        for found in reversed(search.messages):
            handle = _handle(found.broker, found.message)
            if handle is not None:
                return handle
        reasons = "; ".join(failure.reason for failure in search.failures)
        raise MessageNotFoundError(f"no timed message has the unique key {unique_key} {reasons}")

    async def cancel(self, handle: RecallHandle) -> None:
        """Take a message back; the broker says no if it is not scheduled any more."""
        masters = await self._clusters.masters(broker=handle.broker)
        ext = {"topic": handle.topic, "recallHandle": handle.encode(), "producerGroup": TOOLS_GROUP}
        await self._nodes.ask(masters[handle.broker], RequestCode.RECALL_MESSAGE, ext)


class SyncDelays(Part[Delays]):
    """The same for threads."""

    cancel = waiting(Delays.cancel)
    find = waiting(Delays.find)
    waiting = waiting(Delays.waiting)


@dataclass(eq=False)
class _Progress:
    """Adds up how far all queues are."""

    _tell: OnProgress
    _done: int = 0
    _total: int = 0

    def add(self, *, done: int = 0, expected: int = 0) -> None:
        self._done += done
        self._total += expected
        self._tell(self._done, self._total)


class _Scheduled:
    """What is known of the queue of timed messages, which is read from its end."""

    def __init__(self) -> None:
        self._deleted: set[str] = set()
        self._renewed: set[int] = set()
        self._copied: set[tuple[str, str]] = set()

    def due_ms(self, message: Message) -> int | None:
        """When a message is due; None if it is none, or taken back, or stands there once more."""
        own = decode_properties(message.properties)
        topic, key = own.get("REAL_TOPIC", ""), own.get("UNIQ_KEY", "")
        deletes = own.get("TIMER_DEL_UNIQKEY")
        if deletes is not None:
            self._deleted.add(deletes)
            return None
        is_gone = (
            {f"{topic}+{key}", key} & self._deleted
            or message.queue_offset in self._renewed
            or (topic, key) in self._copied
        )
        if _whole(own.get("TIMER_ROLL_FROM")) is not None:
            self._renewed.add(int(own["TIMER_ROLL_FROM"]))
        elif "TIMER_ROLL_TIMES" in own and key:
            self._copied.add((topic, key))
        return None if is_gone or not topic else _due_ms(own)


def _due_ms(own: dict[str, str]) -> int | None:
    text = own.get("TIMER_OUT_MS", "")
    due_ms = _whole(text)
    if due_ms is None or text.startswith("0"):
        return due_ms
    # RocketMQ rounds it down to a second, and delivers at the end of that.
    wanted_ms = _whole(own.get("TIMER_DELIVER_MS"))
    return due_ms + 1_000 if wanted_ms is None else max(due_ms, wanted_ms)


def _whole(text: str | None) -> int | None:
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= 18
    return int(text or "") if is_number else None


def _waiting(broker: str, message: Message, due_ms: int, level: int | None) -> Waiting:
    queue_id = _whole(property_value(message.properties, "REAL_QID"))
    handle = None if level is not None else _handle(broker, message)
    return Waiting(
        due_ms=due_ms,
        broker=broker,
        topic=property_value(message.properties, "REAL_TOPIC") or "",
        queue_id=queue_id or 0,
        message_id=message.message_id,
        unique_key=message.unique_key,
        keys=tuple(message.keys),
        tags=message.tags,
        born_ms=message.born_ms,
        body_bytes=len(message.body),
        level=level,
        handle=None if handle is None else handle.encode(),
    )


def _handle(broker: str, message: Message) -> RecallHandle | None:
    """The handle of a timed message, made from its record; None if that is none."""
    own = decode_properties(message.properties)
    topic, key, out_ms = own.get("REAL_TOPIC"), own.get("UNIQ_KEY"), own.get("TIMER_OUT_MS")
    due_ms = _whole(out_ms)
    if topic is None or key is None or due_ms is None or "TIMER_DEL_UNIQKEY" in own:
        return None
    return RecallHandle(topic, broker, due_ms + 1, key)
