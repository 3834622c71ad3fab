"""Messages that nobody sees until somebody decides: transactions, timed messages, prepared batches.

A half message comes like any other (`send`). Its producer ends it with a one-way request that names
the places it was told; who asks for an answer gets one, also to "I do not know", which RocketMQ
leaves unanswered. The broker's question is one-way too: its answer is another request to end. A
timed message comes like any other, too; the handle to take it back with is in the answer.

Batches that a job prepares and its driver commits are OneLog's own requests (`prepared_batches`):

STAGE_MESSAGES   query, batch, attempt, topic, queueId, bornTimestamp, defaultTopic,
                 defaultTopicQueueNums, oneOff; the body is a batch as in SEND_BATCH_MESSAGE
                 -> offset (names the part in the commit), count
COMMIT_STAGED    query, batch, note, oneOff; the body is a JSON list of offsets
                 -> batch (the query's last), again (whether it was committed before)
QUERY_STAGED     query -> batch (-1 if the query has committed nothing here), note

`oneOff` ("true") may be left out: the query is a batch write, which has no batch but this one, so
that its name need not be remembered for long.
"""

import logging
from functools import partial
from typing import Annotated, Any

import msgspec

from onelog.core.membership.members import Client
from onelog.core.transactions.checkback import Check
from onelog.core.transactions.prepared_batches import Committed
from onelog.errors import (
    EmptyMessageError,
    InvalidRequestError,
    MessageError,
    OnelogError,
    TopicNotFoundError,
)
from onelog.gateways.remoting.names import create_topic
from onelog.gateways.remoting.session import BrokerSession, Handler, Success, answer_stored
from onelog.message import (
    UNIQUE_KEY,
    Appended,
    NewRun,
    SysFlag,
    message_id,
    property_value,
)
from onelog.record.encode import encode
from onelog.rocketmq.names import DEFAULT_TOPIC
from onelog.rocketmq.sent_properties import checked_parts
from onelog.rocketmq.transactions import end_half, may_be_asked, recall
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command

log = logging.getLogger(__name__)

_UNKNOWN = 0
_COMMIT = int(SysFlag.COMMITTED)
_ROLL_BACK = int(SysFlag.ROLLED_BACK)


def end_transaction(session: BrokerSession, command: Command) -> Success | None:
    ext = command.ext
    group = fields.text(ext, "producerGroup")
    half_offset = fields.number(ext, "tranStateTableOffset")
    log_offset = fields.number(ext, "commitLogOffset")
    outcome = fields.int32(ext, "commitOrRollback")
    checked = fields.flag(ext, "fromTransactionCheck")
    if outcome in (_COMMIT, _ROLL_BACK):
        end_half(
            session.broker,
            session.principal,
            group,
            half_offset,
            log_offset,
            answer_stored,
            (session, command),
            commits=outcome == _COMMIT,
            checked=checked,
            clock=session.gateway.clock,
            look_up=partial(session.look_up, command),
        )
        return None
    if outcome == _UNKNOWN:
        log.debug("%r does not know what became of half message %d", group, half_offset)
        return Success()
    raise InvalidRequestError(
        f"the custom field <commitOrRollback> is {outcome}; it is {_UNKNOWN} (unknown), "
        f"{_COMMIT} (commit) or {_ROLL_BACK} (rollback)"
    )


def resume_check(session: BrokerSession, command: Command) -> None:
    """RESUME_CHECK_HALF_MESSAGE: ask again about a transaction that was put away."""
    wanted = fields.text(command.ext, "msgId")

    def find() -> object:
        try:
            return session.broker.transactions.find_given_up(session.principal, wanted)
        except MessageError as error:
            raise InvalidRequestError(str(error)) from None

    def resume(_: object) -> None:
        session.broker.transactions.resume_check(
            session.principal, wanted, answer_stored, (session, command)
        )

    session.look_up(command, find, resume)


def ask_producer(client: Client, check: Check) -> bool:
    """CHECK_TRANSACTION_STATE: False if the client cannot be sent anything now."""
    session = client.channel
    if not isinstance(session, BrokerSession):
        return False
    if session.connection.closing or session.connection.congested:
        return False
    message = check.message
    if not may_be_asked(session.broker, session.principal, message):
        return False
    unique = property_value(message.properties, UNIQUE_KEY)
    ext = {
        "topic": message.topic,
        "tranStateTableOffset": str(check.half_offset),
        "commitLogOffset": str(check.log_offset),
        "offsetMsgId": message_id(message.store_host, check.log_offset),
        "bname": session.broker.admin.config.name,
    }
    if unique is not None:
        ext["msgId"] = ext["transactionId"] = unique
    head, body, tail, _ = encode(
        message, check.half_offset, check.log_offset, check.store_ms, record_crc=False
    )
    session.oneway(RequestCode.CHECK_TRANSACTION_STATE, ext, b"".join((head, body, tail)))
    return True


