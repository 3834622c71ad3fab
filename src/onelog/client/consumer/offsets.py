"""How far a consumer is, and where that is kept: with the broker, or in a file of this machine.

Members of a group that share the messages keep their positions with the brokers, because another
member may go on from them. A consumer that gets all messages keeps its own, in a file.

Invariant: a position that is read was written here. A file is replaced as a whole, so that a crash
leaves the old one or the new one.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from onelog.client.connection.instance import Instance
from onelog.client.connection.nodes import at_once
from onelog.client.message import Queue
from onelog.errors import KeyNotFoundError, NotSavedError, OnelogError, WireError
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
    asked = {**_queue_fields(queue), **(ext or {})}
    return (await instance.ask(route.reading_address(queue.broker), code, asked)).ext


def _queue_fields(queue: Queue) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker}


class ConsumerOffsets(Protocol):
    """Where positions are kept."""

    async def read(self, queue: Queue) -> int | None:
        """The position in a queue; None if there is none yet."""

    def write_soon(self, offsets: Mapping[Queue, int]) -> None:
        """Keep positions, without waiting for it; one that gets lost is written again."""

    async def write(self, offsets: Mapping[Queue, int]) -> None:
        """Keep positions, and come back when they are kept, as far as that is possible."""


class BrokerOffsets:
    """The positions of a group, kept by the brokers that have the queues."""

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._group = group

    async def read(self, queue: Queue) -> int | None:
        """The position in a queue; None if there is none yet."""
        try:
            answer = await ask_broker_of(
                self._instance,
                queue,
                RequestCode.QUERY_CONSUMER_OFFSET,
                {"consumerGroup": self._group},
            )
        except KeyNotFoundError:
            return None
        return fields.number(answer, "offset")

    def write_soon(self, offsets: Mapping[Queue, int]) -> None:
        """Tell the brokers, one way."""
        for queue, offset in offsets.items():
            route = self._instance.routes.known(queue.topic)
            if route is not None and queue.broker in route.brokers:
                address = route.reading_address(queue.broker)
                code = RequestCode.UPDATE_CONSUMER_OFFSET
                ext = {**_queue_fields(queue), **self._committed(offset)}
                self._instance.oneway(address, code, ext)

    async def write(self, offsets: Mapping[Queue, int]) -> None:
        """Tell the brokers, and wait until they know."""
        await at_once(self._write, offsets.items())

    async def _write(self, position: tuple[Queue, int]) -> None:
        queue, offset = position
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        try:
            await ask_broker_of(self._instance, queue, code, self._committed(offset))
        except OnelogError as error:
            log.warning("offset %d of %s is not committed: %s", offset, queue, error)

    def _committed(self, offset: int) -> dict[str, str]:
        return {"consumerGroup": self._group, "commitOffset": str(offset)}


class LocalOffsets:
    """The positions of one consumer, in a file of the form that RocketMQ's Java client has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: dict[Queue, int] | None = None
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def load(self) -> dict[Queue, int]:
        """Read the file, the first time; `NotSavedError` if it cannot be read."""
        async with self._writing:
            if self._offsets is None:
                self._offsets = await asyncio.to_thread(_load, self.path)
        return self._offsets

    async def read(self, queue: Queue) -> int | None:
        """The position in a queue; None if there is none yet."""
        return (await self.load()).get(queue)

    def write_soon(self, offsets: Mapping[Queue, int]) -> None:
        """Write the file in the background."""
        if offsets:
            task = asyncio.ensure_future(self.write(offsets))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def write(self, offsets: Mapping[Queue, int]) -> None:
        """Write the file."""
        known = await self.load()
        async with self._writing:
            known.update(offsets)
            try:
                await asyncio.to_thread(_save, self.path, dict(known))
            except OSError as error:
                log.error("positions are not saved in %s: %s", self.path, error)


def local_path(client_id: str | None, group: str) -> Path:
    """Where the positions of a consumer are, unless it was told another place."""
    return Path.home() / ".onelog_offsets" / (client_id or "DEFAULT") / group / "offsets.json"


def _load(path: Path) -> dict[Queue, int]:
    try:
        table = ResetOffsets.decode(path.read_bytes()).offset_table
    except FileNotFoundError:
        return {}
    except (OSError, WireError) as error:
        # To begin anew would mean to consume everything again, or to skip something.
        raise NotSavedError(f"the positions in {path} cannot be read: {error}") from None
    return {
        Queue(queue.topic, queue.broker_name, queue.queue_id): offset
        for queue, offset in table.items()
    }


def _save(path: Path, offsets: Mapping[Queue, int]) -> None:
    table = {
        MessageQueue(broker_name=queue.broker, queue_id=queue.queue_id, topic=queue.topic): offset
        for queue, offset in sorted(offsets.items())
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with fresh.open("wb") as file:
        file.write(ResetOffsets(offset_table=table).encode())
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
