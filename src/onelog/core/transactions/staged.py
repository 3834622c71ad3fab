"""Staged transactions: messages that nobody sees until a commit makes all of them visible at once.

`begin` opens a transaction of an owner, a session say, which may have several of them by name.
`stage` takes messages, of any topics: some are kept in memory, more than that in a queue that no
consumer reads. `commit` appends all of them to their own queues, in one append. `abort` forgets
them; what is in the log goes with it. A transaction that is open when its owner goes, or when the
broker stops, is aborted.

    part      topic `onelog_sys_staged`, queue 0: messages that are staged, in msgpack. With the
              property kind=messages the body is a list of messages, each the fields of a
              `NewMessage`; with kind=run it is the fields of a `NewRun`. Other properties, the
              labels, say whose part it is.
    table     "commit": {"parts": [offset, ...], "begins": [[topic, queue, offset], ...]}
              the messages of these parts follow in the log, and the next message of each of their
              queues has that offset; behind them the entry is deleted, in the same append
              "commit N": {"parts": ..., "now": count, "begins": ...}
              the same of a large one: only those of so many parts follow, and behind them the entry
              has the parts that are left, or is deleted; the next append goes on

Records of the broker's own that belong to the commit, acknowledgements say, are in its parts, too.

A crash may cut off an append. If its first record is there and its last one is not, the next start
appends the rest before anything else is written (`open`). The ends of the queues tell what that is.
So a commit whose first record survives is whole, and of any other nothing is seen.

A transaction of more than `APPEND_COUNT_MAX` messages, `APPEND_BYTES_MAX` or `APPEND_TOPICS_MAX`
is committed by several appends, so that others have their turn in between: its messages are seen as
they come, and whatever dies after the first append, all of them are in their queues in the end.

Prepared batches stand on the same parts (`prepared_batches`). RocketMQ's half messages do the same
in a form of their own (`half`); docs/decisions/0006 says why.

Invariant: consumers get all messages of a transaction, or none, whatever dies at whatever moment;
those of one that fits an append they get at once.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec

from onelog.core.catalog.topics import Topics
from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import STAGED_TOPIC, Change
from onelog.core.durable.writer import OnStored
from onelog.core.publish import Publisher
from onelog.errors import (
    BrokerBusyError,
    InvalidRequestError,
    MessageTooLargeError,
    OnelogError,
    StagedPartError,
    StoreCorruptError,
    StoreError,
    TransactionNotFoundError,
)
from onelog.message import (
    Appended,
    NewMessage,
    NewRun,
    decode_properties,
    encode_properties,
)
from onelog.names import OWN_PREFIX, TIMER_TOPIC

log = logging.getLogger(__name__)

COUNT_MAX = 200_000
"""Messages of a transaction."""
BYTES_MAX = 256 << 20
"""Of bodies and properties."""
BYTES_OF_ALL_MAX = 1 << 30
"""The same of all transactions that are open: what they can keep of the log."""
APPEND_COUNT_MAX, APPEND_BYTES_MAX = 5_000, 16 << 20
APPEND_TOPICS_MAX = 500
"""What is committed by one append: meanwhile, the broker does nothing else. Where each message has
a queue of its own, it costs several times what it does otherwise."""
SOME_COUNT_MAX, SOME_BYTES_MAX = 2_000, 4 << 20
"""What each append of a larger one has."""
_RETRY_MS = 1_000
_PARTS_MAX = 512
"""Of one append: a part has `GATHERED_BYTES_MAX`, or more."""
AGE_MS_MAX = 3_600_000
"""Since its first message was staged: for so long the log keeps it."""
OPEN_MAX = 10_000
GATHERED_BYTES_MAX = 32 << 10
"""What a transaction has in memory before it becomes a part."""
_COMMIT = "commit"
_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode


class Part(NamedTuple):
    """What one call staged: labels, short texts without control characters, and messages."""

    labels: dict[str, str]
    body: bytes

    @classmethod
    def of_messages(cls, messages: Sequence[NewMessage]) -> "Part":
        """A part with messages of any queues."""
        return cls({"kind": "messages"}, _encode(messages))

    @classmethod
    def of_run(cls, run: NewRun, labels: dict[str, str]) -> "Part":
        """A part with a run of one queue."""
        # What its messages were cut from is not kept twice: the body serves as well.
        return cls({**labels, "kind": "run"}, _encode(run._replace(source=b"")))

    def messages(self) -> list[NewMessage]:
        """The messages, if they were staged as such."""
        found = [NewMessage(*fields) for fields in _decode(self.body)]
        return [
            each._replace(extra_queues=tuple(each.extra_queues)) if each.extra_queues else each
            for each in found
        ]

    def run(self) -> NewRun:
        """The run, if that was staged."""
        topic, queue_id, parts, _, *others = _decode(self.body)
        return NewRun(topic, queue_id, parts, self.body, *others)


class StagedParts:
    """The queue of parts, and the appends that make their messages visible."""

    def __init__(self, storage: Storage) -> None:
        self._tables, self._writer, self.store = storage.tables, storage.writer, storage.store
        self.clock = storage.runtime.clock
        self._ahead: dict[int, int] = {}
        """Parts that their queue may not show yet, by offset: where in the log each is."""

    def put(self, part: Part, on_stored: OnStored, token: Any = None) -> None:
        """Store a part with this tick; `on_stored` learns its place."""
        self._writer.put(self._record(part), on_stored, token)

    def put_now(self, part: Part) -> int:
        """Store a part, and say its queue offset."""
        (stored,) = self._writer.write_now([self._record(part)])
        if self.store.gated:
            end = self.store.max_offset(STAGED_TOPIC, 0)
            self._ahead = {offset: at for offset, at in self._ahead.items() if offset >= end}
            self._ahead[stored.queue_offset] = stored.log_offset
        return int(stored.queue_offset)

    def _record(self, part: Part) -> NewMessage:
        labels, now_ms = encode_properties(part.labels), self.clock.now_ms()
        return NewMessage(STAGED_TOPIC, 0, part.body, labels, born_ms=now_ms)

    def log_offset_of(self, offset: int) -> int:
        return self.store.log_offset_of(STAGED_TOPIC, 0, offset)

    def read(self, offset: int) -> Part:
        """The part with this queue offset."""
        found = self.store.messages(STAGED_TOPIC, 0, offset, 1) if offset >= 0 else []
        if not found and offset in self._ahead:
            found = [self.store.message_at(self._ahead[offset])]
        if not found or found[0].queue_offset != offset:
            raise StagedPartError(
                f"nothing is staged at {offset}: it was lost or deleted; stage it again"
            )
        return Part(decode_properties(found[0].properties), bytes(found[0].body))

    def append(
        self,
        before: Sequence[Change],
        messages: list[NewMessage],
        after: Sequence[Change],
    ) -> list[Appended]:
        """Append messages between the records of changes, in one append, and make the changes."""
        first = self._tables.record(before)
        appended = self._writer.write_now([*first, *messages], self._tables.record(after))
        self._tables.apply([*before, *after])
        return appended[len(first) :]

    def write(self, records: Sequence[NewMessage]) -> None:
        """Append records of the broker's own, and nothing else."""
        self._writer.write_now([], records)

    def append_run(self, before: Sequence[Change], run: NewRun) -> None:
        """Append a run behind the records of changes, and make these."""
        self._writer.write_now([*map(NewRun.of, self._tables.record(before)), run])
        self._tables.apply(before)

    def end_of(self, topic: str, queue_id: int) -> int:
        """Where a queue ends when all of this tick is in it, which `append` adds to."""
        self._writer.write_now(())
        return int(self.store.next_offset(topic, queue_id))

    def head_room(self) -> AbstractContextManager[None]:
        """For what is decided, and may free space: see `Writer.head_room`."""
        return self._writer.head_room()


