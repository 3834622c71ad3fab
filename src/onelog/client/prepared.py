"""Batches in two steps: tasks stage messages, and one driver makes them visible, all and once.

Only OneLog's brokers do this (`STAGE_MESSAGES` and its neighbours); RocketMQ's refuse it. A batch
may have parts on several brokers. One of them, the coordinator, decides: it is committed first,
with a note of the others' parts. Who commits the same batch later, with whatever parts, completes
what the note says.

Invariant: a batch of a query is visible whole and once, whoever dies at whatever moment, as soon as
some driver has committed it to the end.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onelog.client.address import Address
from onelog.client.cluster import Clusters
from onelog.client.instance import Instance
from onelog.client.message import Queue
from onelog.client.nodes import at_once
from onelog.errors import BrokerNotFoundError, RequestRefusedError
from onelog.wire.remoting.codes import RequestCode, ResponseCode

COMMIT_TIMEOUT_MS = 300_000
"""A commit is answered when everything is published, which takes a while for millions."""
PART_BYTES = 512 << 10
"""A good size of a part: one request, and one append of the broker."""


class Staged(NamedTuple):
    """Messages that wait on a broker for the commit of their batch."""

    broker: str
    offset: int
    size: int
    """Messages."""


class PreparedBatches:
    """What tasks and drivers of one job say to the brokers of a cluster."""

    def __init__(self, instance: Instance, query: str) -> None:
        self._instance = instance
        self._query = query
        self._masters: dict[str, Address] = {}

    async def stage(self, queue: Queue, body: bytes, batch: int, attempt: str) -> Staged:
        """Have a broker keep messages of one queue; `body` is what `encode_batch` makes."""
        ext = {
            "query": self._query, "batch": str(batch), "attempt": attempt, "topic": queue.topic,
            "queueId": str(queue.queue_id),
        }  # fmt: skip
        route = await self._instance.routes.get_for_sending(queue.topic)
        ext["defaultTopicQueueNums"] = str(
            1 + max((each.queue_id for each in route.publish_queues), default=3)
        )
        answer = await self._ask(route.address(queue.broker), RequestCode.STAGE_MESSAGES, ext, body)
        return Staged(queue.broker, int(answer["offset"]), int(answer["count"]))

    async def is_committed(self, batch: int) -> bool:
        """Whether the batch, or a later one, was decided."""
        last, _ = await self._decided(await self.coordinator())
        return batch <= last

    async def commit(self, batch: int, staged: Sequence[Staged]) -> bool:
        """Make a batch visible; True if that had been decided before, by whomever."""
        coordinator = await self.coordinator()
        parts: dict[str, list[int]] = {}
        for part in staged:
            parts.setdefault(part.broker, []).append(part.offset)
        mine = parts.pop(coordinator, [])
        last, note = await self._decided(coordinator)
        if batch > last:
            note = json.dumps(parts, sort_keys=True)
        elif batch < last:
            return True
        # Also if it was decided: who decided it may have died before it was published.
        await self._commit_on(coordinator, batch, mine, note)
        others: Mapping[str, list[int]] = json.loads(note or "{}")
        await at_once(lambda each: self._commit_on(each[0], batch, each[1]), others.items())
        return batch <= last

    async def coordinator(self) -> str:
        """The broker that decides: the first by name, so that all choose the same."""
        if not self._masters:
            found = Clusters(self._instance.nodes)
            self._masters = await found.masters()
            if not self._masters:
                raise BrokerNotFoundError("the name servers know no master to write to")
        return min(self._masters)

    async def _decided(self, coordinator: str) -> tuple[int, str]:
        ext = {"query": self._query}
        address = self._masters[coordinator]
        answer = await self._ask(address, RequestCode.QUERY_STAGED, ext)
        return int(answer["batch"]), answer.get("note", "")

    async def _commit_on(self, broker: str, batch: int, offsets: list[int], note: str = "") -> None:
        address = self._masters.get(broker)
        if address is None:
            raise BrokerNotFoundError(
                f"batch {batch} of query {self._query!r} has messages on broker {broker!r}, which "
                "the name servers do not know now: commit again when it is back"
            )
        ext = {"query": self._query, "batch": str(batch), "note": note}
        body = json.dumps(offsets).encode()
        await self._ask(address, RequestCode.COMMIT_STAGED, ext, body, COMMIT_TIMEOUT_MS)

    async def _ask(
        self,
        address: Address,
        code: RequestCode,
        ext: dict[str, str],
        body: bytes = b"",
        timeout_ms: int | None = None,
    ) -> dict[str, str]:
        unknown = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        answer = await self._instance.ask(
            address, code, ext, body, timeout_ms, accept=frozenset({unknown})
        )
        if answer.code == unknown:
            raise RequestRefusedError(
                f"{address} is no OneLog broker, or an old one: it cannot prepare batches, so "
                "nothing can be written to it exactly once"
            )
        return answer.ext
