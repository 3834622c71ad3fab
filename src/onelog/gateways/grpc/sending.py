"""Producers: messages one by one or in batches, with all that RocketMQ 5 lets them be.

A message's fields become the properties that RocketMQ keeps them in, so that every reader of the
log understands it. The queue is chosen here: by the message group if there is one, else in turns.

The id of a transaction names the place of its half message, so any broker that has the log can end
it. As with RocketMQ's proxy, the producer group of a message is its topic: any producer that has
declared the topic may be asked about it.
"""

import itertools
from functools import partial
from typing import Any

from onelog.core.catalog.topics import TopicConfig
from onelog.core.membership.members import Client
from onelog.core.publish import Intent
from onelog.core.transactions.checkback import Check
from onelog.errors import EmptyMessageError, InvalidQueueError, OnelogError
from onelog.gateways import RefusedError
from onelog.gateways.grpc.answers import OK, overall, status_of
from onelog.gateways.grpc.checks import (
    CONTROL,
    MESSAGE_GROUP_BYTES_MAX,
    check_text,
    milliseconds,
    topic_name,
)
from onelog.gateways.grpc.clients import LITE_NAME_MAX, GrpcClient
from onelog.gateways.grpc.delivered import as_message
from onelog.gateways.grpc.session import Call
from onelog.message import Appended, LogOffset, Message, NewMessage, QueueOffset, java_hash
from onelog.record.compression import Method, unpack
from onelog.rocketmq import lite, message_types, priorities
from onelog.rocketmq.properties import (
    BORN_HOST,
    DELIVER_MS,
    IMMUNITY_SECONDS,
    LITE_TOPIC,
    MESSAGE_GROUP,
    PRIORITY,
    PRODUCER_GROUP,
    RESERVED,
    TRACE_CONTEXT,
)
from onelog.rocketmq.sent_properties import intent_of
from onelog.rocketmq.transactions import end_half, may_be_asked, recall
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import (
    Code,
    Encoding,
    MessageType,
    TransactionResolution,
    TransactionSource,
)
from onelog.wire.grpc.fields import field, number, text
from onelog.wire.remoting.recall_handle import encode_handle

PROPERTIES_MAX = 128
PROPERTIES_BYTES_MAX = 16 << 10
BATCH_MAX = 1_024
PACKED_BYTES_MAX = 16 << 20
"""What all packed bodies of a request may unpack to."""
IMMUNITY_SECONDS_MAX = 3_600
_turns = itertools.count()


_OK = OK.SerializeToString()
_STORED = field(b"\x0a", _OK)


def _stored_alone(
    token: tuple[Call, str], appended: Appended | None, error: OnelogError | None
) -> None:
    """The fate of a message that is all there is in its request, and is like most."""
    call, message_id = token
    if error is None and appended is not None:
        entry = _STORED + text(b"\x12", message_id) + number(b"\x20", appended[1])
        call.stream.answer(_STORED + field(b"\x12", entry))
    else:
        _Sending(call, 1).stored((0, message_id, None, ""), appended, error)


class _Sending:
    """Messages of one request, which are answered together."""

    __slots__ = ("call", "entries", "open_count", "statuses")

    def __init__(self, call: Call, count: int) -> None:
        self.call = call
        self.open_count = count
        self.entries = [b""] * count
        self.statuses: dict[int, bytes] = {}

    def stored(
        self,
        token: tuple[int, str, Intent | None, str],
        appended: Appended | None,
        error: OnelogError | None,
    ) -> None:
        """The fate of one is known."""
        index, message_id, intent, topic = token
        if error is not None:
            status = status_of(error)
            status_field = status.SerializeToString()
            self.statuses.setdefault(status.code, status_field)
            entry = field(b"\x0a", status_field)
        else:
            assert appended is not None
            self.statuses[Code.OK] = _OK
            entry = _STORED + text(b"\x12", message_id) + number(b"\x20", appended.queue_offset)
            if intent is not None:
                entry += self._intent_field(message_id, intent, topic, appended)
        self.entries[index] = field(b"\x12", entry)
        self.open_count -= 1
        if not self.open_count:
            answer = field(b"\x0a", overall(self.statuses)) + b"".join(self.entries)
            self.call.stream.answer(answer)

    def _intent_field(
        self, message_id: str, intent: Intent, topic: str, appended: Appended
    ) -> bytes:
        if intent.half:
            return text(b"\x1a", transaction_id(appended.queue_offset, appended.log_offset))
        if intent.deliver_at_ms is not None:
            broker = self.call.gateway.broker.admin.config.name
            handle = encode_handle(topic, broker, intent.deliver_at_ms + 1, message_id)
            return text(b"\x2a", handle)
        return b""


