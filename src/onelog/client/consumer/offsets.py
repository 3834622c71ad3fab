"""How far a consumer is, and where that is kept: with the broker, or in a file of this machine.

Members of a group that share the messages keep their positions with the brokers, because another
member may go on from them. A consumer that gets all messages keeps its own, in a file.

Invariant: a position that is read was written here. A file is replaced as a whole, so that a crash
leaves the old one or the new one.
"""

import asyncio
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from onelog.client.connection.address import Address
from onelog.client.connection.instance import Instance
from onelog.client.connection.nodes import at_once, forgiven
from onelog.client.connection.routes import Route
from onelog.client.message import Queue
from onelog.errors import GroupNotFoundError, KeyNotFoundError, NotSavedError, WireError
from onelog.net.tasks import Tasks
from onelog.wire.remoting import fields
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.stats import ResetOffsets

log = logging.getLogger(__name__)


async def ask_broker_of(
    instance: Instance, queue: Queue, code: RequestCode, ext: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What the broker of a queue answers to a question about the queue."""
    route = await instance.routes.get(queue.topic)
    request_fields = {**_queue_fields(queue), **(ext or {})}
    return (await instance.ask_reader(route, queue.broker, code, request_fields)).ext


def _queue_fields(queue: Queue) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker}


async def offset_at(instance: Instance, queue: Queue, target: datetime | RequestCode) -> int:
    """The offset of the first message of a time or later, or what a request gives."""
    ext: dict[str, str] = {}
    if isinstance(target, datetime):
        ext["timestamp"] = str(round(target.timestamp() * 1000))
        target = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    return fields.number(await ask_broker_of(instance, queue, target, ext), "offset")


def queue_of(body: MessageQueue) -> Queue:
    return Queue(body.topic, body.broker_name, body.queue_id)


def body_of(queue: Queue) -> MessageQueue:
    return MessageQueue(broker_name=queue.broker, queue_id=queue.queue_id, topic=queue.topic)


@dataclass(eq=False)
class BrokerOffsets:
    """The positions of a group, kept by the brokers that have the queues."""

    _instance: Instance
    _group: str
    _is_exact: bool = False
    """Whether a position that nobody has written is none, also in a young topic, where brokers say
    0 otherwise; and whether it is an error if a broker does not take one."""
    strayed: set[Queue] = field(default_factory=set)
    """The queues whose position was last committed to a slave, and not to its master yet."""

    async def read(self, queue: Queue) -> int | None:
        """The position in a queue; None if there is none yet."""
        ext = {"consumerGroup": self._group}
        if self._is_exact:
            ext["setZeroIfNotFound"] = "false"
        try:
            answer = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        except KeyNotFoundError:
            return None
        offset = fields.number(answer, "offset")
        return None if offset < 0 else offset

    def write_soon(self, offsets: Mapping[Queue, int]) -> None:
        """Commit to the brokers, one way; what gets lost is written again."""
        for queue, offset in offsets.items():
            route = self._instance.routes.known(queue.topic)
            if route is not None and queue.broker in route.brokers:
                address = self._instance.reader(route, queue.broker)
                self._note(route, queue, address)
                code = RequestCode.UPDATE_CONSUMER_OFFSET
                ext = {**_queue_fields(queue), **self._committed(offset)}
                self._instance.oneway(address, code, ext)

    async def write(self, offsets: Mapping[Queue, int]) -> None:
        """Commit to the brokers, and wait for their answers."""
        await at_once(self._write_exactly if self._is_exact else self._write, offsets.items())

    async def _write(self, position: tuple[Queue, int]) -> None:
        queue, offset = position
        what = "offset %d of %s is not committed"
        with forgiven(log, what, offset, queue, level=logging.WARNING):
            await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, self._committed(offset))

    async def _write_exactly(self, position: tuple[Queue, int]) -> None:
        queue, offset = position
        code, ext = RequestCode.UPDATE_CONSUMER_OFFSET, self._committed(offset)
        try:
            await self._ask(queue, code, ext)
        except GroupNotFoundError:
            # Nobody has pulled yet. Asking for the group creates it, where pulling would.
            group = {"group": self._group}
            await self._ask(queue, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group)
            await self._ask(queue, code, ext)

    async def _ask(self, queue: Queue, code: RequestCode, ext: dict[str, str]) -> dict[str, str]:
        answer = await ask_broker_of(self._instance, queue, code, ext)
        if code == RequestCode.UPDATE_CONSUMER_OFFSET:
            route = await self._instance.routes.get(queue.topic)
            self._note(route, queue, self._instance.reader(route, queue.broker))
        return answer

    def _note(self, route: Route, queue: Queue, address: Address) -> None:
        # What name servers call the master may be a slave that acts for it.
        is_master = address == route.brokers[queue.broker].master
        if is_master and queue.broker in route.writable:
            self.strayed.discard(queue)
        else:
            self.strayed.add(queue)

    def _committed(self, offset: int) -> dict[str, str]:
        return {"consumerGroup": self._group, "commitOffset": str(offset)}


class LocalOffsets:
    """The positions of one consumer, in a file of the form that RocketMQ's Java client has."""

    strayed: Collection[Queue] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: dict[Queue, int] | None = None
        self._writing = asyncio.Lock()
        self._tasks = Tasks()

    async def load(self) -> dict[Queue, int]:
        """Read the file, the first time; `NotSavedError` if it cannot be read."""
        async with self._writing:
            if self._offsets is None:
                self._offsets = await asyncio.to_thread(_load, self.path)
        return self._offsets

    async def read(self, queue: Queue) -> int | None:
        return (await self.load()).get(queue)

    def write_soon(self, offsets: Mapping[Queue, int]) -> None:
        if offsets:
            self._tasks.spawn(self.write(offsets))

    async def write(self, offsets: Mapping[Queue, int]) -> None:
        known = await self.load()
        async with self._writing:
            known.update(offsets)
            try:
                await asyncio.to_thread(_save, self.path, dict(known))
            except OSError as error:
                log.error("positions are not saved in %s: %s", self.path, error)


ConsumerOffsets = BrokerOffsets | LocalOffsets
"""Where positions are kept."""


def local_path(client_id: str | None, group: str) -> Path:
    """Where the positions of a consumer are, unless the option `offsets_path` says otherwise."""
    return Path.home() / ".onelog_offsets" / (client_id or "DEFAULT") / group / "offsets.json"


def _load(path: Path) -> dict[Queue, int]:
    try:
        table = ResetOffsets.decode(path.read_bytes()).offset_table
    except FileNotFoundError:
        return {}
    except (OSError, WireError) as error:
        # To begin anew would mean to consume everything again, or to skip something.
        raise NotSavedError(f"the positions in {path} cannot be read: {error}") from None
    return {queue_of(queue): offset for queue, offset in table.items()}


def _save(path: Path, offsets: Mapping[Queue, int]) -> None:
    table = {body_of(queue): offset for queue, offset in sorted(offsets.items())}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with fresh.open("wb") as file:
        file.write(ResetOffsets(offset_table=table).encode())
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
