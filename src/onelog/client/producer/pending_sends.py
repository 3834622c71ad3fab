"""Sends that wait for their answer: how many there may be, and how each one ends.

A `PendingSend` ends as a `Receipt` or as a `FailedTry`. Large messages weigh more than one, so that
the limit on the number of messages is also a limit on their bytes.

Invariants: a pending send ends in one call of its `finish`. The error of a `FailedTry` names the
broker, its address and the cause. Who waits for room gets it first come, first served, or gets an
error in time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from onelog.client.connection.nodes import REFUSALS, refusal
from onelog.client.message import Queue, Receipt, SendStatus
from onelog.client.producer.send_targets import Channel, Faults, SendTarget
from onelog.errors import (
    BrokerBusyError,
    MessageError,
    OnelogError,
    PeerClosedError,
    PeerTimeoutError,
    SendFailedError,
    WireError,
)
from onelog.net.remoting import Unanswered
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command

PENDING_MAX = 2048
"""Messages that may wait for their answer; 32 MiB, if they are large."""
WEIGHT_SHIFT = 14
"""Each 16 KiB of a body count as one more message."""

SEND = RequestCode.SEND_MESSAGE_V2

STATUSES = {
    ResponseCode.SUCCESS.value: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT.value: SendStatus.FLUSH_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT.value: SendStatus.SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE.value: SendStatus.SLAVE_UNAVAILABLE,
}
"""Answers of a broker that has the message."""

SEND_REFUSALS: dict[int, type[OnelogError]] = {
    **REFUSALS,
    ResponseCode.MESSAGE_ILLEGAL: MessageError,
    ResponseCode.SYSTEM_BUSY: BrokerBusyError,
}

RETRIED_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
"""Answers after which RocketMQ's client tries another broker."""

_OK = SendStatus.OK

log = logging.getLogger(__name__)


class FailedTry(NamedTuple):
    """A try that failed."""

    message_id: str
    broker: str
    error: OnelogError
    is_worth_another: bool
    started: float
    was_refused: bool


class Parcel(NamedTuple):
    """A message, or a batch, as it travels."""

    topic: str
    message_id: str
    properties: str
    body: bytes
    flag: int = 0
    sys_flag: int = 0
    code: RequestCode = SEND
    order_key: str | None = None
    queue: Queue | None = None
    timeout_ms: int = 3_000
    is_timed: bool = False
    is_oneway: bool = False
    """Whether no answer is wanted."""

    @property
    def is_fixed(self) -> bool:
        """Whether only one queue will do."""
        return self.order_key is not None or self.queue is not None


Finish = Callable[[Receipt | FailedTry], None]


class PendingSends:
    """All messages of one producer that are on their way."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, faults: Faults | None) -> None:
        self.faults = faults
        """What is known of slow brokers; None if they are not to be avoided."""
        self.weight = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_crowded(self) -> bool:
        """Whether to wait for `room` first."""
        return self.weight >= PENDING_MAX

    async def room(self, timeout_ms: int) -> None:
        """Wait until fewer messages are on their way; `SendFailedError` if that takes too long."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.weight >= PENDING_MAX:
                    await self._change()
        except TimeoutError:
            raise SendFailedError(
                f"not sent within {timeout_ms} ms, because brokers owe answers to messages that "
                f"were sent before, and no more than {PENDING_MAX} may be on their way"
            ) from None

    async def all_ended(self, timeout_ms: int) -> None:
        """Wait until nothing is on its way, or for so long."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.weight:
                    await self._change()
        except TimeoutError:
            log.warning("messages that were sent have no answer yet")

    async def _change(self) -> None:
        turn = self.loop.create_future()
        self.waiting.append(turn)
        await turn

    def wake(self) -> None:
        """There is room again. More are woken than one, for one may have given up meanwhile."""
        for _ in range(min(len(self.waiting), max(1, PENDING_MAX - self.weight))):
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)

    def failed(
        self,
        channel: Channel,
        message_id: str,
        error: OnelogError,
        started: float,
        *,
        is_worth_another: bool = True,
        was_refused: bool = False,
    ) -> FailedTry:
        """A try that did not end with a receipt."""
        if self.faults is not None and is_worth_another:
            self.faults.failed(channel.broker)
        return FailedTry(message_id, channel.broker, error, is_worth_another, started, was_refused)


class PendingSend(Unanswered):
    """A message on its way, until its fate is known."""

    __slots__ = ("_finish", "_message_id", "_pending", "_target", "_weight")

    def __init__(
        self, pending: PendingSends, target: SendTarget, message_id: str, size: int, finish: Finish
    ) -> None:
        self._pending = pending
        self._target = target
        self._message_id = message_id
        self._finish = finish
        self._weight = weight = 1 + (size >> WEIGHT_SHIFT)
        pending.weight += weight

    def answered(self, answer: Command | OnelogError) -> None:
        """The broker answered, or will not any more."""
        pending = self._pending
        pending.weight -= self._weight
        if pending.waiting:
            pending.wake()
        result: Receipt | FailedTry
        if type(answer) is Command and answer.code in STATUSES:
            try:
                result = self._receipt(answer)
            except (KeyError, ValueError):
                result = self._failed(WireError(f"{self._target.channel} sent no proper receipt"))
        else:
            result = self._failed(answer)
        try:
            self._finish(result)
        except asyncio.InvalidStateError:
            pass  # Nobody waits for it any more.

    @property
    def _started(self) -> float:
        return self.deadline - self.timeout_ms / 1000

    def _receipt(self, answer: Command) -> Receipt:
        ext, code = answer.ext, answer.code
        pending = self._pending
        if pending.faults is not None:
            taken_ms = (pending.loop.time() - self._started) * 1000
            pending.faults.answered(self._target.channel.broker, taken_ms)
        # What calling the class does, at half the price.
        return tuple.__new__(
            Receipt,
            (
                self._message_id,
                ext["msgId"],
                self._target.queue,
                int(ext["queueOffset"]),
                _OK if not code else STATUSES[code],
                ext.get("recallHandle"),
                ext.get("transactionId"),
            ),
        )

    def _failed(self, answer: Command | OnelogError) -> FailedTry:
        channel, started = self._target.channel, self._started
        if isinstance(answer, Command):
            assert channel.address is not None
            return self._pending.failed(
                channel,
                self._message_id,
                refusal(channel.address, RequestCode(self.code), answer, SEND_REFUSALS),
                started,
                is_worth_another=answer.code in RETRIED_CODES,
                was_refused=True,
            )
        if isinstance(answer, PeerTimeoutError):
            answer = PeerTimeoutError(f"{channel} did not answer within {self.timeout_ms} ms")
        elif isinstance(answer, PeerClosedError):
            answer = PeerClosedError(f"{channel} closed the connection before it answered")
        again = not isinstance(answer, WireError)
        return self._pending.failed(
            channel, self._message_id, answer, started, is_worth_another=again
        )


def given_up(topic: str, tries: Sequence[FailedTry]) -> OnelogError:
    """One error for all tries; of their type, if all brokers refused alike."""
    reasons = "; ".join(str(each.error) for each in tries)
    kinds = {type(each.error) for each in tries}
    kind = kinds.pop() if len(kinds) == 1 and tries[-1].was_refused else SendFailedError
    return kind(f"no broker took the message to {topic!r} in {len(tries)} tries: {reasons}")