def recall_message(session: BrokerSession, command: Command) -> None:
    ext = command.ext
    recall(
        session.broker,
        session.principal,
        fields.text(ext, "topic"),
        fields.text(ext, "recallHandle"),
        ext.get("producerGroup", ""),
        partial(_recalled, session, command),
        now_ms=session.gateway.clock.now_ms(),
        look_up=partial(session.look_up, command),
    )


def _recalled(
    session: BrokerSession, command: Command, unique_key: str, error: OnelogError | None
) -> None:
    ext = {"msgId": unique_key, "MSG_REGION": session.gateway.region}
    session.conclude(command, Success(ext), error)


_STAGED_QUEUES = 4
"""Of a topic that is made for a part, unless its sender says how many."""
# Of longer numbers, any many could be chosen that share a hash.
_staged_offsets = msgspec.json.Decoder(
    list[Annotated[int, msgspec.Meta(ge=-fields.INT64_MAX, le=fields.INT64_MAX)]]
)


def stage_messages(session: BrokerSession, command: Command) -> None:
    ext, gateway = command.ext, session.gateway
    source = bytes(command.body)
    parts = checked_parts(source)
    if not parts:
        raise EmptyMessageError("a part without messages")
    run = NewRun(
        fields.text(ext, "topic"),
        fields.int32(ext, "queueId"),
        parts,
        source,
        gateway.added_properties,
        0,
        fields.number(ext, "bornTimestamp", gateway.clock.now_ms()),
        session.born_host,
        gateway.store_host,
    )
    stage_run = partial(
        session.broker.transactions.stage_batch,
        session.principal,
        fields.text(ext, "query"),
        fields.number(ext, "batch"),
        ext.get("attempt", ""),
        run,
        _staged,
        (session, command, len(parts)),
        one_off=fields.flag(ext, "oneOff"),
    )
    try:
        stage_run()
    except TopicNotFoundError:
        queues = fields.int32(ext, "defaultTopicQueueNums", _STAGED_QUEUES)
        default_topic = ext.get("defaultTopic", DEFAULT_TOPIC)
        create_topic(session.broker, session.principal, run.topic, default_topic, queues)
        stage_run()


def _staged(
    token: tuple[BrokerSession, Command, int], where: Appended | None, error: OnelogError | None
) -> None:
    session, command, count = token
    if where is None or error is not None:
        assert error is not None
        session.fail(command, error)
    else:
        ext = {"offset": str(where.queue_offset), "count": str(count)}
        session.answer(command, Success(ext))


def commit_staged(session: BrokerSession, command: Command) -> None:
    try:
        offsets = _staged_offsets.decode(command.body)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"the body is no JSON list of offsets: {error}") from None
    session.broker.transactions.commit_batch(
        session.principal,
        fields.text(command.ext, "query"),
        fields.number(command.ext, "batch"),
        offsets,
        _committed,
        (session, command),
        note=command.ext.get("note", ""),
        one_off=fields.flag(command.ext, "oneOff"),
    )


def _committed(token: Any, committed: Committed | None, error: OnelogError | None) -> None:
    session, command = token
    if error is not None:
        session.fail(command, error)
    elif committed is not None:
        again = "true" if committed.again else "false"
        session.answer(command, Success({"batch": str(committed.batch), "again": again}))


def query_staged(session: BrokerSession, command: Command) -> Success:
    name = fields.text(command.ext, "query")
    last, note = session.broker.transactions.last_batch(session.principal, name)
    return Success({"batch": str(-1 if last is None else last), "note": note})


HANDLERS: dict[int, Handler] = {
    RequestCode.END_TRANSACTION: end_transaction,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: resume_check,
    RequestCode.RECALL_MESSAGE: recall_message,
    RequestCode.STAGE_MESSAGES: stage_messages,
    RequestCode.COMMIT_STAGED: commit_staged,
    RequestCode.QUERY_STAGED: query_staged,
}
