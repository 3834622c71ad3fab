"""Request and reply: a consumer answers a message, and its producer gets the answer at once.

    requester -- request --> topic -- pull --> replier
    requester <-- PUSH_REPLY_MESSAGE_TO_CLIENT -- broker <-- SEND_REPLY_MESSAGE -- replier

The reply names the requester's client in REPLY_TO_CLIENT. It is pushed over that client's own
connection, and when the client has taken it, stored in `<cluster>_REPLY_TOPIC` and acknowledged. A
reply that does not arrive is an error to the replier, and (unlike in RocketMQ, which stores it even
so) leaves nothing behind.

Invariant: each reply is acknowledged or refused exactly once.
"""

from onelog.core.access import SELF
from onelog.errors import (
    EmptyMessageError,
    OnelogError,
    PeerClosedError,
    PeerTimeoutError,
    TopicNotFoundError,
)
from onelog.gateways.remoting.sending.send import (
    CLIENT_FLAGS,
    NO_BODY,
    create_wanted_topic,
    pick_queue,
    write_sent,
)
from onelog.gateways.remoting.session import BrokerSession, Handler, Success
from onelog.message import Appended, NewMessage, decode_host, encode_properties, property_value
from onelog.rocketmq.sent_properties import without_reserved
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.send import SendHeader, decode_send_header

REPLY_TO = "REPLY_TO_CLIENT"
PUSH_TIME = "PUSH_REPLY_TIME"
PUSH_TIMEOUT_MS = 10_000
"""How long a requester may take to say that it has the reply."""


def send_reply(session: BrokerSession, command: Command) -> Success | None:
    """SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2."""
    header = decode_send_header(command)
    properties = without_reserved(header.properties.encode())
    if properties and properties[-1] != 2:
        properties += b"\x02"
    client_id = property_value(properties, REPLY_TO)
    if client_id is None:
        return _failed(f"reply message properties[{REPLY_TO}] is null")
    message = _admitted(session, command, header, properties)
    # Who may send to the topic of replies may reply.
    client = session.broker.groups.find_client(SELF, client_id)
    if client is None or not isinstance(client.channel, BrokerSession):
        return _failed(f"push reply message fail, channel of <{client_id}> not found.")

    def answered(result: Command | OnelogError) -> None:
        if isinstance(result, Command) and result.code == ResponseCode.SUCCESS:
            _store(session, command, message)
        else:
            session.answer(command, _failed(_reason(client_id, result)))

    ext = _push_fields(session, header, properties)
    client.channel.request(
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, command.body, PUSH_TIMEOUT_MS, answered
    )
    return None


def _admitted(
    session: BrokerSession, command: Command, header: SendHeader, properties: bytes
) -> NewMessage:
    """The reply as it will be stored; what is wrong with it is raised before it is pushed."""
    if not command.body:
        raise EmptyMessageError(NO_BODY)
    gateway = session.gateway
    queue_id = header.queue_id if header.queue_id >= 0 else pick_queue(session, header)
    message = NewMessage(
        header.topic,
        queue_id,
        command.body,
        properties,
        header.flag,
        header.sys_flag & CLIENT_FLAGS,
        header.born_ms,
        session.born_host,
        gateway.store_host,
        header.reconsume_times,
    )
    try:
        return session.broker.publish.admit(session.principal, message)
    except TopicNotFoundError:
        create_wanted_topic(session, header)
        return session.broker.publish.admit(session.principal, message)


def _push_fields(session: BrokerSession, header: SendHeader, properties: bytes) -> dict[str, str]:
    gateway = session.gateway
    now_ms = gateway.clock.now_ms()
    pushed = properties + encode_properties({PUSH_TIME: str(now_ms)})
    return {
        "producerGroup": header.producer_group,
        "topic": header.topic,
        "defaultTopic": header.default_topic,
        "defaultTopicQueueNums": str(header.default_topic_queues),
        "queueId": str(header.queue_id),
        "sysFlag": str(header.sys_flag),
        "bornTimestamp": str(header.born_ms),
        "flag": str(header.flag),
        "properties": pushed.decode(),
        "reconsumeTimes": str(header.reconsume_times),
        "unitMode": "true" if header.unit_mode else "false",
        "bornHost": _address(session.born_host),
        "storeHost": _address(gateway.store_host),
        "storeTimestamp": str(now_ms),
    }


def _address(host: bytes) -> str:
    name, port = decode_host(host)
    return f"{name}:{port}"


def _reason(client_id: str, result: Command | OnelogError) -> str:
    words = f"push reply message to {client_id} fail"
    if isinstance(result, PeerTimeoutError):
        return f"{words}: it did not answer within {PUSH_TIMEOUT_MS} ms"
    if isinstance(result, PeerClosedError):
        return f"{words}: its connection is closed"
    remark = result.remark if isinstance(result, Command) else str(result)
    return f"{words}: {remark}"


def _failed(remark: str) -> Success:
    return Success(code=ResponseCode.SYSTEM_ERROR, remark=remark)


def _store(session: BrokerSession, command: Command, message: NewMessage) -> None:
    """The requester has the reply: keep a copy, and answer the replier."""
    token = (session, command, message.queue_id)
    try:
        session.broker.publish.send(session.principal, message, _stored, token)
    except OnelogError as error:
        _stored(token, None, error)


def _stored(
    token: tuple[BrokerSession, Command, int], appended: Appended | None, error: OnelogError | None
) -> None:
    """The copy is stored or not: either way the reply has arrived, and that is what was asked."""
    session, command, queue_id = token
    if appended is None:
        write_sent(session, command, "0", queue_id, 0)
    else:
        reply_id = f"{session.gateway.id_prefix}{appended.log_offset:016X}"
        write_sent(session, command, reply_id, queue_id, appended.queue_offset)


HANDLERS: dict[int, Handler] = {
    RequestCode.SEND_REPLY_MESSAGE: send_reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: send_reply,
}
