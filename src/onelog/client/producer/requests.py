"""Request and reply: a message that is answered, and the requester that waits for the answer.

    requester -- message with CORRELATION_ID and REPLY_TO_CLIENT --> topic --> replier
    requester <-- PUSH_REPLY_MESSAGE_TO_CLIENT -- broker <-- SEND_REPLY_MESSAGE_V2 -- replier

A reply goes to the broker that the request came from, because that broker knows the requester.
Other clients reply through any broker of the cluster, so a requester makes itself known to all of
them.

Invariants: a request ends with its own reply or with an error, within its time. A reply that nobody
waits for is accepted and dropped. A replier learns whether its reply arrived.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Unpack

from onelog.client.connection.address import parse_address
from onelog.client.message import Message, Receipt, ReceivedMessage
from onelog.client.options import milliseconds
from onelog.client.producer.outgoing import Destination
from onelog.errors import (
    ClientClosedError,
    InvalidAddressError,
    MessageError,
    OnelogError,
    ReplyFailedError,
    RequestRefusedError,
    RequestTimeoutError,
    SendFailedError,
)
from onelog.message import LOOPBACK, LogOffset, QueueOffset, encode_host, encode_properties
from onelog.message import Message as Record
from onelog.net.peer import Peer
from onelog.rocketmq.names import REPLY_SUFFIX
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command

if TYPE_CHECKING:
    from onelog.client.producer.producer import AsyncProducer

CLUSTER = "CLUSTER"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO = "REPLY_TO_CLIENT"
TTL = "TTL"
MESSAGE_TYPE = "MSG_TYPE"
ARRIVED = "ARRIVE_TIME"
REPLY = "reply"
PRESENCE_SECONDS_MAX = 0.5
"""How long a request waits until all brokers know the requester; usually one is enough."""

log = logging.getLogger(__name__)


class Requests:
    """The requests of one producer that wait for replies."""

    def __init__(self, producer: "AsyncProducer") -> None:
        self._producer = producer
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        producer.instance.handlers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self._replied

    def close(self) -> None:
        """Nobody gets a reply any more."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ClientClosedError("the client was closed before the reply"))

    async def request(
        self, message: Message, **destination: Unpack[Destination]
    ) -> ReceivedMessage:
        """Send a message and wait for the reply to it; `RequestTimeoutError` if none comes."""
        instance = self._producer.instance
        timeout = destination.get("timeout")
        limit_ms = instance.timeout_ms if timeout is None else milliseconds("timeout", timeout)
        correlation_id = str(uuid.uuid4())
        extra = {CORRELATION_ID: correlation_id, REPLY_TO: instance.client_id, TTL: str(limit_ms)}
        reply: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._be_present()
                await self._producer.dispatch(message, **destination, extra=extra)
                return await reply
        except TimeoutError:
            raise RequestTimeoutError(
                f"no reply to the request to topic {message.topic!r} within {limit_ms} ms"
            ) from None
        finally:
            del self._waiting[correlation_id]
            reply.cancel()

    async def reply(
        self,
        request: ReceivedMessage,
        made: Callable[[str], Message],
        timeout: timedelta | float | None,
    ) -> Receipt:
        """Answer a request with the message that is made for a topic; see `Producer.reply`."""
        request_properties = request.all_properties
        missing = [
            name for name in (CLUSTER, CORRELATION_ID, REPLY_TO) if name not in request_properties
        ]
        if missing:
            raise MessageError(
                f"message {request.message_id} of topic {request.topic!r} is no request that can "
                f"be replied to: it has no property {missing[0]}"
            )
        extra = {
            MESSAGE_TYPE: REPLY,
            CORRELATION_ID: request_properties[CORRELATION_ID],
            REPLY_TO: request_properties[REPLY_TO],
        }
        if TTL in request_properties:
            extra[TTL] = request_properties[TTL]
        topic = f"{request_properties[CLUSTER]}{REPLY_SUFFIX}"
        queues = await self._producer.queues(topic)
        try:
            return await self._producer.dispatch(
                made(topic),
                queue=next((each for each in queues if each.broker == request.broker), None),
                timeout=timeout,
                extra=extra,
                code=RequestCode.SEND_REPLY_MESSAGE_V2,
            )
        except (RequestRefusedError, SendFailedError) as error:
            raise ReplyFailedError(
                f"the reply to client {request_properties[REPLY_TO]} did not arrive: {error}"
            ) from None

    async def _be_present(self) -> None:
        presence = self._producer.instance.presence
        if not presence.masters:
            # What a slow broker does not learn in time, it learns soon after.
            await asyncio.wait(
                {self._producer.instance.spawn(presence.ensure())}, timeout=PRESENCE_SECONDS_MAX
            )

    def _replied(self, peer: Peer, command: Command) -> None:
        try:
            message = _reply_of(command)
        except OnelogError as error:
            peer.reply(command, ResponseCode.SYSTEM_ERROR, remark=f"no reply: {error}")
            return
        waiting = self._waiting.get(message.all_properties.get(CORRELATION_ID, ""))
        if waiting is None or waiting.done():
            log.info("a reply came too late, or to nobody here: %r", message)
        else:
            waiting.set_result(message)
        peer.reply(command)


def _reply_of(command: Command) -> ReceivedMessage:
    ext = command.ext
    properties = fields.text(ext, "properties").encode()
    if properties and properties[-1] != 2:
        properties += b"\x02"
    now_ms = time.time_ns() // 1_000_000
    body = memoryview(command.body)
    return ReceivedMessage(
        Record(
            topic=fields.text(ext, "topic"),
            queue_id=fields.int32(ext, "queueId"),
            queue_offset=QueueOffset(0),
            log_offset=LogOffset(0),
            body=body,
            properties=properties + encode_properties({ARRIVED: str(now_ms)}),
            flag=fields.int32(ext, "flag"),
            sys_flag=fields.int32(ext, "sysFlag"),
            born_ms=fields.number(ext, "bornTimestamp"),
            born_host=_host(ext.get("bornHost", "")),
            store_ms=fields.number(ext, "storeTimestamp"),
            store_host=_host(ext.get("storeHost", "")),
            reconsume_times=fields.int32(ext, "reconsumeTimes", 0),
            prepared_offset=0,
            body_crc=0,
            size=len(body),
        ),
        ext.get("bname", ""),
    )


def _host(text: str) -> bytes:
    """An address as records keep it; the loopback's where it is none that can be kept."""
    try:
        address = parse_address(text)
        return encode_host(address.host, address.port)
    except (InvalidAddressError, ValueError):
        return LOOPBACK
