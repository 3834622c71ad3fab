"""Transactions in place: who has one open, over which queues and groups, and how it ends.

A transactional id stands for one producer at a time. Whoever takes it over gets the next epoch, and
what the one before had open is aborted. The batches of a transaction are in their queues already
(`in_place`); its end is a marker in each of these queues, and positions of groups that count from
then on.

    EMPTY -> ONGOING (queues, groups) -> COMMITTING | ABORTING -> COMMITTED | ABORTED -> ONGOING ...

An end is decided by one record (COMMITTING, ABORTING), and then carried out by one append: markers,
positions, and the record that says so. A crash in between leaves the decision, which is carried out
at the next start. A producer may ask for the next epoch with the end; then what it sent before, and
was lost on the way, can never get into its next transaction.

    table     "in_place": {transactional id: what `_kept` gives}

It is a part of the door: who asks is the first argument, as everywhere in `broker`.

Invariant: all queues of a transaction, and the positions in it, see the same end.
"""

import enum
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from onelog.core.access import Access, Principal
from onelog.core.catalog.topics import Topics
from onelog.core.cursors.offset_notes import Note
from onelog.core.durable.deadlines import Deadlines
from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import Change, in_parts
from onelog.core.membership.coordinator import CommittingMember, Coordinator, Position, Positions
from onelog.core.transactions.in_place import Stamp
from onelog.core.transactions.producers import BatchProducers, Queue
from onelog.errors import (
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    NotInTransactionError,
    OnelogError,
    ProducerFencedError,
    ProducerIdMismatchError,
    TransactionEndingError,
    TransactionStateError,
)
from onelog.message import NewMessage
from onelog.record.forms import Form

log = logging.getLogger(__name__)

TIMEOUT_MAX_MS = 900_000
IDLE_MAX_MS = 7 * 86_400_000
"""After that an id that nobody uses is forgotten."""
EPOCH_MAX = 32_766
_LATE_MS = 1_000
NOBODY = -1
Incarnation = tuple[int, int]
"""A producer's id and epoch."""
NO_PRODUCER: Incarnation = NOBODY, NOBODY
WhenEnded = Callable[[Incarnation, OnelogError | None], None]
"""Called with who the producer is from then on, and what went wrong."""
_KAFKA_FORM = Form.KAFKA.sys_flag


