"""What brokers ask of a consumer, for its group or for an admin tool.

Invariant: every request that wants an answer gets one.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from onelog.client.connection.routes import Route
from onelog.client.consumer.fetching import Fetching, Membership, Source
from onelog.client.consumer.listening import RetryLater
from onelog.client.consumer.offsets import body_of, queue_of
from onelog.client.hooks import now_ms
from onelog.client.message import ReceivedMessage
from onelog.errors import OnelogError
from onelog.net.peer import Peer
from onelog.record.decode import decode_records
from onelog.wire.remoting import fields
from onelog.wire.remoting.clients import (
    ConsumerRunningInfo,
    PopQueueInfo,
    ProcessQueueInfo,
)
from onelog.wire.remoting.codes import VERSION, RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.stats import ConsumerStatus, DirectConsumption, ResetOffsets

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ConsumerRequests:
    """Answers for one consumer."""

    _member: Membership
    _fetching: Fetching
    _consume_type: str
    _options: Mapping[str, str]
    _started_ms: int = field(default_factory=now_ms)

    def register(self) -> None:
        """Make the member known to brokers, and answer them from now on."""
        member = self._member
        member.instance.consumers[member.group] = lambda: member.describe(self._consume_type)
        handlers: dict[int, Callable[[Peer, Command], None]] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }
        member.instance.handlers.update(handlers)

    def watch_routes(self) -> None:
        """Share out anew when a topic's queues change, once those that are there are known."""
        self._member.instance.routes.on_change.append(self._route_changed)

    def _route_changed(self, topic: str, route: Route) -> None:
        if topic in self._member.filters:
            self._member.instance.spawn(self._member.instance.heartbeat())
            self._fetching.rebalance()

    def _members_changed(self, peer: Peer, command: Command) -> None:
        if command.ext.get("consumerGroup") == self._member.group:
            self._fetching.rebalance()

    def _reset(self, peer: Peer, command: Command) -> None:
        if command.ext.get("group") != self._member.group:
            return
        try:
            table = ResetOffsets.decode_answer(command.body).offset_table
        except OnelogError as error:
            log.warning("offsets cannot be reset: %s", error)
            return
        log.info("offsets of %d queues are reset, as an administrator wants", len(table))
        for each, offset in table.items():
            self._fetching.moved(queue_of(each), offset)

    def _status(self, peer: Peer, command: Command) -> None:
        positions = self._fetching.positions(command.ext.get("topic", ""))
        table = {body_of(queue): offset for queue, offset in positions.items()}
        peer.reply(command, body=ConsumerStatus(message_queue_table=table).encode())

    def _running_info(self, peer: Peer, command: Command) -> None:
        if self._is_foreign(peer, command):
            return
        member, settings = self._member, self._member.settings
        properties = {
            **self._options,
            "PROP_NAMESERVER_ADDR": ";".join(map(str, member.instance.nodes.nameservers)) + ";",
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CLIENT_VERSION": str(VERSION),
            "PROP_CONSUMEORDERLY": "true" if settings.orderly else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(settings.concurrency),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
        }
        table = {body_of(queue): each for queue, each in self._fetching.queue_table().items()}
        info = ConsumerRunningInfo(
            jstack=_stacks() if fields.flag(command.ext, "jstackEnable") else None,
            mq_pop_table={q: e for q, e in table.items() if isinstance(e, PopQueueInfo)},
            mq_table={q: e for q, e in table.items() if isinstance(e, ProcessQueueInfo)},
            properties=properties,
            status_table={topic: member.rates.status(topic) for topic in sorted(member.filters)},
            subscription_set=[member.filters[topic].data() for topic in sorted(member.filters)],
        )
        peer.reply(command, body=info.encode())

    def _consume_directly(self, peer: Peer, command: Command) -> None:
        if self._is_foreign(peer, command):
            return
        try:
            (record,) = decode_records(command.body)
        except (OnelogError, ValueError) as error:
            peer.reply(command, ResponseCode.SYSTEM_ERROR, remark=f"no message: {error}")
            return
        message = ReceivedMessage(record, command.ext.get("brokerName", ""))
        source: Source = _Direct(peer, command, self._member.settings.orderly)
        self._member.submit(source, [message])

    def _is_foreign(self, peer: Peer, command: Command) -> bool:
        group = command.ext.get("consumerGroup", "")
        if group == self._member.group:
            return False
        remark = f"The Consumer Group <{group}> not exist in this consumer"
        peer.reply(command, ResponseCode.SYSTEM_ERROR, remark=remark)
        return True


@dataclass(eq=False)
class _Direct:
    """The source of one message that an admin tool wants to have consumed now."""

    _peer: Peer
    _command: Command
    _in_order: bool
    _began: float = field(default_factory=time.monotonic)
    dropped: bool = False

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        self._answer("CR_SUCCESS")

    def failed(self, messages: Sequence[ReceivedMessage], error: BaseException) -> None:
        if isinstance(error, RetryLater):
            self._answer("CR_LATER", str(error))
        else:
            self._answer("CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}")

    def expired(self, messages: Sequence[ReceivedMessage]) -> None:
        self._answer("CR_LATER", "the listener has it for too long")

    def returned(self, messages: Sequence[ReceivedMessage]) -> None:
        self._answer("CR_LATER", "the consumer is about to end")

    def _answer(self, result: str, remark: str | None = None) -> None:
        body = DirectConsumption(
            consume_result=result,
            order=self._in_order,
            remark=remark,
            spent_time_mills=round((time.monotonic() - self._began) * 1000),
        )
        self._peer.reply(self._command, body=body.encode())


def _stacks() -> str:
    """What every thread is doing, as Java's tools show it."""
    frames = sys._current_frames()
    parts = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            parts.append(f"{thread.name}\n" + "".join(traceback.format_stack(frame)))
    return "\n".join(parts)
