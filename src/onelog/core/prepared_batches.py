"""Prepared batches: what a job writes becomes visible when its driver says so, all of it and once.

The tasks of a batch stage their messages, in parts of one queue each; parts rest where no consumer
looks. The driver then commits the batch by naming the parts of the attempts that won. Parts that no
commit names (of speculative, failed and dead tasks) are garbage, and go with the log.

    part      topic `onelog_sys_staged`, queue 0; the body as the gateway took it, the rest as
              properties (`Part`)
    table     "commit:<query>": {"batch": 7, "parts": [offset, ...], "ms": when, "note": text}
              "part:<query>": [7, 3, 1200]   the messages of part 3 of batch 7 follow in the log,
              and the first of them has offset 1200 in its queue

A batch may have parts on several brokers. Its driver then commits on one of them first, with a note
of the others' parts, and on the others after; a driver that comes later reads the note and goes on.

A commit is decided with the first record. Then each part is appended, in the order named, behind
its own record, in one append. After a crash the last such record and the end of its queue tell how
many messages of the part are there, since nothing was appended after a part that is not whole; the
rest, and the parts after it, follow.

Invariant: for each query, batches are visible in the order of their numbers, whole, and once. A
batch that is not above the query's last one is not taken again.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from onelog.clock import Clock
from onelog.core.durability import Durability
from onelog.core.publish import OnStored, Publisher
from onelog.core.tables import STAGED_TOPIC, Tables, in_parts, joined
from onelog.core.topics import UNSENDABLE_TOPICS, Topics
from onelog.core.waiting import Schedule
from onelog.errors import (
    BatchFencedError,
    BrokerBusyError,
    InvalidQueueError,
    InvalidRequestError,
    MessageTooLargeError,
    OnelogError,
    StagedPartError,
    TopicPermissionError,
)
from onelog.message import Message, NewMessage, NewRun, decode_properties, encode_properties
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

PART_BYTES_MAX = 1 << 20
"""Published in one append, during which the broker does nothing else."""
PARTS_MAX = 100_000
NOTE_BYTES_MAX = 1 << 20
QUERIES_MAX = 100_000
NAME_MAX = 200
IDLE_MS_MAX = 90 * 86_400_000
"""A query that committed nothing for so long is forgotten."""
RETRY_MS = 1_000

OnCommitted = Callable[[Any, "Committed | None", OnelogError | None], None]


class Part(NamedTuple):
    """Messages of one queue that a task staged; the body is in the gateway's form."""

    query: str
    batch: int
    attempt: str
    topic: str
    queue_id: int
    size: int
    """Messages."""
    body: bytes | memoryview
    born_ms: int
    born_host: bytes


class Committed(NamedTuple):
    """What a commit came to: `again` if the batch had been committed before."""

    batch: int
    again: bool


class _Query:
    """What is known of one query: its last batch, and what of it is still to be published."""

    __slots__ = ("batch", "begun", "ms", "note", "parts", "trouble", "waiting")

    def __init__(self, batch: int, parts: list[int], ms: int, note: str) -> None:
        self.batch = batch
        self.parts = parts
        self.ms = ms
        self.note = note
        self.begun: tuple[int, int] | None = None
        """The part that was begun last, and where in its queue."""
        self.waiting: list[tuple[OnCommitted, Any]] = []
        self.trouble = ""
        """What was said last about why it is not published."""

    def value(self, parts: list[int]) -> dict[str, Any]:
        """What the table keeps, with the parts that are still to be published."""
        return {"batch": self.batch, "parts": parts, "ms": self.ms, "note": self.note}


