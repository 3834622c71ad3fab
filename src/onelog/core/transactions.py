"""Transactions: messages that wait until their producer says what became of them (facts 3.10).

A half message rests where no consumer looks. Its producer ends it: a commit writes the message to
its own topic, and an operation that names the half message; a rollback writes the operation alone.
All that ends in a tick goes in one append, with one operation, which is last. Of half messages that
nobody ends, any live producer of the group is asked, once they are old enough, in rounds; after too
many questions they are put away in TRANS_CHECK_MAX_TIME_TOPIC, from where they can be resumed.

RocketMQ counts the questions by appending the half message again for each of them. Here the count
is in a table (`open_transactions`): it is less to write, and a half message keeps its one place, so
that a late answer still finds it and two answers cannot deliver it twice. RocketMQ can open the
store all the same, and begins to count anew. Unlike there, a question that no producer could be
asked does not count: the transaction waits for one to come back, for as long as the log is kept.

Invariant: until an operation names a half message in the log, it is open, or among the endings of
this tick; whoever ends it a second time is refused, so that a commit delivers at most once.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from onelog.clock import Clock
from onelog.config import BrokerConfig
from onelog.core import half_messages
from onelog.core.members import Client, Members
from onelog.core.open_transactions import OpenTransactions
from onelog.core.publish import OnStored, Publisher
from onelog.core.topics import CHECKED_OUT_TOPIC, HALF_TOPIC, TopicConfig, Topics
from onelog.core.waiting import Schedule
from onelog.errors import (
    BrokerBusyError,
    MessageError,
    OffsetOutOfRangeError,
    OnelogError,
    StoreCorruptError,
    TopicNotFoundError,
    TransactionForeignError,
    TransactionLateError,
    TransactionNotFoundError,
)
from onelog.message import Appended, Message, NewMessage, property_value
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

OPEN_MAX = 500_000
"""Open transactions, at some 300 bytes each, before new ones are refused."""
_SLICE_COUNT = 100
_SLICE_PAUSE_MS = 5
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


class _Ending(NamedTuple):
    """A transaction that ends with this tick, and whom to tell; a rollback has no message."""

    half_offset: int
    log_offset: int
    message: NewMessage | None
    on_stored: OnStored
    token: Any


def _nobody(client: Client, check: Check) -> bool:
    return False


def _unheard(token: Any, appended: Appended | None, error: OnelogError | None) -> None:
    """For endings that no request is about; what fails is tried again in the next round."""


class Transactions:
    """Begins transactions, ends them, and asks about those that nobody ends."""

    def __init__(
        self,
        config: BrokerConfig,
        opened: OpenTransactions,
        store: MessageStore,
        topics: Topics,
        members: Members,
        publisher: Publisher,
        clock: Clock,
        schedule: Schedule,
        store_host: bytes,
    ) -> None:
        self.timeout_ms = config.transaction_timeout_ms
        self.checks_max = config.transaction_check_max
        self.ask: AskProducer = _nobody
        """Set by the gateway that producers are connected through."""
        self.table = opened
        self._places = opened.places
        self._store = store
        self._topics = topics
        self._members = members
        self._publisher = publisher
        self._clock = clock
        self._schedule = schedule
        self._store_host = store_host
        self._endings: list[_Ending] = []
        self._round: Iterator[int] | None = None
        self._unasked: Counter[str] = Counter()
        self._turns: dict[str, int] = {}
        self._closed = False

    def open(self) -> None:
        """Go on with what is open."""
        self.table.load()
        self._publisher.before_append.append(self._write_endings)

    def close(self) -> None:
        """Record what is open, and ask nobody any more."""
        self._closed = True
        self._remember()

    def _remember(self) -> None:
        self.table.remember({ending.half_offset for ending in self._endings})

    # -- beginning -----------------------------------------------------------------------------

    def prepare(self, message: NewMessage, on_stored: OnStored, token: Any = None) -> None:
        """Store a message that waits for the end of its transaction; see `Publisher.submit`.

        `on_stored` learns where the half message is; the producer names that place to end it.
        """
        if half_messages.is_half(message.properties):
            half = half_messages.prepared(self._publisher.admitted(message))
            self._put_half(half, on_stored, token)
        else:
            self._publisher.submit(message, on_stored, token)

    def _put_half(self, half: NewMessage, on_stored: OnStored, token: Any) -> None:
        if len(self._places) >= OPEN_MAX:
            raise BrokerBusyError(
                f"{len(self._places)} transactions are open; producers have to end some first"
            )
        self._publisher.begin_tick()
        self._publisher.put_as_is((half,), self._prepared, (on_stored, token))

    def _prepared(
        self,
        receipt: tuple[OnStored, Any],
        appended: list[Appended] | None,
        error: OnelogError | None,
    ) -> None:
        on_stored, token = receipt
        if appended is None:
            on_stored(token, None, error)
        else:
            self.table.add(appended[0])
            on_stored(token, appended[0], error)

    def resume(self, message_id: str, on_stored: OnStored, token: Any = None) -> None:
        """Begin again to ask about a transaction that was put away."""
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
        self._put_half(half_messages.resumed(given_up), on_stored, token)

    # -- ending --------------------------------------------------------------------------------

    def commit(
        self,
        group: str,
        half_offset: int,
        log_offset: int,
        on_stored: OnStored,
        token: Any = None,
        *,
        checked: bool = False,
    ) -> None:
        """Deliver a message whose transaction succeeded; `checked` if that was asked for.

        `on_stored` gets the place of the delivered message, or None if it was there already.
        """
        half = self._required(group, half_offset, log_offset, checked)
        message = None if self.table.was_committed(half) else self._delivered(half)
        self._end(half, message, on_stored, token)

    def roll_back(
        self,
        group: str,
        half_offset: int,
        log_offset: int,
        on_stored: OnStored,
        token: Any = None,
        *,
        checked: bool = False,
    ) -> None:
        """Forget a message whose transaction failed; `checked` if that was asked for."""
        half = self._required(group, half_offset, log_offset, checked)
        if self.table.was_committed(half):
            raise TransactionNotFoundError(
                f"the transaction of half message {half_offset} was committed before the broker "
                "was started; it cannot be rolled back"
            )
        self._end(half, None, on_stored, token)

    def _required(self, group: str, half_offset: int, log_offset: int, checked: bool) -> Message:
        """The half message, if it is open and whoever ends it may do so."""
        at = self._places.get(half_offset)
        if at is None:
            raise TransactionNotFoundError(
                f"no transaction is open with half message {half_offset}: it has ended, or never "
                "began"
            )
        if at != log_offset:
            raise TransactionNotFoundError(
                f"The commit log offset wrong: half message {half_offset} is not at {log_offset}"
            )
        half = self._store.message_at(at)
        if property_value(half.properties, half_messages.PRODUCER_GROUP) != group:
            raise TransactionForeignError(
                f"The producer group wrong: {group!r} cannot end a transaction of another group"
            )
        if not checked and half_messages.has_own_immunity(half):
            until_ms = half_messages.immune_until(half, self.timeout_ms)
            if self._clock.now_ms() > until_ms:
                raise TransactionLateError(
                    f"half message {half_offset} could be ended unasked until {until_ms}; its "
                    "producer group will be asked what became of it"
                )
        return half

    def _delivered(self, half: Message) -> NewMessage:
        """What consumers get: the message under its own topic, on its own way into the log."""
        message = half_messages.committed(half, self.table.checks(half))
        if self._topics.get(message.topic) is None:
            raise TopicNotFoundError(
                f"topic[{message.topic}] not exist any more; the transaction stays open"
            )
        for trigger, transform in self._publisher.before_store:
            if trigger in message.properties:
                message = transform(message)
        return message

    def _end(
        self, half: Message, message: NewMessage | None, on_stored: OnStored, token: Any
    ) -> None:
        if not self._endings:
            self._publisher.begin_tick()
        at = self._places.pop(half.queue_offset)
        self._endings.append(_Ending(half.queue_offset, at, message, on_stored, token))

    def _write_endings(self) -> None:
        """The tick ends, and with it these transactions."""
        if self._endings:
            endings, self._endings = self._endings, []
            self._put_endings(endings)

    def _put_endings(self, endings: list[_Ending]) -> None:
        messages = [ending.message for ending in endings if ending.message is not None]
        messages += self._operations([ending.half_offset for ending in endings])
        self._publisher.put_as_is(messages, self._ended, endings)

    def _operations(self, half_offsets: list[int]) -> list[NewMessage]:
        return half_messages.operations(half_offsets, self._clock.now_ms(), self._store_host)

    def _ended(
        self, endings: list[_Ending], appended: list[Appended] | None, error: OnelogError | None
    ) -> None:
        if appended is None:
            self._not_ended(endings, error)
            return
        places = iter(appended)
        for ending in endings:
            where = None if ending.message is None else next(places)
            ending.on_stored(ending.token, where, error)

    def _not_ended(self, endings: list[_Ending], error: OnelogError | None) -> None:
        """Nothing was written. If that was the fault of one of them, each gets its own append."""
        if isinstance(error, MessageError) and len(endings) > 1:
            try:
                self._publisher.begin_tick()
            except BrokerBusyError as busy:
                error = busy
            else:
                for ending in endings:
                    self._put_endings([ending])
                return
        for ending in endings:
            self._places[ending.half_offset] = ending.log_offset
            ending.on_stored(ending.token, None, error)

    # -- asking --------------------------------------------------------------------------------

    def check(self) -> None:
        """Begin a round: ask about every open transaction that is old enough, slice by slice."""
        if self._round is None and not self._closed:
            self._remember()
            self._round = iter(list(self._places))
            self._check_some()

    def _check_some(self) -> None:
        if self._round is None or self._closed:
            return
        part = list(itertools.islice(self._round, _SLICE_COUNT))
        asked: dict[int, int] = {}
        try:
            for half_offset in part:
                checks = self._check_one(half_offset)
                if checks:
                    asked[half_offset] = checks
            # After the questions: a crash in between asks once more than it counts.
            self.table.count_checks(asked)
        except OnelogError as error:
            log.error("open transactions cannot be checked, until the next round: %s", error)
            part = []
        if len(part) == _SLICE_COUNT:
            self._schedule(_SLICE_PAUSE_MS, self._check_some)
            return
        self._round = None
        if self._unasked:
            log.warning(
                "transactions wait for a producer of their group to come back: %s",
                dict(self._unasked.most_common(10)),
            )
            self._unasked.clear()

    def _check_one(self, half_offset: int) -> int:
        """See to one transaction; how often its producers were asked, if they were asked now."""
        at = self._places.get(half_offset)
        if at is None:
            return 0
        try:
            half = self._store.message_at(at)
        except (OffsetOutOfRangeError, StoreCorruptError) as error:
            log.error("the transaction of half message %d is lost: %s", half_offset, error)
            del self._places[half_offset]
            return 0
        if self._clock.now_ms() < half_messages.immune_until(half, self.timeout_ms):
            return 0
        checks = self.table.checks(half)
        if checks >= self.checks_max or self._is_expired(half):
            self._put_away(half)
            return 0
        if self.table.was_committed(half):
            self._end(half, None, _unheard, None)
            return 0
        return checks + 1 if self._ask_group(half, checks + 1) else 0

    def _ask_group(self, half: Message, checks: int) -> bool:
        """Ask one of the producers of the group, in turn; False if none could be asked."""
        try:
            message = half_messages.asked_about(half, checks)
        except MessageError as error:
            log.error("nobody can be asked about half message %d: %s", half.queue_offset, error)
            return True  # Counted, so that it does not stay open for ever.
        check = Check(message, half.queue_offset, half.log_offset, half.store_ms)
        group = property_value(half.properties, half_messages.PRODUCER_GROUP) or ""
        producers = self._members.producers(group)
        for _ in range(min(len(producers), _TRIES_MAX)):
            turn = self._turns.get(group, 0) % len(producers)
            self._turns[group] = turn + 1
            if self.ask(producers[turn].client, check):
                return True
        if not producers:
            self._turns.pop(group, None)
        self._unasked[group] += 1
        return False

    def _is_expired(self, half: Message) -> bool:
        return self._clock.now_ms() - half.store_ms > self._store.config.retention_ms

    def _put_away(self, half: Message) -> None:
        """Stop asking: end the transaction, and keep the message where people can find it."""
        if self.table.was_committed(half):
            self._end(half, None, _unheard, None)
            return
        checks = self.table.checks(half)
        self._topics.ensure(TopicConfig(CHECKED_OUT_TOPIC, 1, 1))
        kept = half_messages.checked_out(half, checks)
        self._publisher.write_now([kept, *self._operations([half.queue_offset])])
        del self._places[half.queue_offset]
        log.error(
            "half message %d (%s) is put away in %s; its producers were asked %d times",
            half.queue_offset,
            half.unique_key,
            CHECKED_OUT_TOPIC,
            checks,
        )

    def prepare_retention(self) -> None:
        """Before log files are deleted: put away the transactions that would go with them."""
        store, config = self._store, self._store.config
        active = store.log_end // config.segment_bytes * config.segment_bytes
        reach = config.retention_files_per_round * config.segment_bytes
        end = min(active, store.log_min + reach)
        threatened = [offset for offset, at in self._places.items() if at < end]
        if not threatened:
            return
        forced = store.retention.disk(store.folder) >= config.disk_force_percent
        try:
            for half_offset in threatened:
                half = store.message_at(self._places[half_offset])
                if forced or self._is_expired(half):
                    self._put_away(half)
        except OnelogError as error:
            # Retention has to go on: without it, a disk that is full stays so.
            log.error("open transactions may be deleted with the oldest log file: %s", error)
