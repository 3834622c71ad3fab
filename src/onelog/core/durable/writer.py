"""The one log writer: everything that the core appends goes through it, in one order.

What comes in during a tick is one list, and the tick's end appends it with one write: messages and
runs of the publisher, ends of transactions, records of leases. Under load the lists grow by
themselves, and with them the work that is done once instead of per message.

Who cannot go on before its records are in the log calls `write_now`: what the tick has so far is
appended first, so that the log has everything in the order in which it was decided. The others of
that tick are told at its end all the same: nobody is called back from the middle of a change.

Senders are told of their messages when `durability` says so. Whoever puts the broker's own records
is told when they are written.

Invariant: each receipt is answered exactly once. A message that cannot be stored spoils no other.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from time import perf_counter
from typing import Any, cast

from onelog.core.durable.durability import Acks, Durability
from onelog.core.durable.waiting import Key, OpenWaits
from onelog.core.stats import Bucket, Stats
from onelog.errors import (
    BrokerBusyError,
    FlushTimeoutError,
    MessageError,
    NotMasterError,
    OnelogError,
    ReplicasMissingError,
    StoreError,
)
from onelog.message import TRANSACTION_MASK, Appended, AppendedRun, NewMessage, NewRun
from onelog.metrics import Histogram
from onelog.record.dispatch import queue_id_of
from onelog.store.message_store import MessageStore
from onelog.store.retention import HEAD_ROOM

log = logging.getLogger(__name__)

OnStored = Callable[[Any, Any, OnelogError | None], None]
"""Called with the token that was given, where the message went (for several: a list, or an
`AppendedRun`), and what went wrong. With an error of UNCONFIRMED both are given: the message is
stored, but not confirmed."""
OnWritten = Callable[[OnelogError | None], None]
OnEntered = Callable[[Sequence[NewMessage | NewRun], int], None]
"""Called with what was appended to a queue, and the offset of the first message there."""
Receipt = tuple[OnStored, Any, int, Acks]
"""Whom to tell, their token, how many messages it is about (0 for one message or one run), and
when."""
Stored = Sequence[Appended | AppendedRun]
OnAccounted = Callable[[Sequence[NewMessage | NewRun], Stored], None]
"""Called with what was stored, and where that is."""
Written = tuple[list[Receipt], Sequence[NewMessage | NewRun], Stored | OnelogError]
"""Whom to tell at the tick's end of what, and where that is, or why it is nowhere."""


def nobody(token: Any, where: Any, error: OnelogError | None) -> None:
    """An `OnStored` of who does not want to know; what is put with it is told to nobody."""


_TOPIC, _COPIES = (itemgetter(NewMessage._fields.index(name)) for name in ("topic", "inner_count"))
_SIZE = itemgetter(Appended._fields.index("size"))

_ENTERED = (0, 8)
"""What the bits of transactions are in records that queues have entries for."""
_WATCHED_MAX = 10_000
UNSETTLED_MAX = 200_000
"""Messages that may wait for the disk before new ones are refused."""
UNCONFIRMED = (FlushTimeoutError, ReplicasMissingError)
"""What senders are told of messages that are stored, and not as safe as promised."""


MEASURED_EVERY = 8
"""Messages between two measurements, which would cost too much if each were one."""


OnOffsets = Callable[[Any, Any], None]
"""Called with the token and where the message is, which may not be safe there yet."""


@dataclass(frozen=True, slots=True)
class WithOffsets:
    """An `OnStored` for who also has to know where a message is as soon as it is written.

    Who is told at once that it is safe is told only that.
    """

    on_stored: OnStored
    on_offsets: OnOffsets

    def __call__(self, token: Any, where: Any, error: OnelogError | None) -> None:
        self.on_stored(token, where, error)


class _Refusal:
    """In the place of a store that this broker may not write to."""

    gated = False

    def __init__(self, error: OnelogError) -> None:
        self._error = error

    def append(self, messages: Sequence[NewMessage]) -> list[Appended]:
        raise self._error

    append_own = append

    def head_room(self, share: float) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def delete_topic(self, topic: str) -> None:
        raise self._error


