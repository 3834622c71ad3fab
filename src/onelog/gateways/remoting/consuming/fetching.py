"""Requests that fetch messages: pulls, which are fetches with one cursor, and POP.

A POP request is answered after its lease is in the log. Receipts travel as
`wire.remoting.pop` says, and are believed only where they fit a lease that exists.
"""

import functools
from collections.abc import Sequence
from functools import partial

from onelog.core.access import SELF
from onelog.core.cursors.fetch import Cursor, Limits, Result, allowed
from onelog.core.filters.tags import Subscription, subscribe
from onelog.core.queues.lending import Leased
from onelog.errors import (
    InvalidReceiptError,
    LeaseNotFoundError,
    OnelogError,
)
from onelog.gateways.remoting.names import is_legal_group, usable_group
from onelog.gateways.remoting.session import BrokerSession, Handler, Success
from onelog.store.reader import FetchStatus
from onelog.wire.remoting import fields, pop
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.fields import AS_STORED, BULK_BYTES

COMMIT_FLAG, SUSPEND_FLAG, SUBSCRIPTION_FLAG = 1, 2, 4
SLICES_MAX = 256
SHORT_CHARACTERS_MAX = 512

CODES: dict[FetchStatus, ResponseCode] = {
    FetchStatus.FOUND: ResponseCode.SUCCESS,
    FetchStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    FetchStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    FetchStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    FetchStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    FetchStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    FetchStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    FetchStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    FetchStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY = (FetchStatus.NO_MATCHED_LOGIC_QUEUE, FetchStatus.NO_MESSAGE_IN_QUEUE)


_short = functools.lru_cache(maxsize=4096)(subscribe)
# Each of these may take a megabyte.
_long = functools.lru_cache(maxsize=64)(subscribe)


def _subscription(topic: str, expression: str, kind: str, version: int) -> Subscription:
    remembered = _short if len(topic) + len(expression) <= SHORT_CHARACTERS_MAX else _long
    return remembered(topic, expression, kind, version)


def pull_message(session: BrokerSession, command: Command) -> None:
    ext = command.ext
    broker = session.broker
    config = broker.admin.config
    group, topic = fields.text(ext, "consumerGroup"), fields.text(ext, "topic")
    if not is_legal_group(group):
        usable_group(broker, group)
    queue_id = fields.int32(ext, "queueId")
    flags = fields.int32(ext, "sysFlag")
    version = fields.number(ext, "subVersion")
    if flags & SUBSCRIPTION_FLAG:
        expression = ext.get("subscription", "*")
        subscription = _subscription(topic, expression, ext.get("expressionType", "TAG"), version)
    else:
        subscription = broker.groups.pull_subscription(
            session.principal, group, topic, session, version
        )
    offset = fields.number(ext, "queueOffset")
    limits = allowed(
        config,
        fields.int32(ext, "maxMsgNums"),
        fields.int32(ext, "maxMsgBytes", 0),
        fields.int32(ext, BULK_BYTES, 0),
        AS_STORED in ext and fields.flag(ext, AS_STORED) and subscription.predicate is None,
    )
    wait_ms = 0
    if flags & SUSPEND_FLAG:
        wait_ms = fields.number(ext, "suspendTimeoutMillis")
        if not config.long_poll:
            wait_ms = config.short_poll_ms
    committed = fields.number(ext, "commitOffset")
    if not flags & COMMIT_FLAG:
        committed = -1
    # What calling the class does, at half the price.
    cursor = tuple.__new__(Cursor, (group, topic, queue_id, offset, subscription, committed))
    token = (session, command, offset, limits.unconverted)
    broker.cursors.fetch(session.principal, (cursor,), limits, wait_ms, _fetched, session, token)


def _fetched(token: tuple[BrokerSession, Command, int, bool], results: Sequence[Result]) -> None:
    """Answer a pull that started at some offset."""
    session, command, offset, is_unconverted = token
    result = results[0]
    if isinstance(result, OnelogError):
        session.fail(command, result)
        return
    status, slices = result.status, result.slices
    if slices:
        code, remark = ResponseCode.SUCCESS, "FOUND"
    else:
        code, remark = CODES[status], status.name
        if offset and status in _EMPTY:
            code = ResponseCode.PULL_OFFSET_MOVED
    far_bytes = session.gateway.far_bytes
    suggested = "0"
    if far_bytes is not None:
        group = command.ext["consumerGroup"]
        principal = session.principal
        suggested = str(
            session.broker.cursors.suggested_broker(principal, group, result, far_bytes)
        )
    ext = {
        "suggestWhichBrokerId": suggested,
        "nextBeginOffset": str(result.next_offset),
        "minOffset": str(result.min_offset),
        "maxOffset": str(result.max_offset),
    }
    if is_unconverted:
        ext[AS_STORED] = "true"
    # Messages of a queue that lie apart in the log: one copy costs less than many slices.
    body = slices if len(slices) <= SLICES_MAX else b"".join(slices)
    session.reply(command, code, ext, remark, body)


_DONE = Success()

# -- popping -----------------------------------------------------------------------------------


def pop_message(session: BrokerSession, command: Command) -> None:
    """POP_MESSAGE: lease messages of a queue or of all queues of a topic."""
    ext = command.ext
    topic = fields.text(ext, "topic")
    count_max = fields.int32(ext, "maxMsgNums")
    if not 0 < count_max <= pop.COUNT_MAX:
        session.reply(
            command,
            ResponseCode.INVALID_PARAMETER,
            remark=f"pop message's num is {count_max}, which is not from 1 to {pop.COUNT_MAX}",
        )
        return
    invisible_ms = fields.number(ext, "invisibleTime")
    ordered = fields.flag(ext, "order")
    request = session.gateway.pop.request(
        usable_group(session.broker, fields.text(ext, "consumerGroup")),
        topic,
        fields.int32(ext, "queueId"),
        count_max,
        invisible_ms,
        ordered=ordered,
        subscription=subscribe(topic, ext.get("exp") or "*", ext.get("expType") or "TAG"),
        attempt_id=ext.get("attemptId"),
        from_last=fields.int32(ext, "initMode") == pop.FROM_LAST,
    )
    token = (session, command, invisible_ms, ordered)
    wait_ms = fields.number(ext, "pollTime")
    session.broker.queues.lease(session.principal, request, wait_ms, _popped, session, token)


def _popped(token: tuple[BrokerSession, Command, int, bool], leased: Leased | OnelogError) -> None:
    session, command, invisible_ms, ordered = token
    if isinstance(leased, OnelogError):
        session.fail(command, leased)
        return
    ext = {
        "popTime": str(leased.handle),
        "invisibleTime": str(invisible_ms),
        "reviveQid": str(pop.ORDERED_QUEUE if ordered else 0),
        "restNum": str(leased.left),
    }
    if not leased.parts:
        is_refused = leased.is_refused
        code = ResponseCode.POLLING_FULL if is_refused else ResponseCode.POLLING_TIMEOUT
        session.reply(command, code, ext, "NO_MESSAGE_IN_QUEUE")
        return
    queues = [
        pop.QueueInfo(part.topic, part.queue_id, part.offsets, part.times) for part in leased.parts
    ]
    ext["startOffsetInfo"] = pop.start_offset_info(queues)
    ext["msgOffsetInfo"] = pop.message_offset_info(queues)
    if ordered:
        ext["orderCountInfo"] = pop.order_count_info(queues)
    body = [record for part in leased.parts for record in part.records]
    session.reply(command, ResponseCode.SUCCESS, ext, "FOUND", body)


def peek_message(session: BrokerSession, command: Command) -> None:
    """PEEK_MESSAGE: what the group would be given next, without a lease."""
    ext = command.ext
    broker, principal = session.broker, session.principal
    bytes_max = broker.admin.config.pull_bytes_max
    count_max = max(1, min(fields.int32(ext, "maxMsgNums"), pop.COUNT_MAX))
    group = usable_group(broker, fields.text(ext, "consumerGroup"))
    topic, queue_id = fields.text(ext, "topic"), fields.int32(ext, "queueId")
    request = session.gateway.pop.request(group, topic, queue_id, count_max)
    cursors, left = broker.queues.unread(principal, request)
    limits = Limits(count_max, bytes_max, bytes_max)
    # That they may have these, was asked already; the group's retry topic is among them.
    broker.cursors.fetch(SELF, cursors, limits, 0, _peeked, session, (session, command, left))


def _peeked(token: tuple[BrokerSession, Command, int], results: Sequence[Result]) -> None:
    session, command, left = token
    records: list[memoryview] = []
    failed: OnelogError | None = None
    for result in results:
        if isinstance(result, OnelogError):
            failed = result
        else:
            records += result.slices
    if failed is not None and not records:
        session.fail(command, failed)
        return
    session.reply(
        command,
        ResponseCode.SUCCESS if records else ResponseCode.PULL_NOT_FOUND,
        {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": str(left)},
        "FOUND" if records else "NO_MESSAGE_IN_QUEUE",
        records,
    )


# -- notifications -----------------------------------------------------------------------------


def notification(session: BrokerSession, command: Command) -> None:
    """NOTIFICATION: is there anything to pop, and if not, answer when there is."""
    ext = command.ext
    request = session.gateway.pop.request(
        usable_group(session.broker, fields.text(ext, "consumerGroup")),
        fields.text(ext, "topic"),
        fields.int32(ext, "queueId"),
        0,
        ordered=fields.flag(ext, "order"),
        attempt_id=ext.get("attemptId"),
    )
    wait_ms = fields.number(ext, "pollTime")
    principal, token = session.principal, (session, command)
    session.broker.queues.lease(principal, request, wait_ms, _notified, session, token)


def _notified(token: tuple[BrokerSession, Command], leased: Leased | OnelogError) -> None:
    session, command = token
    if isinstance(leased, OnelogError):
        session.fail(command, leased)
        return
    ext = {
        "hasMsg": "true" if leased.left else "false",
        "pollingFull": "true" if leased.is_refused else "false",
    }
    session.reply(command, ResponseCode.SUCCESS, ext)


def polling_info(session: BrokerSession, command: Command) -> Success:
    """POLLING_INFO: how many requests are held for a queue."""
    ext = command.ext
    group, topic = fields.text(ext, "consumerGroup"), fields.text(ext, "topic")
    queue_id = fields.int32(ext, "queueId")
    usable_group(session.broker, group)
    held = session.broker.queues.held(session.principal, group, topic, queue_id)
    session.gateway.pop.admit(group, topic, queue_id)
    return Success({"pollingNum": str(held)})


# -- acknowledging -----------------------------------------------------------------------------


def ack_message(session: BrokerSession, command: Command) -> None:
    """ACK_MESSAGE: one message is done."""
    group, topic, queue_id, receipt, offset = _shown(session, command)
    queues, principal = session.broker.queues, session.principal
    try:
        queues.acknowledge(principal, group, topic, queue_id, offset, receipt.popped_ms)
    except OnelogError:
        _check_queue(session, group, topic, queue_id)  # It says more, if that is what is wrong.
        raise
    queues.when_leases_safe(partial(session.conclude, command, _DONE))


def _shown(session: BrokerSession, command: Command) -> pop.Shown:
    """The message that a request is about; they may consume it, if they have leased it."""
    ext = command.ext
    if not session.broker.users.is_open:
        group, topic = fields.text(ext, "consumerGroup"), fields.text(ext, "topic")
        _check_queue(session, group, topic, fields.int32(ext, "queueId"))
    return pop.decode_shown(ext, session.broker.admin.config.name)


def _check_queue(session: BrokerSession, group: str, topic: str, queue_id: int) -> None:
    config = session.broker.topics.consumed(session.principal, group, topic)
    if not 0 <= queue_id < config.read_queues:
        raise InvalidReceiptError(
            f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
            f"[{config.read_queues}]"
        )


def batch_ack(session: BrokerSession, command: Command) -> None:
    """BATCH_ACK_MESSAGE: those messages are done that are still out under their receipts."""
    acks = pop.decode_batch(command.body) if command.body else []
    done = sum(_acknowledge(session, ack) for ack in acks)
    wanted = sum(len(ack.offsets) for ack in acks)
    if not done:
        raise LeaseNotFoundError(f"none of {wanted} messages is out under its receipt")
    remark = None if done == wanted else f"{wanted - done} of {wanted} messages were not out"
    answer = Success(remark=remark)
    session.broker.queues.when_leases_safe(partial(session.conclude, command, answer))


def _acknowledge(session: BrokerSession, ack: pop.BatchAck) -> int:
    topic = pop.real_topic(ack.topic, ack.group, ack.retry)
    return session.broker.queues.acknowledge_some(
        session.principal, ack.group, topic, ack.queue_id, ack.offsets, ack.popped_ms
    )


def change_invisible_time(session: BrokerSession, command: Command) -> None:
    """CHANGE_MESSAGE_INVISIBLETIME: a message is to come back at another time than agreed."""
    group, topic, queue_id, receipt, offset = _shown(session, command)
    _check_queue(session, group, topic, queue_id)
    invisible_ms = fields.number(command.ext, "invisibleTime")
    popped_ms = session.broker.queues.extend(
        session.principal, group, topic, queue_id, offset, receipt.popped_ms, invisible_ms
    )
    now_ms = session.gateway.clock.now_ms()
    extended = receipt.extended(offset, popped_ms, invisible_ms, now_ms)
    answer = Success(
        {
            "popTime": str(extended.popped_ms),
            "invisibleTime": str(extended.invisible_ms),
            "reviveQid": str(extended.revive_queue),
        }
    )
    session.broker.queues.when_leases_safe(partial(session.conclude, command, answer))


HANDLERS: dict[int, Handler] = {
    RequestCode.PULL_MESSAGE: pull_message,
    RequestCode.LITE_PULL_MESSAGE: pull_message,
    RequestCode.POP_MESSAGE: pop_message,
    RequestCode.PEEK_MESSAGE: peek_message,
    RequestCode.NOTIFICATION: notification,
    RequestCode.POLLING_INFO: polling_info,
    RequestCode.ACK_MESSAGE: ack_message,
    RequestCode.BATCH_ACK_MESSAGE: batch_ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: change_invisible_time,
}
