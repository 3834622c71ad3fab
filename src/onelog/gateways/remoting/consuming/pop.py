"""POP: messages by lease, acknowledged one by one or in batches, with long polling (facts 2.4).

A request that finds nothing is held, and looked at again whenever something may be there for it;
what it gets is told only after the lease is in the log. Receipts travel as `wire.remoting.pop`
says, and are believed only where they fit a lease that exists.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from onelog.core.durable.waiting import Wait
from onelog.core.filters.tags import subscribe
from onelog.core.leases.pop import Popped, PopRequest
from onelog.core.leases.queue import Fate
from onelog.core.leases.supply import Terms
from onelog.errors import (
    FlushTimeoutError,
    InvalidReceiptError,
    LeaseNotFoundError,
    OnelogError,
)
from onelog.gateways.remoting.session import Answer, BrokerSession, Handler
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.pop import (
    ORDERED_QUEUE,
    BatchAck,
    QueueInfo,
    Receipt,
    decode_batch,
    message_offset_info,
    order_count_info,
    parse_receipt,
    real_topic,
    retry_mark,
    start_offset_info,
)

COUNT_MAX = 32
FROM_LAST = 1
"""The init mode of a group that wants to start at the newest message."""


def _read_elsewhere(
    session: BrokerSession, cold: Sequence[tuple[int, int]], then: Callable[[], None]
) -> None:
    session.gateway.offload(lambda: session.broker.reader.warm(cold), then)


@dataclass(frozen=True, slots=True)
class Held:
    """A request that is held while it finds nothing."""

    session: BrokerSession
    command: Command
    request: PopRequest
    deadline_ms: int

    def hold(self, woken: Callable[[Wait, bool], None]) -> ResponseCode | None:
        """Hold it until its time is up; else the code that says why it cannot be held."""
        left_ms = self.deadline_ms - self.session.gateway.clock.now_ms()
        if left_ms <= 0:
            return ResponseCode.POLLING_TIMEOUT
        wait = self.session.broker.pop.hold(self.request, left_ms, woken, self.session)
        return ResponseCode.POLLING_FULL if wait is None else None


# -- popping -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PopPoll(Held):
    """One request to pop."""

    def run(self, *, last: bool = False, cold_ok: bool = False) -> None:
        """Look for messages, and answer or hold."""
        popped = self.session.broker.pop.pop(self.request, cold_ok=cold_ok)
        code: ResponseCode | None
        if popped.parts:
            self.session.broker.leases.when_recorded(partial(self._answer_found, popped))
            return
        if popped.cold:
            again = partial(self._again, last=last, cold_ok=True)
            _read_elsewhere(self.session, popped.cold, again)
            return
        if popped.later:
            turn = partial(self._again, last=last, cold_ok=cold_ok)
            self.session.broker.filter_time.later(turn)
            return
        if last or popped.more:
            code = ResponseCode.POLLING_TIMEOUT
        else:
            code = self.hold(lambda _, timed_out: self._again(last=timed_out))
        if code is not None:
            self.session.reply(self.command, code, self._ext(popped), "NO_MESSAGE_IN_QUEUE")

    def _again(self, *, last: bool, cold_ok: bool = False) -> None:
        if self.session.connection.closing:
            return
        try:
            self.run(last=last, cold_ok=cold_ok)
        except OnelogError as error:
            self.session.fail(self.command, error)

    def _answer_found(self, popped: Popped, error: OnelogError | None) -> None:
        if error is not None:
            self.session.fail(self.command, error)
            return
        ext = self._ext(popped)
        queues = [
            QueueInfo(part.topic, part.queue_id, part.offsets, part.times) for part in popped.parts
        ]
        ext["startOffsetInfo"] = start_offset_info(queues)
        ext["msgOffsetInfo"] = message_offset_info(queues)
        if self.request.ordered:
            ext["orderCountInfo"] = order_count_info(queues)
        body = [record for part in popped.parts for record in part.records]
        self.session.reply(self.command, ResponseCode.SUCCESS, ext, "FOUND", body)

    def _ext(self, popped: Popped) -> dict[str, str]:
        return {
            "popTime": str(popped.stamp),
            "invisibleTime": str(self.request.terms.invisible_ms),
            "reviveQid": str(ORDERED_QUEUE if self.request.ordered else 0),
            "restNum": str(popped.rest),
        }


def pop_message(session: BrokerSession, command: Command) -> None:
    """POP_MESSAGE: lease messages of a queue or of all queues of a topic."""
    ext = command.ext
    topic = fields.text(ext, "topic")
    count_max = fields.int32(ext, "maxMsgNums")
    if not 0 < count_max <= COUNT_MAX:
        session.reply(
            command,
            ResponseCode.INVALID_PARAMETER,
            remark=f"pop message's num is {count_max}, which is not from 1 to {COUNT_MAX}",
        )
        return
    terms = Terms(
        fields.number(ext, "invisibleTime"),
        Fate.ORDERED if fields.flag(ext, "order") else Fate.RETRY,
        subscribe(topic, ext.get("exp") or "*", ext.get("expType") or "TAG"),
        ext.get("attemptId"),
        fields.int32(ext, "initMode") == FROM_LAST,
    )
    group, queue_id = fields.text(ext, "consumerGroup"), fields.int32(ext, "queueId")
    request = PopRequest(group, topic, queue_id, count_max, terms)
    PopPoll(session, command, request, _deadline(session, command)).run()


def _deadline(session: BrokerSession, command: Command) -> int:
    """Until when to hold a request. By our own clock: the client's may be anything."""
    return session.gateway.clock.now_ms() + max(0, fields.number(command.ext, "pollTime"))


