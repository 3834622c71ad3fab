"""Transactions: a message that is delivered if, and only if, something else was done.

    1. The producer sends a half message, which nobody can see yet.
    2. Its local transaction runs: usually a commit in a database.
    3. The producer tells the broker: commit, roll back, or unknown.
    4. A broker that hears nothing asks, again and again: any live member of the producer group, and
       not only the one that sent the half message. The member's checker looks up what happened.

Invariants: an outcome is reported only if the local transaction or the checker gave one;
whatever else happens (it raises, it returns something else, the process dies) leaves the question
open, and the broker will ask. A function that is not a coroutine never runs on the event loop.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Unpack

from onelog.client.hooks import TransactionContext, transaction_ended
from onelog.client.message import Message, Receipt, ReceivedMessage, SendStatus
from onelog.client.producer.outgoing import Destination
from onelog.errors import ConfigError, MessageError, OnelogError
from onelog.message import SysFlag, parse_message_id
from onelog.net.peer import Peer
from onelog.record.decode import decode_records
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command

if TYPE_CHECKING:
    from onelog.client.producer.producer import AsyncProducer

CHECKS_AT_ONCE = 16
CHECKS_WAITING_MAX = 2_000
"""Questions of brokers that may wait to be answered. They ask again, so more need not be kept."""

PREPARED = {"TRAN_MSG": "true"}
PRODUCER_GROUP = "PGROUP"

log = logging.getLogger(__name__)


class TransactionState(Enum):
    """How a local transaction ended; the values are those of END_TRANSACTION."""

    COMMIT = int(SysFlag.COMMITTED)
    """Deliver the message."""
    ROLLBACK = int(SysFlag.ROLLED_BACK)
    """Forget it."""
    UNKNOWN = 0
    """Ask the checker later."""


LocalTransaction = Callable[[Message, str], TransactionState | Awaitable[TransactionState]]
"""Gets the message and the id of the transaction, under which to note down what was done."""
Checker = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]
"""Gets the half message; its `transaction_id` is what the local transaction was given."""

_JAVA_NAMES = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}


class TransactionReceipt(NamedTuple):
    """A transaction as far as its producer knows: the half message, and what the broker was told.

    The broker does not confirm that. If it did not hear it, it asks the checker.
    """

    receipt: Receipt
    transaction_id: str
    state: TransactionState

    @property
    def message_id(self) -> str:
        """The unique id of the message."""
        return self.receipt.message_id


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A half message that a broker has."""

    message: Message
    receipt: Receipt
    transaction_id: str

    def begun(self, local: LocalTransaction) -> TransactionState | Awaitable[TransactionState]:
        """Call the local transaction here and now, unless the half message may be lost."""
        if self.receipt.status is not SendStatus.OK:
            return TransactionState.ROLLBACK
        return local(self.message, self.transaction_id)


