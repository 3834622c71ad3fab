"""Consumers that keep offsets: pulls, and questions about offsets."""

from collections.abc import Sequence
from typing import Any

from onelog.core.cursors.fetch import Cursor, Result, allowed
from onelog.errors import OnelogError
from onelog.gateways.grpc.answers import OK, RefusedError
from onelog.gateways.grpc.checks import group_name, milliseconds, topic_name
from onelog.gateways.grpc.delivered import as_message
from onelog.gateways.grpc.receiving import subscription_of
from onelog.gateways.grpc.session import Call
from onelog.record.decode import decode_messages
from onelog.record.inner_batch import unwrapped
from onelog.store.reader import FetchStatus
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import Code, QueryOffsetPolicy

_ILLEGAL = (FetchStatus.OFFSET_OVERFLOW_BADLY, FetchStatus.OFFSET_TOO_SMALL)


def pull_message(call: Call, request: Any) -> None:
    broker = call.gateway.broker
    queue = request.message_queue
    topic, group = topic_name(broker, queue.topic), group_name(request.group)
    subscription = subscription_of(topic, request.filter_expression)
    if request.offset < 0:
        raise RefusedError(Code.ILLEGAL_OFFSET, f"an offset is 0 or more, not {request.offset}")
    limits = allowed(broker.config, max(1, request.batch_size), 0, 0)
    wait_ms = min(milliseconds(request.long_polling_timeout), call.gateway.settings.poll_max_ms)
    cursor = Cursor(group, topic, queue.id, request.offset, subscription, -1)
    call.ended = lambda: broker.channel_closed(call)
    broker.fetch(
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


def tell_puller(call: Call, status: Any) -> None:
    """The answer of a pull that went wrong."""
    call.answer(messages.PullMessageResponse(status=status))


def update_offset(call: Call, request: Any) -> Any:
    broker = call.gateway.broker
    queue = request.message_queue
    topic, group = topic_name(broker, queue.topic), group_name(request.group)
    broker.group(call.principal, group)
    broker.commit_offset(call.principal, group, topic, queue.id, request.offset)
    return messages.UpdateOffsetResponse(status=OK)


def get_offset(call: Call, request: Any) -> Any:
    broker = call.gateway.broker
    queue = request.message_queue
    topic, group = topic_name(broker, queue.topic), group_name(request.group)
    broker.topic(call.principal, topic)
    offset = broker.query_offset(call.principal, group, topic, queue.id, zero_if_missing=False)
    if offset is None:
        raise RefusedError(
            Code.OFFSET_NOT_FOUND, f"group {group} was never in queue {queue.id} of {topic}"
        )
    return messages.GetOffsetResponse(status=OK, offset=offset)


def query_offset(call: Call, request: Any) -> Any:
    broker, principal = call.gateway.broker, call.principal
    queue = request.message_queue
    topic = topic_name(broker, queue.topic)
    config = broker.topic(principal, topic)
    if not 0 <= queue.id < config.queues:
        raise RefusedError(Code.BAD_REQUEST, f"topic {topic} has no queue {queue.id}")

    def answer_of(offset: int) -> Any:
        return messages.QueryOffsetResponse(status=OK, offset=offset)

    policy = request.query_offset_policy
    if policy == QueryOffsetPolicy.BEGINNING:
        return answer_of(broker.min_offset(principal, topic, queue.id))
    if policy == QueryOffsetPolicy.END:
        return answer_of(broker.max_offset(principal, topic, queue.id))
    if policy != QueryOffsetPolicy.TIMESTAMP:
        raise RefusedError(Code.BAD_REQUEST, f"there is no policy {policy}")
    if not request.HasField("timestamp"):
        raise RefusedError(Code.BAD_REQUEST, "the policy TIMESTAMP needs a timestamp")
    time_ms = milliseconds(request.timestamp)
    call.look_up(lambda: broker.offset_by_time(principal, topic, queue.id, time_ms), answer_of)
    return None