def reported_as(reason: Exception) -> OnelogError:
    """What is told of a commit that failed, whatever the reason was."""
    return reason if isinstance(reason, OnelogError) else StagedPartError(repr(reason))


class Alongside(NamedTuple):
    """What of the broker's own belongs into the append of a commit."""

    records: Callable[[], Sequence[NewMessage]]
    """Makes its records."""
    written: Callable[[], None]
    """Called when they are in the log, before anything else happens."""


@dataclass(eq=False, slots=True)
class _Commit:
    """One that takes several appends."""

    key: str
    """Of its entry in the table."""
    parts: list[int]
    """What is left."""
    on_committed: OnStored
    token: Any
    alongside: Alongside | None
    appended: list[Appended] = field(default_factory=list)


class _Transaction:
    """One that is open: what is staged, in memory and in the log, and how much that is."""

    __slots__ = ("begun_ms", "bytes", "count", "ending", "gathered", "parts", "topics")

    def __init__(self) -> None:
        self.gathered: list[NewMessage] = []
        """What is in memory still; it comes after the parts."""
        self.parts: list[int] = []
        """Their queue offsets."""
        self.count = 0
        self.bytes = 0
        self.topics: set[str] = set()
        self.begun_ms: int | None = None
        """When its first message was staged."""
        self.ending: tuple[OnStored, Any, Alongside | None] | None = None
        """Who waits for its commit, and what else is to be in that append."""


