"""Transactions, as producers know them: they end one, and are asked about one.

A half message comes like any other (`send`). Its producer ends it with a one-way request that names
the places it was told; who asks for an answer gets one, also to "I do not know", which RocketMQ
leaves unanswered. The broker's question is one-way too: its answer is another request to end.
"""

import logging
from functools import partial

from onelog.core.membership.members import Client
from onelog.core.publish import Intent
from onelog.core.transactions.checkback import Check
from onelog.errors import InvalidRequestError, MessageError
from onelog.gateways.remoting.session import BrokerSession, Handler, Success, answer_stored
from onelog.message import UNIQUE_KEY, NewMessage, SysFlag, message_id, property_value
from onelog.record.encode import encode
from onelog.rocketmq.intents import intent_of
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
    broker, principal = session.broker, session.principal
    if outcome in (_COMMIT, _ROLL_BACK):
        end = broker.roll_back_half
        if outcome == _COMMIT:
            end = partial(broker.commit_half, intent_of=partial(_intent, session))

        def act() -> None:
            end(
                principal,
                group,
                half_offset,
                log_offset,
                answer_stored,
                (session, command),
                checked=checked,
            )

        return session.when_warm(command, log_offset, act)
    if outcome == _UNKNOWN:
        log.debug("%r cannot tell what became of half message %d", group, half_offset)
        return Success()
    raise InvalidRequestError(
        f"the custom field <commitOrRollback> is {outcome}; it is {_UNKNOWN} (unknown), "
        f"{_COMMIT} (commit) or {_ROLL_BACK} (rollback)"
    )


def _intent(session: BrokerSession, message: NewMessage) -> Intent | None:
    """What a committed message is to become: its sender said so in its properties."""
    return intent_of(message.properties, session.gateway.clock.now_ms())


def resume_check(session: BrokerSession, command: Command) -> None:
    """RESUME_CHECK_HALF_MESSAGE: ask again about a transaction that was put away."""
    wanted = fields.text(command.ext, "msgId")
    admin = session.broker.admin

    def find() -> object:
        try:
            return admin.find_given_up(session.principal, wanted)
        except MessageError as error:
            raise InvalidRequestError(str(error)) from None

    def resume(_: object) -> None:
        admin.resume_check(session.principal, wanted, answer_stored, (session, command))

    session.look_up(command, find, resume)


def ask_producer(client: Client, check: Check) -> bool:
    """CHECK_TRANSACTION_STATE: False if the client cannot be sent anything now."""
    session = client.channel
    if not isinstance(session, BrokerSession):
        return False
    if session.connection.closing or session.connection.congested:
        return False
    message = check.message
    # The group's name is free, and who is asked sees the message.
    if not session.broker.access.may(session.principal, "publish", ("topic", message.topic)):
        return False
    unique = property_value(message.properties, UNIQUE_KEY)
    ext = {
        "topic": message.topic,
        "tranStateTableOffset": str(check.half_offset),
        "commitLogOffset": str(check.log_offset),
        "offsetMsgId": message_id(message.store_host, check.log_offset),
        "bname": session.broker.config.name,
    }
    if unique is not None:
        ext["msgId"] = ext["transactionId"] = unique
    head, body, tail, _ = encode(
        message, check.half_offset, check.log_offset, check.store_ms, record_crc=False
    )
    session.oneway(RequestCode.CHECK_TRANSACTION_STATE, ext, b"".join((head, body, tail)))
    return True


HANDLERS: dict[int, Handler] = {
    RequestCode.END_TRANSACTION: end_transaction,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: resume_check,
}
