"""Timed messages, as producers know them: they get a handle for each, and can take it back.

A timed message comes like any other (`send`); the handle is in the answer. Yes means that it will
not be delivered. So it is also the answer where nothing is scheduled and the handle's time has not
come: it was recalled before, or never sent.
"""

from onelog.errors import OnelogError, TopicNotFoundError
from onelog.gateways.remoting.session import BrokerSession, Handler, Success
from onelog.message import Appended
from onelog.rocketmq.recall import checked_handle
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command


def recall_message(session: BrokerSession, command: Command) -> None:
    ext = command.ext
    topic = fields.text(ext, "topic")
    text = fields.text(ext, "recallHandle")
    broker, principal = session.broker, session.principal
    if broker.find_topic(principal, topic) is None:
        raise TopicNotFoundError(f"recall failed, the topic[{topic}] not exist")
    handle = checked_handle(broker.config, topic, text, session.gateway.clock.now_ms())
    group = ext.get("producerGroup", "")
    token = (session, command, handle.unique_key)

    def recall(_: object) -> None:
        if not broker.recall(principal, topic, handle.unique_key, _recalled, token, group=group):
            _recalled(token, None, None)

    # What is found is looked for again in the loop, where nothing comes between; then in memory.
    session.look_up(
        command, lambda: broker.find_scheduled(principal, topic, handle.unique_key), recall
    )


def _recalled(
    token: tuple[BrokerSession, Command, str], _: Appended | None, error: OnelogError | None
) -> None:
    session, command, unique_key = token
    ext = {"msgId": unique_key, "MSG_REGION": session.gateway.region}
    session.conclude(command, Success(ext), error)


HANDLERS: dict[int, Handler] = {RequestCode.RECALL_MESSAGE: recall_message}
