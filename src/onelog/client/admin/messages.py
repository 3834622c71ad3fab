"""Finding messages: by id, key, unique key, place, or time.

Searches by key go to every broker of the topic; brokers find by the key's hash, so what they send
is checked here. Reading by place and time is pulling, under the name of RocketMQ's tools, without
a position that would be kept.
"""

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from onelog.client.admin.cluster import Clusters
from onelog.client.admin.groups import Positions
from onelog.client.admin.topics import Route, Topics
from onelog.client.connection.address import Address
from onelog.client.connection.nodes import Failure, Nodes, at_once
from onelog.client.synchronous import Part, iterating, waiting
from onelog.errors import (
    InvalidRequestError,
    KeyNotFoundError,
    MessageNotFoundError,
    OnelogError,
    WireError,
)
from onelog.message import Message, decode_host, parse_message_id
from onelog.record.decode import decode_records
from onelog.rocketmq.names import TOOLS_GROUP
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.stats import ConsumeStats

PULL_COUNT = 32
COUNT_MAX = 64
TIME_MAX = 2**63 - 1

_WITH_SUBSCRIPTION = 4
"""The pull says itself which messages it wants: all. The group has no members to say so."""
_PULL_ANSWERS = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND.value,
        ResponseCode.PULL_RETRY_IMMEDIATELY.value,
        ResponseCode.PULL_OFFSET_MOVED.value,
    }
)


@dataclass(frozen=True, slots=True)
class Found:
    """A message, and where it is."""

    broker: str
    address: Address
    message: Message


@dataclass(frozen=True, slots=True)
class Search:
    """What was found by key, oldest first, and who could not be asked."""

    messages: tuple[Found, ...]
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Consumption:
    """Whether a group is past a message."""

    group: str
    position: int
    is_past: bool


