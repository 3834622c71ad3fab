"""Moving consumer groups: back or forth in time, past a backlog, to where another group is.

Invariant: a group's position is moved by the broker that keeps it. Live members follow with their
next pull; where a broker is too old to move a group that has none, positions are written for it.
"""

from dataclasses import dataclass

from onelog.client.admin.cluster import masters_of
from onelog.client.admin.groups import Groups
from onelog.client.admin.topics import Route, Topics
from onelog.client.connection.address import Address
from onelog.client.connection.nodes import Failure, Nodes, at_once
from onelog.client.synchronous import Part, waiting
from onelog.errors import (
    ConsumersOfflineError,
    GroupNotFoundError,
    GroupOnlineError,
    RequestRefusedError,
)
from onelog.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.stats import ResetOffsets

TO_THE_END = -1
"""A time that stands for: after the last message."""


@dataclass(frozen=True, slots=True)
class Move:
    """A group's position in one queue, before and after."""

    topic: str
    broker: str
    queue_id: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class Moves:
    """What was moved, and where it could not be."""

    group: str
    queues: tuple[Move, ...]
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class _Master:
    broker: str
    address: Address
    queues: int


class Positions:
    """Changes of consumer groups' positions."""

    def __init__(self, nodes: Nodes, topics: Topics, groups: Groups) -> None:
        self._nodes = nodes
        self._topics = topics
        self._groups = groups

    async def reset(self, group: str, topic: str, time_ms: int) -> Moves:
        """Move a group to the first message that was stored at a time or later."""
        return await self._move(group, topic, time_ms, dry_run=False)

    async def skip(self, group: str, topic: str) -> Moves:
        """Move a group to the end of every queue: what is there now is not consumed."""
        return await self._move(group, topic, TO_THE_END, dry_run=False)

    async def preview(self, group: str, topic: str, time_ms: int) -> Moves:
        """What `reset` would do (or `skip`, with `TO_THE_END`), without doing it."""
        return await self._move(group, topic, time_ms, dry_run=True)

    async def _move(self, group: str, topic: str, time_ms: int, *, dry_run: bool) -> Moves:
        masters = _masters(await self._topics.route(topic))
        if group not in (await self._groups.names()).answers:
            raise GroupNotFoundError(f"no broker knows a consumer group {group}")
        before = await self._positions(group, topic)

        async def move(master: _Master) -> dict[int, int]:
            if dry_run:
                return await self._offsets_at(master, topic, time_ms)
            return await self._move_on(master, group, topic, time_ms)

        gathered = await self._nodes.gather(masters, move)
        moves = [
            Move(topic, broker, queue_id, before.get((topic, broker, queue_id)), after)
            for broker, offsets in gathered.answers.items()
            for queue_id, after in sorted(offsets.items())
        ]
        return Moves(group, tuple(moves), gathered.failures)

    async def _move_on(
        self, master: _Master, group: str, topic: str, time_ms: int
    ) -> dict[int, int]:
        ext = {"topic": topic, "group": group, "timestamp": str(time_ms), "isForce": "true"}
        try:
            answer = await self._nodes.fetch(
                master.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsets, ext
            )
        except (ConsumersOfflineError, RequestRefusedError):
            # Up to 5.0, brokers can only pass the word on to live members, and refuse a group that
            # has no position yet. Without members, what we write is what counts.
            if (await self._groups.members(group)).members:
                raise
            offsets = await self._offsets_at(master, topic, time_ms)
            await self._write(master, group, topic, offsets)
            return offsets
        return {queue.queue_id: offset for queue, offset in answer.offset_table.items()}

    async def _offsets_at(self, master: _Master, topic: str, time_ms: int) -> dict[int, int]:
        found = await at_once(
            lambda queue_id: self.offset_at(master.address, topic, queue_id, time_ms),
            range(master.queues),
        )
        return dict(enumerate(found))

    async def offset_at(self, address: Address, topic: str, queue_id: int, time_ms: int) -> int:
        """The first offset of a queue whose message was stored at a time or later."""
        ext = {"topic": topic, "queueId": str(queue_id)}
        if time_ms == TO_THE_END:
            answer = await self._nodes.ask(address, RequestCode.GET_MAX_OFFSET, ext)
        else:
            ext["timestamp"] = str(time_ms)
            answer = await self._nodes.ask(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
        return fields.number(answer.ext, "offset")

    async def _write(
        self, master: _Master, group: str, topic: str, offsets: dict[int, int]
    ) -> None:
        async def write(queue_id: int) -> None:
            ext = {
                "consumerGroup": group,
                "topic": topic,
                "queueId": str(queue_id),
                "commitOffset": str(offsets[queue_id]),
            }
            await self._nodes.ask(master.address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)

        await at_once(write, offsets)

    async def clone(self, source: str, target: str, topic: str | None = None) -> Moves:
        """Put a group where another one is, in one topic or in all that the other consumes.

        The target is created like the source where it is missing. It must have no live members:
        they know their positions, and would write them back.
        """
        progress = await self._groups.progress(source, topic)
        queues = [
            queue
            for queue in progress.queues
            if not queue.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        ]
        if not queues:
            where = f" in topic {topic}" if topic else ""
            raise GroupNotFoundError(f"consumer group {source} has no position{where}")
        if (await self._groups.members(target)).members:
            raise GroupOnlineError(f"consumer group {target} has live members: stop them first")
        await self._groups.copy_settings(source, target, {queue.broker for queue in queues})
        before = await self._positions(target, topic)
        for name in sorted({queue.topic for queue in queues}):
            await self._clone(source, target, name)
        moves = [
            Move(
                queue.topic, queue.broker, queue.queue_id,
                before.get((queue.topic, queue.broker, queue.queue_id)), queue.position,
            )
            for queue in queues
        ]  # fmt: skip
        return Moves(target, tuple(moves), progress.failures)

    async def _clone(self, source: str, target: str, topic: str) -> None:
        ext = {"srcGroup": source, "destGroup": target, "topic": topic, "offline": "true"}
        await self._nodes.change(
            _masters(await self._topics.route(topic)),
            lambda master: self._nodes.ask(master.address, RequestCode.CLONE_GROUP_OFFSET, ext),
        )

    async def _positions(self, group: str, topic: str | None) -> dict[tuple[str, str, int], int]:
        progress = await self._groups.progress(group, topic)
        return {
            (queue.topic, queue.broker, queue.queue_id): queue.position for queue in progress.queues
        }


class SyncPositions(Part[Positions]):
    """The same for threads."""

    clone = waiting(Positions.clone)
    offset_at = waiting(Positions.offset_at)
    preview = waiting(Positions.preview)
    reset = waiting(Positions.reset)
    skip = waiting(Positions.skip)


def _masters(route: Route) -> dict[str, _Master]:
    addresses = masters_of(tuple(each.brokers for each in route.brokers))
    return {
        each.brokers.name: _Master(
            each.brokers.name, addresses[each.brokers.name], each.read_queues
        )
        for each in route.brokers
    }