class PreparedBatches:
    """The table of queries, and the publishing of their batches."""

    name = "prepared_batches"

    def __init__(
        self,
        tables: Tables,
        store: MessageStore,
        topics: Topics,
        publisher: Publisher,
        durability: Durability,
        clock: Clock,
        schedule: Schedule,
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self.unpack: Callable[[Part], NewRun] | None = None
        """The messages of a part; given by the gateway, whose form its body has."""
        self._tables = tables
        self._store = store
        self._topics = topics
        self._publisher = publisher
        self._durability = durability
        self._clock = clock
        self._schedule = schedule
        self._call_soon = call_soon
        self._queries: dict[str, _Query] = {}
        self._publishing: set[str] = set()
        self._is_closed = False

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        kind, _, query = key.partition(":")
        if value is None:
            self._queries.pop(query, None)
        elif kind == "commit":
            known = self._queries.get(query)
            state = _Query(
                int(value["batch"]), list(value["parts"]), int(value["ms"]), str(value["note"])
            )
            if known is not None:
                state.waiting = known.waiting
            self._queries[query] = state
        elif (found := self._queries.get(query)) is not None:
            batch, part, base = value
            if batch == found.batch:
                found.begun = (int(part), int(base))

    def entries(self) -> dict[str, Any]:
        """Every query; of those that are being published, also how far."""
        return joined(self.parts())

    def parts(self) -> Iterator[dict[str, Any]]:
        """The same, some at a time."""
        for part in in_parts(self._queries):
            found: dict[str, Any] = {}
            for query, state in part:
                found[f"commit:{query}"] = state.value(state.parts)
                if state.begun is not None:
                    found[f"part:{query}"] = [state.batch, *state.begun]
            yield found

    def open(self) -> None:
        """Go on with what was decided and is not published yet."""
        for query, state in self._queries.items():
            if state.parts:
                log.info("batch %d of query %s is published further", state.batch, query)
                self._publish_soon(query)

    def close(self) -> None:
        """Publish nothing more."""
        self._is_closed = True

    def expire(self) -> None:
        """Forget queries that have not committed for very long."""
        before_ms = self._clock.now_ms() - IDLE_MS_MAX
        gone = [q for q, s in self._queries.items() if s.ms < before_ms and not s.parts]
        if gone:
            self._tables.write([(self.name, f"commit:{query}", None) for query in gone])

    def last_batch(self, query: str) -> int | None:
        """The last batch that was committed; None if the query is unknown."""
        found = self._queries.get(query)
        return None if found is None else found.batch

    def note(self, query: str) -> str:
        """What the driver noted with the last batch."""
        found = self._queries.get(query)
        return "" if found is None else found.note

    # -- staging -------------------------------------------------------------------------------

    def stage(self, part: Part, on_stored: OnStored, token: Any = None) -> None:
        """Store a part; `on_stored` learns its place, whose queue offset names it in the commit."""
        self._check_name(part.query)
        if part.batch < 0:
            raise InvalidRequestError(f"batch {part.batch} is negative")
        last = self.last_batch(part.query)
        if last is not None and part.batch <= last:
            raise BatchFencedError(
                f"query {part.query!r} has committed batch {last}; messages for batch "
                f"{part.batch} come too late"
            )
        most = min(PART_BYTES_MAX, self._publisher.body_bytes_max)
        if len(part.body) > most:
            setting = "" if most == PART_BYTES_MAX else " (store.body_bytes_max)"
            raise MessageTooLargeError(
                f"a part of {len(part.body)} bytes; the limit is {most}{setting}: stage several"
            )
        self._check_target(part)
        named = {
            "query": part.query, "batch": str(part.batch), "attempt": part.attempt or "0",
            "topic": part.topic, "queue": str(part.queue_id), "count": str(part.size),
        }  # fmt: skip
        staged = NewMessage(
            STAGED_TOPIC, 0, part.body, encode_properties(named), born_ms=part.born_ms,
            born_host=part.born_host,
        )  # fmt: skip
        self._publisher.put(staged, on_stored, token)

    def _check_name(self, query: str) -> None:
        if not query or len(query) > NAME_MAX or not query.isprintable():
            raise InvalidRequestError(
                f"a query's name has 1 to {NAME_MAX} printable characters, not {query[:40]!r}"
            )
        if query not in self._queries and len(self._queries) >= QUERIES_MAX:
            raise BrokerBusyError(
                f"{QUERIES_MAX} queries have committed here, which is the limit; those without a "
                f"commit for {IDLE_MS_MAX // 86_400_000} days are forgotten"
            )

    def _check_target(self, part: Part) -> None:
        config = self._topics.require(part.topic)
        if not config.writable or part.topic in UNSENDABLE_TOPICS:
            raise TopicPermissionError(f"sending message to topic[{part.topic}] is forbidden")
        if not 0 <= part.queue_id < config.queues:
            raise InvalidQueueError(f"request queueId[{part.queue_id}] is illegal, {config}")

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
    ) -> None:
        """Publish these parts, by their places; `on_committed` is called when all are there.

        A batch that was committed before stays as it is, whatever parts are named now.
        """
        self._check_name(query)
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
        for offset in parts:
            self._check_target(self._part(offset, query, batch))
        now_ms = self._clock.now_ms()
        decided = _Query(batch, list(parts), now_ms, note).value(list(parts))
        self._tables.write([(self.name, f"commit:{query}", decided)])
        self._queries[query].waiting.append((on_committed, token))
        self._publish(query)

    def _part(self, offset: int, query: str, batch: int) -> Part:
        """The staged part at a place; `StagedPartError` unless it is of this query and batch."""
        found = self._store.messages(STAGED_TOPIC, 0, offset, 1) if offset >= 0 else []
        if not found or found[0].queue_offset != offset:
            raise StagedPartError(
                f"nothing is staged at {offset}: it was lost or deleted; stage the batch again"
            )
        part = _decoded(found[0])
        if (part.query, part.batch) != (query, batch):
            raise StagedPartError(
                f"what is staged at {offset} is of query {part.query!r}, batch {part.batch}; not "
                f"of {query!r}, batch {batch}"
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
        assert self.unpack is not None
        number, there = 0, 0
        if state.begun is not None:
            number, base = state.begun
            part = self._part(state.parts[number], query, state.batch)
            end = int(self._store.max_offset(part.topic, part.queue_id))
            there = min(max(0, end - base), part.size)
            if there == part.size:
                number, there = number + 1, 0
        if number == len(state.parts):
            return False
        part = self._part(state.parts[number], query, state.batch)
        run = self.unpack(part)
        run = run._replace(parts=run.parts[there:])
        base = int(self._store.max_offset(part.topic, part.queue_id)) - there
        change = (self.name, f"part:{query}", [state.batch, number, base])
        records = map(NewRun.of, self._tables.record([change]))
        self._publisher.write_runs_now([*records, run])
        self._tables.apply([change])
        return True

    def _failed(self, query: str, state: _Query, reason: Exception) -> None:
        """The disk is full, say. The batch is decided, so it is tried until it is published."""
        told = f"batch {state.batch} of query {query} cannot be published yet: {reason!r}"
        error = reason if isinstance(reason, OnelogError) else StagedPartError(told)
        if told != state.trouble:
            state.trouble = told
            log.error("%s", told, exc_info=None if error is reason else reason)
        waiting, state.waiting = state.waiting, []
        for on_committed, token in waiting:
            on_committed(token, None, error)
        self._publishing.add(query)
        self._schedule(RETRY_MS, lambda: self._publish(query))

    def _tell(self, waiting: list[tuple[OnCommitted, Any]], committed: Committed) -> None:
        def told(error: OnelogError | None) -> None:
            for on_committed, token in waiting:
                on_committed(token, committed, error)

        self._durability.when_safe(self._store.log_end, told)


def _decoded(message: Message) -> Part:
    named = decode_properties(message.properties)
    return Part(
        named["query"], int(named["batch"]), named["attempt"], named["topic"], int(named["queue"]),
        int(named["count"]), message.body, message.born_ms, message.born_host,
    )  # fmt: skip
