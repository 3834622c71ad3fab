"""Transactions, and timed messages that are taken back.

The id of a transaction names the place of its half message, so any broker that has the log can end
it. As with RocketMQ's proxy, the producer group of a message is its topic: any producer that has
declared the topic may be asked about it.
"""

from functools import partial
from typing import Any

from onelog.core.access import SELF
from onelog.core.membership.members import Client
from onelog.core.publish import Intent
from onelog.core.transactions.checkback import Check
from onelog.errors import OnelogError, TopicNotFoundError
from onelog.gateways.grpc.answers import OK, RefusedError
from onelog.gateways.grpc.checks import topic_name
from onelog.gateways.grpc.clients import GrpcClient
from onelog.gateways.grpc.delivered import as_message
from onelog.gateways.grpc.sending import transaction_id
from onelog.gateways.grpc.session import Call
from onelog.message import Appended, LogOffset, Message, NewMessage, QueueOffset
from onelog.rocketmq.intents import intent_of
from onelog.rocketmq.recall import checked_handle
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import Code, TransactionResolution, TransactionSource

_DIGITS = frozenset("0123456789ABCDEF")


def end_transaction(call: Call, request: Any) -> Any:
    gateway = call.gateway
    broker, principal = gateway.broker, call.principal
    topic = topic_name(broker, request.topic)
    text: str = request.transaction_id
    if not text.strip():
        raise RefusedError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
    if len(text) != 32 or not _DIGITS.issuperset(text):
        raise RefusedError(Code.INVALID_TRANSACTION_ID, f"{text[:80]!r} is no transaction id")
    half_offset, log_offset = int(text[:16], 16), int(text[16:], 16)
    if max(half_offset, log_offset) >= 1 << 63:
        raise RefusedError(Code.INVALID_TRANSACTION_ID, f"{text!r} is no transaction id")
    if request.resolution == TransactionResolution.COMMIT:
        end = partial(broker.commit_half, intent_of=partial(_intent, call))
    elif request.resolution == TransactionResolution.ROLLBACK:
        end = partial(broker.roll_back_half)
    else:
        return messages.EndTransactionResponse(status=OK)
    checked = request.source == TransactionSource.SOURCE_SERVER_CHECK

    def act() -> None:
        end(principal, topic, half_offset, log_offset, _ended, call, checked=checked)

    if broker.is_warm(log_offset):
        act()
    else:
        call.look_up(lambda: broker.message_at(SELF, log_offset), lambda _: act())
    return None


def _intent(call: Call, message: NewMessage) -> Intent | None:
    return intent_of(message.properties, call.gateway.clock.now_ms())


def _ended(call: Call, _: Appended | None, error: OnelogError | None) -> None:
    call.conclude(error)


def ask_producer(client: Client, check: Check) -> bool:
    """Ask a producer what became of a transaction; False if it cannot be asked now."""
    channel = client.channel
    if not isinstance(channel, GrpcClient):
        return False
    message, heard = check.message, channel.telemetry
    if heard is None or not heard.gateway.broker.access.may(
        heard.principal, "publish", ("topic", message.topic)
    ):
        return False  # The group's name is free, and who is asked sees the message.
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
    return channel.say(recover_orphaned_transaction_command=command)


def recall_message(call: Call, request: Any) -> None:
    gateway = call.gateway
    broker, principal = gateway.broker, call.principal
    topic = topic_name(broker, request.topic)
    if broker.find_topic(principal, topic) is None:
        raise TopicNotFoundError(f"recall failed, the topic[{topic}] not exist")
    handle = checked_handle(broker.config, topic, request.recall_handle, gateway.clock.now_ms())
    key = handle.unique_key

    def recall(_: object) -> None:
        if not broker.recall(principal, topic, key, _recalled, (call, key), group=topic):
            _recalled((call, key), None, None)

    # What is found is looked for again in the loop, where nothing comes between; then in memory.
    call.look_up(lambda: broker.find_scheduled(principal, topic, key), recall)


def _recalled(token: tuple[Call, str], _: Appended | None, error: OnelogError | None) -> None:
    call, key = token
    if error is None:
        call.answer(messages.RecallMessageResponse(status=OK, message_id=key))
    else:
        call.conclude(error)
