"""Transactions, as clients see them: half messages, what is staged, and batches in place.

Each method says who asks, and asks whether they may.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from onelog.core.access import Principal
from onelog.core.durable.writer import OnStored
from onelog.core.publish import Intent
from onelog.core.transactions.half import NOT_OPEN
from onelog.core.transactions.in_place import Producer
from onelog.core.transactions.prepared_batches import OnCommitted
from onelog.errors import TransactionNotFoundError
from onelog.message import Message, NewMessage, NewRun

if TYPE_CHECKING:
    from onelog.core.assembly import Assembly

_UNGUESSABLE = re.compile(r"(spark-batch-)?[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}")
"""Names of queries that are random: Spark's own."""


class Transactions:
    """`Broker.transactions`."""

    def __init__(self, core: "Assembly") -> None:
        self._access = core.access
        self._broker_name = core.config.name
        self._publisher = core.publisher
        self._transactions = core.transactions
        self._checkback = core.checkback
        self._staged = core.staged
        self._prepared_batches = core.prepared_batches
        self._batch_producers = core.batch_producers
        self.in_place = core.in_place
        self.branches = core.branches
        self.ask_producer = core.checkback.askers
        """Called with a client and a transaction to ask it about, until one has asked it."""

    # -- half messages ----------------------------------------------------------------------------

    def commit_half(
        self,
        principal: Principal,
        group: str,
        half_offset: int,
        log_offset: int,
        on_stored: OnStored,
        token: Any = None,
        *,
        checked: bool = False,
        intent_of: Callable[[NewMessage], Intent | None] = lambda message: None,
    ) -> None:
        """Deliver a half message, with the intent that is told then; see `Transactions.commit`."""
        self._check_half(principal, group, half_offset, log_offset)

        def becomes(message: NewMessage) -> NewMessage:
            intent = intent_of(message)
            return message if intent is None else self._publisher.postponed(message, intent)

        self._transactions.commit(
            group, half_offset, log_offset, on_stored, token, checked=checked, becomes=becomes
        )

    def roll_back_half(
        self,
        principal: Principal,
        group: str,
        half_offset: int,
        log_offset: int,
        on_stored: OnStored,
        token: Any = None,
        *,
        checked: bool = False,
    ) -> None:
        """Forget a half message; see `Transactions.roll_back`."""
        self._check_half(principal, group, half_offset, log_offset)
        self._transactions.roll_back(
            group, half_offset, log_offset, on_stored, token, checked=checked
        )

    def _check_half(
        self, principal: Principal, group: str, half_offset: int, log_offset: int
    ) -> None:
        """They must be allowed to send where the half message goes; else there is none for them."""
        self._access.check(principal, "publish", ("group", group))
        if not self._access.is_open:
            topic = self._transactions.topic_of(half_offset, log_offset)
            if topic is not None and not self._access.may(principal, "publish", ("topic", topic)):
                raise TransactionNotFoundError(NOT_OPEN.format(half_offset))

    def half_offsets(self, principal: Principal) -> list[int]:
        """Where the half messages are that are open, the oldest first."""
        self._access.check(principal, "describe", ("broker", "names"))
        return list(self._checkback.log_offsets.values())

    def open_halves(
        self, principal: Principal, log_offsets: Iterable[int]
    ) -> list[tuple[Message, int]]:
        """These half messages, each with how often producers were asked; from the disk."""
        self._access.check(principal, "describe", ("broker", "names"))
        return self._checkback.open_halves(log_offsets)

    def find_given_up(self, principal: Principal, message_id: str) -> Message:
        """A transaction that was put away; it may have to be read from the disk."""
        self._access.check(principal, "alter", ("broker", self._broker_name))
        return self._checkback.find_given_up(message_id)

    def resume_check(
        self, principal: Principal, message_id: str, on_stored: OnStored, token: Any = None
    ) -> None:
        """Begin again to ask about a transaction that was put away."""
        self._access.check(principal, "alter", ("broker", self._broker_name))
        self._checkback.resume(message_id, on_stored, token)

    # -- staged -----------------------------------------------------------------------------------

    def begin(self, principal: Principal, owner: Hashable, name: str = "") -> None:
        """Begin a staged transaction of an owner; see `StagedTransactions`."""
        self._access.check(principal, "publish", ("broker", self._broker_name))
        self._staged.begin(owner, name)

    def stage(
        self, principal: Principal, owner: Hashable, name: str, messages: Sequence[NewMessage]
    ) -> None:
        """Add messages to a staged transaction."""
        for topic in {message.topic for message in messages}:
            self._access.check(principal, "publish", ("topic", topic))
        self._staged.stage(owner, name, messages)

    def commit(
        self,
        principal: Principal,
        owner: Hashable,
        name: str,
        on_committed: OnStored,
        token: Any = None,
    ) -> None:
        """Store all that a transaction has staged."""
        self._access.check(principal, "publish", ("broker", self._broker_name))
        self._staged.commit(owner, name, on_committed, token)

    def abort(self, principal: Principal, owner: Hashable, name: str = "") -> None:
        """Forget all that a transaction has staged."""
        self._access.check(principal, "publish", ("broker", self._broker_name))
        self._staged.abort(owner, name)

    def stage_batch(
        self,
        principal: Principal,
        query: str,
        batch: int,
        attempt: str,
        run: NewRun,
        on_stored: OnStored,
        token: Any = None,
        *,
        one_off: bool = False,
    ) -> None:
        """Store a part of a batch that a query prepares; see `PreparedBatches.stage`."""
        self._access.check(principal, "publish", ("topic", run.topic))
        self._check_query(principal, query)
        self._prepared_batches.stage(query, batch, attempt, run, on_stored, token, one_off=one_off)

    def commit_batch(
        self,
        principal: Principal,
        query: str,
        batch: int,
        parts: Sequence[int],
        on_committed: OnCommitted,
        token: Any = None,
        *,
        note: str = "",
        one_off: bool = False,
    ) -> None:
        """Deliver a prepared batch; see `PreparedBatches.commit`."""
        self._check_query(principal, query)
        self._prepared_batches.commit(
            query, batch, parts, on_committed, token, note=note, one_off=one_off
        )

    def last_batch(self, principal: Principal, query: str) -> tuple[int | None, str]:
        """The last batch that a query has committed, if any, and what it noted with it."""
        self._check_query(principal, query)
        return self._prepared_batches.last_batch(query), self._prepared_batches.note(query)

    def _check_query(self, principal: Principal, query: str) -> None:
        """Batches are of a query as transactions are of a transactional id: who numbers them can
        make those of others too late. A name that nobody can guess is nobody else's."""
        self._access.check(principal, "publish", ("broker", self._broker_name))
        if not _UNGUESSABLE.fullmatch(query):
            self._access.check(principal, "publish", ("transaction", query))

    # -- in place ---------------------------------------------------------------------------------

    def producers_of(
        self, principal: Principal, topic: str, queue_id: int
    ) -> list[tuple[int, Producer, int]]:
        """Who numbers batches in a queue, and where their transactions begin, -1 if none does."""
        self._access.check(principal, "describe", ("topic", topic))
        return self._batch_producers.of(topic, queue_id)
