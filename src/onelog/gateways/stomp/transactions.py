"""BEGIN, COMMIT, ABORT: messages and acknowledgements that happen together, or not at all.

Messages are staged in the core, and stored by one append, which says of the messages that the
transaction acknowledges that they are done. What it refuses goes back to its queue, or to the dead
letters, behind that: a crash in between delivers it again.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from onelog.errors import InvalidRequestError, OnelogError, TransactionNotFoundError
from onelog.gateways.stomp.session import StompSession, required
from onelog.gateways.stomp.subscriptions import Subscription, settle_one, when_settled
from onelog.wire.stomp.frame import Frame

if TYPE_CHECKING:
    from onelog.core.queues.queue import WorkQueue
    from onelog.gateways.stomp.sending import Posting

TRANSACTIONS_MAX = 100
"""Open transactions of one connection."""
SETTLED_MAX = 100_000
"""Acknowledgements in one transaction."""


class Transaction:
    """One that is open."""

    __slots__ = ("_name", "_session", "refused", "settled", "staged")

    def __init__(self, session: StompSession, name: str) -> None:
        self._session = session
        self._name = name
        self.settled: list[tuple[Subscription, int, bool | None]] = []
        self.staged = 0
        self.refused: list[WorkQueue] = []
        """Queues that got something back: who waits for the commit waits for that, too."""

    def stage(self, posting: "Posting") -> None:
        """Add a message."""
        session = self._session
        session.broker.publish.routing.stage(
            session.principal, session, self._name, session.vhost, *posting
        )
        self.staged += 1

    def settle(self, subscription: Subscription, tag: int, requeue: bool | None) -> None:
        """Add an acknowledgement or refusal of a message that is out now."""
        if tag not in subscription.unacked:
            raise subscription.unknown(tag)
        if len(self.settled) >= SETTLED_MAX:
            raise InvalidRequestError(f"the limit is {SETTLED_MAX} acknowledgements: COMMIT them")
        self.settled.append((subscription, tag, requeue))

    def acks(self) -> "Iterator[tuple[WorkQueue, list[int]]]":
        """What is done with the commit."""
        for subscription, tag, requeue in self._open():
            if requeue is None:
                yield from subscription.positions(tag).items()

    def finish(self) -> None:
        """The commit is written: settle what is to be settled."""
        queues: dict[WorkQueue, None] = {}
        for subscription, tag, requeue in self._open():
            settled = settle_one(subscription, tag, requeue)
            if requeue is not None:
                queues |= dict.fromkeys(settled)
        self.refused = list(queues)

    def _open(self) -> Iterator[tuple[Subscription, int, bool | None]]:
        # One may be acknowledged by a later one already, or its subscription over.
        return (each for each in self.settled if each[1] in each[0].unacked)


def begin(session: StompSession, frame: Frame) -> None:
    name = required(frame, "transaction")
    if name in session.transactions:
        raise InvalidRequestError(f"transaction {name[:100]!r} is open already")
    if len(session.transactions) >= TRANSACTIONS_MAX:
        raise InvalidRequestError(f"the limit is {TRANSACTIONS_MAX} open transactions")
    session.broker.transactions.begin(session.principal, session, name)
    session.transactions[name] = Transaction(session, name)
    session.receipt(frame.headers.get("receipt"))


def commit(session: StompSession, frame: Frame) -> None:
    name, transaction = _taken(session, frame)
    receipt = frame.headers.get("receipt")
    session.pending += 1

    def committed(_: object, where: object, error: OnelogError | None) -> None:
        if error is None and not session.connection.closing:
            when_settled(session, transaction.refused, partial(session.settled, receipt))
        session.settled(None if error is None else receipt, error)

    broker = session.broker
    acks = broker.queues.declared.acks_alongside(transaction.acks, transaction.finish)
    try:
        broker.publish.routing.commit(session.principal, session, name, committed, alongside=acks)
    except OnelogError:
        session.pending -= 1
        raise


def abort(session: StompSession, frame: Frame) -> None:
    """ABORT: what was to be acknowledged is still out."""
    name, _ = _taken(session, frame)
    session.broker.publish.routing.abort(session.principal, session, name)
    session.receipt(frame.headers.get("receipt"))


def _taken(session: StompSession, frame: Frame) -> tuple[str, Transaction]:
    name = required(frame, "transaction")
    transaction = session.transactions.pop(name, None)
    if transaction is None:
        raise TransactionNotFoundError(f"no transaction {name[:100]!r} is open: BEGIN it first")
    return name, transaction
