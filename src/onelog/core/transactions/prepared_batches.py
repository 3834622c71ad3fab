"""Prepared batches: what a job writes becomes visible when its driver says so, all of it and once.

The tasks of a batch stage their messages, in parts of one queue each (`staged`). The driver then
commits the batch by naming the parts of the attempts that won. Parts that no commit names (of
speculative, failed and dead tasks) are garbage, and go with the log.

    labels    of a part: query, batch, attempt, topic, queue, count (of messages)
    table     "commit:<query>": {"batch": 7, "parts": [offset, ...], "ms": when, "note": text};
              with "one_off": true if the query has no batch after this one
              "part:<query>": [7, 3, 1200]   the messages of part 3 of batch 7 follow in the log,
              and the first of them has offset 1200 in its queue

A batch may have parts on several brokers. Its driver then commits on one of them first, with a note
of the others' parts, and on the others after; a driver that comes later reads the note and goes on.

A commit is decided with the first record. A batch may be larger than one append should be, so each
part is appended by itself, in the order named, behind its own record. After a crash the last such
record and the end of its queue tell how many messages of the part are there. That holds for as long
as nobody else writes to the queue: so the rest of a part that is not whole is appended on start,
before anything else (`open`). The parts after it follow later. Until then retention keeps them
(`needed_from`).

A query is remembered for long after its last batch, because it may go on. One that is a single
batch (`one_off`) has to be known only for as long as its driver may ask again: few of these are
kept, for a day, and they never take a place from the others.

Invariant: for each query, batches are visible in the order of their numbers, whole, and once. A
batch that is not above the query's last one is not taken again.
"""

import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from onelog.core.catalog.topics import Topics
from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import Change, in_parts
from onelog.core.durable.writer import OnStored
from onelog.core.publish import Publisher
from onelog.core.transactions.staged import Part, StagedParts, reported_as
from onelog.errors import (
    BatchFencedError,
    BrokerBusyError,
    InvalidQueueError,
    InvalidRequestError,
    MessageTooLargeError,
    OnelogError,
    StagedPartError,
    StoreError,
    TopicPermissionError,
)
from onelog.message import NewRun
from onelog.record.inner_batch import split_batch

log = logging.getLogger(__name__)

PART_BYTES_MAX = 1 << 20
"""Published in one append, during which the broker does nothing else."""
PARTS_MAX = 100_000
NOTE_BYTES_MAX = 1 << 20
QUERIES_MAX = 100_000
NAME_MAX = 200
IDLE_MS_MAX = 90 * 86_400_000
"""A query that committed nothing for so long is forgotten."""
ONE_OFFS_MAX = 10_000
"""For one more, the oldest that is published is forgotten."""
ONE_OFF_MS_MAX = 86_400_000
_FORGOTTEN_PER_ROUND = 1_000
_OLD_ONE_OFF = re.compile(r"spark-batch-[0-9a-f]{32}")
"""How batch writes are named by writers that do not say that they are one-off."""
RETRY_MS = 1_000
_ROOM_BYTES = 64
"""In the properties, for the store's checksum and a separator."""
_CHECKED_TOGETHER = 200
"""Parts that are looked at before others have their turn."""

OnCommitted = Callable[[Any, "Committed | None", OnelogError | None], None]


class Committed(NamedTuple):
    """What a commit came to: `again` if the batch had been committed before."""

    batch: int
    again: bool


@dataclass(slots=True, eq=False)
class _Query:
    """What is known of one query: its last batch, and what of it is still to be published."""

    batch: int
    parts: list[int]
    ms: int
    note: str
    one_off: bool = False
    begun: tuple[int, int] | None = field(init=False, default=None)
    """The part that was begun last, and where in its queue."""
    waiting: list[tuple[OnCommitted, Any]] = field(init=False, default_factory=list)
    trouble: str = field(init=False, default="")
    """What was said last about why it is not published."""

    def value(self, parts: list[int]) -> dict[str, Any]:
        """What the table keeps, with the parts that are still to be published."""
        kept = {"batch": self.batch, "parts": parts, "ms": self.ms, "note": self.note}
        return {**kept, "one_off": True} if self.one_off else kept