class _Queue(NamedTuple):
    broker: str
    address: Address
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """What was in a queue from an offset on, and where to go on."""

    messages: list[Message]
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(eq=False)
class Messages:
    """Searches for messages."""

    _nodes: Nodes
    _clusters: Clusters
    _topics: Topics
    _positions: Positions

    # By id.

    async def by_id(self, message_id: str) -> Found:
        """The message with an offset id, which names the broker and the place in its log."""
        try:
            host, offset = parse_message_id(message_id)
        except ValueError:
            raise InvalidRequestError(
                f"{message_id!r} is no message id: that would be 32 or 56 hex digits"
            ) from None
        named = Address(*decode_host(host))
        reasons = []
        for broker, address in await self._candidates(named):
            try:
                message = await self._view(address, offset)
            except OnelogError as error:
                reasons.append(str(error))
                continue
            # Another broker may have another message at the same place of its own log.
            if message.message_id == message_id.upper():
                return Found(broker, address, message)
        detail = f": {'; '.join(reasons)}" if reasons else ""
        raise MessageNotFoundError(f"no message has the id {message_id}{detail}")

    async def _candidates(self, named: Address) -> list[tuple[str, Address]]:
        """The broker that an id names, then its master or slaves, then the others.

        The address in an id is that at the time of writing; a broker may have moved since. Nobody
        is asked whom the name servers do not know: a mistyped id can name any address.
        """
        sets = await self._clusters.brokers()
        members = [(each.name, address) for each in sets for _, address in each.members]
        names = {name for name, address in members if address == named}
        return sorted(members, key=lambda member: (member[1] != named, member[0] not in names))

    async def _view(self, address: Address, offset: int) -> Message:
        answer = await self._nodes.ask(
            address, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}
        )
        messages = _decoded(address, answer.body)
        if len(messages) != 1:
            raise WireError(f"{address} answered with {len(messages)} messages for one id")
        return messages[0]

    # By key.

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX,
        count_max: int = COUNT_MAX,
    ) -> Search:
        """The messages of a topic with a key, the newest of them if there are many."""
        return await self._search(
            topic, key, lambda message: key in message.keys, begin_ms, end_ms, count_max
        )

    async def by_unique_key(self, topic: str, unique_key: str) -> Search:
        """The messages of a topic with the id that their producer gave them; often just one."""
        return await self._search(
            topic, unique_key, lambda message: message.unique_key == unique_key, unique=True
        )

    async def _search(
        self,
        topic: str,
        key: str,
        matches: Callable[[Message], bool],
        begin_ms: int = 0,
        end_ms: int = TIME_MAX,
        count_max: int = COUNT_MAX,
        *,
        unique: bool = False,
    ) -> Search:
        ext = {
            "topic": topic,
            "key": key,
            "maxNum": str(count_max),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
        }
        if unique:
            ext["_UNIQUE_KEY_QUERY"] = "true"

        async def query(address: Address) -> list[Message]:
            try:
                answer = await self._nodes.ask(address, RequestCode.QUERY_MESSAGE, ext)
            except KeyNotFoundError:
                return []
            return _decoded(address, answer.body)

        sources = (await self._topics.route(topic)).sources
        gathered = await self._nodes.gather(sources, query)
        found = [
            Found(broker, sources[broker], message)
            for broker, messages in gathered.answers.items()
            for message in messages
            if message.topic == topic and matches(message)
        ]
        found.sort(key=_age)
        if not found and not gathered.failures:
            what = "unique key" if unique else "key"
            raise MessageNotFoundError(f"no message of topic {topic} has the {what} {key!r}")
        return Search(tuple(found[-count_max:]), gathered.failures)

    # By place.

    async def by_offset(
        self, topic: str, queue_id: int, offset: int, *, broker: str | None = None, count: int = 1
    ) -> tuple[Found, ...]:
        """The messages from a place of a queue on; the broker may be left out if there is one."""
        queue = _queue(await self._topics.route(topic), queue_id, broker)
        found: list[Found] = []
        at = offset
        while len(found) < count:
            pulled = await self.pull(*queue[1:], at, min(PULL_COUNT, count - len(found)))
            if at == offset and (not pulled.messages or pulled.messages[0].queue_offset != offset):
                where = f"queue {queue_id} of topic {topic} on {queue.broker}"
                raise MessageNotFoundError(
                    f"no message at offset {offset}: {where} {_range(pulled)}"
                )
            if not pulled.messages:
                break
            found += [Found(queue.broker, queue.address, message) for message in pulled.messages]
            at = pulled.next_offset
        return tuple(found[:count])

    # By time.

    async def by_time(
        self,
        topic: str,
        begin_ms: int,
        end_ms: int = TIME_MAX,
        *,
        broker: str | None = None,
        queue_id: int | None = None,
    ) -> AsyncGenerator[Found, None]:
        """The messages that were stored from a time up to another, in the order of store times.

        Those of one millisecond come as they lie in the log of their broker.
        """
        cursors = await self._cursors(topic, begin_ms, end_ms, broker, queue_id)
        heads = await at_once(_Cursor.next, cursors)
        heap = [
            (found.message.store_ms, found.message.log_offset, number, found)
            for number, found in enumerate(heads)
            if found is not None
        ]
        heapq.heapify(heap)
        while heap:
            _, _, number, found = heap[0]
            yield found
            following = await cursors[number].next()
            if following is None:
                heapq.heappop(heap)
            else:
                message = following.message
                heapq.heapreplace(heap, (message.store_ms, message.log_offset, number, following))

    async def follow(
        self,
        topic: str,
        begin_ms: int,
        *,
        broker: str | None = None,
        queue_id: int | None = None,
        pause_seconds: float = 1.0,
    ) -> AsyncGenerator[Found, None]:
        """The messages from a time on and, without an end, those that come."""
        cursors = await self._cursors(topic, begin_ms, TIME_MAX, broker, queue_id)
        while True:
            batches = await at_once(_Cursor.rest, cursors)
            arrived = sorted((found for batch in batches for found in batch), key=_age)
            for found in arrived:
                yield found
            if not arrived:
                await asyncio.sleep(pause_seconds)

    async def _cursors(
        self, topic: str, begin_ms: int, end_ms: int, broker: str | None, queue_id: int | None
    ) -> "list[_Cursor]":
        queues = _queues(await self._topics.route(topic), broker, queue_id)

        async def cursor(queue: _Queue) -> _Cursor:
            start = await self._positions.offset_at(
                queue.address, topic, queue.queue_id, max(0, begin_ms)
            )
            return _Cursor(self, queue, start, begin_ms, end_ms)

        return await at_once(cursor, queues)

    async def pull(
        self, address: Address, topic: str, queue_id: int, offset: int, count: int
    ) -> Pulled:
        """What one broker has in a queue from an offset on, some of it."""
        ext = {
            "consumerGroup": TOOLS_GROUP,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(count),
            "sysFlag": str(_WITH_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        answer = await self._nodes.ask(address, RequestCode.PULL_MESSAGE, ext, accept=_PULL_ANSWERS)
        is_found = answer.code == ResponseCode.SUCCESS
        return Pulled(
            _decoded(address, answer.body) if is_found else [],
            fields.number(answer.ext, "nextBeginOffset"),
            fields.number(answer.ext, "minOffset", 0),
            fields.number(answer.ext, "maxOffset", 0),
        )

    # Who has it behind them.

    async def consumption(self, found: Found) -> tuple[Consumption, ...]:
        """For each group that reads the topic, whether it is past this message."""
        message = found.message

        async def consumption(group: str) -> Consumption:
            code, ext = RequestCode.GET_CONSUME_STATS, {"consumerGroup": group}
            ext["topic"] = message.topic
            stats = await self._nodes.fetch(found.address, code, ConsumeStats, ext)
            positions = {
                queue.queue_id: progress.consumer_offset
                for queue, progress in stats.offset_table.items()
            }
            position = positions.get(message.queue_id, 0)
            return Consumption(group, position, position > message.queue_offset)

        return tuple(await at_once(consumption, await self._topics.groups(message.topic)))


class SyncMessages(Part[Messages]):
    """The same for threads."""

    by_id = waiting(Messages.by_id)
    by_key = waiting(Messages.by_key)
    by_offset = waiting(Messages.by_offset)
    by_time = iterating(Messages.by_time)
    by_unique_key = waiting(Messages.by_unique_key)
    consumption = waiting(Messages.consumption)
    follow = iterating(Messages.follow)
    pull = waiting(Messages.pull)


@dataclass(eq=False)
class _Cursor:
    """A place in one queue, from which messages of a span of time are read one by one."""

    _messages: Messages
    _queue: _Queue
    _offset: int
    _begin_ms: int
    _end_ms: int
    _ahead: list[Found] = field(default_factory=list)

    async def next(self) -> Found | None:
        """The next message; None at the end of the queue or of the span."""
        if not self._ahead:
            self._ahead = (await self.rest())[::-1]
        return self._ahead.pop() if self._ahead else None

    async def rest(self) -> list[Found]:
        """The next few messages; none at the end."""
        while True:
            pulled = await self._messages.pull(*self._queue[1:], self._offset, PULL_COUNT)
            if not pulled.messages and pulled.next_offset <= self._offset:
                return []
            self._offset = max(self._offset, pulled.next_offset)
            found = [
                Found(self._queue.broker, self._queue.address, message)
                for message in pulled.messages
                if self._begin_ms <= message.store_ms <= self._end_ms
            ]
            if found or any(message.store_ms > self._end_ms for message in pulled.messages):
                return found


def _age(found: Found) -> tuple[int, str, int]:
    return found.message.store_ms, found.broker, found.message.log_offset


def _queues(route: Route, broker: str | None, queue_id: int | None) -> list[_Queue]:
    queues = [
        _Queue(each.brokers.name, each.brokers.preferred, route.topic, number)
        for each in route.brokers
        for number in range(max(each.read_queues, each.write_queues))
        if broker in (None, each.brokers.name) and queue_id in (None, number)
    ]
    if not queues:
        raise InvalidRequestError(f"topic {route.topic} has no such queue: {_places(route)}")
    return queues


def _queue(route: Route, queue_id: int, broker: str | None) -> _Queue:
    queues = _queues(route, broker, queue_id)
    if len(queues) > 1:
        raise InvalidRequestError(
            f"queue {queue_id} of topic {route.topic} is on several brokers, say which: "
            + ", ".join(queue.broker for queue in queues)
        )
    return queues[0]


def _places(route: Route) -> str:
    counts: Iterable[str] = (
        f"{each.brokers.name} has 0 to {max(each.read_queues, each.write_queues) - 1}"
        for each in route.brokers
    )
    return "; ".join(counts)


def _range(pulled: Pulled) -> str:
    if pulled.max_offset <= pulled.min_offset:
        return "is empty"
    return f"has {pulled.min_offset} up to {pulled.max_offset - 1}"


def _decoded(address: Address, body: bytes | bytearray | memoryview) -> list[Message]:
    try:
        return decode_records(body)
    except WireError as error:
        raise WireError(f"{address} sent messages that cannot be read: {error}") from None