@dataclass(eq=False)
class StagedTransactions:
    """Begins transactions, takes their messages, commits and aborts them."""

    name = "staged"

    storage: Storage
    records: StagedParts
    topics: Topics
    publisher: Publisher

    def __post_init__(self) -> None:
        storage, runtime = self.storage, self.storage.runtime
        self.store, self.durability, self.clock = storage.store, storage.durability, runtime.clock
        self.cold_reads, self.schedule = storage.cold_reads, runtime.schedule
        self._open: dict[tuple[Hashable, str], _Transaction] = {}
        self._names: dict[Hashable, set[str]] = {}
        """The transactions of each owner."""
        self._begun: dict[str, dict[str, Any]] = {}
        """The entries of the table: commits whose end a crash may have cut off."""
        self._commits: dict[str, _Commit] = {}
        """Those that are being written."""
        self._bytes = 0
        """Of all that are open."""

    def __len__(self) -> int:
        return len(self._open)

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._begun.pop(key, None)
        elif {"parts", "begins"} <= value.keys():
            self._begun[key] = value
        else:
            raise StoreCorruptError(f"{value!r:.200} is no commit")

    def parts(self) -> list[dict[str, Any]]:
        """The commits that have begun."""
        return [dict(self._begun)] if self._begun else []

    def open(self) -> None:
        """Complete the commits that a crash has cut off; before anything else is written."""
        counts = dict.fromkeys(self._begun, 0)
        try:
            with self.records.head_room():
                # Only the last append can be cut off: how much is told by where its queues end.
                for key in [key for key, begun in self._begun.items() if begun.get("now", 1)]:
                    counts[key] += self._complete_append(key)
                for key in counts:
                    while (begun := self._begun.get(key)) is not None:
                        counts[key] += len(self._append_some(key, begun["parts"]))
        except StoreError as error:
            raise StoreError(
                "a transaction is visible in part, and the rest has to be written before anything "
                f"else: {error}"
            ) from error
        for count in counts.values():
            log.warning("a commit that a crash cut off was completed, by %d messages", count)

    def _complete_append(self, key: str) -> int:
        """Append what a crash has cut off the last append of a commit; how many messages."""
        begun = self._begun[key]
        parts, missing = begun["parts"], list[NewMessage]()
        now = begun.get("now", len(parts))
        try:
            missing = self._missing(self._messages(parts[:now]), begun["begins"])
        except StagedPartError as error:
            log.error("a transaction may be visible in part, and the rest is lost: %s", error)
        self.records.append([], missing, [self._entry(key, parts[now:])])
        return len(missing)

    def _entry(
        self, key: str, parts: list[int], now: int = 0, begins: Sequence[Any] = ()
    ) -> Change:
        """What the table has of a commit of which these parts are left."""
        value = {"parts": parts, "now": now, "begins": list(begins)} if parts else None
        return self.name, key, value

    def _append_some(self, key: str, parts: list[int]) -> list[Appended]:
        """Append the messages of the first of these parts, as many as one append may have."""
        messages: list[NewMessage] = []
        topics: set[str] = set()
        now = size = 0
        while (
            now < min(len(parts), _PARTS_MAX)
            and len(messages) < SOME_COUNT_MAX
            and size < SOME_BYTES_MAX
            and len(topics) < APPEND_TOPICS_MAX
        ):
            try:
                some = self.records.read(parts[now]).messages()
            except StagedPartError as error:
                log.error("a part of a transaction is lost: %s", error)
                some = []
            size += sum(len(each.body) + len(each.properties) for each in some)
            messages += some
            topics.update([each.topic for each in some])
            now += 1
        # A topic may have been deleted since.
        messages = [
            each for each in messages if each.topic == TIMER_TOPIC or self._has_topic(each.topic)
        ]
        queues = dict.fromkeys((each.topic, each.queue_id) for each in messages)
        begins = [[*queue, self.records.end_of(*queue)] for queue in queues]
        before = self._entry(key, parts, now, begins)
        return self.records.append([before], messages, [self._entry(key, parts[now:])])

    def _has_topic(self, name: str) -> bool:
        return name.startswith(OWN_PREFIX) or self.topics.get(name) is not None

    def _messages(self, parts: list[int]) -> list[NewMessage]:
        return [message for offset in parts for message in self.records.read(offset).messages()]

    def _missing(
        self, messages: list[NewMessage], begins: list[tuple[str, int, int]]
    ) -> list[NewMessage]:
        """Those of the messages that are not in their queues."""
        there = {
            (topic, queue_id): int(self.store.max_offset(topic, queue_id)) - begin
            for topic, queue_id, begin in begins
        }
        missing = []
        for message in messages:
            queue = message.topic, message.queue_id
            there[queue] -= message.inner_count
            if there[queue] < 0:
                missing.append(message)
        return missing

    # -- the verbs -----------------------------------------------------------------------------

    def begin(self, owner: Hashable, name: str = "") -> None:
        """Open a transaction; `name` tells those of one owner apart."""
        if len(self._open) >= OPEN_MAX:
            raise BrokerBusyError(f"{OPEN_MAX} transactions are open, which is the limit")
        if (owner, name) in self._open:
            raise InvalidRequestError(f"transaction {name!r} has begun already")
        self._open[owner, name] = _Transaction()
        self._names.setdefault(owner, set()).add(name)

    def stage(
        self,
        owner: Hashable,
        name: str,
        messages: Sequence[NewMessage],
        *,
        checked: bool = False,
    ) -> None:
        """Take messages into a transaction; what is wrong with them is raised here.

        Those that are `checked` the broker has made itself.
        """
        transaction = self._required(owner, name)
        # A copy of the body: the caller's may be a view of something that is used again.
        admitted = list(messages)
        if not checked:
            admitted = [
                self.publisher.admitted(each._replace(body=bytes(each.body))) for each in messages
            ]
        sizes = sum(len(each.body) + len(each.properties) for each in admitted)
        before = transaction.bytes
        size = self._grown(transaction, len(admitted), sizes)
        gathered = transaction.gathered
        if size // GATHERED_BYTES_MAX > before // GATHERED_BYTES_MAX:
            part = Part.of_messages([*gathered, *admitted])
            transaction.parts.append(self.records.put_now(part))
            gathered.clear()
        else:
            gathered += admitted
        self._grow(transaction, len(admitted), sizes)
        transaction.topics.update([each.topic for each in admitted])

    def reserve(self, owner: Hashable, name: str, count: int, size: int) -> None:
        """Count what a transaction has besides, which its owner keeps in memory."""
        transaction = self._required(owner, name)
        self._grown(transaction, count, size)
        self._grow(transaction, count, size)

    def _grown(self, transaction: _Transaction, count: int, size: int) -> int:
        """How many bytes a transaction has with so much more; an error if that is too much."""
        count, total = transaction.count + count, transaction.bytes + size
        if count > COUNT_MAX or total > BYTES_MAX:
            raise MessageTooLargeError(
                f"a transaction has at most {COUNT_MAX} messages and {BYTES_MAX} bytes: commit "
                "more often"
            )
        if self._bytes + size > BYTES_OF_ALL_MAX:
            raise BrokerBusyError(
                f"{len(self._open)} transactions are open and have {self._bytes} bytes; all "
                f"together may have {BYTES_OF_ALL_MAX}: commit some of them"
            )
        return total

    def _grow(self, transaction: _Transaction, count: int, size: int) -> None:
        transaction.count += count
        transaction.bytes += size
        self._bytes += size
        if transaction.begun_ms is None:
            transaction.begun_ms = self.clock.now_ms()

    def _required(self, owner: Hashable, name: str) -> _Transaction:
        found = self._open.get((owner, name))
        if found is None:
            raise TransactionNotFoundError(
                f"no transaction {name!r} is open: it has ended, or never began, or was aborted "
                f"{AGE_MS_MAX // 60_000} minutes after its first message"
            )
        if found.ending is not None:
            raise InvalidRequestError(f"transaction {name!r} is being committed")
        return found

    def commit(
        self,
        owner: Hashable,
        name: str,
        on_committed: OnStored,
        token: Any = None,
        alongside: Alongside | None = None,
    ) -> None:
        """Make the messages visible; `on_committed` learns where they are when that is durable.

        If it fails, the transaction is aborted.
        """
        self._required(owner, name).ending = (on_committed, token, alongside)
        self._commit(owner, name)

    def _commit(self, owner: Hashable, name: str) -> None:
        transaction = self._open.get((owner, name))
        if transaction is None or transaction.ending is None:
            return  # It was aborted while it waited.
        on_committed, token, alongside = transaction.ending
        if not self._is_warm(transaction.parts, partial(self._commit, owner, name)):
            return
        self._end(owner, name)
        if (
            transaction.count > APPEND_COUNT_MAX
            or transaction.bytes > APPEND_BYTES_MAX
            or len(transaction.topics) > APPEND_TOPICS_MAX
        ):
            self._commit_large(transaction)
            return
        try:
            records = [] if alongside is None else alongside.records()
            appended = self._append(transaction, records)
        except Exception as reason:
            on_committed(token, None, reported_as(reason))
        else:
            if alongside is not None:
                alongside.written()
            self.durability.when_safe(partial(on_committed, token, appended))

    def _is_warm(self, parts: list[int], again: Callable[[], None]) -> bool:
        """Whether the next append can be made without waiting for the disk."""
        log_offsets = map(self.records.log_offset_of, parts[:_PARTS_MAX])
        return self.cold_reads.is_ready(log_offsets, again)

    def _commit_large(self, transaction: _Transaction) -> None:
        """Commit what does not fit one append. What has begun is written, however long it takes."""
        assert transaction.ending is not None
        on_committed, token, alongside = transaction.ending
        parts = transaction.parts
        try:
            for topic in transaction.topics - {TIMER_TOPIC}:
                self.topics.require(topic)  # It may have been deleted.
            if transaction.gathered:
                parts.append(self.records.put_now(Part.of_messages(transaction.gathered)))
            if alongside is not None and (records := alongside.records()):
                parts.insert(0, self.records.put_now(Part.of_messages(records)))
        except Exception as reason:
            on_committed(token, None, reported_as(reason))
            return
        if not parts:  # All of it is kept in memory, by its owner.
            self.durability.when_safe(partial(on_committed, token, []))
            return
        commit = _Commit(f"{_COMMIT} {max(parts)}", parts, on_committed, token, alongside)
        self._commits[commit.key] = commit
        self._go_on(commit)

    def _go_on(self, commit: _Commit) -> None:
        """Write the next append of a commit."""
        if not self._is_warm(commit.parts, partial(self._go_on, commit)):
            return
        is_first = commit.key not in self._begun
        try:
            with nullcontext() if is_first else self.records.head_room():
                commit.appended += self._append_some(commit.key, commit.parts)
        except Exception as reason:
            if isinstance(reason, StoreError) and not is_first:
                log.error("the rest of a commit has to wait: %s", reason)
                self.schedule(_RETRY_MS, partial(self._go_on, commit))
            else:
                del self._commits[commit.key]
                commit.on_committed(commit.token, None, reported_as(reason))
            return
        if is_first and commit.alongside is not None:
            commit.alongside.written()
        begun = self._begun.get(commit.key)
        if begun is not None:
            commit.parts = begun["parts"]
            self.schedule(0, partial(self._go_on, commit))
            return
        del self._commits[commit.key]
        on_durable = partial(commit.on_committed, commit.token, commit.appended)
        self.durability.when_safe(on_durable)

    def _append(self, transaction: _Transaction, records: Sequence[NewMessage]) -> list[Appended]:
        parts, gathered = transaction.parts, [*transaction.gathered, *records]
        messages = [*self._messages(parts), *gathered]
        count = len(messages) - len(records)
        if len(messages) < 2 and not count:
            self.records.write(records)  # One record is whole, or not there.
            return []
        for topic in {each.topic for each in messages[:count]}:
            if topic != TIMER_TOPIC:
                self.topics.require(topic)  # It may have been deleted.
        queues = dict.fromkeys((each.topic, each.queue_id) for each in messages)
        if gathered:
            parts.append(self.records.put_now(Part.of_messages(gathered)))
        begins = [[*queue, self.records.end_of(*queue)] for queue in queues]
        begun = (self.name, _COMMIT, {"parts": parts, "begins": begins})
        return self.records.append([begun], messages, [(self.name, _COMMIT, None)])[:count]

    def abort(self, owner: Hashable, name: str = "") -> None:
        """End a transaction; nobody will see its messages."""
        self._required(owner, name)
        self._end(owner, name)

    def owner_gone(self, owner: Hashable) -> None:
        """Abort all transactions of an owner, also those whose commit has not been written."""
        for name in list(self._names.get(owner, ())):
            self._end(owner, name)

    def _end(self, owner: Hashable, name: str) -> None:
        self._bytes -= self._open.pop((owner, name)).bytes
        names = self._names[owner]
        names.discard(name)
        if not names:
            del self._names[owner]

    # -- limits --------------------------------------------------------------------------------

    def expire(self) -> None:
        """Abort transactions that are too old."""
        before_ms = self.clock.now_ms() - AGE_MS_MAX
        for (owner, name), transaction in list(self._open.items()):
            if (
                transaction.begun_ms is not None
                and transaction.begun_ms < before_ms
                and transaction.ending is None
            ):
                log.warning("transaction %r of %s is too old, and is aborted", name, owner)
                self._end(owner, name)

    def needed_from(self) -> int:
        """Where in the log the first message is that is staged and may be committed, or its end."""
        firsts = [each.parts[0] for each in self._open.values() if each.parts]
        firsts += [min(each.parts) for each in self._commits.values()]
        return self.records.log_offset_of(min(firsts)) if firsts else int(self.store.log_end)
