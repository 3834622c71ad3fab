"""Consumers that pull: a fetch with one cursor, answered with RocketMQ's codes."""

import functools
from collections.abc import Sequence

from onelog.core.cursors.fetch import Cursor, Result, allowed
from onelog.core.filters.tags import Subscription, subscribe
from onelog.errors import OnelogError
from onelog.gateways.remoting.names import is_legal_group, usable_group
from onelog.gateways.remoting.session import BrokerSession, Handler
from onelog.store.reader import FetchStatus
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.fields import BULK_BYTES

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
    config = broker.config
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
        subscription = broker.subscription(session.principal, group, topic, session, version)
    offset = fields.number(ext, "queueOffset")
    limits = allowed(
        config,
        fields.int32(ext, "maxMsgNums"),
        fields.int32(ext, "maxMsgBytes", 0),
        fields.int32(ext, BULK_BYTES, 0),
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
    token = (session, command, offset)
    broker.fetch(session.principal, (cursor,), limits, wait_ms, _fetched, session, token)


def _fetched(token: tuple[BrokerSession, Command, int], results: Sequence[Result]) -> None:
    """Answer a pull that started at some offset."""
    session, command, offset = token
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
        suggested = str(session.broker.suggested_broker(principal, group, result, far_bytes))
    ext = {
        "suggestWhichBrokerId": suggested,
        "nextBeginOffset": str(result.next_offset),
        "minOffset": str(result.min_offset),
        "maxOffset": str(result.max_offset),
    }
    # Messages of a queue that lie apart in the log: one copy costs less than many slices.
    body = slices if len(slices) <= SLICES_MAX else b"".join(slices)
    session.reply(command, code, ext, remark, body)


HANDLERS: dict[int, Handler] = {
    RequestCode.PULL_MESSAGE: pull_message,
    RequestCode.LITE_PULL_MESSAGE: pull_message,
}
