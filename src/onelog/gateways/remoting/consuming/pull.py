"""Consumers that pull: what they get, and how long they wait for it.

A pull that finds nothing, and says that it may wait, is held until a message arrives in its queue
or its time is up. A pull of data that is not in memory is finished after a worker has read it.
"""

import functools
from dataclasses import dataclass

from onelog.core.cursors.pull import PullResult, PullStatus
from onelog.core.durable.waiting import Wait
from onelog.core.filters.tags import Subscription, subscribe
from onelog.errors import OnelogError
from onelog.gateways.remoting.names import usable_group
from onelog.gateways.remoting.session import BrokerSession, Handler
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.fields import BULK_BYTES

COMMIT_FLAG, SUSPEND_FLAG, SUBSCRIPTION_FLAG = 1, 2, 4
SLICES_MAX = 256
SHORT_CHARACTERS_MAX = 512

CODES: dict[PullStatus, ResponseCode] = {
    PullStatus.FOUND: ResponseCode.SUCCESS,
    PullStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY = (PullStatus.NO_MATCHED_LOGIC_QUEUE, PullStatus.NO_MESSAGE_IN_QUEUE)


_short = functools.lru_cache(maxsize=4096)(subscribe)
# Each of these may take a megabyte.
_long = functools.lru_cache(maxsize=64)(subscribe)


def _subscription(topic: str, expression: str, kind: str, version: int) -> Subscription:
    remembered = _short if len(topic) + len(expression) <= SHORT_CHARACTERS_MAX else _long
    return remembered(topic, expression, kind, version)


@dataclass(frozen=True, slots=True)
class Pull:
    """One request to pull."""

    session: BrokerSession
    command: Command
    group: str
    topic: str
    queue_id: int
    offset: int
    count_max: int
    bytes_max: int
    timeout_ms: int
    subscription: Subscription
    bulk_bytes: int = 0

    def run(self, *, may_wait: bool, cold_ok: bool = False, committed: int = -1) -> None:
        """Look for messages, and answer or hold."""
        result = self.session.broker.pull(
            self.group,
            self.topic,
            self.queue_id,
            self.offset,
            self.count_max,
            self.subscription,
            self.bytes_max,
            cold_ok=cold_ok,
            bulk_bytes=self.bulk_bytes,
            committed=committed,
        )
        if result.status is PullStatus.COLD:
            self._read_elsewhere(result, may_wait)
            return
        if result.status is PullStatus.LATER:
            turn = functools.partial(self._again, cold_ok=cold_ok, may_wait=may_wait)
            self.session.broker.filter_time.later(turn)
            return
        code = CODES[result.status]
        if result.status in _EMPTY and self.offset != 0:
            code = ResponseCode.PULL_OFFSET_MOVED
        if code is ResponseCode.PULL_NOT_FOUND and may_wait and self._hold():
            return
        self._answer(code, result)

    def _hold(self) -> bool:
        broker = self.session.broker
        timeout_ms = self.timeout_ms if broker.config.long_poll else broker.config.short_poll_ms
        if timeout_ms <= 0:
            return False
        wait = broker.wait_for(
            self.topic, self.queue_id, self.offset, timeout_ms, self._woken, self.session,
            self.subscription,
        )  # fmt: skip
        return wait is not None

    def _woken(self, _: Wait, timed_out: bool) -> None:
        self._again(cold_ok=False)

    def _again(self, *, cold_ok: bool, may_wait: bool = False) -> None:
        if self.session.connection.closing:
            return
        try:
            self.run(may_wait=may_wait, cold_ok=cold_ok)
        except OnelogError as error:
            self.session.fail(self.command, error)

    def _read_elsewhere(self, result: PullResult, may_wait: bool) -> None:
        session = self.session
        session.gateway.offload(
            lambda: session.broker.puller.warm(result.ranges),
            lambda: self._again(cold_ok=True, may_wait=may_wait),
        )

    def _answer(self, code: ResponseCode, result: PullResult) -> None:
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        }
        slices = result.slices
        # Messages of a queue that lie apart in the log: one copy costs less than many slices.
        body = slices if len(slices) <= SLICES_MAX else b"".join(slices)
        self.session.reply(self.command, code, ext, result.status.name, body)


def pull_message(session: BrokerSession, command: Command) -> None:
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""
    ext = command.ext
    broker = session.broker
    group, topic = fields.text(ext, "consumerGroup"), fields.text(ext, "topic")
    usable_group(broker, group)
    queue_id = fields.int32(ext, "queueId")
    flags = fields.int32(ext, "sysFlag")
    version = fields.number(ext, "subVersion")
    if flags & SUBSCRIPTION_FLAG:
        expression = ext.get("subscription", "*")
        subscription = _subscription(topic, expression, ext.get("expressionType", "TAG"), version)
    else:
        broker.groups.require(group)
        broker.topics.require(topic)
        subscription = broker.subscription(group, topic, session, version)
    pull = Pull(
        session,
        command,
        group,
        topic,
        queue_id,
        fields.number(ext, "queueOffset"),
        fields.int32(ext, "maxMsgNums"),
        fields.int32(ext, "maxMsgBytes", 0),
        fields.number(ext, "suspendTimeoutMillis") if flags & SUSPEND_FLAG else 0,
        subscription,
        max(0, fields.int32(ext, BULK_BYTES, 0)),
    )
    committed = fields.number(ext, "commitOffset")
    pull.run(
        may_wait=bool(flags & SUSPEND_FLAG), committed=committed if flags & COMMIT_FLAG else -1
    )


HANDLERS: dict[int, Handler] = {
    RequestCode.PULL_MESSAGE: pull_message,
    RequestCode.LITE_PULL_MESSAGE: pull_message,
}