class Transactions:
    """The transactions of one producer."""

    def __init__(self, producer: "AsyncProducer") -> None:
        self._producer = producer
        self._group = producer.instance.wrap(producer.group)
        self._checker = producer.settings.checker
        self._pending_checks: set[tuple[Peer, int]] = set()
        self._free = asyncio.Semaphore(CHECKS_AT_ONCE)
        if self._checker is not None:
            producer.instance.handlers[RequestCode.CHECK_TRANSACTION_STATE] = self._check

    async def start(self) -> None:
        """Register with the brokers as one that can be asked."""
        if self._checker is not None:
            self._producer.instance.spawn(self._producer.instance.presence.ensure())

    async def send(
        self, message: Message, local: LocalTransaction, **destination: Unpack[Destination]
    ) -> TransactionReceipt:
        half = await self.prepare(message, **destination)
        state = TransactionState.UNKNOWN
        try:
            state = checked_state(await _called(local, half.begun, local), local)
        finally:
            await self.end(half, state)
        return TransactionReceipt(half.receipt, half.transaction_id, state)

    async def prepare(self, message: Message, **destination: Unpack[Destination]) -> HalfMessage:
        if self._checker is None:
            raise ConfigError(
                "a producer of transactions needs the option checker: brokers ask it about those "
                "whose end they did not hear of"
            )
        if message.delay is not None or message.deliver_at is not None or message.delay_level:
            raise MessageError("a message in a transaction cannot be delayed")
        receipt = await self._producer.dispatch(
            message,
            **destination,
            extra={**PREPARED, PRODUCER_GROUP: self._group},
            sys_flag=int(SysFlag.PREPARED),
        )
        return HalfMessage(message, receipt, receipt.transaction_id or receipt.message_id)

    async def end(self, half: HalfMessage, state: TransactionState) -> None:
        """Report to the broker how a transaction ended. If that fails, it will ask."""
        message, receipt = half.message, half.receipt
        instance = self._producer.instance
        topic = instance.wrap(message.topic)
        try:
            log_offset = parse_message_id(receipt.offset_id)[1]
            route = await instance.routes.get_for_sending(topic)
            address = route.address(receipt.queue.broker)
        except (OnelogError, ValueError) as error:
            log.warning("transaction %s was not ended: %s", half.transaction_id, error)
            return
        places = {
            "tranStateTableOffset": str(receipt.offset),
            "commitLogOffset": str(log_offset),
            "fromTransactionCheck": "false",
            "msgId": receipt.message_id,
        }
        ext = self._ended(message, state, topic, half.transaction_id, address, places)
        ext["bname"] = receipt.queue.broker
        instance.oneway(address, RequestCode.END_TRANSACTION, ext)

    # Questions of brokers.

    def _check(self, peer: Peer, command: Command) -> None:
        try:
            half_offset = fields.number(command.ext, "tranStateTableOffset")
            (record,) = decode_records(command.body)
        except (OnelogError, ValueError) as error:
            log.warning("%s asked about a transaction in bad form: %s", peer.connection, error)
            return
        topic = self._producer.instance.unwrap(record.topic)
        message = ReceivedMessage(record._replace(topic=topic), command.ext.get("bname", ""))
        group = message.all_properties.get(PRODUCER_GROUP)
        if group != self._group:
            log.warning("%s asked about a transaction of group %s", peer.connection, group)
            return
        question = (peer, half_offset)
        if question not in self._pending_checks and len(self._pending_checks) < CHECKS_WAITING_MAX:
            self._pending_checks.add(question)
            self._producer.instance.spawn(self._answer(peer, command, message, half_offset))

    async def _answer(
        self, peer: Peer, command: Command, message: ReceivedMessage, half_offset: int
    ) -> None:
        checker = self._checker
        assert checker is not None
        state = TransactionState.UNKNOWN
        try:
            async with self._free:
                state = checked_state(await _called(checker, checker, message), checker)
        except Exception:
            log.exception("the checker failed for message %s", message.message_id)
        finally:
            self._pending_checks.discard((peer, half_offset))
        places = {
            "tranStateTableOffset": str(half_offset),
            "commitLogOffset": str(fields.number(command.ext, "commitLogOffset")),
            "fromTransactionCheck": "true",
            "msgId": message.message_id,
        }
        topic = command.ext.get("topic") or self._producer.instance.wrap(message.topic)
        transaction_id = command.ext.get("transactionId", "")
        address = peer.connection.remote_address
        ext = self._ended(message, state, topic, transaction_id, address, places)
        if message.broker:
            ext["bname"] = message.broker
        if peer.is_open:  # If not, the broker asks somebody else, or us on another connection.
            peer.oneway(RequestCode.END_TRANSACTION, self._producer.instance.sign(ext))

    def _ended(
        self,
        message: Message | ReceivedMessage,
        state: TransactionState,
        topic: str,
        transaction_id: str,
        address: object,
        places: dict[str, str],
    ) -> dict[str, str]:
        """What is reported to the broker at an address; the hooks are told, too."""
        if hooks := self._producer.settings.hooks:
            context = TransactionContext(
                self._producer.group,
                message.topic,
                message.tags or "",
                " ".join(message.keys),
                places["msgId"],
                transaction_id,
                _JAVA_NAMES[state],
                str(address),
                places["fromTransactionCheck"] == "true",
            )
            transaction_ended(hooks, context)
        return {
            "topic": topic,
            "producerGroup": self._group,
            "commitOrRollback": str(state.value),
            **places,
            **({"transactionId": transaction_id} if transaction_id else {}),
        }


def checked_state(state: object, source: object) -> TransactionState:
    """What a local transaction or a checker returned; `TypeError` if it is no state."""
    if not isinstance(state, TransactionState):
        raise TypeError(f"{source!r} must return a TransactionState, and returned {state!r}")
    return state


async def _called(
    given: object,
    function: Callable[..., TransactionState | Awaitable[TransactionState]],
    *arguments: object,
) -> object:
    """What a function returns, called in a thread unless what was given is a coroutine function."""
    result: object
    if inspect.iscoroutinefunction(given):
        result = function(*arguments)
    else:
        result = await asyncio.to_thread(lambda: function(*arguments))
    return await result if inspect.isawaitable(result) else result
