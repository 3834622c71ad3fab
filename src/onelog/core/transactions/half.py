"""Transactions: messages that wait until their producer says what became of them.

A half message rests where no consumer looks. Its producer ends it: a commit writes the message to
its own topic, and an operation that names the half message; a rollback writes the operation alone.
All that ends in a tick goes in one append, with one operation, which is last. About half messages
that nobody ends, `checkback` asks.

Invariant: until an operation names a half message in the log, it is open, or among the endings of
this tick; whoever ends it a second time is refused, so that a commit delivers at most once.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from onelog.clock import Clock
from onelog.core.catalog.topics import Topics
from onelog.core.publish import OnStored, Publisher
from onelog.core.transactions import half_messages
from onelog.core.transactions.open_halves import OpenTransactions
from onelog.errors import (
    BrokerBusyError,
    MessageError,
    OnelogError,
    TopicNotFoundError,
    TransactionForeignError,
    TransactionLateError,
    TransactionNotFoundError,
)
from onelog.message import Appended, Message, NewMessage, property_value
from onelog.store.message_store import MessageStore

OPEN_MAX = 500_000
"""Open transactions, at some 300 bytes each, before new ones are refused."""


class _Ending(NamedTuple):
    """A transaction that ends with this tick, and whom to tell; a rollback has no message."""

    half_offset: int
    log_offset: int
    message: NewMessage | None
    on_stored: OnStored
    token: Any


def _unheard(token: Any, appended: Appended | None, error: OnelogError | None) -> None:
    """For endings that no request is about; what fails is tried again in the next round."""


class Transactions:
    """Begins transactions and ends them."""

    def __init__(
        self,
        opened: OpenTransactions,
        store: MessageStore,
        topics: Topics,
        publisher: Publisher,
        clock: Clock,
        timeout_ms: int,
        store_host: bytes,
    ) -> None:
        self.table = opened
        self.timeout_ms = timeout_ms
        """The least immunity: a younger half message is nobody's business but its producer's."""
        self._places = opened.places
        self._store = store
        self._topics = topics
        self._publisher = publisher
        self._clock = clock
        self._store_host = store_host
        self._endings: list[_Ending] = []

    def open(self) -> None:
        """Go on with what is open."""
        self.table.load()
        self._publisher.before_append.append(self._write_endings)

    def remember(self) -> None:
        """Record what is open, so that a start need not find it out."""
        for _ in self.remember_some():
            pass

    def remember_some(self) -> Iterator[None]:
        """The same, some at a time."""
        return self.table.remember(lambda: {ending.half_offset for ending in self._endings})

    # -- beginning -----------------------------------------------------------------------------

    def prepare(self, message: NewMessage, on_stored: OnStored, token: Any = None) -> None:
        """Store a message that waits for the end of its transaction; see `Publisher.submit`.

        `on_stored` learns where the half message is; the producer names that place to end it.
        """
        if half_messages.is_half(message.properties):
            half = half_messages.prepared(self._publisher.admitted(message))
            self.put_half(half, on_stored, token)
        else:
            self._publisher.submit(message, on_stored, token)

    def put_half(self, half: NewMessage, on_stored: OnStored, token: Any) -> None:
        """Store a half message as it is."""
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

    def forget(self, half: Message) -> None:
        """End a transaction of which nobody has to hear."""
        self._end(half, None, _unheard, None)

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
        messages += self.operations([ending.half_offset for ending in endings])
        self._publisher.put_as_is(messages, self._ended, endings)

    def operations(self, half_offsets: list[int]) -> list[NewMessage]:
        """The records with which these half messages end."""
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