@dataclass(eq=False)
class Writer:
    """Collects what is to be appended, and appends it tick by tick."""

    _store: MessageStore
    _durability: Durability
    _waiting: OpenWaits
    _stats: Stats
    _call_soon: Callable[[Callable[[], None]], None]

    def __post_init__(self) -> None:
        self._joining: list[Callable[[], None]] = []
        self.stored: list[OnAccounted] = []
        """Who is told of all that is stored; with them, every tick costs more."""
        self.reports_offsets = False
        """Whether there was a `WithOffsets` that wants to know; until then nobody is asked."""
        self.watched: dict[Key, OnEntered] = {}
        """Who is told of each message that a queue gets; see `watch`."""
        self._watched_of: dict[tuple[str, int, tuple[str, ...]], tuple[Key, ...]] = {}
        self.messages: list[NewMessage | NewRun] = []
        """The tick's list, which the publisher puts plain messages in; always the same object."""
        self.receipts: list[Receipt] = []
        """The same, for whom to tell."""
        self.append_seconds = Histogram()
        """How long it took to append a tick's messages; not of every tick with few of them."""
        self._unmeasured = 0
        self.confirm_seconds = self._durability.seconds
        self._open = self._store
        replicas = self._durability.replicas
        self._appended = None if replicas is None else replicas.appended
        self._is_expected = False
        self._records: list[tuple[Sequence[NewMessage], OnWritten]] = []
        self._written: list[Written] = []
        self._unsettled = 0

    # -- for the end of the tick ---------------------------------------------------------------

    def begin_tick(self) -> None:
        """See to it that this tick ends in an append; `BrokerBusyError` if it may not."""
        if self._unsettled > UNSETTLED_MAX:
            raise BrokerBusyError(
                f"{self._unsettled} messages wait for the disk; start flow control for a while"
            )
        self.expect_tick()

    def join_tick(self, add_more: Callable[[], None]) -> None:
        """Be called when this tick ends, to put something into it; once for each time asked."""
        self._joining.append(add_more)
        self.expect_tick()

    def expect_tick(self) -> None:
        """`begin_tick` for the broker's own records, which are never refused."""
        if not self._is_expected:
            self._is_expected = True
            self._call_soon(self.end_of_tick)

    def put(
        self,
        message: NewMessage | NewRun,
        on_stored: OnStored,
        token: Any = None,
        acks: Acks = Acks.DURABLE,
    ) -> None:
        """Take a message, or a run, that the broker itself made or that is checked."""
        if not self.messages:
            self.begin_tick()
        self.messages.append(message)
        self.receipts.append((on_stored, token, 0, acks))

    def put_together(
        self, messages: Sequence[NewMessage], on_stored: OnStored, token: Any = None
    ) -> None:
        """Take messages that are stored side by side or not at all."""
        if not self.messages:
            self.expect_tick()
        self.messages += messages
        self.receipts.append((on_stored, token, len(messages), Acks.DURABLE))

    def put_records(self, records: Sequence[NewMessage], on_written: OnWritten) -> None:
        """Take the broker's own records, from `join_tick`: they are the last of the tick."""
        self._records.append((records, on_written))

    def end_of_tick(self) -> None:
        """Append everything that came in this tick, and see to the receipts."""
        self._is_expected = False
        if self._joining:
            joining, self._joining = self._joining, []
            for add_more in joining:
                try:
                    add_more()
                except Exception:
                    # The tick's messages are not to blame.
                    log.exception("something could not be added to a tick")
        if self._records:
            own, self._records = self._records, []
            is_in = self._append_list([record for records, _ in own for record in records])
            for records, on_written in own:
                self._tell_written(on_written, None if is_in else self._append_records(records))
        elif self.messages:
            self._unmeasured += len(self.messages)
            if self._unmeasured < MEASURED_EVERY:
                self._append_list([])
            else:
                self._unmeasured = 0
                began = perf_counter()
                self._append_list([])
                self.append_seconds.observe(perf_counter() - began)
        if self._written:
            written, self._written = self._written, []
            for receipts, messages, stored_at in written:
                self._tell(receipts, messages, stored_at)
        if self._appended is not None:
            self._appended()

    # -- at once -------------------------------------------------------------------------------

    def write_now(
        self, messages: Sequence[NewMessage] | Sequence[NewRun], records: Sequence[NewMessage] = ()
    ) -> list[Appended]:
        """Append the broker's own messages and records together, now, with nobody to tell.

        Records alone have head room, and are not counted: nobody waits for them.
        """
        self._append_list([])
        if self._appended is not None:
            self.expect_tick()  # Its end tells the replicas.
        if not messages:
            return self._store.append_own(records) if records else []
        appended = self._store.append(cast(list[NewMessage], [*messages, *records]))
        del appended[len(messages) :]
        if self.watched:
            self._tell_watchers(messages, appended)
        self.account(messages, appended)
        return appended

    def append_so_far(self) -> None:
        """Append what the tick has by now; who sent it is told at its end, as always."""
        self._append_list([])

    def write_alone(self, message: NewMessage) -> Appended | None:
        """Append one plain message outside any tick; the caller sees to `account`, soon.

        None if it has to wait for others, or cannot be stored: putting it tells why.
        """
        if self.messages or not self._durability.immediate:
            return None
        try:
            appended = self._store.append((message,))[0]
        except Exception:
            return None
        if self.watched:
            self._tell_watchers((message,), (appended,))
        return appended

    @contextlib.contextmanager
    def head_room(self, share: float = HEAD_ROOM) -> Iterator[None]:
        """While it lasts, what is written at once may use the head room of a disk that fills."""
        self._append_list([])
        with self._store.head_room(share):
            yield

    def delete_topic(self, topic: str) -> None:
        """Remove a topic's queues, behind all that was sent to it."""
        self.write_now(())
        self._store.delete_topic(topic)

    def refuse(self, error: OnelogError | None) -> None:
        """Write nothing from now on: whoever wants to is told the reason. None: write again."""
        self._store = self._open if error is None else cast(MessageStore, _Refusal(error))

    # -- appending -----------------------------------------------------------------------------

    def _append_list(self, records: Sequence[NewMessage]) -> bool:
        """Append what the tick has so far, and these records; whether they are in the log, too."""
        if not self.messages:
            return False
        messages, receipts = self.messages.copy(), self.receipts.copy()
        self.messages.clear()
        self.receipts.clear()
        if len(messages) == 1 or NewRun not in map(type, messages):
            return self._append(messages, receipts, records)
        self._append_stretches(messages, receipts)
        return False

    def _append(
        self,
        messages: list[NewMessage | NewRun],
        receipts: list[Receipt],
        records: Sequence[NewMessage] = (),
    ) -> bool:
        try:
            appended = self._store.append([*messages, *records] if records else messages)
        except (StoreError, NotMasterError) as error:
            self._written.append((receipts, messages, error))
        except Exception:
            # Also what is no error of ours: a number that does not fit its field, say.
            self._append_one_by_one(messages, receipts)
        else:
            if records:
                appended = appended[: len(messages)]
            self._written.append((receipts, messages, appended))
            if self.watched:
                self._tell_watchers(messages, appended)
            return True
        return False

    def _append_one_by_one(
        self, messages: list[NewMessage | NewRun], receipts: list[Receipt]
    ) -> None:
        """Some message of the tick cannot be stored: find out which, and store the others."""
        at = 0
        for receipt in receipts:
            mine = messages[at : at + (receipt[2] or 1)]
            at += len(mine)
            try:
                appended = self._store.append(mine)
            except Exception as error:
                self._written.append(([receipt], mine, _named(error, mine[0].topic)))
            else:
                self._written.append(([receipt], mine, appended))
                if self.watched:
                    self._tell_watchers(mine, appended)

    def _append_stretches(
        self, messages: list[NewMessage | NewRun], receipts: list[Receipt]
    ) -> None:
        """Append in the order of arrival: together what follows each other and is of one kind.

        What the store looks at closely in a list of messages would cost a run its advantage.
        """
        begin = at = 0
        stretch: list[Receipt] = []
        for receipt in receipts:
            if stretch and type(messages[at]) is not type(messages[begin]):
                self._append(messages[begin:at], stretch)
                begin, stretch = at, []
            stretch.append(receipt)
            at += receipt[2] or 1
        self._append(messages[begin:], stretch)

    def _append_records(self, records: Sequence[NewMessage]) -> OnelogError | None:
        try:
            if records:
                self._store.append_own(records)
        except Exception as error:
            return _named(error, records[0].topic)
        return None

    # -- telling -------------------------------------------------------------------------------

    def watch(self, key: Key, on_entered: OnEntered | None) -> None:
        """Tell somebody of each message that a queue gets, at once and in order; None: nobody."""
        if on_entered is None:
            self.watched.pop(key, None)
        else:
            self.watched[key] = on_entered
        self._watched_of.clear()

    def _tell_watchers(self, messages: Sequence[Any], stored_at: Stored) -> None:
        """Tell of what was appended just now, before anything else is."""
        watched, watched_of = self.watched, self._watched_of
        are_runs = type(messages[0]) is NewRun
        found: dict[Key, list[NewMessage | NewRun]] = {}
        firsts: dict[Key, int] = {}
        """Of those whose first message says itself where it is: it has no other queue."""
        last_topic, last_id = "", -1
        mine: list[NewMessage | NewRun] | None = None
        for message, where in zip(messages, stored_at, strict=True):
            if message[5] & TRANSACTION_MASK not in _ENTERED:
                continue
            if are_runs or not message[12]:
                if message[0] is not last_topic or message[1] != last_id:
                    last_topic, last_id = key = message[:2]
                    mine = found.get(key)
                    if mine is None and key in watched:
                        mine = found[key] = []
                        firsts[key] = where[1]
                if mine is not None:
                    mine.append(message)
                continue
            queue_key = (message[0], message[1], message[12])
            keys = watched_of.get(queue_key)
            if keys is None:
                keys = self._find_watched(*queue_key)
            for key in keys:
                found.setdefault(key, []).append(message)
        for key, some in found.items():
            first = firsts.get(key)
            if first is None:
                first = self._store.next_offset(*key) - sum(map(_COPIES, some))
            self._tell_watcher(key, some, first)

    def _tell_watcher(self, key: Key, mine: Sequence[NewMessage | NewRun], first: int) -> None:
        try:
            self.watched[key](mine, first)
        except Exception:
            log.exception("what came to %s could not be told", key[0])

    def _find_watched(self, topic: str, queue_id: int, extra: tuple[str, ...]) -> tuple[Key, ...]:
        """Those queues of a message of which somebody wants to be told."""
        keys = [(topic, queue_id), *((each, queue_id_of(each, queue_id)) for each in extra)]
        found = tuple(key for key in keys if key in self.watched)
        if len(self._watched_of) >= _WATCHED_MAX:
            self._watched_of.clear()
        self._watched_of[topic, queue_id, extra] = found
        return found

    def _tell_written(self, on_written: OnWritten, error: OnelogError | None) -> None:
        try:
            on_written(error)
        except Exception:
            log.exception("what was recorded could not be told")

    def _tell(
        self,
        receipts: list[Receipt],
        messages: Sequence[NewMessage | NewRun],
        stored_at: Stored | OnelogError,
    ) -> None:
        """Answer what was appended as soon as it is safe, count it, and wake who waits for it."""
        if isinstance(stored_at, OnelogError):
            self._refuse(receipts, stored_at, _count(messages))
            return
        if self._durability.immediate:
            _answer(receipts, stored_at, None)
        else:
            self._answer_when_safe(receipts, stored_at, _count(messages))
        first, last = stored_at[0], stored_at[-1]
        # One append: they lie side by side, unless a segment has ended between them.
        is_run = first is last or first.log_offset >= self._open.log.newest_start
        size = last.log_offset + last.size - first.log_offset if is_run else None
        self.account(messages, stored_at, size)

    def _answer_when_safe(self, receipts: list[Receipt], stored_at: Stored, count: int) -> None:
        here: list[Receipt] = []
        if self.reports_offsets and any(
            isinstance(receipt[0], WithOffsets) for receipt in receipts
        ):
            for (on_stored, token, _, _), mine in zip(
                receipts, _offsets_of(receipts, stored_at), strict=True
            ):
                if isinstance(on_stored, WithOffsets):
                    on_stored.on_offsets(token, mine[0])
        if self._durability.replicates:
            here = [receipt for receipt in receipts if receipt[3]]
        if here:
            them = [receipt for receipt in receipts if not receipt[3]]
            at = dict(zip(map(id, receipts), _offsets_of(receipts, stored_at), strict=True))
            stored_at = [queue_key for receipt in them for queue_key in at[id(receipt)]]
            safe_here = [queue_key for receipt in here for queue_key in at[id(receipt)]]
            self._wait(here, safe_here, len(safe_here), Acks.MASTER)
            receipts, count = them, count - len(safe_here)
        if receipts:
            self._wait(receipts, stored_at, count, Acks.DURABLE)

    def _wait(self, receipts: list[Receipt], stored_at: Stored, count: int, acks: Acks) -> None:
        self._unsettled += count
        end = stored_at[-1].log_offset + stored_at[-1].size
        settle = partial(self._settle, receipts, stored_at, count)
        self._durability.when_safe(settle, end, acks)

    def _settle(
        self, receipts: list[Receipt], stored_at: Stored, count: int, error: OnelogError | None
    ) -> None:
        self._unsettled -= count
        if error is None or isinstance(error, UNCONFIRMED):
            _answer(receipts, stored_at, error)
        else:
            self._refuse(receipts, error, count)

    def _refuse(self, receipts: list[Receipt], error: OnelogError, count: int) -> None:
        self._stats.totals.put_failed += count
        _answer(receipts, None, error)

    def account(self, messages: Sequence[Any], appended: Stored, size: int | None = None) -> None:
        """Count what was stored, and so many bytes, if that is known; and wake who waits for it."""
        are_runs = type(messages[0]) is NewRun
        count = _count(messages) if are_runs else sum(map(_COPIES, messages))
        if size is None:
            size = sum(map(_SIZE, appended))
        totals = self._stats.totals
        totals.put_count += count
        totals.put_bytes += size
        bucket = self._stats.topic_put.newest
        if len(messages) == 1 or len(set(map(_TOPIC, messages))) == 1:
            _add(bucket, messages[0].topic, count, size, count if are_runs else len(messages))
        elif are_runs:
            for run, where in zip(messages, appended, strict=True):
                _add(bucket, run[0], len(run[2]), where[2], len(run[2]))
        else:
            last, cell = "", [0, 0, 0]
            for message, where in zip(messages, appended, strict=True):
                if message[0] is not last:
                    last = message[0]
                    cell = bucket.setdefault(last, [0, 0, 0])
                cell[0] += message[11]
                cell[1] += where[2]
                cell[2] += 1
        if self._waiting.keys and not self._store.gated:
            for topic, queue_id in dict.fromkeys((each.topic, each.queue_id) for each in messages):
                self._waiting.arrived(topic, queue_id)
            for message in messages if not are_runs else ():
                for topic in message[12]:
                    self._waiting.arrived(topic, queue_id_of(topic, message.queue_id))
        for on_accounted in self.stored:
            on_accounted(messages, appended)