class TransactionState(enum.Enum):
    """How far a transaction is; the values are Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    COMMITTING = "PrepareCommit"
    ABORTING = "PrepareAbort"
    COMMITTED = "CompleteCommit"
    ABORTED = "CompleteAbort"


_ENDING = {
    TransactionState.COMMITTING: TransactionState.COMMITTED,
    TransactionState.ABORTING: TransactionState.ABORTED,
}


@dataclass(frozen=True, slots=True, eq=False)
class InPlaceTransaction:
    """A transactional id, and its transaction."""

    name: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    begun_ms: int = 0
    seen_ms: int = 0
    queues: frozenset[Queue] = frozenset()
    groups: dict[str, dict[str, dict[int, Position]]] = field(default_factory=dict)
    """Groups, and the positions that they will have."""
    before: Incarnation = NO_PRODUCER
    """Who asked for the present epoch, and may ask again: the answer may have been lost."""
    others: frozenset[Queue] = frozenset()
    """Partitions on other brokers that are in it, which have to be told of its end."""


class TransactionalIds:
    """All transactions in place."""

    name = "in_place"

    def __init__(
        self,
        access: Access,
        storage: Storage,
        topics: Topics,
        producers: BatchProducers,
        coordinator: Coordinator,
    ) -> None:
        self.access = access
        self._clock, self._tables = storage.runtime.clock, storage.tables
        self._topics = topics
        self._writer = storage.writer
        self._producers = producers
        self._coordinator = coordinator
        self._arrived = storage.waiting.arrived
        self.when_safe = storage.durability.when_safe
        self._transactions: dict[str, InPlaceTransaction] = {}
        self._by_producer: dict[int, InPlaceTransaction] = {}
        self._with_groups: dict[str, InPlaceTransaction] = {}
        self._deadlines: Deadlines[str] = Deadlines(
            self._clock, storage.runtime.schedule, self._overdue
        )
        """Of those that are open."""
        self.guard: Callable[[str], None] = lambda name: None
        """Raises if another broker coordinates a transactional id."""
        self.tell_others: Callable[[InPlaceTransaction], bool] = lambda transaction: True
        """Tells other brokers of an end; whether there are some that do not know it yet."""
        producers.covers = self._covers
        coordinator.pending = self._pending

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        before = self._transactions.pop(key, None)
        if before is not None:
            self._by_producer.pop(before.producer_id, None)
            self._with_groups.pop(key, None)
            self._deadlines.remove(key, before.begun_ms + before.timeout_ms)
        if value is not None:
            transaction = self._transactions[key] = _restored(key, value)
            self._by_producer[transaction.producer_id] = transaction
            if transaction.groups:
                self._with_groups[key] = transaction
            if transaction.state is TransactionState.ONGOING:
                self._deadlines.add(key, transaction.begun_ms + transaction.timeout_ms)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every transactional id; some at a time."""
        for part in in_parts(self._transactions):
            yield {name: _kept(each) for name, each in part}

    def stop(self) -> None:
        """Let nothing last too long any more: the log is another broker's."""
        self._deadlines.close()

    def open(self) -> None:
        """Carry out what was decided before a crash."""
        for transaction in list(self._transactions.values()):
            if transaction.state in _ENDING and not transaction.others:
                self._carry_out(transaction)

    def _record(self, transaction: InPlaceTransaction) -> InPlaceTransaction:
        """Record a transaction that was changed; it is another object then."""
        self._tables.write([(self.name, transaction.name, _kept(transaction))])
        return self._transactions[transaction.name]

    # -- what producers do ---------------------------------------------------------------------

    def begin(
        self,
        principal: Principal,
        name: str,
        timeout_ms: int,
        producer_id: int = NOBODY,
        epoch: int = NOBODY,
    ) -> tuple[int, int]:
        """Take a transactional id over: the producer's id and epoch from now on.

        Who says which producer it was before must be the last one, or be told the same again. An
        open transaction is aborted.
        """
        self.access.check(principal, "publish", ("transaction", name))
        if not name:
            raise InvalidRequestError("a transactional id cannot be empty")
        self.guard(name)
        if not 0 < timeout_ms <= TIMEOUT_MAX_MS:
            raise InvalidTransactionTimeoutError(
                f"a transaction may last up to {TIMEOUT_MAX_MS} ms, not {timeout_ms}"
            )
        found = self._transactions.get(name)
        if found is None:
            now_ms = self._clock.now_ms()
            new = InPlaceTransaction(name, self._producers.new_id(), 0, timeout_ms, seen_ms=now_ms)
            self._record(new)
            return new.producer_id, new.epoch
        before = NO_PRODUCER if producer_id == NOBODY else (producer_id, epoch)
        found = self._settled(found)
        if before not in (NO_PRODUCER, (found.producer_id, found.epoch)):
            if before == found.before and found.state is not TransactionState.ONGOING:
                return found.producer_id, found.epoch
            raise ProducerFencedError(f"{name!r} has another producer, or epoch {found.epoch}")
        if found.state is TransactionState.ONGOING:
            # While others are told, it is at its epoch, for who asks again to be known.
            is_renewed = not found.others
            found = self._end(found, commit=False, epoch=found.epoch + is_renewed)
            if is_renewed:
                producer_id, epoch = found.producer_id, found.epoch
            else:
                producer_id, epoch = self._usable(found.producer_id, found.epoch + 1)
        else:
            producer_id, epoch = self._usable(found.producer_id, found.epoch + 1)
        now_ms = self._clock.now_ms()
        self._record(
            InPlaceTransaction(name, producer_id, epoch, timeout_ms, seen_ms=now_ms, before=before)
        )
        return producer_id, epoch

    def _usable(self, producer_id: int, epoch: int) -> Incarnation:
        """These, or another id if the epochs of this one are used up."""
        return (producer_id, epoch) if epoch < EPOCH_MAX else (self._producers.new_id(), 0)

    def add_queues(
        self, principal: Principal, name: str, producer_id: int, epoch: int, queues: Sequence[Queue]
    ) -> None:
        """The producer will send batches of its transaction to these queues, if they are there."""
        self.access.check(principal, "publish", ("transaction", name))
        for topic, _ in queues:
            self.access.check(principal, "publish", ("topic", topic))
        found = self._require(name, producer_id, epoch)
        queues = [each for each in queues if self._is_there(*each)]
        if found.state is not TransactionState.ONGOING or not found.queues.issuperset(queues):
            self._record(replace(self._going_on(found), queues=found.queues.union(queues)))

    def add_others(
        self, principal: Principal, name: str, producer_id: int, epoch: int, others: Sequence[Queue]
    ) -> None:
        """Partitions on other brokers will be in the transaction; to be called before they are."""
        self.access.check(principal, "publish", ("transaction", name))
        found = self._require(name, producer_id, epoch)
        if found.state is not TransactionState.ONGOING or not found.others.issuperset(others):
            self._record(replace(self._going_on(found), others=found.others.union(others)))

    def add_group(
        self, principal: Principal, name: str, producer_id: int, epoch: int, group: str
    ) -> None:
        """The transaction will have positions of this group."""
        self.access.check(principal, "publish", ("transaction", name))
        self.access.check(principal, "consume", ("group", group))
        found = self._require(name, producer_id, epoch)
        if found.state is not TransactionState.ONGOING or group not in found.groups:
            self._record(replace(self._going_on(found), groups={group: {}, **found.groups}))

    def commit_offsets(
        self,
        principal: Principal,
        name: str,
        producer_id: int,
        epoch: int,
        group: str,
        member: CommittingMember,
        positions: Positions,
        *,
        joins: bool = False,
    ) -> None:
        """Positions that the group has if the transaction is committed; `joins`: it is added."""
        self.access.check(principal, "publish", ("transaction", name))
        self.access.check(principal, "consume", ("group", group))
        found = self._require(name, producer_id, epoch)
        if not joins and (found.state is not TransactionState.ONGOING or group not in found.groups):
            raise NotInTransactionError(f"group {group} was not added to the transaction of {name}")
        if member != CommittingMember():
            self._coordinator.check_member(principal, group, member, in_transaction=True)
        self._coordinator.use(group)
        if joins:
            found = self._going_on(found)
        pending = dict(found.groups.get(group, {}))
        for topic, queues in positions.items():
            pending[topic] = {**pending.get(topic, {}), **queues}
        self._record(replace(found, groups={**found.groups, group: pending}))

    def end(
        self,
        principal: Principal,
        name: str,
        producer_id: int,
        epoch: int,
        commit: bool,
        when_ended: WhenEnded,
        *,
        renews: bool = False,
    ) -> None:
        """End the transaction; calls back when that is as safe as configured.

        `renews`: the producer gets the next epoch with it, also if there was nothing to abort.
        """
        self.access.check(principal, "publish", ("transaction", name))
        found = self._transactions.get(name)
        is_repeated = found is not None and found.before == (producer_id, epoch)
        if (
            found is None
            or not is_repeated
            or found.state in (TransactionState.EMPTY, TransactionState.ONGOING)
        ):
            found, is_repeated = self._require(name, producer_id, epoch), False
        found = self._settled(found)
        if found.state is TransactionState.ONGOING or (renews and not commit and not is_repeated):
            requested = (producer_id, epoch) if renews else NO_PRODUCER
            found = self._end(found, commit=commit, epoch=epoch + renews, requested=requested)
        elif renews != is_repeated or found.state is not (
            TransactionState.COMMITTED if commit else TransactionState.ABORTED
        ):
            word = "commit" if commit else "abort"
            raise TransactionStateError(f"{name!r} has nothing to {word}: {found.state.value}")
        self.when_safe(partial(when_ended, (found.producer_id, found.epoch)))

    def finish(self, principal: Principal, name: str) -> None:
        """Carry out an end that all other brokers know."""
        self.access.check(principal, "publish", ("transaction", name))
        if name in self._transactions:
            self._settled(self._transactions[name])

    def transactions(self, principal: Principal) -> list[InPlaceTransaction]:
        """Every transactional id that they may know of."""
        found = list(self._transactions.values())
        if self.access.is_open:
            return found
        self.access.check(principal, "describe", ("broker", ""))
        may = self.access.may
        return [each for each in found if may(principal, "describe", ("transaction", each.name))]

    def _require(self, name: str, producer_id: int, epoch: int) -> InPlaceTransaction:
        if not name:
            raise InvalidRequestError("a transactional id cannot be empty")
        self.guard(name)
        found = self._transactions.get(name)
        if found is None or found.producer_id != producer_id:
            raise ProducerIdMismatchError(f"{name!r} is not the id of producer {producer_id}")
        if found.epoch != epoch:
            raise ProducerFencedError(f"{name!r} is at epoch {found.epoch}, not at {epoch}")
        return self._settled(found)

    def _settled(self, transaction: InPlaceTransaction) -> InPlaceTransaction:
        """The transaction after its end, if that is still to be written."""
        if transaction.state in _ENDING:
            return self._carry_out(transaction)
        return transaction

    def _going_on(self, transaction: InPlaceTransaction) -> InPlaceTransaction:
        now_ms = self._clock.now_ms()
        if transaction.state is TransactionState.ONGOING:
            return replace(transaction, seen_ms=now_ms)
        return replace(transaction, state=TransactionState.ONGOING, begun_ms=now_ms, seen_ms=now_ms)

    # -- ending --------------------------------------------------------------------------------

    def _end(
        self,
        transaction: InPlaceTransaction,
        *,
        commit: bool,
        epoch: int,
        requested: Incarnation = NO_PRODUCER,
    ) -> InPlaceTransaction:
        """Decide, and carry it out; `requested`: who may ask again."""
        state = TransactionState.COMMITTING if commit else TransactionState.ABORTING
        now_ms = self._clock.now_ms()
        decided = replace(transaction, state=state, epoch=epoch, seen_ms=now_ms, before=requested)
        return self._carry_out(self._record(decided))

    def _carry_out(self, transaction: InPlaceTransaction) -> InPlaceTransaction:
        """Write markers and positions, and that they are written, in one append.

        `TransactionEndingError` if it cannot be written, or others have to be told before.
        """
        if transaction.others and self.tell_others(transaction):
            raise TransactionEndingError(
                f"brokers are being told of the end of {transaction.name!r}"
            )
        commit = transaction.state is TransactionState.COMMITTING
        now_ms = self._clock.now_ms()
        producer_id, epoch = transaction.producer_id, transaction.epoch
        queues = [each for each in sorted(transaction.queues) if self._is_there(*each)]
        changes: list[Change] = []
        if commit:
            for group, positions in transaction.groups.items():
                there = {
                    topic: each for topic, each in positions.items() if self._topics.get(topic)
                }
                changes += self._coordinator.committing(group, there)
        ended = InPlaceTransaction(
            transaction.name,
            *self._usable(producer_id, epoch),
            transaction.timeout_ms,
            _ENDING[transaction.state],
            transaction.begun_ms,
            now_ms,
            before=transaction.before,
        )
        changes.append((self.name, transaction.name, _kept(ended)))
        self.write_end(queues, producer_id, epoch, commit, changes)
        return self._transactions[transaction.name]

    def write_end(
        self,
        queues: Sequence[Queue],
        producer_id: int,
        epoch: int,
        commit: bool,
        changes: list[Change],
    ) -> None:
        """Write markers of a producer, and changes of tables, in one append."""
        # Only who has transactions needs what writes their markers.
        from onelog.record.forms import kafka

        now_ms = self._clock.now_ms()
        marker = kafka.control_batch(producer_id, epoch, now_ms, commit=commit)
        messages = [
            NewMessage(topic, queue_id, marker, sys_flag=_KAFKA_FORM, born_ms=now_ms)
            for topic, queue_id in queues
        ]
        for topic, _ in queues:
            self._producers.mark(topic)
        try:
            appended = self._writer.write_now(messages, self._tables.record(changes))
        except OnelogError as error:
            raise TransactionEndingError(
                f"the end of what producer {producer_id} sent is not written: {error}"
            ) from error
        self._tables.apply(changes)
        for queue, stored in zip(queues, appended[: len(queues)], strict=True):
            self._producers.ended(queue, producer_id, epoch, stored.queue_offset, kept=commit)
        for queue in queues:
            self._arrived(*queue)  # Who waits for committed messages can go on only now.

    def _is_there(self, topic: str, queue_id: int) -> bool:
        config = self._topics.get(topic)
        return config is not None and queue_id < config.queues

    def _overdue(self, names: list[str]) -> None:
        """Abort what lasts too long; whoever had it is fenced."""
        for name in names:
            transaction = self._transactions.get(name)
            if transaction is None or transaction.state is not TransactionState.ONGOING:
                continue
            log.warning("the transaction of %r lasted too long: aborted", name)
            try:
                self._end(transaction, commit=False, epoch=transaction.epoch + 1)
            except OnelogError as error:
                log.log(_level(transaction), "%s; it is tried again", error)

    def expire(self) -> None:
        """Try again what a disk refused, and forget ids that nobody uses; from time to time."""
        now_ms = self._clock.now_ms()
        for transaction in list(self._transactions.values()):
            if transaction.state in _ENDING:
                try:
                    self._carry_out(transaction)
                except TransactionEndingError as error:
                    log.log(_level(transaction), "%s; it is tried again", error)
            elif transaction.state is TransactionState.ONGOING:
                if now_ms > transaction.begun_ms + transaction.timeout_ms + _LATE_MS:
                    self._overdue([transaction.name])
            elif now_ms - transaction.seen_ms > IDLE_MAX_MS:
                self._tables.write([(self.name, transaction.name, None)])

    # -- what others ask -----------------------------------------------------------------------

    def _covers(self, stamp: Stamp, queue: Queue) -> None:
        """Raises what is wrong with a batch of a transaction, if it is in none."""
        found = self._by_producer.get(stamp.producer_id)
        if found is None:
            raise TransactionStateError(f"producer {stamp.producer_id} has no transactional id")
        if stamp.epoch != found.epoch:
            raise InvalidProducerEpochError(
                f"{found.name!r} is at epoch {found.epoch}, not at {stamp.epoch}"
            )
        if found.state is not TransactionState.ONGOING or queue not in found.queues:
            raise NotInTransactionError(f"{queue} is not in a transaction of {found.name!r}")

    def _pending(self, group: str) -> list[Positions]:
        """Where transactions that have not ended will move a group."""
        return [each.groups[group] for each in self._with_groups.values() if group in each.groups]