@dataclass(eq=False)
class PreparedBatches:
    """The table of queries, and the publishing of their batches."""

    name = "prepared_batches"

    _storage: Storage
    _parts: StagedParts
    _topics: Topics
    _publisher: Publisher

    def __post_init__(self) -> None:
        storage, runtime = self._storage, self._storage.runtime
        self._store, self._tables = storage.store, storage.tables
        self._cold_reads = storage.cold_reads
        self._clock, self._schedule = runtime.clock, runtime.schedule
        self._call_soon = runtime.call_soon
        self._durability = storage.durability
        self._queries: dict[str, _Query] = {}
        self._one_offs: dict[str, None] = {}
        """Those of the queries that are one-off, the oldest first."""
        self._publishing: set[str] = set()
        self._deciding: dict[str, _Query] = {}
        """Batches whose parts are being checked."""
        self._is_closed = False

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        kind, _, query = key.partition(":")
        if value is None:
            self._queries.pop(query, None)
            self._one_offs.pop(query, None)
        elif kind == "commit":
            known = self._queries.get(query)
            one_off = bool(value.get("one_off")) or _OLD_ONE_OFF.fullmatch(query) is not None
            state = _Query(
                int(value["batch"]),
                list(value["parts"]),
                int(value["ms"]),
                str(value["note"]),
                one_off,
            )
            if one_off:
                self._one_offs[query] = None
            else:
                self._one_offs.pop(query, None)
            if known is not None:
                state.waiting = known.waiting
            self._queries[query] = state
        elif (found := self._queries.get(query)) is not None:
            batch, part, base = value
            if batch == found.batch:
                found.begun = (int(part), int(base))

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every query; of those that are being published, also how far."""
        for part in in_parts(self._queries):
            found: dict[str, Any] = {}
            for query, state in part:
                found[f"commit:{query}"] = state.value(state.parts)
                if state.begun is not None:
                    found[f"part:{query}"] = [state.batch, *state.begun]
            yield found

    def open(self) -> None:
        """Go on with what was decided and is not published yet.

        What a crash has torn is made whole at once: nobody has written anything yet.
        """
        unpublished = [query for query, state in self._queries.items() if state.parts]
        for query in unpublished:
            self._complete(query, self._queries[query])
        for query in unpublished:
            log.info("batch %d of query %r is published further", self.last_batch(query), query)
            self._publish_soon(query)

    def _complete(self, query: str, state: _Query) -> None:
        try:
            if state.begun is not None and self._next(query, state)[0] == state.begun[0]:
                self._publish_part(query, state)
        except StoreError as error:
            raise StoreError(
                f"batch {state.batch} of query {query} is half published, and the rest has to be "
                f"written before anything else: {error}"
            ) from error
        except OnelogError as error:
            self._complain(query, state, error)

    def close(self) -> None:
        """Publish nothing more."""
        self._is_closed = True

    def needed_from(self) -> int:
        """Where in the log the first part is that is decided and not published, or its end."""
        first = min(
            (
                offset
                for state in self._queries.values()
                if state.parts
                for offset in state.parts[state.begun[0] if state.begun else 0 :]
            ),
            default=None,
        )
        if first is None:
            return int(self._store.log_end)
        return self._parts.log_offset_of(first)

    def expire(self) -> None:
        """Forget queries that have not committed for very long, some at a time."""
        now_ms = self._clock.now_ms()
        gone = (
            query
            for query, state in self._queries.items()
            if state.ms < now_ms - (ONE_OFF_MS_MAX if state.one_off else IDLE_MS_MAX)
            and not state.parts
        )
        self._tables.write(self._forget(itertools.islice(gone, _FORGOTTEN_PER_ROUND)))

    def _forget(self, queries: Iterable[str]) -> list[Change]:
        return [(self.name, f"commit:{query}", None) for query in queries]

    def last_batch(self, query: str) -> int | None:
        """The last batch that was committed; None if the query is unknown."""
        found = self._queries.get(query)
        return None if found is None else found.batch

    def note(self, query: str) -> str:
        """What the driver noted with the last batch."""
        found = self._queries.get(query)
        return "" if found is None else found.note

    # -- staging -------------------------------------------------------------------------------

    def stage(
        self,
        query: str,
        batch: int,
        attempt: str,
        run: NewRun,
        on_stored: OnStored,
        token: Any = None,
        *,
        one_off: bool = False,
    ) -> None:
        """Store a part; `on_stored` learns its place, whose queue offset names it in the commit."""
        self._check_name(query, one_off)
        if batch < 0:
            raise InvalidRequestError(f"batch {batch} is negative")
        last = self.last_batch(query)
        if last is not None and batch <= last:
            raise BatchFencedError(
                f"query {query!r} has committed batch {last}; messages for batch {batch} come too "
                "late"
            )
        self._check_target(run.topic, run.queue_id)
        # Now, because what is committed has to be published, whatever it is.
        bodies, properties = (map(len, map(itemgetter(at), run.parts)) for at in (1, 2))
        added = len(run.shared) + _ROOM_BYTES
        self._publisher.check_sizes(max(bodies), max(properties) + added)
        labels = {
            "query": query,
            "batch": str(batch),
            "attempt": attempt or "0",
            "topic": run.topic,
            "queue": str(run.queue_id),
            "count": str(len(run.parts)),
        }
        part = Part.of_run(run, labels)
        most = self._store.config.body_bytes_max
        if len(run.parts) > 1:
            most = min(PART_BYTES_MAX, most)
        if len(part.body) > most:
            setting = "" if most == PART_BYTES_MAX else " (store.body_bytes_max)"
            raise MessageTooLargeError(
                f"a part of {len(part.body)} bytes; the limit is {most}{setting}: stage several"
            )
        self._parts.put(part, on_stored, token)

    def _check_name(self, query: str, one_off: bool) -> None:
        if not query or len(query) > NAME_MAX or not query.isprintable():
            raise InvalidRequestError(
                f"a query's name has 1 to {NAME_MAX} printable characters, not {query[:40]!r}"
            )
        if one_off or query in self._queries:
            return
        if len(self._queries) - len(self._one_offs) >= QUERIES_MAX:
            raise BrokerBusyError(
                f"{QUERIES_MAX} queries have committed here, which is the limit; those without a "
                f"commit for {IDLE_MS_MAX // 86_400_000} days are forgotten"
            )

    def _check_target(self, topic: str, queue_id: int) -> None:
        config = self._topics.require(topic)
        if not config.writable or topic in self._topics.unsendable:
            raise TopicPermissionError(f"sending message to topic[{topic}] is forbidden")
        if not 0 <= queue_id < config.queues:
            raise InvalidQueueError(f"request queueId[{queue_id}] is illegal, {config}")

    # -- committing ----------------------------------------------------------------------------

    def commit(
        self,
        query: str,
        batch: int,
        parts: Sequence[int],
        on_committed: OnCommitted,
        token: Any = None,
        *,
        note: str = "",
        one_off: bool = False,
    ) -> None:
        """Publish these parts, by their places; `on_committed` is called when all are there.

        A batch that was committed before stays as it is, whatever parts are named now. `one_off`
        says that the query has this batch only.
        """
        self._check_name(query, one_off)
        if len(parts) > PARTS_MAX or len(set(parts)) != len(parts):
            raise InvalidRequestError(
                f"a commit names at most {PARTS_MAX} parts, none of them twice; not {len(parts)}"
            )
        if len(note) > NOTE_BYTES_MAX:
            raise InvalidRequestError(f"the note has more than {NOTE_BYTES_MAX} characters")
        state = self._queries.get(query)
        if state is not None and batch <= state.batch:
            if state.parts:
                state.waiting.append((on_committed, token))
            else:
                self._tell([(on_committed, token)], Committed(state.batch, True))
            return
        if state is not None and state.parts:
            raise BatchFencedError(
                f"batch {state.batch} of query {query!r} is still being published; batch {batch} "
                "has to wait"
            )
        deciding = self._deciding.get(query)
        if deciding is None:
            state = _Query(batch, list(parts), self._clock.now_ms(), note, one_off)
            state.waiting.append((on_committed, token))
            self._check_some(query, state, 0)
        elif deciding.batch == batch:
            deciding.waiting.append((on_committed, token))
        else:
            raise BatchFencedError(
                f"batch {deciding.batch} of query {query!r} is being committed; batch {batch} has "
                "to wait"
            )

    def _check_some(self, query: str, state: _Query, begin: int) -> None:
        """See that parts are there, some at a time, and decide when all of them are."""
        self._deciding.pop(query, None)
        some = state.parts[begin : begin + _CHECKED_TOGETHER]
        log_offsets = [self._parts.log_offset_of(offset) for offset in some if offset >= 0]
        if self._is_closed:
            return
        if not self._cold_reads.is_ready(
            log_offsets, lambda: self._check_more(query, state, begin)
        ):
            self._deciding[query] = state
            return
        for offset in some:
            labels = self._part(offset, query, state.batch).labels
            self._check_target(labels["topic"], int(labels["queue"]))
        following = begin + len(some)
        if following < len(state.parts):
            self._deciding[query] = state
            self._call_soon(lambda: self._check_more(query, state, following))
        else:
            self._decide(query, state)

    def _check_more(self, query: str, state: _Query, begin: int) -> None:
        try:
            self._check_some(query, state, begin)
        except Exception as reason:
            for on_committed, token in state.waiting:
                on_committed(token, None, reported_as(reason))

    def _decide(self, query: str, state: _Query) -> None:
        forgotten = self._room_for_one_off(query) if state.one_off else []
        decided = (self.name, f"commit:{query}", state.value(list(state.parts)))
        self._tables.write([*forgotten, decided])
        self._queries[query].waiting += state.waiting
        self._publish(query)

    def _room_for_one_off(self, query: str) -> list[Change]:
        """The change that makes room for one more, if that is necessary."""
        if query in self._one_offs or len(self._one_offs) < ONE_OFFS_MAX:
            return []
        published = (each for each in self._one_offs if not self._queries[each].parts)
        oldest = next(published, None)
        if oldest is None:
            raise BrokerBusyError(
                f"{ONE_OFFS_MAX} batch writes are being published, which is the limit: try again "
                "when some are done"
            )
        return self._forget([oldest])

    def _part(self, offset: int, query: str, batch: int) -> Part:
        """The staged part at a place; `StagedPartError` unless it is of this query and batch."""
        part = self._parts.read(offset)
        if (part.labels.get("query"), part.labels.get("batch")) != (query, str(batch)):
            # Not of what: that is not for everybody.
            raise StagedPartError(
                f"what is staged at {offset} is not of query {query!r}, batch {batch}"
            )
        return part

    # -- publishing ----------------------------------------------------------------------------

    def _publish_soon(self, query: str) -> None:
        if query not in self._publishing:
            self._publishing.add(query)
            self._call_soon(lambda: self._publish(query))

    def _publish(self, query: str) -> None:
        """Append the next part, or finish."""
        self._publishing.discard(query)
        if self._is_closed:
            return  # The next start goes on.
        state = self._queries[query]
        number = state.begun[0] if state.begun else 0
        log_offsets = map(self._parts.log_offset_of, state.parts[number : number + 2])
        if not self._cold_reads.is_ready(log_offsets, lambda: self._publish(query)):
            self._publishing.add(query)
            return
        try:
            if not self._publish_part(query, state):
                self._tables.write([(self.name, f"commit:{query}", state.value([]))])
        except Exception as error:
            self._failed(query, state, error)
            return
        state = self._queries[query]
        if state.parts:
            self._publish_soon(query)
        else:
            waiting, state.waiting = state.waiting, []
            self._tell(waiting, Committed(state.batch, False))

    def _publish_part(self, query: str, state: _Query) -> bool:
        """Append what is next to append; False if everything is there."""
        number, there = self._next(query, state)
        if number == len(state.parts):
            return False
        part = self._part(state.parts[number], query, state.batch)
        run = part.run() if "kind" in part.labels else _old_run(part)
        base = self._parts.end_of(run.topic, run.queue_id) - there
        change = (self.name, f"part:{query}", [state.batch, number, base])
        # It is decided, and its parts are kept until they are published: that may free space.
        with self._parts.head_room():
            self._parts.append_run([change], run._replace(parts=run.parts[there:]))
        return True

    def _next(self, query: str, state: _Query) -> tuple[int, int]:
        """The part to append next, and how many of its messages are there already."""
        if state.begun is None:
            return 0, 0
        number, base = state.begun
        labels = self._part(state.parts[number], query, state.batch).labels
        size = int(labels["count"])
        end = int(self._store.next_offset(labels["topic"], int(labels["queue"])))
        there = min(max(0, end - base), size)
        return (number, there) if there < size else (number + 1, 0)

    def _failed(self, query: str, state: _Query, reason: Exception) -> None:
        """The disk is full, say. The batch is decided, so it is tried until it is published."""
        error = reported_as(reason)
        self._complain(query, state, error)
        waiting, state.waiting = state.waiting, []
        for on_committed, token in waiting:
            on_committed(token, None, error)
        self._publishing.add(query)
        self._schedule(RETRY_MS, lambda: self._publish(query))

    def _complain(self, query: str, state: _Query, error: OnelogError) -> None:
        """Say once what is wrong."""
        if str(error) != state.trouble:
            state.trouble = str(error)
            log.error("batch %d of query %r cannot be published yet: %s", state.batch, query, error)

    def _tell(self, waiting: list[tuple[OnCommitted, Any]], committed: Committed) -> None:
        def on_durable(error: OnelogError | None) -> None:
            for on_committed, token in waiting:
                on_committed(token, committed, error)

        self._durability.when_safe(on_durable)


def _old_run(part: Part) -> NewRun:
    """The messages of a part that 0.1 staged: it kept RocketMQ's batches as they came."""
    topic, queue_id = part.labels["topic"], int(part.labels["queue"])
    return NewRun(topic, queue_id, split_batch(part.body), part.body)