def _count(messages: Sequence[NewMessage | NewRun]) -> int:
    if isinstance(messages[0], NewRun):
        return sum(len(run.parts) for run in cast(Sequence[NewRun], messages))
    return len(messages)


def _named(error: Exception, topic: str) -> OnelogError:
    """What is told of a message that cannot be stored."""
    if isinstance(error, OnelogError):
        return error
    log.warning("a message to %s cannot be stored", topic, exc_info=error)
    return MessageError(f"the message cannot be stored: {error}")


def _add(bucket: Bucket, topic: str, copies: int, size: int, times: int) -> None:
    cell = bucket.get(topic)
    if cell is None:
        bucket[topic] = [copies, size, times]
    else:
        cell[0] += copies
        cell[1] += size
        cell[2] += times


def _offsets_of(receipts: list[Receipt], stored_at: Stored) -> Iterator[Stored]:
    """Of each receipt the places that it is about."""
    at = 0
    for _, _, count, _ in receipts:
        yield stored_at[at : at + (count or 1)]
        at += count or 1


def _answer(receipts: list[Receipt], stored_at: Stored | None, error: OnelogError | None) -> None:
    at = 0
    for on_stored, token, count, _ in receipts:
        if on_stored is nobody:
            at += count or 1
            continue
        if stored_at is None:
            where: object = None
        elif count:
            where = stored_at[at : at + count]
            at += count
        else:
            where = stored_at[at]
            at += 1
        try:
            on_stored(token, where, error)
        except Exception:
            # One broken connection must not cost the others their answer.
            log.exception("an acknowledgement could not be handed over")
