"""Questions that only a live client can answer: they are asked over its own connection.

An admin tool asks the broker, the broker asks the client, and what the client says goes back to
the tool as it is. The tool's request stays open meanwhile, with a time limit.

Invariant: each request is answered exactly once, also when the client goes away.
"""

import logging
from functools import partial

from onelog.core.access import SELF
from onelog.core.cursors.forms import records_of
from onelog.core.membership.members import Member
from onelog.errors import (
    InvalidRequestError,
    MessageError,
    OffsetOutOfRangeError,
    OnelogError,
    PeerTimeoutError,
    StoreCorruptError,
)
from onelog.gateways import ClientProbe
from onelog.gateways.remoting.session import BrokerSession, Handler, Success
from onelog.message import Buffer, Message
from onelog.wire.remoting import fields
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import ConsumerRunningInfo
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.stats import ConsumerStatus, DirectConsumption

log = logging.getLogger(__name__)

RELAY_TIMEOUT_MS = 10_000
STATUS_TIMEOUT_MS = 5_000
_RESULTS = {20000: "CR_SUCCESS", 60000: "CR_LATER", 40016: "CR_RETURN_NULL"}
"""What the statuses of gRPC clients mean to RocketMQ's tools."""
VERSION_WITH_STATUS = 28
"""V3_0_7_SNAPSHOT: clients from here on tell their offsets."""
VERSION_WITH_RUNNING_INFO = 62
"""V3_1_8_SNAPSHOT: clients from here on tell how they run, and consume a message when told."""


def running_info(session: BrokerSession, command: Command) -> Success | None:
    """GET_CONSUMER_RUNNING_INFO."""
    fields.text(command.ext, "clientId")
    probe = _probe(session, command.ext)
    if probe is not None:
        probe.thread_stack(RELAY_TIMEOUT_MS, partial(_answer_stack, session, command))
        return None
    return _relay(session, command, RequestCode.GET_CONSUMER_RUNNING_INFO, command.ext, b"")


def _probe(session: BrokerSession, ext: dict[str, str]) -> ClientProbe | None:
    """The client that a request is about, if it speaks another protocol that can ask it."""
    live = session.broker.groups.live(session.principal, fields.text(ext, "consumerGroup"))
    member = None if live is None else live.find(ext.get("clientId", ""))
    channel = None if member is None else member.client.channel
    return channel if isinstance(channel, ClientProbe) else None


def _answer_stack(session: BrokerSession, command: Command, stack: str | OnelogError) -> None:
    if isinstance(stack, OnelogError):
        session.fail(command, stack)
    else:
        info = ConsumerRunningInfo(
            jstack=stack,
            properties={"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY", "PROP_CONSUME_ORDERLY": "false"},
        )
        session.answer(command, Success(body=info.encode()))


def _consumed(session: BrokerSession, command: Command, code: int | OnelogError) -> None:
    if isinstance(code, OnelogError):
        session.fail(command, code)
    else:
        result = DirectConsumption(consume_result=_RESULTS.get(code), remark="from gRPC client")
        session.answer(command, Success(body=result.encode()))


def consume_directly(session: BrokerSession, command: Command) -> None:
    """CONSUME_MESSAGE_DIRECTLY: the client gets the record, and tells how it fared with it."""
    broker, ext = session.broker, dict(command.ext)
    group, topic = fields.text(ext, "consumerGroup"), ext.get("topic", "")
    ext["brokerName"] = broker.admin.config.name
    topic_config, group_config = broker.topics.find(SELF, topic), broker.groups.find(SELF, group)
    if topic_config is not None:
        ext["topicSysFlag"] = str(topic_config.sys_flag)
    if group_config is not None:
        ext["groupSysFlag"] = str(group_config.sys_flag)
    message_id = fields.text(ext, "msgId")
    broker.users.check(session.principal, "consume", ("group", group))

    def find() -> tuple[Message, memoryview]:
        try:
            message = broker.topics.message_by_id(session.principal, message_id)
            return message, records_of(message, 1)[0]
        except (MessageError, OffsetOutOfRangeError, StoreCorruptError) as error:
            raise InvalidRequestError(str(error)) from None

    def relay(found: tuple[Message, memoryview]) -> Success | None:
        message, record = found
        probe = _probe(session, ext)
        if probe is not None:
            probe.consume_directly(message, RELAY_TIMEOUT_MS, partial(_consumed, session, command))
            return None
        return _relay(session, command, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext, record)

    session.look_up(command, find, relay)


