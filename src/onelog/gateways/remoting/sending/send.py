"""Producers: messages, batches of messages, and messages that a consumer sends back.

The hottest request of all. A send costs one look at its fields, one tuple for the core and one
answer; everything that is rare (an unknown topic, a batch, a retry) leaves the straight way early.
"""

import struct
from collections.abc import Callable
from operator import itemgetter

from onelog.core.catalog.topics import TopicConfig
from onelog.core.durable.writer import UNCONFIRMED
from onelog.core.publish import Intent
from onelog.errors import (
    EmptyMessageError,
    InvalidRequestError,
    OnelogError,
    TopicNotFoundError,
)
from onelog.gateways.remoting.names import create_topic, usable_group
from onelog.gateways.remoting.session import (
    BrokerSession,
    Handler,
    Success,
    answer_stored,
    response_code,
)
from onelog.message import (
    Appended,
    AppendedRun,
    NewMessage,
    NewRun,
    Part,
    SysFlag,
)
from onelog.names import RETRY_PREFIX
from onelog.rocketmq.priorities import LITE_NEEDLE, PRIORITY_NEEDLE, with_priority
from onelog.rocketmq.sent_properties import (
    UNIQUE_KEY_NEEDLE,
    checked_parts,
    intent_of,
    new_unique_key,
    shared_properties,
)
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import FLAG_ONEWAY, Command
from onelog.wire.remoting.fields import EMPTY_BODIES
from onelog.wire.remoting.recall_handle import encode_handle
from onelog.wire.remoting.send import SendHeader, decode_send_header, encode_send_response

_BODY: Callable[[Part], bytes] = itemgetter(1)
CLIENT_FLAGS = 0x703
"""The bits of a sysFlag that are the client's to set: compression and its kind, and many tags."""
_INNER_BATCH = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
NO_BODY = "the message has no body"
Token = tuple[BrokerSession, Command, int, str]
TimedToken = tuple[Token, str, int]
"""The token of a message that waits for a time, its topic, and that time."""


def send_message(session: BrokerSession, command: Command) -> None:
    header = decode_send_header(command)
    (_, topic, _, _, queue_id, sys_flag, born_ms, flag, text, times, _, retries_max, batch) = header
    if batch:
        send_batch(session, command)
        return
    if not command.body:
        raise EmptyMessageError(NO_BODY)
    gateway = session.gateway
    properties = text.encode()
    before, _, rest = properties.partition(UNIQUE_KEY_NEEDLE)
    unique, ended, after = rest.partition(b"\x02")
    missing = gateway.plain_forms.get((before, ended, after))
    intent = None
    extra: tuple[str, ...] = ()
    if missing is not None and unique:
        properties += missing
    else:
        properties, unique = gateway.plain_forms.storable(properties, gateway.store_host)
        intent = intent_of(properties, gateway.clock)
        if PRIORITY_NEEDLE in properties or LITE_NEEDLE in properties:
            config = session.broker.topics.find(session.principal, topic) or create_wanted_topic(
                session, header
            )
            properties, queue_id, extra = with_priority(config, properties, queue_id)
    if retries_max is not None:
        intent = (intent or Intent())._replace(retries_max=retries_max)
    if queue_id < 0:
        queue_id = pick_queue(session, header)
    # What calling the class does, at half the price.
    message = tuple.__new__(
        NewMessage,
        (
            topic,
            queue_id,
            command.body,
            properties + gateway.added_properties,
            flag,
            sys_flag & CLIENT_FLAGS,
            born_ms,
            session.born_host,
            gateway.store_host,
            times,
            0,
            1,
            extra,
        ),
    )
    token: Token = (session, command, queue_id, unique.decode())
    try:
        if intent is None:
            session.broker.publish.send(session.principal, message, _stored, token)
        else:
            _publish(session, message, token, intent)
    except TopicNotFoundError:
        create_wanted_topic(session, header)
        _publish(session, message, token, intent)