def transaction_id(half_offset: int, log_offset: int) -> str:
    """The id of a transaction: where its half message is."""
    return f"{half_offset:016X}{log_offset:016X}"


def send_message(call: Call, request: Any) -> None:
    given = request.messages
    if not given:
        raise RefusedError(Code.MESSAGE_CORRUPTED, "no message to send")
    if len(given) > BATCH_MAX:
        raise RefusedError(Code.PAYLOAD_TOO_LARGE, f"more than {BATCH_MAX} messages in one batch")
    broker, first = call.gateway.broker, given[0]
    topic = topic_name(broker, first.topic)
    config = broker.topics.require(call.principal, topic)
    room = [PACKED_BYTES_MAX]
    message, intent, message_id = _message(call, config, first, None, room)
    if len(given) == 1 and intent is None:
        try:
            broker.publish.send(call.principal, message, _stored_alone, (call, message_id))
        except OnelogError as error:
            _stored_alone((call, message_id), None, error)
        return
    made = [(message, intent, message_id)]
    for each in given[1:]:
        if each.topic != first.topic:
            raise RefusedError(Code.MESSAGE_CORRUPTED, "topic in message is not same")
        made.append(_message(call, config, each, message.queue_id, room))
    sending = _Sending(call, len(made))
    for index, (message, intent, message_id) in enumerate(made):
        token = (index, message_id, intent, topic)
        try:
            broker.publish.send(call.principal, message, sending.stored, token, intent)
        except OnelogError as error:
            sending.stored(token, None, error)


def _message(
    call: Call, config: TopicConfig, given: Any, queue_id: int | None, room: list[int]
) -> tuple[NewMessage, Intent | None, str]:
    """A message, and what it is to become; `room` is left for what the request has packed."""
    gateway, system = call.gateway, given.system_properties
    body: bytes = given.body
    if not body:
        raise EmptyMessageError("message body cannot be empty")
    gateway.broker.publish.check_sizes(len(body), 0)
    if system.body_encoding == Encoding.GZIP:
        # Plain, because remoting clients would take what is compressed for zlib's.
        bytes_max = gateway.context.loaded.config.store.body_bytes_max
        body = unpack(body, Method.GZIP, min(bytes_max, room[0]))
        room[0] -= len(body)
    properties = _properties(call, config, given)
    if queue_id is None:
        queue_id = _pick_queue(call, config, properties)
    extra: tuple[str, ...] = ()
    if LITE_TOPIC in properties:
        extra = (lite.queue_name(config.name, properties[LITE_TOPIC]),)
    encoded = "".join(
        [f"{name}\x01{value}\x02" for name, value in properties.items() if value]
    ).encode()
    born_ms = milliseconds(system.born_timestamp) or gateway.clock.now_ms()
    message = tuple.__new__(
        NewMessage,
        (
            config.name,
            queue_id,
            body,
            encoded + gateway.added_properties,
            0,
            0,
            born_ms,
            call.session.born_host,
            gateway.context.store_host,
            0,
            0,
            1,
            extra,
        ),
    )
    return message, intent_of(encoded, gateway.clock), properties["UNIQ_KEY"]