def _relay(
    session: BrokerSession, command: Command, code: RequestCode, ext: dict[str, str], body: Buffer
) -> Success | None:
    group, client_id = fields.text(ext, "consumerGroup"), ext.get("clientId", "")
    live = session.broker.groups.live(session.principal, group)
    member = None if live is None else live.find(client_id)
    if member is None:
        return _failed(f"The Consumer <{group}> <{client_id}> not online")
    if member.client.version < VERSION_WITH_RUNNING_INFO:
        return _failed(
            f"The Consumer <{client_id}> Version <{member.client.version}> too low to finish, "
            "please upgrade it to V3_1_8_SNAPSHOT"
        )
    if not isinstance(member.client.channel, BrokerSession):
        return _failed(f"The Consumer <{group}> <{client_id}> does not speak this protocol")

    def answered(result: Command | OnelogError) -> None:
        if isinstance(result, Command):
            session.reply(command, result.code, result.ext, result.remark, result.body)
        elif isinstance(result, PeerTimeoutError):
            remark = f"consumer <{group}> <{client_id}> Timeout: {result}"
            session.answer(command, Success(code=ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark))
        else:
            remark = f"invoke consumer <{group}> <{client_id}> Exception: {result}"
            session.answer(command, _failed(remark))

    member.client.channel.request(code, ext, body, RELAY_TIMEOUT_MS, answered)
    return None


def _failed(remark: str) -> Success:
    return Success(code=ResponseCode.SYSTEM_ERROR, remark=remark)


def _status(offsets: dict[str, dict[MessageQueue, int]]) -> Success:
    return Success(body=ConsumerStatus(consumer_table=offsets).encode())


def consumer_status(session: BrokerSession, command: Command) -> Success | None:
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: the offsets that members have, or one of them has.

    They are asked all at once. Who does not answer is left out.
    """
    topic, group = fields.text(command.ext, "topic"), fields.text(command.ext, "group")
    wanted = command.ext.get("clientAddr", "").strip()
    live = session.broker.groups.live(session.principal, group)
    if live is None:
        return _failed(f"No Any Consumer online in the consumer group: [{group}]")
    probe: list[tuple[Member, BrokerSession]] = []
    for member in live.members.values():
        client = member.client
        if client.version < VERSION_WITH_STATUS:
            return _failed(f"the client does not support this feature. version={client.version}")
        if isinstance(client.channel, BrokerSession) and wanted in ("", client.client_id):
            probe.append((member, client.channel))
    if not probe:
        return _status({})
    offsets: dict[str, dict[MessageQueue, int]] = {}
    open_count = len(probe)

    def answered(member: Member, result: Command | OnelogError) -> None:
        nonlocal open_count
        client_id = member.client.client_id
        try:
            if not isinstance(result, Command):
                raise result
            if result.code == ResponseCode.SUCCESS and result.body:
                offsets[client_id] = ConsumerStatus.decode(result.body).message_queue_table
        except OnelogError as error:
            log.warning("%r does not tell its offsets: %s", client_id, error)
        open_count -= 1
        if not open_count:
            session.answer(command, _status(offsets))

    code, ext = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": topic, "group": group}
    for member, channel in probe:
        channel.request(code, ext, b"", STATUS_TIMEOUT_MS, partial(answered, member))
    return None


HANDLERS: dict[int, Handler] = {
    RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumer_status,
}