def _publish(
    session: BrokerSession, message: NewMessage, token: Token, intent: Intent | None
) -> None:
    publish, principal = session.broker.publish.send, session.principal
    if intent is not None and message.topic.startswith(RETRY_PREFIX):
        usable_group(session.broker, message.topic.removeprefix(RETRY_PREFIX))
        publish(principal, message, _stored, token, intent._replace(half=False))
    elif intent is None or intent.deliver_at_ms is None:
        publish(principal, message, _stored, token, intent)
    else:
        timed: TimedToken = (token, message.topic, intent.deliver_at_ms)
        publish(principal, message, _timed_stored, timed, intent)


def pick_queue(session: BrokerSession, header: SendHeader) -> int:
    """Any queue that can be written to, for a client that leaves the choice to the broker."""
    config = session.broker.topics.find(session.principal, header.topic) or create_wanted_topic(
        session, header
    )
    return (
        session.gateway.context.random.randrange(config.write_queues) if config.write_queues else -1
    )


def create_wanted_topic(session: BrokerSession, header: SendHeader) -> TopicConfig:
    if header.topic.startswith(RETRY_PREFIX):
        usable_group(session.broker, header.topic.removeprefix(RETRY_PREFIX))
    return create_topic(
        session.broker,
        session.principal,
        header.topic,
        header.default_topic,
        header.default_topic_queues,
    )


def _stored(token: Token, appended: Appended | None, error: OnelogError | None) -> None:
    """The message is stored or refused: answer its sender."""
    session, command, queue_id, unique = token
    if appended is None:
        assert error is not None
        session.fail(command, error)
    elif not command.flag & FLAG_ONEWAY:
        gateway = session.gateway
        message_id = f"{gateway.id_prefix}{appended.log_offset:016X}"
        if error is None:
            session.connection.write(
                encode_send_response(
                    command.opaque,
                    message_id,
                    queue_id,
                    appended.queue_offset,
                    unique,
                    gateway.region,
                    gateway.trace,
                    command.serialize,
                )
            )
        else:
            _answer_late(session, command, error, message_id, queue_id, appended.queue_offset)


def _timed_stored(timed: TimedToken, appended: Appended | None, error: OnelogError | None) -> None:
    """The same for a message that waits for a time: its sender gets a recall handle."""
    token, topic, due_ms = timed
    if appended is None or error is not None:
        _stored(token, appended, error)
        return
    session, command, queue_id, unique = token
    message_id = f"{session.gateway.id_prefix}{appended.log_offset:016X}"
    handle = encode_handle(topic, session.broker.admin.config.name, due_ms + 1, unique)
    write_sent(session, command, message_id, queue_id, appended.queue_offset, unique, handle)


def write_sent(
    session: BrokerSession,
    command: Command,
    message_ids: str,
    queue_id: int,
    queue_offset: int,
    unique: str = "",
    recall_handle: str = "",
) -> None:
    """Say where messages are, unless their sender wants no answer."""
    if not command.flag & FLAG_ONEWAY:
        gateway = session.gateway
        session.connection.write(
            encode_send_response(
                command.opaque,
                message_ids,
                queue_id,
                queue_offset,
                unique,
                gateway.region,
                gateway.trace,
                command.serialize,
                recall_handle,
            )
        )


def _answer_late(
    session: BrokerSession,
    command: Command,
    error: OnelogError,
    message_id: str,
    queue_id: int,
    queue_offset: int,
) -> None:
    """The message is stored, but not yet as safely as it should be."""
    assert isinstance(error, UNCONFIRMED)
    gateway = session.gateway
    ext = {
        "msgId": message_id,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "MSG_REGION": gateway.region,
        "TRACE_ON": "true" if gateway.trace else "false",
    }
    session.reply(command, response_code(error), ext, str(error))


# -- batches -----------------------------------------------------------------------------------