def _pick_queue(call: Call, config: TopicConfig, properties: dict[str, str]) -> int:
    count = config.write_queues
    if not count:
        raise InvalidQueueError(f"topic[{config.name}] has no queue to write to")
    if (name := properties.get(MESSAGE_GROUP)) is not None:
        return consistent_hash(java_hash(name), count)
    if (priority := properties.get(PRIORITY)) is not None:
        return priorities.queue_of(config, int(priority))
    return next(_turns) % count


def consistent_hash(number: int, buckets: int) -> int:
    """Which of some buckets a number is in, as Guava tells it, and so RocketMQ's proxy."""
    state = number & 0xFFFFFFFFFFFFFFFF
    candidate = 0
    while True:
        state = (2862933555777941757 * state + 1) & 0xFFFFFFFFFFFFFFFF
        following = int((candidate + 1) / (((state >> 33) + 1) / float(1 << 31)))
        if not 0 <= following < buckets:
            return candidate
        candidate = following


def _properties(call: Call, config: TopicConfig, given: Any) -> dict[str, str]:
    system = given.system_properties
    properties: dict[str, str] = {}
    size = 0
    if own := given.user_properties:
        properties = _own_properties(own)
        size = sum(len(name) + len(value) for name, value in properties.items())
    if tag := system.tag:
        check_text("tag", tag, Code.ILLEGAL_MESSAGE_TAG, without="|")
        properties["TAGS"] = tag
        size += len(tag)
    if keys := system.keys:
        for key in filter(None, keys):
            check_text("key", key, Code.ILLEGAL_MESSAGE_KEY)
        properties["KEYS"] = joined = " ".join(keys)
        size += len(joined)
    if size > PROPERTIES_BYTES_MAX:
        raise RefusedError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {PROPERTIES_BYTES_MAX}",
        )
    message_id = system.message_id
    if not message_id.strip() or CONTROL.search(message_id):
        raise RefusedError(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    properties["UNIQ_KEY"] = message_id
    if name := system.message_group:
        check_text(
            "message group",
            name,
            Code.ILLEGAL_MESSAGE_GROUP,
            bytes_max=MESSAGE_GROUP_BYTES_MAX,
        )
        properties[MESSAGE_GROUP] = name
    if (context := system.trace_context) and not CONTROL.search(context):
        properties[TRACE_CONTEXT] = context
    if (host := system.born_host) and not CONTROL.search(host):
        properties[BORN_HOST] = host
    if system.HasField("lite_topic"):
        properties[LITE_TOPIC] = _lite_topic(system.lite_topic)
    if system.HasField("priority"):
        properties[PRIORITY] = _priority(system.priority)
    _add_intent(call, config, system, properties)
    message_types.check(config, properties, unless_said="NORMAL")
    return properties


def _own_properties(given: Any) -> dict[str, str]:
    if len(given) > PROPERTIES_MAX:
        raise RefusedError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {PROPERTIES_MAX}"
        )
    properties = dict(given)
    if not RESERVED.isdisjoint(properties):
        name = next(iter(RESERVED & properties.keys()))
        raise RefusedError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
    for each in (*properties, *properties.values()):
        if CONTROL.search(each):
            raise RefusedError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                "neither the key nor the value of a property can contain control character",
            )
    if "INNER_MULTI_DISPATCH" in properties:
        raise RefusedError(
            Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "property is used by system: INNER_MULTI_DISPATCH"
        )
    return properties


def _lite_topic(name: str) -> str:
    if not lite.is_legal(name, LITE_NAME_MAX):
        raise RefusedError(
            Code.ILLEGAL_LITE_TOPIC,
            f"a lite topic has 1 to {LITE_NAME_MAX} letters, digits, dashes or underscores",
        )
    return name


def _priority(value: int) -> str:
    if value < 0:
        raise RefusedError(Code.BAD_REQUEST, f"a priority is 0 or more, not {value}")
    return str(value)