def _level(transaction: InPlaceTransaction) -> int:
    """How bad it is that a transaction could not be ended at once."""
    return logging.INFO if transaction.others else logging.ERROR


def _kept(transaction: InPlaceTransaction) -> dict[str, Any]:
    return {
        "producer_id": transaction.producer_id,
        "epoch": transaction.epoch,
        "timeout_ms": transaction.timeout_ms,
        "state": transaction.state.value,
        "begun_ms": transaction.begun_ms,
        "seen_ms": transaction.seen_ms,
        "before": transaction.before,
        "queues": sorted(list(each) for each in transaction.queues),
        "others": sorted(list(each) for each in transaction.others),
        "groups": {
            group: {
                topic: {
                    str(queue_id): [position.offset, *position.note]
                    for queue_id, position in queues.items()
                }
                for topic, queues in topics.items()
            }
            for group, topics in transaction.groups.items()
        },
    }


def _restored(name: str, kept: Mapping[str, Any]) -> InPlaceTransaction:
    return InPlaceTransaction(
        name,
        kept["producer_id"],
        kept["epoch"],
        kept["timeout_ms"],
        TransactionState(kept["state"]),
        kept["begun_ms"],
        kept["seen_ms"],
        frozenset((each[0], each[1]) for each in kept["queues"]),
        {
            group: {
                topic: {
                    int(queue_id): Position(offset, Note(epoch, text))
                    for queue_id, (offset, epoch, text) in queues.items()
                }
                for topic, queues in topics.items()
            }
            for group, topics in kept["groups"].items()
        },
        tuple(kept.get("before", NO_PRODUCER)),
        others=frozenset((each[0], each[1]) for each in kept.get("others", ())),
    )
