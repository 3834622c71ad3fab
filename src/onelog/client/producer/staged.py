"""Batches in two steps: tasks stage messages, then one driver makes all of them visible, once.

Only OneLog's brokers do this (`STAGE_MESSAGES` and its neighbours); RocketMQ's refuse it. A batch
may have parts on several brokers. One of them, the decider, is committed first, with a note of the
parts of the others. If the same batch is committed again, with whatever parts, the note counts, and
its parts are completed.

The decider of a query never changes: another broker would say that nothing was decided, and the
batch would be published twice. So the name of the decider is on all brokers before it decides
anything, and every later driver finds it there. While the decider cannot be asked, nothing is
decided. A query that is one batch only (`one_off`) is never asked about again, and needs none of
this.

    note      {"decider": "broker-a", "parts": {"broker-b": [17, 18]}}, on the decider
              {"decider": "broker-a"}, on the others, from before the first decision on
              {"broker-b": [17, 18]}, on a decider of 0.1, whose other brokers had no note

Invariant: as soon as some driver has committed a batch to the end, it is visible whole and once,
whatever died before.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onelog.client.admin.cluster import Clusters
from onelog.client.connection.address import Address
from onelog.client.connection.instance import Instance
from onelog.client.connection.nodes import at_once
from onelog.client.message import Queue
from onelog.errors import (
    BrokerNotFoundError,
    InvalidRequestError,
    OnelogError,
    PeerClosedError,
    PeerTimeoutError,
    RequestRefusedError,
)
from onelog.wire.remoting.codes import RequestCode, ResponseCode

COMMIT_TIMEOUT_MS = 300_000
"""A commit is answered when everything is published, which takes a while for millions."""
PART_BYTES = 512 << 10
"""A good size of a part: one request, and one append of the broker."""
PART_COUNT = 4_000
"""Messages in a part: while it appends them, the broker does nothing else."""
NOTHING = -1
"""The batch of a query that has decided none."""

_AWAY = (PeerClosedError, PeerTimeoutError)
_ADVICE = (
    "start it; or, if it is gone for good, name another one (Spark's option decidingBroker), and "
    "the last batch may come twice"
)


class _CannotPrepareError(RequestRefusedError):
    """What was asked is no OneLog broker."""


class Staged(NamedTuple):
    """Messages that wait on a broker for the commit of their batch."""

    broker: str
    offset: int
    size: int
    """Messages."""


class _Known(NamedTuple):
    """What one broker knows of a query."""

    batch: int
    decider: str
    """Empty if it does not know."""
    parts: Mapping[str, list[int]]
    """What other brokers have of the batch."""

    @property
    def is_something(self) -> bool:
        return self.batch > NOTHING or bool(self.decider)


class PreparedBatches:
    """What tasks and drivers of one job say to the brokers of a cluster."""

    def __init__(
        self, instance: Instance, query: str, *, decider: str | None = None, one_off: bool = False
    ) -> None:
        """`decider` is who decides, if that is known; `one_off`: there is one batch only."""
        self._instance = instance
        self._query = query
        self._decider = decider
        self._one_off = one_off

    async def stage(self, queue: Queue, body: bytes, batch: int, attempt: str) -> Staged:
        """Have a broker keep messages of one queue; `body` is what `encode_batch` makes."""
        ext = {
            "query": self._query,
            "batch": str(batch),
            "attempt": attempt,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            **self._marks,
        }
        route = await self._instance.routes.get_for_sending(queue.topic)
        ext["defaultTopicQueueNums"] = str(
            1 + max((each.queue_id for each in route.publish_queues), default=3)
        )
        answer = await self._ask(route.address(queue.broker), RequestCode.STAGE_MESSAGES, ext, body)
        return Staged(queue.broker, int(answer["offset"]), int(answer["count"]))

    # -- who decides ---------------------------------------------------------------------------

    async def find_decider(self) -> str | None:
        """The broker that decides for this query; None if nobody knows the query."""
        if self._decider is None and not self._one_off:
            self._decider = self._found(await self._known(await self._masters()))
        return self._decider

    async def choose_decider(self) -> str:
        """The same; a query that nobody knows gets the first broker by name."""
        decider = await self.find_decider()
        if decider is None:
            known = await self._known(await self._masters())
            able = [name for name, each in known.items() if isinstance(each, _Known)]
            # If none answers, asking the first one again says why.
            decider = self._decider = min(able or known)
        return decider

    def _found(self, known: Mapping[str, "_Known | OnelogError"]) -> str | None:
        written = [
            each for each in known.values() if isinstance(each, _Known) and each.is_something
        ]
        named = [each for each in written if each.decider]
        if named:
            # Normally they all name the same. A user who named another one, because the first was
            # lost, did that later.
            return max(named, key=lambda each: each.batch).decider
        if written:
            raise BrokerNotFoundError(
                f"another broker decides for query {self._query!r} than those that the name "
                f"servers know now ({', '.join(sorted(known))}): {_ADVICE}"
            )
        for name, answer in sorted(known.items()):
            if isinstance(answer, OnelogError):
                raise type(answer)(
                    f"broker {name!r} may know who decides for query {self._query!r}, and cannot "
                    f"be asked: {answer}"
                )
        return None

    # -- deciding ------------------------------------------------------------------------------

    async def is_committed(self, batch: int) -> bool:
        """Whether the batch, or a later one, was decided."""
        decider = await self.find_decider()
        if decider is None:
            return False
        masters = await self._masters()
        answer = self._of(decider, await self._known(masters, decider))
        if not answer.is_something:
            answer = self._of(decider, await self._known(masters))  # Do the others know more?
        return batch <= answer.batch

    async def commit(self, batch: int, staged: Sequence[Staged]) -> bool:
        """Make a batch visible; True if that had been decided before, by whomever."""
        decider = await self.choose_decider()
        masters = await self._masters()
        known = await self._known(masters, decider if self._one_off else None)
        decided = self._of(decider, known)
        parts: dict[str, list[int]] = {}
        for part in staged:
            parts.setdefault(part.broker, []).append(part.offset)
        mine = parts.pop(decider, [])
        if batch < decided.batch:
            return True
        if batch == decided.batch:
            # Who decided it may have died before it was published.
            parts = dict(decided.parts)
        else:
            await self._make_known(decider, known, masters)
        note = json.dumps({"decider": decider, "parts": parts}, sort_keys=True)
        await self._commit_on(masters, decider, batch, mine, note)
        await self._complete(masters, decider, batch, parts, known)
        return batch == decided.batch

    def _of(self, decider: str, known: Mapping[str, "_Known | OnelogError"]) -> _Known:
        """What the decider knows; raises if it cannot be asked, or knows less than others."""
        decided_by = f"broker {decider!r} decides for query {self._query!r}"
        answer = known.get(decider)
        if answer is None:
            raise BrokerNotFoundError(
                f"{decided_by}, and the name servers do not know it now: {_ADVICE}"
            )
        if isinstance(answer, OnelogError):
            raise type(answer)(f"{decided_by}, and cannot be reached: {answer}: {_ADVICE}")
        for name, other in sorted(known.items()):
            if isinstance(other, _Known) and other.batch > answer.batch:
                raise InvalidRequestError(
                    f"{decided_by}, but {name!r} has batch {other.batch}, of which {decider!r} "
                    f"knows nothing: it lost its store, or is the wrong one. Bring its store back; "
                    f"or, if that is lost, have {name!r} decide (Spark's option decidingBroker)"
                )
        return answer

    async def _make_known(
        self, decider: str, known: Mapping[str, "_Known | OnelogError"], masters: dict[str, Address]
    ) -> None:
        """Before anything is decided: notify the brokers that do not know yet which one decides.

        A broker that cannot be reached hears of it with a later batch.
        """
        unaware = [
            name
            for name, each in known.items()
            if isinstance(each, _Known) and not each.is_something and name != decider
        ]
        note = json.dumps({"decider": decider})
        await at_once(
            lambda name: self._commit_on(masters, name, NOTHING, [], note),
            () if self._one_off else unaware,
        )

    async def _complete(
        self,
        masters: dict[str, Address],
        decider: str,
        batch: int,
        parts: Mapping[str, list[int]],
        known: Mapping[str, "_Known | OnelogError"],
    ) -> None:
        """Have the others publish their parts; those without any only remember the query."""
        note = "" if self._one_off else json.dumps({"decider": decider})

        async def commit_on(broker: str) -> None:
            try:
                await self._commit_on(masters, broker, batch, parts.get(broker, []), note)
            except OnelogError:
                if broker in parts:
                    raise

        idle = () if self._one_off else (n for n, e in known.items() if isinstance(e, _Known))
        await at_once(commit_on, sorted({*parts, *idle} - {decider}))

    # -- asking --------------------------------------------------------------------------------

    async def _masters(self) -> dict[str, Address]:
        """Asked for every time: a broker that is started again may have another address."""
        sets = await Clusters(self._instance.nodes).brokers()
        found = {each.name: each.master for each in sets if each.master is not None}
        if not found:
            raise BrokerNotFoundError("the name servers know no master to write to")
        return found

    async def _known(
        self, masters: Mapping[str, Address], only: str | None = None
    ) -> dict[str, "_Known | OnelogError"]:
        """What brokers know of the query, or why one cannot be asked.

        Brokers that cannot prepare batches are left out, unless none can.
        """

        async def ask(name: str) -> "_Known | OnelogError":
            try:
                answer = await self._ask(
                    masters[name], RequestCode.QUERY_STAGED, {"query": self._query}
                )
            except (*_AWAY, _CannotPrepareError) as error:
                return error
            return _decoded(name, int(answer["batch"]), answer.get("note", ""))

        names = [name for name in masters if only is None or name == only]
        answers = dict(zip(names, await at_once(ask, names), strict=True))
        refusals = [each for each in answers.values() if isinstance(each, _CannotPrepareError)]
        if refusals and len(refusals) == len(answers):
            raise refusals[0]
        return {n: each for n, each in answers.items() if not isinstance(each, _CannotPrepareError)}

    async def _commit_on(
        self, masters: Mapping[str, Address], broker: str, batch: int, offsets: list[int], note: str
    ) -> None:
        address = masters.get(broker)
        if address is None:
            raise BrokerNotFoundError(
                f"batch {batch} of query {self._query!r} has messages on broker {broker!r}, which "
                "the name servers do not know now: commit again when it is back"
            )
        ext = {"query": self._query, "batch": str(batch), "note": note, **self._marks}
        body = json.dumps(offsets).encode()
        await self._ask(address, RequestCode.COMMIT_STAGED, ext, body, COMMIT_TIMEOUT_MS)

    @property
    def _marks(self) -> dict[str, str]:
        return {"oneOff": "true"} if self._one_off else {}

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
            address, code, ext, body, frozenset({unknown}), timeout_ms
        )
        if answer.code == unknown:
            raise _CannotPrepareError(
                f"{address} is no OneLog broker, or an old one: it cannot prepare batches, so "
                "nothing can be written to it exactly once"
            )
        return answer.ext


def _decoded(broker: str, batch: int, note: str) -> _Known:
    content = json.loads(note or "{}")
    if isinstance(content.get("decider"), str):
        return _Known(batch, content["decider"], content.get("parts", {}))
    # 0.1: only the decider had a note, be it an empty one.
    return _Known(batch, broker if note else "", content)