def send_batch(session: BrokerSession, command: Command) -> None:
    """SEND_BATCH_MESSAGE: many messages of one queue, acknowledged together."""
    header = decode_send_header(command)
    gateway = session.gateway
    body = command.body
    # As in RocketMQ, a batch may be as large as a message. Before it is taken apart, or kept.
    session.broker.publish.check_sizes(len(body), len(header.properties))
    queue_id = header.queue_id
    if queue_id < 0:
        queue_id = pick_queue(session, header)
    source = body if isinstance(body, bytes) else bytes(body)
    parts = checked_parts(source)
    if not parts or not (all(map(_BODY, parts)) or fields.flag(command.ext, EMPTY_BODIES)):
        raise EmptyMessageError("a batch without messages, or with one that has no body")
    config = session.broker.topics.find(session.principal, header.topic)
    if config is not None and config.attributes.get("queue.type") == "BatchCQ":
        _send_inner_batch(session, command, header, queue_id, source, len(parts))
        return
    run = NewRun(
        header.topic,
        queue_id,
        parts,
        source,
        shared_properties(header.properties) + gateway.added_properties,
        header.sys_flag & CLIENT_FLAGS,
        header.born_ms,
        session.born_host,
        gateway.store_host,
        header.reconsume_times,
    )
    token = (session, command, queue_id, "")
    try:
        session.broker.publish.send(session.principal, run, _batch_stored, token)
    except TopicNotFoundError:
        create_wanted_topic(session, header)
        session.broker.publish.send(session.principal, run, _batch_stored, token)


def _send_inner_batch(
    session: BrokerSession,
    command: Command,
    header: SendHeader,
    queue_id: int,
    source: bytes,
    count: int,
) -> None:
    """A batch for a topic of queue type BatchCQ: it is stored as it is, as one record."""
    gateway = session.gateway
    unique = new_unique_key(gateway.store_host)
    properties = (
        shared_properties(header.properties) + UNIQUE_KEY_NEEDLE + unique.encode() + b"\x02"
    )
    flags = header.sys_flag & CLIENT_FLAGS | _INNER_BATCH
    message = NewMessage(
        header.topic,
        queue_id,
        source,
        properties + gateway.added_properties,
        header.flag,
        flags,
        header.born_ms,
        session.born_host,
        gateway.store_host,
        header.reconsume_times,
        0,
        count,
    )
    token: Token = (session, command, queue_id, unique)
    session.broker.publish.send(session.principal, message, _inner_stored, token)


def _inner_stored(token: Token, appended: Appended | None, error: OnelogError | None) -> None:
    session, command, queue_id, unique = token
    if appended is None or error is not None:
        _stored(token, appended, error)
        return
    gateway = session.gateway
    ext = {
        "msgId": f"{gateway.id_prefix}{appended.log_offset:016X}",
        "queueId": str(queue_id),
        "queueOffset": str(appended.queue_offset),
        "batchUniqId": unique,
        "MSG_REGION": gateway.region,
        "TRACE_ON": "true" if gateway.trace else "false",
    }
    session.answer(command, Success(ext))


def _batch_stored(token: Token, appended: AppendedRun | None, error: OnelogError | None) -> None:
    session, command, queue_id, _ = token
    if appended is None:
        assert error is not None
        session.fail(command, error)
        return
    gateway = session.gateway
    _, first, _, log_offsets = appended
    # Each offset in 16 digits, with what all ids begin with before it.
    digits = struct.pack(f">{len(log_offsets)}q", *log_offsets).hex(",", 8).upper()
    message_ids = gateway.id_prefix + digits.replace(",", f",{gateway.id_prefix}")
    if error is not None:
        _answer_late(session, command, error, message_ids, queue_id, first)
    else:
        write_sent(session, command, message_ids, queue_id, first)


# -- back from a consumer ----------------------------------------------------------------------


def send_back(session: BrokerSession, command: Command) -> Success | None:
    """CONSUMER_SEND_MSG_BACK: a message that a consumer could not handle."""
    ext = command.ext
    offset = fields.number(ext, "offset")
    if offset < 0:
        raise InvalidRequestError(f"the custom field <offset> is negative: {offset}")
    times = fields.int32(ext, "maxReconsumeTimes", -1)

    def act() -> None:
        session.broker.publish.send_back(
            session.principal,
            usable_group(session.broker, fields.text(ext, "group")),
            offset,
            fields.int32(ext, "delayLevel"),
            answer_stored,
            (session, command),
            retries_max=times if times >= 0 else None,
            unit_mode=fields.flag(ext, "unitMode"),
            unique_key=ext.get("originMsgId", ""),
        )

    return session.when_warm(command, offset, act)


HANDLERS: dict[int, Handler] = {
    RequestCode.SEND_MESSAGE: send_message,
    RequestCode.SEND_MESSAGE_V2: send_message,
    RequestCode.SEND_BATCH_MESSAGE: send_batch,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back,
}
