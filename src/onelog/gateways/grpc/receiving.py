"""Consumers: messages by lease, as POP has them, and what becomes of each; and pulls by offset.

Receipts are those of POP, with the place in the log behind them, as RocketMQ's proxy makes them: a
group may have consumers of both protocols.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from onelog.core.access import SELF
from onelog.core.cursors.fetch import Cursor, Result, allowed
from onelog.core.durable.waiting import ANY_QUEUE
from onelog.core.filters.tags import Subscription
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.core.queues.leases import LeasedPart
from onelog.core.queues.lending import Leased
from onelog.errors import OnelogError
from onelog.gateways import RefusedError
from onelog.gateways.grpc import lite_topics
from onelog.gateways.grpc.answers import OK, overall, status_of
from onelog.gateways.grpc.checks import group_name, milliseconds, subscription_of, topic_name
from onelog.gateways.grpc.clients import GrpcClient
from onelog.gateways.grpc.delivered import as_message, encoded
from onelog.gateways.grpc.renewal import RenewedLease
from onelog.gateways.grpc.session import Call
from onelog.message import decode_properties
from onelog.record.decode import decode_messages
from onelog.record.inner_batch import unwrapped
from onelog.rocketmq import lite
from onelog.store.reader import FetchStatus
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import Code, QueryOffsetPolicy
from onelog.wire.grpc.fields import field, number, text, time
from onelog.wire.remoting.pop import (
    COUNT_MAX,
    ORDERED_QUEUE,
    parse_receipt,
    real_topic,
    retry_mark,
)

INVISIBLE_MS_MAX = 12 * 3_600_000
ACKS_MAX = 4_096
_OK = OK.SerializeToString()
_FOUND = field(b"\x0a", _OK)
_DONE = field(b"\x1a", _OK)
_FIRST_WITH_POLLING_CODE = "5.0.3"


class _ReceiveRequest(NamedTuple):
    """What a receive asked for."""

    call: Call
    group: str
    topic: str
    invisible_ms: int
    ordered: bool
    renewed_by: GrpcClient | None
    subscription: Subscription


# -- receiving ---------------------------------------------------------------------------------


def receive_message(call: Call, request: Any) -> None:
    gateway = call.gateway
    broker = gateway.broker
    wait_ms = _wait_ms(call, request)
    topic = topic_name(broker, request.message_queue.topic)
    group = group_name(request.group)
    client = gateway.clients.find(call)
    invisible_ms = milliseconds(request.invisible_duration)
    renewed = client if request.auto_renew else None
    if request.auto_renew:
        invisible_ms = gateway.settings.invisible_ms
    else:
        check_invisible(invisible_ms, gateway.settings.invisible_min_ms)
    subscription = subscription_of(topic, request.filter_expression)
    ordered = broker.groups.require(call.principal, group).consume_message_orderly
    count = max(1, min(request.batch_size, COUNT_MAX))
    attempt_id = request.attempt_id if request.HasField("attempt_id") else None
    wanted: LeaseRequest
    if client is not None and client.is_lite:
        wanted = lite_topics.request(gateway, client, group, topic, count, invisible_ms)
    else:
        queue_id = request.message_queue.id if ordered else ANY_QUEUE
        wanted = gateway.pop.request(
            group,
            topic,
            max(ANY_QUEUE, queue_id),
            count,
            invisible_ms,
            ordered=ordered,
            subscription=subscription,
            attempt_id=attempt_id,
            from_last=True,
        )
    waiting = _ReceiveRequest(call, group, topic, invisible_ms, ordered, renewed, subscription)
    call.ended = partial(_forget, call, client)
    if client is not None and client.is_lite:
        client.receiving.add(call)
    broker.queues.lease(call.principal, wanted, wait_ms, _leased, call, waiting)


def _forget(call: Call, client: GrpcClient | None) -> None:
    call.gateway.broker.groups.channel_closed(call)
    if client is not None:
        client.receiving.discard(call)


def _wait_ms(call: Call, request: Any) -> int:
    settings = call.gateway.settings
    remaining_ms = call.remaining_ms
    if request.HasField("long_polling_timeout"):
        wait_ms = milliseconds(request.long_polling_timeout)
    else:
        wait_ms = settings.poll_max_ms if remaining_ms is None else remaining_ms - 1_500
    wait_ms = min(max(wait_ms, settings.poll_min_ms), settings.poll_max_ms)
    if remaining_ms is None or wait_ms <= remaining_ms:
        return wait_ms
    if remaining_ms >= settings.poll_min_ms:
        return remaining_ms
    version = call.header(b"x-mq-client-version")
    is_old = version < _FIRST_WITH_POLLING_CODE
    raise RefusedError(
        Code.BAD_REQUEST if is_old else Code.ILLEGAL_POLLING_TIME,
        "The deadline time remaining is not enough for polling, please check network condition",
    )


def check_invisible(invisible_ms: int, least_ms: int) -> None:
    """`RefusedError` unless a message may be invisible for so long."""
    if invisible_ms < least_ms:
        text = f"the invisibleTime is too small. min is {least_ms}"
    elif invisible_ms > INVISIBLE_MS_MAX:
        text = f"the invisibleTime is too large. max is {INVISIBLE_MS_MAX}"
    else:
        return
    raise RefusedError(Code.ILLEGAL_INVISIBLE_TIME, text)


def answer_receive(call: Call, status: Any) -> None:
    """The answer of a receive that has no messages."""
    status_field = field(b"\x0a", status.SerializeToString())
    call.stream.answer_all([status_field, time(b"\x1a", call.gateway.clock.now_ms())])


def _leased(waiting: _ReceiveRequest, leased: Leased | OnelogError) -> None:
    call = waiting.call
    if isinstance(leased, OnelogError):
        call.fail(leased)
    elif leased.parts:
        if call.is_over:
            _give_back(waiting, leased)
        else:
            _deliver(waiting, leased)
    elif leased.is_refused:
        call.answer_status(messages.Status(code=Code.TOO_MANY_REQUESTS, message="polling full"))
    else:
        call.answer_status(messages.Status(code=Code.MESSAGE_NOT_FOUND, message="no new message"))


def _give_back(waiting: _ReceiveRequest, leased: Leased) -> None:
    """Nobody listens: others may have it."""
    broker = waiting.call.gateway.broker
    for part in leased.parts:
        for offset in part.offsets:
            broker.queues.release(
                SELF, waiting.group, part.topic, part.queue_id, offset, leased.handle
            )


def _deliver(waiting: _ReceiveRequest, leased: Leased) -> None:
    call = waiting.call
    answers = [_FOUND]
    kept: list[tuple[str, RenewedLease]] = []
    for part in leased.parts:
        _add_part(waiting, part, leased.handle, answers, kept)
    if len(answers) == 1:
        call.answer_status(messages.Status(code=Code.MESSAGE_NOT_FOUND, message="no match message"))
        return
    if waiting.renewed_by is not None:
        call.gateway.renewal.keep(waiting.renewed_by.leases, kept, waiting.invisible_ms)
    answers.append(time(b"\x1a", call.gateway.clock.now_ms()))
    call.stream.answer_all(answers)


def _add_part(
    waiting: _ReceiveRequest,
    part: LeasedPart,
    handle: int,
    answers: list[bytes],
    kept: list[tuple[str, RenewedLease]],
) -> None:
    """Add the messages of one queue to an answer."""
    broker = waiting.call.gateway.broker
    group, topic, queue_id = waiting.group, part.topic, part.queue_id
    revive = ORDERED_QUEUE if waiting.ordered else 0
    beginning = f"{part.offsets[0]} {handle} {waiting.invisible_ms} {revive} {retry_mark(topic)} "
    beginning += f"{broker.admin.config.name} {queue_id} "
    tags = waiting.subscription.tags
    where = number(b"\x68", queue_id) + time(b"\x7a", waiting.invisible_ms)
    # Records that lie side by side are one piece.
    found = unwrapped([each for piece in part.records for each in decode_messages(piece)])
    for message, offset, times in zip(found, part.offsets, part.times, strict=False):
        properties = decode_properties(message.properties)
        if tags and properties.get("TAGS") not in tags:
            # Its tag has the hash of one that is wanted.
            broker.queues.acknowledge_some(SELF, group, topic, queue_id, (offset,), handle)
            continue
        attempt = message.reconsume_times + 1
        if waiting.ordered:
            attempt = max(attempt, times + 1)
        receipt = f"{beginning}{offset} {message.log_offset}"
        rest = where + number(b"\x70", offset) + text(b"\x62", receipt)
        answers.append(field(b"\x12", encoded(message, properties, waiting.topic, attempt, rest)))
        kept.append((receipt, RenewedLease(group, topic, queue_id, offset, handle)))


# -- what becomes of messages ------------------------------------------------------------------


def _held(call: Call, group: str, topic: str, text: str, lite_topic: str = "") -> RenewedLease:
    """The lease that a receipt stands for, which the broker may have renewed since."""
    client = call.gateway.clients.find(call)
    if client is not None:
        kept = client.leases.pop(text, None)
        if kept is not None:
            return kept
    receipt = parse_receipt(text)
    if receipt.offset is None or receipt.broker != call.gateway.broker.admin.config.name:
        raise RefusedError(Code.INVALID_RECEIPT_HANDLE, f"the receipt {receipt} is not of here")
    if lite_topic:
        queue_name = lite.queue_name(topic, lite_topic)
    else:
        queue_name = real_topic(topic, group, receipt.retry)
    return RenewedLease(group, queue_name, receipt.queue_id, receipt.offset, receipt.popped_ms)


def ack_message(call: Call, request: Any) -> None:
    """AckMessage: each of these is done."""
    broker = call.gateway.broker
    topic, group = topic_name(broker, request.topic), group_name(request.group)
    if not request.entries:
        raise RefusedError(Code.INTERNAL_SERVER_ERROR, "ack message result is empty")
    if len(request.entries) > ACKS_MAX:
        raise RefusedError(Code.PAYLOAD_TOO_LARGE, f"more than {ACKS_MAX} acknowledgements")
    statuses: dict[int, bytes] = {}
    entries = []
    for each in request.entries:
        status_field = _DONE
        receipt = each.receipt_handle
        try:
            broker.queues.acknowledge(
                call.principal, *_held(call, group, topic, receipt, each.lite_topic)
            )
            statuses[Code.OK] = _OK
        except OnelogError as error:
            status = status_of(error)
            said = status.SerializeToString()
            statuses.setdefault(status.code, said)
            status_field = field(b"\x1a", said)
        entry = text(b"\x0a", each.message_id) + text(b"\x12", receipt) + status_field
        entries.append(field(b"\x12", entry))
    answer = field(b"\x0a", overall(statuses)) + b"".join(entries)
    broker.queues.when_leases_safe(partial(_conclude, call, answer))


def _conclude(call: Call, answer: bytes, error: OnelogError | None) -> None:
    if error is None:
        call.stream.answer(answer)
    else:
        call.conclude(error)


def change_invisible(call: Call, request: Any) -> None:
    """ChangeInvisibleDuration: the message is to come again at another time."""
    gateway = call.gateway
    broker = gateway.broker
    topic, group = topic_name(broker, request.topic), group_name(request.group)
    invisible_ms = milliseconds(request.invisible_duration)
    check_invisible(invisible_ms, 0)
    text: str = request.receipt_handle
    receipt = parse_receipt(text)
    kept = _held(call, group, topic, text, request.lite_topic)
    answer = messages.ChangeInvisibleDurationResponse(status=OK, receipt_handle=text)
    if request.suspend:
        # It comes again as if it had not been tried.
        broker.queues.release(call.principal, *kept, after_ms=invisible_ms)
    else:
        handle = broker.queues.extend(call.principal, *kept, invisible_ms)
        assert receipt.offset is not None
        now_ms = gateway.clock.now_ms()
        changed = receipt.extended(receipt.offset, handle, invisible_ms, now_ms)
        answer.receipt_handle = " ".join((str(changed), *text.split(" ")[8:]))
    broker.queues.when_leases_safe(partial(_conclude, call, answer.SerializeToString()))


def to_dead_letters(call: Call, request: Any) -> None:
    """ForwardMessageToDeadLetterQueue: the message is useless."""
    broker = call.gateway.broker
    topic, group = topic_name(broker, request.topic), group_name(request.group)
    kept = _held(call, group, topic, request.receipt_handle, request.lite_topic)
    broker.queues.reject(call.principal, *kept)
    broker.queues.when_leases_safe(call.conclude)


_ILLEGAL = (FetchStatus.OFFSET_OVERFLOW_BADLY, FetchStatus.OFFSET_TOO_SMALL)


# -- by offset ---------------------------------------------------------------------------------


def pull_message(call: Call, request: Any) -> None:
    broker = call.gateway.broker
    queue = request.message_queue
    topic, group = topic_name(broker, queue.topic), group_name(request.group)
    subscription = subscription_of(topic, request.filter_expression)
    if request.offset < 0:
        raise RefusedError(Code.ILLEGAL_OFFSET, f"an offset is 0 or more, not {request.offset}")
    limits = allowed(broker.admin.config, max(1, request.batch_size), 0, 0)
    wait_ms = min(milliseconds(request.long_polling_timeout), call.gateway.settings.poll_max_ms)
    cursor = Cursor(group, topic, queue.id, request.offset, subscription, -1)
    call.ended = lambda: broker.groups.channel_closed(call)
    broker.cursors.fetch(
        call.principal, (cursor,), limits, wait_ms, _fetched, call, (call, topic, queue.id)
    )


def _fetched(token: tuple[Call, str, int], results: Sequence[Result]) -> None:
    call, topic, _ = token
    result = results[0]
    if isinstance(result, OnelogError):
        call.fail(result)
        return
    answers: list[Any] = []
    if result.slices:
        answers.append(messages.PullMessageResponse(status=OK))
        for piece in result.slices:
            answers += [
                messages.PullMessageResponse(message=as_message(each, topic))
                for each in unwrapped(list(decode_messages(piece)))
            ]
    else:
        is_illegal = result.status in _ILLEGAL
        code = Code.ILLEGAL_OFFSET if is_illegal else Code.MESSAGE_NOT_FOUND
        status = messages.Status(code=code, message=result.status.name)
        answers.append(messages.PullMessageResponse(status=status))
    answers.append(messages.PullMessageResponse(next_offset=result.next_offset))
    call.stream.answer_all([each.SerializeToString() for each in answers])


def answer_pull(call: Call, status: Any) -> None:
    """The answer of a pull that went wrong."""
    call.answer(messages.PullMessageResponse(status=status))


def update_offset(call: Call, request: Any) -> Any:
    broker = call.gateway.broker
    queue = request.message_queue
    topic, group = topic_name(broker, queue.topic), group_name(request.group)
    broker.groups.require(call.principal, group)
    broker.cursors.commit(call.principal, group, topic, queue.id, request.offset)
    return messages.UpdateOffsetResponse(status=OK)


def get_offset(call: Call, request: Any) -> Any:
    broker = call.gateway.broker
    queue = request.message_queue
    topic, group = topic_name(broker, queue.topic), group_name(request.group)
    broker.topics.require(call.principal, topic)
    offset = broker.cursors.query(call.principal, group, topic, queue.id, zero_if_missing=False)
    if offset is None:
        raise RefusedError(
            Code.OFFSET_NOT_FOUND, f"group {group} was never in queue {queue.id} of {topic}"
        )
    return messages.GetOffsetResponse(status=OK, offset=offset)


def query_offset(call: Call, request: Any) -> Any:
    broker, principal = call.gateway.broker, call.principal
    queue = request.message_queue
    topic = topic_name(broker, queue.topic)
    config = broker.topics.require(principal, topic)
    if not 0 <= queue.id < config.queues:
        raise RefusedError(Code.BAD_REQUEST, f"topic {topic} has no queue {queue.id}")

    def answer_of(offset: int) -> Any:
        return messages.QueryOffsetResponse(status=OK, offset=offset)

    policy = request.query_offset_policy
    if policy == QueryOffsetPolicy.BEGINNING:
        return answer_of(broker.topics.min_offset(principal, topic, queue.id))
    if policy == QueryOffsetPolicy.END:
        return answer_of(broker.topics.max_offset(principal, topic, queue.id))
    if policy != QueryOffsetPolicy.TIMESTAMP:
        raise RefusedError(Code.BAD_REQUEST, f"there is no policy {policy}")
    if not request.HasField("timestamp"):
        raise RefusedError(Code.BAD_REQUEST, "the policy TIMESTAMP needs a timestamp")
    time_ms = milliseconds(request.timestamp)
    call.look_up(
        lambda: broker.topics.offset_by_time(principal, topic, queue.id, time_ms), answer_of
    )
    return None