def _add_intent(call: Call, config: TopicConfig, system: Any, properties: dict[str, str]) -> None:
    """Add the properties that say what a message is to become."""
    if system.message_type == MessageType.TRANSACTION:
        properties["TRAN_MSG"] = "true"
        properties[PRODUCER_GROUP] = config.name
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            if seconds > IMMUNITY_SECONDS_MAX:
                raise RefusedError(
                    Code.BAD_REQUEST,
                    "the max transaction recovery time of message is too large, max is "
                    f"{IMMUNITY_SECONDS_MAX}",
                )
            properties[IMMUNITY_SECONDS] = str(seconds)
    if system.HasField("delivery_timestamp"):
        deliver_ms = milliseconds(system.delivery_timestamp)
        most_ms = call.gateway.broker.admin.config.timer_delay_max_ms
        if deliver_ms - call.gateway.clock.now_ms() > most_ms:
            raise RefusedError(
                Code.ILLEGAL_DELIVERY_TIME,
                f"the max delay time of message is too large, max is {most_ms}",
            )
        properties[DELIVER_MS] = str(deliver_ms)


_DIGITS = frozenset("0123456789ABCDEF")


def end_transaction(call: Call, request: Any) -> Any:
    gateway = call.gateway
    topic = topic_name(gateway.broker, request.topic)
    text: str = request.transaction_id
    if not text.strip():
        raise RefusedError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
    if len(text) != 32 or not _DIGITS.issuperset(text):
        raise RefusedError(Code.INVALID_TRANSACTION_ID, f"{text[:80]!r} is no transaction id")
    half_offset, log_offset = int(text[:16], 16), int(text[16:], 16)
    if max(half_offset, log_offset) >= 1 << 63:
        raise RefusedError(Code.INVALID_TRANSACTION_ID, f"{text!r} is no transaction id")
    commits = request.resolution == TransactionResolution.COMMIT
    if not commits and request.resolution != TransactionResolution.ROLLBACK:
        return messages.EndTransactionResponse(status=OK)
    end_half(
        gateway.broker,
        call.principal,
        topic,
        half_offset,
        log_offset,
        _ended,
        call,
        commits=commits,
        checked=request.source == TransactionSource.SOURCE_SERVER_CHECK,
        clock=gateway.clock,
        look_up=call.look_up,
    )
    return None


def _ended(call: Call, _: Appended | None, error: OnelogError | None) -> None:
    call.conclude(error)


def ask_producer(client: Client, check: Check) -> bool:
    """Ask a producer what became of a transaction; False if it cannot be asked now."""
    channel = client.channel
    if not isinstance(channel, GrpcClient):
        return False
    message, heard = check.message, channel.telemetry
    if heard is None or not may_be_asked(heard.gateway.broker, heard.principal, message):
        return False
    stored = Message(
        message.topic,
        message.queue_id,
        QueueOffset(check.half_offset),
        LogOffset(check.log_offset),
        memoryview(message.body),
        message.properties,
        message.flag,
        message.sys_flag,
        message.born_ms,
        message.born_host,
        check.store_ms,
        message.store_host,
        0,
        0,
        0,
        0,
    )
    command = messages.RecoverOrphanedTransactionCommand(
        transaction_id=transaction_id(check.half_offset, check.log_offset),
        message=as_message(stored, message.topic),
    )
    return channel.send_command(recover_orphaned_transaction_command=command)


def recall_message(call: Call, request: Any) -> None:
    gateway = call.gateway
    topic = topic_name(gateway.broker, request.topic)
    # The producer group of a message is its topic.
    recall(
        gateway.broker,
        call.principal,
        topic,
        request.recall_handle,
        topic,
        partial(_recalled, call),
        now_ms=gateway.clock.now_ms(),
        look_up=call.look_up,
    )


def _recalled(call: Call, message_id: str, error: OnelogError | None) -> None:
    if error is None:
        call.answer(messages.RecallMessageResponse(status=OK, message_id=message_id))
    else:
        call.conclude(error)