def peek_message(session: BrokerSession, command: Command, *, cold_ok: bool = False) -> None:
    """PEEK_MESSAGE: what the group would be given next, without a lease."""
    ext = command.ext
    request = PopRequest(
        fields.text(ext, "consumerGroup"),
        fields.text(ext, "topic"),
        fields.int32(ext, "queueId"),
        max(1, min(fields.int32(ext, "maxMsgNums"), COUNT_MAX)),
        Terms(0),
    )
    peeked = session.broker.pop.peek(request, cold_ok=cold_ok)
    if peeked.cold:
        _read_elsewhere(session, peeked.cold, partial(_peek_again, session, command))
        return
    found = bool(peeked.records)
    session.reply(
        command,
        ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND,
        {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": str(peeked.rest)},
        "FOUND" if found else "NO_MESSAGE_IN_QUEUE",
        list(peeked.records),
    )


def _peek_again(session: BrokerSession, command: Command) -> None:
    try:
        peek_message(session, command, cold_ok=True)
    except OnelogError as error:
        session.fail(command, error)


# -- notifications -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NotificationPoll(Held):
    """One request to be told when there is something to pop."""

    def run(self, *, last: bool = False) -> None:
        """Look, and answer or hold."""
        found = self.session.broker.pop.has_messages(self.request)
        code = None
        if not found and not last:
            code = self.hold(self._woken)
            if code is None:
                return
        ext = {
            "hasMsg": "true" if found else "false",
            "pollingFull": "true" if code is ResponseCode.POLLING_FULL else "false",
        }
        self.session.reply(self.command, ResponseCode.SUCCESS, ext)

    def _woken(self, _: Wait, timed_out: bool) -> None:
        try:
            self.run(last=timed_out)
        except OnelogError as error:
            self.session.fail(self.command, error)


def notification(session: BrokerSession, command: Command) -> None:
    """NOTIFICATION: is there anything to pop, and if not, tell me when there is."""
    ext = command.ext
    ordered = fields.flag(ext, "order")
    terms = Terms(0, Fate.ORDERED if ordered else Fate.RETRY, attempt_id=ext.get("attemptId"))
    request = PopRequest(
        fields.text(ext, "consumerGroup"),
        fields.text(ext, "topic"),
        fields.int32(ext, "queueId"),
        1,
        terms,
    )
    NotificationPoll(session, command, request, _deadline(session, command)).run()


def polling_info(session: BrokerSession, command: Command) -> Answer:
    """POLLING_INFO: how many requests are held for a queue."""
    ext = command.ext
    group, topic = fields.text(ext, "consumerGroup"), fields.text(ext, "topic")
    queue_id = fields.int32(ext, "queueId")
    session.broker.pop.admit(group, topic, queue_id)
    return Answer({"pollingNum": str(session.broker.pop.held(group, topic, queue_id))})


# -- acknowledging -----------------------------------------------------------------------------


def ack_message(session: BrokerSession, command: Command) -> None:
    """ACK_MESSAGE: one message is done."""
    ext = command.ext
    group, topic = fields.text(ext, "consumerGroup"), fields.text(ext, "topic")
    receipt, offset = _receipt(session, command, topic)
    broker = session.broker
    broker.leases.acknowledge(group, topic, receipt.queue_id, offset, receipt.popped_ms)
    broker.pop.when_safe(partial(_tell, session, command, Answer()))


def _tell(
    session: BrokerSession, command: Command, answer: Answer, error: OnelogError | None
) -> None:
    # A slow disk takes nothing back: the message is done, as after a send that was too late.
    if error is None or isinstance(error, FlushTimeoutError):
        session.answer(command, answer)
    else:
        session.fail(command, error)


def _receipt(session: BrokerSession, command: Command, topic: str) -> tuple[Receipt, int]:
    """The receipt in a request, and the offset it is for; they must fit the rest of the request."""
    ext = command.ext
    queue_id = fields.int32(ext, "queueId")
    _check_queue(session, topic, queue_id)
    receipt = parse_receipt(fields.text(ext, "extraInfo"))
    offset = fields.number(ext, "offset")
    if (
        receipt.queue_id != queue_id
        or receipt.offset not in (None, offset)
        or receipt.retry != retry_mark(topic)
        or receipt.broker != session.broker.config.name
    ):
        raise InvalidReceiptError(f"the receipt {receipt} was given for another message")
    return receipt, offset


def _check_queue(session: BrokerSession, topic: str, queue_id: int) -> None:
    config = session.broker.topics.require(topic)
    if not 0 <= queue_id < config.read_queues:
        raise InvalidReceiptError(
            f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
            f"[{config.read_queues}]"
        )


def batch_ack(session: BrokerSession, command: Command) -> None:
    """BATCH_ACK_MESSAGE: those messages are done that are still out under their receipts."""
    acks = decode_batch(command.body) if command.body else []
    done = sum(_acknowledge(session, ack) for ack in acks)
    wanted = sum(len(ack.offsets) for ack in acks)
    if not done:
        raise LeaseNotFoundError(f"none of {wanted} messages is out under its receipt")
    remark = None if done == wanted else f"{wanted - done} of {wanted} messages were not out"
    answer = Answer(remark=remark)
    session.broker.pop.when_safe(partial(_tell, session, command, answer))


def _acknowledge(session: BrokerSession, ack: BatchAck) -> int:
    topic = real_topic(ack.topic, ack.group, ack.retry)
    return session.broker.leases.acknowledge_some(
        ack.group, topic, ack.queue_id, ack.offsets, ack.popped_ms
    )


def change_invisible_time(session: BrokerSession, command: Command) -> None:
    """CHANGE_MESSAGE_INVISIBLETIME: a message is to come back at another time than agreed."""
    ext = command.ext
    group, topic = fields.text(ext, "consumerGroup"), fields.text(ext, "topic")
    receipt, offset = _receipt(session, command, topic)
    invisible_ms = fields.number(ext, "invisibleTime")
    popped_ms = session.broker.leases.change(
        group, topic, receipt.queue_id, offset, receipt.popped_ms, invisible_ms
    )
    if receipt.revive_queue == ORDERED_QUEUE:
        # Its pop time stays, so the time that it is invisible counts from there.
        invisible_ms += session.gateway.clock.now_ms() - popped_ms
    answer = Answer(
        {
            "popTime": str(popped_ms),
            "invisibleTime": str(invisible_ms),
            "reviveQid": str(receipt.revive_queue),
        }
    )
    session.broker.pop.when_safe(partial(_tell, session, command, answer))


HANDLERS: dict[int, Handler] = {
    RequestCode.POP_MESSAGE: pop_message,
    RequestCode.PEEK_MESSAGE: peek_message,
    RequestCode.NOTIFICATION: notification,
    RequestCode.POLLING_INFO: polling_info,
    RequestCode.ACK_MESSAGE: ack_message,
    RequestCode.BATCH_ACK_MESSAGE: batch_ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: change_invisible_time,
}
