"""Check-back: asking producers what became of the transactions that nobody ends.

Once a half message is old enough, any live producer of its group is asked, in rounds; the answer is
a commit or a rollback like any other. After too many questions the message is put away in
TRANS_CHECK_MAX_TIME_TOPIC, from where it can be resumed.

RocketMQ counts the questions by appending the half message again for each of them. Here the count
is in a table (`half`): it is less to write, and a half message keeps its one place, so
that a late answer still finds it and two answers cannot deliver it twice. RocketMQ can open the
store all the same, and begins to count anew. Unlike there, a question that no producer could be
asked does not count: the transaction waits for one to come back, for as long as the log is kept.

Invariant: every open transaction is ended by a producer, or put away; none is open for ever.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.durable.storage import Storage
from onelog.core.durable.writer import OnStored
from onelog.core.membership.members import Client, Members
from onelog.core.transactions import half_records
from onelog.core.transactions.half import HalfMessages
from onelog.errors import (
    MessageError,
    OffsetOutOfRangeError,
    StoreCorruptError,
    TransactionNotFoundError,
)
from onelog.jobs import Job
from onelog.message import Message, NewMessage, property_value
from onelog.names import CHECKED_OUT_TOPIC, HALF_TOPIC

log = logging.getLogger(__name__)

_SLICE_COUNT = 50
_SLICE_PAUSE_MS = 2
"""Questions leave in slices: ten thousand at once would stall the loop, and flood a producer."""
_TRIES_MAX = 3


@dataclass(frozen=True, slots=True)
class Check:
    """A question to a producer. `message` is the half message, under its own topic and queue."""

    message: NewMessage
    half_offset: int
    log_offset: int
    store_ms: int


AskProducer = Callable[[Client, Check], bool]
"""Sends a question to a client; False if that is not possible now."""


def _sliced(offsets: list[int]) -> Iterator[list[int]]:
    for at in range(0, len(offsets), _SLICE_COUNT):
        yield offsets[at : at + _SLICE_COUNT]


@dataclass(eq=False)
class CheckBack:
    """Asks, and gives up in the end."""

    _storage: Storage
    _transactions: HalfMessages
    _topics: Topics
    _members: Members
    checks_max: int

    def __post_init__(self) -> None:
        storage, runtime = self._storage, self._storage.runtime
        self._store, self._writer = storage.store, storage.writer
        self._clock, self._schedule = runtime.clock, runtime.schedule
        self._cold_reads = storage.cold_reads
        self.askers: list[AskProducer] = []
        """Those of the gateways that producers are connected through."""
        self.log_offsets = self._transactions.log_offsets
        self._round: Iterator[list[int]] | None = None
        self._leaving: list[int] = []
        self._moving = Job("putting away transactions whose log files should be deleted")
        self._unasked: Counter[str] = Counter()
        self._next_producer: dict[str, int] = {}
        self._job = Job("asking about open transactions")
        self._closed = False

    def close(self) -> None:
        """Ask nobody any more."""
        self._closed = True

    def resume(self, message_id: str, on_stored: OnStored, token: Any = None) -> None:
        """Begin again to ask about a transaction that was put away."""
        given_up = self.find_given_up(message_id)
        self._transactions.put_half(half_records.resumed(given_up), on_stored, token)

    def find_given_up(self, message_id: str) -> Message:
        """A transaction that was put away; it may have to be read from the disk."""
        given_up = self._store.message_by_id(message_id)
        if given_up.topic != CHECKED_OUT_TOPIC:
            raise TransactionNotFoundError(
                f"message {message_id} is in topic {given_up.topic}; transactions that were put "
                f"away are in {CHECKED_OUT_TOPIC}"
            )
        key = given_up.unique_key
        if key is not None and any(
            at > given_up.log_offset for at in self._store.find_by_key(HALF_TOPIC, key)
        ):
            raise TransactionNotFoundError(f"transaction {key} was resumed already")
        return given_up

    def open_halves(self, log_offsets: Iterable[int]) -> list[tuple[Message, int]]:
        """Half messages that are open, each with how often producers were asked; from the disk."""
        found = [self._store.message_at(each) for each in log_offsets]
        return [(half, self._transactions.checks(half)) for half in found]

    # -- rounds --------------------------------------------------------------------------------

    def check(self) -> None:
        """Begin a round: ask about every open transaction that is old enough, slice by slice."""
        if self._round is None and not self._closed:
            self._round = self._slices()
            self._check_some()

    def _slices(self) -> Iterator[list[int]]:
        """What to do one after the other: record what is open, then see to it, some at a time."""
        for _ in self._transactions.remember_some():
            yield []
        yield from _sliced(list(self.log_offsets))

    def _check_some(self) -> None:
        if self._round is None or self._closed:
            return
        part: list[int] | None = None
        with self._job:
            part = next(self._round, None)
        if part is None:
            self._end_round()
        else:
            self._when_read(part, self._check_part)

    def _when_read(self, part: list[int], then: Callable[[list[int]], None]) -> None:
        """Go on with half messages when that needs no disk."""
        doubtful = [each for each in part if self._transactions.is_doubtful(each)]
        if doubtful:
            self._cold_reads.find(
                lambda: self._transactions.read_ahead(doubtful), lambda _: self._go_on(part, then)
            )
        else:
            self._go_on(part, then)

    def _go_on(self, part: list[int], then: Callable[[list[int]], None]) -> None:
        log_offsets = [self.log_offsets[each] for each in part if each in self.log_offsets]
        if not self._closed and self._cold_reads.is_ready(
            log_offsets, lambda: self._go_on(part, then)
        ):
            then(part)

    def _check_part(self, part: list[int]) -> None:
        checked: dict[int, int] = {}
        with self._job:
            for half_offset in part:
                checks = self._check_one(half_offset)
                if checks:
                    checked[half_offset] = checks
            # After the questions: a crash in between asks once more than it counts.
            self._transactions.count_checks(checked)
        if self._job.failed:
            self._end_round()
        else:
            self._schedule(_SLICE_PAUSE_MS, self._check_some)

    def _end_round(self) -> None:
        self._round = None
        if self._unasked:
            log.warning(
                "transactions wait for a producer of their group to come back: %s",
                dict(self._unasked.most_common(10)),
            )
            self._unasked.clear()

    def _check_one(self, half_offset: int) -> int:
        """See to one transaction; how often its producers were asked, if they were asked now."""
        at = self.log_offsets.get(half_offset)
        if at is None:
            return 0
        try:
            half = self._store.message_at(at)
        except (OffsetOutOfRangeError, StoreCorruptError) as error:
            log.error("the transaction of half message %d is lost: %s", half_offset, error)
            del self.log_offsets[half_offset]
            return 0
        checks = self._transactions.checks(half)
        if self._is_expired(half) or checks >= self.checks_max:
            self._put_away(half)
            return 0
        if self._clock.now_ms() < half_records.immune_until(half, self._transactions.timeout_ms):
            return 0
        if self._transactions.was_committed(half):
            self._transactions.forget(half)
            return 0
        return checks + 1 if self._ask_group(half, checks + 1) else 0

    def _ask_group(self, half: Message, checks: int) -> bool:
        """Ask one of the producers of the group, in turn; False if none could be asked."""
        try:
            message = half_records.check_of(half, checks)
        except MessageError as error:
            log.error("nobody can be asked about half message %d: %s", half.queue_offset, error)
            return True  # Counted, so that it does not stay open for ever.
        check = Check(message, half.queue_offset, half.log_offset, half.store_ms)
        group = property_value(half.properties, half_records.PRODUCER_GROUP) or ""
        producers = self._members.producers(group)
        for _ in range(min(len(producers), _TRIES_MAX)):
            turn = self._next_producer.get(group, 0) % len(producers)
            self._next_producer[group] = turn + 1
            if any(ask(producers[turn].client, check) for ask in self.askers):
                return True
        if not producers:
            self._next_producer.pop(group, None)
        self._unasked[group] += 1
        return False

    def _is_expired(self, half: Message) -> bool:
        return self._clock.now_ms() - half.store_ms > self._store.config.retention_ms

    def _put_away(self, half: Message) -> None:
        """Stop asking: end the transaction, and keep the message where people can find it."""
        if self._transactions.was_committed(half):
            self._transactions.forget(half)
            return
        checks = self._transactions.checks(half)
        self._topics.ensure(TopicConfig(CHECKED_OUT_TOPIC, 1, 1))
        kept = half_records.checked_out(half, checks)
        self._writer.write_now([kept, *self._transactions.operations([half.queue_offset])])
        del self.log_offsets[half.queue_offset]
        log.error(
            "half message %d (%r) is put away in %s; its producers were asked %d times",
            half.queue_offset,
            half.unique_key,
            CHECKED_OUT_TOPIC,
            checks,
        )

    def prepare_retention(self, reach: int) -> None:
        """Before log files up to this offset are deleted: put away the transactions in them."""
        if not self._leaving:
            self._leaving = [offset for offset, at in self.log_offsets.items() if at < reach]
            self._put_away_some()

    def _put_away_some(self) -> None:
        part, self._leaving = self._leaving[:_SLICE_COUNT], self._leaving[_SLICE_COUNT:]
        if part:
            self._when_read(part, self._put_away_part)

    def _put_away_part(self, part: list[int]) -> None:
        with self._moving, self._writer.head_room():
            for half_offset in part:
                if half_offset in self.log_offsets:
                    self._put_away(self._store.message_at(self.log_offsets[half_offset]))
        if self._moving.failed:
            self._leaving = []  # The next round of retention finds them again.
        else:
            self._schedule(_SLICE_PAUSE_MS, self._put_away_some)

    def needed_from(self) -> int:
        """Where in the log the first half message is that is open, or its end."""
        return min(self.log_offsets.values(), default=int(self._store.log_end))
